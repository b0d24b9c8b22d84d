"""Every measure of one cloud of rows, and which words of a corpus are looked at one by one.

Letters for shapes: M rows of a sample, D features, W words of all sentences.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtlprune.analyses.degeneration import maths as degeneration
from mtlprune.analyses.degeneration.maths import Moments
from mtlprune.analyses.degeneration.negative_direction import negative_direction, telling
from mtlprune.statistics.twonn import DimensionError, twonn

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Sample:
    """Which words are looked at one by one.

    Attributes:
        starts: for each sentence the place of its first word among all W, and W at last.
        kept: rising places of the words that are kept.
        rows: which of the kept are the M rows of the sample.
        lone: which of the kept are one word of every sentence: words of one sentence are no independent draws.
    """

    starts: NDArray[np.int64]
    kept: NDArray[np.int64]
    rows: NDArray[np.int64]
    lone: NDArray[np.int64]

    def of(self, sentences: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of a batch of sentences: which of its words are kept, and where among the kept."""
        words = np.concatenate([np.arange(self.starts[row], self.starts[row + 1]) for row in sentences])
        there = np.minimum(np.searchsorted(self.kept, words), len(self.kept) - 1)
        inside = self.kept[there] == words
        return np.flatnonzero(inside), there[inside]


def draw(sizes: list[int], rows: int, seed: int) -> Sample:
    """A sample of sentences of so many words."""
    generator = np.random.default_rng([seed, 71])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    chosen = np.sort(generator.permutation(starts[-1])[:rows])
    lone = starts[:-1] + (generator.random(len(sizes)) * np.diff(starts)).astype(np.int64)
    kept = np.union1d(chosen, lone)
    return Sample(starts, kept, np.searchsorted(kept, chosen), np.searchsorted(kept, lone))


def cloud(moments: Moments, rows: Tensor, lone: Tensor | None = None) -> dict[str, float]:
    """Every measure of one cloud.

    Args:
        moments: of all its rows, (D,).
        rows: (M, D), a sample of them.
        lone: (.., D), independent draws for TwoNN; none for no dimension.
    """
    doubles = rows.double().cpu()
    angles = degeneration.angles_to_mean(doubles)
    middle, most = torch.quantile(angles, torch.tensor([0.5, 0.95], dtype=angles.dtype)).tolist()
    singular = moments.spectrum()
    mean = moments.mean()
    found = {
        "rows": float(moments.rows),
        "features": float(rows.shape[1]),
        "mean_cosine": float(moments.mean_cosine()),
        "cosine": float(moments.cosine()),
        "positive": degeneration.positive_share(doubles),
        "angle": middle,
        "angle_q95": most,
        "angle_max": float(angles.max()),
        **{f"top{k}": float(degeneration.top_share(singular, k)) for k in (1, 2, 10)},
        "rank": float(moments.effective_rank()),
        "rank_share": float(moments.effective_rank_share()),
        "partition": degeneration.partition_isotropy(doubles, moments.second),
        "isoscore": float(moments.isoscore()),
        "common": float(mean.square().sum() / (moments.second.trace() / moments.rows)),
        "margin": margin(doubles),
    }
    return found if lone is None else found | {"dimension": dimension(lone)}


def dimension(rows: Tensor) -> float:
    """TwoNN by maximum likelihood; NaN where there is none."""
    try:
        return twonn(rows.double().cpu().numpy()).likelihood
    except DimensionError as error:
        log.debug("no dimension: %s", error)
        return math.nan


def margin(rows: Tensor) -> float:
    """The widest margin of a uniformly negative direction of rows (M, D), 0 where there is none; NaN where random rows
    would have one too, or a row is 0."""
    if not telling(*rows.shape) or bool((rows.norm(dim=1) == 0).any()):
        return math.nan
    found = negative_direction(rows.numpy())
    return 0.0 if found is None else found.margin
