"""How often tests over seeds and sentences reject a true null, and their intervals cover: simulated.

    python tests/analyses/sizes.py  # tables of docs/reference/further_tests.md (half an hour)

Scores drawn as numbers take the distribution of p as it is; counts go through everything that a table's do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from mtlprune.evaluation.scores import SCORES
from mtlprune.statistics import significance
from mtlprune.statistics.resamples import System
from mtlprune.statistics.standard_errors import upper_tail

LEVELS = (0.05, 0.01, 0.0025, 0.0001)
RATIOS = (0.5, 1, 2, 3)
"""Of the error of all seeds to that of sentences."""


Drawer = Callable[[np.random.Generator, tuple[int, int]], NDArray[np.float64]]
DEVIATIONS: dict[str, Drawer] = {
    "normal": lambda generator, shape: generator.normal(size=shape),
    "exponential": lambda generator, shape: generator.exponential(size=shape) - 1,
    "laplace": lambda generator, shape: generator.laplace(scale=0.5**0.5, size=shape),
}
"""Of variance 1; of settings with the same seeds the difference of two exponential deviations is Laplace's."""


def of_scores(runs: Sequence[int], ratio: float, times: int, deviations: str = "normal") -> NDArray[np.float64]:
    """(times,) p of differences that are 0 in truth.

    Args:
        runs: of each group of seeds; one group: settings with the same seeds.
        ratio: standard error of all seeds to that of sentences, which is known.
        deviations: of seeds, one of DEVIATIONS.
    """
    generator = np.random.default_rng([1, *runs, int(10 * ratio)])
    drawn = [DEVIATIONS[deviations](generator, (times, number)) for number in runs]
    groups = [ratio * math.sqrt(group.shape[1] / len(runs)) * group * (-1) ** k for k, group in enumerate(drawn)]
    delta = sum(group.mean(1) for group in groups) + generator.normal(size=times)
    errors = [group.std(1, ddof=1) / math.sqrt(number) for group, number in zip(groups, runs, strict=True)]
    parts = np.array_split(np.arange(times), max(1, times // 5_000))  # of so many at a time, to save memory
    free = [number - 1 for number in runs]
    tails = [upper_tail(abs(delta[part]), [e[part] for e in errors], free, np.ones(len(part))) for part in parts]
    return np.minimum(1, 2 * np.concatenate(tails))


def of_counts(
    runs: Sequence[int], own: float, times: int, sentences: int = 60, rare: float = 1.0, resamples: int = 300
) -> NDArray[np.float64]:
    """(times,) p of differences in F1 of two settings equally good on the whole; NaN where no error can be estimated.

    What a run finds depends on the sentence, the setting and the sentence, the seed, and the run and the sentence.

    Args:
        runs: of both settings; one number: the same seeds.
        own: standard deviation between seeds, on the scale of log odds.
        rare: share of the sentences that have anything to be found.
    """
    generator, found = np.random.default_rng([2, *runs, int(10 * own), sentences]), []
    names, seeds = ("correct", "gold", "predicted"), (1, 2, 3, 4, 5)
    for _ in range(0, times, 500):
        systems = []
        for _ in range(500):
            gold = np.where(generator.random(sentences) < rare, generator.integers(1, 6, sentences), 0)
            sentence = generator.normal(0.4, 1, sentences)
            for place in range(2):
                shape = (runs[place % len(runs)], sentences)
                odds = sentence + generator.normal(0, 0.5, sentences) + generator.normal(0, 0.5, shape)
                share = 1 / (1 + np.exp(-odds - generator.normal(0, own, (shape[0], 1))))
                right = generator.binomial(gold, share)
                counts = [right, np.broadcast_to(gold, shape), right + generator.binomial(gold, 1 - share)]
                same = seeds[: shape[0]] if len(runs) == 1 else ()
                systems.append(System(np.stack(counts, -1), names, SCORES["spans"]["f1"], same))
        pairs = [(place, place + 1) for place in range(0, len(systems), 2)]
        found += [one.wide_p for one in significance.differences(systems, pairs, resamples)]
    return np.array(found)


def rejected(p: NDArray[np.float64]) -> list[float]:
    """Shares of p up to each of LEVELS, none of which is without an error."""
    return [float((p <= level).mean()) for level in LEVELS]


Rows = Iterator[tuple[str, str, list[list[float]]]]


def rows(times: int, counted: int) -> Rows:
    """Seeds, how they deviate, and how often is rejected: of each ratio of errors a list, of each of LEVELS a share."""
    groups = {"3": (3,), "5": (5,), "3 and 3, others": (3, 3), "3 and 5, others": (3, 5)}
    both, single = "exponential, in both settings", "exponential, in one setting"
    deviations = [(name, "normal", "normal") for name in groups]
    deviations += [(name, both, "laplace") for name in ("3", "5")]
    deviations += [(name, single, "exponential") for name in ("3", "5")]
    deviations += [(name, both, "exponential") for name in ("3 and 3, others",)]
    for name, what, drawer in deviations:
        runs = groups[name]
        yield name, what, [rejected(of_scores(runs, ratio, times // len(runs), drawer)) for ratio in RATIOS]
    for name in ("3", "5", "3 and 5, others"):
        yield name, "F1 of counts: 0, 0.2", [rejected(of_counts(groups[name], own, counted))[:3] for own in (0.0, 0.2)]
    yield "3", "the same, one sentence in ten counts: 0", [rejected(of_counts((3,), 0, counted, rare=0.1))[:3]]


def main() -> None:
    print("| seeds | their deviations | " + " | ".join(f"{level:f}".rstrip("0") for level in LEVELS) + " |")
    print("|:--|:--|" + "--:|" * len(LEVELS))
    for name, what, shares in rows(200_000, 5_000):
        columns = [" ".join(f"{share:.2g}" for share in column) for column in zip(*shares, strict=True)]
        print(f"| {name} | {what} | {' | '.join([*columns, '–'][: len(LEVELS)])} |", flush=True)


if __name__ == "__main__":
    main()
