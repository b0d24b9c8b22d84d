"""Kinds of what a closed head contributes (encoder/interventions.py), for settings, which load no torch."""

from typing import Literal

Closed = Literal["zero", "mean", "resample", "optimal"]
