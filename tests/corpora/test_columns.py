"""Columns of files and of datasets: every scheme of entity tags, every kind of layer, and what cells may say."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_sentences import flat_spans, sized, spans
from seqeval.metrics.sequence_labeling import get_entities

from mtlprune.corpora import CorpusError
from mtlprune.corpora.export import format_props
from mtlprune.corpora.formats.brackets import stars_from_spans
from mtlprune.corpora.formats.columns import parse_columns, read_columns, read_roles
from mtlprune.corpora.formats.hub import read_dataset
from mtlprune.corpora.formats.iob2 import scheme_of, spans_from_tags
from mtlprune.corpora.grammar import build_grammar
from mtlprune.layers import Layer
from mtlprune.sentence import Dependencies, Sentence, Span

SCHEMES = ["IOB1", "IOB2", "BIOES", "BILOU"]


def tags_in(scheme: str, spans: Sequence[Span], n: int) -> list[str]:
    """One tag a word, written by hand from each scheme's definition."""
    tags, before = ["O"] * n, None
    for span in spans:
        meets = before is not None and before.end == span.start and before.label == span.label
        size = span.end - span.start
        marks = "I" * size
        if scheme == "IOB2" or (scheme == "IOB1" and meets):
            marks = "B" + marks[1:]
        if scheme in ("BIOES", "BILOU"):
            last, single = ("E", "S") if scheme == "BIOES" else ("L", "U")
            marks = single if size == 1 else "B" + "I" * (size - 2) + last
        tags[span.start : span.end] = [f"{mark}-{span.label}" for mark in marks]
        before = span
    return tags


def read(folder: Path, text: str, columns: str) -> list[Sentence]:
    (folder / "few.txt").write_text(text, encoding="utf-8")
    return list(read_columns(folder / "few.txt", parse_columns(columns)))


@pytest.mark.parametrize("scheme", SCHEMES)
@given(st.lists(sized(flat_spans, 7), min_size=1, max_size=4))
def test_a_scheme_is_found_and_read(scheme: str, cases: list[tuple[int, tuple[Span, ...]]]) -> None:
    rows = [tags_in(scheme, spans, n) for n, spans in cases]
    for known in (scheme, scheme_of(rows)):
        assert [spans_from_tags(row, known) for row in rows] == [spans for _, spans in cases]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_wrong_tag_makes_no_other_scheme(scheme: str) -> None:
    row = tags_in(scheme, spans((0, 2, "X"), (2, 3, "X"), (3, 6, "Y"), (7, 8, "X")), 8)
    for wrong in ("LOC", "S-LOC", "U-LOC", "E-LOC", "L-LOC", "I-LOC", "B-LOC"):
        assert scheme_of([*[row] * 4, [wrong, *row]]) == scheme, wrong


@given(st.lists(st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"]), min_size=1, max_size=8))
def test_repaired_tags_are_read_as_conlleval_reads_them(tags: list[str]) -> None:
    expected = [(start, end + 1, label) for label, start, end in get_entities(tags)]
    assert list(spans_from_tags(tags, "IOB2", repair=True)) == expected


def test_only_what_a_scheme_writes_is_read() -> None:
    """Every row of up to three tags: refused, or written so again (IOB1 may write B where it need not)."""
    cells = ["O", "X", "-X", *(f"{mark}-{kind}" for mark in "BIESLU" for kind in "XY")]
    for scheme, size in product(SCHEMES, (1, 2, 3)):
        for tags in product(cells, repeat=size):
            with suppress(CorpusError):
                both = " ".join(tags), " ".join(tags_in(scheme, spans_from_tags(tags, scheme), size))
                one, other = (row.replace("B-", "I-") if scheme == "IOB1" else row for row in both)
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
    text = "-DOCSTART- -X- O O\n\n# sent_id = one\n# a longer comment here\nAnn NNP B-NP\n# NN I-NP\n\n"
    text += "New York\tNNP\tB-NP\n"
    assert read(tmp_path, text, "word,pos,chunk:spans") == [
        Sentence("one", ("Ann", "#"), pos=("NNP", "NN")).with_layers(chunk=Layer("spans", (Span(0, 2, "NP"),))),
        Sentence("few-2", ("New York",), pos=("NNP",)).with_layers(chunk=Layer("spans", (Span(0, 1, "NP"),))),
    ]
    assert read(tmp_path, "a _ _ 2 x\nb _ _ 0 y\n", "word,pos,ner,head,relation") == [
        Sentence("few-1", ("a", "b"), dep=Dependencies((2, 0), ("x", "y")))
    ]


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
    with pytest.raises(CorpusError, match=r"few.conll, line 1: the words are withheld"):
        first("d 0 0 [WORD] PRP (TOP(S(NP*) - -\n")


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("a N\n", "word,pos,ner", "line 1: expected 3 columns .* found 2"),
        ("a\tN\t\n", "word,pos,ner", "line 1: column 3 is empty"),
        ("a N\nb _\n", "word,pos", "line 2: column pos: word 1: expected a tag, found _"),
        ("a I-X\nb B-Y\nc I-Y\n", "word,ner", "line 1: column ner: word 0: I-X continues no open span.*--repair"),
        ("a B-X\nb Q-X\n", "word,ner", r"line 2: column ner: word 1: expected an .* tag .*'Q-X'; convert the tags$"),
        ("a 2 x\nb two y\n", "word,head,relation", "line 2: column head: word 1: expected the number .* found 'two'"),
        ("a 0 x\nb 3 x\nc 2 y\n", "word,head,relation", "line 2: column head: .*a circle: 2 → 3 → 2; give one"),
        (
            "a 0 x\nb 1 _\n",
            "word,head,relation",
            r"line 2: column head: word 1: expected a relation, found _ \(unknown",
        ),
        ("a 0 _\nb 1 _\n", "word,head,relation", "line 1: column head: word 0: expected a relation, found _"),
        ("a B-_\n", "word,ner", "line 1: .*the label of the span 0–1 is '_', which means unknown"),
        ("a (S*\nb *\n", "word,con", "line 1: column con: word 0: the bracket"),
        ("a - *\nb - *\n", "word,srl", "line 1: expected 0 columns of arguments"),
        ("", "word,dep", "--columns: dep: a tree stands in two columns"),
        ("", "word,chunk", "--columns: layer chunk: expected a kind .*write NAME:KIND"),
        ("", "pos,ner", "--columns: expected word once .* found no word"),
        ("", "word,head", "--columns: expected head and relation"),
        ("", "...,word,ner", "so it comes last"),
        ("", "word,srl,pos", "--columns: srl has a column for each predicate"),
    ],
)
def test_mistakes_are_worded_with_file_line_and_column(tmp_path: Path, text: str, columns: str, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        read(tmp_path, text, columns)


# -- datasets in Hugging Face form: rows of columns --

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
    told: list[str] = []
    for name, splits in (("saved", ["all"]), ("rows", ["train", "dev"]), ("few.jsonl", ["train"])):
        found = read_dataset(str(tmp_path / name), tell=told.append)
        assert list(found) == splits and all(sentences == READ for sentences in found.values())
    assert "read id as id, tokens as word, upos as pos, head as head, deprel as relation, ner_tags as ner" in told[0]
    assert told[1].endswith("split all: column ner is written in BIOES and was converted")
    told.clear()
    read_dataset(str(tmp_path / "saved"), "tokens=word,upos=_", tell=told.append)
    assert told[0].endswith("left out id, head, deprel, ner_tags, which --columns can name") and len(told) == 1
    with pytest.raises(CorpusError, match="is not closed"):
        read_dataset(saved(tmp_path / "open", ner_tags=[["S-X", "B-X"], ["O"]]), tell=told.append)
    assert not any("was converted" in line for line in told)


def saved(folder: Path, **columns: object) -> str:
    """A dataset whose columns are those of ROWS unless they are given."""
    content = {name: value for name, value in {**ROWS, **columns}.items() if value is not None}
    datasets.Dataset.from_dict(content).save_to_disk(folder / "saved")
    return str(folder / "saved")


@pytest.mark.parametrize(
    ("columns", "said", "message"),
    [
        ({"tokens": None}, None, "no column that is known to be words; it has id, .*--columns tokens=word"),
        ({}, "tokens=word,tags=ner", "found no column 'tags'; it has id, tokens"),
        ({"ner_tags": [["B-X"], ["O"]]}, None, "row 0, column ner_tags: expected a value a word, found 1 for 2 words"),
        ({"ner_tags": [["O", "I-X"], ["B-X"]]}, None, "split all, row 0: column ner: word 1: I-X continues no open"),
        ({"ner_tags": [[0, 1], [0]]}, None, "column ner_tags: expected labels, found numbers that have no names"),
        ({"tokens": ["Ann sings", "No"]}, None, "column tokens: expected a list .* a value a word, found 'Ann sings'"),
        ({}, "tokens=word,ner_tags=srl", "frames cannot be read from a dataset"),
    ],
)
def test_mistakes_name_row_and_column(tmp_path, columns, said, message):
    with pytest.raises(CorpusError, match=message):
        read_dataset(saved(tmp_path, **columns), said)


@pytest.mark.usefixtures("no_hub")
def test_what_is_no_dataset_and_a_hub_that_nobody_answers_for(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_text("no parquet")
    with pytest.raises(CorpusError, match=r"rows.parquet: expected a dataset, found \w+: "):
        read_dataset(str(tmp_path / "rows.parquet"))
    with pytest.raises(CorpusError, match=r"someone/something: expected a folder or file, .* cannot be reached"):
        read_dataset("someone/something")
