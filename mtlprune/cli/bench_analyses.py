"""What ``mtlprune bench --analyses`` does: the four analyses on some sentences, each in a process of its own.

Each process calls the command ``mtlprune analyze ANALYSIS`` with its defaults, so the figures are what
the command costs: imports, loading, tables and pictures among them.
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

ANALYSES_MEASURED = ("smoothing", "dissection", "syntax", "degeneration")
SPLIT = "dev"
GOAL_SECONDS, GOAL_BYTES = 300.0, 4e9
GOAL = "goal: 1,000 sentences, MiniLM, 2 cores"


@dataclass(frozen=True)
class AnalysisCost:
    """What one analysis took.

    Attributes:
        wall: seconds from the start of its process to its end.
        processor: seconds of all its threads.
        memory: its peak, in bytes.
        threads: of torch.
        sentences: that it says it read; those too long for the encoder are left out, so it may be fewer than asked for.
        refused: why the analysis does not take this encoder or corpus; empty where it does.
    """

    wall: float
    processor: float
    memory: int
    threads: int
    sentences: int
    refused: str = ""


def bench_analyses(settings: Config, trained: Path | None, sentences: int, out: Path | None) -> None:
    """Measure all analyses on the encoder of a configuration (or on a run), on sentences of its corpus's dev.

    Raises:
        CorpusError: no corpus there.
        RunError: no dev, fewer sentences than asked for, no analysis takes the encoder, or a process was ended.
    """
    from mtlprune.cli.console import console
    from mtlprune.cli.progress import counted
    from mtlprune.files import write_json

    corpus = Path(settings.data.path)
    _check(corpus, sentences)
    subject = settings.encoder.name if trained is None else str(trained)
    load = os.getloadavg()[0]
    with counted(len(ANALYSES_MEASURED)) as (_, on_batch):
        costs = measure(subject, corpus, sentences, settings.train.threads, on_batch)
    measured = total(costs)
    terminal = console()
    terminal.print(_table(f"{subject}, {measured.sentences} sentences of {SPLIT} of {corpus}", costs, measured))
    for analysis, cost in costs.items():
        if cost.refused:
            terminal.print(f"note: no {analysis}: {cost.refused}", soft_wrap=True)
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
            "analyses": {analysis: asdict(cost) for analysis, cost in costs.items()},
            "total": asdict(measured),
            "goal": {"wall": GOAL_SECONDS, "memory": GOAL_BYTES, "of": GOAL},
        }
        write_json(out, figures)


def measure(
    subject: str, corpus: Path, sentences: int, threads: int | None = None, on_batch: Callable[[], None] = lambda: None
) -> dict[str, AnalysisCost]:
    """The cost of each analysis, one after the other.

    Args:
        subject: a run folder or an encoder.
        threads: of torch; None for as many as the commands would take.
        on_batch: called after each analysis.

    Raises:
        RunError: no analysis takes the encoder, or a process was ended from outside.
    """
    costs: dict[str, AnalysisCost] = {}
    for analysis in ANALYSES_MEASURED:
        begun = time.perf_counter()
        try:
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                costs[analysis] = pool.submit(alone, analysis, subject, str(corpus), sentences, threads, begun).result()
        except BrokenProcessPool:
            raise RunError(
                f"{analysis}: its process was ended from outside; was there too little memory? Try fewer --sentences"
            ) from None
        on_batch()
    refusals = [f"{analysis}: {cost.refused}" for analysis, cost in costs.items() if cost.refused]
    if len(refusals) == len(ANALYSES_MEASURED):
        raise RunError(f"no analysis could be measured; {refusals[0]}")
    return costs


def total(costs: Mapping[str, AnalysisCost]) -> AnalysisCost:
    """Times added up, and the largest memory, over the analyses that were measured."""
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


def alone(analysis: str, subject: str, corpus: str, sentences: int, threads: int | None, begun: float) -> AnalysisCost:
    """The cost of one analysis, where it is the only thing that this process does.

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
            _command(analysis)(names=[subject], corpus=Path(corpus), out=Path(folder) / analysis, sentences=sentences)
            tree = json.loads((Path(folder) / analysis / f"{analysis}.json").read_text(encoding="utf-8"))
            read = tree.get("head", tree)["sentences"]
        except Exception as error:
            if exit_code(error) is None:
                raise
            refused = sentence(error)
    wall, threads = time.perf_counter() - begun, torch.get_num_threads()
    return AnalysisCost(wall, time.process_time(), peak_memory(), threads, read, refused)


def _command(analysis: str) -> Callable[..., Any]:
    from mtlprune.analyses.analysis import find
    from mtlprune.cli.analyze import run

    return partial(run, find(analysis))


def _table(title: str, costs: Mapping[str, AnalysisCost], measured: AnalysisCost) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in ("analysis", "wall seconds", "processor seconds", "peak GB"):
        table.add_column(column, justify="left" if column == "analysis" else "right")
    for analysis, cost in costs.items():
        table.add_row(*([analysis, "refused", "", ""] if cost.refused else _cells(analysis, cost)))
    table.add_section()
    table.add_row(*_cells("all, one after the other", measured))
    table.add_row(GOAL, f"{GOAL_SECONDS:.1f}", "", f"{GOAL_BYTES / 1e9:.2f}")
    return table


def _cells(name: str, cost: AnalysisCost) -> list[str]:
    return [name, f"{cost.wall:.1f}", f"{cost.processor:.1f}", f"{cost.memory / 1e9:.2f}"]
