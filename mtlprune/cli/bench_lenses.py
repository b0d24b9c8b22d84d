"""What ``mtlprune bench --lenses`` does: the four lenses on some sentences, each in a process of its own.

Each process calls the function that is the verb ``mtlprune analyze LENS``, with its defaults, so the figures are what
the verb costs: imports, loading, tables and pictures among them.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtlprune.runs import RunError

if TYPE_CHECKING:
    from rich.table import Table

    from mtlprune.config.config import Config

LENSES = ("smoothing", "dissection", "syntax", "degeneration")
SPLIT = "dev"
GOAL_SECONDS, GOAL_BYTES = 300.0, 4e9
GOAL = "goal: 1,000 sentences, MiniLM, 2 cores"


@dataclass(frozen=True)
class AnalysisCost:
    """What one lens took.

    Attributes:
        wall: seconds from the start of its process to its end.
        processor: seconds of all its threads.
        memory: its peak, in bytes.
        threads: of torch.
        sentences: that it says it read; those too long for the encoder are left out, so it may be fewer than asked for.
        refused: why the lens does not take this encoder or corpus; empty where it does.
    """

    wall: float
    processor: float
    memory: int
    threads: int
    sentences: int
    refused: str = ""


def bench_lenses(settings: Config, trained: Path | None, sentences: int, out: Path | None) -> None:
    """Measure all lenses on the encoder of a configuration (or on a run) and sentences of its corpus's dev, on the CPU.

    Raises:
        CorpusError: no corpus there.
        RunError: no dev, fewer sentences than asked for, no lens takes the encoder, or a process was ended.
    """
    from mtlprune.cli.console import console
    from mtlprune.cli.progress import counted
    from mtlprune.files import write_json

    corpus = Path(settings.data.path)
    _check(corpus, sentences)
    subject = settings.encoder.name if trained is None else str(trained)
    load = os.getloadavg()[0]
    with counted(len(LENSES)) as (_, tick):
        costs = measure(subject, corpus, sentences, settings.train.threads, tick)
    measured = total(costs)
    terminal = console()
    terminal.print(_table(f"{subject}, {measured.sentences} sentences of {SPLIT} of {corpus}", costs, measured))
    for lens, cost in costs.items():
        if cost.refused:
            terminal.print(f"note: no {lens}: {cost.refused}", soft_wrap=True)
    terminal.print(
        f"{measured.threads} threads; load of the machine when it began: {load:.2f}, on {os.cpu_count()} cores",
        soft_wrap=True,
    )
    if out is not None:
        figures = {
            "subject": subject,
            "corpus": str(corpus),
            "split": SPLIT,
            "load": load,
            "cores": os.cpu_count(),
            "lenses": {lens: asdict(cost) for lens, cost in costs.items()},
            "total": asdict(measured),
            "goal": {"wall": GOAL_SECONDS, "memory": GOAL_BYTES, "of": GOAL},
        }
        write_json(out, figures)


def measure(
    subject: str, corpus: Path, sentences: int, threads: int | None = None, tick: Callable[[], None] = lambda: None
) -> dict[str, AnalysisCost]:
    """The cost of each lens, one after the other.

    Args:
        subject: a run folder or an encoder.
        threads: of torch; None for as many as the verbs would take.
        tick: called after each lens.

    Raises:
        RunError: no lens takes the encoder, or a process was ended from outside.
    """
    costs: dict[str, AnalysisCost] = {}
    for lens in LENSES:
        begun = time.perf_counter()
        try:
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                costs[lens] = pool.submit(alone, lens, subject, str(corpus), sentences, threads, begun).result()
        except BrokenProcessPool:
            raise RunError(
                f"{lens}: its process was ended from outside; was there too little memory? Try fewer --sentences"
            ) from None
        tick()
    refusals = [f"{lens}: {cost.refused}" for lens, cost in costs.items() if cost.refused]
    if len(refusals) == len(LENSES):
        raise RunError(f"no lens could be measured; {refusals[0]}")
    return costs


def total(costs: Mapping[str, AnalysisCost]) -> AnalysisCost:
    """Times added up, and the largest memory, over the lenses that were measured."""
    done = [cost for cost in costs.values() if not cost.refused]
    return AnalysisCost(
        sum(cost.wall for cost in done),
        sum(cost.processor for cost in done),
        max(cost.memory for cost in done),
        max(cost.threads for cost in done),
        min(cost.sentences for cost in done),
    )


def _check(corpus: Path, sentences: int) -> None:
    from mtlprune.corpora.store import load_corpus

    stored = load_corpus(corpus)
    there = len(stored[SPLIT]) if SPLIT in stored.splits else 0
    if there < sentences:
        raise RunError(
            f"{corpus}: expected {sentences} sentences in {SPLIT}, found {there}; ask for fewer (--sentences)"
        )


def alone(lens: str, subject: str, corpus: str, sentences: int, threads: int | None, begun: float) -> AnalysisCost:
    """The cost of one lens, where it is the only thing that this process does.

    Args:
        begun: what ``time.perf_counter`` said when the process was started; all processes of a machine share it.
    """
    import torch

    from mtlprune.cli.console import exit_code, sentence
    from mtlprune.training.hardware import peak_memory

    if threads is not None:
        torch.set_num_threads(threads)
    refused, read = "", 0
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        try:
            _verb(lens)(names=[subject], corpus=Path(corpus), out=Path(folder) / lens, sentences=sentences)
            tree = json.loads((Path(folder) / lens / f"{lens}.json").read_text(encoding="utf-8"))
            read = tree.get("head", tree)["sentences"]
        except Exception as error:
            if exit_code(error) is None:
                raise
            refused = sentence(error)
    wall, threads = time.perf_counter() - begun, torch.get_num_threads()
    return AnalysisCost(wall, time.process_time(), peak_memory(), threads, read, refused)


def _verb(lens: str) -> Callable[..., Any]:
    from mtlprune.analyses.analysis import find
    from mtlprune.cli.analyze.command import run

    return partial(run, find(lens))


def _table(title: str, costs: Mapping[str, AnalysisCost], measured: AnalysisCost) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in ("lens", "wall seconds", "processor seconds", "peak GB"):
        table.add_column(column, justify="left" if column == "lens" else "right")
    for lens, cost in costs.items():
        table.add_row(*([lens, "refused", "", ""] if cost.refused else _cells(lens, cost)))
    table.add_section()
    table.add_row(*_cells("all, one after the other", measured))
    table.add_row(GOAL, f"{GOAL_SECONDS:.1f}", "", f"{GOAL_BYTES / 1e9:.2f}")
    return table


def _cells(name: str, cost: AnalysisCost) -> list[str]:
    return [name, f"{cost.wall:.1f}", f"{cost.processor:.1f}", f"{cost.memory / 1e9:.2f}"]
