"""Processes forked from one that has loaded torch already, so that a test need not wait for that again and again."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

FORKS = multiprocessing.get_context("forkserver")
LOADED = ["mtlprune.training.loop", "mtlprune.pretraining.loop"]
FORKS.set_forkserver_preload([*LOADED, "transformers.models.bert.modeling_bert", "datasets"])


def start(target: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    tests = Path(__file__).parent  # it looks for our packages by itself, in whatever way pytest was started
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (tests.parent, tests)))
    process = FORKS.Process(target=target, args=arguments, kwargs=named)
    process.start()
    return process


class ForkedWorker:
    """A worker of a sweep, started and used as `subprocess.Popen` is. The fork server is its parent, not the pool."""

    def __init__(self, command: list[str], *, env: dict[str, str], stderr: IO[bytes], **_: Any) -> None:
        parent = command.index("--parent")
        cells, self.stdin = FORKS.Pipe(duplex=False)
        self.stdout, answers = FORKS.Pipe(duplex=False)
        self.process = start(_work, command[3:parent], env, stderr.name, cells, answers)
        cells.close()
        answers.close()
        self.pid, self.terminate, self.kill = self.process.pid, self.process.terminate, self.process.kill

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> None:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0)


def _work(arguments: list[str], environment: dict[str, str], log: str, cells: Any, answers: Any) -> None:
    from mtlprune.sweeps.worker import main

    os.setsid()
    os.environ.update(environment)
    os.dup2(cells.fileno(), 0)
    os.dup2(answers.fileno(), 1)
    cells.close()
    answers.close()
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)  # multiprocessing has closed it
    with Path(log).open("ab") as file:
        os.dup2(file.fileno(), 2)
    raise SystemExit(main(arguments))
