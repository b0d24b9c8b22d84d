from collections.abc import Callable, Sequence

import pytest
import torch

from mtlprune.encoder.model import Encoded
from mtlprune.tasks.base import Task

HIDDEN = 8


@pytest.fixture
def encoded() -> Callable[..., Encoded]:
    """Ask for sentence lengths, get random word vectors (N, 8)."""

    def made(sizes: Sequence[int], seed: int = 0) -> Encoded:
        generator = torch.Generator().manual_seed(seed)
        words, cls, sep = (torch.randn(n, HIDDEN, generator=generator) for n in (sum(sizes), len(sizes), len(sizes)))
        return Encoded(words, cls, sep, torch.tensor(list(sizes)), list(sizes))

    return made


@pytest.fixture
def decoder() -> Callable[..., Task]:
    """A task with every parameter drawn at random (many begin at zero), without dropout."""

    def made(task: type[Task], labels: dict[str, list[str]], seed: int = 0, scale: float = 0.5, **options) -> Task:
        module = task(labels, HIDDEN, task.Options(**options)).eval()
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
        return module

    return made
