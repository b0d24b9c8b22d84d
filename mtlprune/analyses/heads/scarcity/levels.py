"""Δ, the score of joint minus single-task runs of the same settings, and its change from one level to another.

Both ways to name runs use this file: lists of runs (measure.py) and files of groups (groups_file.py).
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from mtlprune.analyses.harness.settings import Setting, common_seeds, difference
from mtlprune.runs.groups import PRUNING, untreated
from mtlprune.statistics.contrast import Contrast
from mtlprune.statistics.resamples import Resampled, by_draw, weighted

_FEW_DRAWS = 3
"""Number of seeds up to which a pooled standard deviation is also used: so few values can be close by chance, and their
interval is then too narrow."""


class Level(NamedTuple):
    """Single-task and joint runs of the same settings, with the same number of heads open from the first update.

    Attributes:
        single: single-task runs of all tasks.
        joint: joint runs.
        heads: number of open heads; 0 for a group of a file.
        label: the number of heads, with the updates and the joint runs where levels differ in them; or a group's title.
    """

    single: Setting
    joint: Setting
    heads: int
    label: str = ""

    @property
    def other_settings(self) -> str:
        """The encoder and all settings except those of pruning and treatments, as a key that equal settings share."""
        other_paths = [pair for pair in untreated(self.joint.column.runs[0]).items() if not pair[0].startswith(PRUNING)]
        return f"{self.joint.column.encoder} {sorted(other_paths)}"

    def scores(self, task_indices: list[int]) -> dict[str, float]:
        """Return the mean scores of the single-task and the joint runs over tasks and over their common seeds."""
        seeds, sides = seeds_of([self]), {"single": self.single, "joint": self.joint}
        return {side: float(setting.of_seeds(seeds, task_indices).observed.mean()) for side, setting in sides.items()}


def seeds_of(levels: Iterable[Level]) -> list[int]:
    """Return the seeds that the single-task and the joint runs of all levels have."""
    return common_seeds(*(side for level in levels for side in (level.single, level.joint)))


def figure_of(
    weights: Mapping[Level, float], task_indices: list[int]
) -> tuple[Resampled, list[tuple[int | None, ...]]]:
    """Compute the weighted sum of Δ of several levels, for the seeds that all of them have.

    Args:
        task_indices: indices of the tasks over which Δ is averaged.

    Returns:
        The sum, and for each seed the draws of the open heads of the levels (``pruning.draw``).
    """
    seeds = seeds_of(weights)
    figure = weighted(
        [difference(level.joint, level.single, seeds, task_indices) for level in weights], list(weights.values())
    )
    return figure, list(zip(*(level.joint.draws(seeds) for level in weights), strict=True))


def doubts(figure: Resampled, draws: Sequence[Hashable], margin: float, pooled: float) -> dict[str, float]:
    """Compute the columns of the frame ``changes`` about the margin, draws and the pooled error (see ``frames.yaml``).

    Args:
        figure: change of Δ.
        draws: draw of the open heads of each seed. If several seeds share a draw, the change is also estimated with
            draws as the unit.
        pooled: standard deviation between seeds of all changes of the task. It is used in addition if there are few
            seeds and their own standard deviation is smaller.
    """
    change, variants, number = Contrast.of(figure), dict[str, Contrast](), len(set(draws))
    row = {"p_fall": change.p_at_most(-margin), "p_margin": change.p_margin(margin)}
    if 1 < number < len(draws):
        variants["draws_"], row["draws"] = Contrast.of(by_draw(figure, draws)), number
    if 1 < len(draws) <= _FEW_DRAWS and pooled > float(figure.observed.std(ddof=1)):
        variants["pooled_"] = Contrast.of(figure, pooled=pooled)
    for prefix, variant in variants.items():
        row |= {prefix + name: getattr(variant, name) for name in ("estimate", "low", "high")}
        row[f"{prefix}p_fall"] = variant.p_at_most(-margin)
    return row
