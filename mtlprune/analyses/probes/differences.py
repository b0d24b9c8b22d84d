"""Before and after, item by item: how much more or less than after single-task learning, with paired intervals.

Whole sentences are drawn anew, with all their items: items of one sentence are not independent of each other.

Letters for shapes: U items of a label.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.analyses.probes.items import Items
from mtlprune.analyses.probes.survey import TRUE, Probed, chosen

RESAMPLES = 2000
BOOTSTRAP = 11
"""Keeps the generator of the resamples apart from others of the same seed."""


def differences(probed: Sequence[Probed], modes: Sequence[str], tasks: Sequence[Items]) -> Iterator[dict[str, Any]]:
    """For each mode, task, encoder and label: accuracy minus that of the single-task runs of the same task.

    Args:
        probed: all encoders; those whose label is a task's name in capitals are its single-task runs.
        modes: of sound, as-released.
        tasks: the test items.

    Accuracies are means over seeds of the head chosen for each; of the same items, so the interval is a paired one.
    """
    by_label: dict[str, list[Probed]] = {}
    for one in probed:
        by_label.setdefault(one.label, []).append(one)
    for mode in modes:
        for items in tasks:
            single = by_label.get(items.task.upper())
            others = [name for name in by_label if name != items.task.upper()]
            if single is None or not others:
                continue
            base = item_scores(single, mode, items)
            sentence = np.repeat(np.arange(len(items.offsets) - 1), np.diff(items.offsets))
            for name in others:
                own = item_scores(by_label[name], mode, items)
                for k in np.flatnonzero(items.counts()):
                    here = items.label == k
                    gap = own[here] - base[here]
                    if np.isnan(gap).any():
                        continue  # no head was chosen for the label
                    low, high = paired_interval(gap, sentence[here], int(k))
                    yield {
                        "encoder": name,
                        "minus": items.task.upper(),
                        "mode": mode,
                        "task": items.task,
                        "label": items.labels[k],
                        "items": int(here.sum()),
                        "seeds": [len(by_label[name]), len(single)],
                        "difference": round(100 * float(gap.mean()), 4),
                        "low": round(100 * low, 4),
                        "high": round(100 * high, 4),
                    }


def item_scores(probed: Sequence[Probed], mode: str, items: Items) -> NDArray[np.float64]:
    """(U of the task,): the share of the seeds whose chosen head finds the item; NaN where no head was chosen."""
    found = np.zeros(len(items))
    for one in probed:
        dev = one.found.dev[mode, TRUE, items.task]
        best = chosen(dev)
        scores = np.full(len(items), np.nan)
        for place in np.unique(best[best >= 0]):
            here = np.isin(items.label, np.flatnonzero(best == place))
            scores[here] = one.found.hits(mode, items.task, *divmod(int(place), dev.shape[2]))[here]
        found += scores
    return found / len(probed)


def paired_interval(
    gap: NDArray[np.float64], sentence: NDArray[np.int64], seed: int = 0, share: float = 0.95
) -> tuple[float, float]:
    """Bootstrap percentile interval of a mean over items, whole sentences drawn with replacement.

    Args:
        gap: (U,), of each item.
        sentence: (U,), the sentence each is in.
        seed: of the resamples.
        share: of the distribution that lies in the interval.

    Sentences with items of the label take few different pairs (sum of gaps, number of items), so a resample is one
    multinomial draw of how often each pair is met: exactly the bootstrap over sentences, at a cost that does not grow
    with their number.
    """
    _, which = np.unique(sentence, return_inverse=True)
    sums, sizes = np.bincount(which, gap), np.bincount(which)
    pairs, counts = np.unique(np.stack([sums.round(12), sizes], 1), axis=0, return_counts=True)
    generator = np.random.default_rng([BOOTSTRAP, seed])
    drawn = generator.multinomial(len(sums), counts / len(sums), size=RESAMPLES) @ pairs  # (resamples, 2)
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)
