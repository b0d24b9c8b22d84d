"""Reading weights: what is wrong with a safetensors file, or with the numbers in it, is a sentence that names it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from mtlprune.errors import MtlpruneError
from mtlprune.files import reading


def read_weights(path: Path, error: type[MtlpruneError], remedy: str) -> dict[str, Tensor]:
    """All tensors of a safetensors file, on the CPU.

    Args:
        error: the kind to raise.
        remedy: what to do, for messages.

    Raises:
        error: the file is missing, cannot be read, or holds a number that is none.
    """
    with reading(path, error, remedy):
        try:
            found = load_file(path)
        except SafetensorError as refused:
            raise error(f"{path}: not readable as safetensors ({refused}); {remedy}") from None
    check_finite(found, path, error, remedy)
    return found


def check_finite(tensors: Mapping[str, Tensor], path: Path | str, error: type[MtlpruneError], remedy: str) -> None:
    """Refuse weights among which are NaN or infinite numbers: all that is computed with them is nothing.

    Raises:
        error: names the file, or what else ``path`` says, and the first tensor.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise error(f"{path}: {name} holds numbers that are not finite (NaN or infinity); {remedy}")
