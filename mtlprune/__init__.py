"""mtlprune: which attention heads does each task claim?

model = mtlprune.load("runs/mtl-5")
[sentence] = model.parse("The dog saw a cat .")
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mtlprune.model import MultiTaskModel

# oneDNN keeps compiled kernels with their buffers for every shape it has met, 1,024 by default: gigabytes when
# sentences differ in length, and not faster. It reads this when torch first multiplies.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")

__version__ = "0.1.0"


def load(run: str | Path, task: str | None = None) -> MultiTaskModel:
    """The best model of a run, ready to parse.

    Args:
        run: a run folder.
        task: take the weights that are best for this task, not those that are best for all.

    Raises:
        RunError: no run there, or nothing kept of it yet.
    """
    from mtlprune.model import MultiTaskModel  # here, so that `import mtlprune` does not load torch

    return MultiTaskModel.load(run, task=task)
