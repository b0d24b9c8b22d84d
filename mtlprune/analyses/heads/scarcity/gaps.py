"""The gap between joint and single-task runs of equal settings, and how two gaps differ.

Letters: C resamples, S seeds.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from mtlprune.analyses.harness.settings import Setting, common_seeds, gap
from mtlprune.analyses.heads.scarcity import MEAN
from mtlprune.runs.folder import RunError
from mtlprune.runs.groups import PRUNING, untreated
from mtlprune.statistics.contrast import Contrast
from mtlprune.statistics.resamples import Resampled, by_draw, weighted

_FEW_DRAWS = 3
"""From so few seeds values can lie close by chance, so that an interval is too narrow."""


class Level(NamedTuple):
    """Single-task and joint runs of equal settings, with so many heads open from the first update; the label says how
    many, after how many updates where these differ, and of which joint runs where there is need."""

    single: Setting
    joint: Setting
    heads: int
    label: str = ""

    @property
    def other_settings(self) -> str:
        """The encoder and the settings beside those of pruning."""
        paths_kept = [pair for pair in untreated(self.joint.column.runs[0]).items() if not pair[0].startswith(PRUNING)]
        return f"{self.joint.column.encoder} {sorted(paths_kept)}"


def means_of(tasks: Sequence[str], without: str) -> dict[str, list[str]]:
    """The rows of a table of gaps: the mean of all tasks, that without one if it is named, and each task; with the
    tasks of each. Raises RunError: there is no such task to leave out."""
    means = {MEAN: list(tasks)}
    if without:
        if without not in tasks or len(tasks) < 2:
            raise RunError(f"without: expected one of the tasks {', '.join(tasks)}, found {without!r}")
        means[f"mean without {without.upper()}"] = [task for task in tasks if task != without]
    return means | {task: [task] for task in tasks}


def figure_of(weights: Mapping[Level, float], places: list[int]) -> tuple[Resampled, list[tuple[int | None, ...]]]:
    """The weighted sum of the gaps of some levels, and of each seed the draws of their heads."""
    seeds = common_seeds(*(side for level in weights for side in (level.single, level.joint)))
    figure = weighted([gap(level.joint, level.single, seeds, places) for level in weights], list(weights.values()))
    return figure, list(zip(*(level.joint.draws(seeds) for level in weights), strict=True))


def doubts(figure: Resampled, draws: Sequence[Hashable], margin: float, pooled: float) -> dict[str, float]:
    """The columns of ``changes`` about the margin, draws and the pooled error, as ``frames.yaml`` declares them.

    Args:
        draws: of each seed.
        pooled: standard deviation between seeds of all changes of the task.
    """
    change, variants, number = Contrast.of(figure), dict[str, Contrast](), len(set(draws))
    row = {"p_widening": change.p_at_most(-margin), "p_margin": change.p_margin(margin)}
    if 1 < number < len(draws):
        variants["draws_"], row["draws"] = Contrast.of(by_draw(figure, draws)), number
    if 1 < len(draws) <= _FEW_DRAWS and pooled > float(figure.observed.std(ddof=1)):
        variants["pooled_"] = Contrast.of(figure, pooled=pooled)
    for prefix, variant in variants.items():
        row |= {prefix + name: getattr(variant, name) for name in ("estimate", "low", "high")}
        row[f"{prefix}p_widening"] = variant.p_at_most(-margin)
    return row
