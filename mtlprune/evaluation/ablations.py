"""Kinds of what a closed head contributes (encoder/interventions.py), for settings: they load neither torch nor numpy."""

from typing import Literal

Closed = Literal["zero", "mean", "resample", "optimal"]
