"""Processes forked from one that has loaded torch already, so that a test need not wait for that again and again."""

import multiprocessing
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["mtlprune.training.loop", "mtlprune.pretraining.loop", "transformers.models.bert.modeling_bert", "datasets"]
)


def start(target: Callable[..., Any], *arguments: Any) -> Any:
    """A process that does this, begun."""
    tests = Path(__file__).parent  # it looks for our packages by itself, in whatever way pytest was started
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (tests.parent, tests)))
    process = FORKS.Process(target=target, args=arguments)
    process.start()
    return process


class ForkedWorker:
    """The worker of a sweep, as ``sweeps.scheduler`` starts it, but for its start; used as subprocess.Popen is."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> None:
        arguments = list(command[3:])
        if "--parent" in arguments:  # which is not the scheduler's process here
            del arguments[-2:]
        self.process = start(_work, arguments, log.name)
        self.pid = self.process.pid
        self.terminate, self.kill = self.process.terminate, self.process.kill

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0)
        return self.process.exitcode


def _work(arguments: list[str], log: str) -> None:
    from mtlprune.sweeps.worker import main

    os.setsid()
    with Path(log).open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    raise SystemExit(main(arguments))
