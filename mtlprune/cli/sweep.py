"""mtlprune sweep: run what is missing of many runs, or show how far they have come."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtlprune.cli.console import Overrides, console, new_table, say
from mtlprune.errors import printable
from mtlprune.sweeps.folder import State, default_folder
from mtlprune.sweeps.specification import SweepError, nearest, read_specification

if TYPE_CHECKING:
    from rich.console import Console

    from mtlprune.sweeps.cells import Cell, Sweep

SOME_FAILED, INTERRUPTED = 1, 130
MOST_ROWS = 1000
"""Cells that are listed one by one; of a sweep of more, only such as are begun."""


def sweep(
    file: Annotated[Path, typer.Argument(help="The YAML file of a sweep.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The sweep's folder; runs/NAME if not given.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="CELL", help="Cells, or patterns such as 'gates-*'.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Cells at once; one a GPU, or one, if not given.")] = None,
    status: Annotated[bool, typer.Option("--status", help="Show how far cells are; train nothing.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="The same as --status.")] = False,
    adopt: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="First take in finished runs. Repeatable.")
    ] = None,
    print_commands: Annotated[
        bool, typer.Option("--print-commands", help="Print a shell command a cell; train nothing.")
    ] = False,
    launcher: Annotated[
        str | None, typer.Option(metavar="slurm", help="Hand the cells to a cluster (extra slurm).")
    ] = None,
    submit: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="For --launcher, such as timeout_min=60.")
    ] = None,
) -> None:
    """Run what is missing of a sweep; the same command again continues where it stopped.

    A cell that fails is reported, and does not stop the others. Once a cell of a kind is done, --status says how long
    the others of its kind will take.
    """
    if submit and launcher is None:
        raise SweepError("--submit is for a cluster; name it with --launcher slurm")
    terminal = console()
    specification = read_specification(file)

    from mtlprune.sweeps.cells import narrowed, resolve
    from mtlprune.sweeps.pool import visible_gpus

    root = out or default_folder(specification.name)
    whole = resolve(specification, root, overrides or [])
    if adopt:
        _adopt(whole, adopt, terminal)
        whole = resolve(specification, root, overrides or [])  # with the folders of the adopted runs
    cells = narrowed(whole, [part for pattern in only or [] for part in pattern.split(",")])
    if status or dry_run:  # what other commands take the folder for stays as it was
        _list(whole, cells, jobs or max(1, len(visible_gpus())), terminal)
        return
    whole.write_index()
    if print_commands:
        _print_commands(cells)
    elif launcher is not None:
        _launch(whole, cells, launcher, jobs, submit or [], terminal)
    else:
        run_cells(cells, jobs or max(1, len(visible_gpus())), terminal)


def _adopt(whole: Sweep, runs: list[Path], terminal: Console) -> None:
    from mtlprune.sweeps.adopt import adopt

    count = 0
    for run, cell, note in adopt(whole, runs):
        count += cell is not None
        words = f"is cell {cell}{f' ({note})' if note else ''}" if cell else f"is left alone: {note}"
        terminal.print(f"{run} {words}")
    terminal.print(f"{count} runs are cells of {whole.root}")
    whole.write_index()


def _print_commands(cells: Mapping[str, Cell]) -> None:
    from mtlprune.sweeps.pool import states, worker_command, write_config

    standing = states(cells.values())
    for cell in (cell for cell in cells.values() if standing[cell.name].kind != "done"):
        write_config(cell)
        say(shlex.join(worker_command(cell, None)))


def _launch(
    whole: Sweep, cells: Mapping[str, Cell], launcher: str, jobs: int | None, options: list[str], terminal: Console
) -> None:
    from mtlprune.sweeps.cluster import CLUSTERS, parse_options, submit
    from mtlprune.sweeps.pool import states

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


def _list(whole: Sweep, cells: Mapping[str, Cell], jobs: int, terminal: Console) -> None:
    """Every cell with its state and its time, and how much is left."""
    from mtlprune.cli.display import clock
    from mtlprune.sweeps.pool import states
    from mtlprune.sweeps.times import expected_times

    standing = states(whole.cells.values())
    times = expected_times(whole.cells.values(), standing)
    table = new_table(f"{whole.file} in {whole.root}", "cell", "state", ">time", "needs", "folder")
    standing = {name: standing[name] for name in cells}
    for name, now in standing.items():
        if len(cells) <= MOST_ROWS or (now.kind != "left" and table.row_count < MOST_ROWS):
            cell, words = cells[name], f"{now.kind}: {now.note}" if now.note else now.kind
            seconds = now.seconds if now.trained else times[name]
            time = "?" if seconds is None else f"{'' if now.trained else '≈ '}{clock(seconds)}"
            table.add_row(name, printable(words), time, ", ".join(cell.needs), cell.place.label)
    terminal.print(table)
    if len(cells) > table.row_count:
        rows = f"{table.row_count:,} of {len(cells):,} cells are listed"
        terminal.print(f"{rows}, those that are begun; narrow the others with --only")
    terminal.print(f"{len(cells)} cells: {_counted(standing)}")
    left = [times[name] for name in cells if name in times]
    known = [seconds for seconds in left if seconds is not None]
    if known:
        at_once = f"{jobs} at once" if jobs > 1 else "one after the other"
        unknown = f"; not counted: {len(left) - len(known)} whose time is not known" if len(known) < len(left) else ""
        terminal.print(f"left, {at_once}: about {clock(sum(known) / min(jobs, len(known)))}{unknown}")
    elif left:
        terminal.print(f"left: {len(left)} whose time is not known before one of their kind is done")


def _counted(standing: Mapping[str, State]) -> str:
    counts: Counter[str] = Counter(state.kind for state in standing.values())
    order = ("done", "running", "failed", "blocked", "left")
    return ", ".join(f"{counts[kind]} {kind}" for kind in order if counts[kind])


def run_cells(cells: Mapping[str, Cell], jobs: int, terminal: Console) -> None:
    """Do cells, ``jobs`` at once, saying what becomes of each; ends the process with 1 where some failed, with 130
    where it was stopped."""
    from mtlprune.cli.display import interruption
    from mtlprune.sweeps.pool import Pool

    def watch(event: str, cell: Cell, note: str) -> None:
        if event == "done" and note:  # it was trained just now
            note += f", joint dev score {cell.place.run.read_best()['joint']['score']:.2f}"
        terminal.print(f"{cell.name}: {event}{f': {note}' if note else ''}")

    hint = f"the same command continues: {shlex.join(['mtlprune', *sys.argv[1:]])}"
    with interruption(terminal) as stop:
        pool = Pool(cells, jobs, watch, stop)
        threads = sorted({pool.threads_of(cell) for name, cell in cells.items() if name not in pool.ends})
        shared = f"{' or '.join(map(str, threads or [pool.threads]))} threads"
        shared += f", {len(pool.gpus)} GPUs" if pool.gpus else ""
        terminal.print(f"{len(cells)} cells, {len(pool.ends)} done already; {jobs} at once, each with {shared}")
        try:
            outcome = pool.run()
        except KeyboardInterrupt:
            terminal.print(f"stopped at once; {hint}")
            raise typer.Exit(INTERRUPTED) from None
    for name, end in outcome.items():
        if end.kind in ("failed", "blocked"):
            log = f" (log: {cells[name].place.beside('log')})" if end.kind == "failed" else ""
            terminal.print(f"{end.kind}: {name}: {end.note}{log}")
    terminal.print(f"{len(outcome)} cells: {_counted(outcome)}")
    if stop() and any(end.kind in ("left", "running") for end in outcome.values()):
        terminal.print(f"stopped; checkpoints are written; {hint}")
        raise typer.Exit(INTERRUPTED)
    if any(end.kind in ("failed", "blocked") for end in outcome.values()):
        raise typer.Exit(SOME_FAILED)
