"""CoNLL-U: what must be read, what must be left out, and errors with file and line."""

from pathlib import Path

import pytest

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats.conllu import read_conllu
from mtlprune.sentence import Dependencies, Sentence

GOOD = """# newdoc id = d
# sent_id = d-1
# text = We don't.
1\tWe\twe\tPRON\tPRP\tCase=Nom\t2\tnsubj\t2:nsubj\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
2\tdo\tdo\tAUX\tVBP\t_\t0\troot\t0:root\t_
3\tn't\tnot\tPART\tRB\t_\t2\tadvmod\t2:advmod\t_
3.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t2:conj\t_
4\t.\t.\tPUNCT\t.\t_\t2\tpunct\t2:punct\t_

# a comment without a value
0.1\tx\t_\t_\t_\t_\t_\t_\t_\t_
1\t_\t_\t_\t_\t_\t_\t_\t_\t_
2\t10 000\t_\t_\t_\t_\t_\t_\t_\t_
"""
READ = [
    Sentence(
        "d-1",
        ("We", "do", "n't", "."),
        pos=("PRP", "VBP", "RB", "."),
        dep=Dependencies((2, 0, 2, 2), ("nsubj", "root", "advmod", "punct")),
    ),
    Sentence("few-2", ("_", "10 000")),
]


def read(folder: Path, text: str | bytes, **options: str) -> list[Sentence]:
    path = folder / "few.conllu"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(read_conllu(path, **options))  # type: ignore[arg-type]


def test_words_are_plain_numbers_and_underscores_are_unknown(tmp_path: Path) -> None:
    assert read(tmp_path, GOOD) == READ


@pytest.mark.parametrize(
    "data",
    [
        GOOD.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + GOOD.encode(),
        GOOD.rstrip("\n").encode(),
        GOOD.replace("\n\n", "\n\n\n\n").encode(),
    ],
    ids=["CRLF", "BOM", "no last newline", "many empty lines"],
)
def test_layouts_read_the_same(tmp_path: Path, data: bytes) -> None:
    assert read(tmp_path, data) == READ


def test_tags_come_from_the_column_asked_for(tmp_path: Path) -> None:
    assert read(tmp_path, GOOD, pos="upos")[0].pos == ("PRON", "AUX", "PART", "PUNCT")
    assert read(tmp_path, GOOD, pos="Case")[0].pos == ("Nom", "-", "-", "-")
    with pytest.raises(CorpusError, match="line 1: expected features such as Case=Nom, found 'Case'"):
        read(tmp_path, row("1").replace("T\t_", "T\tCase"), pos="Case")
    read(tmp_path, GOOD)
    beside = list(read_conllu(tmp_path / "few.conllu", "upos", beside=True))
    assert [s.get("xpos") for s in beside] == [READ[0].pos, None] and beside[1].pos is None
    with pytest.raises(CorpusError, match="column xpos or upos, or from a feature such as Case, found 'tag'"):
        read(tmp_path, GOOD, pos="tag")


def row(number: str, form: str = "a", tag: str = "T", head: str = "0", relation: str = "root") -> str:
    return f"{number}\t{form}\t_\t_\t{tag}\t_\t{head}\t{relation}\t_\t_\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\ta\t_\n", "line 1: expected 10 columns between tabs, found 3"),
        (row("1", form=""), "line 1: expected a value or _ in the column form, found nothing"),
        (row("1") + row("3", head="1"), "line 2: expected the id 2 .*found 3"),
        (row("2-3") + row("1"), "line 1: expected the id 1 .*found 2-3"),
        (row("1-2") + row("1") + row("2-3") + row("2", head="1") + row("3", head="1"), "line 3: .*found 2-3"),
        (row("1") + row("2.1"), "line 2: expected the id 2 .*found 2.1"),
        (row("x"), "line 1: expected a number such as 8, .* in the column id, found 'x'; correct the row"),
        ("# c\n" + row("1") + row("2", head="two"), "line 3: expected the number of the head, .* found 'two'; correct"),
        (row("1") + row("2", head="3"), "line 2: expected a head from 0 to 2, found 3"),
        (row("1") + row("2", head="_"), "line 2: expected a head and a relation, found None and root"),
        (row("1") + row("2", tag="_", head="1"), "line 2: expected a tag in the column xpos, found _"),
        (row("1", head="2") + row("2", head="1"), "line 1: the heads run in a circle: 1 → 2 → 1; give one"),
        ("# c\n" + row("1") + row("2", head="3") + row("3", head="2"), "line 3: the heads run in a circle: 2 → 3 → 2"),
        ("# sent_id = a\n" + row("1") + "\n# sent_id = a\n" + row("1"), "line 4: the sent_id 'a' was used at line 1"),
        (row("1") + "\n# only a comment\n", "line 3: expected at least one word"),
    ],
)
def test_mistakes_are_worded_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(CorpusError, match="few.conllu, " + message):
        read(tmp_path, text)
