"""Before and after, item by item: how much more or less than after single-task learning, with paired intervals.

Letters for shapes: U items of a label.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.probes.items import Items
from mtlprune.probes.survey import TRUE, Probed, chosen

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
            for name in others:
                own = item_scores(by_label[name], mode, items)
                for k in np.flatnonzero(items.counts()):
                    here = items.label == k
                    gap = own[here] - base[here]
                    if np.isnan(gap).any():
                        continue  # no head was chosen for the label
                    low, high = paired_interval(gap, int(k))
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


def paired_interval(gap: NDArray[np.float64], seed: int = 0, share: float = 0.95) -> tuple[float, float]:
    """Bootstrap percentile interval of a mean over items drawn with replacement.

    Items take few different values, so a resample is one multinomial draw of how often each is met: exactly the
    bootstrap over items, at a cost that does not grow with their number.
    """
    values, counts = np.unique(gap, return_counts=True)
    generator = np.random.default_rng([BOOTSTRAP, seed])
    drawn = generator.multinomial(len(gap), counts / len(gap), size=RESAMPLES) @ values / len(gap)
    low, high = np.quantile(drawn, [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)
