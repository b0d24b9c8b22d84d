"""What decoders share, against plain and unsplit layers; label rows, one a class."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import encoded, pair_scores, span_layer
from torch import nn

from mtlprune.corpora.formats.iob2 import iob2_from_spans
from mtlprune.corpora.grammar import build_grammar
from mtlprune.layers import Layer
from mtlprune.sentence import NOT_ARGUMENTS, Sentence
from mtlprune.tasks import TASKS
from mtlprune.tasks.base import SharedMLP, dropout_mask
from mtlprune.tasks.con import binarise
from mtlprune.tasks.products import Linear
from mtlprune.tasks.spans import BiaffinePairs, Pairs, SplitSpanLayer, candidates


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_rounded_rows_change_neither_result_nor_gradient():
    layer, rows, target = Linear(8, 5), drawn(70, 8).requires_grad_(), drawn(70, 5, seed=1)
    plain = torch.nn.functional.linear(rows, layer.weight, layer.bias)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(rows)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), plain, rtol=0.05, atol=0.05)
    slopes = (torch.autograd.grad((said * target).sum(), [rows, *layer.parameters()]) for said in (found, plain))
    for got, wanted in zip(*slopes, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0.05, atol=0.2)
    assert torch.equal(layer(rows), plain)  # without autocast nothing is rounded


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_labels_of_pairs_are_those_of_the_forms_written_out(precision):
    """In any order of the pairs, with left rows that have none, and with gradients."""
    torch.manual_seed(0)  # in bf16 some draws of the weights round by more
    left, right = torch.tensor([4, 0, 0, 4, 2, 0, 4]), torch.tensor([4, 1, 5, 0, 2, 1, 3])
    task = BiaffinePairs(8, 7, 3, 0.0)
    nn.init.normal_(task.weight)
    rows, owner, target = drawn(6, 8).requires_grad_(), torch.zeros(6, dtype=torch.long), drawn(7, 3, seed=1)
    expected = pair_scores(task, rows, 7)[left, right]
    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        found = task.score(task(rows, owner, 1), Pairs.by_left(left, right, owner, 6), 1)
    assert found.dtype == torch.float32
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if precision == torch.float32 else {"rtol": 0.05, "atol": 0.5}
    torch.testing.assert_close(found, expected, **tolerance)
    slopes = (torch.autograd.grad((said * target).sum(), [rows, *task.parameters()]) for said in (found, expected))
    for got, wanted in zip(*slopes, strict=True):
        torch.testing.assert_close(got, wanted, **tolerance)


OWNER = torch.tensor([0, 0, 0, 1, 2, 2])


def test_the_mask_is_shared_by_a_sentence_and_differs_between_sentences():
    torch.manual_seed(0)
    mlp = SharedMLP(8, [20, 30], 0.5)
    rows = drawn(6, 8)
    plain = torch.cat(mlp.eval()(rows, OWNER, 3), dim=1)
    fallen = torch.cat(mlp.train()(rows, OWNER, 3), dim=1)
    kept = fallen != 0
    torch.testing.assert_close(fallen[kept], 2 * plain[kept])
    for first, second in ((0, 1), (1, 2), (4, 5)):
        assert torch.equal(kept[first], kept[second])
    assert not torch.equal(kept[0], kept[3]) and not torch.equal(kept[3], kept[4])
    assert 0.2 < kept.float().mean() < 0.8


@pytest.mark.parametrize("rate", [0.1, 0.33, 0.5])
def test_dropout_keeps_the_mean_and_its_rate(rate):
    torch.manual_seed(1)
    mask = dropout_mask((500, 401), rate, torch.zeros(1))
    exact = round(rate * 256) / 256
    assert set(mask.unique().tolist()) == {0.0, torch.tensor(1 / (1 - exact)).item()}  # so that the mean is kept
    fallen, error = (mask == 0).float(), (exact * (1 - exact)) ** 0.5
    assert abs(float(fallen.mean()) - exact) < 4 * error / mask.numel() ** 0.5
    assert float((fallen.mean(0) - exact).abs().max()) < 6 * error / 500**0.5  # no byte of a 64-bit number is special


def test_prefix_sums_do_not_lose_precision_in_a_large_batch():
    """Differences of sums over thousands of words still give the sum over a span."""
    torch.manual_seed(0)
    widths, sizes = nn.Embedding(30, 3), [25] * 200
    layer, words = SplitSpanLayer(8, 7, widths), encoded(sizes)
    spans = candidates(words, 30).take(torch.arange(0, 200 * 325, 997))
    found = layer.gather(layer(words, widths.weight), spans, words.starts)
    sentences = words.words.split(sizes)
    for got, b, start, end in zip(found, *(column.tolist() for column in spans), strict=True):
        expected = span_layer(layer, sentences[b], start, end, widths.weight)
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


SENTENCES: list[Sentence] = [
    s.with_layers(label=Layer("label", s.pos[0]), labels=Layer("labels", tuple(sorted({*s.pos}))))
    for s in build_grammar(30, 1, 1, seed=4)["train"]
]
LABELS: dict[str, Callable[[Sentence], Iterable[str]]] = {  # the items of a sentence, by hand
    "pos": lambda s: s.pos,
    "ner": lambda s: (span.label for span in s.ner),
    "bio": lambda s: iob2_from_spans(s.ner, len(s)),
    "dep": lambda s: s.dep.relations,
    "con": lambda s: (label for *_, label in binarise(s.con, len(s))),
    "srl": lambda s: (a.label for p in s.srl for a in p.arguments if a.label not in NOT_ARGUMENTS),
    "label": lambda s: [s.pos[0]],
    "labels": lambda s: {*s.pos},
}


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, {}) for name in LABELS), ("dep", {"relation_scorer": "mlp"}), ("con", {"label_scorer": "mlp"})],
)
def test_label_rows_are_one_live_row_a_class_and_places_count_labels(name: str, options: dict[str, Any]) -> None:
    kind, layer = TASKS[name], "ner" if name == "bio" else name
    task = kind(kind.collect(SENTENCES, layer), 24, kind.Options(**options))
    task.layer = layer
    names, rows = task.label_rows()
    assert rows.shape[0] == len(names) and rows.requires_grad
    assert any(p.data_ptr() == rows.data_ptr() and p.numel() == rows.numel() for p in task.parameters())
    assert [[label for label in names if label]] == list(task.labels.values())
    places = np.concatenate([task.label_places(task.target(s)) for s in SENTENCES])
    assert Counter(names[place] for place in places) == Counter(label for s in SENTENCES for label in LABELS[name](s))


def test_a_task_without_labels_has_no_label_rows() -> None:
    assert {*TASKS} - {*LABELS} == {"number"}
    assert TASKS["number"]({"scale": ["0.0", "1.0"]}, 24, TASKS["number"].Options()).label_rows() is None
