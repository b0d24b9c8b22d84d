"""Processes forked from one that has loaded torch already, so that a test need not wait for that again and again."""

import multiprocessing
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["mtlprune.training.loop", "mtlprune.pretraining.loop", "transformers.models.bert.modeling_bert", "datasets"]
)


def start(target: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """A process that does this, begun."""
    tests = Path(__file__).parent  # it looks for our packages by itself, in whatever way pytest was started
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (tests.parent, tests)))
    process = FORKS.Process(target=target, args=arguments, kwargs=named)
    process.start()
    return process


class ForkedWorker:
    """A worker of a sweep, started and used as `subprocess.Popen` is. The fork server is its parent, not the pool."""

    def __init__(self, command: list[str], *, env: dict[str, str], stdout: IO[bytes], **_: Any) -> None:
        parent = command.index("--parent")
        self.process = start(_work, [*command[3:parent], *command[parent + 2 :]], env, stdout.name)
        self.pid, self.terminate, self.kill = self.process.pid, self.process.terminate, self.process.kill

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> None:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0)


def _work(arguments: list[str], environment: dict[str, str], log: str) -> None:
    from mtlprune.sweeps.worker import main

    os.setsid()
    os.environ.update(environment)
    with Path(log).open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    raise SystemExit(main(arguments))
