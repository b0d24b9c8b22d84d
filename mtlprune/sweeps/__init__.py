"""Sweeps: many runs from one file. See docs/guides/sweeps.md."""

from mtlprune.sweeps.folder import found_runs

__all__ = ["found_runs"]
