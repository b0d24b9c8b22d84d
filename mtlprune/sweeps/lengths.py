"""Whether a safetensors file is as long as its header says, without reading its tensors."""

from __future__ import annotations

import struct
from pathlib import Path

from mtlprune.files import RunError, parse_json, reading


def check_length(path: Path) -> None:
    """Raise RunError where a file of weights is missing or cut short."""
    with reading(path, RunError, "the weights of its best epoch are needed"), path.open("rb") as handle:
        size = path.stat().st_size
        length = struct.unpack("<Q", handle.read(8))[0] if size >= 8 else size
        if length > size - 8:
            raise RunError(f"{path} is cut short: it has {size} bytes, fewer than its header")
        header = parse_json(handle.read(length).decode("utf-8"))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
        if size != expected or not ends:
            raise RunError(f"{path} is cut short or damaged: expected {expected} bytes of weights, found {size}")
