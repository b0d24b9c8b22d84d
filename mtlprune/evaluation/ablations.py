"""Kinds of what an ablated head contributes (encoder/interventions.py), for settings, which load no torch."""

from typing import Literal

Closed = Literal["zero", "mean", "resample", "optimal"]
"""Kinds that a run can be trained with and analyses can be asked for."""
AblationKind = Literal[Closed, "exchange", "scale"]
"""Also kinds that need something of each batch, or a factor."""
SENTENCES = {
    "zero": "",
    "mean": " The output of a closed head is replaced by its mean.",
    "resample": " The output of a closed head is replaced by its output for another sentence.",
    "optimal": " The output of a closed head is replaced by a constant that was fitted.",
}
