"""Penn brackets: layouts that must all read the same, options, and errors with file and line."""

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats.brackets import format_tree, read_ptb
from mtlprune.sentence import Sentence, Span

TREE = """(TOP (S (NP-SBJ-1 (DT The) (NN gate))
      (VP (VBD was)
          (VP (VBN closed) (NP (-NONE- *-1)) (PP-TMP (IN by) (NP=2 (NN noon)))))
      (. .)))"""
WORDS = ("The", "gate", "was", "closed", "by", "noon", ".")
CON = (Span(0, 7, "S"), Span(0, 2, "NP"), Span(2, 6, "VP"), Span(3, 6, "VP"), Span(4, 6, "PP"), Span(5, 6, "NP"))


def read(folder: Path, text: str | bytes, **options: bool) -> list[Sentence]:
    path = folder / "few.mrg"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(read_ptb(path, **options))


@pytest.mark.parametrize(
    "text",
    [
        TREE + "\n",
        TREE,
        " ".join(TREE.split()),
        TREE.replace("(TOP (S", "( (S"),
        TREE.replace("(TOP (S", "(ROOT (S"),
        TREE.replace("(TOP (S", "((S"),
        b"\xef\xbb\xbf" + TREE.replace("\n", "\r\n").encode(),
        TREE.replace("(NP (-NONE- *-1))", "(NP (NP (-NONE- *-1)) (SBAR (-NONE- 0) (S (-NONE- *T*-2))))"),
    ],
    ids=["plain", "no newline", "one line", "bare root", "ROOT", "no blank", "BOM and CRLF", "nested empties"],
)
def test_layouts_read_the_same(tmp_path: Path, text: str | bytes) -> None:
    (sentence,) = read(tmp_path, text)
    assert sentence.id == "few/1"
    assert sentence.words == WORDS
    assert sentence.pos == ("DT", "NN", "VBD", "VBN", "IN", "NN", ".")
    assert sentence.con == CON


def test_functions_are_kept_where_that_is_wanted(tmp_path: Path) -> None:
    (sentence,) = read(tmp_path, TREE, functions=True)
    assert sentence.words == WORDS and sentence.con is not None
    assert [span.label for span in sentence.con] == ["S", "NP-SBJ-1", "VP", "VP", "PP-TMP", "NP=2"]


def test_backslashes_and_bracket_codes(tmp_path: Path) -> None:
    text = "(TOP (X (SYM \\) (CD 1\\/2) (NN a\\\\b) (-LRB- -LRB-) (-RRB- -RRB-)))"
    (kept,) = read(tmp_path, text)
    assert kept.words == ("\\", "1\\/2", "a\\\\b", "-LRB-", "-RRB-")
    assert kept.pos == ("SYM", "CD", "NN", "-LRB-", "-RRB-")
    (plain,) = read(tmp_path, text, unescape=True)
    assert plain.words == ("\\", "1\\/2", "a\\\\b", "(", ")")


def test_unary_chains_single_words_and_several_trees(tmp_path: Path) -> None:
    chain, bare, last = read(tmp_path, "(TOP (S (VP (VB Go))))(TOP (UH Yes)) \n\n ( (NN x))")
    assert chain.con == (Span(0, 1, "S"), Span(0, 1, "VP"))
    assert (bare.words, bare.pos, bare.con) == (("Yes",), ("UH",), ())
    assert (last.id, last.con) == ("few/3", ())


def test_tree_of_empties_only_is_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        sentences = read(tmp_path, "(TOP (NP (-NONE- *)))\n(TOP (UH Yes))")
    assert [sentence.id for sentence in sentences] == ["few/2"]
    assert "line 1" in caplog.text and "empty elements only" in caplog.text


def test_very_deep_tree(tmp_path: Path) -> None:
    (sentence,) = read(tmp_path, "(S " * 5000 + "(NN deep)" + ")" * 5000)
    assert sentence.con is not None and len(sentence.con) == 5000


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("(TOP (NN a))\n\n(TOP (NN b)", 3, "not closed"),
        ("(TOP\n (NP the dog))", 2, "'dog'"),
        ("(TOP (NP the\n (NN dog)))", 2, "either one word or other nodes"),
        ("(TOP\n (NP))", 2, "neither a word nor other nodes"),
        ("(TOP (NP\n ((NN dog))))", 2, "without label"),
        ("(TOP (NN a))\nwords", 2, "remove text outside trees"),
        (b"(TOP (NN a))\n(TOP (NN \xff))", 2, "UTF-8"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, text: str | bytes, line: int, what: str) -> None:
    with pytest.raises(CorpusError, match=what) as caught:
        read(tmp_path, text)
    assert f"few.mrg, line {line}:" in str(caught.value)


@st.composite
def bracketings(draw: st.DrawFn) -> tuple[Span, ...]:
    """Random labelled bracketings in pre-order over a random number of words."""

    def node(start: int, end: int, depth: int) -> list[Span]:
        labels = draw(st.lists(st.sampled_from(["S", "NP", "VP", "X"]), max_size=2))
        found = [Span(start, end, label) for label in labels]
        if end - start > 1 and depth < 4 and draw(st.booleans()):
            middle = draw(st.integers(start + 1, end - 1))
            found += node(start, middle, depth + 1) + node(middle, end, depth + 1)
        return found

    length = draw(st.integers(1, 7))
    return (Span(0, length, "S"), *node(0, length, 0))


@given(bracketings())
def test_written_trees_read_back(tmp_path_factory: pytest.TempPathFactory, con: tuple[Span, ...]) -> None:
    words = tuple(f"w{place}" for place in range(con[0].end))
    sentence = Sentence("few/1", words, pos=("T",) * len(words), con=con)
    path = tmp_path_factory.mktemp("trees") / "few.mrg"
    path.write_text(format_tree(sentence), encoding="utf-8")
    assert list(read_ptb(path)) == [sentence]
