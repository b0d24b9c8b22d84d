"""Degeneration of encoders and runs, read off the sentences of a corpus batch by batch.

    result = measure(Request(["minilm", "runs/pos"], Path("data/ewt5"), DegenerationOptions()))

A first pass gathers moments of hidden states and head outputs over all words, and keeps the vectors of a sample, the
same words for every encoder. A second one takes the mean vector apart. Words are means of their sub-words, [CLS] and
[SEP] left out.

The mean vector m of a layer is the mean of i + h + f + c (Mickus et al. 2022, vectors/dissection), so its parts are
the means of the terms; μ(m, part) = m · part / ‖m‖² says how much of m's length a part gives. Shares sum to 1 and may
be negative.

Letters for shapes: L layers, A heads a layer, n heads it has now, d values a head has, H hidden size.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
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
from mtlprune.statistics.twonn import likelihood
from mtlprune.training.cosreg import mean_cosine

Floats = NDArray[np.float64]
HEAD_MEASURES = ("cosine", "isoscore", "rank_share", "top1", "angle", "dimension", "margin")
TERMS = ("input", "heads", "feed_forward", "correction")
POINTS = 250
"""Rows whose projection is kept, for the figure."""


def measure(request: Request) -> Result:
    """All subjects, the decoders of runs, and heads by claims. Frames, layers and heads from 1 (layer 0: the
    embeddings' output):

    - ``embeddings`` and ``layers``: ``maths.cloud`` of the matrix of token embeddings and of hidden states; of layers
      also ``share_TERM``, μ(m, mean of the TERM) of the layer's own mean m, and ``maths.plane`` of its last
      LayerNorm; of embeddings ``spearman``, the correlation of cosine to the mean row and frequency. Static vectors
      have embeddings.
    - ``pieces`` by ``term``, how often pieces occur in training, and wide ``sample``: of ``by_frequency``, ``drift``
      and ``Softmax.measures``. ``softmax`` of masked language models: ``loss``, and R, margin and plane of its input.
    - ``heads``: ``gate``, HEAD_MEASURES (NaN where there is no such head, or it is closed) and ``cone``, what the head
      gives to the last layer's m; sums to the last ``share_heads``, 0 for heads that are closed or gone.
    - ``decoders``: by task ``labels.matrix`` and ``labels.slope``.
    - ``labels``, wide: by task and label ``labels.table``; ``gold`` items in the sentences read and ``f1`` in percent
      (NaN where a label has no score of its own: NONE, joined and auxiliary labels of constituents).
    - ``pairs``, wide: of ``labels.pairs``.
    - ``spectra`` and ``points``, wide, of the ``term`` "embeddings", "last" or, by task, "labels".
    - ``groups``: by ``term`` (stem, ...) means of HEAD_MEASURES over heads, whatever their layers; the sum of ``cone``.
    - ``claims``, ``tests``: of ``compared``.

    Raises:
        ClaimError: claims that cannot be read, or that are of no encoder that is measured.
        EncoderError, RunError: a subject cannot be loaded, or its heads are not known.
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
"""Moments of all words, and the vectors of those of the sample that are kept."""


class DegenerationSurvey:
    """The passes over one subject."""

    def __init__(
        self, reading: Reading, subject: Subject, request: Request, training: Sequence[Sequence[str]] = ()
    ) -> None:
        self.reading, self.subject, self.request, self.training = reading, subject, request, training
        self.options: DegenerationOptions = request.options
        self.sample = maths.draw([len(sentence) for sentence in reading.sentences], self.options.rows, request.seed)

    def run(self) -> SubjectResult:
        """All passes."""
        subject, encoder = self.subject, self.subject.encoder
        table = input_embeddings(encoder.transformer).weight.detach().double().cpu()
        moments, rows = _sampled(table, self.request)
        points = {"embeddings": (moments, rows)}
        frames, rising, more_notes = self._pieces(table)
        frames["embeddings"] = long_frame([maths.cloud(moments, rows) | rising])
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
                more, heads["cone"], norms = take_apart(subject, self.reading, hidden[-1][0].mean(), self.request)
                layers = [row | shares for row, shares in zip(layers, more, strict=True)]
                for layer, norm, (_, words) in zip(layers[1:], norms, hidden[1:], strict=True):
                    layer |= maths.plane(norm.gain, norm.bias, words[self.sample.rows])
            frames |= {"layers": long_frame(layers, "layer"), "heads": head_rows(heads)}
        return SubjectResult({**frames, **_drawing_frames(points)}, notes=[*notes, *more_notes])

    def _pieces(self, table: Tensor) -> tuple[dict[str, pd.DataFrame], dict[str, float], list[str]]:
        """Frames ``pieces``, ``sample`` and ``softmax``, a measure of ``embeddings`` that needs counts, and notes."""
        subject, encoder = self.subject, self.subject.encoder
        frames: dict[str, pd.DataFrame] = {}
        more: dict[str, Tensor] = {}
        rising: dict[str, float] = {}
        notes, softmax = [], None
        is_run = RunFolder(subject.name).has("config.yaml")  # runs keep their encoder without a head
        if encoder.context and encoder.tokenizer.mask_token_id is not None and not is_run:
            batches = (batch for _, batch in self.reading.batches(subject, self.request.device))
            try:
                softmax = Softmax.of(subject.name, encoder.tokenizer.mask_token_id, batches, self.request.device)
            except EncoderError as error:
                notes.append(f"The softmax over pieces is not measured: {error}.")
        if softmax is not None:
            more |= softmax.measures(table)
            states = softmax.states[:: -(-len(softmax.states) // self.options.rows)]
            measures = {"loss": float(softmax.losses.mean()), "mean_cosine": float(mean_cosine(softmax.states))}
            frames["softmax"] = long_frame([measures | {"margin": maths.margin(states), **softmax.plane}])
        if (first := first_checkpoint(subject.name)) is not None:
            initial = input_embeddings(Encoder.load(str(first)).transformer).weight.detach().double()
            more |= drift(table, initial, None if softmax is None else softmax.states)
        if self.training:
            names = encoder.tokenizer.convert_ids_to_tokens(list(range(len(table))))
            banded, rising["spearman"] = by_frequency(table, names, count_pieces(encoder, self.training), more)
            frames |= banded
        return frames, rising, notes

    def _observe(self) -> tuple[list[_MomentsAndRows], list[_MomentsAndRows]]:
        """Moments and kept vectors of L + 1 hidden states, (H,) each, and of the heads of L layers, (n, d) each."""
        observed: list[_MomentsAndRows] = []
        for rows, observation in self.reading.observations(self.subject, {"hidden", "heads"}, self.request):
            here, slots = self.sample.of(rows)
            states = [*observation.hidden, *observation.heads]
            observed = observed or [
                (Moments(*state.shape[2:]), torch.zeros(len(self.sample.stored_words), *state.shape[2:]))
                for state in states
            ]
            for (moments, stored_rows), state in zip(observed, states, strict=True):
                if state.shape[2]:
                    words = observation.word_vectors(state)
                    moments.add(words)
                    stored_rows[slots] = words[here].float().cpu()
        return observed[: len(observation.hidden)], observed[len(observation.hidden) :]

    def _heads(self, observed: list[_MomentsAndRows]) -> dict[str, Floats]:
        """``gate`` and HEAD_MEASURES."""
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
"""L + 1 times ``share_...``, the embeddings' output first; (L, A), μ(m, mean of a head's slot), m the last layer's; the
last LayerNorm of each of L layers."""


def take_apart(subject: Subject, reading: Reading, mean: Tensor, request: Request) -> _Decomposition:
    """One pass over the sentences with an encoder that dissection does not refuse: where its mean vectors come from.
    ``mean``: (H,), of the last layer's word vectors over the same sentences."""
    places, width = subject.encoder.head_hooks, subject.encoder.hidden_size
    sums = torch.zeros(places.layers + 1, 4, width, dtype=torch.float64)
    heads = torch.zeros(places.layers, places.heads, dtype=torch.float64)
    words, norms = 0, list[dissection.Norm]()
    for _, batch in reading.batches(subject, request.device):
        trace_of_batch, hidden, tokens = trace(subject.encoder, batch, subject.gates)
        pieces = torch.searchsorted(tokens, batch.piece_slot)
        weight = (1.0 / batch.piece_counts.double())[batch.piece_word]  # (pieces,)
        for place, stack in enumerate(dissection.terms(trace_of_batch)):
            sums[place] += torch.einsum("knh,n->kh", stack[:, pieces].double(), weight).cpu()
        shares = dissection.head_importance(trace_of_batch, mean.to(hidden[-1]).expand_as(hidden[-1]))
        for row, (layer, share) in enumerate(
            zip(trace_of_batch.layers, shares, strict=True)
        ):  # m · slot / ‖m‖²: (tokens, n)
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
    return [Path(path.strip()) for path in paths.split(",") if path.strip()]


def _training(request: Request) -> list[tuple[str, ...]]:
    """The words of the training sentences in which pieces are counted; none where nothing is asked for and the corpus
    has no split train. Raises ProbeError: a corpus that is named has none."""
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
    """Static vectors measured as a table of embeddings is. Raises ProbeError: a file that is none of word2vec."""
    names, table = read_vectors(path)
    moments, rows = _sampled(table, request)
    frames: dict[str, pd.DataFrame] = {}
    rising: dict[str, float] = {}
    if training:
        counter = Counter(word for words in training for word in words)
        frames, rising["spearman"] = by_frequency(table, names, np.array([counter[name] for name in names]), {})
    frames |= {
        "embeddings": long_frame([maths.cloud(moments, rows) | rising]),
        **_drawing_frames({"embeddings": (moments, rows)}),
    }
    return {"encoder": path.stem, "run": str(path), "seed": 0}, frames


def _sampled(table: Tensor, request: Request) -> _MomentsAndRows:
    """Moments of a table (V, D), and rows that are drawn of it."""
    moments = Moments(table.shape[1])
    moments.add(table)
    sampled_rows = np.random.default_rng([request.seed, 72]).permutation(len(table))[: request.options.rows]
    return moments, table[np.sort(sampled_rows)]


def _drawing_frames(points: Mapping[str, _MomentsAndRows]) -> dict[str, pd.DataFrame]:
    """``spectra`` and ``points`` by ``term``; points of every k-th row, for tables are sorted by frequency."""
    return joined(
        (
            {},
            drawing_frames(
                moments.spectrum(), maths.projection(rows[:: -(-len(rows) // POINTS)], moments.second), term
            ),
        )
        for term, (moments, rows) in points.items()
    )


def _by_group(groups: Groups | None, result: Result) -> Iterator[Part]:
    """Means of HEAD_MEASURES over the heads of each group, and the sum of ``cone``; of "others" that alone."""
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
    """The parts of all runs' decoders, and notes."""
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
