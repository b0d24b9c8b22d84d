"""Measure the degeneration of encoders and runs on a corpus, batch by batch (``analyze degeneration``).

    result = measure(Request(["minilm", "runs/pos"], Path("data/ewt5"), DegenerationOptions()))

The first pass accumulates moments of hidden states and head outputs over all words, and stores the vectors of a sample
of words, which are the same for every encoder. The second pass decomposes the mean vector. Words are means of their
sub-words, without [CLS] and [SEP].

The mean vector m of a layer is the mean of i + h + f + c (Mickus et al. 2022, vectors/dissection), so its parts are the
means of the four terms. The share μ(m, part) = m · part / ‖m‖² measures how much of m's length a part contributes.
Shares sum to 1 and may be negative.

Letters for shapes: V sub-words of the vocabulary, L layers, A heads of a layer, n heads that a layer has now, d values
of a head, D features, H hidden size.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.harness.reading import (
    ProbeError,
    Reading,
    Subject,
    SubjectResult,
    find_sources,
    gate_grid,
    read_request,
    survey,
)
from mtlprune.analyses.heads.claims.groups import GROUPS, Groups, compared, groups_of
from mtlprune.analyses.vectors.degeneration import DegenerationOptions, maths
from mtlprune.analyses.vectors.degeneration.labels import Frequencies, decoders, drawing_frames, pairs
from mtlprune.analyses.vectors.degeneration.maths import Moments
from mtlprune.analyses.vectors.degeneration.pieces import (
    Softmax,
    by_frequency,
    count_pieces,
    drift,
    first_checkpoint,
    read_vectors,
)
from mtlprune.analyses.vectors.dissection import maths as dissection
from mtlprune.analyses.vectors.dissection.maths import refusal, trace
from mtlprune.corpora.store import load_corpus
from mtlprune.encoder.model import Encoder, input_embeddings
from mtlprune.encoder.pieces import EncoderError
from mtlprune.evaluation.head_masks import OPEN_ABOVE
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.results import Part, Result, head_rows, joined, long_frame
from mtlprune.statistics.standard_errors import Floats
from mtlprune.statistics.twonn import likelihood
from mtlprune.training.cosreg import mean_cosine

HEAD_MEASURES = ("cosine", "isoscore", "rank_share", "top1", "angle", "dimension", "margin")
"""Measures of the outputs of each head in the frame ``heads``."""
TERMS = ("input", "heads", "feed_forward", "correction")
"""Names of the four terms of a vector, in the order of ``dissection.TERMS``."""
_POINTS = 250
"""Largest number of rows whose projection is stored for the figure."""


def measure(request: Request) -> Result:
    """Measure all subjects, the decoders of runs, and heads by claims.

    The Result has these frames, in which layers and heads count from 1 and layer 0 is the output of the embeddings:

    - ``embeddings`` and ``layers``: ``maths.cloud`` of the matrix of token embeddings and of hidden states. For layers
      also ``share_TERM``, μ(m, mean of the TERM) with the mean vector m of the same layer, and ``maths.plane`` of the
      last LayerNorm in the layer. For embeddings also ``spearman``, the correlation of the cosine to the mean row with
      frequency. Static vectors have rows in ``embeddings`` only.
    - ``pieces``: for each ``term`` (range of the frequency of pieces in training), the results of ``by_frequency``,
      ``drift`` and ``Softmax.measures``.
    - ``sample``, with one column for each measure: frequency, cosine and norm of the pieces that the figure shows.
    - ``softmax``, for masked language models: ``loss``, and R, margin and plane of the input of the softmax.
    - ``heads``: ``gate``, HEAD_MEASURES (NaN for removed and closed heads) and ``cone``, the share μ that the head
      contributes to the m of the last layer (0 for removed and closed heads). The values of ``cone`` sum to
      ``share_heads`` of the last layer.
    - ``decoders``: ``labels.matrix`` and ``labels.slope`` for each task.
    - ``labels``, with one column for each measure: ``labels.table`` for each task and label, the number of ``gold``
      items in the sentences, and ``f1`` in percent (NaN for labels that are not scored separately: the class of items
      without a label, and joined and auxiliary labels of constituents).
    - ``pairs``: ``labels.pairs``.
    - ``spectra`` and ``points``: drawings of the ``term`` "embeddings", "last" (layer) or, for each task, "labels".
    - ``groups``: for each ``term`` (stem, ...), the mean of HEAD_MEASURES over its heads of all layers, and the sum of
      ``cone``; for the term "others" only the sum.
    - ``claims``, ``tests``: the frames of ``compared``.

    Raises:
        ClaimError: claims cannot be read, or belong to no encoder that is measured.
        EncoderError, RunError: a subject cannot be loaded, or mtlprune does not know where its heads are.
    """
    groups = groups_of(request.claims, find_sources(request.names))
    reading = read_request(request)
    training = _training(request)
    static = [_static(path, training, request) for path in _split_paths(request.options.vectors)]
    result = survey(
        "degeneration", reading, request, lambda subject: DegenerationSurvey(reading, subject, request, training).run()
    ).result
    decoder_parts, notes = _decoders(reading, request)
    permutations = request.options.permutations
    parts: list[Part] = [
        ({}, result.frames),
        *static,
        *decoder_parts,
        ({}, {"pairs": pairs(decoder_parts, permutations, request.seed)}),
    ]
    parts += _by_group(groups, result)
    about = {**result.about, "notes": [*result.about["notes"], *notes]}
    result = replace(result, about=about, frames=joined(parts))
    return compared(result, groups, HEAD_MEASURES, request.seed, salt=75, permutations=permutations, gates=True)


_MomentsAndRows = tuple[Moments, Tensor]
"""Moments of all words, and the stored vectors of the words of a sample."""


class DegenerationSurvey:
    """The forward passes of this analysis over one subject (an encoder with its gates)."""

    def __init__(
        self, reading: Reading, subject: Subject, request: Request, training: Sequence[Sequence[str]] = ()
    ) -> None:
        self.reading, self.subject, self.request, self.training = reading, subject, request, training
        self.options: DegenerationOptions = request.options
        self.sample = maths.draw([len(sentence) for sentence in reading.sentences], self.options.rows, request.seed)

    def run(self) -> SubjectResult:
        """Run all passes and return the frames of this subject, with notes on measures that are not defined for it."""
        subject, encoder = self.subject, self.subject.encoder
        table = input_embeddings(encoder.transformer).weight.detach().double().cpu()
        moments, rows = _sampled(table, self.request)
        points = {"embeddings": (moments, rows)}
        frames, correlation, piece_notes = self._pieces(table)
        frames["embeddings"] = long_frame([maths.cloud(moments, rows) | correlation])
        notes = []
        if not encoder.context:
            notes.append(f"{subject.label} ({subject.name}) has no layers; only its token embeddings are measured.")
        else:
            hidden, outputs = self._observe()
            points["last"] = hidden[-1][0], hidden[-1][1][self.sample.rows].double()
            layers = [
                {"layer": layer, **maths.cloud(moments, words[self.sample.rows], words[self.sample.one_a_sentence])}
                for layer, (moments, words) in enumerate(hidden)
            ]
            heads = self._heads(outputs)
            if why := refusal(encoder):
                why = f"{why}, so the parts of its mean vector are not known"
                notes.append(f"{subject.label} ({subject.name}): {why}.")
            else:
                shares, heads["cone"], norms = take_apart(subject, self.reading, hidden[-1][0].mean(), self.request)
                layers = [row | layer_shares for row, layer_shares in zip(layers, shares, strict=True)]
                for layer, norm, (_, words) in zip(layers[1:], norms, hidden[1:], strict=True):
                    layer |= maths.plane(norm.gain, norm.bias, words[self.sample.rows])
            frames |= {"layers": long_frame(layers, "layer"), "heads": head_rows(heads)}
        return SubjectResult({**frames, **_drawing_frames(points)}, notes=[*notes, *piece_notes])

    def _pieces(self, table: Tensor) -> tuple[dict[str, pd.DataFrame], dict[str, float], list[str]]:
        """Compare the embeddings of frequent and rare pieces.

        Returns:
            The frames ``pieces``, ``sample`` and ``softmax``, as far as they apply; the measure ``spearman`` of the
            frame ``embeddings``, if pieces were counted; and notes.
        """
        subject, encoder = self.subject, self.subject.encoder
        frames: dict[str, pd.DataFrame] = {}
        piece_measures: dict[str, Tensor] = {}
        correlation: dict[str, float] = {}
        notes, softmax = [], None
        is_run = RunFolder(subject.name).has("config.yaml")  # the encoder of a run is stored without a prediction head
        if encoder.context and encoder.tokenizer.mask_token_id is not None and not is_run:
            batches = (batch for _, batch in self.reading.batches(subject, self.request.device))
            try:
                softmax = Softmax.of(subject.name, encoder.tokenizer.mask_token_id, batches, self.request.device)
            except EncoderError as error:
                notes.append(f"The softmax over pieces is not measured: {error}.")
        if softmax is not None:
            piece_measures |= softmax.measures(table)
            states = softmax.states[:: -(-len(softmax.states) // self.options.rows)]
            measures = {"loss": float(softmax.losses.mean()), "mean_cosine": float(mean_cosine(softmax.states))}
            frames["softmax"] = long_frame([measures | {"margin": maths.margin(states), **softmax.plane}])
        if (first := first_checkpoint(subject.name)) is not None:
            initial = input_embeddings(Encoder.load(str(first)).transformer).weight.detach().double()
            piece_measures |= drift(table, initial, None if softmax is None else softmax.states)
        if self.training:
            names = encoder.tokenizer.convert_ids_to_tokens(list(range(len(table))))
            banded, correlation["spearman"] = by_frequency(
                table, names, count_pieces(encoder, self.training), piece_measures
            )
            frames |= banded
        return frames, correlation, notes

    def _observe(self) -> tuple[list[_MomentsAndRows], list[_MomentsAndRows]]:
        """Return moments and stored vectors of L + 1 hidden states, (H,) each, and of the heads of L layers, (n, d)."""
        observed: list[_MomentsAndRows] = []
        for rows, observation in self.reading.observations(self.subject, {"hidden", "heads"}, self.request):
            word_rows, slots = self.sample.of(rows)
            states = [*observation.hidden, *observation.heads]
            observed = observed or [
                (Moments(*state.shape[2:]), torch.zeros(len(self.sample.stored_words), *state.shape[2:]))
                for state in states
            ]
            for (moments, stored_rows), state in zip(observed, states, strict=True):
                if state.shape[2]:
                    words = observation.word_vectors(state)
                    moments.add(words)
                    stored_rows[slots] = words[word_rows].float().cpu()
        return observed[: len(observation.hidden)], observed[len(observation.hidden) :]

    def _heads(self, observed: list[_MomentsAndRows]) -> dict[str, Floats]:
        """Return ``gate`` and HEAD_MEASURES, (L, A) each, from the moments and vectors of the heads of each layer."""
        gate = gate_grid(self.subject)
        grids = {name: np.full(gate.shape, np.nan) for name in HEAD_MEASURES}
        for layer, kept_heads in enumerate(map(list, self.subject.encoder.head_hooks.kept_heads)):
            if not kept_heads:
                continue
            moments, words = observed[layer]
            columns = {
                "cosine": moments.cosine(),
                "isoscore": moments.isoscore(),
                "rank_share": moments.effective_rank_share(),
                "top1": maths.top_share(moments.spectrum(), 1),
            }
            for name, values in columns.items():
                grids[name][layer, kept_heads] = values.numpy()
            for place, head in enumerate(kept_heads):
                if gate[layer, head] > OPEN_ABOVE:
                    rows = words[self.sample.rows, place].double()
                    grids["angle"][layer, head] = float(maths.angles_to_mean(rows).median())
                    grids["dimension"][layer, head] = likelihood(words[self.sample.one_a_sentence, place].double())
                    grids["margin"][layer, head] = maths.margin(rows)
        return {"gate": gate} | {name: np.where(gate > OPEN_ABOVE, values, np.nan) for name, values in grids.items()}


_Decomposition = tuple[list[dict[str, float]], Floats, list[dissection.Norm]]
"""Decomposition of mean vectors: shares ``share_TERM`` of each layer, shares of heads, and LayerNorms.

The list of shares has L + 1 entries and starts with the output of the embeddings. The shares of heads, (L, A), are
those in the mean vector of the last layer. The list of LayerNorms has the last LayerNorm of each of L layers.
"""


def take_apart(subject: Subject, reading: Reading, mean: Tensor, request: Request) -> _Decomposition:
    """Decompose the mean vectors of an encoder in one pass over the sentences.

    Args:
        subject: a subject whose encoder dissection can decompose (``refusal`` returns None).
        mean: (H,), mean of the last layer's word vectors over the same sentences.
    """
    hooks, width = subject.encoder.head_hooks, subject.encoder.hidden_size
    sums = torch.zeros(hooks.layers + 1, 4, width, dtype=torch.float64)
    heads = torch.zeros(hooks.layers, hooks.heads, dtype=torch.float64)
    words, norms = 0, list[dissection.Norm]()
    for _, batch in reading.batches(subject, request.device):
        trace_of_batch, hidden, tokens = trace(subject.encoder, batch, subject.gates)
        pieces = torch.searchsorted(tokens, batch.piece_slot)
        # With these weights the sum over sub-words is a sum over words, which are means of their sub-words.
        weight = (1.0 / batch.piece_counts.double())[batch.piece_word]  # (pieces,)
        for place, stack in enumerate(dissection.terms(trace_of_batch)):
            sums[place] += torch.einsum("knh,n->kh", stack[:, pieces].double(), weight).cpu()
        shares = dissection.head_importance(trace_of_batch, mean.to(hidden[-1]).expand_as(hidden[-1]))
        for row, (layer, share) in enumerate(zip(trace_of_batch.layers, shares, strict=True)):
            # share: (tokens, n), m · term of a head / ‖m‖²
            heads[row, list(layer.numbers)] += weight.cpu() @ share[pieces].double().cpu()
        words += sum(batch.sizes)
        norms = [layer.norms[1] for layer in trace_of_batch.layers]
        request.on_batch()
    means = sums.sum(1) / words  # (L + 1, H)
    terms = torch.einsum("lkh,lh->lk", sums / words, means) / means.square().sum(1, keepdim=True)
    layers = [{f"share_{term}": share for term, share in zip(TERMS, row, strict=True)} for row in terms.tolist()]
    return layers, (heads / words).numpy(), norms


# -- tables of embeddings, and words of static vectors -----------------------------------------------------------------


def _split_paths(paths: str) -> list[Path]:
    """Split a setting that lists paths with commas between."""
    return [Path(path.strip()) for path in paths.split(",") if path.strip()]


def _training(request: Request) -> list[tuple[str, ...]]:
    """Return the words of the training sentences in which pieces are counted.

    The list is empty if ``counted`` names no corpus and the corpus of the request has no split train.

    Raises:
        ProbeError: a corpus that ``counted`` names has no split train.
    """
    paths_named = _split_paths(request.options.counted)
    corpora = [load_corpus(path) for path in paths_named or [request.corpus]]
    for corpus in corpora:
        if "train" not in corpus.splits and paths_named:
            raise ProbeError(
                "counted: expected corpora with a split train, in which pieces are counted, found none in "
                f"{corpus.path}; leave it out"
            )
    return [sentence.words for corpus in corpora if "train" in corpus.splits for sentence in corpus["train"]]


def _static(path: Path, training: Sequence[Sequence[str]], request: Request) -> Part:
    """Measure a file of static vectors in the same way as the token embeddings of an encoder.

    Raises:
        ProbeError: the file is not in the text format of word2vec.
    """
    names, table = read_vectors(path)
    moments, rows = _sampled(table, request)
    frames: dict[str, pd.DataFrame] = {}
    correlation: dict[str, float] = {}
    if training:
        counter = Counter(word for words in training for word in words)
        frames, correlation["spearman"] = by_frequency(table, names, np.array([counter[name] for name in names]), {})
    frames |= {
        "embeddings": long_frame([maths.cloud(moments, rows) | correlation]),
        **_drawing_frames({"embeddings": (moments, rows)}),
    }
    return {"encoder": path.stem, "run": str(path), "seed": 0}, frames


def _sampled(table: Tensor, request: Request) -> _MomentsAndRows:
    """Return the moments of a table (V, D), and a random sample of its rows."""
    moments = Moments(table.shape[1])
    moments.add(table)
    sampled_rows = np.random.default_rng([request.seed, 72]).permutation(len(table))[: request.options.rows]
    return moments, table[np.sort(sampled_rows)]


def _drawing_frames(points: Mapping[str, _MomentsAndRows]) -> dict[str, pd.DataFrame]:
    """Return the frames ``spectra`` and ``points`` of each cloud.

    The projected points are every k-th row, which spans all frequencies because tables are sorted by frequency.
    """
    return joined(
        (
            {},
            drawing_frames(
                moments.spectrum(), maths.projection(rows[:: -(-len(rows) // _POINTS)], moments.second), term
            ),
        )
        for term, (moments, rows) in points.items()
    )


def _by_group(groups: Groups | None, result: Result) -> Iterator[Part]:
    """Yield HEAD_MEASURES (means) and ``cone`` (sum) over the heads of each group; for "others" only ``cone``."""
    for entry in result.about["encoders"]:
        if groups is None or not groups.fit(entry):
            continue
        heads = result.grids(entry)
        cone = heads.get("cone", np.full(groups.counts.shape, np.nan))
        members = {name: groups.of(name) for name in GROUPS}
        rows: list[dict[str, Any]] = [
            {"term": name, "cone": cone[member].sum()}
            | {measure: pd.Series(heads[measure][member]).mean() for measure in HEAD_MEASURES}
            for name, member in members.items()
        ]
        rows.append({"term": "others", "cone": cone[~np.any([*members.values()], axis=0)].sum()})
        keys = {key: entry[key] for key in ("encoder", "run", "seed")}
        yield keys, {"groups": long_frame(rows, "term").dropna()}


def _decoders(reading: Reading, request: Request) -> tuple[list[Part], list[str]]:
    """Return the frames of the decoders of all runs, and notes."""
    frequencies = Frequencies(request.corpus, reading.fingerprint)
    parts: list[Part] = []
    notes: list[str] = []
    for source in reading.sources:
        if source.run:
            request.on_status(f"decoders of {source.label}, seed {source.seed}")
            parts_of_run, more = decoders(source, reading.sentences, frequencies, request)
            parts += parts_of_run
            notes += more
    if not parts and not notes:
        notes.append("Only encoders were named, so there are no label weights, which only runs have.")
    return parts, notes
