"""MASC and GUM: the real files counted as the tables of data_scripts/README.md say; parts on small text."""

import re
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from shared_corpora import CORPORA, needs

from mtlprune.corpora import CorpusError
from mtlprune.corpora import masc as corpus
from mtlprune.corpora.masc import MascDocument, Name, align_names, build_masc
from mtlprune.sentence import Predicate, Sentence, Span

README = (Path(__file__).parents[2] / "data_scripts" / "README.md").read_text(encoding="utf-8")

COLUMNS = ("documents", "sentences", "words", "constituents", "predicates", "with NER", "names")


def table(heading: str) -> dict[str, list[int]]:
    section = README.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([\w-]+) \| ([\d,]+(?: \| [\d,]+)+) \|$", section, re.MULTILINE)
    return {name: [int(cell.replace(",", "")) for cell in cells.split(" | ")] for name, cells in rows}


@needs("masc")
def test_masc_is_what_another_join_found() -> None:
    """The table was counted by a join of other means: trees as nested lists, names by the nearest equal letters."""
    lines: list[str] = []
    splits, _, left_out = build_masc(CORPORA / "masc", lines.append)
    built: dict[str, Counter[str]] = {genre: Counter() for genre in table("MASC")}
    for sentence in (sentence for split in splits.values() for sentence in split):
        parts = {"sentences": 1, "words": len(sentence), "with NER": sentence.ner is not None}
        parts |= {"constituents": len(sentence.con or ()), "predicates": len(sentence.srl or ())}
        built[sentence.id.split("/")[0]].update(parts | {"names": len(sentence.ner or ())})
    for document in corpus.documents():
        built[document.genre]["documents"] += 1
    expected = table("MASC")
    assert {genre: [row[column] for column in COLUMNS] for genre, row in built.items()} == expected
    numbers = [sum(map(len, left_out["unaligned"].values())), left_out["of"]]
    assert f"{numbers[0]} of {numbers[1]:,} names" in README
    assert sum("CON and SRL are unknown" in line for line in lines) == 2


@needs("gum")
def test_gum_is_what_its_lines_say() -> None:
    listed = (CORPORA / "gum" / "splits.md").read_text(encoding="utf-8").split("\n## ")[1:]
    split_of = {name: part.split()[0] for part in listed for name in re.findall(r"\* (\w+)", part)}
    read: dict[str, Counter[int]] = {split: Counter() for split in table("GUM and GENTLE")}
    with tarfile.open(CORPORA / "gum" / "gum_dep.tar.xz") as archive:
        for member in (member for member in archive if member.name.endswith(".conllu")):
            text = archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            found = {0: 1, 1: text.count("# sent_id"), 2: len(re.findall(r"(?m)^\d+\t", text))}
            read[split_of[Path(member.name).stem]].update(found)
    assert {split: [row[k] for k in range(3)] for split, row in read.items()} == table("GUM and GENTLE")


# -- small text --------------------------------------------------------------------------------------------------------

TEXT = "\n  “I'd call Mr. Smith of U.S. Steel,” said\n Ann Lee. Not (ever).\n"
WORDS = [['"', "I", "'d", "call", "Mr.", "Smith", "of", "U.S.", "Steel", ",", '"', "said", "Ann", "Lee", "."]]
WORDS += [["Not", "(", "ever", ")", "."]]


def sentences(words: list[list[str]]) -> list[Sentence]:
    return [Sentence(f"s/{number}", tuple(own)) for number, own in enumerate(words)]


def name(text: str, kind: str = "Person") -> Name:
    return Name(TEXT.index(text), TEXT.index(text) + len(text), kind)


@pytest.mark.parametrize(
    ("names", "expected", "wrong"),
    [
        ([name("Smith"), name("Ann Lee")], [(Span(5, 6, "PER"), Span(12, 14, "PER")), ()], 0),
        ([name("\n Ann Lee")], [(Span(12, 14, "PER"),), ()], 0),  # blanks at its ends do not count
        ([name("U.S.", "Location"), name("U.S. Steel", "Organization")], [(Span(7, 9, "ORG"),), ()], 0),
        ([name("Ann Lee", "Location"), name("Ann Lee")], [(Span(12, 14, "PER"),), ()], 0),
        ([name("Smit")] + [name("Lee")] * 9, [None, ()], 1),  # it ends within a word
        ([name("Lee. Not")] + [name("Lee")] * 9, [None, None], 1),  # it lies in two sentences
        ([name("eve")] + [name("Lee")] * 8, [None, None], 1),  # more than a tenth
        ([name("eve")] + [name("Lee")] * 9, [(Span(13, 14, "PER"),), None], 1),
    ],
)
def test_names_are_moved_or_unknown(names: list[Name], expected: list[tuple[Span, ...] | None], wrong: int) -> None:
    ner, unaligned = align_names(sentences(WORDS), TEXT, names)
    assert ner == expected and len(unaligned) == wrong


def test_names_of_another_text_are_unknown() -> None:
    ner, unaligned = align_names(sentences(WORDS), "0 1 2", [Name(0, 1, "Person")])
    assert set(ner) == {None} and len(unaligned) == 1


TREES = "( (CODE <TURN>))\n( (S (NP (PRP I) (-NONE- *)) (VP (VB go) (NP *PRO*-1) ( (ADVP (RB on)))) (SU /)))"
TREES += "( (X (RB Now)))"
SKELETON = """d1 0 0 [WORD] CODE (TOP*) - -

d1 1 0 [WORD] PRP (TOP(S(NP*) - - (A0*)
d1 1 1 [WORD] VB (VP* go go.01 (V*)
d1 1 2 [WORD] NP * - - *
d1 1 3 [WORD] RB (ADVP*)) - - (A1*
d1 1 4 [WORD] SU *)) - - *)

d1 2 0 [WORD] RB (TOP(X* - -
"""
DATE = '<cesAna xmlns="http://www.xces.org/schema/2003"><struct type="Date" from="9" to="12"/></cesAna>'
PLACES = ("Penn_Treebank/d1.mrg", "masc/00/d1.gold_skel", "txtfiles/d1.txt", "ne-date/d1-NE.xml")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One document: a turn, a sentence with a trace and an end of a unit, and one whose skeleton is damaged."""
    monkeypatch.setattr(corpus, "documents", lambda: [MascDocument("talk", "d1", "train")])
    for path, text in zip(PLACES, (TREES, SKELETON, "I go on. Now", DATE), strict=True):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_marks_are_no_words_and_damaged_skeletons_unknown(small: Path) -> None:
    lines: list[str] = []
    splits, _, _ = build_masc(small, lines.append)
    roles = (Predicate(1, "go.01", (Span(0, 1, "A0"), Span(1, 2, "V"), Span(2, 3, "A1")), "go"),)
    con = (Span(0, 3, "S"), Span(0, 1, "NP"), Span(1, 3, "VP"), Span(2, 3, "ADVP"))
    assert splits["train"] == [
        Sentence("talk/d1/1", ("I", "go", "on"), ("PRP", "VB", "RB"), (), None, con, roles),
        Sentence("talk/d1/2", ("Now",), ("RB",), (Span(0, 1, "DATE"),)),
    ]
    assert "talk/d1/2: CON and SRL are unknown" in lines[0] and "NER has 1 of 1 names" in lines[-1]


@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        ("txtfiles/d1.txt", None, "expected a file txtfiles/d1 in --sources, found none; download it from oanc/masc"),
        ("ne-date/d1-NE.xml", ('from="9"', ""), "expected names with from, to and type, found: 'from'"),
        ("Penn_Treebank/d1.mrg", ("VB go", "VBP go"), "d1.mrg, tree 1: expected the tags of .* found PRP VBP"),
        ("Penn_Treebank/d1.mrg", ("( (X (RB Now)))", ""), "d1.mrg: expected 3 trees, as .* has, found 2"),
        ("Penn_Treebank/d1.mrg", ("Now)))", "Now))))"), "d1.mrg, line 2: there is an extra"),
    ],
)
def test_sources_that_do_not_fit(small: Path, path: str, change: tuple[str, str] | None, message: str) -> None:
    file = small / path
    if change:
        file.write_text(file.read_text().replace(*change))
    else:
        file.unlink()
    with pytest.raises(CorpusError, match=message):
        build_masc(small, print)
