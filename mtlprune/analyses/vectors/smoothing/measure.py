"""Measure over-smoothing in encoders and runs on the sentences of a corpus, batch by batch (``analyze smoothing``).

    result = measure(Request(["minilm", "runs/pos"], Path("data/ewt5"), SmoothingOptions()))

The analysis reads all sentences twice (the first pass computes the mean vector of the corpus). It then reads a sample
of sentences with all heads as in the run, and once for every open head with this head closed. Tokens are sub-words with
special tokens ([CLS], [SEP]) unless a name says otherwise: attention rests on special tokens, so the bound would not
hold without them. Words (label split) are means of their sub-words, without special tokens.

Letters for shapes: S sentences of the corpus, B sentences of a batch, T token positions, H hidden size, L layers, A
heads of a layer, n heads that a layer still has after removal.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.harness.reading import (
    Reading,
    Subject,
    SubjectResult,
    batches,
    find_sources,
    gate_grid,
    of_corpora,
    read_request,
    survey,
)
from mtlprune.analyses.heads.claims.groups import compared, groups_of
from mtlprune.analyses.vectors.smoothing import SmoothingOptions, maths
from mtlprune.analyses.vectors.smoothing.maths import LabelSplit, word_grams
from mtlprune.encoder.observe import Observation, observe
from mtlprune.encoder.post_norm import POST_NORM, head_norms, read_layers, refusal
from mtlprune.evaluation.head_masks import OPEN_ABOVE
from mtlprune.runs.results import Result, head_rows, quantile_rows
from mtlprune.sentence import declared
from mtlprune.statistics.permutation import spearman

_OUTLIERS = 3
"""Number of dimensions left out for ``cosine_without_outliers``: those that contribute most to the expected cosine."""
STATES = ("cosine", "cosine_centred", "cosine_without_outliers", "cosine_pieces", "distance", "relative_distance")
"""Measures of hidden states: L + 1 values for each sentence, with the embeddings first.

A fusion adds a value for the vectors that it makes of the hidden states.
"""
CHANGED_MEASURES = ("cosine", "cosine_centred", "relative_distance")
"""Measures of fused vectors that are compared with those of the last layer, sentence by sentence."""
_STEPS = ("ratio", "mixing")
"""Measures of a layer (change from its input to its output, and attention): L values for each sentence."""
BOUNDS = ("sigma1", "sigma2", "published", "bound", "bound_norm", "bound_attention")
"""Measures of a layer that are defined only for post-LN layers: L values for each sentence."""
EFFECTS = ("effect", "effect_last", "cosine_effect", "cosine_effect_last")
"""Effects of closing one head (open minus closed) on log d_M and CosSim, after its layer and after the last layer."""
COMPARED = ("mixing", "amplification", *EFFECTS)
"""Measures of heads that are compared by how many tasks claim a head."""
_POINTS = 120
"""Largest number of sentences whose σ₁σ₂ and CosSim are stored in the frame ``points``, for the figure."""
_Columns = dict[str, NDArray[np.float64]]
"""Name of a measure → its values."""


def measure(request: Request) -> Result:
    """Measure over-smoothing in every encoder and run of a request, and compare heads by claims.

    The Result has these frames, in which layers and heads count from 1 and layer 0 is the embeddings:

    - ``layers``: STATES, _STEPS and BOUNDS, summarised over sentences by ``quantile_rows``. For post-LN
      layers also the norms and gains behind the bound. For σ₁σ₂ over sentences ``product``, ``least`` (the minimum),
      ``above_one`` (the share above 1) and ``spearman`` (correlation with CosSim). For a fusion ``fusion`` and
      ``fusion_sd``: mean and standard deviation, over tokens, of the weight that it gives the layer.
    - ``fused``: STATES of fused vectors over sentences, and with the suffix ``_change`` those of CHANGED_MEASURES as
      fused vectors minus last layer.
    - ``encoders``: ``tokens`` (mean number of tokens of a sentence), ``closed_on`` (number of sentences in which heads
      are closed), and how closely the ratio of d_M approaches ``bound`` and ``published`` (``_nearest`` is the largest
      quotient, ``_exceeded`` the number of times it is above 1).
    - ``labels``: for each task the rows of ``maths.LabelSplit.records``, with a p-value for ``share``.
    - ``heads``: ``gate``, ``mixing``, ``norm``, ``amplification``, and EFFECTS with their standard errors (``_se``).
      Effects are values with the head open minus values with the head closed. For d_M the effect is a difference of
      logarithms, so the head smooths if it is below 0.
    - ``points``, ``sentences``: measures of single sentences, with one column for each measure.
    - ``claims``, ``tests``: the frames of ``compared``.

    Raises:
        ClaimError: claims cannot be read, or belong to no encoder that is measured.
        EncoderError, RunError: a subject cannot be loaded, or mtlprune does not know where its heads are.
    """
    groups = groups_of(request.claims, find_sources(request.names))
    corpora = [replace(request, corpus=corpus) for corpus in (request.corpus, *request.further)]
    return compared(of_corpora([_of_one(corpus) for corpus in corpora]), groups, COMPARED, request.seed)


def _of_one(request: Request) -> Result:
    """Measure every encoder and run of a request on one corpus, ``request.corpus``."""
    reading = read_request(request)
    return survey(
        "smoothing", reading, request, lambda subject: SmoothingSurvey(reading, subject, request).run()
    ).result


class SmoothingSurvey:
    """The forward passes of this analysis over one subject (an encoder with its gates)."""

    def __init__(self, reading: Reading, subject: Subject, request: Request) -> None:
        self.reading, self.subject, self.request = reading, subject, request
        self.options: SmoothingOptions = request.options
        hooks = subject.encoder.head_hooks
        self.layers, self.heads, self.kept_heads = hooks.layers, hooks.heads, hooks.kept_heads
        self.refused = refusal(subject.encoder)
        self.norms = head_norms(subject.encoder, subject.gates)
        self.post_norm = None if self.refused else read_layers(subject.encoder, subject.gates)
        self.fusion = subject.encoder.fusion

    @torch.no_grad()
    def run(self) -> SubjectResult:
        """Run all passes and return the frames of this subject, with a note if it is not a post-LN encoder."""
        self.mean, unit = self._corpus_mean()
        shares = maths.shares_of_dimensions(unit)  # (L + 1, H)
        top = shares.topk(min(_OUTLIERS, shares.shape[1]))
        # True for the dimensions that are not outliers.
        self.inside = torch.ones_like(shares, dtype=torch.bool).scatter(1, top.indices, False)
        columns = self._all_sentences()
        fused = {name: columns[name][:, self.layers + 1] for name in STATES} if self.fusion else {}
        columns |= {name: columns[name][:, : self.layers + 1] for name in STATES}
        effects, closed_on = self._effects()
        tokens = columns.pop("tokens")
        facts = {"tokens": float(tokens.mean()), "closed_on": closed_on}
        layers = [*self._layers(columns), *self._constants(), *self._weights()]
        frames: dict[str, Any] = {
            "heads": head_rows({**self._of_heads(), **effects}),
            "labels": pd.DataFrame([row for split in self.splits for row in split.records()]),
            "sentences": self._sentences(columns, tokens),
        }
        if fused:
            changes = {f"{name}_change": fused[name] - columns[name][:, -1] for name in CHANGED_MEASURES}
            frames["fused"] = pd.DataFrame(
                [row for name, v in {**fused, **changes}.items() for row in quantile_rows(name, v)]
            )
        if "bound" in columns:
            products, after = columns["sigma1"] * columns["sigma2"], columns["cosine"][:, 1:]
            layers += _sigma(products, after)
            frames["points"] = _points(products, after)
            for name in ("bound", "published"):
                nearest = columns["ratio"] / columns[name]
                facts[f"{name}_nearest"] = float(np.nanmax(nearest))
                facts[f"{name}_exceeded"] = int((nearest > 1 + 1e-6).sum())
        frames |= {
            "layers": pd.DataFrame(layers),
            "encoders": pd.DataFrame(facts.items(), columns=["measure", "value"]),
        }
        return SubjectResult(frames, notes=[f"{self.subject.label}: {self.refused}."] if self.refused else [])

    def _corpus_mean(self) -> tuple[Tensor, Tensor]:
        """Return the mean token vector of each layer, and the mean of the token vectors scaled to length 1.

        Both have the shape (L + 1, H), or (L + 2, H) for an encoder with a fusion.
        """
        sums = units = torch.zeros(())
        tokens = 0
        for _, observation in self.reading.observations(self.subject, {"hidden"}, self.request):
            mask = observation.batch.attention_mask.bool()
            vectors = torch.stack(self._vectors(observation))[:, mask].double()  # (L + 1, tokens, H)
            sums = vectors.sum(1) + sums
            units = torch.nn.functional.normalize(vectors, dim=-1).sum(1) + units
            tokens += vectors.shape[1]
        return sums / tokens, units / tokens

    def _all_sentences(self) -> _Columns:
        """Return STATES (S, L + 1), with a fusion (S, L + 2), _STEPS and BOUNDS (S, L), and ``tokens`` (S,).

        The pass also fills ``sums`` (λ of heads), ``weights`` (of a fusion) and ``splits`` (spread between labels).
        """
        count, seed = len(self.reading.sentences), self.request.seed
        columns: _Columns = {name: np.full((count, self.layers + (2 if self.fusion else 1)), np.nan) for name in STATES}
        columns |= {name: np.full((count, self.layers), np.nan) for name in _STEPS + (() if self.refused else BOUNDS)}
        columns["tokens"] = np.zeros(count)
        self.sums = np.zeros((self.layers, self.heads))  # of λ over sentences, (L, A)
        self.weights: list[Tensor] = []  # of a fusion; (tokens, layers that it joins) for each batch
        self.splits = [
            LabelSplit(task, self.layers + 1, self.options.permutations, seed)
            for task in declared(self.reading.sentences)
        ]
        want = {"hidden", "attention"} | (set() if self.refused else {"norms"})
        for rows, observation in self.reading.observations(self.subject, want, self.request):
            mask = observation.batch.attention_mask
            for name, values in {**self._states(observation), **self._steps(observation)}.items():
                columns[name][rows] = values.cpu().numpy().T
            columns["tokens"][rows] = mask.sum(1).cpu().numpy()
            distances = columns["distance"][rows, : self.layers + 1]
            columns["ratio"][rows] = distances[:, 1:] / distances[:, :-1]
            if self.fusion:
                self.weights.append(self.fusion.weights(_joined(observation))[mask.bool()].double().cpu())
            grams = word_grams(observation)
            for split in self.splits:
                split.add([self.reading.sentences[row] for row in rows], grams)
        return columns

    def _states(self, observation: Observation) -> dict[str, Tensor]:
        """Return STATES, (L + 1, B) each, or (L + 2, B) with a fusion."""
        mask, pieces = observation.batch.attention_mask.bool(), observation.batch.source >= 0
        columns = []
        for hidden, mean, inside in zip(self._vectors(observation), self.mean, self.inside, strict=True):
            vectors = hidden.double()
            cosines = [maths.cosine(centred, mask) for centred in (vectors, vectors - mean, vectors * inside)]
            distances = maths.distance(vectors, mask), maths.relative_distance(vectors, mask)
            columns.append((*cosines, maths.cosine(vectors, pieces), *distances))
        return {
            name: torch.stack(states_of_layers)
            for name, states_of_layers in zip(STATES, zip(*columns, strict=True), strict=True)
        }

    def _vectors(self, observation: Observation) -> list[Tensor]:
        """Return the hidden states, followed by the fused vectors that decoders read if the encoder has a fusion."""
        return (
            observation.hidden
            if self.fusion is None
            else [*observation.hidden, self.fusion(_joined(observation)).to(observation.last)]
        )

    def _weights(self) -> Iterator[dict[str, Any]]:
        """Yield rows with the weight that a fusion gives each layer; yield nothing without a fusion."""
        if self.fusion:
            weights = torch.cat(self.weights)
            for layer, mean, deviation in zip(self.fusion.joined_layers, weights.mean(0), weights.std(0), strict=True):
                yield from _measured(layer, fusion=float(mean), fusion_sd=float(deviation))

    def _steps(self, observation: Observation) -> dict[str, Tensor]:
        """Return ``mixing`` and BOUNDS, (L, B) each, and add λ of every head to ``sums``."""
        mask = observation.batch.attention_mask.bool()
        columns: dict[str, list[Tensor]] = {"mixing": []}
        for layer in range(self.layers):
            mixings = maths.mixing(observation.attention[layer].double(), mask)  # (B, n)
            self.sums[layer, list(self.kept_heads[layer])] += mixings.sum(0).cpu().numpy()
            strongest = mixings.masked_fill(self.norms[layer].to(mixings) == 0, 0.0)
            columns["mixing"].append(strongest.amax(1) if strongest.shape[1] else strongest.new_zeros(len(mask)))
            if self.post_norm is None:
                continue
            part = self.post_norm[layer]
            names = POST_NORM[self.subject.encoder.config.model_type]
            read = [observation.norms[layer, name].double() for name in (names.first_norm, names.second_norm)]
            plain = [maths.least_deviation(values, mask) for values in read]
            regularised = [maths.least_deviation(v, mask, e) for v, e in zip(read, part.epsilons, strict=True)]
            bound = maths.rigorous_bound(part, regularised[0], regularised[1], mixings)
            published = maths.published_factor(part, plain[0], plain[1], mixings)
            values = (*plain, published, bound.value, bound.norm, bound.attention)
            for name, value in zip(BOUNDS, values, strict=True):
                columns.setdefault(name, []).append(value)
        return {name: torch.stack(values) for name, values in columns.items()}

    def _of_heads(self) -> _Columns:
        """Return gate, mean λ, norm and amplification of every head, (L, A) each.

        The gate of a removed head is 0, and its other values are NaN.
        """
        shape = self.layers, self.heads
        norm, mixings = np.full(shape, np.nan), np.full(shape, np.nan)
        for layer, heads_of_layer in enumerate(map(list, self.kept_heads)):
            norm[layer, heads_of_layer] = self.norms[layer].numpy()
            mixings[layer, heads_of_layer] = self.sums[layer, heads_of_layer] / len(self.reading.sentences)
        amplification = np.sqrt(mixings) * norm
        return {"gate": gate_grid(self.subject), "mixing": mixings, "norm": norm, "amplification": amplification}

    def _layers(self, columns: _Columns) -> Iterator[dict[str, Any]]:
        """Yield the rows of ``quantile_rows``, over sentences, for every measure and layer.

        Measures with L columns start at layer 1, and measures with L + 1 columns start at layer 0, the embeddings.
        """
        for name, values in columns.items():
            for layer, column in enumerate(values.T, self.layers + 1 - values.shape[1]):
                yield from ({"layer": layer, **row} for row in quantile_rows(name, column))

    def _sentences(self, columns: _Columns, tokens: NDArray[np.float64]) -> pd.DataFrame:
        """Return the frame ``sentences``, with one row for each layer and sentence."""
        ids, depth = [sentence.id for sentence in self.reading.sentences], self.layers + 1
        layers, sizes = np.repeat(np.arange(depth), len(ids)), np.tile(tokens.astype(np.int32), depth)
        frame = pd.DataFrame({"layer": layers, "sentence": ids * depth, "tokens": sizes})
        for name, values in columns.items():
            all_depths = np.full((depth, len(ids)), np.nan, np.float32)
            all_depths[depth - values.shape[1] :] = values.T
            frame[name] = all_depths.ravel()
        return frame

    def _constants(self) -> Iterator[dict[str, Any]]:
        """Yield rows of norms and gains, which do not depend on sentences; none for encoders that are not post-LN."""
        for layer, part in enumerate(self.post_norm or (), 1):
            inner, outer = part.feed_forward
            values = {"gain1": part.gains[0], "gain2": part.gains[1], "inner": inner, "outer": outer}
            values |= {"s": part.largest, "heads": part.open, "bound_feed_forward": 1 + part.lipschitz * inner * outer}
            yield from _measured(layer, **values)

    def _effects(self) -> tuple[_Columns, int]:
        """Close each open head in turn on a sample of sentences.

        Returns:
            EFFECTS and their standard errors over sentences, (L, A) each and NaN for closed or removed heads, and the
            number of sentences of the sample.
        """
        number = min(self.options.closing, len(self.reading.sentences))
        sentence_rows = np.random.default_rng([self.request.seed, 61]).permutation(len(self.reading.sentences))[:number]
        sample = [self.reading.sentences[row] for row in sorted(sentence_rows)]
        values: dict[tuple[int, int], list[NDArray[np.float64]]] = {}  # (layer, head) → (4, B) of each batch
        gates = torch.from_numpy(gate_grid(self.subject)).float().to(self.request.device)
        for _, batch in batches(self.subject.encoder, sample, self.request.device):
            hidden = observe(self.subject.encoder, batch, self.subject.gates, {"hidden"}).hidden
            mask = batch.attention_mask.bool()
            before = [_smoothness(state, mask) for state in hidden]
            for layer, head in (gates > OPEN_ABOVE).nonzero().tolist():
                gates_without_head = gates.clone()
                gates_without_head[layer, head] = 0
                closed = observe(self.subject.encoder, batch, gates_without_head, {"hidden"}).hidden
                after = before[layer + 1] - _smoothness(closed[layer + 1], mask)
                last = before[-1] - _smoothness(closed[-1], mask)
                values.setdefault((layer, head), []).append(
                    torch.stack([after[0], last[0], after[1], last[1]]).cpu().numpy()
                )
            self.request.on_batch()
        names = [*EFFECTS, *(f"{name}_se" for name in EFFECTS)]
        grids = {name: np.full((self.layers, self.heads), np.nan) for name in names}
        for head, parts in values.items():
            rows = np.concatenate(parts, axis=1)  # (4, sentences)
            for name, row in zip(EFFECTS, rows, strict=True):
                grids[name][head] = row.mean()
                grids[f"{name}_se"][head] = row.std(ddof=1) / np.sqrt(len(row)) if len(row) > 1 else np.nan
        return grids, number


def _joined(observation: Observation) -> list[Tensor]:
    """Return the hidden states after each layer, without the embeddings, as a fusion reads them."""
    return [*observation.hidden[1:-1], observation.last]


def _smoothness(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return log d_M and CosSim of each sentence, (2, B)."""
    vectors = hidden.double()
    return torch.stack([maths.distance(vectors, mask).log(), maths.cosine(vectors, mask)])


def _measured(layer: int, **values: float) -> Iterator[dict[str, Any]]:
    """Yield one row of the frame ``layers`` for each value."""
    yield from ({"layer": layer, "measure": name, "value": value} for name, value in values.items())


def _sigma(products: NDArray[np.float64], after: NDArray[np.float64]) -> Iterator[dict[str, Any]]:
    """Yield rows that summarise σ₁σ₂ and its correlation with CosSim over sentences; both arguments are (S, L)."""
    for layer, (product, cosine) in enumerate(zip(products.T, after.T, strict=True), 1):
        above, least = float((product > 1).mean()), float(product.min())
        yield from ({"layer": layer, **row} for row in quantile_rows("product", product))
        yield from _measured(layer, above_one=above, least=least, spearman=spearman(product, cosine))


def _points(products: NDArray[np.float64], after: NDArray[np.float64]) -> pd.DataFrame:
    """Return σ₁σ₂ and CosSim of up to _POINTS sentences, evenly spaced in the corpus and the same in each layer."""
    rows = np.linspace(0, len(products) - 1, min(_POINTS, len(products))).round().astype(int)
    layers = np.repeat(np.arange(1, products.shape[1] + 1), len(rows))
    return pd.DataFrame(
        {"layer": layers, "product": products[rows].T.ravel().round(4), "cosine": after[rows].T.ravel().round(4)}
    )
