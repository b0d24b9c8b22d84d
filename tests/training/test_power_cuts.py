"""A kill or a power cut at any moment: the same command ends the run as if nothing had happened."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from interrupted import outcome
from power_cuts import Image, Recorder, images, lay_out
from tiny import make_tiny

from mtlprune.config.config import Config, build_config
from mtlprune.corpora.grammar import build_grammar
from mtlprune.corpora.store import save_corpus
from mtlprune.pretraining.config import PretrainConfig
from mtlprune.pretraining.loop import pretrain
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.training.evaluation import evaluate_run
from mtlprune.training.loop import train
from mtlprune.training.pruning import head_removal


def settings() -> dict[str, Any]:
    """Every kind of file: weights, checkpoints after every update, gates, UAS, results. Paths are seen from `given`."""
    return {
        "data": {"path": "corpus"},
        "tasks": ["pos", "dep"],
        "encoder": {"name": "encoder"},
        "decoders": {"dep": {"arc_size": 4, "relation_size": 4}},
        "pruning": {"method": "gates", "rate": 0.3},
        "train": {"epochs": 4, "batch_sentences": 8, "encoder_rate": 1e-2, "decoder_rate": 1e-2, "log_uas": True}
        | {"device": "cpu", "precision": "fp32", "threads": 1, "checkpoint_minutes": 0.0},
    }


def trains(root: Path) -> None:
    """A run that is stopped once and continues."""
    config, folder = build_config(settings()), RunFolder(root / "run")
    if not folder.path.exists():
        updates = iter(range(3, 0, -1))
        assert not train(config, folder, stop=lambda: next(updates) == 1).finished
    assert train(config, folder).finished


def pretrains(root: Path) -> None:
    config = PretrainConfig.model_validate(
        {
            "data": {"corpora": ["corpus"], "train_sentences": 8, "dev_sentences": 4},
            "model": {"vocabulary": 100, "layers": 1, "heads": 2, "hidden": 8, "positions": 64},
            "train": {"steps": 4, "batch_sentences": 4, "device": "cpu", "threads": 1, "precision": "fp32"}
            | {"checkpoint_minutes": 0.0},
            "watch": {"points": 3, "first": 1},
        }
    )
    pretrain(config, RunFolder(root / "run"))


def prunes(root: Path) -> None:
    asked = head_removal.request("gated", None, 3)
    with head_removal.appearing(root / "run") as folder:
        made = head_removal.prune(asked, folder, root / "run")
        head_removal.score(folder, made.model, asked.corpus, asked.source)


def evaluates(root: Path) -> None:
    folder = RunFolder(root / "run")
    folder.verify()
    if "test" in folder.splits():  # scores stand for all three
        assert folder.why_damaged("test") == ""
        assert list(folder.read_counts("test")["ids"]) == [sentence.id for sentence in folder.read_predictions("test")]
    evaluate_run(folder, "test")


WORKS = {"train": trains, "pretrain": pretrains, "prune": prunes, "evaluate": evaluates}
"""What a command writes below a folder, told to go on where it was cut short."""
PRUNED: dict[str, dict[str, Any]] = {
    "importance": {"keep": 3, "importance_of": "both"},
    "fisher": {"keep": 3, "importance_of": "both"},
    **{
        f"stable by {selector}": {"keep": 3, "importance_of": "both", "halves": 2, "threshold": 1.0, **more}
        for selector, more in {
            "importance": {},
            "fisher": {"selector": "fisher"},
            "gates": {"selector": "gates", "selector_updates": 2, "rate": 2.0},
            "topk": {"selector": "topk", "selector_updates": 2, "rate": 2.0},
        }.items()
    },
    "random": {"keep": 3, "closed": "mean"},
    "given": {"heads": "1-2,2-1,2-2"},
    "gates": {"keep": 3, "penalty": "exact", "sets": "per_task"},
    "topk": {"keep": 3},
}
TREATED: dict[str, dict[str, Any]] = {
    "distil": {"teachers": {"pos": "pos", "dep": "dep"}},
    "dispatch": {"heads": {"per_task": {"pos": "1-1", "dep": "2-2"}}},
    "clone": {"heads": {"rule": "random", "like": "1-1,2-1"}},
    "protect": {"heads": "1-1", "tasks": ["dep"]},
    "project": {"at": "heads", "heads": "1-1,2-2"},
    "merge": {"sources": {"pos": "pos", "dep": "dep"}, "sentences": 4},
}
BEGINNINGS: dict[str, dict[str, Any]] = {
    **{name: {"pruning": {"method": name.partition(" ")[0], **block}} for name, block in PRUNED.items()},
    **{name: {"treatment": {name: block}} for name, block in TREATED.items()},
    "several": {
        "treatment": {name: TREATED[name] for name in ("distil", "dispatch", "merge")},
        "pruning": {"method": "random", **PRUNED["random"]},
    },
}
"""What is chosen or written before the first update, by every selector and every treatment."""


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, an encoder, and finished runs that others begin from: pos, dep, both, and gated with gates."""
    root = tmp_path_factory.mktemp("given")
    save_corpus(build_grammar(16, 6, 4, seed=5), root / "corpus", name="tiny", licence="Apache-2.0", sources={})
    make_tiny("bert", root / "encoder")
    runs = {"pos": ["pos"], "dep": ["dep"], "both": ["pos", "dep"]}
    blocks = {name: beginning({}) | {"tasks": tasks} for name, tasks in runs.items()}
    gates = {"pruning": settings()["pruning"], "train": settings()["train"] | {"checkpoint_minutes": 1e6}}
    blocks["gated"] = blocks["pos"] | gates
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for name, block in blocks.items():
            assert train(build_config(block), RunFolder(root / name)).finished
    return root


def beginning(block: dict[str, Any]) -> dict[str, Any]:
    given = settings()
    how = given["train"] | {"epochs": 1, "log_uas": False, "checkpoint_minutes": 1e6}
    return given | {"pruning": {"method": "none"}, "train": how} | block


QUICK = ("stable by topk", "random", "gates", "clone", "several")


@pytest.mark.parametrize(
    ("name", "every"),
    [*((name, False) for name in QUICK), *(pytest.param(name, True, marks=pytest.mark.slow) for name in BEGINNINGS)],
)
def test_a_run_killed_while_it_begins_begins_anew(name, every, given, tmp_path, monkeypatch):
    """At each operation up to the first checkpoint; or just before the last file of the beginning, config.yaml."""
    monkeypatch.chdir(given)
    config, root = build_config(beginning(BEGINNINGS[name])), tmp_path / "root"
    expected = outcome(shutil.move(trained_to_the_end(config, root), tmp_path / "whole"))
    with Recorder(root) as recorder:
        train(config, RunFolder(root / "run"), stop=lambda: True)
    recorder.root = root.rename(tmp_path / "recorded")
    found = images(recorder)
    if not every:
        early = [image for image in found if "run/config.yaml" not in image]
        assert len(early) > 10 and ("treatment" not in BEGINNINGS[name]) != ("run/treatment.json" in early[-1])
        found = early[-1:]
    for number, image in enumerate(found):
        shutil.rmtree(root, ignore_errors=True)
        lay_out(image, root)
        assert outcome(trained_to_the_end(config, root)) == expected, f"{name}, {number} of {len(found)}"
    print(f"{name}: killed at {len(found)} moments, all begin anew")


def trained_to_the_end(config: Config, root: Path) -> Path:
    root.mkdir(exist_ok=True)
    assert train(config, RunFolder(root / "run")).finished
    return root / "run"


Recorded = tuple[Callable[[Path], None], Recorder, dict[str, Any]]


@pytest.fixture(scope="module", params=WORKS)
def recorded(
    request: pytest.FixtureRequest, given: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Recorded]:
    """A command, what it did on the disk, and what it leaves when it ends; paths are relative to the folder given."""
    root = tmp_path_factory.mktemp("cuts") / "root"
    root.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(given)
        if request.param == "evaluate":
            shutil.copytree("gated", root / "run")
        with Recorder(root) as recorder:
            WORKS[request.param](root)
        expected = outcome(root / "run")
        recorder.root = root.rename(root.with_name("recorded"))
        yield WORKS[request.param], recorder, expected


def lost(recorded: Recorded, found: list[Image]) -> list[str]:
    """What went wrong when each image was laid out under the same name and gone on with; refusals of what is whole
    already are well."""
    work, recorder, expected = recorded
    root, wrong = recorder.root.with_name("root"), []
    for number, image in enumerate(found):
        shutil.rmtree(root, ignore_errors=True)
        lay_out(image, root)
        try:
            if work is prunes and (root / "run").exists():
                with pytest.raises(RunError, match="is not empty"):
                    work(root)
            else:
                work(root)
            left = outcome(root / "run")
        except Exception as error:
            wrong.append(f"{number}: {error!r}")
            continue
        if left != expected:
            wrong.append(f"{number}: {[n for n in {*left, *expected} if left.get(n) != expected.get(n)]}")
    return wrong


def test_some_power_cuts_are_survived(recorded: Recorded):
    found = images(recorded[1])
    assert len(found) >= 10 and lost(recorded, found[:: len(found) // 4]) == []


@pytest.mark.slow
def test_every_power_cut_is_survived(recorded: Recorded):
    assert lost(recorded, images(recorded[1])) == []


@pytest.mark.slow
def test_without_syncs_work_is_lost(recorded: Recorded):
    """The control: such images can tell."""
    assert lost(recorded, images(recorded[1], deaf=True)[-2:])
