from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("mtlprune", deadline=None)  # a busy machine is no defect
hypothesis.settings.load_profile("mtlprune")

sys.path.insert(0, str(Path(__file__).parent))  # so that every test can import tiny, in any import mode


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Ask for a family, get the folder of a tiny encoder; made once a session, so do not write into it."""
    from tiny import make_tiny

    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = make_tiny(family, tmp_path_factory.mktemp(f"tiny-{family}"))
        return made[family]

    return folder
