"""Streams sentences through one encoder after another and keeps what its decomposition says.

Letters for shapes: N sub-words of a batch, W words of all sentences, L layers, A heads a layer before any was removed,
H hidden size, T = 4 terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from mtlprune.analyses.dissection import maths as dissection
from mtlprune.analyses.dissection.linearity import CrossMoments
from mtlprune.analyses.dissection.trace import trace
from mtlprune.analyses.reading import batches
from mtlprune.analyses.subjects import Subject
from mtlprune.encoder.batch import EncoderBatch
from mtlprune.encoder.pieces import EncoderError
from mtlprune.sentence import Sentence

Floats = NDArray[np.float64]
TOLERANCE = 1e-4
"""Of reconstruction in float32 by the size of the largest entry: a decomposition that misses by more is refused."""


@dataclass(eq=False)
class DissectionSurvey:
    """What one encoder says of the sentences, taken apart.

    Attributes:
        error: largest |i + h + f + c − e| over layers, tokens and features; ``largest`` is the largest |e|.
        pieces: sub-words read; special tokens are left out everywhere.
        mu, mu_sd: (L + 1, T), mean and standard deviation over sub-words of μ after the embeddings and each layer.
        word_mu: (W, L + 1, T), mean over a word's sub-words.
        heads: (L, A), mean of μ of each head in the last layer's vectors; 0 where a head is closed or gone.
        moments: for each layer sums over the feed-forward part of even and of odd sentences.
        last: (T, W, H), terms of the last layer, mean over sub-words.
        added: (L, 2, M, H): h and f of each layer on a sample of M words, for comparing encoders.
    """

    error: float = 0.0
    largest: float = 0.0
    pieces: int = 0
    mu: Floats = field(default_factory=lambda: np.zeros(0))
    mu_sd: Floats = field(default_factory=lambda: np.zeros(0))
    word_mu: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    heads: Floats = field(default_factory=lambda: np.zeros(0))
    moments: list[tuple[CrossMoments, CrossMoments]] = field(default_factory=list)
    last: Tensor = field(default_factory=lambda: torch.zeros(0))
    added: Tensor = field(default_factory=lambda: torch.zeros(0))


def survey(
    subject: Subject,
    sentences: Sequence[Sentence],
    sample: int,
    seed: int,
    device: str = "cpu",
    tick: Callable[[], object] = lambda: None,
) -> DissectionSurvey:
    """Take apart all that an encoder says of some sentences.

    Args:
        sample: M, words (at most) whose h and f are kept by layer; drawn by ``seed``, the same for all encoders.

    Raises:
        EncoderError: it cannot be taken apart, or its parts do not sum to what it says.
    """
    encoder, places = subject.encoder, subject.encoder.places
    layers, width = places.layers, encoder.hidden_size
    starts = np.concatenate([[0], np.cumsum([len(sentence) for sentence in sentences])])
    words = int(starts[-1])
    drawn = np.sort(np.random.default_rng([seed, 11]).permutation(words)[:sample])
    place_in_sample = torch.full((words,), -1).index_put((torch.from_numpy(drawn),), torch.arange(len(drawn)))
    found = DissectionSurvey(
        word_mu=np.zeros((words, layers + 1, 4), np.float32),
        heads=np.zeros((layers, places.heads)),
        moments=[(CrossMoments(width, width), CrossMoments(width, width)) for _ in range(layers)],
        last=torch.zeros(4, words, width),
        added=torch.zeros(layers, 2, len(drawn), width),
    )
    sums, squares = np.zeros((layers + 1, 4)), np.zeros((layers + 1, 4))
    for rows, batch, passed, hidden in _passes(subject, sentences, device):
        mine = _words(starts, rows)
        mean = _Words(batch, passed.tokens)
        keep = place_in_sample[mine]
        for layer, (stack, whole) in enumerate(zip(dissection.terms(passed.trace), hidden, strict=True)):
            stack, whole = stack[:, passed.pieces], whole[passed.pieces]
            _check(found, stack, whole, subject)
            mu = dissection.importance(stack, whole)  # (4, N)
            sums[layer] += mu.double().sum(1).cpu().numpy()
            squares[layer] += mu.double().square().sum(1).cpu().numpy()
            found.word_mu[mine, layer] = mean(mu.T).cpu().numpy()
            if layer:
                at = keep >= 0
                found.added[layer - 1, :, keep[at]] = _by_word(mean, stack[1:3])[:, at].cpu()
        found.last[:, mine] = _by_word(mean, stack).cpu()
        _add_heads(found, passed, hidden[-1])
        _add_moments(found, passed, rows, batch)
        found.pieces += len(passed.pieces)
        tick()
    found.heads /= found.pieces
    found.mu = sums / found.pieces
    found.mu_sd = np.sqrt(np.maximum(squares / found.pieces - found.mu**2, 0))
    return found


def last_terms(
    subject: Subject, sentences: Sequence[Sentence], device: str = "cpu", tick: Callable[[], object] = lambda: None
) -> Tensor:
    """(4, W, H): terms of the last layer only, mean over the sub-words of each word."""
    starts = np.concatenate([[0], np.cumsum([len(sentence) for sentence in sentences])])
    found = torch.zeros(4, int(starts[-1]), subject.encoder.hidden_size)
    for rows, batch, passed, _ in _passes(subject, sentences, device):
        *_, stack = dissection.terms(passed.trace)
        found[:, _words(starts, rows)] = _by_word(_Words(batch, passed.tokens), stack[:, passed.pieces]).cpu()
        tick()
    return found


@dataclass(frozen=True, eq=False)
class _Pass:
    trace: dissection.Trace
    tokens: Tensor
    pieces: Tensor  # which of the tokens are sub-words of words, in the order of the words


def _passes(
    subject: Subject, sentences: Sequence[Sentence], device: str
) -> Iterator[tuple[list[int], EncoderBatch, _Pass, list[Tensor]]]:
    for rows, batch in batches(subject.encoder, sentences, device):
        with torch.no_grad():
            traced, hidden, tokens = trace(subject.encoder, batch, subject.gates)
        pieces = torch.searchsorted(tokens, batch.piece_slot)
        yield rows, batch, _Pass(traced, tokens, pieces), hidden


class _Words:
    """Means over the sub-words of each word of a batch: (N, ...) in the order of pieces to (words, ...)."""

    def __init__(self, batch: EncoderBatch, tokens: Tensor) -> None:
        self.order = torch.arange(len(batch.piece_slot), device=tokens.device)
        self.first = batch.first_piece

    def __call__(self, values: Tensor) -> Tensor:
        return functional.embedding_bag(self.order, values.contiguous(), self.first, mode="mean")


def _by_word(mean: _Words, stack: Tensor) -> Tensor:
    """(K, N, H) to (K, words, H)."""
    return torch.stack([mean(part) for part in stack])


def _words(starts: NDArray[np.int64], rows: Sequence[int]) -> NDArray[np.int64]:
    """Places of the words of some sentences among those of all."""
    return np.concatenate([np.arange(starts[row], starts[row + 1]) for row in rows])


def _check(found: DissectionSurvey, stack: Tensor, whole: Tensor, subject: Subject) -> None:
    error, largest = float((stack.sum(0) - whole).abs().amax()), float(whole.abs().amax())
    found.error, found.largest = max(found.error, error), max(found.largest, largest)
    if not error <= TOLERANCE * max(1.0, largest):
        raise EncoderError(
            f"{subject.name}: i + h + f + c miss what the encoder says by {error:g} (largest value {largest:g}); it "
            "does something that the four terms do not know, so it cannot be taken apart"
        )


def _add_heads(found: DissectionSurvey, passed: _Pass, whole: Tensor) -> None:
    shares = dissection.head_importance(passed.trace, whole)
    for row, (layer, share) in enumerate(zip(passed.trace.layers, shares, strict=True)):
        found.heads[row, list(layer.numbers)] += share[passed.pieces].double().sum(0).cpu().numpy()


def _add_moments(found: DissectionSurvey, passed: _Pass, rows: Sequence[int], batch: EncoderBatch) -> None:
    sentence = np.repeat(np.array(rows), batch.sizes)  # (words,)
    odd = sentence[batch.piece_word.cpu().numpy()] % 2 == 1  # (N,)
    for layer, halves in zip(passed.trace.layers, found.moments, strict=True):
        x, y = (values[passed.pieces].cpu().double().numpy() for values in (layer.read, layer.feed_forward))
        for half, chosen in zip(halves, (~odd, odd), strict=True):
            half.add(x[chosen], y[chosen])
