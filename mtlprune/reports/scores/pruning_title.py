"""How a run's heads were pruned, in a few words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def pruning_title(tree: Mapping[str, Any]) -> str:
    """How a run's heads were pruned, in a few words; "" where they were not.

    Args:
        tree: a configuration with the blocks train and pruning filled in.
    """
    settings, static = tree["pruning"], "decoders" in tree["train"]["freeze"]
    method, keep = settings["method"], settings["keep"]
    if method == "none":
        return "heads removed" if "heads removed" in tree else ""
    how = {"gates": "gates", "importance": "importance", "random": "chance"}[method]
    if method == "gates":
        how = ("static " if static else "") + ("own gates a task" if settings["sets"] == "per_task" else "gates")
    many = f"{keep} heads by " if keep is not None else "heads by "
    price = f", λ {settings['strength']:g}" if method == "gates" and settings["penalty"] == "lambda" else ""
    return many + how + price
