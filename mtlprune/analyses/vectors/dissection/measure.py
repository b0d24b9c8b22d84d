"""Takes encoders and runs apart, batch by batch, scores subsets of the terms, and sets encoders side by side.

    result = measure(Request(["minilm", "runs/pos", "runs/mtl-5"], Path("data/ewt5"), DissectionOptions()))

Every encoder is loaded once; what is kept of it is small (two layers' worth of words, and sums). Special tokens are
read by the encoder and left out of every number.

Letters for shapes: N sub-words of a batch, W words of all sentences, L layers, A heads a layer before any was removed,
H hidden size, T = 4 terms, M sampled words, S = 16 subsets.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.harness.reading import (
    ProbeError,
    Subject,
    SubjectError,
    SubjectResult,
    batches,
    gate_grid,
    read_request,
    survey,
    variant,
)
from mtlprune.analyses.vectors.dissection import MLM, SENSES, maths
from mtlprune.analyses.vectors.dissection.comparison import frames, linearity, moments, side_by_side
from mtlprune.analyses.vectors.dissection.decoders import Material, NetSettings, score
from mtlprune.analyses.vectors.dissection.masked import score_masked
from mtlprune.analyses.vectors.dissection.maths import refusal, trace
from mtlprune.encoder.pieces import EncoderError
from mtlprune.encoder.pseudo_likelihood import masked_language_models
from mtlprune.layers import in_order
from mtlprune.runs.results import Result
from mtlprune.sentence import Sentence, declared

TOLERANCE = 1e-4
"""Largest error of reconstruction in float32 by the size of the largest entry; more is refused."""
_SAMPLE = 1000
"""Words on which h and f of encoders are compared by layer."""


def measure(request: Request) -> Result:
    """Importance of the four terms in all encoders, and scores of light decoders that read subsets of the terms.

    ``frames.yaml`` declares the frames. Layers and heads are numbered from 1, and layer 0 is the embeddings.

    A run of a single task is scored on its own task only (and on senses), everything else on all.

    Raises:
        ProbeError: a task that there is none of.
        EncoderError: none of the encoders is post-LN, or one cannot be loaded; masked words are asked for, and none of
            the names is a masked language model.
        RunError, CorpusError: a damaged run or corpus.
    """
    options = request.options
    purpose = f"tasks={MLM}: expected an encoder that predicts masked words, found none; name one, or leave {MLM} out"
    names = request.names if MLM in options.requested_tasks else ()
    language_models, refusals = masked_language_models(names, purpose)
    reading = read_request(request)
    layers = declared(reading.sentences)
    tasks_requested = _requested_tasks(options.requested_tasks, layers)
    training = None
    if tasks_requested:
        training = read_request(replace(request, split="train", sentences=options.train_sentences))
    nets = NetSettings(options.hidden, options.epochs, seed=request.seed, seeds=options.decoder_seeds)
    trained_on = {source.name: source.tasks for source in reading.sources}  # nothing, of a pretrained encoder

    def measure_subject(subject: Subject) -> SubjectResult:
        if (why := refusal(subject.encoder)) is not None:
            raise SubjectError(why)
        parts = dissect(subject, reading.sentences, _SAMPLE, request)
        trained, last = trained_on[subject.name], parts.pop("last")
        tasks_of_subject = [task for task in tasks_requested if len(trained) != 1 or task in (*trained, SENSES)]
        scores: list[dict[str, Any]] = []
        if training is not None and tasks_of_subject:
            terms = _last_terms(subject, training.sentences, request)
            material = Material(training.sentences, terms), Material(reading.sentences, last)
            for task in sorted(tasks_of_subject, key=lambda task: task == SENSES):
                scores += score(task, *material, nets)
        if (lm := language_models.get(subject.name)) is not None:
            seeds = range(nets.seed, nets.seed + nets.seeds)
            scores += score_masked(subject, lm, reading.sentences, seeds, request)
        encoder = {**parts, **_subject_names(subject), "tasks": trained, "scores": scores}
        why_unmasked = refusals.get(subject.name)
        notes = [] if why_unmasked is None else [f"{subject.label}: no masked words: {why_unmasked}."]
        return SubjectResult(frames(encoder), {"tasks": trained}, notes, encoder)

    surveyed = survey("dissection", reading, request, measure_subject)
    result, encoders = surveyed.result, surveyed.measured.values()
    request.on_status("comparing")
    about = {
        "train_sentences": len(training.sentences) if training else 0,
        "kinds": {task: layers[task] for task in tasks_requested if task in layers},
        "nets": vars(nets),
        "sample": _SAMPLE,
        "torch": torch.__version__,
    }
    named_encoders = [encoder | {"name": name} for encoder, name in zip(encoders, result.names, strict=True)]
    more = side_by_side(named_encoders, request.seed)
    return replace(result, about={**result.about, **about}, frames={**result.frames, **more})


def _requested_tasks(task_names: Sequence[str], layers: Mapping[str, str]) -> tuple[str, ...]:
    """The tasks of light decoders among those named. Raises ProbeError for one that is no task."""
    if unknown := [name for name in task_names if name not in (*layers, SENSES, MLM)]:
        names_known = ", ".join((*in_order(layers), SENSES, MLM))
        raise ProbeError(f"--tasks: expected some of {names_known}, or none, found {', '.join(unknown)}")
    return tuple(name for name in task_names if name != MLM)


def _subject_names(subject: Subject) -> dict[str, Any]:
    """Label, run and seed of an encoder, as ``side_by_side`` takes them, and its gates."""
    gates = gate_grid(subject)
    names = {"label": subject.label, "run": subject.name, "seed": subject.seed, "variant": variant(subject.label)}
    return {**names, "gates": gates, "whole": subject.gates is None and bool(gates.all())}


# -- one encoder, batch by batch ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Pass:
    """A batch, taken apart.

    Attributes:
        words: places of its words among those of all sentences.
        trace, hidden: of its tokens.
        pieces: (N,), which of the tokens are sub-words of words, in the order of the words.
        odd: (N,), whether the sub-word stands in an odd sentence.
        first: the first piece of each word.
    """

    words: NDArray[np.int64]
    trace: maths.Trace
    hidden: list[Tensor]
    pieces: Tensor
    is_odd: NDArray[np.bool_]
    first: Tensor

    def mean(self, values: Tensor) -> Tensor:
        """Over the sub-words of each word: (N, ...) in the order of pieces to (words, ...)."""
        order = torch.arange(len(self.pieces), device=values.device)
        return functional.embedding_bag(order, values.contiguous(), self.first, mode="mean")

    def by_word(self, stack: Tensor) -> Tensor:
        """(K, N, H) to (K, words, H)."""
        return torch.stack([self.mean(part) for part in stack])


def passes(subject: Subject, sentences: Sequence[Sentence], device: str) -> Iterator[Pass]:
    """All sentences, in batches of similar length."""
    starts = np.concatenate([[0], np.cumsum([len(sentence) for sentence in sentences])])
    for rows, batch in batches(subject.encoder, sentences, device):
        traced, hidden, tokens = trace(subject.encoder, batch, subject.gates)
        words = np.concatenate([np.arange(starts[row], starts[row + 1]) for row in rows])
        is_odd = np.repeat(np.array(rows), batch.sizes)[batch.piece_word.cpu().numpy()] % 2 == 1
        yield Pass(words, traced, hidden, torch.searchsorted(tokens, batch.piece_slot), is_odd, batch.first_piece)


def dissect(subject: Subject, sentences: Sequence[Sentence], sample: int, request: Request) -> dict[str, Any]:
    """Take apart all that an encoder says of some sentences.

    Args:
        sample: M, words (at most) whose h and f are kept by layer, the same for all encoders.

    Returns:
        ``error``, the largest |i + h + f + c − e| over layers, tokens and features; ``largest``, the largest |e|;
        ``pieces``, sub-words read; ``mu``, ``mu_sd`` (L + 1, T): mean and standard deviation over sub-words of μ after
        the embeddings and each layer; ``word_mu`` (W, L + 1, T): mean over a word's sub-words; ``heads`` (L, A): mean μ
        of each head in the last layer's vectors; ``linearity``: an entry a layer, between even and odd sentences;
        ``last`` (T, W, H), a tensor: terms of the last layer, mean over a word's sub-words; ``added`` (L, 2, M, H).

    Raises:
        EncoderError: it cannot be taken apart, or its parts do not sum to what it says.
    """
    places, width = subject.encoder.head_hooks, subject.encoder.hidden_size
    layers, words = places.layers, sum(map(len, sentences))
    sampled_words = np.sort(np.random.default_rng([request.seed, 11]).permutation(words)[:sample])
    place_in_sample = torch.full((words,), -1).index_put(
        (torch.from_numpy(sampled_words),), torch.arange(len(sampled_words))
    )
    sums, squares = np.zeros((layers + 1, 4)), np.zeros((layers + 1, 4))
    word_mu, heads = np.zeros((words, layers + 1, 4), np.float32), np.zeros((layers, places.heads))
    halves = np.zeros((layers, 2, 1 + 2 * width, 1 + 2 * width))
    last, added = torch.zeros(4, words, width), torch.zeros(layers, 2, len(sampled_words), width)
    error = largest = 0.0
    pieces = 0
    for batch in passes(subject, sentences, request.device):
        keep = place_in_sample[batch.words]
        for layer, (stack, full_state) in enumerate(zip(maths.terms(batch.trace), batch.hidden, strict=True)):
            stack, full_state = stack[:, batch.pieces], full_state[batch.pieces]
            error, largest = (
                max(error, _reconstruction_error(stack, full_state, subject)),
                max(largest, float(full_state.abs().amax())),
            )
            mu = maths.importance(stack, full_state)  # (4, N)
            sums[layer] += mu.double().sum(1).cpu().numpy()
            squares[layer] += mu.double().square().sum(1).cpu().numpy()
            word_mu[batch.words, layer] = batch.mean(mu.T).cpu().numpy()
            if layer:
                at = keep >= 0
                added[layer - 1, :, keep[at]] = batch.by_word(stack[1:3])[:, at].cpu()
        last[:, batch.words] = batch.by_word(stack).cpu()
        shares = maths.head_importance(batch.trace, batch.hidden[-1])
        for row, (traced, share) in enumerate(zip(batch.trace.layers, shares, strict=True)):
            heads[row, list(traced.numbers)] += share[batch.pieces].double().sum(0).cpu().numpy()
            x, y = (values[batch.pieces].cpu().double().numpy() for values in (traced.read, traced.feed_forward))
            for half_number, in_half in enumerate((~batch.is_odd, batch.is_odd)):
                halves[row, half_number] += moments(x[in_half], y[in_half])
        pieces += len(batch.pieces)
        request.on_batch()
    mu_mean = sums / pieces
    return {
        "error": float(f"{error:.2e}"),
        "largest": largest,
        "pieces": pieces,
        "mu": mu_mean,
        "mu_sd": np.sqrt(np.maximum(squares / pieces - mu_mean**2, 0)),
        "word_mu": word_mu,
        "heads": heads / pieces,
        "linearity": [linearity(even, odd_half, width) for even, odd_half in halves],
        "last": last,
        "added": added.numpy(),
    }


def _reconstruction_error(stack: Tensor, full_state: Tensor, subject: Subject) -> float:
    """The largest difference; raises EncoderError where it is more than rounding."""
    error, largest = float((stack.sum(0) - full_state).abs().amax()), float(full_state.abs().amax())
    if not error <= TOLERANCE * max(1.0, largest):
        raise EncoderError(
            f"{subject.name}: i + h + f + c differ from the encoder's output by {error:g} (largest value {largest:g}); "
            "the four terms do not describe all that it computes, so it cannot be decomposed"
        )
    return error


def _last_terms(subject: Subject, sentences: Sequence[Sentence], request: Request) -> Tensor:
    """(4, W, H): terms of the last layer only, mean over the sub-words of each word."""
    terms = torch.zeros(4, sum(map(len, sentences)), subject.encoder.hidden_size)
    for batch in passes(subject, sentences, request.device):
        *_, stack = maths.terms(batch.trace)
        terms[:, batch.words] = batch.by_word(stack[:, batch.pieces]).cpu()
        request.on_batch()
    return terms
