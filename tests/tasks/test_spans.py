"""What span networks share, against naive loops and unsplit layers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from mtlprune.tasks.spans import (
    Candidates,
    SplitSpanLayer,
    best_of_each,
    candidates,
)

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
