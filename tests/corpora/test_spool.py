"""A list in a temporary file is a list."""

import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_sentences import corpora

from mtlprune.corpora import CorpusError, tables
from mtlprune.corpora.tables import Spool, arrays_from_bytes, arrays_to_bytes, batched, spooled
from mtlprune.sentence import Sentence


@given(corpora(), st.integers(0, 5))
def test_it_is_a_list(items, begun):
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
