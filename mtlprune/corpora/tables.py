"""Sentences as Arrow tables and back, column by column.

An unknown layer is an Arrow null, an empty one an empty list. Of a layer with several columns all are null together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtlprune.corpora.formats import files_below
from mtlprune.layers import KINDS, LAYERS, Layer, kind_of
from mtlprune.sentence import Sentence

if TYPE_CHECKING:
    import pyarrow as pa


def schema(layers: Mapping[str, str]) -> pa.Schema:
    """The columns of a corpus whose layers have these kinds."""
    import pyarrow as pa

    fixed = [("id", "text"), ("words", "text[]")]
    fields = [pa.field(name, _type(written), nullable=False) for name, written in fixed]
    for name, kind in layers.items():
        fields += [pa.field(_column(name, part), _type(t)) for part, t in KINDS[kind_of(kind)].columns.items()]
    return pa.schema(fields)


def _type(written: str) -> pa.DataType:
    import pyarrow as pa

    if written.endswith("[]"):
        return pa.list_(_type(written[:-2]))
    return {"text": pa.string(), "int": pa.int32()}[written]


def _column(layer: str, part: str) -> str:
    """ner_start, chunk.start; the tags of pos are a column of that name."""
    if layer in LAYERS:
        return layer if part == "tag" else f"{layer}_{part}"
    return f"{layer}.{part}"


def to_table(sentences: Iterable[Sentence], layers: Mapping[str, str] = LAYERS) -> pa.Table:
    """One row a sentence, with the :func:`schema` of these layers."""
    import pyarrow as pa

    sentences = list(sentences)
    columns: list[list[Any]] = [[s.id for s in sentences], [s.words for s in sentences]]
    for name, declaration in layers.items():
        kind = KINDS[kind_of(declaration)]
        unknown = (None,) * len(kind.columns)
        values = (sentence.get(name) for sentence in sentences)
        rows = [unknown if value is None else kind.to_columns(value) for value in values]
        columns += map(list, zip(*rows, strict=True)) if rows else ([] for _ in unknown)
    fields = schema(layers)
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, fields, strict=True)]
    return pa.Table.from_arrays(arrays, schema=fields)


def from_table(table: pa.Table, layers: Mapping[str, str] = LAYERS) -> list[Sentence]:
    """The inverse of :func:`to_table`; values are decoded a column at a time, which is what makes it fast."""
    ids, words = (_decode(table.column(name)) for name in ("id", "words"))
    values: dict[str, list[Any]] = {}
    for name, declaration in layers.items():
        kind = KINDS[kind_of(declaration)]
        cells = (_decode(table.column(_column(name, part))) for part in kind.columns)
        values[name] = [None if row[0] is None else kind.from_columns(*row) for row in zip(*cells, strict=True)]
    found = [Sentence(*row) for row in zip(ids, words, *(values.pop(name) for name in LAYERS), strict=True)]
    for name, rest in values.items():
        pairs = zip(found, rest, strict=True)
        found = [s if value is None else s.with_layers(**{name: Layer(layers[name], value)}) for s, value in pairs]
    return found


def _decode(column: pa.ChunkedArray) -> list[Any]:
    """One Python value a row; lists become tuples."""
    return [value for chunk in column.chunks for value in _decode_array(chunk)]


def _decode_array(array: pa.Array) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_list(array.type):
        # .values and .offsets ignore nulls and keep the slice, so the offsets need not begin at 0
        offsets = array.offsets.to_numpy().tolist()
        first, last = offsets[0], offsets[-1]
        values = _decode_array(array.values.slice(first, last - first))
        known = array.is_valid().to_pylist() if array.null_count else repeat(True)
        bounds = zip(offsets, offsets[1:], known, strict=False)
        return [tuple(values[start - first : end - first]) if here else None for start, end, here in bounds]
    if pa.types.is_string(array.type):
        encoded = array.dictionary_encode()  # each distinct text is decoded once, and shared
        texts = encoded.dictionary.to_pylist()
        return [None if place is None else texts[place] for place in encoded.indices.to_pylist()]
    return array.to_pylist() if array.null_count else array.to_numpy().tolist()


# -- Checksums of what a corpus holds and of what it was built from --


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
