"""What could be had without knowing anything: fixed offsets and chance. No encoder is needed.

The two other controls, the encoder with random weights and shuffled labels, go through the probes themselves: see
:mod:`mtlprune.analyses.probes.survey`.

Letters for shapes: U items, K labels, D distances.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mtlprune.analyses.probes.items import ATTENTION, Items

Floats = NDArray[np.float64]


def offset_hits(items: Items, furthest: int) -> Floats:
    """How many items of each label are found by looking always o words on, for o from 1 to ``furthest``.

    Because an arc counts in either direction, looking o words on and o words back find the same. The root stands
    before the first word, as [CLS] does.

    Returns:
        (K, D): counts; column o − 1 is the offset o.
    """
    if items.kind == "tree":
        near = far = np.abs(items.column("head") - items.column("dependent"))
    else:
        first = items.column("start") - items.column("predicate")
        last = items.column("end") - 1 - items.column("predicate")
        inside = (first <= 0) & (last >= 0)
        near = np.where(inside, 0, np.minimum(np.abs(first), np.abs(last)))
        far = np.maximum(np.abs(first), np.abs(last))
    # an item is found by all offsets from near to far: +1 where they begin, −1 where they have ended
    change = np.zeros((len(items.labels), furthest + 2))
    np.add.at(change, (items.label, np.minimum(near, furthest + 1)), 1)
    np.add.at(change, (items.label, np.minimum(far + 1, furthest + 1)), -1)
    return change.cumsum(1)[:, 1:-1]


def chance(items: Items) -> Floats:
    """The expected share found, in each label, by guessing: (K,), NaN for labels without items.

    Attention probes: every word chooses evenly and independently among its candidates (DEP: the words and [CLS]; SRL:
    the words). Centroid probes: every label is as likely as any other.
    """
    if items.kind not in ATTENTION:
        return np.where(items.counts() > 0, 1 / max(1, len(items.labels)), np.nan)
    if items.kind == "tree":
        missed = (1 - 1 / (items.lengths + 1)) ** 2  # both the dependent and the head choose another
    else:
        start, end, predicate = (items.column(name) for name in ("start", "end", "predicate"))
        size = end - start
        # a predicate within its own argument chooses once only
        others = size - ((predicate >= start) & (predicate < end))
        missed = (1 - 1 / items.lengths) ** others * (1 - size / items.lengths)
    with np.errstate(invalid="ignore"):
        return np.bincount(items.label, 1 - missed, len(items.labels)) / items.counts()
