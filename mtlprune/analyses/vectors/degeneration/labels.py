"""Measure how far the weight rows of rare labels in decoders fall into a cone, and whether these labels lose F1.

The theory of Gao et al. (2019) applies to any softmax with long-tailed classes, so this module applies it to the label
weights of decoders. It measures frequency in training, norm, cosine to the mean row and the nearest other label
(rival). If a single-task run and a joint run are given, it also tests whether labels that moved further into the cone
lose more F1 in joint training.

Letters for shapes: K labels of a decoder, D features of its rows, N points.
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.harness.reading import Source, variant
from mtlprune.analyses.vectors.degeneration import maths
from mtlprune.corpora.store import load_corpus
from mtlprune.model import MultiTaskModel
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.results import Part, long_frame
from mtlprune.sentence import Sentence
from mtlprune.statistics.labels import FEW_ITEMS, count_labels
from mtlprune.statistics.permutation import benjamini_hochberg, rank_test
from mtlprune.statistics.standard_errors import Floats
from mtlprune.tasks import Task
from mtlprune.tasks.base import LabelRows
from mtlprune.training.cosreg import unit_rows

_MIN_LABELS = 5
"""Smallest number of labels for a correlation."""
_NO_NAME = "(none)"
"""Label in results of the class of items without a label."""
_RANKS = 40
"""Largest number of singular values of a spectrum that are stored, at ranks that are evenly spaced on a log scale."""


class Frequencies:
    """Counts of labels in the training sentences of runs. Runs with the same labels and training sentences share them.

    Counts are known only for runs that were trained on the corpus with this ``fingerprint``.
    """

    def __init__(self, corpus: Path, fingerprint: str) -> None:
        self.corpus, self.fingerprint = corpus, fingerprint
        self.counts_by_key: dict[Hashable, Floats] = {}
        self.sentences: dict[Hashable, list[Sentence]] = {}

    def of(self, run: str, task: Task, rows: LabelRows) -> Floats | None:
        """Return the counts of a run's labels, (K,); None if the run was trained on another corpus."""
        folder = RunFolder.existing(run)
        if folder.read_manifest().get("data", {}).get("fingerprint") != self.fingerprint:
            return None
        data = folder.config.data
        part = (data.train, data.train_sentences, data.half)
        key = (task.name, tuple(rows.names), part)
        if key not in self.counts_by_key:
            if part not in self.sentences:
                split = load_corpus(self.corpus)[data.train]
                self.sentences[part] = list(split.first(data.train_sentences).one_half(data.half))
            counts = np.zeros(len(rows.names))
            for sentence in self.sentences[part]:
                if task.is_annotated(sentence):
                    np.add.at(counts, task.label_places(task.target(sentence)), 1)
            self.counts_by_key[key] = counts
        return self.counts_by_key[key]


def decoders(
    source: Source, sentences: Sequence[Sentence], frequencies: Frequencies, request: Request
) -> tuple[list[Part], list[str]]:
    """Measure every decoder of a run, and score it on some sentences.

    Returns:
        The frames ``decoders``, ``labels``, ``spectra`` and ``points`` of each decoder, and notes as sentences.

    Raises:
        RunError: the run cannot be loaded.
    """
    model = MultiTaskModel.load(source.name, device=request.device)
    predicted, called = list(model.annotate(sentences)), f"{source.label} ({source.name})"
    parts: list[Part] = []
    notes = []
    for name, module in model.tasks.items():
        assert isinstance(module, Task)
        rows = module.label_rows()
        if rows is None:
            notes.append(f"{called}: the decoder of {name} has no matrix of label weights.")
            continue
        if len(rows.names) < 2:
            notes.append(f"{called}: {name} has fewer than two labels, so there is no cone.")
            continue
        label_counts = frequencies.of(source.name, module, rows)
        if label_counts is None:
            notes.append(
                f"{called} was trained on other data than {frequencies.corpus}, so the frequency of its labels of "
                f"{name} is not known."
            )
        weights = rows.rows.detach().double().cpu()
        labels = table(rows.names, weights, label_counts)
        labels["gold"], labels["f1"] = _label_f1(name, rows.names, sentences, predicted)
        fitted = slope(labels["cosine"], labels["frequency"], request.options.permutations, request.seed)
        drawings = drawing_frames(torch.linalg.svdvals(weights), maths.projection(_small(unit_rows(weights))), "labels")
        keys = {"encoder": source.label, "run": source.name, "seed": source.seed, "task": name}
        parts.append((keys, {"decoders": long_frame([matrix(weights) | fitted]), "labels": labels, **drawings}))
    return parts, notes


def table(names: Sequence[str], rows: Tensor, label_counts: Floats | None) -> pd.DataFrame:
    """Describe the row of each label, from label weights (K, D) and the counts of labels (K,).

    Returns:
        The columns ``label`` (``_NO_NAME`` for the class of items without a label); ``frequency`` (NaN for this class,
        or without counts); ``norm``; ``cosine`` to the mean of the rows at length 1; ``rival``, the label whose row is
        at the smallest angle; and ``rival_cosine``, the cosine to this row.
    """
    units = unit_rows(rows)
    cosines = units @ units.T
    cosines.fill_diagonal_(-math.inf)
    nearest = cosines.max(1)
    called = np.array([name or _NO_NAME for name in names], object)
    return pd.DataFrame(
        {
            "label": called,
            "frequency": math.nan if label_counts is None else np.where(called == _NO_NAME, math.nan, label_counts),
            "norm": rows.norm(dim=1).numpy(),
            "cosine": torch.cos(torch.deg2rad(maths.angles_to_mean(rows))).numpy(),
            "rival": called[nearest.indices.numpy()],
            "rival_cosine": nearest.values.numpy(),
        }
    )


def drawing_frames(singular: Tensor, points: Tensor, term: str) -> dict[str, pd.DataFrame]:
    """Return the values of a cloud that figures show, rounded for drawing.

    Args:
        singular: singular values in descending order.
        points: (N, 2), projected rows.

    Returns:
        The frame ``spectra``, with up to ``_RANKS`` singular values divided by the largest, and the frame ``points``.
    """
    values = (singular / singular[0]).numpy()
    ranks = np.unique(np.geomspace(1, len(values), min(_RANKS, len(values))).round().astype(int))
    rounded = [[float(f"{x:.4g}") for x in row] for row in points.tolist()]
    return {
        "spectra": pd.DataFrame({"term": term, "rank": ranks, "value": values[ranks - 1].round(5)}),
        "points": pd.DataFrame(rounded, columns=["x", "y"]).assign(term=term),
    }


def matrix(rows: Tensor) -> dict[str, float]:
    """Compute the measures of ``maths.cloud`` that are meaningful for few rows, from all label weights (K, D)."""
    small, singular = _small(rows), torch.linalg.svdvals(rows)
    moments = maths.Moments(len(rows))
    moments.add(small)
    angles = maths.angles_to_mean(rows)
    measures: dict[str, Any] = {"rows": len(rows), "features": rows.shape[1], "positive": maths.positive_share(rows)}
    measures |= {"mean_cosine": moments.mean_cosine(), "cosine": moments.cosine()}
    measures |= {"angle": angles.median(), "angle_max": angles.max(), "top1": maths.top_share(singular, 1)}
    measures |= {"rank": maths.effective_rank(singular), "rank_share": moments.effective_rank_share()}
    measures["partition"] = maths.partition_isotropy(small)
    return {name: float(value) for name, value in measures.items()}


def _small(rows: Tensor) -> Tensor:
    """Return a matrix (K, K) with the same Gram matrix as the rows (K, D).

    If D > K, the rows are rotated so that all features except the first K are 0, and measures need no (D, D) matrix.
    Otherwise the rows are padded with zeros.
    """
    if rows.shape[1] <= len(rows):
        return torch.nn.functional.pad(rows, (0, len(rows) - rows.shape[1]))
    left, singular, _ = torch.linalg.svd(rows, full_matrices=False)
    return left * singular


def _label_f1(
    task: str, names: Sequence[str], gold: Sequence[Sentence], predicted: Iterable[Sentence]
) -> tuple[Floats, Floats]:
    """Return the number of gold items and the F1 in percent of every label, (K,) each.

    F1 is NaN for a label with neither gold nor predicted items.
    """
    sums: dict[str, Floats] = {name: np.zeros(3) for name in names}  # correct, gold, predicted
    for gold_sentence, predicted_sentence in zip(gold, predicted, strict=True):
        for label, counts in (count_labels(task, gold_sentence, predicted_sentence) or {}).items():
            if label in sums:
                sums[label] += counts
    correct, gold_count, predicted_count = np.array([sums[name] for name in names]).T
    with np.errstate(invalid="ignore"):
        return gold_count, 200 * correct / (gold_count + predicted_count)


def slope(cosine: pd.Series, frequency: pd.Series, permutations: int, seed: int) -> dict[str, float]:
    """Relate the cosine to the mean row to ln frequency, over labels whose frequency is known and above 0.

    Returns:
        ``labels``, their number; ``slope`` of a least-squares line; ``spearman`` and its p-value ``spearman_p``. All
        but ``labels`` are NaN if there are too few labels.
    """
    occurs = frequency > 0
    slope = value = p = math.nan
    if occurs.sum() >= _MIN_LABELS:
        logs = np.log(frequency[occurs])
        slope = float(np.polyfit(logs, cosine[occurs], 1)[0]) if np.ptp(logs) else math.nan
        value, p = rank_test(logs, cosine[occurs], permutations, np.random.default_rng([seed, 73]))
    return {"labels": float(occurs.sum()), "slope": slope, "spearman": value, "spearman_p": p}


# -- joint against single ----------------------------------------------------------------------------------------------


def pairs(labels_of_runs: Sequence[Part], permutations: int, seed: int) -> pd.DataFrame:
    """Correlate changes of F1 (joint − single) with movements of rows, over the labels of a task.

    Every joint run is compared with the single-task runs of the same task and seed whose label has the same words in
    brackets ("sampled" aside). Only labels with FEW_ITEMS gold items or more count.

    Returns:
        For each pair of runs one row for each ``term`` with which the change is correlated. The columns are encoder,
        run and seed of the joint run; ``other`` and ``other_run``, label and folder of the single-task run; ``n``, the
        number of labels; ``mean_difference`` of F1; Spearman's correlation as ``value``; its ``p``; and ``q``, p
        corrected over all rows. ``value`` and ``p`` are NaN with fewer than _MIN_LABELS labels.
    """
    rows: list[dict[str, Any]] = []
    frames_by_keys = [(keys, frames["labels"]) for keys, frames in labels_of_runs if "labels" in frames]
    for keys, joint in frames_by_keys:
        kind = variant(keys["encoder"])
        single_keys = {**keys, "encoder": keys["task"].upper() + (f" ({kind})" if kind else "")}
        for keys_of_single, single in frames_by_keys:
            is_partner = (
                all(keys_of_single[key] == single_keys[key] for key in ("encoder", "seed", "task"))
                and keys_of_single != keys
            )
            if is_partner and joint["label"].equals(single["label"]):
                more = {**keys, "other": keys_of_single["encoder"], "other_run": keys_of_single["run"]}
                rows += [{**more, **test} for test in _tests(joint, single, permutations, seed)]
    return pd.DataFrame(rows).assign(q=benjamini_hochberg([row["p"] for row in rows]))


def _tests(joint: pd.DataFrame, single: pd.DataFrame, permutations: int, seed: int) -> Iterator[Mapping[str, Any]]:
    """Yield the correlation of F1 (joint − single) with each ``term``, for one pair of runs."""
    used = (joint["gold"] >= FEW_ITEMS) & joint["f1"].notna() & single["f1"].notna()
    joint, single = joint[used], single[used]
    difference = joint["f1"] - single["f1"]
    mean = float(difference.mean()) if used.any() else math.nan
    logs = np.log(joint["frequency"].where(joint["frequency"] > 0))
    for term, column, fixed in (
        ("cosine", joint["cosine"], None),
        ("cosine_change", joint["cosine"] - single["cosine"], None),
        ("rival_change", joint["rival_cosine"] - single["rival_cosine"], None),
        ("norm_change", np.log(joint["norm"] / single["norm"]), None),
        ("frequency", logs, None),
        ("cosine_change_given_frequency", joint["cosine"] - single["cosine"], logs),
    ):
        value, p = math.nan, math.nan
        if len(joint) >= _MIN_LABELS and column.notna().all() and (fixed is None or fixed.notna().all()):
            value, p = rank_test(column, difference, permutations, np.random.default_rng([seed, 74]), fixed)
        yield {"term": term, "n": len(joint), "mean_difference": mean, "value": value, "p": p}
