"""What `mtlprune probe` found: how well every head tells every label, and what the controls reach.

Letters: L layers, A heads a layer. Accuracies are in percent; layers and heads are counted from 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtlprune.layers import in_order

MODES = ("sound", "as-released")
NONE = "none"
TITLES = {
    "random_encoder": "random encoder",
    "shuffled_labels": "shuffled labels",
    "offset": "best offset",
    "chance": "chance",
}
"""Controls as readers know them."""
CONTROLS = tuple(TITLES)
OF_NO_WEIGHTS = frozenset({"random_encoder", "offset", "chance"})
"""Controls that do not depend on what the encoder has learnt, so that all encoders of one corpus share them."""
ROOT = ("dep", "root")
"""Found by attention to the first special token, where attention rests anyway: reported apart."""

Grid = NDArray[np.float64]  # (L, A)


class Key(NamedTuple):
    """Whose heads were probed, how, and on which task."""

    encoder: str
    """pretrained, POS (single-task run), POS+DEP, MTL-5, ..."""
    seed: int
    mode: str
    task: str


@dataclass(frozen=True, eq=False)
class LabelResult:
    """What the heads of one encoder know about one label."""

    items: int
    """In the test part."""
    layer: int
    head: int
    """The head chosen for the label: on dev (sound), or on the test items themselves (as-released)."""
    accuracy: float
    """Of the chosen head on the test items."""
    heads: Grid
    """(L, A): of every head on the test items."""
    controls: Mapping[str, float]
    """Control → its accuracy on the test items, its own best head chosen in the same way."""
    few: bool
    """Whether there are so few items that little can be said."""

    @property
    def control(self) -> float:
        """Accuracy of the best control; NaN where there is none."""
        return max(self.controls.values(), default=float("nan"))

    @property
    def gain(self) -> float:
        """Percentage points above the best control; as fine as results are stored, so that a tie is none."""
        return round(self.accuracy - self.control, 4)


@dataclass(eq=False)
class ProbeResults:
    """Results of one encoder family on one corpus, from one folder or several."""

    corpus: str
    fingerprint: str
    specials: str
    """How the special tokens ([CLS], [SEP]) were treated."""
    few: int
    """Labels with fewer test items are marked."""
    shape: tuple[int, int]
    """L, A."""
    labels: dict[Key, dict[str, LabelResult]]
    """Labels by falling number of items."""
    runs: dict[Key, str]
    """The run or encoder behind each result, as `mtlprune probe` was given it."""
    folders: tuple[str, ...]
    notes: list[str] = field(default_factory=list)
    """What a reader should know: what was shared, left out, or not there."""

    @property
    def encoder(self) -> str:
        """What the untouched encoder is called; empty where it was not probed."""
        return next((Path(run).name for key, run in self.runs.items() if key.encoder == "pretrained"), "")

    def tasks(self, mode: str) -> list[str]:
        """The tasks probed, in the order of the layers of a sentence."""
        return in_order(key.task for key in self.labels if key.mode == mode)
