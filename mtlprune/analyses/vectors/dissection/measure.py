"""Decompose the vectors of encoders, score subsets of the terms, and compare encoders (``analyze dissection``).

    result = measure(Request(["minilm", "runs/pos", "runs/mtl-5"], Path("data/ewt5"), DissectionOptions()))

Every encoder is loaded once and reads the sentences batch by batch. Only small results are stored for each encoder
(terms of words in the last layer, h and f of sampled words in all layers, μ of words, and sums). The encoder reads
special tokens, but no number includes them.

Letters for shapes: N sub-words of a batch, W words of all sentences, L layers, A heads of a layer before any head was
removed, H hidden size, T = 4 terms, M sampled words, S = 16 subsets.
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

_TOLERANCE = 1e-4
"""Largest accepted error of reconstruction in float32, as a fraction of max(1, largest absolute entry)."""
_SAMPLE = 1000
"""Largest number of words whose h and f are stored for every layer, to compare encoders layer by layer."""


def measure(request: Request) -> Result:
    """Measure the importance of the four terms in all encoders, and score decoders that read subsets of the terms.

    ``frames.yaml`` declares the frames of the Result. Layers and heads count from 1, and layer 0 is the embeddings. A
    run of a single task is scored only on its task and on word senses. All other runs and encoders are scored on all
    requested tasks.

    Raises:
        ProbeError: a requested task is neither a layer of the corpus nor ``wsd`` nor ``mlm``.
        EncoderError: no encoder is post-LN; an encoder cannot be loaded; or masked words are requested and no name is a
            masked language model.
        RunError, CorpusError: a run or corpus is damaged.
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
    trained_on = {source.name: source.tasks for source in reading.sources}  # empty for a pretrained encoder

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
    """Return the named tasks for which light decoders are trained, which are all but MLM.

    Raises:
        ProbeError: a name is not a task.
    """
    if unknown := [name for name in task_names if name not in (*layers, SENSES, MLM)]:
        names_known = ", ".join((*in_order(layers), SENSES, MLM))
        raise ProbeError(f"--tasks: expected some of {names_known}, or none, found {', '.join(unknown)}")
    return tuple(name for name in task_names if name != MLM)


def _subject_names(subject: Subject) -> dict[str, Any]:
    """Return label, run, seed, variant and gates of an encoder under the keys that ``side_by_side`` expects."""
    gates = gate_grid(subject)
    names = {"label": subject.label, "run": subject.name, "seed": subject.seed, "variant": variant(subject.label)}
    return {**names, "gates": gates, "whole": subject.gates is None and bool(gates.all())}


# -- one encoder, batch by batch ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Pass:
    """The decomposition of one batch.

    Attributes:
        words: indices of the batch's words among the words of all sentences.
        trace, hidden: ``maths.trace`` of the batch's tokens, and their hidden states.
        pieces: (N,), indices of the tokens that are sub-words of words, in the order of the words.
        is_odd: (N,), whether the sentence of the sub-word has an odd index.
        first: index of the first sub-word of each word, counted among ``pieces``.
    """

    words: NDArray[np.int64]
    trace: maths.Trace
    hidden: list[Tensor]
    pieces: Tensor
    is_odd: NDArray[np.bool_]
    first: Tensor

    def mean(self, values: Tensor) -> Tensor:
        """Average over the sub-words of each word: (N, ...) in the order of ``pieces`` → (words, ...)."""
        order = torch.arange(len(self.pieces), device=values.device)
        return functional.embedding_bag(order, values.contiguous(), self.first, mode="mean")

    def by_word(self, stack: Tensor) -> Tensor:
        """Average each of K matrices over the sub-words of each word: (K, N, H) → (K, words, H)."""
        return torch.stack([self.mean(part) for part in stack])


def _passes(subject: Subject, sentences: Sequence[Sentence], device: str) -> Iterator[_Pass]:
    """Yield the decompositions of all sentences, in batches of similar length."""
    starts = np.concatenate([[0], np.cumsum([len(sentence) for sentence in sentences])])
    for rows, batch in batches(subject.encoder, sentences, device):
        traced, hidden, tokens = trace(subject.encoder, batch, subject.gates)
        words = np.concatenate([np.arange(starts[row], starts[row + 1]) for row in rows])
        is_odd = np.repeat(np.array(rows), batch.sizes)[batch.piece_word.cpu().numpy()] % 2 == 1
        yield _Pass(words, traced, hidden, torch.searchsorted(tokens, batch.piece_slot), is_odd, batch.first_piece)


def dissect(subject: Subject, sentences: Sequence[Sentence], sample: int, request: Request) -> dict[str, Any]:
    """Decompose all hidden states that an encoder computes for some sentences.

    Args:
        sample: M, the largest number of words for which h and f of each layer are stored; the words are the same for
            all encoders.

    Returns:
        A dictionary with these keys.
        - ``error``: largest |i + h + f + c − e| over layers, tokens and features, to three significant digits;
          ``largest``: largest |e|.
        - ``pieces``: number of sub-words.
        - ``mu``, ``mu_sd`` (L + 1, T): mean and standard deviation over sub-words of the importance μ, after the
          embeddings and after each layer.
        - ``word_mu`` (W, L + 1, T): mean μ over the sub-words of each word.
        - ``heads`` (L, A): mean μ of each head in the last layer's vectors.
        - ``linearity``: one entry for each layer, from ``linearity`` on the sentences with even and with odd index.
        - ``last`` (T, W, H), a tensor: terms of the last layer, as means over the sub-words of each word.
        - ``added`` (L, 2, M, H): h and f after each layer, for the sampled words.

    Raises:
        EncoderError: the encoder cannot be decomposed, or the four terms do not sum to its hidden states.
    """
    hooks, width = subject.encoder.head_hooks, subject.encoder.hidden_size
    layers, words = hooks.layers, sum(map(len, sentences))
    sampled_words = np.sort(np.random.default_rng([request.seed, 11]).permutation(words)[:sample])
    row_in_sample = torch.full((words,), -1)  # of each word; −1 for words outside the sample
    row_in_sample[torch.from_numpy(sampled_words)] = torch.arange(len(sampled_words))
    sums, squares = np.zeros((layers + 1, 4)), np.zeros((layers + 1, 4))
    word_mu, heads = np.zeros((words, layers + 1, 4), np.float32), np.zeros((layers, hooks.heads))
    halves = np.zeros((layers, 2, 1 + 2 * width, 1 + 2 * width))
    last, added = torch.zeros(4, words, width), torch.zeros(layers, 2, len(sampled_words), width)
    error = largest = 0.0
    pieces = 0
    for batch in _passes(subject, sentences, request.device):
        sample_rows = row_in_sample[batch.words]
        is_sampled = sample_rows >= 0
        for layer, (stack, full_state) in enumerate(zip(maths.terms(batch.trace), batch.hidden, strict=True)):
            stack, full_state = stack[:, batch.pieces], full_state[batch.pieces]
            error = max(error, _reconstruction_error(stack, full_state, subject))
            largest = max(largest, float(full_state.abs().amax()))
            mu = maths.importance(stack, full_state)  # (4, N)
            sums[layer] += mu.double().sum(1).cpu().numpy()
            squares[layer] += mu.double().square().sum(1).cpu().numpy()
            word_mu[batch.words, layer] = batch.mean(mu.T).cpu().numpy()
            if layer:
                added[layer - 1, :, sample_rows[is_sampled]] = batch.by_word(stack[1:3])[:, is_sampled].cpu()
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
    """Return the largest |i + h + f + c − e|.

    Raises:
        EncoderError: the difference is larger than rounding errors explain.
    """
    error, largest = float((stack.sum(0) - full_state).abs().amax()), float(full_state.abs().amax())
    if not error <= _TOLERANCE * max(1.0, largest):
        raise EncoderError(
            f"{subject.name}: i + h + f + c differ from the encoder's output by {error:g} (largest value {largest:g}); "
            "the four terms do not describe all that it computes, so it cannot be decomposed"
        )
    return error


def _last_terms(subject: Subject, sentences: Sequence[Sentence], request: Request) -> Tensor:
    """Return the terms of the last layer, (4, W, H), as means over the sub-words of each word."""
    terms = torch.zeros(4, sum(map(len, sentences)), subject.encoder.hidden_size)
    for batch in _passes(subject, sentences, request.device):
        *_, stack = maths.terms(batch.trace)
        terms[:, batch.words] = batch.by_word(stack[:, batch.pieces]).cpu()
        request.on_batch()
    return terms
