"""Rankings of heads, the area under a curve of scores, the search for sufficient sets, and tests of one set of heads.

Letters for shapes: L layers, A heads per layer, G numbers of open heads.
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
"""Function from a mask of open heads to the score with only these heads open, in points."""
Ranking = Callable[[int], Mask]
"""Function from a number k to a mask of the k best heads."""
_QUANTILE = 0.9
"""A member of a set should cost more than this share of the heads outside the set (q* of Shi et al. 2024)."""


def numbers(heads: int, step: int) -> list[int]:
    """Return the numbers of open heads that are scored: 0, step, 2 · step, … and all heads."""
    return [*range(0, heads, step), heads]


def ranked(values: Floats, generator: np.random.Generator) -> Ranking:
    """Rank heads by their values (L, A), the largest first; heads with equal values are in random order."""
    order = np.lexsort((generator.random(values.size), -values.ravel()))
    ranks = order.argsort().reshape(values.shape)
    return lambda keep: np.asarray(ranks < keep)


def within_layers(ranking: Ranking, size: tuple[int, int], generator: np.random.Generator) -> Ranking:
    """Permute a ranking within layers: at each number k, as many heads of each layer are open as in ``ranking``.

    Args:
        size: the numbers of layers and of heads per layer.
    """
    order = generator.random(size).argsort(1)
    return lambda keep: np.take_along_axis(ranking(keep), order, 1)


def areas(scores: Floats, open_counts: Sequence[int]) -> Floats:
    """Compute the area under curves of scores by the number of open heads (Mueller et al. 2025, MIB, ICML).

    The area is the integrated circuit performance ratio CPR = ∫ f over the share of open heads (trapezoidal rule), with
    f(k) = (s(k) − s(0)) / (s(all) − s(0)), where s(k) is the score with k heads open.

    Args:
        scores: (..., G), scores of each curve.
        open_counts: G numbers of open heads, from 0 to all.

    Returns:
        CPR of each curve, (...); NaN if the scores with all heads and with no head open are equal.
    """
    none_open, all_open = scores[..., :1], scores[..., -1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(all_open == none_open, np.nan, (scores - none_open) / (all_open - none_open))
    widths = np.diff(open_counts) / open_counts[-1]
    return np.asarray(((ratio[..., 1:] + ratio[..., :-1]) / 2 * widths).sum(-1))


def sufficient_sets(
    score: Score, select: Callable[[Mask], Ranking], floor: float, step: int, excluded: Mask
) -> list[Mask]:
    """Find disjoint sets of heads, each of which scores at least ``floor`` with all other heads closed.

    A set is the best k heads of a ranking, for the smallest k tried with which they are sufficient. These heads are
    then excluded, the remaining heads are ranked again, and so on until all of them together score less than ``floor``.
    Méloux et al. (2025, ICLR) enumerate the circuits of small networks and show that several can exist. The greedy
    search here finds a lower bound of their number.

    Args:
        select: function from a mask of excluded heads to a ranking of the others.
        step: step between the sizes of sets that are tried.
        excluded: heads that no set may contain.
    """
    sets: list[Mask] = []
    while (free := int((~excluded).sum())) and score(~excluded) >= floor:
        ranking = select(excluded)
        masks = (ranking(size) for size in numbers(free, step) if size)
        sets.append(next((mask for mask in masks if score(mask) >= floor), ~excluded))
        excluded = excluded | sets[-1]
    return sets


def head_set_tests(score: Score, members: Mask, draws: int, generator: np.random.Generator) -> dict[str, float]:
    """Test whether a task needs a set of heads and each of its members (after Shi et al. 2024, NeurIPS).

    The controls are random sets with as many heads in each layer, drawn from all heads, and random heads outside the
    set. ``draws`` is the number of sets and the largest number of these heads.

    Returns:
        ``random_alone``: mean score with only a random set open. ``sufficient_p``: probability that a random set scores
        at least as high as the set, by rank among the draws. ``without``, ``random_without`` and ``needed_p``: the
        score with the set closed, the mean score with a random set closed, and the probability of a score as low
        (partial necessity). ``superfluous``: number of members that can be left out. The hypothesis for a member is
        that closing it costs more than closing an added head costs, for at least _QUANTILE of the heads outside the
        set. The member is superfluous if a binomial test rejects this hypothesis (Holm over members).
    """
    sets = random_sets(members, draws, generator)
    random_alone, random_without = np.array([[score(heads), score(~heads)] for heads in sets]).T
    score_alone, without = score(members), score(~members)

    def scores_after_flip(heads: NDArray[np.int64]) -> Floats:
        """Return the scores with one head changed: a member is closed, any other head is added to the set.

        Args:
            heads: (n, 2), layer and index of each head.
        """
        layer, head = np.indices(members.shape)
        return np.array(
            [score(members ^ ((layer == flip_layer) & (head == flip_head))) for flip_layer, flip_head in heads]
        )

    closed = scores_after_flip(np.argwhere(members))
    added = scores_after_flip(generator.permutation(np.argwhere(~members))[:draws])
    # For each member, the number of added heads that are worth less than the member.
    larger = (score_alone - closed[:, None] > added - score_alone).sum(1)
    tests = {
        "random_alone": random_alone.mean(),
        "sufficient_p": tail(score_alone, random_alone),
        "without": without,
        "random_without": random_without.mean(),
        "needed_p": tail(-without, -random_without),
        "superfluous": (holm(stats.binom.cdf(larger, len(added), _QUANTILE)) < LEVEL).sum(),
    }
    return {name: float(value) for name, value in tests.items()}
