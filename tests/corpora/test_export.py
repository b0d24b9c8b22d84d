"""Export: what is written is read back equal, and says what the scorers expect."""

from dataclasses import replace
from pathlib import Path

import pytest
from conllu_files import TREEBANK
from hypothesis import HealthCheck, given, settings
from oracles import read_props
from random_sentences import corpora, spans

from mtlprune.corpora import CorpusError
from mtlprune.corpora.export import export, format_conllu, write_scorer_files
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


def changed_cells(before: str, after: str) -> dict[tuple[str, int], str]:
    """The cells that differ, by form and column (from 1); nothing else may."""
    pairs = [(a.split("\t"), b.split("\t")) for a, b in zip(before.split("\n"), after.split("\n"), strict=True)]
    assert all(len(a) == len(b) for a, b in pairs)
    return {(a[1], k): y for a, b in pairs for k, (x, y) in enumerate(zip(a, b, strict=True), 1) if x != y}


def test_lines_of_conllu_are_kept_but_for_the_columns_of_layers(tmp_path: Path) -> None:
    (tmp_path / "in").write_text(TREEBANK, encoding="utf-8")
    gold = list(read_conllu(tmp_path / "in", "upos", keep_other_tags=True))
    assert [s.layers() for s in gold] == [("pos", "dep"), ("pos", "dep", "xpos"), ("pos", "dep", "xpos")]
    assert written(tmp_path, gold, "xpos") == TREEBANK.split("\n\n", 1)[1]  # sentences that do not know it are left out
    first = gold[0].with_layers(pos=("X", *gold[0].pos[1:]))
    assert changed_cells(TREEBANK, written(tmp_path, [first, *gold[1:]], "pos")) == {("Le", 4): "X"}
    heads = replace(gold[0], dep=Dependencies((6, *gold[0].dep.heads[1:]), gold[0].dep.relations))
    gone = {(word, 9): "_" for word in gold[0].words}  # of the enhanced tree, as the basic one is another
    assert changed_cells(TREEBANK, written(tmp_path, [heads, *gold[1:]], "dep")) == {("Le", 7): "6"} | gone
    other = replace(gold[0], words=("Un", *gold[0].words[1:]))  # the lines are no longer its own
    head = "# sent_id = 1\n# text = Un chat de le voisin dort\n1\tUn\t_\tDET"
    assert written(tmp_path, [other], "dep").startswith(head)


def test_lines_without_tags_or_heads_get_what_is_predicted_and_no_more() -> None:
    """Nothing of a placeholder stays beside a predicted tree, and what was not predicted is not made up."""
    lines = "1\tSeul" + "\t_" * 4
    bare = Sentence("s", ("Seul",), source=f"# heads = placeholder\n{lines}\t0\troot\t_\t_")
    with_tree = bare.with_layers(dep=Dependencies((0,), ("x",)))
    assert format_conllu(with_tree, predicted=True) == f"{lines}\t0\tx\t_\t_\n\n"
    no_heads = replace(bare, source=lines + "\t_" * 4)
    assert format_conllu(no_heads, predicted=True) == lines + "\t_" * 4 + "\n\n"
    assert "# heads = placeholder\n1\tSeul" in format_conllu(no_heads.with_layers(pos=("A",)))


def test_gold_and_predictions_have_their_tags_in_the_same_column(tmp_path: Path) -> None:
    for gold, predicted, column in (("DET NOUN", "X X", 3), ("DET own", "DET DET", 4)):
        pair = [Sentence("s", ("a", "b"), pos=tuple(tags.split())) for tags in (gold, predicted)]
        write_scorer_files(pair[:1], pair[1:], tmp_path)
        for name, tags in (("gold", gold), ("pred", predicted)):
            rows = [line.split("\t") for line in (tmp_path / f"pos.{name}").read_text().splitlines() if "\t" in line]
            assert [row[column] for row in rows] == tags.split()


def test_only_blanks_that_scorers_split_at_become_solid(tmp_path: Path) -> None:
    words = ("10\u00a0000", "a\u2028b", "c d", "e\x0bf", "g\x85")
    assert written(tmp_path, [Sentence("s", words, ner=())], "ner").split("\n")[:5] == [
        "10\u00a0000 O", "a\u2028b O", "c_d O", "e_f O", "g\x85 O",
    ]  # fmt: skip
    kept = Sentence("\u00a0s", words, pos=("X",) * 5)
    written(tmp_path, [kept], "pos")
    assert list(read_conllu(tmp_path / "out")) == [kept]


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
