"""mtlprune sweep: run what is missing of many runs, or show where they stand."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtlprune.cli.check import check_sweep
from mtlprune.cli.console import Overrides, console, exit_code, new_table, say, sentence
from mtlprune.errors import printable
from mtlprune.sweeps.folder import State, default_folder
from mtlprune.sweeps.specification import SweepError, nearest, read_specification

if TYPE_CHECKING:
    from rich.console import Console

    from mtlprune.sweeps.cells import Cell, Sweep
    from mtlprune.sweeps.times import Times

SOME_FAILED, INTERRUPTED = 1, 130
MOST_ROWS = 1000
"""Cells that are listed one by one, of a sweep of more only such as are begun."""


def sweep(
    file: Annotated[Path, typer.Argument(help="The YAML file of a sweep.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The sweep's folder; runs/NAME if not given.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="CELL", help="These cells, or patterns such as 'gates-*'; repeatable.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(metavar="1,2", help="Cells with these seeds.")] = None,
    encoders: Annotated[str | None, typer.Option(metavar="A,B", help="Cells with these encoders.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Cells at once; one a GPU, or one, if not given.")] = None,
    status: Annotated[
        bool, typer.Option("--status", help="Show where cells stand: done, running, failed, left; train nothing.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List cells and times; train nothing.")] = False,
    times: Annotated[
        bool | None,
        typer.Option(
            "--times/--no-times",
            help="In a dry run, measure cells of whose kind none is finished; of more than 1,000 only with --times.",
            show_default=False,
        ),
    ] = None,
    adopt: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN", help="First take in a finished run, or a folder of them; repeatable."),
    ] = None,
    print_commands: Annotated[
        bool, typer.Option("--print-commands", help="A shell command a cell, in the order of needs; train nothing.")
    ] = False,
    launcher: Annotated[
        str | None,
        typer.Option(metavar="slurm", help="Hand the cells to a cluster (extra slurm), and do not wait for them."),
    ] = None,
    submit: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="For --launcher, such as timeout_min=60 gpus_per_node=1; repeatable."),
    ] = None,
) -> None:
    """Run what is missing of a sweep; the same command again continues where it stopped.

    Several at once on one folder share the work. A cell that fails is reported, and does not stop the others.
    """
    if submit and launcher is None:
        raise SweepError("--submit is for a cluster; name it with --launcher slurm")
    terminal = console()
    whole, cells = _asked(file, overrides, out, only, seeds, encoders)
    if adopt:
        from mtlprune.sweeps.cells import adopt as adopted

        taken = 0
        for run, cell, note in adopted(whole, adopt):
            taken += cell is not None
            words = f"is cell {cell}{f' ({note})' if note else ''}" if cell else f"is left alone: {note}"
            terminal.print(f"{run} {words}")
        terminal.print(f"{taken} runs are cells of {whole.root}")
        whole.write_index()
        whole, cells = _asked(file, overrides, out, only, seeds, encoders)
    if status or dry_run:  # what other commands take the folder for stays as it was
        asked = len(cells) <= MOST_ROWS if times is None else times
        _list(whole, cells, jobs, asked and not status, terminal)
        return
    whole.write_index()
    if print_commands:
        from mtlprune.sweeps.scheduler import states, worker_command, write_config

        standing = states(cells.values())
        for one in (one for one in cells.values() if standing[one.name].kind != "done"):
            write_config(one)
            say(shlex.join(worker_command(one, None)))
        return
    if launcher is not None:
        _launch(whole, cells, launcher, jobs, submit or [], terminal)
        return
    from mtlprune.sweeps.scheduler import visible_gpus

    run_cells(cells, jobs or max(1, len(visible_gpus())), terminal)


def _launch(
    whole: Sweep, cells: Mapping[str, Cell], launcher: str, jobs: int | None, options: list[str], terminal: Console
) -> None:
    from mtlprune.sweeps.scheduler import CLUSTERS, parse_options, states, submit

    if launcher not in CLUSTERS:
        raise SweepError(
            f"--launcher: expected {' or '.join(CLUSTERS)}, found {launcher!r}{nearest(launcher, CLUSTERS)}"
        )
    standing = states(cells.values())
    left = {name: cell for name, cell in cells.items() if standing[name].kind in ("left", "failed")}
    numbers = submit(left, whole.root, launcher, jobs, parse_options(options))
    for name, number in numbers.items():
        terminal.print(f"{name}: job {number}")
    terminal.print(f"{len(numbers)} jobs submitted; before: {_counted(standing)}")


def _asked(
    file: Path,
    overrides: list[str] | None,
    out: Path | None,
    only: list[str] | None,
    seeds: str | None,
    encoders: str | None,
) -> tuple[Sweep, dict[str, Cell]]:

    specification = read_specification(file)
    check_sweep(specification, overrides or ())

    from mtlprune.sweeps.cells import narrowed, resolve

    numbers = [part.strip() for part in (seeds or "").split(",") if part.strip()]
    wrong = [number for number in numbers if not number.isdecimal()]
    if wrong:
        raise SweepError(f"--seeds: expected whole numbers with commas, such as 1,2, found {seeds!r}")
    whole = resolve(specification, out or default_folder(specification.name), overrides or [])
    names = [part.strip() for part in (encoders or "").split(",") if part.strip()]
    patterns = [part for pattern in only or [] for part in pattern.split(",")]
    return whole, narrowed(whole, patterns, [int(number) for number in numbers], names)


def _list(whole: Sweep, cells: Mapping[str, Cell], jobs: int | None, measure: bool, terminal: Console) -> None:
    """Every cell with its state and its time, and what is left."""
    from mtlprune.cli.display import clock
    from mtlprune.sweeps.scheduler import cores, states, visible_gpus
    from mtlprune.sweeps.times import Times, outlook

    several = jobs or max(1, len(visible_gpus()))
    standing = states(whole.cells.values())
    times = Times(whole.cells.values(), whole.root, max(1, cores() // several), standing)
    if measure:
        _measure(cells, times)
    table = new_table(f"{whole.file} in {whole.root}", "cell", "state", ">time", "needs", "folder")
    standing = {name: standing[name] for name in cells}
    for name, found in standing.items():
        cell = cells[name]
        words = f"{found.kind}: {found.note}" if found.note else found.kind
        if len(cells) <= MOST_ROWS or (found.kind != "left" and table.row_count < MOST_ROWS):
            table.add_row(name, printable(words), _time(cell, found, times), ", ".join(cell.needs), cell.place.label)
    terminal.print(table)
    if len(cells) > table.row_count:
        rows = f"{table.row_count:,} of {len(cells):,} cells are listed"
        terminal.print(f"{rows}, those that are begun; narrow the others with --only")
    left = outlook(cells, times, several)
    at_once = f"{several} at once" if several > 1 else "one after the other"
    many = f"{left.unknown} cell{'s' if left.unknown > 1 else ''}"
    terminal.print(f"{len(cells)} cells: {_counted(standing)}")
    if left.seconds:
        unknown = f"; {many} whose time is not known not counted" if left.unknown else ""
        terminal.print(f"left, {at_once}: about {clock(left.seconds)}{unknown}")
    elif left.unknown:
        terminal.print(f"left: {many} whose time is not known{'' if measure else '; --dry-run --times measures them'}")


def _time(cell: Cell, found: State, times: Times) -> str:
    from mtlprune.cli.display import clock

    seconds = found.seconds if found.trained else times.whole(cell)
    return "?" if seconds is None else f"{'' if found.trained else '≈ '}{clock(seconds)}"


def _measure(cells: Mapping[str, Cell], times: Times) -> None:
    """Measure one cell of each kind whose time is not known."""
    from mtlprune.cli.display import counted

    bar = console(stderr=True)
    kinds = {times.kind(cell): cell for cell in cells.values() if times.left(cell) is None}
    with counted(len(kinds), bar=bar) as (_, on_batch):
        for cell in kinds.values():
            try:
                times.measure(cell)
            except Exception as error:
                if exit_code(error) is None:
                    raise
                bar.print(f"not measured: {cell.name}: {sentence(error)}")
            on_batch()


def _counted(standing: Mapping[str, State]) -> str:
    counts: Counter[str] = Counter(found.kind for found in standing.values())
    order = ("done", "running", "failed", "blocked", "left")
    return ", ".join(f"{counts[kind]} {kind}" for kind in order if counts[kind])


def run_cells(cells: Mapping[str, Cell], jobs: int, terminal: Console, fork: bool = False) -> None:
    """Do cells, ``jobs`` at once, saying what becomes of each; ends the process with 1 where some failed, with 130
    where it was stopped. ``fork``: as of `Scheduler`."""
    from mtlprune.cli.display import Interruption
    from mtlprune.sweeps.scheduler import Scheduler

    def tell(event: str, cell: Cell, note: str) -> None:
        words = {"waiting": "run by"}.get(event, "")
        if event == "done" and note.startswith("in "):  # it was trained just now
            note += f", joint dev score {cell.place.run.read_best()['joint']['score']:.2f}"
        text = " ".join(part for part in (words, note) if part)
        terminal.print(f"{cell.name}: {event}{f': {text}' if text else ''}")

    again = f"the same command continues: {shlex.join(['mtlprune', *sys.argv[1:]])}"
    with Interruption(terminal) as stop:
        scheduler = Scheduler(cells, jobs, tell, stop, fork)
        threads = sorted({scheduler.threads_of(cell) for name, cell in cells.items() if name not in scheduler.final})
        counted = " or ".join(map(str, threads or [scheduler.threads]))
        shared = f"{counted} threads" + (f", {len(scheduler.gpus)} GPUs" if scheduler.gpus else "")
        terminal.print(
            f"{len(cells)} cells, {len(scheduler.final)} done already; {scheduler.jobs} at once, each with {shared}"
        )
        try:
            outcome = scheduler.run()
        except KeyboardInterrupt:
            terminal.print(f"stopped at once; {again}")
            raise typer.Exit(INTERRUPTED) from None
    for name, end in outcome.items():
        if end.kind in ("failed", "blocked"):
            log = f" (log: {cells[name].place.beside('log')})" if end.kind == "failed" else ""
            terminal.print(f"{end.kind}: {name}: {end.note}{log}")
    terminal.print(f"{len(outcome)} cells: {_counted(outcome)}")
    if stop() and any(found.kind in ("left", "running") for found in outcome.values()):
        terminal.print(f"stopped; checkpoints are written; {again}")
        raise typer.Exit(INTERRUPTED)
    if any(found.kind in ("failed", "blocked") for found in outcome.values()):
        raise typer.Exit(SOME_FAILED)
