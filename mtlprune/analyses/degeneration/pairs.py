"""Do labels whose weight rows fell further into the cone lose more F1 in joint training?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mtlprune.analyses.degeneration.labels import LEAST, Decoder
from mtlprune.analyses.subjects import variant
from mtlprune.statistics.label_scores import FEW
from mtlprune.statistics.permutation import rank_test

PAIR_TESTS = {
    "cosine": "cosine to the mean row, joint",
    "cosine_change": "its change, joint − single",
    "rival_change": "change of the cosine to the nearest rival",
    "norm_change": "change of ln norm",
    "frequency": "ln frequency in training",
    "cosine_change_given_frequency": "change of the cosine to the mean row, frequency held",
}
"""What the difference of F1 is set against."""


def compare(found: Sequence[Decoder], permutations: int, seed: int) -> list[dict[str, Any]]:
    """Joint runs against runs of the single task with the same seed: Spearman of F1 (joint − single) over labels.

    Only labels with FEW gold items or more count.

    Returns:
        One entry a pair: task, joint and single run, the labels that count with both F1 and cosines, and ``tests``.
    """
    entries = []
    for joint in found:
        for single in found:
            alone = joint.task.upper() + (f" ({variant(joint.label)})" if variant(joint.label) else "")
            pair = (single.task, single.seed, single.label) == (joint.task, joint.seed, alone)
            if pair and joint.label != single.label and joint.names == single.names:
                entries.append(_compared(joint, single, permutations, seed))
    return entries


def _compared(joint: Decoder, single: Decoder, permutations: int, seed: int) -> dict[str, Any]:
    used = (joint.gold >= FEW) & ~np.isnan(joint.f1) & ~np.isnan(single.f1)
    difference = (joint.f1 - single.f1)[used]
    logs = np.log(np.where(joint.frequency[used] > 0, joint.frequency[used], math.nan))
    columns = {
        "cosine": joint.cosine[used],
        "cosine_change": (joint.cosine - single.cosine)[used],
        "rival_change": (joint.rival_cosine - single.rival_cosine)[used],
        "norm_change": np.log(joint.norm[used] / single.norm[used]),
        "frequency": logs,
        "cosine_change_given_frequency": (joint.cosine - single.cosine)[used],
    }
    tests = []
    for name, column in columns.items():
        generator = np.random.default_rng([seed, 74])
        held = logs if name.endswith("_given_frequency") else None
        unknown = np.isnan(column).any() or (held is not None and np.isnan(held).any())
        value, p = math.nan, math.nan
        if used.sum() >= LEAST and not unknown:
            value, p = rank_test(column, difference, permutations, generator, held)
        tests.append({"against": name, "value": value, "p": p})
    return {
        "task": joint.task,
        "joint": joint.label,
        "single": single.label,
        "seed": joint.seed,
        "joint_run": joint.run,
        "single_run": single.run,
        "labels": int(used.sum()),
        "mean_difference": float(difference.mean()) if used.any() else math.nan,
        "tests": tests,
    }
