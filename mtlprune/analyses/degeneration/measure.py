"""Degeneration of encoders and runs, read off the sentences of a corpus batch by batch.

    result = measure(Request(["minilm", "runs/pos"], Path("data/ewt5"), DegenerationOptions()))

A first pass gathers moments of hidden states and head outputs over all words, and keeps the vectors of a sample, the
same words for every encoder. A second one takes the mean vector apart. Words are means of their sub-words, [CLS] and
[SEP] left out.

The mean vector m of a layer is the mean of i + h + f + c (Mickus et al. 2022, analyses/dissection), so its parts are the
means of the terms; μ(m, part) = m · part / ‖m‖² says how much of m's length a part gives. Shares sum to 1 and may be
negative.

Letters for shapes: L layers, A heads a layer, n heads it has now, d values a head has, H hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.claims.groups import GROUPS, Groups, compared, groups_of
from mtlprune.analyses.degeneration import DegenerationOptions, maths
from mtlprune.analyses.degeneration.labels import Decoder, Frequencies, decoders, pairs
from mtlprune.analyses.degeneration.maths import DirectionError, Hyperplane, Moments, layernorm_hyperplane
from mtlprune.analyses.dissection import maths as dissection
from mtlprune.analyses.dissection.trace import refusal, trace
from mtlprune.analyses.reading import Found, Reading, gate_grid, read_request, survey
from mtlprune.analyses.subjects import Subject
from mtlprune.encoder.model import input_embeddings
from mtlprune.encoder.observe import observe
from mtlprune.results import SHUT, Result, head_rows, joined, tidy
from mtlprune.statistics.permutation import corrected

Floats = NDArray[np.float64]
HEAD_MEASURES = ("cosine", "isoscore", "rank_share", "top1", "angle", "dimension", "margin")
TERMS = ("input", "heads", "feed_forward", "correction")
UNTUNED = ("mean_to_untuned", "plane_to_untuned")
POINTS = 250
"""Rows whose projection is kept, for the figure."""
RANKS = 40
"""Singular values of a spectrum that are kept, at evenly spaced logarithms of their ranks."""


def measure(request: Request) -> Result:
    """All subjects, the decoders of runs, and heads by claims. Frames, layers and heads from 1 (layer 0: the
    embeddings' output):

    - ``embeddings`` and ``layers``: ``maths.cloud`` of the matrix of token embeddings and of hidden states; of layers
      also ``share_TERM``, μ(m, mean of the TERM) of the layer's own mean m, and of the last LayerNorm's hyperplane
      ``plane_offset``, ``_distance``, ``_largest``, ``_spread`` (how far off it a vector lies at most, relative) and
      ``_angle`` (median degrees between v and the vectors: 90 where v does not matter); of the last layer, where the
      encoder that a run began with is measured too, ``mean_to_untuned`` and ``plane_to_untuned``, degrees between the
      means and between the v of both.
    - ``heads``: ``gate``, HEAD_MEASURES (NaN where there is no such head, or it is shut) and ``cone``, what the head
      gives to the last layer's m; sums to the last ``share_heads``, 0 for heads that are shut or gone.
    - ``decoders``: by task ``labels.matrix``, and the ``slope``, with p of ``spearman``.
    - ``labels`` and ``pairs`` (of ``labels.pairs``, q over all tests), wide.
    - ``spectra`` and ``points``, wide, of the ``term`` "embeddings", "last" or, by task, "labels".
    - ``groups``: by ``term`` (stem, ...) means of HEAD_MEASURES over heads, whatever their layers; the sum of ``cone``.
    - ``claims``, ``tests``: of ``compared``.

    Raises:
        ClaimError: claims that cannot be read, or that are of no encoder that is measured.
        EncoderError, RunError: a subject cannot be loaded, or its heads are not known.
    """
    reading = read_request(request)
    groups = groups_of(request.claims, reading)
    vectors: list[tuple[Tensor | None, Tensor | None]] = []

    def one(subject: Subject) -> Found:
        mine = Survey(reading, subject, request)
        found = mine.run()
        vectors.append((mine.mean, mine.direction))
        return found

    result = survey("degeneration", reading, request, one)
    made, notes = _decoders(reading, request)
    permutations = request.options.permutations
    parts: list[Part] = [({}, result.frames), ({}, {"pairs": _pairs(made, permutations, request.seed)})]
    parts += [*map(_decoder_part, made), *_to_untuned(result, vectors), *_by_group(groups, result)]
    about = {**result.about, "notes": [*result.about["notes"], *notes]}
    result = replace(result, about=about, frames=joined(parts))
    return compared(result, groups, HEAD_MEASURES, request.seed, salt=75, permutations=permutations, gates=True)


class Survey:
    """The passes over one subject.

    Args:
        reading: its sentences.
        subject: encoder and gates.
        request: how much.

    Attributes:
        mean: (H,), m of the last layer; None without layers, or where the encoder cannot be taken apart.
        direction: (H,), v of the last LayerNorm; None where there is none.
    """

    def __init__(self, reading: Reading, subject: Subject, request: Request) -> None:
        self.reading, self.subject, self.request = reading, subject, request
        self.options: DegenerationOptions = request.options
        self.sample = maths.draw([len(one) for one in reading.sentences], self.options.rows, request.seed)
        self.mean: Tensor | None = None
        self.direction: Tensor | None = None

    def run(self) -> Found:
        """All passes."""
        subject, encoder = self.subject, self.subject.encoder
        table = input_embeddings(encoder.transformer).weight.detach().double().cpu()
        moments = Moments(table.shape[1])
        moments.add(table)
        chosen = np.random.default_rng([self.request.seed, 72]).permutation(len(table))[: self.options.rows]
        rows = table[np.sort(chosen)]
        kept = {"embeddings": (moments, rows)}
        frames = {"embeddings": tidy([maths.cloud(moments, rows)])}
        notes = []
        if not encoder.context:
            notes.append(f"{subject.label} ({subject.name}) has no layers; only its token embeddings are measured.")
        else:
            self._observe()
            kept["last"] = self.hidden[-1], self.states[-1][self.sample.rows].double()
            layers = [
                {"layer": layer, **maths.cloud(moments, states[self.sample.rows], states[self.sample.lone])}
                for layer, (moments, states) in enumerate(zip(self.hidden, self.states, strict=True))
            ]
            heads = self._heads()
            why = refusal(encoder)
            if why is not None:
                why = f"{why}; so where its mean vector comes from is not said"
                notes.append(f"{subject.label} ({subject.name}): {why}.")
            else:
                cone = take_apart(subject, self.reading, self.hidden[-1].mean(), self.request)
                self.mean, self.direction = cone.means[-1], cone.direction
                heads["cone"] = cone.heads
                layers = [row | more for row, more in zip(layers, cone.rows(), strict=True)]
            frames |= {"layers": tidy(layers, "layer"), "heads": head_rows(heads)}
        drawn = joined(
            ({"term": term}, _drawn(moments.spectrum(), maths.projection(rows[:POINTS], moments.second)))
            for term, (moments, rows) in kept.items()
        )
        return Found({**frames, **drawn}, notes=notes)

    def _observe(self) -> None:
        """Moments and kept vectors of hidden states and heads."""
        encoder, places = self.subject.encoder, self.subject.encoder.places
        size, kept = encoder.hidden_size, len(self.sample.kept)
        self.hidden = [Moments(size) for _ in range(places.layers + 1)]
        self.states = torch.zeros(places.layers + 1, kept, size)
        self.head_moments: list[Moments] = []
        self.outputs: list[Tensor] = []
        for rows, batch in self.reading.batches(self.subject, self.request.device):
            seen = observe(encoder, batch, self.subject.gates, {"hidden", "heads"})
            here, there = self.sample.of(rows)
            for layer, states in enumerate(seen.hidden):
                words = seen.word_vectors(states)
                self.hidden[layer].add(words)
                self.states[layer, there] = words[here].float().cpu()
            if not self.outputs:
                self.head_moments = [Moments(*heads.shape[2:]) for heads in seen.heads]
                self.outputs = [torch.zeros(kept, *heads.shape[2:]) for heads in seen.heads]
            for moments, outputs, heads in zip(self.head_moments, self.outputs, seen.heads, strict=True):
                if heads.shape[2]:
                    words = seen.word_vectors(heads)  # (words, n, d)
                    moments.add(words)
                    outputs[there] = words[here].float().cpu()
            self.request.on_batch()

    def _heads(self) -> dict[str, Floats]:
        """``gate`` and HEAD_MEASURES."""
        gate = gate_grid(self.subject)
        found = {name: np.full(gate.shape, np.nan) for name in HEAD_MEASURES}
        for layer, kept in enumerate(map(list, self.subject.encoder.places.kept)):
            if not kept:
                continue
            moments = self.head_moments[layer]
            columns = {
                "cosine": moments.cosine(),
                "isoscore": moments.isoscore(),
                "rank_share": moments.effective_rank_share(),
                "top1": maths.top_share(moments.spectrum(), 1),
            }
            for name, values in columns.items():
                found[name][layer, kept] = values.numpy()
            for place, head in enumerate(kept):
                if gate[layer, head] > SHUT:
                    outputs = self.outputs[layer][:, place]  # (kept words, d)
                    rows = outputs[self.sample.rows].double()
                    found["angle"][layer, head] = float(maths.angles_to_mean(rows).median())
                    found["dimension"][layer, head] = maths.dimension(outputs[self.sample.lone])
                    found["margin"][layer, head] = maths.margin(rows)
        return {"gate": gate} | {name: np.where(gate > SHUT, values, np.nan) for name, values in found.items()}


# -- where the mean vector comes from ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Cone:
    """The mean vectors of an encoder taken apart.

    Attributes:
        terms: (L + 1, 4), μ(m, mean of each of TERMS) of each layer's own mean m, the embeddings' first; rows sum to 1.
        heads: (L, A), μ(m, mean of a head's slot) for the last layer's m.
        means: (L + 1, H), m.
        planes: the hyperplane of each layer's last LayerNorm; None where a gain is 0.
        spreads: how far off that hyperplane a vector of the layer lies at most (relative; rounding only).
        angles: median degrees between v and the layer's vectors: 180 where all lie in −v.
    """

    terms: Floats
    heads: Floats
    means: Tensor
    planes: list[Hyperplane | None]
    spreads: list[float]
    angles: list[float]

    @property
    def direction(self) -> Tensor | None:
        """(H,): v of the last LayerNorm, if any."""
        return self.planes[-1].direction if self.planes and self.planes[-1] is not None else None

    def rows(self) -> Iterator[dict[str, float]]:
        """Measures of each layer, that of the embeddings first."""
        planes = [{}, *map(_plane_row, self.planes, self.spreads, self.angles)]
        for shares, plane in zip(self.terms.tolist(), planes, strict=True):
            yield {f"share_{term}": share for term, share in zip(TERMS, shares, strict=True)} | plane


def _plane_row(plane: Hyperplane | None, spread: float, angle: float) -> dict[str, float]:
    if plane is None:
        return {}
    found = {"offset": plane.offset, "distance": plane.distance, "largest": plane.largest}
    return {f"plane_{name}": value for name, value in {**found, "spread": spread, "angle": angle}.items()}


def take_apart(subject: Subject, reading: Reading, mean: Tensor, request: Request) -> Cone:
    """One pass over the sentences with an encoder that dissection does not refuse.

    Args:
        mean: (H,), of the last layer's word vectors over the same sentences.
    """
    places, width = subject.encoder.places, subject.encoder.hidden_size
    sums = torch.zeros(places.layers + 1, 4, width, dtype=torch.float64)
    heads = torch.zeros(places.layers, places.heads, dtype=torch.float64)
    spreads, angles = np.zeros(places.layers), [list[Tensor]() for _ in range(places.layers)]
    planes: list[Hyperplane | None] = []
    words = 0
    for _, batch in reading.batches(subject, request.device):
        found, hidden, tokens = trace(subject.encoder, batch, subject.gates)
        pieces = torch.searchsorted(tokens, batch.piece_slot)
        weight = (1.0 / batch.piece_counts.double())[batch.piece_word]  # (pieces,)
        planes = planes or [_plane(layer.norms[1]) for layer in found.layers]
        for place, stack in enumerate(dissection.terms(found)):
            sums[place] += torch.einsum("knh,n->kh", stack[:, pieces].double(), weight).cpu()
        shares = dissection.head_importance(found, mean.to(hidden[-1]).expand_as(hidden[-1]))
        for row, (layer, share) in enumerate(zip(found.layers, shares, strict=True)):  # m · slot / ‖m‖²: (tokens, n)
            heads[row, list(layer.numbers)] += weight.cpu() @ share[pieces].double().cpu()
        for place, plane in enumerate(planes):
            if plane is not None:
                rows = hidden[place + 1][pieces].cpu()
                spreads[place] = max(spreads[place], plane.spread(rows))
                angles[place].append(plane.angles(rows))
        words += sum(batch.sizes)
        request.on_batch()
    means = sums.sum(1) / words  # (L + 1, H)
    terms = torch.einsum("lkh,lh->lk", sums / words, means) / means.square().sum(1, keepdim=True)
    middle = [float(torch.cat(parts).median()) if parts else math.nan for parts in angles]
    return Cone(terms.numpy(), (heads / words).numpy(), means, planes, spreads.tolist(), middle)


def _plane(norm: dissection.Norm) -> Hyperplane | None:
    try:
        return layernorm_hyperplane(norm.gain, norm.bias)
    except DirectionError:
        return None


# -- frames ------------------------------------------------------------------------------------------------------------

Part = tuple[Mapping[str, Any], Mapping[str, pd.DataFrame]]
"""Keys and frames, as ``joined`` takes them."""


def _drawn(singular: Tensor, points: Tensor) -> dict[str, pd.DataFrame]:
    """What figures show of a cloud, with the digits that it takes to draw.

    Args:
        singular: (D,), falling.
        points: (N, 2).
    """
    values = (singular / singular[0]).numpy()
    ranks = np.unique(np.geomspace(1, len(values), min(RANKS, len(values))).round().astype(int))
    rounded = [[float(f"{x:.4g}") for x in row] for row in points.tolist()]
    return {
        "spectra": pd.DataFrame({"rank": ranks, "value": values[ranks - 1].round(5)}),
        "points": pd.DataFrame(rounded, columns=["x", "y"]),
    }


def _keys(one: Mapping[str, Any]) -> dict[str, Any]:
    return {key: one[key] for key in ("encoder", "run", "seed")}


def _to_untuned(result: Result, vectors: list[tuple[Tensor | None, Tensor | None]]) -> Iterator[Part]:
    """Angles between a run and the encoder that it began with, where that is among those measured.

    Args:
        vectors: of each encoder, the mean of the last layer and the direction of its last LayerNorm.
    """
    encoders = result.about["encoders"]
    for place, one in enumerate(encoders):
        untuned = next((k for k, other in enumerate(encoders) if k != place and other["run"] == one["kind"]), None)
        if untuned is not None:
            found = {
                name: _degrees(first, second)
                for name, first, second in zip(UNTUNED, vectors[place], vectors[untuned], strict=True)
                if first is not None and second is not None
            }
            yield _keys(one), {"layers": tidy([{"layer": one["layers"], **found}], "layer")}


def _degrees(first: Tensor, second: Tensor) -> float:
    cosine = float(first @ second / (first.norm() * second.norm()))
    return float(np.degrees(np.arccos(np.clip(cosine, -1, 1))))


def _by_group(groups: Groups | None, result: Result) -> Iterator[Part]:
    """Means of HEAD_MEASURES over the heads of each group, and the sum of ``cone``; of "others" that alone."""
    for one in result.about["encoders"]:
        heads = result.grids(one)
        if groups is None or one["kind"] != groups.encoder or heads["gate"].shape != groups.counts.shape:
            continue
        members = {name: groups.of(name) for name in GROUPS}
        means = [
            {"term": name, **{measure: _mean(heads[measure][member]) for measure in HEAD_MEASURES}}
            for name, member in members.items()
        ]
        yield _keys(one), {"groups": tidy(means, "term")}
        if "cone" in heads:
            members["others"] = ~np.any([*members.values()], axis=0)
            sums = [{"term": name, "cone": float(heads["cone"][member].sum())} for name, member in members.items()]
            yield _keys(one), {"groups": tidy(sums, "term")}


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def _decoders(reading: Reading, request: Request) -> tuple[list[Decoder], list[str]]:
    """Of all runs, and notes."""
    frequencies = Frequencies(request.corpus, reading.fingerprint)
    found: list[Decoder] = []
    notes: list[str] = []
    for source in reading.sources:
        if source.is_run:
            request.on_status(f"decoders of {source.label}, seed {source.seed}")
            made, more = decoders(source, reading.sentences, frequencies, request)
            found += made
            notes += more
    if not found and not notes:
        notes.append("No run was named, only encoders; label weights are those of runs.")
    return found, notes


def _decoder_part(decoder: Decoder) -> Part:
    source = decoder.source
    keys = {"encoder": source.label, "run": source.name, "seed": source.seed, "task": decoder.task}
    matrix = tidy([decoder.matrix | {key: value for key, value in decoder.slope.items() if key != "p"}])
    drawn = {name: frame.assign(term="labels") for name, frame in _drawn(decoder.singular, decoder.points).items()}
    return keys, {
        "decoders": matrix.assign(p=np.where(matrix["measure"] == "spearman", decoder.slope["p"], math.nan)),
        "labels": decoder.labels,
        **drawn,
    }


def _pairs(made: list[Decoder], permutations: int, seed: int) -> pd.DataFrame:
    frame = pd.DataFrame(pairs(made, permutations, seed))
    return frame.assign(q=corrected(frame["p"])) if len(frame) else frame
