"""Export: what is written is read back equal, and says what the scorers expect."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from oracles import read_props
from random_sentences import corpora, spans

from mtlprune.corpora import CorpusError
from mtlprune.corpora.export import export
from mtlprune.corpora.formats.columns import parse_columns, read_columns
from mtlprune.corpora.formats.conllu import read_conllu
from mtlprune.layers import Layer
from mtlprune.sentence import Dependencies, Predicate, Sentence, Span

several_files = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SENTENCE = Sentence("s", ("a",) * 5, ("X",) * 5, (), Dependencies((0, *[1] * 4), ("r",) * 5), (Span(0, 5, "S"),), ())
CROSSING = Predicate(0, None, spans((0, 2, "A"), (1, 3, "B")))


def written(folder: Path, sentences: list[Sentence], layer: str) -> str:
    export(sentences, layer, folder / "out")
    return (folder / "out").read_text(encoding="utf-8")


def test_tags_without_a_tree_get_a_placeholder_that_is_read_as_unknown(tmp_path: Path) -> None:
    alone = Sentence("s", ("a", "b", "c"), pos=("X", "Y", "Z"))
    text = written(tmp_path, [alone], "pos")
    assert "# heads = placeholder\n1\ta\t_\t_\tX\t_\t0\troot\t_\t_\n2\tb\t_\t_\tY\t_\t1\tdep" in text
    assert list(read_conllu(tmp_path / "out")) == [alone]


@pytest.mark.parametrize(
    ("pos", "beside", "columns"),
    [
        ("DET NOUN", {}, "DET _ NOUN _"),
        ("DT NN", {}, "_ DT _ NN"),
        ("SYM X", {}, "_ SYM _ X"),
        ("DT NN", {"upos": "DET NOUN"}, "DET DT NOUN NN"),
        ("DET NOUN", {"xpos": "ART NN"}, "DET ART NOUN NN"),
        ("Nom -", {"upos": "DET NOUN", "xpos": "ART NN"}, "DET Nom NOUN -"),
    ],
)
def test_tags_go_to_their_own_columns(tmp_path: Path, pos: str, beside: dict[str, str], columns: str) -> None:
    layers = {name: Layer("tags", tuple(tags.split())) for name, tags in beside.items()}
    sentence = Sentence("s", ("a", "b"), pos=tuple(pos.split())).with_layers(**layers)
    rows = [row.split("\t") for row in written(tmp_path, [sentence], "pos").splitlines() if "\t" in row]
    assert " ".join(cell for row in rows for cell in row[3:5]) == columns


def test_sentences_without_the_layer_are_left_out(tmp_path: Path) -> None:
    for layer in ("pos", "ner", "dep", "con", "srl"):
        assert export([SENTENCE.bare(), SENTENCE, SENTENCE.bare()], layer, tmp_path / layer) == 1
    nothing = Sentence("n", ("a", "b"), srl=(), ner=())
    assert written(tmp_path, [nothing], "srl") == "-\n-\n\n"
    assert written(tmp_path, [nothing], "ner") == "a O\nb O\n\n"


@several_files
@given(corpora())
def test_what_is_written_is_read_back(tmp_path: Path, sentences: list[Sentence]) -> None:
    """Dependencies and tags as CoNLL-U, entities as IOB2, roles as CoNLL-2005 props."""
    out = tmp_path / "out"
    for layer in ("pos", "dep"):
        written(tmp_path, sentences, layer)
        known = [Sentence(s.id, s.words, pos=s.pos, dep=s.dep) for s in sentences if s.get(layer) is not None]
        assert list(read_conllu(out)) == known
    named = [s for s in sentences if s.ner is not None and all(span.label != "O" for span in s.ner)]
    written(tmp_path, named, "ner")
    found = list(read_columns(out, parse_columns("word,ner")))
    assert [(s.words, s.ner) for s in found] == [(s.words, s.ner) for s in named]
    written(tmp_path, sentences, "srl")
    known = [s for s in sentences if s.srl is not None]
    for sentence, found in zip(known, read_props(out), strict=True):
        for before, after in zip(sentence.srl or (), found, strict=True):
            rest = list(after.arguments)
            if not any(span.label == "V" for span in before.arguments):
                rest.remove(Span(before.index, before.index + 1, "V"))
            lemma = after.lemma if before.lemma is None else before.lemma
            assert after._replace(arguments=tuple(rest)) == before._replace(lemma=lemma, roleset=None)


@pytest.mark.parametrize(
    ("layer", "sentence", "message"),
    [
        ("dep", replace(SENTENCE, words=("a", "b  c", "d", "e", "f")), "cannot keep the blanks of the word 'b  c'"),
        ("con", replace(SENTENCE, con=(Span(0, 1, "N)P"),)), "holds a bracket"),
        ("srl", replace(SENTENCE, srl=(CROSSING,)), "'s', predicate at word 0: A 0–2 and B 1–3 cross"),
    ],
)
def test_what_cannot_be_said_is_worded_and_leaves_nothing(tmp_path, layer, sentence, message):
    with pytest.raises(CorpusError, match=message):
        export([SENTENCE, sentence], layer, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CorpusError, match="could not be written"):
        export([SENTENCE], "pos", tmp_path / "file" / "out")
