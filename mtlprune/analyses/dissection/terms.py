"""The names of the terms and of their subsets, for everybody who reads results; knows nothing of torch.

Source: Mickus, Paperno and Constant (2022).
"""

from __future__ import annotations

from itertools import combinations

TERMS = ("i", "h", "f", "c")
"""Input, attention heads, feed-forward parts, correction (biases, and means that LayerNorms take away)."""

LONG = {"i": "input", "h": "heads", "f": "feed-forward", "c": "correction"}

SUBSETS = tuple("".join(chosen) for size in range(len(TERMS) + 1) for chosen in combinations(TERMS, size))
"""All 16, the empty one first, the whole one last."""


def named(subset: str) -> str:
    """A subset as it is written: ∅ for the empty one."""
    return subset or "∅"
