"""Counts of a corpus, its fingerprint, and sentences in Arrow tables and temporary files."""

import hashlib
import tempfile
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_sentences import corpora, spans, trees
from test_store import BARE, EMPTY, FULL, ODD, SPLITS

from mtlprune.corpora import CorpusError, tables
from mtlprune.corpora.tables import (
    Counts,
    Spool,
    arrays_from_bytes,
    arrays_to_bytes,
    batched,
    count,
    fingerprint,
    from_table,
    is_projective,
    source_digest,
    spooled,
    to_table,
)
from mtlprune.sentence import Dependencies, Predicate, Sentence


@given(st.integers(1, 8).flatmap(trees))
def test_projective_means_that_no_two_arcs_cross(tree: Dependencies) -> None:
    arcs = [(min(head, word), max(head, word)) for word, head in enumerate(tree.heads, 1)]
    crossing = any(a < c < b < d or c < a < d < b for (a, b), (c, d) in combinations(arcs, 2))
    assert is_projective(tree.heads) == (not crossing)


def test_counts() -> None:
    first = Sentence(
        "a",
        ("a", "b", "c", "d"),
        pos=("X", "X", "Y", "Z"),
        ner=spans((0, 1, "PER"), (1, 2, "LOC"), (2, 3, "PER")),
        dep=Dependencies((3, 4, 0, 3), ("r", "r", "root", "q")),
        con=spans((0, 4, "S"), (0, 4, "S")),
        srl=(Predicate(0, None, spans((0, 1, "V"), (1, 2, "C-V"), (2, 3, "A"))), Predicate(1)),
    )
    known = {"pos": 1, "ner": 2, "dep": 1, "con": 1, "srl": 1}
    labels = {"tags": 3, "entities": {"LOC": 1, "PER": 2}, "relations": 3, "non_projective": 1}
    labels |= {"constituents": 2, "constituent_labels": 1, "predicates": 2, "arguments": 1, "roles": 1}
    found = count([first, Sentence("b", ("a",), ner=())])
    assert found == Counts(sentences=2, words=5, longest=4, known=known, all_layers=1, **labels)


@given(corpora())
def test_tables_hold_every_sentence_exactly(sentences: list[Sentence]) -> None:
    table = to_table(sentences)
    assert from_table(table) == sentences
    assert from_table(table.slice(1, 2)) == sentences[1:3]


@pytest.mark.parametrize(
    "other",
    [
        {"train": [BARE, FULL]},
        {"train": [FULL, BARE, EMPTY], "dev": [ODD]},
        {"train": [FULL, replace(BARE, words=("a", "c"))]},
        {"dev": [replace(EMPTY, ner=None), ODD]},
        *({"dev": [EMPTY, replace(ODD, srl=(Predicate(*one),))]} for one in ((0, "a.01"), (0, None, (), "a"))),
    ],
)
def test_any_difference_changes_the_fingerprint(other: dict[str, list[Sentence]]) -> None:
    assert fingerprint(SPLITS | other) != fingerprint(SPLITS)
    assert fingerprint({"train": SPLITS["train"], "test": SPLITS["dev"]}) != fingerprint(SPLITS)


def test_the_fingerprint_is_the_same_everywhere() -> None:
    """Recorded once, and by hand."""
    assert fingerprint(SPLITS) == "a04e7f54634af1421519272ad61e42b93382c597fbf52a1ce3616783bd88ea12"
    assert fingerprint({}) == hashlib.sha256(b"").hexdigest()
    lines = b'["split", "train"]\n["bare",["a","b"],null,null,null,null,null]\n'
    assert fingerprint({"train": [BARE]}) == hashlib.sha256(lines).hexdigest()


def test_source_digests(tmp_path: Path) -> None:
    for name, text in (("a/x", "1"), ("a/y/z", "2"), ("b/x", "1"), ("b/y/z", "2")):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert source_digest(tmp_path / "a/x") == hashlib.sha256(b"1").hexdigest()
    assert source_digest(tmp_path / "a") == source_digest(tmp_path / "b")
    (tmp_path / "b/x").rename(tmp_path / "b/w")
    assert source_digest(tmp_path / "a") != source_digest(tmp_path / "b")


@given(corpora(), st.integers(0, 5))
def test_a_list_in_a_temporary_file_is_a_list(items, begun):
    found = Spool(tables._sentence_to_bytes, tables._sentence_from_bytes)
    for item in items[:begun]:
        found.append(item)
    for place, item in enumerate(items[begun:], len(found)):
        assert len(found) == place and list(found) == items[:place]
        found.append(item)
    assert list(found) == items and len(found) == len(items) and bool(found) == bool(items)
    assert [found[-k] for k in range(1, len(items) + 1)] == items[::-1]
    assert list(zip(found, found, strict=True)) == [(item, item) for item in items]  # two at once
    with pytest.raises(IndexError):
        found[len(items)]


def test_arrays_come_back_as_they_were():
    row = {"a": np.arange(6, dtype=np.int32).reshape(2, 3), "b": np.zeros((0, 4), np.float64), "c": np.array(True)}
    found = arrays_from_bytes(arrays_to_bytes(row))
    assert list(found) == list(row)
    for name, part in row.items():
        assert found[name].dtype == part.dtype and found[name].shape == part.shape and (found[name] == part).all()
    assert arrays_from_bytes(arrays_to_bytes(None)) is None and arrays_from_bytes(arrays_to_bytes({})) == {}


@pytest.mark.parametrize("few", [2, 3])
def test_a_few_stay_in_memory(few, monkeypatch):
    monkeypatch.setattr(tables, "FEW", few)
    sentences = [Sentence(str(number), ("a",)) for number in range(3)]
    found = spooled(iter(sentences))
    assert list(found) == sentences and isinstance(found, list) is (few == 3)


def test_batches_hold_everything_in_order():
    assert list(batched(range(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]] and list(batched([], 3)) == []


def test_a_disk_that_refuses_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(CorpusError, match=r"gone: expected room .* found: No such file.*environment variable TMPDIR"):
        Spool(arrays_to_bytes, arrays_from_bytes)
