"""Orders in which heads are opened, the area under a curve of scores, and tests of one set of heads.

Letters for shapes: L layers, A heads a layer, G numbers of open heads.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mtlprune.evaluation.head_masks import Mask, random_sets
from mtlprune.statistics.permutation import tail
from mtlprune.statistics.significance import holm
from mtlprune.statistics.standard_errors import LEVEL, Floats

Score = Callable[[Mask], float]
"""The heads that are open → the score, in points."""
Ranking = Callable[[int], Mask]
"""A number of heads → the best so many."""
_QUANTILE = 0.9
"""A member of a set shall cost more than so many of the heads that are no members (q* of Shi et al. 2024)."""


def numbers(heads: int, step: int) -> list[int]:
    """The numbers of open heads at which scores are taken: 0, every, 2 · every, … and all heads."""
    return [*range(0, heads, step), heads]


def ranked(values: Floats, generator: np.random.Generator) -> Ranking:
    """The ranking by values (L, A), the largest first, equal ones in a random order."""
    order = np.lexsort((generator.random(values.size), -values.ravel()))
    places = order.argsort().reshape(values.shape)
    return lambda keep: np.asarray(places < keep)


def within_layers(ranking: Ranking, size: tuple[int, int], generator: np.random.Generator) -> Ranking:
    """A random order that opens in every layer (of ``size`` L, A) as many heads as a ranking does at each number."""
    order = generator.random(size).argsort(1)
    return lambda keep: np.take_along_axis(ranking(keep), order, 1)


def areas(scores: Floats, open_counts: Sequence[int]) -> Floats:
    """The area of a curve (Mueller et al. 2025, MIB, ICML): with f(k) = (s(k) − s(0)) / (s(all) − s(0)), s(k) the score
    with k heads open, the integrated circuit performance ratio CPR = ∫ f over the share of open heads, by trapezoids.

    Args:
        scores: (..., G).
        opened: G numbers of open heads, from 0 to all.

    Returns:
        CPR (...); NaN where all heads open score as none do.
    """
    none_open, all_open = scores[..., :1], scores[..., -1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(all_open == none_open, np.nan, (scores - none_open) / (all_open - none_open))
    widths = np.diff(open_counts) / open_counts[-1]
    return np.asarray(((ratio[..., 1:] + ratio[..., :-1]) / 2 * widths).sum(-1))


def sufficient_sets(
    score: Score, select: Callable[[Mask], Ranking], floor: float, step: int, excluded: Mask
) -> list[Mask]:
    """Sets of heads without a common head, each of which alone scores at least ``floor``.

    The smallest sufficient number of heads of a ranking is a set; its heads are closed, the others are ranked anew, and
    so on until all that are left together score too little. That there can be several: Méloux et al. (2025, ICLR), who
    enumerate circuits of small networks; this is a lower bound of their number.

    Args:
        select: heads that must not be chosen → a ranking of the others.
        taken: heads that no set may have.
    """
    sets: list[Mask] = []
    while (free := int((~excluded).sum())) and score(~excluded) >= floor:
        ranking = select(excluded)
        masks = (ranking(size) for size in numbers(free, step) if size)
        sets.append(next((mask for mask in masks if score(mask) >= floor), ~excluded))
        excluded = excluded | sets[-1]
    return sets


def head_set_tests(score: Score, members: Mask, draws: int, generator: np.random.Generator) -> dict[str, float]:
    """Tests of one set of heads (after Shi et al. 2024, NeurIPS), beside random sets with as many heads in each layer,
    drawn from all heads, and random heads that are no members.

    Returns:
        ``random_alone``, mean score with only a random set open, and ``sufficient_p``, of a score as high as that of
        the set; ``without``, ``random_without`` and ``needed_p`` likewise, of scores as low with the sets closed
        (partial necessity), p by rank among the draws; ``superfluous``, members that can go: that closing one costs the
        set more than at least _QUANTILE of random heads cost that are added and closed again is refuted (binomial test,
        Holm over members).
    """
    sets = random_sets(members, draws, generator)
    random_alone, random_without = np.array([[score(heads), score(~heads)] for heads in sets]).T
    score_alone, without = score(members), score(~members)

    def scores_after_flip(places: NDArray[np.int64]) -> Floats:
        """Scores with the head in each of some places (n, 2) closed, where it is a member, or added."""
        layer, head = np.indices(members.shape)
        return np.array(
            [score(members ^ ((layer == flip_layer) & (head == flip_head))) for flip_layer, flip_head in places]
        )

    closed = scores_after_flip(np.argwhere(members))
    added = scores_after_flip(generator.permutation(np.argwhere(~members))[:draws])
    larger = (score_alone - closed[:, None] > added - score_alone).sum(1)  # of the added heads, for each member
    tests = {
        "random_alone": random_alone.mean(),
        "sufficient_p": tail(score_alone, random_alone),
        "without": without,
        "random_without": random_without.mean(),
        "needed_p": tail(-without, -random_without),
        "superfluous": (holm(stats.binom.cdf(larger, len(added), _QUANTILE)) < LEVEL).sum(),
    }
    return {name: float(value) for name, value in tests.items()}
