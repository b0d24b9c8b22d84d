"""What decoders share, against einsum, plain loops and unsplit layers; label rows, one a class."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import with_one
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from mtlprune.corpora.formats.iob2 import iob2_from_spans
from mtlprune.corpora.grammar import build_grammar
from mtlprune.sentence import NOT_ARGUMENTS, Sentence
from mtlprune.tasks import TASKS
from mtlprune.tasks.base import SharedMLP, dropout_mask
from mtlprune.tasks.con import binarise
from mtlprune.tasks.products import Linear, biaffine_rows, biaffine_table, linear, rounded, table_side
from mtlprune.tasks.spans import Candidates, SplitSpanLayer, best_of_each, candidates, pair_scorer


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_biaffine_forms():
    left, weight, right = drawn(9, 4), drawn(5, 5, 7, seed=1), drawn(9, 6, seed=2)
    by_row = torch.einsum("mi,lij,mj->ml", with_one(left), weight, with_one(right))
    torch.testing.assert_close(biaffine_rows(left, weight, right), by_row, rtol=1e-4, atol=1e-5)
    every = torch.einsum("si,lij,tj->slt", with_one(left), weight, with_one(right))
    found = biaffine_table(left, weight, right, [3, 5, 1])
    assert found.shape == (3, 5, 5, 5)
    for place, (begin, size) in enumerate([(0, 3), (3, 5), (8, 1)]):
        part = every[begin : begin + size, :, begin : begin + size]
        torch.testing.assert_close(found[place, :size, :, :size], part, rtol=1e-4, atol=1e-5)


def test_counts_of_rows_are_few_and_little_larger():
    counts = [rounded(rows) for rows in range(1, 10_001)]
    assert all(rows <= count < rows + max(64, rows / 4) for rows, count in enumerate(counts, 1))
    assert len(set(counts)) < 30
    assert [table_side(longest) for longest in (1, 4, 5)] == [4, 4, 8]


def test_rounded_rows_change_neither_result_nor_gradient():
    layer, rows = Linear(8, 5), drawn(70, 8).requires_grad_()
    plain = torch.nn.functional.linear(rows, layer.weight, layer.bias)
    target = drawn(70, 5, seed=1)
    expected = torch.autograd.grad((plain * target).sum(), [rows, layer.weight, layer.bias])
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(rows)
    assert found.shape == (70, 5) and found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), plain, rtol=0.05, atol=0.05)
    gradients = torch.autograd.grad((found * target).sum(), [rows, *layer.parameters()])
    for got, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0.05, atol=0.2)
    assert torch.equal(linear(rows, layer.weight, layer.bias), plain)  # without autocast nothing is rounded


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


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.33, 0.5])
def test_dropout_keeps_the_mean_and_its_rate(rate):
    torch.manual_seed(1)
    mask = dropout_mask((500, 401), rate, torch.zeros(1))
    assert mask.shape == (500, 401) and mask.dtype == torch.float32
    exact = round(rate * 256) / 256
    assert abs(exact - rate) <= 1 / 512
    assert set(mask.unique().tolist()) == {0.0, torch.tensor(1 / (1 - exact)).item()}
    error = (exact * (1 - exact) / mask.numel()) ** 0.5
    assert abs(float((mask == 0).float().mean()) - exact) < 4 * error
    assert abs(float(mask.mean()) - 1) < 4 * error / (1 - exact)
    columns = (mask == 0).float().mean(0)  # no byte of the 64-bit numbers is special
    assert float((columns - exact).abs().max()) < 6 * (exact * (1 - exact) / 500) ** 0.5


SIZES = [4, 1, 6]


def triples(spans: Candidates) -> list[tuple[int, int, int]]:
    return list(zip(*(column.tolist() for column in spans), strict=True))


@pytest.mark.parametrize("max_width", [1, 3, 30])
def test_candidates(encoded, max_width):
    expected = [
        (b, start, end)
        for b, n in enumerate(SIZES)
        for start in range(n)
        for end in range(start, min(n, start + max_width))
    ]
    assert triples(candidates(encoded(SIZES), max_width)) == expected


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 15)), min_size=1, max_size=5),
    st.sampled_from([0.1, 0.4, 0.8, 1.0, 2.0]),
    st.randoms(use_true_random=False),
)
def test_best_of_each_sentence(shape, ratio, random):
    lengths = [n for n, _ in shape]
    owner = [b for b, (_, items) in enumerate(shape) for _ in range(items)]
    scores = [random.choice([-1.0, 0.0, 0.5, 2.0]) for _ in owner]  # with many ties
    expected = [False] * len(owner)
    for b, n in enumerate(lengths):
        own = sorted((row for row in range(len(owner)) if owner[row] == b), key=lambda row: (-scores[row], row))
        for row in own[: max(1, int(torch.tensor(n) * ratio))]:
            expected[row] = True
    found = best_of_each(torch.tensor(scores), torch.tensor(owner, dtype=torch.long), torch.tensor(lengths), ratio)
    assert found.tolist() == expected


def span_vector(words: torch.Tensor, start: int, end: int, widths: torch.Tensor) -> torch.Tensor:
    """[start; end; width; sum over the span / max width], as He et al. (2018) and the facts have it."""
    pooled = words[start : end + 1].sum(0) / len(widths)
    return torch.cat([words[start], words[end], pooled, widths[end - start]])


def unsplit(layer: SplitSpanLayer) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of the one linear layer that was split."""
    size = layer.width.weight.shape[0]
    parts = layer.words.weight.split(size)
    # the bias of the pooled part is summed over the span's words as the pooled words themselves are
    return torch.cat([*parts, layer.width.weight], dim=1), layer.words.bias


def test_prefix_sums_do_not_lose_precision_in_a_large_batch(encoded):
    """Differences of sums over thousands of words still give the sum over a span."""
    torch.manual_seed(0)
    widths = nn.Embedding(30, 3)
    layer = SplitSpanLayer(8, 7, widths)
    sizes = [25] * 200
    words = encoded(sizes)
    spans = candidates(words, 30).take(torch.arange(0, 200 * 325, 997))
    found = layer.gather(layer(words, widths.weight), spans, words.starts)
    weight, offset = unsplit(layer)
    sentences = words.words.split(sizes)
    for number, (b, start, end) in enumerate(triples(spans)):
        expected = weight @ span_vector(sentences[b], start, end, widths.weight)
        expected = expected + sum(
            part * scale for part, scale in zip(offset.split(7), (1, 1, (end - start + 1) / 30), strict=True)
        )
        torch.testing.assert_close(found[number], expected, rtol=1e-3, atol=1e-3)


SENTENCES: list[Sentence] = build_grammar(30, 1, 1, seed=4)["train"]
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "dep": [{"relation_scorer": "biaffine"}, {"relation_scorer": "mlp"}],
    "con": [{"label_scorer": "biaffine"}, {"label_scorer": "mlp"}],
}
ROWS = [(name, options) for name in TASKS for options in OPTIONS.get(name, [{}])]


def make(name: str, options: dict[str, Any]) -> Any:
    kind, layer = TASKS[name], "ner" if name == "bio" else name
    task = kind(kind.collect(SENTENCES, layer), 24, kind.Options(**options))
    task.layer = layer
    return task


def counted(name: str) -> Counter[str]:
    """Items of every label, by hand."""
    found: Counter[str] = Counter()
    for s in SENTENCES:
        if name == "pos":
            found.update(s.pos)
        elif name == "ner":
            found.update(span.label for span in s.ner)
        elif name == "bio":
            found.update(iob2_from_spans(s.ner, len(s)))
        elif name == "dep":
            found.update(s.dep.relations)
        elif name == "con":
            found.update(label for *_, label in binarise(s.con, len(s)))
        else:
            found.update(a.label for p in s.srl for a in p.arguments if a.label not in NOT_ARGUMENTS)
    return found


@pytest.mark.parametrize(("name", "options"), ROWS)
def test_one_live_row_a_class(name: str, options: dict[str, Any]) -> None:
    task = make(name, options)
    labels = task.label_rows()
    assert labels.rows.shape[0] == len(labels.names) == len(set(labels.names)) and labels.rows.requires_grad
    assert any(p.data_ptr() == labels.rows.data_ptr() and p.numel() == labels.rows.numel() for p in task.parameters())
    known = [label for label in labels.names if label]
    assert [known] == list(task.labels.values())


@pytest.mark.parametrize("name", TASKS)
def test_places_count_labels(name: str) -> None:
    task = make(name, {})
    names = task.label_rows().names
    places = np.concatenate([task.label_places(task.target(s)) for s in SENTENCES])
    assert Counter(names[place] for place in places) == counted(name)


@pytest.mark.parametrize("kind", ["biaffine", "mlp"])
def test_a_row_of_a_pair_scorer_moves_its_own_label_only(kind: Any) -> None:
    scorer = pair_scorer(kind, 6, 4, 3, 0.0)
    torch.nn.init.normal_(scorer.weight if kind == "biaffine" else scorer.last.weight)
    owner = torch.zeros(5, dtype=torch.long)
    vectors = scorer(torch.randn(5, 6), owner, 1)
    scores = scorer.score(vectors, torch.tensor([0, 1]), torch.tensor([2, 3]), owner[:2], 1)
    (slope,) = torch.autograd.grad(scores[:, 1].sum(), scorer.weight if kind == "biaffine" else scorer.last.weight)
    moved = slope.flatten(1).abs().sum(1)
    assert moved[1] > 0 and moved[0] == moved[2] == 0 and scorer.label_rows().shape[0] == 3
