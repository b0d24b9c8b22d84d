"""A list in a temporary file is a list."""

from __future__ import annotations

import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtlprune.corpora import CorpusError
from mtlprune.corpora.spool import Spool, batched


@given(st.lists(st.text(), max_size=30), st.integers(1, 7), st.slices(30), st.integers(0, 30))
def test_it_is_a_list(items, block, some, begun):
    found = Spool(items[:begun], block)
    for place, item in enumerate(items[begun:], len(found)):
        assert len(found) == place and list(found) == items[:place]
        found.append(item)
    assert list(found) == items and len(found) == len(items) and bool(found) == bool(items)
    assert found[some] == items[some] and [found[-k] for k in range(1, len(items) + 1)] == items[::-1]
    assert list(zip(found, found, strict=True)) == [(item, item) for item in items]  # two at once
    with pytest.raises(IndexError):
        found[len(items)]


def test_batches_hold_everything_in_order():
    assert list(batched(range(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]] and list(batched([], 3)) == []


def test_a_disk_that_refuses_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(CorpusError, match=r"gone: expected room .* found: No such file.*environment variable TMPDIR"):
        Spool([1])
