"""Sweeps: many runs that one YAML file defines (docs/guides/sweeps.md). Used by `mtlprune sweep` and `compare`."""

from mtlprune.sweeps.folder import found_runs

__all__ = ["found_runs"]
