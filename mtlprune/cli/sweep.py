"""`mtlprune sweep`: trains the missing runs of a sweep, or shows their state. `mtlprune compare` uses its functions."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtlprune.cli.console import ADVANCED, INTERRUPTED, Slurm, console, new_table, resume_hint, say
from mtlprune.errors import plural, printable, refuse_launcher
from mtlprune.sweeps.folder import State, default_folder
from mtlprune.sweeps.specification import SweepError, read_specification

if TYPE_CHECKING:
    from rich.console import Console

    from mtlprune.config.config import Config
    from mtlprune.sweeps.cells import Cell, Sweep
    from mtlprune.sweeps.times import Expected

_SOME_FAILED = 1


def sweep(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE [KEY.PATH=VALUE]", help="YAML file of the sweep. With --dry-run, several files are allowed."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the sweep (runs/NAME, if not given).")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CELL", help="Cell to run, or a pattern of names of cells, such as 'gates-*'. Repeatable."
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of cells that run at once (one for each GPU, or one without a GPU, if not given)."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the state of each cell and estimated times, without training.")
    ] = False,
    slurm: Slurm = None,
    print_commands: Annotated[
        bool,
        typer.Option(
            "--print-commands", help="Print a shell command for each cell, without training.", rich_help_panel=ADVANCED
        ),
    ] = False,
) -> None:
    """Run the missing cells (single runs) of a sweep. If it is interrupted, run the same command again to continue.

    A cell that fails is reported and does not stop the other cells. Once a cell is finished, --dry-run uses its time to
    estimate how long similar cells will take.
    """
    terminal = console()
    overrides = [argument for argument in files if "=" in argument]
    specifications = [read_specification(Path(file)) for file in files if "=" not in file]
    if len(specifications) != 1 and not (dry_run and specifications and out is None):
        raise SweepError(
            f"expected one file of a sweep, found {len(specifications)}; name one, or give --dry-run, which accepts "
            "several"
        )

    from mtlprune.corpora.store import read_info
    from mtlprune.sweeps.cells import resolve, select_cells
    from mtlprune.sweeps.pool import visible_gpus

    patterns = [part for pattern in only or [] for part in pattern.split(",")]
    cluster_options = cluster_options_of(slurm)
    at_once = jobs or max(1, len(visible_gpus()))
    roots = [out or default_folder(specification) for specification in specifications]
    sweeps = [
        resolve(*specification, overrides, planned=True) for specification in zip(specifications, roots, strict=True)
    ]
    if files_named := [root for root in roots if root.is_file()]:
        raise SweepError(f"--out: {files_named[0]} is a file; name a folder")
    if dry_run:  # the index is not written, so that the folder stays unchanged for other commands
        list_cells([(sweep_shown, select_cells(sweep_shown, patterns)) for sweep_shown in sweeps], at_once, terminal)
        return
    first_sweep, cells = sweeps[0], select_cells(sweeps[0], patterns)
    for path in {cell.config.data.path: None for cell in cells.values()}:
        read_info(Path(path))  # other cells need no corpus yet
    if slurm is None and not print_commands:
        refuse_launcher()
    first_sweep.write_index()
    if print_commands:
        _print_commands(cells)
    elif cluster_options is not None:
        submit_cells(first_sweep, cells, cluster_options, jobs, terminal)
    else:
        run_cells(cells, at_once, terminal)


def _print_commands(cells: Mapping[str, Cell]) -> None:
    """Print a shell command for each cell that is not done."""
    from mtlprune.sweeps.pool import states, worker_command, write_config

    states_by_name = states(cells.values())
    for cell in (cell for cell in cells.values() if states_by_name[cell.name].kind != "done"):
        write_config(cell)
        say(shlex.join(worker_command(cell, None)))


def cluster_options_of(slurm: Sequence[str] | None) -> dict[str, Any] | None:
    """Parse the options of --slurm, or return None without them. Raises SweepError for invalid options."""
    if slurm is None:
        return None
    from mtlprune.sweeps.cluster import parse_options

    return parse_options(slurm)


def submit_cells(
    sweep: Sweep, cells: Mapping[str, Cell], options: Mapping[str, Any], jobs: int | None, terminal: Console
) -> None:
    """Submit the remaining cells as jobs of a cluster.

    Args:
        options: the result of ``cluster.parse_options``. Its key "cluster" selects "slurm" or "local".
        jobs: the largest number of jobs that run at the same time.

    Raises:
        SweepError: an option is invalid, or the cluster is not available.
    """
    from mtlprune.sweeps.cluster import submit
    from mtlprune.sweeps.pool import states

    states_by_name = states(cells.values())
    left = {name: cell for name, cell in cells.items() if states_by_name[name].kind in ("left", "failed")}
    launcher, parameters = options["cluster"], {key: value for key, value in options.items() if key != "cluster"}
    numbers = submit(left, sweep.root, launcher, jobs, parameters)
    for name, number in numbers.items():
        terminal.print(f"{name}: job {number}")
    terminal.print(f"{plural(len(numbers), 'job')} submitted; states before: {_count_states(states_by_name.values())}")


def list_cells(
    sweeps: Sequence[tuple[Sweep, Mapping[str, Cell]]], jobs: int, terminal: Console, afterwards: float = 0.0
) -> None:
    """Print the states and times of all cells of one sweep, or a summary of several sweeps, and the total time left.

    Args:
        afterwards: seconds for the steps that follow the cells, such as analyses.
    """
    from mtlprune.sweeps.pool import states
    from mtlprune.sweeps.times import GPU, core, data_missing, expected_times

    all_states: list[State] = []
    left: list[Expected | None] = []
    table = new_table(None, "sweep", ">cells", "state", ">hours left", ">hours on a GPU")
    for sweep, cells in sweeps:
        states_by_name = states(sweep.cells.values())
        times = expected_times(sweep.cells.values(), states_by_name)
        states_by_name = {name: states_by_name[name] for name in cells}
        expected_of_cells = [times[name] for name in cells if name in times]
        hours = sum(expected.seconds for expected in expected_of_cells if expected) / 3600
        gpu = sum(cell.seconds for cell in expected_of_cells if cell and cell.rough) / 3600 * core() / GPU
        counts = f"{len(cells):,}", _count_states(states_by_name.values())
        table.add_row(str(sweep.file), *counts, f"{hours:,.0f}", f"{gpu:,.0f}" if gpu else "")
        if len(sweeps) == 1:
            _list(sweep, cells, states_by_name, times, terminal)
        all_states, left = all_states + list(states_by_name.values()), left + expected_of_cells
    if len(sweeps) > 1:
        terminal.print(table)
    terminal.print(f"{plural(len(all_states), 'cell')}: {_count_states(all_states)}")
    configs = [cell.config for _, cells in sweeps for cell in cells.values()]
    for line in [
        *_left(left, jobs, configs, afterwards),
        *(data_missing(Path(path)) for path in dict.fromkeys(config.data.path for config in configs)),
    ]:
        terminal.print(line) if line else None


def _left(left: Sequence[Expected | None], jobs: int, configs: Sequence[Config], afterwards: float) -> Iterator[str]:
    """Yield lines on the time of the remaining cells, on how it is estimated, and on the memory of a run."""
    from mtlprune.cli.display import duration
    from mtlprune.sweeps.times import GPU, START, core, rough_memory

    with_time = [expected for expected in left if expected is not None]
    if with_time:
        seconds = START + sum(cell.seconds for cell in with_time) / min(jobs, len(with_time))
        at_once = f"{jobs} at once" if jobs > 1 else "one after the other"
        unknown = (
            f"; {len(left) - len(with_time)} cells are not counted, because their data are not known"
            if len(with_time) < len(left)
            else ""
        )
        yield f"time left, {at_once}: about {duration(seconds)}{unknown}"
        if afterwards:
            total_duration = duration(seconds + afterwards)
            yield f"analyses and report: about {duration(afterwards)} more; in all about {total_duration}"
    if rough := sum(expected.seconds for expected in with_time if expected.rough):
        gpu = f"about {duration(rough * core() / GPU)} on a GPU at {GPU / 1e12:.0f} TFLOP/s"
        estimate_note = f"{duration(rough)} of this time are estimated for one core ({core() / 1e9:.0f} GFLOP/s)"
        yield f"{estimate_note}, or {gpu}; the first finished runs will improve the estimate"
    if left:
        yield f"memory: about {max(map(rough_memory, configs)) / 1e9:.1f} GB per run, estimated"


def _list(
    sweep: Sweep,
    cells: Mapping[str, Cell],
    states_by_name: Mapping[str, State],
    times: Mapping[str, Expected | None],
    terminal: Console,
) -> None:
    """Print a table with one row per cell, which shows its state and its time."""
    from mtlprune.cli.display import duration

    table = new_table(f"{sweep.file} in {sweep.root}", "cell", "state", ">time", "needs", "folder")
    for name, cell_state in states_by_name.items():
        cell, words = cells[name], f"{cell_state.kind}: {cell_state.note}" if cell_state.note else cell_state.kind
        expected = times.get(name)
        seconds = cell_state.seconds if cell_state.trained else expected and expected.seconds
        time_text = "?" if seconds is None else f"{'' if cell_state.trained else '≈ '}{duration(seconds)}"
        table.add_row(name, printable(words), time_text, ", ".join(cell.needs), cell.place.label)
    terminal.print(table)


def _count_states(cell_states: Iterable[State]) -> str:
    """Format the number of cells in each state, such as "3 done, 1 left"."""
    counts: Counter[str] = Counter(state.kind for state in cell_states)
    order = ("done", "running", "failed", "blocked", "left")
    return ", ".join(f"{counts[kind]} {kind}" for kind in order if counts[kind])


class _TimeLeft:
    """The time left of a sweep at the moment at which it is printed, because cells may take long to end."""

    def __init__(self, watch: _CellWatch) -> None:
        self.watch = watch

    def __str__(self) -> str:
        return self.watch.time_left()


class _CellWatch:
    """Callback of the pool: one line for each cell that ends, with the number of cells done and the time left.

    On a terminal it also draws a bar.
    """

    def __init__(self, cells: Mapping[str, Cell], jobs: int, terminal: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self.cells, self.terminal, self.jobs = cells, terminal, jobs
        self.left: dict[str, float] = {}
        """Name of a cell that may still be trained → its expected seconds."""
        self.total, self.done_count = len(cells), 0
        self.worked, self.spent = 0.0, 0.0
        """Expected and true seconds of the cells that are done."""
        self.running: dict[str, float] = {}
        """Name of a running cell → time (``time.monotonic``) at which it began."""
        bar, running = BarColumn(bar_width=20), TextColumn("{task.description}{task.fields[left]}")
        columns = SpinnerColumn(), bar, MofNCompleteColumn(), running, TimeElapsedColumn()
        self.progress = Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal)
        self.bar = self.progress.add_task("", total=self.total, left=_TimeLeft(self))

    def begin(self, finished: Mapping[str, State]) -> None:
        """Estimate the times of all cells that were not finished before this call."""
        from mtlprune.sweeps.times import START, expected_times

        times = expected_times(self.cells.values(), {name: finished.get(name, State("left")) for name in self.cells})
        self.left = {name: expected.seconds if expected else START for name, expected in times.items()}
        self.done_count = len(finished)
        self.progress.update(self.bar, completed=self.done_count)

    def __call__(self, event: str, cell: Cell, note: str) -> None:
        """Update the bar, and print a line unless the event is "started"."""
        if event == "started":
            self.running[cell.name] = time.monotonic()
        else:
            spent = (now := time.monotonic()) - self.running.pop(cell.name, now)
            words = f"{cell.name}: {event}{f': {note}' if note else ''}"
            # Failed and blocked cells are not trained in this call, so they take no more time.
            seconds = self.left.pop(cell.name, 0.0) if event in ("done", "failed", "blocked") else 0.0
            if event == "done":
                self.done_count, self.worked = self.done_count + 1, self.worked + seconds
                self.spent += spent if seconds else 0.0
                score = f", joint dev score {cell.place.run.read_best()['joint']['score']:.2f}" if note else ""
                words = f"{self.done_count} of {self.total}{self.time_left()}: {cell.name} {note}{score}"
            self.terminal.print(words)
        self.progress.update(self.bar, completed=self.done_count, description=", ".join(sorted(self.running)))

    def time_left(self) -> str:
        """Return the time left at this moment, such as ", about 3 min left".

        The expected times of cells are multiplied by the ratio of true to expected time of the cells that are done, or
        of a running cell if its ratio is already larger. A running cell takes as much less as it has been running, but
        at least a tenth of its time.
        """
        from mtlprune.cli.display import duration

        now, left, running = time.monotonic(), dict(self.left), dict(self.running)  # other threads print this, too
        if not left:
            return ""
        slowness = self.spent / self.worked if self.worked else 1.0
        spent = {name: now - began for name, began in running.items() if name in left}
        slowness = max([slowness, *(seconds / left[name] for name, seconds in spent.items())])
        times = {name: seconds * slowness for name, seconds in left.items()}
        for name, seconds in spent.items():
            times[name] = max(0.1 * times[name], times[name] - seconds)
        note = "" if self.worked else " (estimated, one core each)"
        return f", about {duration(sum(times.values()) / min(self.jobs, len(times)))} left{note}"


def run_cells(cells: Mapping[str, Cell], jobs: int, terminal: Console) -> None:
    """Run cells, ``jobs`` at a time, and print the outcome of each.

    The process ends with exit code 1 if cells failed, and with 130 if it was stopped.
    """
    from mtlprune.cli.display import interruption, progress_shown
    from mtlprune.sweeps.pool import Pool

    watch = _CellWatch(cells, jobs, terminal)
    hint = resume_hint()
    with interruption(terminal) as stop, progress_shown(watch.progress):
        pool = Pool(cells, jobs, watch, stop)
        watch.begin(pool.ends)
        threads = sorted({pool.threads_of(cell) for name, cell in cells.items() if name not in pool.ends})
        threads = threads or [pool.threads]
        shared = f"{' or '.join(map(str, threads))} thread{'' if threads == [1] else 's'}"
        shared += f", {plural(len(pool.gpus), 'GPU')}" if pool.gpus else ""
        summary = f"{plural(len(cells), 'cell')}, {len(pool.ends)} already done"
        terminal.print(f"{summary}; {jobs} at once, each with {shared}")
        try:
            outcome = pool.run()
        except KeyboardInterrupt:
            terminal.print(f"stopped at once; {hint}")
            raise typer.Exit(INTERRUPTED) from None
    for name, end in outcome.items():
        if end.kind in ("failed", "blocked"):
            log = cells[name].place.path_of("log")  # missing if the process ended before it started the cell
            log_note = f" (log: {log})" if end.kind == "failed" and log.is_file() else ""
            terminal.print(f"{end.kind}: {name}: {end.note}{log_note}")
    terminal.print(f"{plural(len(outcome), 'cell')}: {_count_states(outcome.values())}")
    if stop() and any(end.kind in ("left", "running") for end in outcome.values()):
        terminal.print(f"stopped, and checkpoints are written; {hint}")
        raise typer.Exit(INTERRUPTED)
    if any(end.kind in ("failed", "blocked") for end in outcome.values()):
        raise typer.Exit(_SOME_FAILED)
