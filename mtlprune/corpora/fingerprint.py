"""Checksums of what a corpus holds and of what it was built from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mtlprune.corpora.formats.lines import files_below
from mtlprune.layers import LAYERS, kind_of
from mtlprune.sentence import Sentence


def fingerprint(splits: Mapping[str, Iterable[Sentence]]) -> str:
    """SHA-256 of the names of the splits and all their sentences in order; nothing else goes into it."""
    digest = hashlib.sha256()
    for name in sorted(splits):
        digest.update(json.dumps(["split", name]).encode() + b"\n")
        for sentence in splits[name]:
            digest.update(json.dumps(_content(sentence), ensure_ascii=True, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


def _content(sentence: Sentence) -> list[Any]:
    """The five layers, then others by name, each with its kind."""
    five = (_plain(kind, sentence.get(name)) for name, kind in LAYERS.items())
    further = ([name, layer.kind, _plain(layer.kind, layer.value)] for name, layer in sentence.further)
    return [sentence.id, sentence.words, *five, *further]


def _plain(kind: str, value: Any) -> Any:
    """Predicates spelled out: the hash must not change when the class gets a new field or another order of them."""
    if value is None or kind_of(kind) != "frames":
        return value
    return [[p.index, p.roleset, p.lemma, p.arguments] for p in value]


def source_digest(path: Path) -> str:
    """SHA-256 of a file; of a folder, the SHA-256 over the relative names and digests of all files in it (links
    followed)."""
    path = Path(path)
    if path.is_file():
        with path.open("rb") as stream:
            digest = hashlib.sha256()
            while piece := stream.read(1 << 20):
                digest.update(piece)
        return digest.hexdigest()
    files = sorted((file.relative_to(path).as_posix(), file) for file in files_below(path) if file.is_file())
    listing = "".join(f"{source_digest(file)}  {name}\n" for name, file in files)
    return hashlib.sha256(listing.encode()).hexdigest()
