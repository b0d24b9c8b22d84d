"""Measurement of ``analyze probes``: probe all heads, labels and tasks of encoders and runs, with one forward pass over
each split (two over test in the mode ``as-released``).

In the mode ``sound``, centroids come from train, the head of a label is chosen on dev, and accuracies are those on
test. In the mode ``as-released`` (He and Choi 2021, released code), all three use the same test items. No vectors are
kept beyond a batch, only sums and one bit for each item and head.

Letters for shapes: U items, K labels, L layers, A heads of a layer in the original encoder, H heads of all layers that
were not removed, d values of a head's output, D offsets.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.harness.reading import (
    ProbeError,
    Source,
    Subject,
    entry,
    find_sources,
    remarks,
    too_long,
)
from mtlprune.analyses.probes import (
    AS_RELEASED,
    ATTENTION,
    CENTROID,
    CHANCE,
    MODES,
    OFFSET,
    RANDOM,
    RESULT,
    SHUFFLED,
    SOUND,
    TRUE_LABELS,
    labels_of,
)
from mtlprune.analyses.probes.items import Items, chance, offset_hits, read_items
from mtlprune.analyses.probes.maths import (
    AttendedPositions,
    Centroids,
    arcs_found,
    arguments_found,
    best_heads,
    by_label,
    choose,
    head_vectors,
    nearest_found,
    paired_interval,
    unit_vectors,
)
from mtlprune.analyses.probes.published import read_published
from mtlprune.corpora.store import Corpus, load_corpus
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import Observation, observations
from mtlprune.evaluation.head_masks import OPEN_ABOVE
from mtlprune.runs.results import Result
from mtlprune.sentence import Sentence

Grid = NDArray[np.float64]  # (K, L, A)
_Learnt = dict[tuple[str, str], Centroids]  # (task, labelling) → centroids
COLUMNS = [*RESULT, "control", "label", "items", "layer", "head", "dev", "test", "best", "distance"]

# -- forward passes over one encoder -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Data:
    """The sentences of all splits that fit into one window of every encoder, and their items.

    Attributes:
        sentences: split → sentences.
        items: split → items of each task.
    """

    sentences: dict[str, list[Sentence]]
    items: dict[str, list[Items]]


@dataclass(frozen=True, eq=False)
class Findings:
    """The accuracies of all heads of one encoder.

    Attributes:
        dev, test: (mode, labelling, task) → accuracies (K, L, A) in percent. ``dev`` are the accuracies by which heads
            are chosen, and ``test`` those that are reported. The labelling is ``none`` or ``shuffled_labels``. Labels
            without items, and heads that are closed or removed, have NaN.
        bits: (mode, task) → for each test item, which of the L · A heads find it, packed into bits. (U, bytes)
    """

    dev: dict[tuple[str, str, str], Grid]
    test: dict[tuple[str, str, str], Grid]
    bits: dict[tuple[str, str], NDArray[np.uint8]]

    def hits(self, mode: str, task: str, layer: int, head: int) -> NDArray[np.bool_]:
        """Return which test items a head finds, (U,). Layer and head are counted from 0."""
        heads = self.test[mode, TRUE_LABELS, task].shape[2]
        byte, bit = divmod(layer * heads + head, 8)
        # np.packbits puts the first head of a byte into the highest bit.
        return (self.bits[mode, task][:, byte] >> (7 - bit) & 1).astype(bool)


class ProbeSurvey:
    """The forward passes over one encoder, which measure the accuracies of all its heads.

    Args:
        encoder: encoder in evaluation mode, with eager attention.
        gates: (L, A), gates that multiply the outputs of the heads; None for no gates.
        on_batch: called after every batch with the number of sentences of the batch.
    """

    def __init__(
        self, encoder: Encoder, gates: Tensor | None = None, on_batch: Callable[[int], None] = lambda sentences: None
    ) -> None:
        self.encoder, self.gates, self.on_batch = encoder, gates, on_batch
        hooks = encoder.head_hooks
        self.shape = hooks.layers, hooks.heads
        self.bytes = -(-hooks.layers * hooks.heads // 8)
        self.width, self.count = hooks.width, sum(map(len, hooks.kept_heads))
        present = np.array(
            [layer * hooks.heads + h for layer, kept_heads in enumerate(hooks.kept_heads) for h in kept_heads],
            np.int64,
        )
        self.present = present  # (H,), index layer · A + head of each head that was not removed
        self.open = (
            np.ones(self.count, bool) if gates is None else gates.cpu().numpy().reshape(-1)[present] > OPEN_ABOVE
        )

    def run(self, data: Data, modes: Sequence[str] = MODES) -> Findings:
        """Probe all tasks in some modes. The mode ``sound`` needs the splits train, dev and test, and ``as-released``
        only test."""
        learnt = {mode: self.learn(data, "train" if mode == SOUND else "test") for mode in modes}
        test, bits = self.score(data, "test", learnt)
        dev = {key: grid for key, grid in test.items() if key[0] == AS_RELEASED}
        if SOUND in modes:
            dev |= self.score(data, "dev", {SOUND: learnt[SOUND]}, keep=False)[0]
        return Findings(dev, test, bits)

    def learn(self, data: Data, split: str) -> _Learnt:
        """Compute the centroids of all tasks, with true and with shuffled labels, in one pass over a split."""
        centroids = {
            (items.task, labelling): Centroids(len(items.labels), self.count, self.width, self._device)
            for items in data.items[split]
            if items.kind in CENTROID
            for labelling in (TRUE_LABELS, SHUFFLED)
        }
        for rows, observation in self.observations(data.sentences[split], ("heads",)):
            words = head_vectors(observation)
            for items in data.items[split]:
                if items.kind in CENTROID:
                    item_rows, units = self._units(words, observation, items, rows)
                    for labelling in (TRUE_LABELS, SHUFFLED):
                        centroids[items.task, labelling].add(units, self._labels(items, labelling, item_rows))
        return centroids

    def score(
        self, data: Data, split: str, learnt: dict[str, _Learnt], keep: bool = True
    ) -> tuple[dict[tuple[str, str, str], Grid], dict[tuple[str, str], NDArray[np.uint8]]]:
        """Compute the accuracies of all heads in one pass over a split.

        Args:
            data: sentences and items.
            split: name of the split.
            learnt: mode → centroids. Attention probes use no centroids, so their results are the same in all modes.
            keep: whether to return the hits of every item.

        Returns:
            the accuracies and the bits, in the form of the attributes ``test`` and ``bits`` of Findings. The bits are
            empty without ``keep``.
        """
        counts: dict[tuple[str, str, str], Tensor] = {}
        bits: dict[tuple[str, str], NDArray[np.uint8]] = {}
        directions = {
            (mode, *key): (centroids.directions(), centroids.is_known)
            for mode, by_key in learnt.items()
            for key, centroids in by_key.items()
        }
        for rows, observation in self.observations(data.sentences[split], ("attention", "heads")):
            choices, words = choose(observation), head_vectors(observation)
            for items in data.items[split]:
                attended = items.kind in ATTENTION
                if attended:
                    item_rows, hits = self._attended(choices, items, rows)
                else:
                    item_rows, units = self._units(words, observation, items, rows)
                for mode, labelling in product(learnt, (TRUE_LABELS, SHUFFLED)):
                    key, labels = (mode, labelling, items.task), self._labels(items, labelling, item_rows)
                    if not attended:
                        hits = nearest_found(units, labels, *directions[mode, items.task, labelling])
                    part = by_label(hits, labels, len(items.labels))
                    counts[key] = counts[key] + part if key in counts else part
                    if keep and labelling == TRUE_LABELS:
                        packed = bits.setdefault((mode, items.task), np.zeros((len(items), self.bytes), np.uint8))
                        all_heads = np.zeros((len(hits), self.shape[0] * self.shape[1]), bool)
                        all_heads[:, self.present] = hits.cpu().numpy()
                        packed[item_rows] = np.packbits(all_heads, axis=1)
        tasks = {items.task: items for items in data.items[split]}
        return {key: self._grid(part, tasks[key[2]].counts()) for key, part in counts.items()}, bits

    def observations(
        self, sentences: Sequence[Sentence], want: Sequence[str]
    ) -> Iterator[tuple[list[int], Observation]]:
        """Yield, for each batch, the indices of its sentences and the observed states of the encoder.

        ``want`` names the states, such as ``attention`` and ``heads`` (see :func:`~mtlprune.encoder.observe.observe`).
        """
        pieces = self.encoder.tokenize_all([sentence.words for sentence in sentences])
        for rows, observation in observations(self.encoder, pieces, self.gates, want):
            yield rows, observation
            self.on_batch(len(rows))

    # -- small parts -------------------------------------------------------------------------------------------------

    @property
    def _device(self) -> torch.device:
        return next(self.encoder.parameters()).device

    def _tensor(self, values: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)

    def _labels(self, items: Items, labelling: str, item_rows: NDArray[np.int64]) -> Tensor:
        return self._tensor((items.label if labelling == TRUE_LABELS else items.shuffled)[item_rows])

    def _attended(
        self, choices: AttendedPositions, items: Items, rows: Sequence[int]
    ) -> tuple[NDArray[np.int64], Tensor]:
        """Return the indices of a batch's items, and which heads find them by attention. (U,) and (U, H) bool"""
        item_rows, row = items.of(rows)
        columns = (self._tensor(column) for column in items.columns[item_rows].T)
        finder = arcs_found if items.kind == "tree" else arguments_found
        return item_rows, finder(choices, self._tensor(row), *columns)

    def _units(
        self, words: Tensor, observation: Observation, items: Items, rows: Sequence[int]
    ) -> tuple[NDArray[np.int64], Tensor]:
        """Return the indices of a batch's items, and the mean head outputs over their words. (U,) and (U, H, d)"""
        item_rows, row = items.of(rows)
        start, end = items.columns[item_rows].T
        first = np.cumsum(observation.batch.sizes) - observation.batch.sizes
        return item_rows, unit_vectors(words, self._tensor(first[row] + start), self._tensor(end - start))

    def _grid(self, counts: Tensor, items: NDArray[np.int64]) -> Grid:
        """Convert numbers of hits (K, H) to accuracies in percent (K, L, A). ``items``: (K,), items of each label."""
        grid = np.full((len(items), self.shape[0] * self.shape[1]), np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = 100 * counts.cpu().numpy() / items[:, None]
        grid[:, self.present[self.open]] = shares[:, self.open]
        return grid.reshape(len(items), *self.shape)


# -- the Result of all encoders and runs -------------------------------------------------------------------------------


class _Probed(NamedTuple):
    """The findings for one encoder with its gates, whose label, run and seed are those of its ``Subject``, and the
    findings for the same architecture with random weights (None if this control was not requested)."""

    label: str
    run: str
    seed: int
    findings: Findings
    untrained: Findings | None


def measure(request: Request) -> Result:
    """Probe all encoders and runs of a request.

    Returns:
        the Result, whose frames ``frames.yaml`` describes: ``accuracy``, ``labels``, ``differences`` if the request
        names single-task runs, and ``published`` if it names a table of published numbers.

    Raises:
        ProbeError: encoders and runs that cannot be probed together, or a corpus without the requested splits or
            layers.
        EncoderError, RunError, CorpusError: an encoder, a run or the corpus cannot be loaded.
    """
    options = request.options
    modes = MODES if options.mode == "both" else (options.mode,)
    published = None if options.against is None else read_published(options.against)
    sources, corpus = find_sources(request.names), load_corpus(request.corpus)
    sentences = _read(corpus, modes, options.train_sentences, request.seed)
    data = _fitting(sentences, sources, corpus, request)
    encoders, probed, rows, remarks_made = [], [], [], list[str]()
    controls: dict[Any, Findings] = {}
    first: tuple[str, tuple] = ("", ())
    for number, source in enumerate(sources, 1):
        for subject in source.open(request.device):
            first = first if first[1] else (source.name, subject.size())
            _check_size(source.name, subject, *first)
            subject_title = f"{subject.label}, {number} of {len(sources)}"
            findings = _probe(subject.encoder, subject.gates, request, data, modes, subject_title)
            untrained = _untrained(subject, source, request, data, modes, controls, subject_title)
            probed.append(_Probed(subject.label, subject.name, subject.seed, findings, untrained))
            rows += list(_rows(probed[-1], data, modes))
            encoders.append(entry(subject, source.kind))
            remarks_made += remarks(subject)
    about = _about(request, corpus, sentences, data)
    accuracy = pd.concat(rows, ignore_index=True)
    accuracy.attrs["exact"] = True
    labels, notes = labels_of(accuracy.round({"test": 4}), options.few, about["kinds"])
    about |= {"encoders": encoders, "notes": [*remarks_made, *notes]}
    frames = {"accuracy": accuracy, "labels": labels}
    if compared := list(differences(probed, modes, data.items["test"])):
        frames["differences"] = pd.DataFrame(compared)
    if published is not None:
        about["published"], frames["published"] = published
    return Result("probes", about, frames)


def _check_size(name: str, subject: Subject, first: str, size: tuple) -> None:
    """Raise ProbeError if an encoder differs from the first encoder in family or size."""
    if subject.size() != size:
        words = "{} is a {} of {} × {} heads (hidden size {})"
        raise ProbeError(
            f"{words.format(first, *size)} and {words.format(name, *subject.size())}; probe each of them into a "
            "separate folder, because heads of different encoders do not correspond"
        )


def _about(request: Request, corpus: Corpus, sentences: Mapping[str, Sequence[Sentence]], data: Data) -> dict[str, Any]:
    """Return the entries of ``Result.about`` that describe the corpus and the settings."""
    kinds = {items.task: items.kind for items in data.items["test"]}
    return {
        "corpus": corpus.info["name"],
        "fingerprint": corpus.fingerprint,
        "split": "test",
        "sentences": len(data.sentences["test"]),
        "splits": {
            split: {"sentences": len(content), "too_long": len(sentences[split]) - len(content)}
            for split, content in data.sentences.items()
        },
        "kinds": kinds,
        "specials": _specials(kinds),
        "few": request.options.few,
        "seed": request.seed,
        "settings": {**request.options.model_dump(), "seed": request.seed, "device": request.device},
    }


# Sentence about special tokens → the kinds of layers whose probes it describes.
_SPECIALS = {
    "heads can choose [CLS] and the words, [CLS] stands for the root, and [SEP] is left out": ("tree",),
    "words only": ("frames",),
    "vectors of words only": CENTROID,
}


def _specials(kinds: Mapping[str, str]) -> str:
    """Return sentences that describe how the probes of these tasks treat special tokens. ``kinds``: task → kind."""
    names = {how: [task for task, kind in kinds.items() if kind in of] for how, of in _SPECIALS.items()}
    sentences = [f"{', '.join(tasks)}: {how}." for how, tasks in names.items() if tasks]
    return " ".join(["[CLS] and [SEP] stand around every sentence and are attended to as usual.", *sentences])


def _read(corpus: Corpus, modes: Sequence[str], train_sentences: int | None, seed: int) -> dict[str, list[Sentence]]:
    """Read the splits that the modes need, with a random sample of ``train_sentences`` training sentences if given.

    Raises:
        ProbeError: the corpus lacks a split.
    """
    splits_needed = ("train", "dev", "test") if SOUND in modes else ("test",)
    missing = [split for split in splits_needed if split not in corpus.splits]
    if missing:
        raise ProbeError(
            f"{corpus.path}: expected the splits {', '.join(splits_needed)}, found {', '.join(corpus.splits)}; "
            f"centroids come from train, and heads are chosen on dev; give mode={AS_RELEASED} if there is only test"
        )
    by_split = {split: list(corpus[split]) for split in splits_needed}
    if train_sentences is not None and "train" in by_split and train_sentences < len(by_split["train"]):
        generator = np.random.default_rng([seed, 5])
        rows = np.sort(generator.permutation(len(by_split["train"]))[:train_sentences])
        by_split["train"] = [by_split["train"][row] for row in rows]
    return by_split


def _fitting(
    sentences: Mapping[str, Sequence[Sentence]], sources: Sequence[Source], corpus: Corpus, request: Request
) -> Data:
    """Return the sentences that fit into one window of every encoder, and their items for the requested tasks.

    Raises:
        ProbeError: a split has no such sentence, a requested task has no layer, or the sentences have no layer.
    """
    request.on_status("looking for sentences that do not fit")
    is_too_long = iter(too_long(sources, list(chain(*sentences.values()))))
    fitting = {
        split: [sentence for sentence in content if not next(is_too_long)] for split, content in sentences.items()
    }
    for split in (split for split, content in fitting.items() if not content):
        raise ProbeError(f"no sentence of {split} is short enough for the encoder to see it at once")
    items = read_items(fitting, request.seed)
    tasks_found = [of_task.task for of_task in items["test"]]
    tasks_requested = tasks_found if request.options.layers is None else request.options.layers.split(",")
    if missing_tasks := [name for name in tasks_requested if name not in tasks_found]:
        raise ProbeError(f"{corpus.path}: expected layers among {', '.join(tasks_found)}, found {missing_tasks[0]!r}")
    items = {
        split: [of_task for of_task in items_of_split if of_task.task in tasks_requested]
        for split, items_of_split in items.items()
    }
    data = Data(fitting, items)
    if not data.items["test"]:
        raise ProbeError(f"{corpus.path}: expected a layer in some sentence of {', '.join(sentences)}, found none")
    return data


def _probe(
    encoder: Encoder, gates: Tensor | None, request: Request, data: Data, modes: Sequence[str], subject_title: str
) -> Findings:
    """Probe one encoder in all modes, and report progress in sentences of all its passes."""
    sizes = {split: len(content) for split, content in data.sentences.items()}
    passes = [split for mode in modes for split in (("train", "dev") if mode == SOUND else ("test",))] + ["test"]
    request.on_status(f"probing {subject_title}", sum(sizes[split] for split in passes))
    return ProbeSurvey(encoder, gates, request.on_batch).run(data, modes)


def _untrained(
    subject: Subject,
    source: Source,
    request: Request,
    data: Data,
    modes: Sequence[str],
    controls: dict[Any, Findings],
    subject_title: str,
) -> Findings | None:
    """Probe an encoder with random weights but the architecture, heads and gates of a subject.

    Args:
        controls: earlier results, to which the new one is added. Subjects that agree in architecture, heads and gates
            share a result.

    Returns:
        the findings, or None if the request leaves this control out.
    """
    if not request.options.random_encoder:
        return None
    gates = None if subject.gates is None else subject.gates.cpu().numpy().tobytes()
    key = source.kind, tuple(subject.encoder.head_hooks.kept_heads), gates
    if key not in controls:
        encoder = Encoder.load(subject.architecture, random=True, seed=request.seed, attention="eager")
        encoder = encoder.to(request.device)
        controls[key] = _probe(encoder, subject.gates, request, data, modes, f"{subject_title}, with random weights")
    return controls[key]


# -- frames ------------------------------------------------------------------------------------------------------------


def _rows(probed: _Probed, data: Data, modes: Sequence[str]) -> Iterator[pd.DataFrame]:
    """Yield the parts of the frame ``accuracy`` for one encoder: for each mode and task, first the probe, then its
    controls."""
    splits, longest = data.items, max(map(len, chain(*data.sentences.values())))
    for mode, items in product(modes, splits["test"]):
        keys = dict(zip(RESULT, (probed.label, probed.run, probed.seed, mode, items.task), strict=True))
        sources = [
            (probed.findings, TRUE_LABELS, TRUE_LABELS),
            (probed.untrained, TRUE_LABELS, RANDOM),
            (probed.findings, SHUFFLED, SHUFFLED),
        ]
        for findings, labelling, name in sources:
            if findings is not None:
                key = mode, labelling, items.task
                yield _table(name, items, findings.dev[key], findings.test[key]).assign(**keys)[COLUMNS]
        parts = [next(p for p in splits["dev" if mode == SOUND else "test"] if p.task == items.task), items]
        if items.kind in ATTENTION:
            with np.errstate(invalid="ignore"):
                dev, test = (100 * offset_hits(part, longest) / part.counts()[:, None] for part in parts)  # (K, D)
            best = np.where(np.isnan(dev).all(1), 0, np.nan_to_num(dev, nan=-1).argmax(1))[:, None]
            dev, test = (np.take_along_axis(part, best, 1)[..., None] for part in (dev, test))
            yield _table(OFFSET, items, dev, test, best[:, 0] + 1.0).assign(**keys)[COLUMNS]
        dev, test = (100 * chance(part)[:, None, None] for part in parts)
        yield _table(CHANCE, items, dev, test).assign(**keys)[COLUMNS]


def _table(control: str, items: Items, dev: Grid, test: Grid, distance: Any = np.nan) -> pd.DataFrame:
    """Make rows of the frame ``accuracy``, one for each label with test items and each head.

    Args:
        control: the control, or TRUE_LABELS for the probe itself. The controls that concern no head (offset, chance)
            have arrays (K, 1, 1), and layer and head 0.
        items: the test items of the task.
        dev, test: (K, L, A), the accuracies by which heads are chosen, and those that are reported, in percent.
        distance: (K,), the best offset of each label in words; NaN for other controls.
    """
    count, _, heads = test.shape
    label, layer, head = np.indices(test.shape).reshape(3, -1)
    has_heads = int(control not in (OFFSET, CHANCE))
    table = pd.DataFrame({"control": control, "label": np.array(items.labels, object)[label]}).assign(
        items=items.counts()[label],
        layer=(layer + 1) * has_heads,
        head=(head + 1) * has_heads,
        dev=dev.ravel(),
        test=test.ravel(),
        best=layer * heads + head == best_heads(dev)[label],
        distance=np.broadcast_to(distance, count)[label],
    )
    return table[table["items"] > 0]


def differences(probed: Sequence[_Probed], modes: Sequence[str], tasks: Sequence[Items]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the frame ``differences``: the accuracy of each encoder minus that of the single-task runs.

    The accuracy of an encoder is the mean over its seeds, with the chosen head of each seed. All encoders are tested on
    the same items, so the interval is from a paired bootstrap.

    Args:
        probed: all encoders. The single-task runs of a task are those whose label is the task's name in capitals.
        modes: modes that were measured.
        tasks: test items of each task.
    """
    by_encoder: dict[str, list[_Probed]] = {}
    for probed_encoder in probed:
        by_encoder.setdefault(probed_encoder.label, []).append(probed_encoder)
    for mode, items in product(modes, tasks):
        single_label = items.task.upper()
        if single_label not in by_encoder:
            continue
        single_scores = _item_scores(by_encoder[single_label], mode, items)
        sentence = np.repeat(np.arange(len(items.offsets) - 1), np.diff(items.offsets))
        for name in (name for name in by_encoder if name != single_label):
            scores = _item_scores(by_encoder[name], mode, items)
            for k in np.flatnonzero(items.counts()):
                has_label = items.label == k
                gap = scores[has_label] - single_scores[has_label]
                if np.isnan(gap).any():
                    continue  # no head was chosen for the label
                low, high = paired_interval(gap, sentence[has_label], int(k))
                keys = {
                    "encoder": name,
                    "other": single_label,
                    "mode": mode,
                    "task": items.task,
                    "label": items.labels[k],
                }
                counts = {"items": int(has_label.sum()), "seeds": len(by_encoder[name])}
                values = {"difference": float(gap.mean()), "low": low, "high": high}
                percent = {key: round(100 * value, 4) for key, value in values.items()}
                yield {**keys, **counts, "other_seeds": len(by_encoder[single_label]), **percent}


def _item_scores(probed: Sequence[_Probed], mode: str, items: Items) -> NDArray[np.float64]:
    """Return, for each test item of a task, the share of an encoder's seeds whose chosen head finds it: (U,).

    Items of labels without a chosen head in one of the seeds have NaN. ``probed``: the seeds of the encoder.
    """
    total = np.zeros(len(items))
    for probed_encoder in probed:
        dev = probed_encoder.findings.dev[mode, TRUE_LABELS, items.task]
        best = best_heads(dev)
        scores = np.full(len(items), np.nan)
        for head_index in np.unique(best[best >= 0]):
            has_label = np.isin(items.label, np.flatnonzero(best == head_index))
            layer, head = divmod(int(head_index), dev.shape[2])
            scores[has_label] = probed_encoder.findings.hits(mode, items.task, layer, head)[has_label]
        total += scores
    return total / len(probed)
