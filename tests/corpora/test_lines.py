"""Lines and blocks: encodings and line breaks that must all read the same."""

from pathlib import Path

import pytest

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats import blocks, read_lines


@pytest.mark.parametrize(
    "data", [b"a\nb\n\nc\n", b"a\r\nb\r\n\r\nc\r\n", b"\xef\xbb\xbfa\nb\n\n\n \nc", b"\n\na\nb\n\t\nc"]
)
def test_layouts_give_the_same_blocks(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    assert [[line.text for line in block] for block in blocks(read_lines(path))] == [["a", "b"], ["c"]]


def test_only_line_feeds_break_lines(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("a\u2028b\x0bc\x85d", encoding="utf-8")
    assert [line.text for line in read_lines(path)] == ["a\u2028b\x0bc\x85d"]


def test_the_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"good\nbad \xe9\n")
    with pytest.raises(CorpusError, match=r"file, line 2: expected UTF-8 text, found that byte 4 is 0xe9"):
        list(read_lines(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"nowhere: expected a readable file, found: No such file"):
        list(read_lines(tmp_path / "nowhere"))
