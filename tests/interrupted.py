"""Train in a process that is killed: nothing is flushed, nothing cleaned up."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import forked
from safetensors.torch import load_file

from mtlprune.config.config import build_config
from mtlprune.runs.folder import RunFolder
from mtlprune.training.loop import Event, train

KILLED = -signal.SIGKILL


def start(settings: dict[str, Any], folder: Path, **options: Any) -> Any:
    """Begin in another process.

    Options:
        kill_after: so many updates, at the end of the last of which it dies.
    """
    return forked.start(_train, settings, str(folder), **options)


def run(settings: dict[str, Any], folder: Path, **options: Any) -> int:
    """Go on until the process ends; its exit code, −9 if it was killed."""
    process = start(settings, folder, **options)
    process.join(120)
    assert process.exitcode is not None, "training hangs"
    return int(process.exitcode)


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


def _train(settings: dict[str, Any], folder: str, kill_after: int = 0) -> None:
    updates = iter(range(1, 10**6))

    def watch(event: Event) -> None:
        if event.evaluation is None and next(updates) == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)

    train(build_config(settings), RunFolder(folder), watch=watch)
