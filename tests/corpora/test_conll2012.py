"""CoNLL-2012: every column to its layer, variants of the format, and errors with file and line."""

from pathlib import Path

import pytest

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats.conll2012 import read_conll2012, read_documents
from mtlprune.sentence import Predicate, Sentence, Span

# our own sentences, in the columns of the format
TEXT = """#begin document (nw/own/00/own_0001); part 000
nw/own/00/own_0001   0   0     Ada    NNP   (TOP(S(NP*)       -    -   -   -   (PERSON)   (ARG0*)      *   (3)
nw/own/00/own_0001   0   1   wants    VBZ         (VP*     want   01   1   -        *         (V*)      *    -
nw/own/00/own_0001   0   2      to     TO      (S(VP*        -    -   -   -        *      (ARG1*       *    -
nw/own/00/own_0001   0   3     see     VB        (VP*      see   01   -   -        *           *      (V*)   -
nw/own/00/own_0001   0   4     New    NNP        (NP*        -    -   -   -    (GPE*           *   (ARG1*   (4
nw/own/00/own_0001   0   5    York    NNP    *)))))        -    -   -   -        *)          *)       *)   4)
nw/own/00/own_0001   0   6      /.      .         *))       -    -   -   -        *           *        *    -

nw/own/00/own_0001   0   0   -LRB-  -LRB-   (TOP(FRAG*   -   -   -   -   *   -
nw/own/00/own_0001   0   1   Maybe     RB   (ADVP-X*)    -   -   -   -   *   -
nw/own/00/own_0001   0   2      /?      .        *       -   -   -   -   *   -
nw/own/00/own_0001   0   3   -RRB-  -RRB-       *))      -   -   -   -   *   -

#end document
#begin document (nw/own/00/own_0001); part 001
nw/own/00/own_0001   1   0   Yes   UH   (TOP(INTJ*))   -   -   -   A_B   *   -

#end document
"""


def read(folder: Path, text: str | bytes) -> list[Sentence]:
    path = folder / "own_0001.v4_gold_conll"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(read_conll2012(path))


def test_every_column_to_its_layer(tmp_path: Path) -> None:
    first, second, third = read(tmp_path, TEXT)
    assert first == Sentence(
        "nw/own/00/own_0001/000/0",
        ("Ada", "wants", "to", "see", "New", "York", "."),
        pos=("NNP", "VBZ", "TO", "VB", "NNP", "NNP", "."),
        ner=(Span(0, 1, "PERSON"), Span(4, 6, "GPE")),
        con=(
            Span(0, 7, "S"),
            Span(0, 1, "NP"),
            Span(1, 6, "VP"),
            Span(2, 6, "S"),
            Span(2, 6, "VP"),
            Span(3, 6, "VP"),
            Span(4, 6, "NP"),
        ),
        srl=(
            Predicate(1, "want.01", (Span(0, 1, "ARG0"), Span(1, 2, "V"), Span(2, 6, "ARG1")), "want"),
            Predicate(3, "see.01", (Span(3, 4, "V"), Span(4, 6, "ARG1")), "see"),
        ),
    )
    assert second.id == "nw/own/00/own_0001/000/1"
    assert second.words == ("-LRB-", "Maybe", "?", "-RRB-")
    assert second.pos == ("-LRB-", "RB", ".", "-RRB-")
    assert second.con == (Span(0, 4, "FRAG"), Span(1, 2, "ADVP"))
    assert (second.ner, second.srl) == ((), ())  # the document has both layers, the sentence nothing on them
    assert (third.id, third.words, third.con) == ("nw/own/00/own_0001/001/0", ("Yes",), (Span(0, 1, "INTJ"),))


def test_bom_crlf_tabs_and_missing_newline_read_the_same(tmp_path: Path) -> None:
    expected = read(tmp_path, TEXT)
    assert read(tmp_path, b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode()) == expected
    assert read(tmp_path, TEXT.rstrip("\n")) == expected
    tabs = "\n".join(line if line.startswith("#") else "\t".join(line.split()) for line in TEXT.splitlines())
    assert read(tmp_path, tabs) == expected
    assert read(tmp_path, TEXT.replace("\n\n#end", "\n#end")) == expected


def test_documents_whose_columns_are_empty_are_unknown(tmp_path: Path) -> None:
    bare = "\n".join(line for line in TEXT.splitlines()[:1] + TEXT.splitlines()[9:])
    sentences = read(tmp_path, bare)
    assert len(sentences) == 2
    assert all(sentence.ner is None and sentence.srl is None for sentence in sentences)
    assert all(sentence.pos and sentence.con for sentence in sentences)
    # another document in the same file does not make this one known
    other = TEXT.replace("own_0001", "own_0002") + bare
    assert [sentence.ner is None for sentence in read(tmp_path, other)] == [False] * 3 + [True] * 2


def rows(*cells: str) -> str:
    """One sentence; each argument is word, POS, parse bit, NER."""
    lines = ["#begin document (d); part 000"]
    for number, row in enumerate(cells):
        word, tag, bit, name = row.split()
        lines.append(f"d 0 {number} {word} {tag} {bit} - - - - {name} -")
    return "\n".join([*lines, "", "#end document", ""])


def test_missing_parse_is_unknown(tmp_path: Path) -> None:
    (sentence,) = read(tmp_path, rows("a XX (TOP* *", "b VERB * *", "c XX *) *"))
    assert (sentence.con, sentence.pos) == (None, None)
    (sentence,) = read(tmp_path, rows("a DT (TOP* *", "b NN *) *"))
    assert (sentence.con, sentence.pos) == (None, ("DT", "NN"))
    (sentence,) = read(tmp_path, rows("a UH (TOP*) *"))
    assert (sentence.con, sentence.pos) == ((), ("UH",))


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (("(GPE(ORG)", "*)"), [(0, 2, "GPE")]),
        (("(GPE(ORG*", "*))"), [(0, 2, "GPE")]),
        (("(GPE(ORG))", "(DATE)"), [(0, 1, "GPE"), (1, 2, "DATE")]),
        (("(GPE*", "(ORG))"), [(0, 2, "GPE")]),
    ],
)
def test_nested_entities_keep_the_outermost_and_the_first(tmp_path, names, kept):
    text = rows(f"a NN (TOP(NP* {names[0]}", f"b NN *)) {names[1]}")
    (sentence,) = read(tmp_path, text)
    assert sentence.ner == tuple(Span(*span) for span in kept)
    (document,) = read_documents(tmp_path / "own_0001.v4_gold_conll")
    assert document.nested == 1


def changed(line: int, old: str, new: str) -> str:
    lines = TEXT.split("\n")
    assert old in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old, new, 1)
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        (changed(1, "#begin", "#start"), "line 1:", "#begin document"),
        (changed(3, "(V*)", ""), "line 3", "expected 14 columns"),
        ("#begin document (d); part 000\nd 0 0 a NN\n#end document\n", "line 2", "at least 12 columns"),
        (changed(4, "to ", "[WORD]"), "line 4", "withheld"),
        (changed(5, "   3 ", "   4 "), "line 5", "expected word number 3, found 4"),
        (changed(6, "nw/own/00/own_0001", "nw/own/00/own_0009"), "line 6", "column 1"),
        (changed(7, "*)))))", "*))))))))"), "line 7", "column 6"),
        (changed(7, "*)))))", "*)))"), "line 2", "never closed"),
        (changed(6, "(GPE*", "GPE*"), "line 6", "column 11"),
        (changed(5, "(V*)", "(V*"), "line 5", "column 13"),
        (changed(5, "  01  ", "  -  "), "lines 2–8", "1 predicates (frameset not '-'), found 2"),
        (TEXT.replace("#end document\n#begin", "#begin"), "line 15", "before #end"),
        ("#end document\n", "line 1:", "without #begin"),
        (TEXT.replace("part 001", "part 000"), "line 16", "second time"),
        (TEXT.rstrip()[: -len("#end document")], "line 16", "lacks its #end"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, text: str, line: str, what: str) -> None:
    with pytest.raises(CorpusError) as caught:
        read(tmp_path, text)
    assert what in str(caught.value)
    assert line in str(caught.value)
    assert "own_0001.v4_gold_conll" in str(caught.value)


def test_swapped_argument_columns_are_refused(tmp_path: Path) -> None:
    lines = TEXT.split("\n")
    for number in range(1, 8):
        cells = lines[number].split()
        cells[11], cells[12] = cells[12], cells[11]
        lines[number] = " ".join(cells)
    with pytest.raises(CorpusError, match="order of the predicates"):
        read(tmp_path, "\n".join(lines))
