"""PropBank skeletons and CoNLL-2005 props: what is read, unsafe archives, and errors with file and line."""

import io
import tarfile
from pathlib import Path

import pytest
from oracles import read_props

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats.propbank import Skeleton, parse_skeletons, read_skeletons
from mtlprune.sentence import Predicate, Span

NAME = "google/ewt/answers/00/x_ans.xml"
ROWS = f"""{NAME} 0 0 [WORD]  PRP  (TOP(S(NP*)   -     -        (ARG0*)  *{"  "}
{NAME} 0 1 [WORD]  VBD       (VP*    give  give.01  (V*)     *
{NAME} 0 2 [WORD]  RP      (PRT*)    -     -        (C-V*)   (ARG1*
{NAME} 0 3 [WORD]  VBG  (S(VP*)))    run   run.02   (ARG1*)  *)(V*)
{NAME} 0 4 [WORD]  .         *))     -     -        *        *

{NAME} 1 0 [WORD]  UH    (TOP(INTJ*))  -  -
"""


def rows(text: str = ROWS) -> list[Skeleton]:
    return list(parse_skeletons(text.encode(), "few", NAME))


GOOD = ROWS.replace("*)(V*)", "(V*))")
SKELETONS = [
    Skeleton(
        NAME,
        ("PRP", "VBD", "RP", "VBG", "."),
        (Span(0, 5, "S"), Span(0, 1, "NP"), Span(1, 4, "VP"), Span(2, 3, "PRT"), Span(3, 4, "S"), Span(3, 4, "VP")),
        (
            Predicate(
                1, "give.01", (Span(0, 1, "ARG0"), Span(1, 2, "V"), Span(2, 3, "C-V"), Span(3, 4, "ARG1")), "give"
            ),
            Predicate(3, "run.02", (Span(2, 4, "ARG1"), Span(3, 4, "V")), "run"),
        ),
        "few",
        1,
    ),
    Skeleton(NAME, ("UH",), (Span(0, 1, "INTJ"),), (), "few", 7),
]


def test_trees_and_roles() -> None:
    assert rows(GOOD) == SKELETONS
    assert rows(GOOD.rstrip("\n").replace("\n", "\r\n")) == SKELETONS


def test_only_an_outermost_top_is_dropped() -> None:
    text = f"{NAME} 0 0 [WORD] UH (TOP(TOP(X*)) - -\n{NAME} 0 1 [WORD] UH *) - -\n"
    assert rows(text)[0].con == (Span(0, 1, "TOP"), Span(0, 1, "X"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((" (ARG0*)  *", ""), "line 1: expected 2 columns of arguments, .*found 0"),
        (("run   run.02 ", "run   -      "), "line 4: expected a lemma with a roleset or two dashes, found run and -"),
        (
            ("(V*))", "(V*)"),
            r"line 3: arguments of predicate 2 \(run\): word 2: the bracket \(ARG1 opened here is never",
        ),
        (("(V*))", "(V*)))"), r"line 4: arguments of predicate 2 \(run\): word 3: .* closes a bracket that was never"),
        ((".         *))", ".         *) "), r"line 1: parse bits: word 0: the bracket \(TOP opened here"),
        ((f"{NAME} 0 2", f"{NAME} 0 3"), "line 3: expected sentence 0, token 2, found 0, 3"),
        (("UH    (TOP(INTJ*))  -  -", "UH"), "line 7: expected at least 8 columns .*found 5"),
    ],
)
def test_mistakes_are_worded_with_file_and_line(change: tuple[str, str], message: str) -> None:
    assert change[0] in GOOD
    with pytest.raises(CorpusError, match="few, " + message):
        rows(GOOD.replace(*change))


def archive(path: Path, *members: tuple[str, bytes | str]) -> Path:
    """A tar archive; a member whose content is a str is a symbolic link to it."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return path


MEMBER = f"data/{NAME}.gold_skel"


def test_archives_and_folders_give_the_same(tmp_path: Path) -> None:
    data = GOOD.encode()
    file = tmp_path / "propbank" / MEMBER
    file.parent.mkdir(parents=True)
    file.write_bytes(data)
    plain = archive(tmp_path / "a.tar.gz", (MEMBER, data))
    release = archive(
        tmp_path / "b.tar.gz", ("r-1/README", b"hello"), ("r-1/data/ontonotes/x", "y"), (f"r-1/{MEMBER}", data)
    )
    for source in (plain, release, tmp_path / "propbank", tmp_path / "propbank/data/google/ewt"):
        found = read_skeletons(source)
        assert list(found) == ["answers-x_ans"]
        assert [(s.pos, s.con, s.srl) for s in found["answers-x_ans"]] == [(s.pos, s.con, s.srl) for s in SKELETONS]


def test_unsafe_and_damaged_archives_are_refused(tmp_path: Path) -> None:
    data = GOOD.encode()
    path = tmp_path / "a.tar.gz"
    for name in (f"../{MEMBER}", f"/{MEMBER}", "x/../../y"):
        with pytest.raises(CorpusError, match="expected members inside the archive's folder"):
            read_skeletons(archive(path, (name, data)))
    with pytest.raises(CorpusError, match="expected a regular file, found a link"):
        read_skeletons(archive(path, (MEMBER, "/etc/passwd")))
    with pytest.raises(CorpusError, match="expected files data/google/ewt"):
        read_skeletons(archive(path, ("README", data)))
    with pytest.raises(CorpusError, match="expected each document once"):
        read_skeletons(archive(path, (MEMBER, data), (MEMBER, data)))
    whole = archive(path, (MEMBER, bytes(range(256)) * 400)).read_bytes()
    for cut in (b"", b"no archive at all", whole[: len(whole) // 2]):
        path.write_bytes(cut)
        with pytest.raises(CorpusError, match="expected a readable tar archive"):
            read_skeletons(path)
    with pytest.raises(CorpusError, match="expected a readable tar archive"):
        read_skeletons(tmp_path / "nowhere")


def test_props(tmp_path: Path) -> None:
    path = tmp_path / "few.props"
    path.write_text("-    (ARG0*)\ncome (V*)\n\n-\n-\n")
    assert list(read_props(path)) == [(Predicate(1, None, (Span(0, 1, "ARG0"), Span(1, 2, "V")), "come"),), ()]
    path.write_text("- (ARG0*)\n- (V*)\n")
    with pytest.raises(CorpusError, match=r"few.props, line 1: expected 0 columns of arguments"):
        list(read_props(path))
