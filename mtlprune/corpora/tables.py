"""Sentences as Arrow tables and back, column by column.

An unknown layer is an Arrow null, an empty one an empty list. Of a layer with several columns all are null together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

from mtlprune.sentence import Dependencies, Predicate, Sentence, Span

_TEXTS = pa.list_(pa.string())
_NUMBERS = pa.list_(pa.int32())
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("words", _TEXTS, nullable=False),
        ("pos", _TEXTS),
        ("ner_start", _NUMBERS),
        ("ner_end", _NUMBERS),
        ("ner_label", _TEXTS),
        ("dep_head", _NUMBERS),
        ("dep_relation", _TEXTS),
        ("con_start", _NUMBERS),
        ("con_end", _NUMBERS),
        ("con_label", _TEXTS),
        ("srl_index", _NUMBERS),
        ("srl_roleset", _TEXTS),
        ("srl_lemma", _TEXTS),
        ("srl_start", pa.list_(_NUMBERS)),
        ("srl_end", pa.list_(_NUMBERS)),
        ("srl_label", pa.list_(_TEXTS)),
    ]
)


def to_table(sentences: Iterable[Sentence]) -> pa.Table:
    """One row a sentence, with :data:`SCHEMA`."""
    rows = [_row(sentence) for sentence in sentences]
    columns = zip(*rows, strict=True) if rows else repeat((), len(SCHEMA))
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _row(sentence: Sentence) -> tuple[Any, ...]:
    dep = sentence.dep if sentence.dep is not None else (None, None)
    return (
        sentence.id,
        sentence.words,
        sentence.pos,
        *_span_columns(sentence.ner),
        *dep,
        *_span_columns(sentence.con),
        *_predicate_columns(sentence.srl),
    )


def _span_columns(spans: Sequence[Span] | None) -> tuple[Any, ...]:
    if spans is None:
        return None, None, None
    return [span.start for span in spans], [span.end for span in spans], [span.label for span in spans]


def _predicate_columns(predicates: Sequence[Predicate] | None) -> tuple[Any, ...]:
    if predicates is None:
        return (None,) * 6
    arguments = [_span_columns(predicate.arguments) for predicate in predicates]
    return (
        [predicate.index for predicate in predicates],
        [predicate.roleset for predicate in predicates],
        [predicate.lemma for predicate in predicates],
        [start for start, _, _ in arguments],
        [end for _, end, _ in arguments],
        [label for _, _, label in arguments],
    )


def from_table(table: pa.Table) -> list[Sentence]:
    """The inverse of :func:`to_table`; values are decoded a column at a time, which is what makes it fast."""
    columns = {name: _decode(table.column(name)) for name in SCHEMA.names}
    dep = zip(columns["dep_head"], columns["dep_relation"], strict=True)
    rows = zip(
        columns["id"],
        columns["words"],
        columns["pos"],
        _spans(*(columns[f"ner_{part}"] for part in ("start", "end", "label"))),
        (None if heads is None else Dependencies(heads, relations) for heads, relations in dep),
        _spans(*(columns[f"con_{part}"] for part in ("start", "end", "label"))),
        _predicates(columns),
        strict=True,
    )
    return [Sentence(*row) for row in rows]


def _spans(*columns: list[Any]) -> list[tuple[Span, ...] | None]:
    """Starts, ends and labels, a tuple (or None) a row, zipped into spans."""
    return [None if row[0] is None else tuple(map(Span, *row)) for row in zip(*columns, strict=True)]


def _predicates(columns: dict[str, list[Any]]) -> list[tuple[Predicate, ...] | None]:
    parts = ("index", "roleset", "start", "end", "label", "lemma")
    found: list[tuple[Predicate, ...] | None] = []
    for row in zip(*(columns[f"srl_{part}"] for part in parts), strict=True):
        if row[0] is None:
            found.append(None)
            continue
        indices, rolesets, starts, ends, labels, lemmas = row
        arguments = (tuple(map(Span, *spans)) for spans in zip(starts, ends, labels, strict=True))
        found.append(tuple(map(Predicate, indices, rolesets, arguments, lemmas)))
    return found


def _decode(column: pa.ChunkedArray) -> list[Any]:
    """One Python value a row; lists become tuples."""
    return [value for chunk in column.chunks for value in _decode_array(chunk)]


def _decode_array(array: pa.Array) -> list[Any]:
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
