"""Two commands that write one target at the same moment: both end well, and what the last one wrote is there, whole."""

import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import forked
import pytest

from mtlprune.files import one_writer, replacing_folder
from mtlprune.model import MultiTaskModel
from mtlprune.runs import RunFolder
from mtlprune.sentence import Sentence

THEN = Path(__file__).parents[1] / "first_release"


def _command(words: list[str], folder: Path, together: Any) -> None:
    from mtlprune.cli import main

    os.chdir(folder)
    sys.argv = ["mtlprune", *words]
    together.wait(60)
    main()


def at_once(folder: Path, *commands: list[str]) -> list[int]:
    """Exit codes of commands that begin together."""
    together = forked.FORKS.Barrier(len(commands))
    processes = [forked.start(_command, command, folder, together) for command in commands]
    for process in processes:
        process.join(120)
    return [int(process.exitcode or 0) for process in processes]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(THEN, tmp_path_factory.mktemp("together") / "lab"))


@pytest.mark.slow
def test_commands(lab):
    prune = ["prune", "finished-pos", "--out", "pruned", "--no-latency", "--heads"]
    evaluate = ["evaluate", "finished-dep", "--split", "test"]
    maps = ["maps", "finished-pos", "finished-dep", "--out", "maps", "--format", "svg", "--palette"]
    report = ["report", "finished-pos", "--out", "page.html", "--resamples", "0", "--permutations", "10", "--title"]
    commands = [
        *([*prune, "2"], [*prune, "5"]),
        *(evaluate, evaluate),
        *([*maps, "rgb"], [*maps, "colourblind"]),
        *([*report, "One"], [*report, "Two"]),
    ]
    assert at_once(lab, *commands) == [0] * 8
    manifest = RunFolder(lab / "pruned").read_manifest()
    assert manifest["pruned"]["most_open"] in (2, 5)
    assert (
        sum(map(len, manifest["pruned"]["heads"]))
        == manifest["pruned"]["heads_kept"]
        <= manifest["pruned"]["most_open"]
    )
    assert MultiTaskModel.load(lab / "pruned").parse("a dog")[0].pos  # all files are of one of them
    then = THEN / "finished-dep"
    for name in ("scores/test.json", "counts/test.json", "predictions/test.jsonl"):
        assert (lab / "finished-dep" / name).read_bytes() == (then / name).read_bytes()
    listed = json.loads((lab / "maps/maps.json").read_text())
    assert {name for entry in listed["maps"] for name in entry["files"]} == {p.name for p in lab.glob("maps/*.svg")}
    assert ("<title>One" in (lab / "page.html").read_text()) != ("<title>Two" in (lab / "page.html").read_text())
    assert not [p for p in lab.rglob(".*") if p.name not in (".lock", ".verified.json")]


def test_results_are_those_of_one_writer(tmp_path):
    folder = RunFolder(tmp_path)

    def write(number: int) -> None:
        for _ in range(10):
            predicted = [Sentence(str(number), ("x",), pos=("A",))]
            folder.write_results("test", {"pos": {"accuracy": number}}, [str(number)], {}, predicted)
            with one_writer(folder.path):
                score = folder.read_scores("test")["pos"]["accuracy"]
                assert folder.read_counts("test")["ids"] == [str(score)]
                assert folder.read_predictions("test")[0].id == str(score)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(6)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counts", "predictions", "scores"]


def test_a_folder_is_that_of_one_writer(tmp_path):
    def write(number: int) -> None:
        for _ in range(10):
            with replacing_folder(tmp_path / "new") as beside:
                for name in "abc":
                    (beside / name).write_text(str(number))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(6)))
    assert len({(tmp_path / "new" / name).read_text() for name in "abc"}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    with pytest.raises(ZeroDivisionError), replacing_folder(tmp_path / "new"):
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == ["new"] and (tmp_path / "new" / "a").exists()


def test_results_cut_short_are_none(tmp_path, monkeypatch):
    """Killed between the files of one evaluation, none is taken for a result."""
    folder = RunFolder(tmp_path)
    folder.write_results("test", {"pos": {"accuracy": 1}}, ["1"], {}, [])
    assert folder.splits() == ["test"]
    monkeypatch.setattr(RunFolder, "write_json", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        folder.write_results("test", {"pos": {"accuracy": 2}}, ["2"], {}, [])
    assert folder.splits() == []
