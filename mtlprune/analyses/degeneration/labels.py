"""Rare labels of the decoders: how far their weight rows fall into the cone, and whether that is what F1 they lose.

The theory is about any softmax with long-tailed classes (Gao et al. 2019), so it is asked of the label weights of the
five decoders: frequency in training, norm, cosine to the mean row, nearest rival; and, where a run of one task and a
joint run are both there, whether labels that fell further lost more F1.

Letters: K labels of a decoder, D features of its rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtlprune.analyses.degeneration import maths as degeneration
from mtlprune.analyses.degeneration.maths import Moments
from mtlprune.analyses.subjects import Source
from mtlprune.corpora.store import load_corpus
from mtlprune.model import MultiTaskModel
from mtlprune.runs import RunFolder
from mtlprune.sentence import Sentence
from mtlprune.statistics.label_scores import count_labels
from mtlprune.statistics.permutation import rank_test
from mtlprune.tasks import Task
from mtlprune.tasks.base import LabelRows

Floats = NDArray[np.float64]
LEAST = 5
"""Labels that a correlation needs."""
NONE = "(none)"
"""How the class of items without a label is written."""


@dataclass(eq=False)
class Decoder:
    """The label weights of one task's decoder in one run.

    Attributes:
        task, label, seed, run: which; label is POS, ..., MTL-5.
        names: K labels, NONE where the softmax has a class for no label.
        frequency: (K,), in the sentences that the run was trained on; NaN for NONE, or where they are not known.
        norm, cosine: (K,), of each row; its cosine to the mean of the rows at length 1.
        rival: (K,), the row at the smallest angle.
        rival_cosine: (K,).
        gold, f1: (K,), items in the sentences read and F1 in percent; NaN where a label has no score of its own (NONE,
            joined and auxiliary labels of constituents).
        matrix: measures of all rows together.
        spectrum: singular values by the largest.
        points: (K, 2), rows at length 1 on their two top directions.
        slope: cosine on the logarithm of the frequency: ``slope`` (least squares), ``spearman``, ``p``, ``labels``.
    """

    task: str
    label: str
    seed: int
    run: str
    names: list[str]
    frequency: Floats
    norm: Floats
    cosine: Floats
    rival: NDArray[np.int64]
    rival_cosine: Floats
    gold: Floats
    f1: Floats
    matrix: dict[str, float]
    spectrum: Floats
    points: Floats
    slope: dict[str, float] = field(default_factory=dict)


class Frequencies:
    """Label counts in the training sentences of runs, each counted once.

    Args:
        corpus: folder of the corpus that was read.
        fingerprint: of it; runs trained on another one have no frequencies.
    """

    def __init__(self, corpus: str, fingerprint: str) -> None:
        self.corpus, self.fingerprint = corpus, fingerprint
        self.known: dict[tuple[str, tuple[str, ...], int | None], Floats] = {}
        self.sentences: dict[int | None, list[Sentence]] = {}

    def of(self, run: str, task: Task, rows: LabelRows) -> Floats | None:
        """(K,); None where the run was trained on something else."""
        folder = RunFolder.existing(run)
        if folder.read_manifest().get("data", {}).get("fingerprint") != self.fingerprint:
            return None
        data = folder.read_config()["data"]
        number, split = data.get("train_sentences"), data.get("train", "train")
        key = (task.name, tuple(rows.names), number)
        if key not in self.known:
            if number not in self.sentences:
                self.sentences[number] = list(load_corpus(Path(self.corpus))[split])[:number]
            found = np.zeros(len(rows.names))
            for sentence in self.sentences[number]:
                if task.known(sentence):
                    np.add.at(found, task.label_places(task.target(sentence)), 1)
            self.known[key] = found
        return self.known[key]


def decoders(
    source: Source,
    sentences: Sequence[Sentence],
    frequencies: Frequencies,
    seed: int = 0,
    permutations: int = 10_000,
    device: str = "cpu",
) -> tuple[list[Decoder], list[str]]:
    """Every decoder of a run, scored on some sentences, and notes in sentences.

    Raises:
        RunError: the run cannot be loaded.
    """
    model = MultiTaskModel.load(source.name, device=device)
    predicted = list(model.annotate(sentences))
    found, notes = [], []
    for name, module in model.tasks.items():
        assert isinstance(module, Task)
        rows = module.label_rows()
        if rows is None:
            notes.append(f"{source.label} ({source.name}): the decoder of {name} has no matrix of label weights.")
            continue
        if len(rows.names) < 2:
            notes.append(f"{source.label} ({source.name}): {name} has fewer than two labels, so there is no cone.")
            continue
        counted = frequencies.of(source.name, module, rows)
        if counted is None:
            notes.append(
                f"{source.label} ({source.name}) was trained on other data than {frequencies.corpus}, so how often its "
                f"labels of {name} occurred is not said."
            )
        gold, f1 = label_f1(name, rows.names, sentences, predicted)
        made = measure(rows, np.full(len(rows.names), math.nan) if counted is None else counted)
        decoder = Decoder(name, source.label, source.seed, source.name, **made, gold=gold, f1=f1)
        decoder.slope = slope(decoder.cosine, decoder.frequency, permutations, seed)
        found.append(decoder)
    return found, notes


def measure(labels: LabelRows, frequency: Floats) -> dict[str, Any]:
    """What of a Decoder its rows say."""
    rows = labels.rows.detach().double().cpu()
    units = degeneration.unit_rows(rows)
    cosines = units @ units.T
    cosines.fill_diagonal_(-math.inf)
    nearest = cosines.max(1)
    none = np.array([not name for name in labels.names])
    return {
        "names": [name or NONE for name in labels.names],
        "frequency": np.where(none, math.nan, frequency),
        "norm": rows.norm(dim=1).numpy(),
        "cosine": torch.cos(torch.deg2rad(degeneration.angles_to_mean(rows))).numpy(),
        "rival": nearest.indices.numpy(),
        "rival_cosine": nearest.values.numpy(),
        "matrix": matrix(rows),
        "spectrum": _falling(rows),
        "points": _points(units),
    }


def matrix(rows: Tensor) -> dict[str, float]:
    """Measures of label weights (K, D): the sample is all there is, and K may be far below D."""
    singular = torch.linalg.svdvals(rows)
    moments = Moments(len(rows))
    moments.add(_small(rows))
    angles = degeneration.angles_to_mean(rows)
    return {
        "rows": float(len(rows)),
        "features": float(rows.shape[1]),
        "mean_cosine": float(degeneration.mean_cosine(rows)),
        "cosine": float(degeneration.mean_cosine(rows)) * len(rows) / (len(rows) - 1),
        "positive": degeneration.positive_share(rows),
        "angle": float(angles.median()),
        "angle_max": float(angles.max()),
        "top1": float(degeneration.top_share(singular, 1)),
        "rank": float(degeneration.effective_rank(singular)),
        "rank_share": float(degeneration.effective_rank_share(moments.second, moments.total, len(rows))),
        "partition": degeneration.partition_isotropy(_small(rows)),
    }


def _small(rows: Tensor) -> Tensor:
    """(K, min(K, D)) with the same Gram matrix: rows turned so that all coordinates but these are 0."""
    if rows.shape[1] <= len(rows):
        return torch.nn.functional.pad(rows, (0, len(rows) - rows.shape[1]))
    left, singular, _ = torch.linalg.svd(rows, full_matrices=False)
    return left * singular


def _falling(rows: Tensor) -> Floats:
    singular = torch.linalg.svdvals(rows)
    return (singular / singular[0]).numpy()


def _points(units: Tensor) -> Floats:
    return degeneration.projection(_small(units)).numpy()


def label_f1(
    task: str, names: Sequence[str], gold: Sequence[Sentence], predicted: Iterable[Sentence]
) -> tuple[Floats, Floats]:
    """(K,) each: gold items and F1 in percent of every label; NaN F1 where it has neither gold nor predicted items."""
    sums: Counter[tuple[str, int]] = Counter()
    for mine, theirs in zip(gold, predicted, strict=True):
        for label, counts in (count_labels(task, mine, theirs) or {}).items():
            for place, number in enumerate(counts):
                sums[label, place] += number
    found = [[sums[name, place] for place in range(3)] for name in names]
    correct, wanted, given = np.array(found, dtype=np.float64).T
    total = wanted + given
    return wanted, np.where(total > 0, 200 * correct / np.where(total > 0, total, 1), math.nan)


def slope(cosine: Floats, frequency: Floats, permutations: int, seed: int) -> dict[str, float]:
    """Cosine to the mean row against ln frequency."""
    known = frequency > 0
    found = {"labels": float(known.sum()), "slope": math.nan, "spearman": math.nan, "p": math.nan}
    if known.sum() < LEAST:
        return found
    logs = np.log(frequency[known])
    if np.ptp(logs):
        found["slope"] = float(np.polyfit(logs, cosine[known], 1)[0])
    value, p = rank_test(logs, cosine[known], permutations, np.random.default_rng([seed, 73]))
    return found | {"spearman": value, "p": p}
