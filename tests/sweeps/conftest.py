"""A tiny encoder and corpus, and files of sweeps on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import make_lab


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Callable[[str], Path]) -> Path:
    """A configuration of seconds; do not write beside it."""
    return make_lab(tmp_path_factory.mktemp("base"), tiny_encoder("bert"), (16, 6, 6), threads=None, tasks=["pos"])


@pytest.fixture
def specification(base: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Write the file of a sweep on the tiny base."""

    def write(text: str) -> Path:
        path = tmp_path / "mine.yaml"
        path.write_text(f"base: {base}\n{text}")
        return path

    return write
