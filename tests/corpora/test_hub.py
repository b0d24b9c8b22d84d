"""Datasets in Hugging Face form: every place they lie in, every way to say a label, and a hub that is not there."""

from pathlib import Path

import datasets
import pytest

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats.hub import read_dataset
from mtlprune.sentence import Dependencies, Sentence, Span

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
        ({"head": [["3", "0"], ["0"]]}, None, "row 0: column head: word 0: expected a head from 0 to 2, found 3"),
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
