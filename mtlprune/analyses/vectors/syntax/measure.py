"""Measure which heads find dependency arcs, the dimension of sentence vectors, and minimal pairs (``analyze syntax``).

The analysis runs one pass over the sentences for each encoder, and further passes over minimal pairs if they are
requested.

Letters for shapes: B sentences of a batch, P sentences whose vectors are stored, L layers, A heads of a layer, n heads
of all layers that were not removed, d values of a head, H hidden size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.harness.reading import Reading, Subject, SubjectResult, gate_grid, read_request, survey
from mtlprune.analyses.probes.maths import head_vectors, unit_vectors
from mtlprune.corpora.blimp import Paradigm, read_blimp
from mtlprune.encoder.arcs import (
    DIRECTIONS,
    MIN_RELATION_COUNT,
    ArcCounter,
    ArcCounts,
    Best,
    halves,
    relations_of,
    with_trees,
)
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import Observation
from mtlprune.encoder.pseudo_likelihood import Judgements, MaskedLanguageModel, judge, masked_language_models
from mtlprune.io.files import plain
from mtlprune.runs.results import Grid, Result, head_rows, joined
from mtlprune.sentence import Sentence
from mtlprune.statistics.permutation import layered_rank_test, spearman
from mtlprune.statistics.twonn import DimensionError, likelihood, twonn

_MAX_POINTS = 1000
"""Largest number of sentences whose vectors are used to estimate a dimension.

The estimate grows with the number of vectors, so all encoders use the same number.
"""
_PERMUTATIONS = 9999
"""Number of permutations of heads within layers, in the test of gates against UAS."""
_DIGITS = 4
"""Number of decimals of stored values."""
_Rows = Iterator[dict[str, Any]]


def measure(request: Request) -> Result:
    """Measure arcs that heads find, minimal pairs and dimensions of vectors, for all subjects on the same sentences.

    ``frames.yaml`` declares the frames. Layers and heads count from 1. ``about`` contains the numbers of ``tokens`` and
    ``arcs``, the smallest number of words of a listed relation (``least``), and the best fixed ``offset``. For a
    measure that ends in ``_held_out``, the head is chosen on one half of the sentences and scored on the other, and
    again with the halves exchanged. ``uas_single`` includes roots and punctuation; a root is never found. ``uas_best``
    is the mean UAS of the best head of each listed relation, weighted by the number of words of the relation.

    Raises:
        ArcError: no sentence has a tree.
        CorpusError, EncoderError, RunError: a corpus, encoder or run cannot be loaded; or minimal pairs are requested,
            but no named encoder can score them.
    """
    judges, refusals, paradigms = dict[str, MaskedLanguageModel](), dict[str, str](), list[Paradigm]()
    if request.options.blimp is not None:
        purpose = (
            f"blimp={request.options.blimp}: expected an encoder that can score minimal pairs, found none; name "
            "one, or leave blimp out"
        )
        judges, refusals = masked_language_models(request.names, purpose)
        paradigms = read_blimp(request.options.blimp, request.options.pairs)
    reading = read_request(request)
    with_trees(reading.sentences)

    def measure_subject(subject: Subject) -> SubjectResult:
        measured_heads = measure_heads(reading, subject, request)
        if (why := refusals.get(subject.name)) is not None:
            return replace(measured_heads, notes=[f"{subject.label}: no BLiMP: {why}.", *measured_heads.notes])
        if (lm := judges.get(subject.name)) is None:
            return measured_heads
        request.on_status(f"minimal pairs: {subject.name}")
        lm.model.to(request.device)  # type: ignore[arg-type]  # transformers annotates a device only
        return replace(
            measured_heads, frames={**measured_heads.frames, "blimp": pd.DataFrame(_judged(judge(lm, paradigms)))}
        )

    surveyed = survey("syntax", reading, request, measure_subject)
    result, measured = surveyed.result, [*surveyed.measured.values()]
    first = measured[0].counts
    about, offsets = _baseline(first)
    facts = (
        {"encoders": _fact_frame([*heads.facts, *_compared(first.by_head(), heads, seed)])}
        for (_, seed), heads in surveyed.measured.items()
    )
    keys = ({key: encoder[key] for key in ("encoder", "run", "seed")} for encoder in result.about["encoders"])
    frames = {**joined(zip(keys, facts, strict=True)), **result.frames, "offsets": offsets}
    return replace(
        result,
        about={**result.about, **about},
        frames={name: frame.round({"value": _DIGITS}) for name, frame in frames.items() if len(frame)},
    )


class MeasuredHeads(NamedTuple):
    """Measures of one encoder that ``measure`` needs after all encoders were read.

    Attributes:
        facts: rows of the frame ``encoders`` that depend on no other encoder.
        counts, gates: arcs of each head and gates, which are compared with the first encoder.
    """

    facts: list[dict[str, Any]]
    counts: ArcCounts
    gates: Tensor | None


def measure_heads(reading: Reading, subject: Subject, request: Request) -> SubjectResult:
    """Measure the heads and the sentence vectors of one encoder."""
    encoder, gates, hooks = subject.encoder, subject.gates, subject.encoder.head_hooks
    counter = ArcCounter(relations_of(reading.sentences), hooks.kept_heads, hooks.heads, gates)
    half_of_sentence = halves(len(reading.sentences), reading.seed)
    stored_rows = _distinct(encoder, reading.sentences, reading.seed)
    stored_vectors: dict[str, dict[int, NDArray[np.float32]]] = {"cls": {}, "mean": {}, "heads": {}}
    for rows, observation in reading.observations(subject, {"attention", "heads"}, request):
        counter.add(observation, [reading.sentences[row] for row in rows], half_of_sentence[rows].tolist())
        for name, vectors in _vectors(observation).items():
            stored_vectors[name] |= {row: vectors[place] for place, row in enumerate(rows) if row in stored_rows}
    cloud = {name: np.stack([vectors[row] for row in sorted(vectors)]) for name, vectors in stored_vectors.items()}
    counts = counter.counts
    uas, frequent = counts.uas(), counts.frequent_relations()
    best_arcs = {
        "uas_single": counts.best(),
        "uas_single_listed": counts.best(frequent),
        "uas_best": counts.mean_best(frequent),
        "weight_single": counts.best(weight=True),
        "weight_best": counts.mean_best(frequent, weight=True),
    }
    facts = [row for measure, best in best_arcs.items() for row in _best_rows(measure, best)]
    notes = []
    for vector_kind, called in (("cls", "[CLS]"), ("mean", "mean")):
        try:
            estimate = twonn(cloud[vector_kind])
        except DimensionError as error:
            notes.append(f"{subject.label}: no TwoNN of {called} vectors: {error}.")
            continue
        values = {"": estimate.likelihood, "_dropped": estimate.dropped}
        facts += [
            {"measure": f"twonn_{vector_kind}{key}", "value": v, "n": estimate.points} for key, v in values.items()
        ]
    grids = {"gate": gate_grid(subject), "uas": uas.max(0), "weight": counts.weight().max(0)}
    grids |= {f"uas {direction}": part for direction, part in zip(DIRECTIONS, uas, strict=True)}
    grids["twonn"] = _by_head(cloud["heads"], hooks.kept_heads, counts.present)
    relations = [
        {"label": name, **row}
        for name in frequent
        for measure in ("uas", "weight")
        for row in _best_rows(measure, counts.best([name], measure == "weight"))
    ]
    frames = {"relations": _fact_frame(relations), "heads": head_rows(grids), "arcs": _arcs(counts)}
    return SubjectResult(frames, notes=notes, measured=MeasuredHeads(facts, counts, gates))


def _best_rows(measure: str, best: Best) -> _Rows:
    """Yield two rows for a choice of head: its score on all sentences, and its held-out score."""
    place: dict[str, Any] = dict.fromkeys(("layer", "head", "direction"))
    if best.layer >= 0:
        place = {"layer": best.layer + 1, "head": best.head + 1, "direction": DIRECTIONS[best.direction]}
    for key, value in ((measure, best.value), (f"{measure}_held_out", best.held_out)):
        yield {**place, "measure": key, "value": value}


def _fact_frame(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Turn rows into a frame with whole numbers for layers and heads, which not every row has."""
    return pd.DataFrame(rows).astype({"layer": "Int64", "head": "Int64"} if rows else {})


def _compared(first: Grid, heads: MeasuredHeads, seed: int) -> _Rows:
    """Yield rows that compare an encoder with ``first``, the UAS of each head in the first encoder.

    The rows contain the correlation with the UAS of heads in this encoder and, for runs with gates, the correlation of
    gates with ``first``. They also contain the number of heads that are neither removed nor closed.

    Args:
        seed: seed of the run, for permutations.
    """
    other_values = heads.counts.by_head()
    if first.shape == other_values.shape and not np.isnan(value := spearman(first, other_values)):
        yield {"measure": "uas_like_first", "value": value, "n": int((~np.isnan(first + other_values)).sum())}
    yield {"measure": "heads_there", "value": float(heads.counts.present.sum())}
    if heads.gates is not None and heads.gates.shape == first.shape:
        gates = heads.gates.detach().cpu().double().numpy()
        ranks = layered_rank_test(first, gates, _PERMUTATIONS, (seed, 26))
        yield {"measure": "gates_by_uas", "value": ranks.value, "p": ranks.p, "n": ranks.heads}


def _arcs(counts: ArcCounts) -> pd.DataFrame:
    """Return the frame ``arcs``, with one row for each relation, direction and open head."""
    layers, heads = (range(1, size + 1) for size in counts.present.shape)
    names = ["label", "direction", "layer", "head"]
    frame = pd.MultiIndex.from_product([counts.relations, DIRECTIONS, layers, heads], names=names).to_frame(index=False)
    frame["tokens"] = counts.tokens.sum(0).repeat(len(frame) // len(counts.relations))
    for half_number in (0, 1):
        frame[f"hits_{half_number + 1}"] = counts.hits[half_number].swapaxes(0, 1).ravel().astype(np.int64)
        frame[f"weight_{half_number + 1}"] = counts.mass[half_number].swapaxes(0, 1).ravel()
    return frame[np.resize(counts.present.ravel(), len(frame))]


def _baseline(counts: ArcCounts) -> tuple[dict[str, Any], pd.DataFrame]:
    """Return the best fixed offset for all words, a part of ``about``, and for each relation, the frame ``offsets``."""
    frequent = counts.frequent_relations()
    single, best = counts.best_offset(), counts.mean_best_offset(frequent)
    overall = {"uas_single": single.value, "uas_single_held_out": single.held_out, "offset_single": single.offset}
    overall |= {"uas_best": best[0], "uas_best_held_out": best[1]}
    rows = []
    for name in frequent:
        best_offset, n = counts.best_offset([name]), counts.size([name])
        values = {"uas": best_offset.value, "uas_held_out": best_offset.held_out, "offset": best_offset.offset}
        rows += [{"label": name, "measure": measure, "value": value, "n": n} for measure, value in values.items()]
    offset = {measure: plain(round(value, _DIGITS)) for measure, value in overall.items()}
    about = {"tokens": counts.size(), "arcs": int(counts.arcs.sum()), "least": MIN_RELATION_COUNT, "offset": offset}
    return about, pd.DataFrame(rows)


def _judged(judgements: Judgements) -> _Rows:
    """Yield rows of the frame ``blimp``: the overall score, and the score of each phenomenon and each paradigm."""
    yield {"label": None, "measure": "overall", "value": judgements.overall, "n": judgements.pairs}
    for measure, values in (("phenomenon", judgements.phenomena), ("paradigm", judgements.paradigms)):
        yield from ({"label": label, "measure": measure, "value": value} for label, value in values.items())


def _vectors(observation: Observation) -> dict[str, NDArray[np.float32]]:
    """Return vectors of each sentence of a batch: "cls" and "mean" of the last layer (B, H), and "heads" (B, n, d)."""
    sizes = torch.tensor(observation.batch.sizes, device=observation.last.device)
    first = sizes.cumsum(0) - sizes
    points = {
        "cls": observation.last.flatten(0, 1)[observation.batch.cls_slot],
        "mean": unit_vectors(observation.word_vectors(observation.last)[:, None], first, sizes)[:, 0],
        "heads": unit_vectors(head_vectors(observation), first, sizes),
    }
    return {name: values.float().cpu().numpy() for name, values in points.items()}


def _distinct(encoder: Encoder, sentences: Sequence[Sentence], seed: int) -> set[int]:
    """Draw the rows of at most :data:`_MAX_POINTS` sentences without duplicates, by ``seed``.

    Two sentences are duplicates if their sub-words are the same. The vectors of duplicates differ only by rounding
    errors, which cannot be distinguished from small distances.
    """
    first: dict[bytes, int] = {}
    for row, pieces in enumerate(encoder.tokenize_sentences(sentences)):
        first.setdefault(pieces.ids.tobytes(), row)
    rows = np.array(sorted(first.values()))
    return set(np.random.default_rng([seed, 25]).permutation(rows)[:_MAX_POINTS].tolist())


def _by_head(
    points: NDArray[np.float32], kept_heads: Sequence[Sequence[int]], is_open: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Estimate the dimension of each head's sentence vectors: (P, n, d) → (L, A), NaN for closed and removed heads."""
    grid = np.full(is_open.shape, np.nan)
    heads = [(layer, head) for layer, numbers in enumerate(kept_heads) for head in numbers]
    for column, head in enumerate(heads):
        grid[head] = likelihood(points[:, column]) if is_open[head] else np.nan
    return grid
