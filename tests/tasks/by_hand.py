"""Random words and decoders, and parts of formulas that the oracles of several decoders share."""

from collections.abc import Sequence
from typing import Any

import torch

from mtlprune.encoder.model import Encoded
from mtlprune.sentence import Sentence
from mtlprune.tasks.base import Task
from mtlprune.tasks.spans import BiaffinePairs

HIDDEN = 8
leaky = torch.nn.LeakyReLU(0.1)


def encoded(sizes: Sequence[int], seed: int = 0) -> Encoded:
    """Random word vectors (N, 8) of sentences of these lengths."""
    generator = torch.Generator().manual_seed(seed)
    words, cls, sep = (torch.randn(n, HIDDEN, generator=generator) for n in (sum(sizes), len(sizes), len(sizes)))
    return Encoded(words, cls, sep, torch.tensor(list(sizes)), list(sizes))


def decoder(task: type[Task], labels: dict[str, list[str]], seed: int = 0, scale: float = 0.5, **options: Any) -> Any:
    """A task with every parameter drawn at random (many begin at zero), without dropout."""
    module = task(labels, HIDDEN, task.Options(**options)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return module


def with_one(rows: torch.Tensor) -> torch.Tensor:
    return torch.cat([rows, rows.new_ones(*rows.shape[:-1], 1)], dim=-1)


def surprise(scores: torch.Tensor, gold: int) -> torch.Tensor:
    return torch.logsumexp(scores, 0) - scores[gold]


def check_loss(
    task: Any, words: Any, sentences: Sequence[Sentence], expected: torch.Tensor, rtol: float = 1e-4, atol: float = 1e-5
) -> None:
    target = task.collate([task.target(s) for s in sentences], words.sizes)
    torch.testing.assert_close(task.loss(words, target), expected, rtol=rtol, atol=atol)
    words.words.requires_grad_()
    (slope,) = torch.autograd.grad(task.loss(words, target), words.words)
    assert slope.isfinite().all() and slope.any()


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
