"""Readers of files: what each reads, layouts that all must read the same, and mistakes with file and line."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conll2012_files import NAMED, PLAIN, document
from hypothesis import given
from random_sentences import nested_spans, sized, spans

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats import read_lines
from mtlprune.corpora.formats.brackets import bare_label, format_tree, read_ptb, spans_from_stars, stars_from_spans
from mtlprune.corpora.formats.conll2012 import read_conll2012, read_documents
from mtlprune.corpora.formats.conllu import COLUMNS, parse_misc, read_conllu
from mtlprune.corpora.formats.propbank import Skeleton, parse_skeletons
from mtlprune.sentence import Dependencies, Predicate, Sentence, Span

Reader = Callable[..., Iterator[Any]]


def read(reader: Reader, folder: Path, text: str | bytes, **options: Any) -> list[Any]:
    path = folder / "few.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(reader(path, **options))


CONLLU = """# newdoc id = d
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


def row(
    number: str,
    form: str = "a",
    tag: str = "T",
    head: str = "0",
    relation: str = "root",
    upos: str = "_",
    misc: str = "_",
) -> str:
    return f"{number}\t{form}\t_\t{upos}\t{tag}\t_\t{head}\t{relation}\t_\t{misc}\n"


def test_conllu_words_are_plain_numbers_and_underscores_are_unknown(tmp_path: Path) -> None:
    tree = Dependencies((2, 0, 2, 2), ("nsubj", "root", "advmod", "punct"))
    first = Sentence("d-1", ("We", "do", "n't", "."), pos=("PRP", "VBP", "RB", "."), dep=tree)
    assert read(read_conllu, tmp_path, CONLLU) == [first, Sentence("few-2", ("_", "10 000"))]


def test_conllu_tags_come_from_the_column_asked_for(tmp_path: Path) -> None:
    assert read(read_conllu, tmp_path, CONLLU, pos="upos")[0].pos == ("PRON", "AUX", "PART", "PUNCT")
    assert read(read_conllu, tmp_path, CONLLU, pos="Case")[0].pos == ("Nom", "-", "-", "-")
    beside = read(read_conllu, tmp_path, CONLLU, pos="upos", keep_other_tags=True)
    assert [s.get("xpos") for s in beside] == [("PRP", "VBP", "RB", "."), None] and beside[1].pos is None
    with pytest.raises(CorpusError, match="line 1: expected features such as Case=Nom, found 'Case'"):
        read(read_conllu, tmp_path, row("1").replace("T\t_", "T\tCase"), pos="Case")


def test_conllu_annotation_that_is_not_asked_for_is_not_judged(tmp_path: Path) -> None:
    """Tags beside those asked for are left out where some words have none; ids may begin anew with each document."""
    some = "".join(row(str(n), tag=tag, head=str(n - 1), upos="X") for n, tag in enumerate(["T", "_", "", "A B"], 1))
    told: list[str] = []
    text = f"# sent_id = a\n{some}\n# sent_id = a\n{row('1', upos='X', misc='')}\n{row('1', tag='_', upos='X')}"
    found = read(read_conllu, tmp_path, text, pos="upos", keep_other_tags=True, tell=told.append)
    assert [(s.id, s.pos, s.get("xpos")) for s in found] == [
        ("a", ("X",) * 4, None), ("a", ("X",), ("T",)), ("few-3", ("X",), None),
    ]  # fmt: skip
    assert told == [
        f"{tmp_path / 'few.txt'}: xpos: tags were left out in 1 of 3 sentences, in which some words have none"
    ]
    with pytest.raises(CorpusError, match="line 3: expected a tag in the column xpos, found _ next to"):
        read(read_conllu, tmp_path, text, pos="xpos")


TEN = " ".join(COLUMNS).upper()


def plus(columns: str, text: str = CONLLU, **cells: str) -> str:
    """Text in the columns named, those of CoNLL-U or with the same cell in all rows."""
    lines = [f"# global.columns = {columns}"]
    for line in text.splitlines():
        known = dict(zip(TEN.split(), line.split("\t"), strict=False)) | cells
        lines.append("\t".join(known[column] for column in columns.split()) if "\t" in line else line)
    return "\n".join(lines) + "\n"


def test_conllu_plus_is_read_by_the_names_of_its_columns(tmp_path: Path) -> None:
    expected = read(read_conllu, tmp_path, CONLLU, pos="upos", keep_other_tags=True)
    for columns in (TEN, "MISC DEPS DEPREL HEAD FEATS XPOS UPOS LEMMA FORM ID", "ID FORM X:Y HEAD DEPREL UPOS XPOS"):
        text = plus(columns, **{"X:Y": "a|b"})
        for layout in (text, text.replace("\n", "\n\n", 1)):
            found = read(read_conllu, tmp_path, layout, pos="upos", keep_other_tags=True)
            assert found == expected and not any("global" in s.source for s in found if columns[:2] != "ID")
    assert found[0].source.splitlines()[3] == "1\tWe\t_\tPRON\tPRP\t_\t2\tnsubj\t_\tX:Y=a\\pb"
    [tags, _] = read(read_conllu, tmp_path, text, misc=parse_misc(["X:Y=own:tags"]))
    assert tags.get("own") == ("a|b",) * 4
    both = read(read_conllu, tmp_path, text + "\n" + plus(TEN))
    assert [s.words for s in both] == [s.words for s in expected] * 2


def test_more_columns_without_names_are_left_out_where_the_first_ten_are_those_of_conllu(tmp_path: Path) -> None:
    told: list[str] = []
    text = "".join(f"{line}\t_\tA0\n" if "\t" in line else line + "\n" for line in CONLLU.splitlines())
    assert read(read_conllu, tmp_path, text, tell=told.append) == read(read_conllu, tmp_path, CONLLU)
    left_out = "columns after the tenth have no name (as in Universal Propositions) and are left out"
    assert [line.partition(": ")[2] for line in told] == [left_out]
    roles = "1 She {0} {0} PRP PRP _ _ 2 2 SBJ SBJ _ _ A0".replace(" ", "\t")  # as in CoNLL-2009
    for lemma in ("she", "_"):
        with pytest.raises(CorpusError, match=r"line 1: expected 10 columns .* found 15, and no line # global.columns"):
            read(read_conllu, tmp_path, roles.format(lemma))


def keyed(*values: str, key: str = "name") -> str:
    """Words, or a multiword token of the two after it (2:...), with a value each under a key of MISC; none if empty."""
    rows, number = "", 0
    for value in values:
        size, _, value = value.rpartition(":")
        misc = f"SpaceAfter=No|{key}={value}" if value else "_"
        rows += row(f"{number + 1}-{number + 2}", "du", "_", "_", "_", misc=misc) if size else ""
        for _ in range(int(size or 1)):
            number += 1
            rows += row(str(number), head=str(number - 1), misc="_" if size else misc)
    return rows + "\n"


@pytest.mark.parametrize(
    ("sentences", "expected"),
    [
        ([("O", "B-PER", "I-PER"), ("", "", "")], [spans((1, 3, "PER")), None]),  # O is written, so nothing is unknown
        ([("", "B-PER", "I-PER"), ("", "")], [spans((1, 3, "PER")), ()]),
        ([("S-LOC", "B-PER", "I-PER", "E-PER")], [spans((0, 1, "LOC"), (1, 4, "PER"))]),
        ([("O", "2:S-LOC", "O")], [spans((1, 3, "LOC"))]),  # said of a multiword token, as some tools do
        ([("B-X", "2:E-X", "2:O", "O")], [spans((0, 3, "X"))]),
        ([("O", "B-a\\pb")], [spans((1, 2, "a|b"))]),
    ],
)
def test_names_in_misc(tmp_path: Path, sentences: list[tuple[str, ...]], expected: list[Any]) -> None:
    text = "".join(keyed(*values) for values in sentences)
    assert [s.ner for s in read(read_conllu, tmp_path, text, misc=parse_misc(["name=ner"]))] == expected


def test_tags_in_misc_and_mistakes_there(tmp_path: Path) -> None:
    text = keyed("A", "2:B", key="k") + keyed("", key="k")
    found = read(read_conllu, tmp_path, text, misc=parse_misc(["k=own:tags"]))
    assert [s.get("own") for s in found] == [("A", "B", "B"), None]
    for values, message in [
        (("O", "", "B-X"), "line 2: MISC, name: word 1: expected name=... in MISC, found none next to"),
        (("O", "I-X", "O", "B-X"), "line 2: MISC, name: word 1: I-X continues no open span"),
        (("",), "few.txt: expected name=... in MISC at some word, found none"),
    ]:
        with pytest.raises(CorpusError, match=message):
            read(read_conllu, tmp_path, keyed(*values), misc=parse_misc(["name=ner"]))
    for text in ("ner", "name=", "=ner", "name=own", "name=con", "name=pos", "k=own:tree", "k=own:frames"):
        with pytest.raises(CorpusError, match=f"--misc {text}: "):
            parse_misc([text])
    with pytest.raises(CorpusError, match="found the key or the layer twice"):
        parse_misc(["name=ner", "NE=ner"])


CONLLU_MISTAKES = [
    ("1\ta\t_\n", "line 1: expected 10 columns between tabs, found 3"),
    (row("1", form=""), "line 1: expected a value in the column form, found nothing; write a value"),
    (row("1") + row("3", head="1"), "line 2: expected the id 2, found 3"),
    (row("2-3") + row("1"), "line 1: expected the words of a multiword token, from 1 to 1 at most, found 2-3"),
    (row("1") + row("2-9") + row("2", head="1"), "line 2: expected the words .* from 2 to 2 at most, found 2-9"),
    ("# c\n" + row("1") + row("2", head="two"), "line 3: expected the number of the head .* found 'two'; correct"),
    (row("1") + row("2", head="3"), "line 2: expected a head from 0 to 2, found 3"),
    (row("1") + row("2", tag="_", head="1"), "line 2: expected a tag in the column xpos, found _"),
    (row("1") + row("2", head="1", relation="_"), "line 2: expected a head and a relation, found 1 and _"),
    (row("1") + row("2", head="\u0661"), "line 2: expected the number of the head .* found '\u0661'"),
    (row("9" * 5000), "line 1: expected a number such as 8, 8-9 or 8.1 in the column id, found '99"),
    (row("1", form=" a"), "line 1: expected only single blanks inside words, found ' a'"),
    (row("1", form="\u00a0"), "line 1: .*word 0 is '.xa0'"),
    (row("1").rstrip() + "\tx\n" + row("2", head="1"), "line 1: expected 10 columns between tabs, found 11; repair"),
    ("# global.columns = ID LEMMA\n1\ta\n", "line 1: expected ID, FORM and no name twice in global.columns"),
    ("# global.columns = ID FORM UPOS\n1\ta\n", "line 2: expected 3 columns between tabs, found 2"),
    (row("1", upos="DT").rstrip() + "\tx\n", "line 1: expected 10 columns .*, found 11, and no line # global.columns"),
    ("# c\n" + row("1") + row("2", head="3") + row("3", head="2"), "line 3: the heads form a circle: 2 → 3 → 2"),
    (row("1") + "\n# only a comment\n", "line 3: expected at least one word"),
]

# CoNLL-2012: our own sentences, in the columns of the format

CONLL2012 = """#begin document (nw/own/00/own_0001); part 000
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


def test_conll2012_has_a_column_for_every_layer(tmp_path: Path) -> None:
    first, second, third = read(read_conll2012, tmp_path, CONLL2012)
    words, tags = ("Ada", "wants", "to", "see", "New", "York", "."), ("NNP", "VBZ", "TO", "VB", "NNP", "NNP", ".")
    phrases = spans((0, 7, "S"), (0, 1, "NP"), (1, 6, "VP"), (2, 6, "S"), (2, 6, "VP"), (3, 6, "VP"), (4, 6, "NP"))
    wants = Predicate(1, "want.01", spans((0, 1, "ARG0"), (1, 2, "V"), (2, 6, "ARG1")), "want")
    see = Predicate(3, "see.01", spans((3, 4, "V"), (4, 6, "ARG1")), "see")
    names = spans((0, 1, "PERSON"), (4, 6, "GPE"))
    name = "nw/own/00/own_0001/000"
    assert first == Sentence(f"{name}/0", words, tags, names, con=phrases, srl=(wants, see))
    words, tags = ("-LRB-", "Maybe", "?", "-RRB-"), ("-LRB-", "RB", ".", "-RRB-")
    fragment = spans((0, 4, "FRAG"), (1, 2, "ADVP"))
    assert second == Sentence(f"{name}/1", words, tags, (), con=fragment, srl=())  # known in the document, nothing here
    assert (third.id, third.words, third.con) == ("nw/own/00/own_0001/001/0", ("Yes",), (Span(0, 1, "INTJ"),))
    rows = (line if line.startswith("#") else "\t".join(line.split()) for line in CONLL2012.splitlines())
    for same in ("\n".join(rows), CONLL2012.replace("\n\n#end", "\n#end")):
        assert read(read_conll2012, tmp_path, same) == [first, second, third]


def test_conll2012_documents_whose_columns_are_empty_are_unknown(tmp_path: Path) -> None:
    """Another document in the same file does not make them known."""
    both = read(read_conll2012, tmp_path, document("one", NAMED, PLAIN) + document("two", PLAIN))
    assert [(s.ner, s.srl) for s in both[1:]] == [((), ()), (None, None)] and both[2].pos and both[2].con


def test_conll2012_without_a_parse_is_unknown(tmp_path: Path) -> None:
    for cells, con, pos in [
        (("a XX (TOP* - - *", "b VERB * - - *", "c XX *) - - *"), None, None),
        (("a DT (TOP* - - *", "b NN *) - - *"), None, ("DT", "NN")),
        (("a UH (TOP*) - - *",), (), ("UH",)),
    ]:
        [sentence] = read(read_conll2012, tmp_path, document("d", cells))
        assert (sentence.con, sentence.pos) == (con, pos)


def test_conll2012_of_nested_entities_keeps_the_outermost_and_the_first(tmp_path):
    one, two = spans((0, 2, "GPE")), spans((0, 1, "GPE"), (1, 2, "DATE"))
    for first, second, kept in [("(GPE(ORG)", "*)", one), ("(GPE(ORG*", "*))", one), ("(GPE(ORG))", "(DATE)", two)]:
        text = document("d", (f"a NN (TOP(NP* - - {first}", f"b NN *)) - - {second}"))
        assert [(found.nested, found.sentences[0].ner) for found in read(read_documents, tmp_path, text)] == [(1, kept)]


def changed(line: int, old: str, new: str) -> str:
    lines = CONLL2012.split("\n")
    assert old in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old, new, 1)
    return "\n".join(lines)


CONLL2012_MISTAKES = [
    (changed(1, "#begin", "#start"), "line 1: .*#begin document"),
    (changed(3, "(V*)", ""), "line 3: .*expected 14 columns"),
    ("#begin document (d); part 000\nd 0 0 a NN\n#end document\n", "line 2: .*expected 12 columns"),
    (changed(4, "to ", "[WORD]"), "line 4: .*withheld"),
    (changed(5, "   3 ", "   4 "), "line 5: .*expected word number 3, found 4"),
    (changed(6, "nw/own/00/own_0001", "nw/own/00/own_0009"), "line 6: .*column 1"),
    (changed(7, "*)))))", "*))))))))"), "line 7: .*column 6.*closes a bracket that was never opened"),
    (changed(6, "(GPE*", "GPE*"), "line 6: .*column 11.*expected brackets around one star"),
    (changed(5, "  01  ", "  -  "), r"lines 2–8 .*1 predicates \(frameset not '-'\), found 2"),
    (CONLL2012.replace("#end document\n#begin", "#begin"), "line 15: .*before #end"),
    ("#end document\n", "line 1: .*without #begin"),
    (CONLL2012.replace("part 001", "part 000"), "line 16: .*second time"),
]

# Penn brackets

PTB = """(TOP (S (NP-SBJ-1 (DT The) (NN gate))
      (VP (VBD was)
          (VP (VBN closed) (NP (-NONE- *-1)) (PP-TMP (IN by) (NP=2 (NN noon)))))
      (. .)))
"""


def test_ptb_in_any_layout(tmp_path: Path) -> None:
    words, tags = ("The", "gate", "was", "closed", "by", "noon", "."), ("DT", "NN", "VBD", "VBN", "IN", "NN", ".")
    con = spans((0, 7, "S"), (0, 2, "NP"), (2, 6, "VP"), (3, 6, "VP"), (4, 6, "PP"), (5, 6, "NP"))
    empties = PTB.replace("(NP (-NONE- *-1))", "(NP (NP (-NONE- *-1)) (SBAR (-NONE- 0) (S (-NONE- *T*-2))))")
    for text in (PTB, " ".join(PTB.split()), PTB.replace("(TOP (S", "( (S"), PTB.replace("(TOP (S", "((S"), empties):
        assert read(read_ptb, tmp_path, text) == [Sentence("few/1", words, pos=tags, con=con)]


def test_ptb_backslashes_and_bracket_codes(tmp_path: Path) -> None:
    text = r"(TOP (X (SYM \) (CD 1\/2) (NN a\\b) (SYM \*\*) (-LRB- -LRB-) (-RRB- -RRB-)))"
    [plain] = read(read_ptb, tmp_path, text)
    assert plain.pos == ("SYM", "CD", "NN", "SYM", "-LRB-", "-RRB-")
    assert plain.words == ("\\", "1/2", r"a\\b", "**", "(", ")")


def test_ptb_unary_chains_single_words_empty_and_deep_trees(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "(TOP (S (VP (VB Go))))(TOP (UH Yes)) \n\n ( (NN x))(TOP (NP (-NONE- *)))\n"
    with caplog.at_level(logging.WARNING):
        chain, bare, last, deep = read(read_ptb, tmp_path, text + "(S " * 5000 + "(NN deep)" + ")" * 5000)
    assert chain.con == spans((0, 1, "S"), (0, 1, "VP"))
    assert (bare.words, bare.pos, bare.con) == (("Yes",), ("UH",), ())
    assert (last.id, last.con) == ("few/3", ())
    assert "line 3" in caplog.text and "only empty elements" in caplog.text
    assert deep.id == "few/5" and len(deep.con) == 5000


PTB_MISTAKES = [
    ("(TOP (NN a))\n\n(TOP (NN b)", "line 3:.*not closed"),
    ("(TOP\n (NP the dog))", "line 2:.*'dog'"),
    ("(TOP (NP the\n (NN dog)))", "line 2:.*either one word or other nodes"),
    ("(TOP\n (NP))", "line 2:.*neither a word nor other nodes"),
    ("(TOP (NP\n ((NN dog))))", "line 2:.*without label"),
    ("(TOP (NN a))\nwords", "line 2:.*remove text outside trees"),
    (b"(TOP (NN a))\n(TOP (NN \xff))", "line 2:.*UTF-8"),
]


@given(sized(nested_spans))
def test_brackets_become_stars_or_trees_and_come_back(tmp_path_factory, case):
    n, con = case
    assert spans_from_stars(stars_from_spans(con, n)) == con
    sentence = Sentence("few/1", ("w",) * n, pos=("T",) * n, con=con)
    path = tmp_path_factory.mktemp("trees") / "few.txt"
    path.write_text(format_tree(sentence), encoding="utf-8")
    bare = tuple(span._replace(label=bare_label(span.label)) for span in con)
    assert list(read_ptb(path)) == [sentence.with_layers(con=bare)]


def test_brackets_that_can_and_cannot_be_written() -> None:
    assert stars_from_spans(spans((1, 2, "B"), (0, 2, "A"), (2, 3, "C")), 4) == ["(A*", "(B*))", "(C*)", "*"]
    with pytest.raises(CorpusError, match="holds a bracket or star"):
        stars_from_spans([Span(0, 2, "A*")], 3)
    tags = ("NFP", "-LRB-", "CD", "-RRB-")
    sentence = Sentence("a", ("\\", "(", "10 000", ")"), pos=tags, con=spans((0, 4, "X"), (2, 3, "NP")))
    assert format_tree(sentence) == r"(TOP (X (NFP \) (-LRB- -LRB-) (NP (CD 10_000)) (-RRB- -RRB-)))"
    assert format_tree(Sentence("a", ("a", "b"), con=())) == "(TOP (X a) (X b))"
    with pytest.raises(CorpusError, match="expected constituents"):
        format_tree(sentence.bare())


NAME = "google/ewt/answers/00/x_ans.xml"
PROPBANK = f"""{NAME} 0 0 [WORD]  PRP  (TOP(S(NP*)   -     -        (ARG0*)  *{"  "}
{NAME} 0 1 [WORD]  VBD       (VP*    give  give.01  (V*)     *
{NAME} 0 2 [WORD]  RP      (PRT*)    -     -        (C-V*)   (ARG1*
{NAME} 0 3 [WORD]  VBG  (S(VP*)))    run   run.02   (ARG1*)  (V*))
{NAME} 0 4 [WORD]  .         *))     -     -        *        *

{NAME} 1 0 [WORD]  UH    (TOP(INTJ*))  -  -
"""
GIVE = Predicate(1, "give.01", spans((0, 1, "ARG0"), (1, 2, "V"), (2, 3, "C-V"), (3, 4, "ARG1")), "give")
RUN = Predicate(3, "run.02", spans((2, 4, "ARG1"), (3, 4, "V")), "run")
TREE = spans((0, 5, "S"), (0, 1, "NP"), (1, 4, "VP"), (2, 3, "PRT"), (3, 4, "S"), (3, 4, "VP"))
SKELETONS = [
    Skeleton(("PRP", "VBD", "RP", "VBG", "."), TREE, (GIVE, RUN), "few.txt", 1),
    Skeleton(("UH",), (Span(0, 1, "INTJ"),), (), "few.txt", 7),
]


def skeletons(path: Path) -> Iterator[Skeleton]:
    return parse_skeletons(path.read_bytes(), path.name, NAME)


def test_propbank_trees_and_roles(tmp_path: Path) -> None:
    assert read(skeletons, tmp_path, PROPBANK) == SKELETONS
    twice = f"{NAME} 0 0 [WORD] UH (TOP(TOP(X*)) - -\n{NAME} 0 1 [WORD] UH *) - -\n"
    assert read(skeletons, tmp_path, twice)[0].con == spans((0, 1, "TOP"), (0, 1, "X"))  # only the outermost goes


PROPBANK_MISTAKES = [
    (PROPBANK.replace(old, new), message)
    for old, new, message in [
        (" (ARG0*)  *", "", "line 1: expected 2 columns of arguments, .*found 0"),
        ("run   run.02 ", "run   -      ", "line 4: expected a lemma with a roleset or two dashes, found run and -"),
        ("(V*))", "(V*)", r"line 3: arguments of predicate 2 \(run\): word 2: the bracket \(ARG1 opened here is n"),
        (".         *))", ".         *) ", r"line 1: parse bits: word 0: the bracket \(TOP opened here"),
        (f"{NAME} 0 2", f"{NAME} 0 3", "line 3: expected sentence 0, token 2, found 0, 3"),
        ("UH    (TOP(INTJ*))  -  -", "UH", "line 7: expected at least 8 columns .*found 5"),
    ]
]


FORMATS: dict[str, tuple[Reader, str, list[Any]]] = {
    "lines": (
        lambda path: (line.text for line in read_lines(path) if line.text.strip()),
        "a\u2028b\x0bc\x85d\n\ne\n",  # only line feeds break lines
        [(b"good\nbad \xe9\n", "line 2: expected UTF-8 text, found byte 4 = 0xe9")],
    ),
    "conllu": (read_conllu, CONLLU, CONLLU_MISTAKES),
    "conll2012": (read_conll2012, CONLL2012, CONLL2012_MISTAKES),
    "ptb": (read_ptb, PTB, PTB_MISTAKES),
    "propbank": (lambda path: (replace(one, line=0) for one in skeletons(path)), PROPBANK, PROPBANK_MISTAKES),
}


@pytest.mark.parametrize("name", FORMATS)
def test_layouts_read_the_same(tmp_path: Path, name: str) -> None:
    reader, text, _ = FORMATS[name]
    expected = read(reader, tmp_path, text)
    layouts = {
        "byte order mark": "\ufeff" + text,
        "carriage returns": text.replace("\n", "\r\n"),
        "no last newline": text.rstrip("\n"),
        "many empty lines": text.replace("\n\n", "\n\n \n\t\n"),
    }
    for layout, other in layouts.items():
        assert read(reader, tmp_path, other) == expected, layout


MISTAKES = [(name, *mistake) for name, (_, _, mistakes) in FORMATS.items() for mistake in mistakes]


@pytest.mark.parametrize(("name", "text", "message"), MISTAKES, ids=[f"{name}: {said}" for name, _, said in MISTAKES])
def test_mistakes_name_file_and_line(tmp_path: Path, name: str, text: str | bytes, message: str) -> None:
    with pytest.raises(CorpusError, match=f"few.txt.*?{message}"):
        read(FORMATS[name][0], tmp_path, text)
