"""Runs on several processes, started as torchrun starts them but without its ten seconds, and what they may do."""

import datetime
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import forked
import small_runs
import torch
from safetensors.torch import save_file

import mtlprune.model
from mtlprune.config.config import build_config
from mtlprune.runs.folder import RunFolder
from mtlprune.training import parallel
from mtlprune.training.loop import train
from mtlprune.training.mixing import MiniBatch
from mtlprune.training.parallel import ProcessGroup, joined

EVALUATED = 3
"""Sentences of a batch of evaluation, so few that there are batches enough for all processes."""
Batches = list[tuple[str, list[int]]]
"""An update: tasks joined by commas, and rows, of each mini-batch."""


def run_processes(job: Callable[..., None], *args: Any, size: int = 2, seconds: float = 300) -> list[int]:
    """Exit codes of the processes: 0, 3 where the job raised (its error is in OUT.error-RANK), −9 if killed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [forked.start(_run, job, rank, size, port, args) for rank in range(size)]
    end = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        if process.exitcode is None:
            process.kill()
    assert None not in codes, f"{job.__name__} hangs: {codes}"
    return [code for code in codes if code is not None]


def error_of(out: Path, rank: int) -> str:
    return out.with_name(f"{out.name}.error-{rank}").read_text(encoding="utf-8")


def _run(job: Callable[..., None], rank: int, size: int, port: int, args: Sequence[Any]) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR="127.0.0.1")
    mtlprune.model.EVALUATION_SENTENCES = EVALUATED
    out = Path(args[0])
    try:
        job(rank, *args)
    except (ValueError, RuntimeError) as error:
        out.with_name(f"{out.name}.error-{rank}").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
        sys.exit(3)


def trainer(settings: dict[str, Any], folder: Path, group: ProcessGroup) -> Any:
    """Ready for its first update, with noise and dropout."""
    made = small_runs.trainer(settings, folder, group)
    made.model.train()
    return made


def updates(made: Any, plan: list[Batches]) -> dict[str, torch.Tensor]:
    """What the optimizer is given in each update, the weights after the last one, and the losses."""
    found: dict[str, torch.Tensor] = {}

    def look(*_: Any) -> None:
        step = made.progress.step
        seen = {n: p.grad.clone() for n, p in made.model.named_parameters() if p.grad is not None}
        found.update({f"gradient {step} {name}": gradient for name, gradient in seen.items()})

    made.optimizer.register_step_pre_hook(look)
    for batches in plan:
        losses, _ = made.update([MiniBatch(tuple(tasks.split(",")), rows) for tasks, rows in batches])
        found.update({f"loss {made.progress.step} {task}": torch.tensor(loss) for task, loss in losses.items()})
        made.progress.step += 1
    found.update({f"weight {name}": tensor.clone() for name, tensor in made.model.state_dict().items()})
    return found


def update(rank: int, out: Path, cases: dict[str, tuple[dict[str, Any], list[Batches]]]) -> None:
    with joined() as group:
        for name, (settings, plan) in cases.items():
            save_file(updates(trainer(settings, out / name, group), plan), out / f"{name}-{rank}.safetensors")


def train_one(rank: int, out: Path, settings: list[dict[str, Any]], what: str = "", when: int = 0) -> None:
    """Train; ``what`` happens to the last process after ``when`` updates: it is killed, sleeps, or wants to stop."""
    done = 0

    def stop() -> bool:
        nonlocal done
        done += 1
        if rank == 0 or done != when:
            return False
        if what == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "asleep":
            time.sleep(7)
        return what == "stops"

    if what == "asleep":
        parallel.TIMEOUT = datetime.timedelta(seconds=5)
    train(build_config(settings[rank]), RunFolder(out), stop=stop)


def poison(rank: int, out: Path, settings: dict[str, Any], plan: list[Batches]) -> None:
    """One process's weights become NaN, where its loss is still a number (a decoder's last bias) or not."""
    with joined() as group:
        made = trainer(settings, out, group)
        if rank:
            next(made.model.encoder.parameters()).data.fill_(math.nan)
        updates(made, plan)
