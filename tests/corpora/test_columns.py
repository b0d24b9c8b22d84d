"""Columns of files and of datasets: every scheme of entity tags, every kind of layer, and what cells may say."""

import io
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
from conll2012_files import document
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet as pq
from random_sentences import flat_spans, sized, spans
from seqeval.metrics.sequence_labeling import get_entities

from mtlprune.corpora import CorpusError
from mtlprune.corpora.export import format_props
from mtlprune.corpora.formats.brackets import read_ptb, stars_from_spans
from mtlprune.corpora.formats.columns import parse_columns, read_columns, read_roles
from mtlprune.corpora.formats.guess import guess_columns
from mtlprune.corpora.formats.hub import read_dataset
from mtlprune.corpora.formats.iob2 import scheme_of, spans_from_tags
from mtlprune.corpora.grammar import build_grammar
from mtlprune.corpora.machamp import ColumnFile
from mtlprune.layers import Layer
from mtlprune.sentence import Dependencies, Sentence, Span

SCHEMES = ["IO", "IOB1", "IOB2", "IOE1", "IOE2", "BIOES", "BMES", "BILOU"]


def tags_in(scheme: str, spans: Sequence[Span], n: int) -> list[str]:
    tags = ["O"] * n
    for span in spans:
        meets = any(other.end == span.start and other.label == span.label for other in spans)
        met = any(other.start == span.end and other.label == span.label for other in spans)
        size = span.end - span.start
        marks = "I" * size
        if scheme == "IOB2" or (scheme == "IOB1" and meets):
            marks = "B" + marks[1:]
        if scheme == "IOE2" or (scheme == "IOE1" and met):
            marks = marks[:-1] + "E"
        if scheme in ("BIOES", "BMES", "BILOU"):
            inside, last, single = {"BIOES": "IES", "BMES": "MES", "BILOU": "ILU"}[scheme]
            marks = single if size == 1 else "B" + inside * (size - 2) + last
        tags[span.start : span.end] = [span.label if scheme == "IO" else f"{mark}-{span.label}" for mark in marks]
    return tags


def as_written(scheme: str, spans: Sequence[Span]) -> tuple[Span, ...]:
    """The spans that a scheme can tell apart: in IO, neighbours of one label are one."""
    kept: list[Span] = []
    for span in spans:
        if scheme == "IO" and kept and (kept[-1].end, kept[-1].label) == (span.start, span.label):
            kept[-1] = kept[-1]._replace(end=span.end)
        else:
            kept.append(span)
    return tuple(kept)


def read(folder: Path, text: str, columns: str) -> list[Sentence]:
    (folder / "few.txt").write_text(text, encoding="utf-8")
    return list(read_columns(folder / "few.txt", parse_columns(columns)))


@pytest.mark.parametrize("scheme", SCHEMES)
@given(st.lists(sized(flat_spans, 7), min_size=1, max_size=4))
def test_a_scheme_is_found_and_read(scheme: str, cases: list[tuple[int, tuple[Span, ...]]]) -> None:
    if scheme == "IO":  # whose labels have a letter, and no prefix
        cases = [(n, tuple(span._replace(label=f"La{span.label}") for span in spans)) for n, spans in cases]
    rows = [tags_in(scheme, spans, n) for n, spans in cases]
    for known in (scheme, scheme_of([*rows, ["O"]])):
        assert [spans_from_tags(row, known) for row in rows] == [as_written(scheme, spans) for _, spans in cases]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_wrong_tag_makes_no_other_scheme(scheme: str) -> None:
    row = tags_in(scheme, spans((0, 2, "X"), (2, 3, "X"), (3, 6, "Y"), (7, 8, "X")), 8)
    for wrong in ("LOC", "S-LOC", "U-LOC", "E-LOC", "L-LOC", "I-LOC", "B-LOC", "M-LOC"):
        assert scheme_of([*[row] * 4, [wrong, *row]]) == scheme, wrong


@pytest.mark.parametrize(
    ("tags", "expected", "said"),
    [
        ("O LEXICON LEXICON LEXICON O place . Red O . mud O", "1-4 LEXICON, 5-6 place", ""),
        ("O art-music person-actor person-actor O", "1-2 art-music, 2-4 person-actor", ""),
        ("B-NAME M-NAME E-NAME O S-ORG", "0-3 NAME, 4-5 ORG", ""),
        ("I-PER E-PER O E-PER E-PER", "0-2 PER, 3-4 PER, 4-5 PER", ""),
        ("I-PER E-PER I-PER I-LOC O . I-LOC O I-LOC", "0-2 PER, 2-3 PER, 3-4 LOC", ""),
        ("NN VBZ NN", "word 0: expected a tag of IOB2 .* found 'NN'", ""),  # without any O these are no names
        ("O PER 1 PER", "word 2: expected a label or O, .* found '1'", ""),
        ("O PER PER B-PER", "word 3: expected a label or O, .* found 'B-PER'", ""),
        ("B-X M-X E-X I-X O S-X M-Y", "word 3: expected a tag of BMES", ""),
        ("O B I B I O", "1-3 ENTITY, 3-5 ENTITY", "B, I name no type, so all spans get the type ENTITY"),
        ("o b i b", "1-3 ENTITY, 3-4 ENTITY", "o is read as O; b, i name no type"),
        ("O B B", "1-2 ENTITY, 2-3 ENTITY", "B name no type"),
        ("B M E O S", "0-3 ENTITY, 4-5 ENTITY", "is written in BMES"),
        ("B I E O S", "0-3 ENTITY, 4-5 ENTITY", "is written in BIOES"),
        ("PER-B PER-I O LOC_B", "0-2 PER, 3-4 LOC", "LOC_B is read as B-LOC"),
        ("B_PER I_PER O b-LOC", "0-2 PER, 3-4 LOC", "B_PER is read as B-PER"),
        ("0 B-PER I-PER", "1-3 PER", "0 is read as O"),
        ("- PER PER", "1-3 PER", "- is read as O"),
        ("_ B-PER I-PER _ . _ _", "1-3 PER", "_ is read as O"),
        ("O e-mail e-mail O person", "1-3 e-mail, 4-5 person", "is written in IO"),
        ("O PLAN-C PLAN-C O e-mail", "1-3 PLAN-C, 4-5 e-mail", "is written in IO"),
    ],
)
def test_tags_of_other_corpora(tmp_path: Path, tags: str, expected: str, said: str) -> None:
    """The first sentence of a file: other schemes, whose neighbours of one label are one span where they cannot part
    them; tags without a type, prefixes behind the type or in small letters, and other signs for words outside."""
    (tmp_path / "tags.txt").write_text("\n\n".join("\n".join(f"w {t}" for t in s.split()) for s in tags.split(" . ")))
    told: list[str] = []
    found = read_columns(tmp_path / "tags.txt", parse_columns("word,ner"), tell=told.append)
    if "expected" in expected:
        with pytest.raises(CorpusError, match=expected):
            list(found)
        return
    sentences = list(found)
    assert ", ".join(f"{start}-{end} {label}" for start, end, label in sentences[0].ner) == expected
    assert said in "\n".join(told) and all(sentence.ner is not None for sentence in sentences)


@given(st.lists(st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"]), min_size=1, max_size=8))
def test_repaired_tags_are_read_as_conlleval_reads_them(tags: list[str]) -> None:
    expected = [(start, end + 1, label) for label, start, end in get_entities(tags)]
    assert list(spans_from_tags(tags, "IOB2", repair=True)) == expected


def test_only_what_a_scheme_writes_is_read() -> None:
    """Every row of up to three tags: refused, or written so again (IOB1 and IOE1 may write B and E where they need
    not)."""
    cells = ["O", "X", "-", *(f"{mark}-{kind}" for mark in "BIESLUM" for kind in "XY")]
    for scheme, size in product(SCHEMES, (1, 2, 3)):
        for tags in product(cells, repeat=size):
            with suppress(CorpusError):
                both = " ".join(tags), " ".join(tags_in(scheme, spans_from_tags(tags, scheme), size))
                needless = {"IOB1": "B-", "IOE1": "E-"}.get(scheme, "I-")
                one, other = (row.replace(needless, "I-") for row in both)
                assert one == other, scheme


def test_every_layer_of_a_sentence_stands_in_columns(tmp_path: Path) -> None:
    """What our formats write of generated sentences, side by side, is read back; roles as CoNLL-2005 has them."""
    sentences = build_grammar(30, 0, 0, 3)["train"]
    blocks = []
    for s in sentences:
        stars = [stars_from_spans(layer, len(s)) for layer in (s.con, s.ner)]
        props = [row.split() for row in format_props(s).splitlines() if row]
        rows = zip(s.words, s.pos, *stars, *s.dep, props, strict=True)
        blocks.append("\n".join(" ".join(map(str, [*left, *right])) for *left, right in rows))
    found = read(tmp_path, "\n\n".join(blocks) + "\n", "word,pos,con,ner,head,relation,srl")
    assert [s.id for s in found] == [f"few-{k}" for k in range(1, 31)]
    for mine, old in zip(found, sentences, strict=True):
        assert mine.with_layers(srl=None) == replace(old, id=mine.id, srl=None)
        for one, other in zip(mine.srl, old.srl, strict=True):
            assert (one.index, one.lemma) == (other.index, other.lemma)
            assert {a for a in one.arguments if a.label != "V"} == {a for a in other.arguments if a.label != "V"}


def test_comments_documents_tabs_and_layers_of_ones_own(tmp_path: Path) -> None:
    both = "-DOCSTART- -X- O O\n\n# sent_id = one\n# a longer comment here\nAnn NNP B-NP\n# NN I-NP\n\n{} NNP B-NP\n"
    for text, name in ((both.format("York"), "York"), (both.replace(" ", "\t").format("New York"), "New York")):
        assert read(tmp_path, text, "word,pos,chunk:spans") == [
            Sentence("one", ("Ann", "#"), pos=("NNP", "NN")).with_layers(chunk=Layer("spans", (Span(0, 2, "NP"),))),
            Sentence("few-2", (name,), pos=("NNP",)).with_layers(chunk=Layer("spans", (Span(0, 1, "NP"),))),
        ]
    assert read(tmp_path, "a _ _ 2 x\nb _ _ 0 y\n", "word,pos,ner,head,relation") == [
        Sentence("few-1", ("a", "b"), dep=Dependencies((2, 0), ("x", "y")))
    ]


SPACES = "\u00a0\u1680\u2000\u2007\u2009\u2028\u2029\u202f\u205f\u3000\x85\x0b\x0c\x1c\x1d\x1e\x1f"


@pytest.mark.parametrize("space", SPACES, ids=lambda space: f"U+{ord(space):04X}")
def test_only_blanks_and_tabs_separate(tmp_path: Path, space: str) -> None:
    """Every other space belongs to its word: within it, at its ends, and in the files of roles."""
    words = (f"New{space}York", f"citt{space}", f"{space}b", "c")
    path = tmp_path / "few.txt"
    for separator, end, columns in product((" ", "\t", "   "), ("\n", "\r\n"), ("word,pos,ner", "word,pos,...")):
        text = "".join(f"{word}{separator}N{separator}O{end}" for word in words)
        assert [s.words for s in read(tmp_path, text, columns)] == [words]
    path.write_text("".join(f"{word} N * * - -\n" for word in words), encoding="utf-8")
    assert [s.words for s in read_roles(path)] == [words]
    text = document("d", tuple(f"w{place} N {bit} - - *" for place, bit in enumerate(("(TOP(S*", "*", "*", "*))"))))
    for place, word in enumerate(words):
        text = text.replace(f" w{place} ", f" {word} ")
    path.write_text(text, encoding="utf-8")
    assert [s.words for s in read_roles(path)] == [words]
    brackets = "(TOP" + "".join(f"{space}(NP{space}(N {word})){space}" for word in words) + ")\n" + space
    path.write_text(brackets, encoding="utf-8")
    assert [s.words for s in read_ptb(path)] == [words]


def test_the_separator_is_that_of_most_lines(tmp_path: Path) -> None:
    """So a word with a blank and without its tag is refused in a file of tabs, not read as a word and its tag."""
    told: list[str] = []

    def words(text: str, columns: str = "word,ner") -> list[tuple[str, ...]]:
        (tmp_path / "few.txt").write_text(text)
        return [s.words for s in read_columns(tmp_path / "few.txt", parse_columns(columns), tell=told.append)]

    assert words("New York\tB-X\nCity \tI-X \n") == [("New York", "City")] and told[-1].endswith("separated by tabs")
    assert words("  a   O\n\tb \t O\n") == [("a", "b")] and told[-1].endswith("separated by blanks")
    assert words("\ta\tO\n\tb\tO\n", "_,word,ner") == [("a", "b")]
    assert words("# id 1\tdomain=en\na _ _ O\nb _ _ O\n", "word,_,_,ner") == [("a", "b")]
    for spoilt in ("New York\n", "New York\t\n", "\tO\n"):
        with pytest.raises(CorpusError, match=r"line 3: (expected 2 columns .* between tabs|column \d .* is empty)"):
            words("a\tO\nb\tO\n" + spoilt)


def test_rows_whose_numbers_are_ranges_or_of_empty_nodes_are_no_words(tmp_path: Path) -> None:
    header = "# global.columns = ID FORM PARSEME:MWE\n"
    rows = "0.1\tx\t*\n1\tLe\t*\n2-3\tdu\t*\n2\tde\t*\n3\tle\t*\n3.1\tfaire\t*\n3.2\tfaire\t*\n4\tchat\tA\n"
    for text in (rows, header + rows, rows.replace("\t", " ")):
        for columns in ("_,word,mwe:tags", "id,word,mwe:tags", "_,word,..."):
            assert [s.words for s in read(tmp_path, text, columns)] == [("Le", "de", "le", "chat")]
    for column in ("5\n6-7\n8\n", "0.1\n0.2\n", "a\n3-4\n", "1\n1\n2-3\n"):  # these number no words: all are
        text = "".join(f"{cell} w\n" for cell in column.split())
        assert len(read(tmp_path, text, "_,word")[0]) == len(column.split())
    assert read(tmp_path, "1 w\n2-3 w\n", "word,_")[0].words == ("1", "2-3")


def test_columns_that_not_every_line_has(tmp_path: Path) -> None:
    """As in Universal NER, whose comments have blanks and whose later columns some lines lack."""
    text = "# newdoc id = a b c\n# sent_id = one\n# text = Al - Ann\n"
    text += "1\tAl\tB-PER\t-\tme\n2\t-\tI-PER\n3\tAnn\tI-PER\t\t\n"
    assert read(tmp_path, text, "_,word,ner,...") == [Sentence("one", ("Al", "-", "Ann"), ner=(Span(0, 3, "PER"),))]
    with pytest.raises(CorpusError, match=r"line 5: expected 5 columns .* found 3"):
        read(tmp_path, text, "_,word,ner,_,_")


def test_files_of_roles_are_known_by_their_first_row(tmp_path: Path) -> None:
    path = tmp_path / "few.conll"

    def first(text: str) -> Sentence:
        path.write_text(text)
        return next(iter(read_roles(path)))

    release = first("d 0 0 They PRP (TOP(S(NP*) - - (ARG0*)\nd 0 1 came VBD (VP*))) come come.01 (V*)\n")
    shared_task = first("They PRP (S(NP*) * - - (A0*)\ncame VBD (VP*)) * 01 come (V*)\n")
    assert release.con == shared_task.con
    assert [(s.srl[0].roleset, s.srl[0].lemma) for s in (release, shared_task)] == [("come.01", "come"), (None, "come")]
    with pytest.raises(CorpusError, match=r"line 1: .*found 'she'.*the file was read as CoNLL-2005 \(word,pos,con"):
        first("she PRP she * - -\n")
    many = "".join(f"{k} CD * * - p{k} {'* ' * (k - 1)}(V*) {'* ' * (6 - k)}\n" for k in range(1, 7))
    assert first(many).words == tuple("123456")  # CoNLL-2005, twelve columns
    with pytest.raises(CorpusError, match=r"few.conll, line 1: the words are withheld"):
        first("d 0 0 [WORD] PRP (TOP(S(NP*) - -\n")


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("a N\n", "word,pos,ner", "line 1: expected 3 columns .* found 2"),
        ("a N\nb _\n", "word,pos", "line 2: column pos: word 1: expected a tag, found _"),
        ("a I-X\nb B-Y\nc I-Y\n", "word,ner", "line 1: column ner: word 0: I-X continues no open span.*--repair"),
        ("a B-X\nb Q-X\n", "word,ner", r"line 2: column ner: word 1: expected a tag of .* .*'Q-X'; convert the tags$"),
        ("a 2 x\nb two y\n", "word,head,relation", "line 2: column head: word 1: expected the number .* found 'two'"),
        (f"a 0 x\nb {'9' * 5000} y\n", "word,head,relation", "line 2: .* expected the number .* found '9{60}'"),
        ("a 0 x\nb 3 x\nc 2 y\n", "word,head,relation", "line 2: column head: .*a circle: 2 → 3 → 2; give one"),
        ("a 0 x\nb 1 _\n", "word,head,relation", "line 2: column head: word 1: expected a relation, found _"),
        ("a B-_\n", "word,ner", "line 1: .*the label of the span 0–1 is '_', which means unknown"),
        ("a (S*\nb *\n", "word,con", "line 1: column con: word 0: the bracket"),
        ("a - *\nb - *\n", "word,srl", "line 1: expected 0 columns of arguments"),
        ("", "word,dep", "--columns: dep: a tree takes two columns"),
        ("", "word,chunk", "--columns: layer chunk: expected one of the kinds .*write NAME:KIND"),
        ("", "pos,ner", "--columns: expected word once .* found no word"),
        ("", "word,head", "--columns: expected head and relation"),
        ("", "word,srl,pos", "--columns: srl has a column for each predicate"),
    ],
)
def test_mistakes_are_worded_with_file_line_and_column(tmp_path: Path, text: str, columns: str, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        read(tmp_path, text, columns)


ROWS = {
    "id": ["one", "two"],
    "tokens": [["Ann", "sings"], ["No"]],
    "upos": [["PROPN", "VERB"], ["INTJ"]],
    "head": [["2", "0"], ["0"]],
    "deprel": [["nsubj", "root"], ["root"]],
    "ner_tags": [["S-PER", "O"], ["O"]],
}
READ = [
    Sentence("one", ("Ann", "sings"), ("PROPN", "VERB"), (Span(0, 1, "PER"),), Dependencies((2, 0), ("nsubj", "root"))),
    Sentence("two", ("No",), ("INTJ",), (), Dependencies((0,), ("root",))),
]


def test_folders_and_files_read_the_same(tmp_path: Path) -> None:
    table = datasets.Dataset.from_dict(ROWS)
    table.save_to_disk(tmp_path / "saved")
    (tmp_path / "rows").mkdir()
    table.to_parquet(tmp_path / "rows/train.parquet")
    table.to_parquet(tmp_path / "rows/validation.parquet")
    table.to_json(tmp_path / "few.jsonl")
    rows = [{name: values[row] for name, values in ROWS.items()} for row in range(2)]
    (tmp_path / "list.json").write_text(json.dumps(rows, indent=1))
    told: list[str] = []
    places = {"saved": ["all"], "rows": ["train", "dev"], "list.json": ["train"], "few.jsonl": ["train"]}
    for name, splits in places.items():
        found = read_dataset(str(tmp_path / name), tell=told.append)
        assert list(found) == splits and all(sentences == READ for sentences in found.values())
    assert "read id as id, tokens as word, upos as pos, head as head, deprel as relation, ner_tags as ner" in told[0]
    assert told[1].endswith("split all: column ner is written in BIOES and was converted")
    read_dataset(str(tmp_path / "saved"), "tokens=word,upos=_", tell=told.append)
    assert told[-1].endswith("id, head, deprel, ner_tags were left out, and --columns can name them")


def saved(folder: Path, **columns: object) -> str:
    content = {name: value for name, value in {**ROWS, **columns}.items() if value is not None}
    datasets.Dataset.from_dict(content).save_to_disk(folder / "saved")
    return str(folder / "saved")


@pytest.mark.parametrize(
    ("columns", "said", "message"),
    [
        ({"tokens": None}, None, "no column with words; it has id, .*--columns tokens=word"),
        ({}, "tokens=word,tags=ner", "found no column 'tags'; it has id, tokens"),
        (
            {"ner_tags": [["B-X"], ["O"]]},
            None,
            "row 0: column ner_tags: expected one value per word, found 1 for 2 words",
        ),
        ({"ner_tags": [["O", "I-X"], ["B-X"]]}, None, "split all, row 0: column ner: word 1: I-X continues no open"),
        ({"ner_tags": [["S-X", "B-X"], ["O"]]}, None, "is not closed"),
        ({"ner_tags": [[0, 1], [0]]}, None, "ner_tags: word 0: expected labels, found numbers that have no names"),
        (
            {"tokens": ["Ann sings", "No"]},
            None,
            "column tokens: expected a list .* one value per word, found 'Ann sings'",
        ),
        ({}, "tokens=word,ner_tags=srl", "frames cannot be read from a dataset"),
        ({}, "tokens=word,tokens=ner", "--columns: expected each column once"),
    ],
)
def test_mistakes_name_row_and_column(tmp_path, columns, said, message):
    with pytest.raises(CorpusError, match=message):
        read_dataset(saved(tmp_path, **columns), said)


def label_numbers(names: list[Any], numbers: list[list[int]]) -> pa.Table:
    """A table as the library writes it, whose labels are numbers."""
    kind = {"_type": "Sequence", "feature": {"_type": "ClassLabel", "names": names}}
    table = pa.table({"tokens": ROWS["tokens"], "ner_tags": numbers})
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": {"ner_tags": kind}}})})


def no_text() -> pa.Array:
    texts = [None, pa.array([0, 3, 4, 6], pa.int32()).buffers()[1], pa.py_buffer(b"Ann\xffNo")]
    return pa.ListArray.from_arrays([0, 2, 3], pa.Array.from_buffers(pa.string(), 3, texts))


PLAIN = {"tokens": ROWS["tokens"], "ner_tags": [["B-PER", "O"], ["O"]]}
LINE = '{"tokens": ["a"], "ner_tags": ["O"]}\n'
NAMES = ["O", "B-PER"]
KINDS = r"column tokens: expected values of one kind|Column\(/tokens/\[\]\) changed from string to number"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (label_numbers(NAMES, [[0, 2], [0]]), "row 0: column ner_tags: word 1: .* label from 0 to 1, .* found 2;"),
        (label_numbers(["O", 1], [[0, 1], [0]]), "column ner_tags: expected names of labels, found 1; write text"),
        (pa.table(PLAIN | {"tokens": no_text()}), "expected rows, found UnicodeDecodeError"),
        (pa.table(PLAIN | {"tokens": [[b"Ann", b"is"], [b"No"]]}), "row 0: column tokens: word 0: .* found b'Ann'"),
        (pa.table(PLAIN | {"tokens": [["Ann", None], ["No"]]}), "row 0: column tokens: word 1: .*text, found None"),
        (pa.table(PLAIN | {"id": [b"one", b"two"]}), "row 0: column id: expected a text, found \"b'one'\""),
        (LINE + '{"tokens": ["b"]', "expected a dataset, found "),
        (LINE + LINE.replace("a", "\udce9"), "line 2: expected UTF-8 text, found byte 13 = 0xe9"),
        (LINE + '{"tokens": [1.5], "ner_tags": ["O"]}', KINDS),
        ('[{"tokens": [1.5], "ner_tags": ["O"]}]', "row 0: column tokens: word 0: expected text, found 1.5"),
        ("tokens,ner_tags\na b,O O\n", "found a file of another kind"),
    ],
    ids=str,
)  # fmt: skip
def test_a_file_that_is_not_what_it_should_be_is_named(tmp_path: Path, content: Any, message: str) -> None:
    suffix = "parquet" if isinstance(content, pa.Table) else "csv" if content.startswith("tokens") else "jsonl"
    file = tmp_path / f"test.{suffix}"
    if isinstance(content, pa.Table):
        pq.write_table(content, file)
    else:
        file.write_text(content, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(CorpusError, match=re.escape(str(file)) + f".*({message})"):
        read_dataset(str(file))


def test_files_of_other_labels_are_not_joined(tmp_path: Path) -> None:
    for number, names in enumerate([NAMES, NAMES[::-1]]):
        pq.write_table(label_numbers(names, [[0, 1], [0]]), tmp_path / f"train-{number}.parquet")
    with pytest.raises(CorpusError, match=r"train-1.parquet, column ner_tags: expected the labels O, B-PER as"):
        read_dataset(str(tmp_path))


@pytest.mark.parametrize("key", ["data_files: {}", "data_files: [x.jsonl, {}]", "data_dir: {}"])
@pytest.mark.parametrize("name", ["../x.jsonl", "sub/../../x", "/etc/*", "~/x", "https://a.b/x", "zip://x::y", "C:\\x"])
def test_a_description_names_no_file_outside_its_folder(tmp_path: Path, key: str, name: str) -> None:
    (tmp_path / "x.jsonl").write_text(LINE)
    for file in ("README.md", ".huggingface.yaml"):
        dots = "---\n" if file == "README.md" else ""
        (tmp_path / file).write_text(f"{dots}configs:\n- config_name: default\n  {key.format(name)}\n{dots}")
        with pytest.raises(CorpusError, match=f"{file}: expected names of files in the folder .*, found "):
            read_dataset(str(tmp_path))
        (tmp_path / file).unlink()
    (tmp_path / "README.md").write_text("---\nconfigs:\n- config_name: default\n  data_files: x.*\n---\n")
    assert [s.words for s in read_dataset(str(tmp_path))["train"]] == [("a",)]


def test_saved_datasets_and_those_of_the_hub_name_no_files_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets.DatasetDict({"train": datasets.Dataset.from_dict(ROWS)}).save_to_disk(tmp_path / "saved")
    for name, key in (("train/state.json", "_data_files"), ("dataset_dict.json", "splits")):
        file = tmp_path / "saved" / name
        tree = json.loads(file.read_text())
        file.write_text(json.dumps(tree | {key: ["../saved/train"] if key == "splits" else [{"filename": "../../x"}]}))
        with pytest.raises(CorpusError, match=f"{name}: expected names of files in the folder of the dataset, found"):
            read_dataset(str(tmp_path / "saved"))
        file.write_text(json.dumps(tree))
    cached = tmp_path / "hub/datasets--someone--names"
    (cached / "snapshots" / ("a" * 40)).mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text("a" * 40)
    (cached / "snapshots" / ("a" * 40) / "README.md").write_text("---\nconfigs: [{data_files: /etc/passwd}]\n---\n")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CorpusError, match=r"README.md: expected names of files .*, found '/etc/passwd'"):
        read_dataset("someone/names")


@pytest.mark.parametrize(
    ("splits", "wanted", "found"),
    [
        ("train validation test", {}, {"train": 2, "dev": 2, "test": 2}),
        ("training valid testing", {}, {"train": 2, "dev": 2, "test": 2}),
        ("train validation_matched", {"train": ["train"], "dev": ["validation_matched"]}, {"train": 2, "dev": 2}),
        ("train train.noisy dev", {"train": ["train", "train.noisy"]}, {"train": 4}),
        ("train train.noisy", {}, "found train, train.noisy; name them with --train NAME"),
        ("train", {"dev": ["validation"]}, "--dev: expected one of the splits train, found 'validation'"),
    ],
)
def test_splits_are_those_of_usual_names_or_those_named(tmp_path: Path, splits: str, wanted: Any, found: Any) -> None:
    one = datasets.Dataset.from_dict(ROWS)
    datasets.DatasetDict(dict.fromkeys(splits.split(), one)).save_to_disk(tmp_path / "saved")
    if isinstance(found, str):
        with pytest.raises(CorpusError, match=found):
            read_dataset(str(tmp_path / "saved"), names_by_split=wanted)
        return
    told: list[str] = []
    read = read_dataset(str(tmp_path / "saved"), names_by_split=wanted, tell=told.append)
    assert {split: len(sentences) for split, sentences in read.items()} == found
    assert told[0].endswith("the splits dev were left out; name splits with --train, --dev and --test") == (
        "noisy" in splits
    )


@pytest.mark.usefixtures("no_hub")
def test_a_hub_that_nobody_answers_for() -> None:
    with pytest.raises(CorpusError, match=r"someone/something: expected a folder or file, .* cannot be reached"):
        read_dataset("someone/something")


NAMED = {
    "tabs.tsv": "token\tpos\tner\nAnn\tNNP\tB-PER\nsang\tVBD\tO\n\nBo\tNNP\tB-PER\n",
    "blanks.txt": "Word POS Tag\nAnn NNP B-PER\nsang VBD O\n\nBo NNP B-PER\n",
    "sentences.csv": "Sentence #,Word,POS,Tag\nSentence: 1,Ann,NNP,B-PER\n,sang,VBD,O\nSentence: 2,Bo,NNP,B-PER\n",
    "id.csv": "sent_id;token;pos;ner\na;Ann;NNP;B-PER\na;sang;VBD;O\nb;Bo;NNP;B-PER\n",
    "rows.csv": "Ann,NNP,B-PER\nsang,VBD,O\n,,\nBo,NNP,B-PER\n",
    "commas.txt": "Ann,NNP,B-PER\nsang,VBD,O\n\nBo,NNP,B-PER\n",
}


@pytest.mark.parametrize("name", NAMED)
def test_names_of_columns_are_no_words_and_commas_separate(tmp_path: Path, name: str) -> None:
    """Tables with a row of names, between commas or semicolons, with sentences between empty rows or named."""
    (path := tmp_path / name).write_text(NAMED[name])
    told: list[str] = []
    columns = guess_columns(path)
    sentences = list(read_columns(path, parse_columns(columns), tell=told.append))
    assert [s.words for s in sentences] == [("Ann", "sang"), ("Bo",)]
    assert [s.pos for s in sentences] == [("NNP", "VBD"), ("NNP",)]
    assert [s.ner for s in sentences] == [spans((0, 1, "PER"))] * 2
    assert any("line 1 names the columns" in line for line in told) == (NAMED[name][:3] != "Ann")


def test_quoted_cells_are_read_and_written_again(tmp_path: Path) -> None:
    text = 'Word,POS\n"Ann ""Lee""",NNP\n",",","\n\nBo,NNP\n'
    (path := tmp_path / "few.csv").write_text(text)
    file = ColumnFile(path, "word,pos", ["pos"])
    sentences = [sentence for _, sentence in file.sentences()]
    assert [s.words for s in sentences] == [('Ann "Lee"', ","), ("Bo",)]
    out = io.StringIO()
    file.write([s.with_layers(pos=("X",) * len(s)) for s in sentences], out)
    file.finish(out)
    assert out.getvalue() == text.replace("NNP", "X").replace('",",","', '",",X')


def test_words_that_name_columns_are_words_where_no_label_is_named(tmp_path: Path) -> None:
    assert read(tmp_path, "Text NN\nworks VBZ\n", "word,pos")[0].words == ("Text", "works")
    assert read(tmp_path, "Word NE\nläuft VVFIN\n", "word,pos")[0].words == ("Word", "läuft")
