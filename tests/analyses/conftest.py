from collections.abc import Callable
from pathlib import Path

import pytest
from found import loaded

from mtlprune.encoder.model import Encoder


@pytest.fixture(scope="session")
def bert(tiny_encoder: Callable[[str], Path]) -> Encoder:
    """In float64; do not write into it."""
    return loaded(tiny_encoder("bert"))
