"""mtlprune runs record on a trained run: what needs weights refuses the record by that word; the rest works."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mtlprune as package
from mtlprune.runs import RunError, RunFolder

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def recorded(mtlprune: Call, trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of a finished run of all five tasks."""
    out = tmp_path_factory.mktemp("records")
    answer = mtlprune("runs", "record", trained, "--out", out)
    assert answer.code == 0, answer.err
    assert answer.out.splitlines()[0].startswith(f"{out / trained.name}: ")
    return out / trained.name


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_scores_and_counts_are_those_of_the_run(recorded, trained):
    record, run = RunFolder.existing(recorded), RunFolder.existing(trained)
    assert record.splits() == run.splits() == ["dev", "test"]
    for split in record.splits():
        assert record.read_counts(split) == run.read_counts(split)
        assert record.read_scores(split) == run.read_scores(split)
    for name in ("metrics.jsonl", "best.json", "vocabulary.json"):
        assert (recorded / name).read_bytes() == (trained / name).read_bytes()


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "RECORD", "--split", "test"),
        ("predict", "RECORD", "sentences.txt"),
        ("prune", "RECORD", "--out", "new"),
        ("probe", "RECORD", "--corpus", "CORPUS", "--out", "new"),
        ("analyze", "smoothing", "RECORD", "--corpus", "CORPUS", "--out", "new"),
        ("analyze", "degeneration", "RECORD", "--corpus", "CORPUS", "--out", "new"),
        ("head", "RECORD", "1", "1"),
        ("analyze", "gradients", "RECORD", "--corpus", "CORPUS", "--out", "new"),
        ("train", "CONFIG", "train.start=RECORD", "--out", "new"),
        (
            "train",
            "CONFIG",
            "pruning.method=importance",
            "pruning.keep=2",
            "pruning.importance_of=RECORD",
            "--out",
            "new",
        ),
        ("train", "CONFIG", "--out", "RECORD"),
    ],
    ids=lambda words: "-".join(words[:3]),
)
def test_what_needs_weights_refuses_a_record(mtlprune, recorded, lab, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    Path("sentences.txt").write_text("a sentence .\n")
    places = {"RECORD": recorded, "CORPUS": lab.corpus, "CONFIG": lab.config}
    for name, place in places.items():
        words = tuple(word.replace(name, str(place)) for word in words)
    before = files(recorded)
    answer = mtlprune(*words)
    assert answer.code == 2 and len(answer.err.splitlines()) == 1
    assert f"{recorded} is the record of a run, without weights" in answer.err
    assert files(recorded) == before and not list(Path("new").glob("**/*"))


def test_loading_and_reading_predictions_refuse_a_record(recorded):
    with pytest.raises(RunError, match="without weights"):
        package.load(str(recorded))
    with pytest.raises(RunError, match="without predictions"):
        RunFolder(recorded).read_predictions("dev")
