"""IOB2: both column layouts, the artefacts of raw files, tags to spans and back, and errors with file and line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_sentences import flat_spans

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats.iob2 import iob2_from_spans, read_iob2, spans_from_tags
from mtlprune.sentence import Sentence, Span

RAW = """# newdoc id = d
# sent_id = d-1
# text = Ann Lee sued the French Star
1\tAnn\tB-PER\t-\tstephen
2\tLee\tI-PER\t-\tstephen
3\t#\tO
4\tthe\tO
5\tFrench\tB-OTH\t-\tstephen
6\tStar\tB-O\t-\tstephen

1\tNo\tO
"""


def read(folder: Path, text: str | bytes, **options: object) -> list[Sentence]:
    path = folder / "few.iob2"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(read_iob2(path, **options))  # type: ignore[arg-type]


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), flat_spans(n))))
def test_spans_to_tags_and_back(case: tuple[int, tuple[Span, ...]]) -> None:
    n, spans = case
    assert spans_from_tags(iob2_from_spans(spans, n)) == spans


def test_neighbours_of_one_type_stay_apart() -> None:
    assert spans_from_tags(["B-X", "B-X", "I-X"]) == (Span(0, 1, "X"), Span(1, 3, "X"))


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_raw_files_with_their_artefacts_named(tmp_path: Path, ending: str, start: str) -> None:
    text = start + RAW.rstrip("\n").replace("\n", ending)
    first, second = read(tmp_path, text, as_outside={"O", "OTH"})
    assert first == Sentence("d-1", ("Ann", "Lee", "#", "the", "French", "Star"), ner=(Span(0, 2, "PER"),))
    assert second == Sentence("few-2", ("No",), ner=())


def test_raw_files_without_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"few.iob2, line 9: found B-O, but no entity is of type O"):
        read(tmp_path, RAW)


def test_corrections_take_the_place_of_tags(tmp_path: Path) -> None:
    corrections = {("d-1", 6): "B-ORG", ("d-1", 5): "O"}
    assert read(tmp_path, RAW, corrections=corrections)[0].ner == (Span(0, 2, "PER"), Span(5, 6, "ORG"))
    with pytest.raises(CorpusError, match="expected word 7 of sentence 'd-1' for a correction"):
        read(tmp_path, RAW, as_outside={"O"}, corrections={("d-1", 7): "O"})


def test_two_columns_with_hashes_as_words(tmp_path: Path) -> None:
    text = "# sent_id = x\n# O\nAnn B-PER\n\n#1 B-PER\nfan O\n"
    assert read(tmp_path, text) == [
        Sentence("x", ("#", "Ann"), ner=(Span(1, 2, "PER"),)),
        Sentence("few-2", ("#1", "fan"), ner=(Span(0, 1, "PER"),)),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a O\nb I-PER\n", "line 2: I-PER continues no open span; in IOB2 a span opens with B-PER"),
        ("a B-LOC\nb I-PER\n", "line 2: I-PER continues a span of LOC"),
        ("a PER\n", "line 1: expected an IOB2 tag"),
        ("a\n", "line 1: expected a word and a tag between blanks"),
        ("1\ta\n", "line 1: expected at least three columns"),
        ("1\ta\tO\n3\tb\tO\n", "line 2: expected the word number 2, found '3'"),
        ("# sent_id = a\na O\n\n# sent_id = a\nb O\n", "line 4: the sent_id 'a' was used at line 1"),
        ("a O\n\n# sent_id = b\n", "line 3: expected at least one word"),
    ],
)
def test_mistakes_are_worded_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(CorpusError, match="few.iob2, " + message):
        read(tmp_path, text)
