"""Users' mistakes are known for what they are, whichever modules are loaded when they are made."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from mtlprune.cli.mistakes import _KNOWN


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, name, _ in _KNOWN])
def test_a_kind_of_mistake_is_looked_up_where_it_is_defined(module: str, name: str) -> None:
    """Elsewhere it would be known only once some other module had been imported."""
    assert getattr(importlib.import_module(module), name).__module__ == module


def test_a_mistake_before_much_is_loaded() -> None:
    command = [sys.executable, "-m", "mtlprune", "heads", "minilm", "0", "1"]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 2 and "counted from 1" in answer.stderr and answer.stderr.count("\n") == 1
