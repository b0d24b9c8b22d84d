"""Train, or pretrain, in a process that dies at a chosen moment, by SIGKILL: nothing is flushed, nothing cleaned up."""

import json
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import forked
from safetensors.torch import load_file

KILLED = -signal.SIGKILL


class Moment(NamedTuple):
    """The ``count``-th time that a Python function named ``name``, or one of ours, is called (``call``, ``own call``),
    that an update ends (``update``), or that a file whose path ends in ``name`` is opened, renamed to or removed."""

    kind: str
    name: str = ""
    count: int = 1


def start(settings: dict[str, Any], folder: Path, moment: Moment | None = None, **options: Any) -> Any:
    """Begin in another process; it exits with 0, or with 3 and its error in ``folder``.error.

    Options:
        largest_file: bytes; a larger one cannot be written, as on a full disk.
        pretraining: the settings are those of a pretraining.
    """
    return forked.start(_train, settings, str(folder), moment, options)


def run(settings: dict[str, Any], folder: Path, moment: Moment | None = None, **options: Any) -> int:
    """Go on until the process ends; its exit code, −9 if it was killed."""
    process = start(settings, folder, moment, **options)
    process.join(120)
    assert process.exitcode is not None, "training hangs"
    return int(process.exitcode)


def killed_often(settings: dict[str, Any], folder: Path, times: int, pause: float, **options: Any) -> int:
    """Kill so many processes, each up to ``pause`` seconds after its first checkpoint; how many there were to kill."""
    settings = often(settings)
    checkpoint, moments, kills = folder / "checkpoint.safetensors", random.Random(3), 0
    for _ in range(times):
        process = start(settings, folder, **options)
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        while process.is_alive() and (not checkpoint.exists() or checkpoint.stat().st_mtime_ns == before):
            time.sleep(0.002)  # until this process has got a step further
        time.sleep(moments.uniform(0, pause))
        process.kill()
        process.join()
        kills += process.exitcode == KILLED
    return kills


def often(settings: dict[str, Any]) -> dict[str, Any]:
    """The same with a checkpoint after every update."""
    return {**settings, "train": {**settings["train"], "checkpoint_minutes": 0.0}}


def error_of(folder: Path) -> str:
    return folder.with_suffix(".error").read_text(encoding="utf-8")


def outcome(folder: Path) -> dict[str, Any]:
    """Everything a run leaves behind but times: files by content, weights by tensor. How often checkpoints are written,
    the one setting that may change on the way, is left out."""
    found: dict[str, Any] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(folder))
        if name == "manifest.json":
            finished = json.loads(path.read_text())["finished"]
            found[name] = {key: value for key, value in finished.items() if not key.endswith("seconds")}
        elif name == ".lock":
            found[name] = "process number"
        elif path.suffix == ".safetensors":
            found[name] = {key: tensor.numpy().tobytes() for key, tensor in load_file(path).items()}
        else:
            found[name] = path.read_bytes().replace(b"checkpoint_minutes: 0.0", b"checkpoint_minutes: 1000000.0")
    return found


def _hit(path: str, name: str) -> bool:
    """Halves of files have names of their own: .NAME.WHOSE.part"""
    name, part, _ = name.partition(".part")
    return f"/{name}." in path and path.endswith(".part") if part else path.endswith(name)


def _train(settings: dict[str, Any], folder: str, moment: Moment | None, options: dict[str, Any]) -> None:
    from mtlprune.config.config import build_config, validated
    from mtlprune.pretraining.config import PretrainConfig
    from mtlprune.pretraining.loop import pretrain
    from mtlprune.runs import RunError, RunFolder
    from mtlprune.training.loop import TrainingError, train

    left, largest_file = moment.count if moment else 0, options.get("largest_file")

    def strike() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if moment and moment.kind.startswith(("open", "os.")):

        def hook(event: str, args: tuple[Any, ...]) -> None:
            if event == moment.kind and _hit(str(args[1 if event == "os.rename" else 0]), moment.name):
                strike()

        sys.addaudithook(hook)
    if moment and moment.kind.endswith("call"):
        where = "mtlprune" if moment.kind == "own call" else ""

        def profile(frame: Any, event: str, _: Any) -> None:
            if event == "call" and frame.f_code.co_name == moment.name and where in frame.f_code.co_filename:
                strike()

        sys.setprofile(profile)
    if largest_file is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as a full disk: writing fails with an error
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
    watch = (lambda event: strike()) if moment and moment.kind == "update" else (lambda event: None)
    try:
        if options.get("pretraining"):
            pretrain(validated(PretrainConfig, settings, "test"), RunFolder(folder))
        else:
            train(build_config(settings), RunFolder(folder), watch=watch)
    except (RunError, TrainingError) as error:
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        Path(folder).with_suffix(".error").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
        sys.exit(3)
