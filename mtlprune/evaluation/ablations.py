"""Kinds of what a closed head contributes (encoder/interventions.py), for settings, which load no torch."""

from typing import Literal

Closed = Literal["zero", "mean", "resample", "optimal"]
SENTENCES = {
    "zero": "",
    "mean": " A closed head contributes its mean.",
    "resample": " A closed head contributes its output for another sentence.",
    "optimal": " A closed head contributes a constant that was fitted.",
}
