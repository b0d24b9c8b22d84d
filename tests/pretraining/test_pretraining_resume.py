"""Exact resume: a process is killed, the same pretraining run again, and all equals an undisturbed run bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import forked
import pytest
from safetensors.torch import load_file

KILLED = -signal.SIGKILL


class Moment(NamedTuple):
    """The ``count``-th time that a function named ``name`` is called (``call``), or that a file whose path ends in
    ``name`` is opened, renamed to or removed."""

    kind: str
    name: str
    count: int = 1


MOMENTS = {
    "before config.yaml is there": Moment("os.rename", "config.yaml"),
    "before any state was saved": Moment("call", "update", 3),
    "within the loss of an update": Moment("call", "loss", 8),
    "while minimal pairs are judged": Moment("call", "judge", 3),
    "before a model folder is in place": Moment("os.rename", "step-5"),
    "with a model folder written, its line not": Moment("call", "measure", 4),
    "with its line written, no state": Moment("call", "append_line", 4),
    "before the state is in place": Moment("os.rename", "checkpoint.safetensors", 6),
    "at the end, before it is noted": Moment("os.rename", "manifest.json", 2),
    "at the end, before the state is removed": Moment("os.remove", "checkpoint.safetensors"),
}

FEW = ("before config.yaml is there", "with its line written, no state", "before the state is in place")


def _cases() -> list[Any]:
    return [pytest.param(name, id=name, marks=() if name in FEW else pytest.mark.slow) for name in MOMENTS]


def _pretrain(settings: dict[str, Any], folder: str, moment: Moment | None) -> None:
    from mtlprune.config.config import validated
    from mtlprune.pretraining.config import PretrainConfig
    from mtlprune.pretraining.loop import pretrain
    from mtlprune.runs import RunFolder

    left = moment.count if moment else 0

    def strike() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if moment and moment.kind in ("open", "os.rename", "os.remove"):

        def hook(event: str, args: tuple[Any, ...]) -> None:
            if event == moment.kind and str(args[1 if event == "os.rename" else 0]).endswith(moment.name):
                strike()

        sys.addaudithook(hook)
    if moment and moment.kind == "call":

        def profile(frame: Any, event: str, _: Any) -> None:
            if event == "call" and frame.f_code.co_name == moment.name and "mtlprune" in frame.f_code.co_filename:
                strike()

        sys.setprofile(profile)
    pretrain(validated(PretrainConfig, settings, "test"), RunFolder(folder))


def start(settings: dict[str, Any], folder: Path, moment: Moment | None = None) -> Any:
    return forked.start(_pretrain, settings, str(folder), moment)


def run(settings: dict[str, Any], folder: Path, moment: Moment | None = None) -> int:
    process = start(settings, folder, moment)
    process.join(120)
    assert process.exitcode is not None, "pretraining hangs"
    return int(process.exitcode)


def outcome(folder: Path) -> dict[str, Any]:
    """Everything a run leaves behind but times: files by content, weights by tensor."""
    found: dict[str, Any] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(folder))
        if name == "manifest.json":
            found[name] = {k: v for k, v in json.loads(path.read_text())["finished"].items() if k != "seconds"}
        elif name == ".lock":
            found[name] = "process number"
        elif path.suffix == ".safetensors":
            found[name] = {key: tensor.numpy().tobytes() for key, tensor in load_file(path).items()}
        else:
            found[name] = path.read_bytes().replace(b"checkpoint_minutes: 0.0", b"checkpoint_minutes: 1000000.0")
    return found


@pytest.fixture(scope="module")
def undisturbed(
    small_pretraining: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, Any]]:
    settings = small_pretraining(model={"attention_dropout": 0.1})
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    assert run(settings, folder) == 0
    expected = outcome(folder)
    assert "checkpoint.safetensors" not in expected and "checkpoints/step-12/model.safetensors" in expected
    return settings, expected


def test_the_same_settings_twice_give_the_same_bits(undisturbed, tmp_path):
    settings, expected = undisturbed
    assert run(settings, tmp_path / "run") == 0
    assert outcome(tmp_path / "run") == expected


@pytest.mark.parametrize("name", _cases())
def test_killed_once(undisturbed, name, tmp_path):
    settings, expected = undisturbed
    often = {**settings, "train": {**settings["train"], "checkpoint_minutes": 0.0}}
    assert run(often, tmp_path / "run", MOMENTS[name]) == KILLED
    assert run(often, tmp_path / "run") == 0
    assert outcome(tmp_path / "run") == expected


def test_killed_again_and_again_at_any_moment(undisturbed, tmp_path):
    settings, expected = undisturbed
    often = {**settings, "train": {**settings["train"], "checkpoint_minutes": 0.0}}
    state, moments, kills = tmp_path / "run" / "checkpoint.safetensors", random.Random(3), 0
    for _ in range(4):
        process = start(often, tmp_path / "run")
        before = state.stat().st_mtime_ns if state.exists() else 0
        while process.is_alive() and (not state.exists() or state.stat().st_mtime_ns == before):
            time.sleep(0.002)  # until this process has got a step further
        time.sleep(moments.uniform(0, 0.05))
        process.kill()
        process.join()
        kills += process.exitcode == KILLED
    assert kills >= 2
    assert run(often, tmp_path / "run") == 0
    assert outcome(tmp_path / "run") == expected
