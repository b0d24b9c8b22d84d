"""MaChAmp's dataset configurations: what is read, what is named and left out, and columns written back."""

import io
from pathlib import Path

import pytest

from mtlprune.corpora import CorpusError
from mtlprune.corpora.machamp import ColumnFile, build_machamp
from mtlprune.sentence import Dependencies, Sentence, Span

# as MaChAmp's configs/ewt.json is laid out, with a second data set and one of texts
CONFIG = """{
  "EWT": {
    "train_data_path": "data/ewt.train",
    "dev_data_path": "data/ewt.dev",
    "word_idx": 1,
    //"max_sents": 100,
    "tasks": {
      "upos": {"task_type": "seq", "column_idx": 3, "additional_metrics": ["f1_macro"]},
      "lemma": {"task_type": "string2string", "column_idx": 2},
      "feats": {"task_type": "seq", "column_idx": 5},
      "dependency": {"task_type": "dependency", "column_idx": 6}
    }
  },
  "NAMES": {"train_data_path": "data/names", "dev_data_path": "data/names", "word_idx": 0, "max_sents": 9,
            "tasks": {"ner": {"task_type": "seq_bio", "column_idx": 1}}},
  "RTE": {"train_data_path": "x", "sent_idxs": [0], "tasks": {"rte": {"task_type": "seq2seq", "column_idx": 1}}}
}"""
ROWS = ["1\tDogs\tdog\tNOUN\tNNS\tNumber=Plur\t3\tnsubj\t_\t_", "2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_"]
ROWS += ["2\tdo\tdo\tAUX\tVBP\t_\t3\taux\t_\t_", "3\tn't\tnot\tPART\tRB\t_\t0\troot\t_\t_"]
EWT = "# sent_id = a\n# text = Dogs don't\n" + "\n".join(ROWS)
EWT += "\n\n# sent_id = b\n1\tHi\thi\tINTJ\tUH\t_\t0\troot\t_\t_\n"
COLUMNS = "_,word,_,upos:tags,_,feats:tags,head,relation,..."


@pytest.fixture
def config(tmp_path: Path) -> Path:
    for name, text in {"ewt.train": EWT, "ewt.dev": EWT, "names": "Ann B-PER\nLee I-PER\nsings O\n"}.items():
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / name).write_text(text)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "ewt.json").write_text(CONFIG)
    return tmp_path / "configs" / "ewt.json"


def test_data_sets_are_read_and_the_rest_is_named(config: Path) -> None:
    lines: list[str] = []
    splits, _, about = build_machamp(config, False, lines.append)
    first, second, third = splits["dev"]
    assert first.words == ("Dogs", "do", "n't") and first.dep == Dependencies((3, 3, 0), ("nsubj", "aux", "root"))
    assert first.get("feats") == ("Number=Plur", "__", "__") and second.get("feats") == ("__",)
    assert first.get("upos") == ("NOUN", "AUX", "PART") and first.ner is None
    assert third.ner == (Span(0, 2, "PER"),) and third.dep is None
    assert len(about["sources"]) == 3
    text = "\n".join(lines)
    assert "EWT: left out: lemma (string2string)" in text and f"EWT: the columns are {COLUMNS}" in text
    assert "NAMES: left out: max_sents" in text and "RTE: left out: rte (seq2seq)" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('"column_idx": 5', '"column_idx": 3'), "EWT, feats: column 3 is already upos:tags"),
        (('"ner": {"task_type": "seq_bio"', '"ner": {"task_type": "seq"'), "ner.*rename the task"),
        (('"column_idx": 5', '"column_idx": 9999999999'), "EWT: expected word_idx and .* below 1000, found 9999999999"),
        (('"word_idx": 1', '"word_idx": 1000'), "EWT: expected word_idx and column_idx below 1000, found 1000"),
        (("data/names", "data/none"), "data/none: expected a file"),
        (('"word_idx"', '"sent_idxs"'), "expected a data set with word_idx and tasks of seq, seq_bio, dependency"),
        (("}", ""), "ewt.json"),
    ],
)
def test_configurations_that_do_not_fit(config: Path, change: tuple[str, str], message: str) -> None:
    config.write_text(CONFIG.replace(*change))
    with pytest.raises(CorpusError, match=message):
        build_machamp(config, False, print)


def test_the_older_name_of_dev_is_read(config: Path) -> None:
    """MaChAmp before 0.3 wrote validation_data_path; beside the name of today it is left out, which is told."""
    expected, _, _ = build_machamp(config, False, print)
    older = '"validation_data_path": "data/ewt.dev"'
    config.write_text(CONFIG.replace('"dev_data_path": "data/ewt.dev"', older))
    assert build_machamp(config, False, print)[0] == expected
    config.write_text(CONFIG.replace('"dev_data_path"', older.replace("ewt.dev", "none") + ', "dev_data_path"', 1))
    lines: list[str] = []
    assert build_machamp(config, False, lines.append)[0] == expected and "left out: validation_data_path" in lines[0]


def test_columns_are_written_in_place(config: Path) -> None:
    file = config.parents[1] / "data" / "ewt.dev"
    splits, _, _ = build_machamp(config, False, print)
    gold, other = splits["dev"][:2], [Sentence("b", ("Hi",)).with_layers(dep=Dependencies((0,), ("x",)))]
    for sentences, expected in (
        (gold, EWT),
        ([gold[0], *other], EWT.replace("INTJ\tUH\t_\t0\troot", "_\tUH\t_\t0\tx")),
    ):
        written, stream = ColumnFile(file, COLUMNS, ["upos", "feats", "dep", "ner"]), io.StringIO()
        assert [sentence.words for _, sentence in written.sentences()] == [s.words for s in gold]
        assert written.layers == {"upos", "feats", "dep"}
        written.write(sentences[:1], stream)
        written.write(sentences[1:], stream)
        written.finish(stream)
        assert stream.getvalue() == expected
    with pytest.raises(CorpusError, match="expected a column of srl, which the run predicts, found none"):
        ColumnFile(file, COLUMNS, ["srl"])
