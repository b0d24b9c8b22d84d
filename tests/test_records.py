"""The tables of records: any sentences come back as they were counted, small; damage is told, never read."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_sentences import LABELS, sentences
from report_runs import gold_sentences, guessed

from mtlprune import records
from mtlprune.runs import RunError
from mtlprune.scores import count
from mtlprune.sentence import LAYERS, Sentence
from mtlprune.statistics.label_scores import count_labels
from mtlprune.sweeps.recording import gold_tables, without_places


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Sentence, Sentence]:
    """Gold with any layers known, and a prediction of all of them with other labels and places."""
    gold = draw(sentences())
    other = draw(sentences(words=st.sampled_from(gold.words)).filter(lambda s: len(s) == len(gold)) | st.just(gold))
    layers = {layer: getattr(other, layer) for layer in LAYERS}
    layers["pos"] = tuple(draw(LABELS) for _ in gold.words)
    filled = replace(guess_all(gold), **{name: value for name, value in layers.items() if value is not None})
    return gold, filled


def guess_all(gold: Sentence) -> Sentence:
    from mtlprune.sentence import Dependencies

    flat = Dependencies((0, *[1] * (len(gold) - 1)), ("X",) * len(gold))
    return replace(gold, pos=("X",) * len(gold), ner=(), dep=flat, con=(), srl=())


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(st.lists(pairs(), min_size=1, max_size=5))
def test_counts_come_back_as_they_were(tmp_path_factory: Any, drawn: list[tuple[Sentence, Sentence]]) -> None:
    folder = tmp_path_factory.mktemp("tables")
    gold = [replace(sentence, id=f"s{place}") for place, (sentence, _) in enumerate(drawn)]
    predicted = [replace(sentence, id=f"s{place}") for place, (_, sentence) in enumerate(drawn)]
    tables = gold_tables(gold)
    mark = records.write_gold(folder, "x-test", tables)
    again = records.read_gold(folder, "x-test", mark)
    assert (list(again.ids), again.counts, again.labels) == (list(tables.ids), tables.counts, tables.labels)
    counts: dict[str, dict[str, list[int | None]]] = {}
    for task in LAYERS:
        rows = [count(task, g, p) for g, p in zip(gold, predicted, strict=True)]
        names = sorted({name for row in rows if row for name in row})
        if names:
            counts[task] = {name: [None if row is None else row.get(name, 0) for row in rows] for name in names}
    for held in (again, None):
        records.write_counts(folder / "counts.parquet", tables.ids, counts, held)
        assert records.read_counts(folder / "counts.parquet", held) == {"ids": list(tables.ids), "counts": counts}
    labels = {task: [count_labels(task, g, p) for g, p in zip(gold, predicted, strict=True)] for task in again.labels}
    records.write_labels(folder / "labels.parquet", labels)
    for task, rows in labels.items():
        assert records.read_labels(folder / "labels.parquet", again, task) == rows


def test_the_same_table_is_the_same_bytes(tmp_path: Path) -> None:
    import numpy as np

    gold = gold_sentences()
    right = [guessed(sentence, ["pos", "dep"], 0.5, np.random.default_rng(1)) for sentence in gold]
    labels = {task: [count_labels(task, g, p) for g, p in zip(gold, right, strict=True)] for task in ("pos", "dep")}
    for name in ("a", "b"):
        records.write_labels(tmp_path / name, labels)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    first, second = (records.write_gold(tmp_path / name, "x", gold_tables(gold)) for name in ("c", "d"))
    assert first == second


def test_counts_of_other_sentences_are_no_differences_to_gold(tmp_path: Path) -> None:
    gold = gold_tables(gold_sentences(3))
    for ids, known in ((["s000", "s002", "s001"], 1), (["s000", "s001", "s002"], None)):
        with pytest.raises(RunError, match="sentences"):
            records.write_counts(tmp_path / "x.parquet", ids, {"pos": {"words": [1, 1, known]}}, gold)
    assert not (tmp_path / "x.parquet").exists()


def test_gold_of_the_same_content_stays_as_other_records_know_it(tmp_path: Path) -> None:
    """Such as where another version of pyarrow wrote it."""
    import pyarrow.parquet as pq

    gold = gold_tables(gold_sentences(3))
    first = records.write_gold(tmp_path, "x", gold)
    for path in (tmp_path / "gold").iterdir():
        pq.write_table(pq.read_table(path), path)
    second = records.write_gold(tmp_path, "x", gold)
    assert second != first and records.write_gold(tmp_path, "x", gold) == second
    (tmp_path / "gold/x.labels.parquet").write_bytes(b"PAR1")
    assert records.read_gold(tmp_path, "x", records.write_gold(tmp_path, "x", gold)) == gold
    third = records.write_gold(tmp_path, "x", gold_tables(gold_sentences(4)))
    assert len(records.read_gold(tmp_path, "x", third).ids) == 4


@pytest.mark.parametrize("kind", ["counts", "labels"])
def test_gold_that_changed_or_is_gone_is_told(tmp_path: Path, kind: str) -> None:
    mark = records.write_gold(tmp_path / "a", "x", gold_tables(gold_sentences(3)))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with (tmp_path / f"a/gold/x.{kind}.parquet").open("r+b") as handle:
        handle.seek(50)
        handle.write(b"!")
    with pytest.raises(RunError, match="not those that the record was made with"):
        records.read_gold(tmp_path / "a", "x", mark)
    (tmp_path / f"b/gold/x.{kind}.parquet").unlink()
    with pytest.raises(RunError, match=r"is missing; .*copy both"):
        records.read_gold(tmp_path / "b", "x", mark)


def test_absolute_paths_keep_their_last_part() -> None:
    tree = {
        "command": ["/opt/x/worker.py", "runs/a", "data.path=/home/me/d/ewt5", "--out=~/runs/b"],
        "data": {"path": "/home/me/d/ewt5", "train": "train"},
        "encoder": {"name": "/models/one/bert", "random": False},
        "parameters": {"encoder": 3},
    }
    found = without_places(tree)
    assert found["command"] == ["./worker.py", "runs/a", "data.path=./ewt5", "--out=./b"]
    assert found["data"] == {"path": "./ewt5", "train": "train"} and found["parameters"] == {"encoder": 3}
    other = without_places({"encoder": {"name": "/models/two/bert"}})["encoder"]["name"]
    assert found["encoder"]["name"].startswith("./bert-") and other.startswith("./bert-")
    assert found["encoder"]["name"] != other, "two encoders of one folder name stay two"
    assert without_places(found) == found
