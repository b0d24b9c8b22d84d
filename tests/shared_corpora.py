"""Where the real corpora lie, for the tests that read them: MTLPRUNE_CORPORA, or beside the checkout."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

CORPORA = Path(os.environ.get("MTLPRUNE_CORPORA") or Path(__file__).resolve().parents[2] / "shared/corpora")
EWT = CORPORA / "ewt"


def needs(folder: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """It reads a real corpus: a slow test, skipped where that is not."""
    why = f"no {folder} in {CORPORA}; set MTLPRUNE_CORPORA to a folder that holds it"
    return lambda test: pytest.mark.slow(pytest.mark.skipif(not (CORPORA / folder).is_dir(), reason=why)(test))
