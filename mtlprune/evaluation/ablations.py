"""Kinds of ablation, apart from what computes them, for settings that load neither torch nor numpy."""

from typing import Literal

Closed = Literal["zero", "mean", "resample", "optimal"]
"""What a closed head contributes (encoder/interventions.py)."""
