"""Parts of formulas that the oracles of several decoders share."""

from collections.abc import Sequence
from typing import Any

import torch

from mtlprune.sentence import Sentence
from mtlprune.tasks.spans import BiaffinePairs


def with_one(rows: torch.Tensor) -> torch.Tensor:
    """A one behind each row, for biases."""
    return torch.cat([rows, rows.new_ones(*rows.shape[:-1], 1)], dim=-1)


def leaky(values: torch.Tensor) -> torch.Tensor:
    return torch.where(values > 0, values, 0.1 * values)


def surprise(scores: torch.Tensor, gold: int) -> torch.Tensor:
    """The negative log probability of a class."""
    return torch.logsumexp(scores, 0) - scores[gold]


def check_loss(
    task: Any, words: Any, sentences: Sequence[Sentence], expected: torch.Tensor, rtol: float = 1e-4, atol: float = 1e-5
) -> None:
    target = task.collate([task.target(s) for s in sentences], words.sizes)
    torch.testing.assert_close(task.loss(words, target), expected, rtol=rtol, atol=atol)


def span_layer(layer: Any, words: torch.Tensor, start: int, end: int, widths: torch.Tensor) -> torch.Tensor:
    """The unsplit first layer over [start; end; pooled; width], the pooled words summed and divided by max_width, as He
    et al. (2018) have it; the bias of the pooled part is summed as the words are."""
    by_start, by_end, by_pooled = layer.words.weight.chunk(3)
    bias = layer.words.bias.chunk(3)
    pooled = by_pooled @ words[start : end + 1].sum(0) + (end - start + 1) * bias[2]
    ends = by_start @ words[start] + bias[0] + by_end @ words[end] + bias[1]
    return ends + pooled / len(widths) + layer.width.weight @ widths[end - start]


def pair_scores(scorer: Any, rows: torch.Tensor, size: int) -> torch.Tensor:
    """(R, R, labels) scores of all pairs of (R, H) rows by a pair scorer whose vectors have ``size`` values."""
    if isinstance(scorer, BiaffinePairs):
        hidden = leaky(rows @ scorer.mlp.linear.weight.T + scorer.mlp.linear.bias)
        left, right = with_one(hidden[:, :size]), with_one(hidden[:, size:])
        return torch.einsum("ai,lij,bj->abl", left, scorer.weight, right)
    parts = rows @ scorer.first.weight.T + scorer.first.bias
    hidden = leaky(parts[:, None, : 2 * size] + parts[None, :, 2 * size :])
    return hidden @ scorer.last.weight.T + scorer.last.bias
