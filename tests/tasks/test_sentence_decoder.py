"""Whole sentences: labels, numbers and sets of labels."""

import numpy as np
import pytest
import torch
from by_hand import check_loss, decoder, encoded, surprise
from scipy import stats
from sklearn import metrics
from torch.nn import functional

from mtlprune.evaluation.baselines import Majority
from mtlprune.evaluation.scores import add, count, score, scores_of_values
from mtlprune.layers import KINDS, Layer
from mtlprune.sentence import Sentence
from mtlprune.tasks.sentence import LABEL, LABELS, NUMBER

TASKS = {"label": LABEL, "number": NUMBER, "labels": LABELS}
VALUES = {"label": ["b", "a", "b"], "number": [1.0, 4.0, -2.5], "labels": [("a",), (), ("a", "b")]}
WORDS = ("a", "b", "c"), ("d",), ("e", "f")


def gold(kind: str) -> list[Sentence]:
    pairs = zip(WORDS, VALUES[kind], strict=True)
    return [Sentence(str(k), w).with_layers(x=Layer(kind, v)).validate() for k, (w, v) in enumerate(pairs)]


def of(kind: str, **options: str):
    task = decoder(TASKS[kind], TASKS[kind].collect(gold(kind), "x"), scale=1.0, **options)
    task.layer = "x"
    return task


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_losses_are_those_of_torch(pooling: str) -> None:
    words = encoded([3, 1, 2])
    pooled = torch.stack([part.mean(0) for part in words.words.split(words.sizes)]) if pooling == "mean" else words.cls
    for kind in TASKS:
        task = of(kind, pooling=pooling)
        logits = pooled @ task.scores.weight.T + task.scores.bias
        if kind == "label":
            expected = sum(surprise(row, "ab".index(label)) for row, label in zip(logits, "bab", strict=True)) / 3
        elif kind == "number":
            numbers = torch.tensor(VALUES[kind])
            unit = (numbers - numbers.mean()) / numbers.std(correction=0)
            expected = ((logits[:, 0] - unit) ** 2).mean()
        else:
            expected = functional.binary_cross_entropy(logits.sigmoid(), torch.tensor([[1.0, 0], [0, 0], [1, 1]]))
        if pooling == "mean":
            check_loss(task, words, gold(kind), expected)
        else:
            target = task.collate([task.target(s) for s in gold(kind)], words.sizes)
            torch.testing.assert_close(task.loss(words, target), expected)


@pytest.mark.parametrize("kind", TASKS)
def test_a_permuted_batch_changes_nothing(kind: str) -> None:
    task, words, order = of(kind), encoded([3, 1, 2]), [2, 0, 1]
    values = task.decode(words)
    wanted = [values[k] for k in order]
    assert task.decode(words.select(order)) == (pytest.approx(wanted) if kind == "number" else wanted)
    rows = [task.target(s) for s in gold(kind)]
    whole = task.loss(words, task.collate(rows, words.sizes))
    permuted = task.collate([rows[k] for k in order], [words.sizes[k] for k in order])
    torch.testing.assert_close(task.loss(words.select(order), permuted), whole)


def test_decoded_numbers_are_in_the_units_of_train() -> None:
    task, words = of("number"), encoded([3, 1, 2])
    unit = task.logits(words)[:, 0].detach().double().numpy()
    assert task.decode(words) == pytest.approx(np.mean(VALUES["number"]) + np.std(VALUES["number"]) * unit)
    same = NUMBER.collect([Sentence("1", ("a",)).with_layers(x=Layer("number", 2.0))], "x")
    assert same == {"scale": ["2.0", "1.0"]}


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_those_of_scikit_learn_and_scipy(seed: int) -> None:
    draw, size = np.random.default_rng(seed), 40
    drawn = {
        "label": lambda: [str(x) for x in draw.choice(list("abcd"), size)],
        "number": lambda: (draw.integers(-3, 9, size) / 2).tolist(),
        "labels": lambda: [tuple(sorted(set(draw.choice(list("abcd"), draw.integers(0, 4))))) for _ in range(size)],
    }
    for kind, values in drawn.items():
        mine, theirs = values(), values()
        sides = [
            [Sentence(str(k), ("w",)).with_layers(x=Layer(kind, v)) for k, v in enumerate(s)] for s in (mine, theirs)
        ]
        found = score(kind, [count("x", *pair) for pair in zip(*sides, strict=True)]) | scores_of_values("x", *sides)
        if kind == "label":
            wanted = {"accuracy": metrics.accuracy_score(mine, theirs)}
            wanted["macro_f1"] = metrics.f1_score(mine, theirs, average="macro")
        elif kind == "number":
            wanted = {"pearson": stats.pearsonr(mine, theirs)[0], "spearman": stats.spearmanr(mine, theirs)[0]}
        else:
            hot = [np.array([[label in row for label in "abcd"] for row in side]) for side in (mine, theirs)]
            wanted = {
                "precision": metrics.precision_score(*hot, average="micro"),
                "recall": metrics.recall_score(*hot, average="micro"),
                "f1": metrics.f1_score(*hot, average="micro"),
            }
        assert found == pytest.approx({name: 100 * value for name, value in wanted.items()})


def test_r_of_what_does_not_vary_is_0_and_baselines_are_the_usual_ones() -> None:
    for kind, wanted in (("label", "b"), ("number", 2.5 / 3), ("labels", ("a",))):
        sentences = gold(kind)
        guesses = [Majority(sentences).predict(sentence) for sentence in sentences]
        assert guesses[0].get("x") == (pytest.approx(wanted) if kind == "number" else wanted)
        counts = [count("x", *pair) for pair in zip(sentences, guesses, strict=True)]
        assert kind != "number" or score(kind, counts) == {"pearson": 0}
        assert set(add(counts)) == set(counts[0])


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        ("label", "", "expected text without blanks at its ends"),
        ("label", "a\tb", "expected text"),
        ("label", "_", "means unknown"),
        ("label", 3, "expected text"),
        ("number", 3, "expected a finite float"),
        ("number", float("nan"), "expected a finite float"),
        ("labels", ("b", "a"), "in alphabetical order"),
        ("labels", ("a|b",), "holds |"),
    ],
)
def test_what_no_value_is(kind: str, value: object, why: str) -> None:
    assert why in next(iter(KINDS[kind].problems(value, 1)))
