"""Train in a process of its own that dies at a chosen moment, by SIGKILL: nothing is flushed, nothing cleaned up."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

import forked
from safetensors.torch import load_file

KILLED = -signal.SIGKILL


class Moment(NamedTuple):
    """The ``count``-th time that a Python function named ``name`` is called (``call``), that an update is finished
    (``update``), or that a file whose path ends in ``name`` is opened, renamed to or removed."""

    kind: str
    name: str = ""
    count: int = 1


def start(settings: dict[str, Any], folder: Path, moment: Moment | None = None, largest_file: int | None = None) -> Any:
    """Begin training in another process; it exits with 0, or with 3 and its error in ``folder``.error."""
    return forked.start(_train, settings, str(folder), moment, largest_file)


def run(settings: dict[str, Any], folder: Path, moment: Moment | None = None, largest_file: int | None = None) -> int:
    """Train until the process ends; its exit code, −9 if it was killed."""
    process = start(settings, folder, moment, largest_file)
    process.join(120)
    assert process.exitcode is not None, "training hangs"
    return process.exitcode


def error_of(folder: Path) -> str:
    return folder.with_suffix(".error").read_text(encoding="utf-8")


def outcome(folder: Path) -> dict[str, Any]:
    """Everything a run leaves behind but times: files by content, weights by tensor."""
    found: dict[str, Any] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(folder))
        if name == "manifest.json":
            finished = json.loads(path.read_text())["finished"]
            found[name] = {key: value for key, value in finished.items() if key != "seconds"}
        elif name == ".lock":
            found[name] = "process number"
        elif path.suffix == ".safetensors":
            found[name] = {key: tensor.numpy().tobytes() for key, tensor in load_file(path).items()}
        else:
            found[name] = path.read_bytes()
    return found


def changed(folder: Path, expected: dict[str, Any]) -> dict[str, Any]:
    """config.yaml where the first process wrote another checkpoint_minutes, the one setting that may differ."""
    text = (folder / "config.yaml").read_text()
    assert text.replace("checkpoint_minutes: 0.0", "checkpoint_minutes: 1000000.0").encode() == expected["config.yaml"]
    return {"config.yaml": text.encode()}


def _hit(path: str, name: str) -> bool:
    """Halves of files have names of their own: .NAME.WHOSE.part"""
    name, part, _ = name.partition(".part")
    return f"/{name}." in path and path.endswith(".part") if part else path.endswith(name)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _train(settings: dict[str, Any], folder: str, moment: Moment | None, largest_file: int | None) -> None:
    from mtlprune.config.config import build_config
    from mtlprune.runs import RunError, RunFolder
    from mtlprune.training.loop import TrainingError, train

    config = build_config(settings)
    left = moment.count if moment else 0

    def strike() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            _die()

    if moment and moment.kind in ("open", "os.rename", "os.remove"):

        def hook(event: str, args: tuple[Any, ...]) -> None:
            if event == moment.kind and _hit(str(args[1 if event == "os.rename" else 0]), moment.name):
                strike()

        sys.addaudithook(hook)
    if moment and moment.kind == "call":

        def profile(frame: Any, event: str, _: Any) -> None:
            if event == "call" and frame.f_code.co_name == moment.name:
                strike()

        sys.setprofile(profile)
    if largest_file is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as a full disk: writing fails with an error
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
    watch = (lambda event: strike()) if moment and moment.kind == "update" else (lambda event: None)
    try:
        train(config, RunFolder(folder), watch=watch)
    except (RunError, TrainingError) as error:
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        Path(folder).with_suffix(".error").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
        sys.exit(3)
