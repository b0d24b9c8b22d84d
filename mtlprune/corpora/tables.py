"""Sentences as Arrow tables and back, column by column; checksums, counts, and lists that lie in a temporary file.

An unknown layer is an Arrow null, an empty one an empty list. Of a layer with several columns all are null together.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import math
import os
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats import files_below
from mtlprune.io.files import file_sha256
from mtlprune.layers import KINDS, LAYERS, Layer, kind_of
from mtlprune.sentence import NOT_ARGUMENTS, Sentence

if TYPE_CHECKING:
    import pyarrow as pa


def schema(layers: Mapping[str, str]) -> pa.Schema:
    """The columns of a corpus whose layers have these kinds; last the source of each sentence, null without one."""
    import pyarrow as pa

    fixed = [("id", "text"), ("words", "text[]")]
    fields = [pa.field(name, _type(written), nullable=False) for name, written in fixed]
    for name, kind in layers.items():
        fields += [pa.field(_column(name, part), _type(t)) for part, t in KINDS[kind_of(kind)].columns.items()]
    return pa.schema([*fields, pa.field("source", pa.string())])


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
    columns.append([sentence.source or None for sentence in sentences])
    fields = schema(layers)
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, fields, strict=True)]
    return pa.Table.from_arrays(arrays, schema=fields)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Python's search for cycles costs a twentieth of an evaluation, a third of planning a large sweep, and most of
    decoding many sentences: of many small objects, none in a cycle."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@collector_paused()
def from_table(table: pa.Table, layers: Mapping[str, str] = LAYERS, source: bool = False) -> list[Sentence]:
    """The inverse of :func:`to_table`, of the layers named; decoding a column at a time makes it fast.

    Args:
        source: decode the source of each sentence too, which export alone asks for.
    """
    ids, words = (_decode(table.column(name)) for name in ("id", "words"))
    values: dict[str, list[Any]] = {}
    for name, declaration in layers.items():
        kind = KINDS[kind_of(declaration)]
        cells = (_decode(table.column(_column(name, part))) for part in kind.columns)
        values[name] = [None if row[0] is None else kind.from_columns(*row) for row in zip(*cells, strict=True)]
    five = (values.pop(name, [None] * len(ids)) for name in LAYERS)
    sentences = [Sentence(*row) for row in zip(ids, words, *five, strict=True)]
    for name, rest in values.items():
        pairs = zip(sentences, rest, strict=True)
        sentences = [s if value is None else s.with_layers(**{name: Layer(layers[name], value)}) for s, value in pairs]
    if source:
        texts = table.column("source").to_pylist()
        sentences = [replace(sentence, source=text or "") for sentence, text in zip(sentences, texts, strict=True)]
    return sentences


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
        return file_sha256(path)
    files = sorted((file.relative_to(path).as_posix(), file) for file in files_below(path) if file.is_file())
    listing = "".join(f"{source_digest(file)}  {name}\n" for name, file in files)
    return hashlib.sha256(listing.encode()).hexdigest()


# -- what a corpus holds, in numbers -----------------------------------------------------------------------------------


def count(sentences: Iterable[Sentence], layers: Mapping[str, str] = LAYERS) -> dict[str, Any]:
    """Counts over the sentences of one split, as corpus.json has them.

    Of tags, relations, constituents and roles the numbers of distinct labels; arguments leave V and C-V out; layers of
    other names stand under ``further``.

    Args:
        layers: those of the corpus, and their kinds.
    """
    size = words = longest = complete = 0
    known = Counter[str]()
    labels = {name: Counter[str | None]() for name in layers}
    for size, sentence in enumerate(sentences, 1):  # noqa: B007 (it is counted)
        names = sentence.layers()
        words += len(sentence)
        longest = max(longest, len(sentence))
        complete += LAYERS.keys() <= set(names)
        known.update(names)
        for name in names:
            labels[name].update(_LABELS[kind_of(layers[name])](sentence.get(name)))
    counts: dict[str, Any] = {
        "sentences": size,
        "words": words,
        "longest": longest,
        "known": {name: known[name] for name in layers},
    }
    counts["all_layers"] = complete
    numbers = {name: _NUMBERS[kind_of(kind)](labels[name]) for name, kind in layers.items()}
    for name in LAYERS:
        counts |= numbers.pop(name)
    return counts | ({"further": numbers} if numbers else {})


_LABELS: dict[str, Callable[[Any], Iterable[str | None]]] = {
    "tags": tuple,
    "spans": lambda spans: [span.label for span in spans],
    "tree": lambda tree: [*tree.relations, *([] if is_projective(tree.heads) else [None])],
    "brackets": lambda spans: [span.label for span in spans],
    "frames": lambda frames: [*(span.label for p in frames for span in p.arguments), *[None] * len(frames)],
}
"""The labels of a value, by kind; None, which is no label, for each tree that is not projective and each predicate."""


def _frames(labels: Counter[str | None]) -> dict[str, Any]:
    roles = {label: number for label, number in labels.items() if label is not None and label not in NOT_ARGUMENTS}
    return {"predicates": labels[None], "arguments": sum(roles.values()), "roles": len(roles)}


_NUMBERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "tags": lambda labels: {"tags": len(labels)},
    "spans": lambda labels: {"entities": dict(sorted(labels.items()))},
    "tree": lambda labels: {"relations": len(labels.keys() - {None}), "non_projective": labels[None]},
    "brackets": lambda labels: {"constituents": labels.total(), "constituent_labels": len(labels)},
    "frames": _frames,
}


def is_projective(heads: Sequence[int]) -> bool:
    """True where no two arcs cross, the arc from the root (0, left of the first word) included.

    Arcs are intervals; sorted by their left end and longer ones first, they nest exactly if none ends beyond the
    innermost one that is still open.
    """
    arcs = sorted((min(head, word), -max(head, word)) for word, head in enumerate(heads, 1))
    still_open: list[int] = []
    for left, minus_right in arcs:
        while still_open and still_open[-1] <= left:
            still_open.pop()
        if still_open and -minus_right > still_open[-1]:
            return False
        still_open.append(-minus_right)
    return True


# -- lists that lie in a temporary file: of sentences, or of arrays ----------------------------------------------------


T = TypeVar("T")
FEW = 20_000


class Spool(Sequence[T]):
    """A list whose items lie in a file that goes with it; in memory are their places.

    Args:
        encode, decode: an item to bytes and back.

    Raises:
        CorpusError: from appending and reading too, when the disk refuses.
    """

    def __init__(self, encode: Callable[[T], bytes], decode: Callable[[bytes], T]) -> None:
        self._encode, self._decode, self._ends = encode, decode, array("q", [0])
        with _told():
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 (it is closed, and gone, with its owner)

    def append(self, item: T) -> None:
        with _told():
            self._ends.append(self._ends[-1] + self._file.write(self._encode(item)))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, place: int) -> T:  # type: ignore[override]  # nobody asks for slices
        place = range(len(self))[place]
        start, end = self._ends[place : place + 2]
        with _told():
            self._file.flush()
            return self._decode(os.pread(self._file.fileno(), end - start, start))


def spooled(sentences: Iterable[Sentence]) -> Sequence[Sentence]:
    """Sentences in a temporary file; those of a few are as quickly kept in memory."""
    left = iter(sentences)
    few = list(islice(left, FEW + 1))
    spool: Any = few if len(few) <= FEW else Spool(_sentence_to_bytes, _sentence_from_bytes)
    for sentence in chain(few, left) if spool is not few else ():
        spool.append(sentence)
    return spool


def _sentence_to_bytes(sentence: Sentence) -> bytes:
    kinds = sentence.kinds().items()
    layers = [[name, kind, KINDS[kind_of(kind)].to_json(sentence.get(name))] for name, kind in kinds]
    return json.dumps([sentence.id, sentence.words, layers, sentence.source]).encode()


def _sentence_from_bytes(data: bytes) -> Sentence:
    name, words, written, source = json.loads(data)
    layers = {layer: Layer(kind, KINDS[kind_of(kind)].from_json(value)) for layer, kind, value in written}
    return Sentence(name, tuple(words), source=source).with_layers(**layers)


def arrays_to_bytes(row: Mapping[str, Any] | None) -> bytes:
    """Arrays by name, after a line that says what they are; None as None."""
    names = None if row is None else {name: [part.dtype.str, part.shape] for name, part in row.items()}
    return json.dumps(names).encode() + b"\n" + b"".join(part.tobytes() for part in (row or {}).values())


def arrays_from_bytes(data: bytes) -> dict[str, Any] | None:
    """The reverse; the arrays cannot be written to."""
    import numpy as np

    start = data.index(b"\n") + 1
    names, arrays = json.loads(data[:start]), {}
    for name, (kind, shape) in (names or {}).items():
        arrays[name] = np.frombuffer(data, kind, math.prod(shape), start).reshape(shape)
        start += arrays[name].nbytes
    return None if names is None else arrays


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of ``size`` items, the last one of what is left."""
    left = iter(items)
    while batch := list(islice(left, size)):
        yield batch


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"{tempfile.gettempdir()}: expected room for a temporary file, found: {error.strerror}"
        raise CorpusError(f"{what}; make some, or name another folder in the environment variable TMPDIR") from error
