"""Output on a terminal: a sentence with all its layers, progress bars, and the reaction to Ctrl-C.

If the output is no terminal, progress is reported in lines instead of bars.
"""

from __future__ import annotations

import _thread
import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from mtlprune.cli.console import console
from mtlprune.corpora.formats.brackets import format_tree, stars_from_spans
from mtlprune.corpora.formats.iob2 import iob2_from_spans
from mtlprune.layers import LAYERS, OF_SENTENCES, kind_of, tags_named
from mtlprune.sentence import Sentence, Span

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def interruption(terminal: Console) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after SIGINT or SIGTERM, so that training can stop after an update.

    The signal is acknowledged on the terminal. A second signal raises KeyboardInterrupt at once.
    """
    signals: list[int] = []

    def answer(number: int, frame: FrameType | None) -> None:
        if signals:
            raise KeyboardInterrupt
        signals.append(number)
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        terminal.print(f"{name}: stopping after this update; press Ctrl-C again to stop at once", soft_wrap=True)

    # Python lets only the main thread handle signals.
    caught = _SIGNALS if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, answer) for number in caught}
    try:
        yield lambda: bool(signals)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_TITLES = {"spans": "Entities", "brackets": "Tree", "frames": "Roles"}
_TREE_WIDTH = 100  # a bracket that fits into this width is printed on one line


def print_sentence(console: Console, sentence: Sentence, split: str) -> None:
    """Print a table with one row per word, then trees, spans, roles and labels, and the names of missing layers."""
    console.print(Text(f"{sentence.id} ({split})", style="bold"), soft_wrap=True)
    console.print(Text(" ".join(sentence.words)), soft_wrap=True)
    console.print(_word_table(sentence))
    for name, declared in sentence.kinds().items():
        kind, value = kind_of(declared), sentence.get(name)
        if kind not in _TITLES or (not value and kind != "brackets"):
            continue
        console.print(Text(_TITLES[kind] if name in LAYERS else f"{_TITLES[kind]}: {name}", style="bold"))
        if kind == "spans":
            for span in value:
                console.print(Text(f"  {span.label}: {_text(sentence, span)}"), soft_wrap=True)
        elif kind == "brackets":
            bracketed = sentence.bare().with_layers(con=value, pos=sentence.get(tags_named(declared) or ""))
            console.print(Text("\n".join(_tree_lines(format_tree(bracketed)))), soft_wrap=True)
        for predicate in value if kind == "frames" else ():
            roleset = f"{predicate.roleset or predicate.lemma or '?'}"
            console.print(Text(f"  {sentence.words[predicate.index]} (word {predicate.index + 1}, {roleset})"))
            for span in predicate.arguments:
                console.print(Text(f"    {span.label}: {_text(sentence, span)}"), soft_wrap=True)
    for name, declared in sentence.kinds().items():
        if kind_of(declared) in OF_SENTENCES:
            text = OF_SENTENCES[kind_of(declared)].text(sentence.get(name))
            console.print(Text(f"{name}: {text}"), soft_wrap=True)
    unknown = [layer for layer in LAYERS if sentence.get(layer) is None]
    empty = [layer for layer in sentence.layers() if sentence.get(layer) == ()]
    for state, layers in (("unknown", unknown), ("nothing there", empty)):
        if layers:
            console.print(Text(f"{state}: {', '.join(layers)}"))


def _text(sentence: Sentence, span: Span) -> str:
    return " ".join(sentence.words[span.start : span.end])


def _word_table(sentence: Sentence) -> Table:
    """Return the table with one row per word, and columns for tags, spans, trees and predicates."""
    columns: list[tuple[str, Sequence[str]]] = [("word", sentence.words)]
    for name, declared in sentence.kinds().items():
        kind, value, is_standard = kind_of(declared), sentence.get(name), name in LAYERS
        if kind == "tags":
            columns.append(("tag" if is_standard else name, value))
        elif kind == "spans":
            columns.append(("entity" if is_standard else name, iob2_from_spans(value, len(sentence))))
        elif kind == "tree":
            titles = ("head", "relation") if is_standard else (f"{name} head", name)
            columns += zip(titles, (list(map(str, value.heads)), value.relations), strict=True)
        for predicate in value if kind == "frames" else ():
            cells = stars_from_spans(predicate.arguments, len(sentence))
            columns.append((predicate.lemma or sentence.words[predicate.index], cells))
    table = Table()
    table.add_column("", justify="right")
    for title, _ in columns:
        table.add_column(Text(title), justify="right" if title.endswith("head") else "left")
    for place, row in enumerate(zip(*(cells for _, cells in columns), strict=True), 1):
        table.add_row(str(place), *map(Text, row))
    return table


def _tree_lines(tree: str, depth: int = 1) -> list[str]:
    """Split a bracketed tree into indented lines. A bracket that fits into the width is not split."""
    if tree.count("(") == 1 or len(tree) + 2 * depth <= _TREE_WIDTH:
        return ["  " * depth + tree]
    label, _, inner = tree[:-1].partition(" ")
    depths = accumulate((sign == "(") - (sign == ")") for sign in inner)
    ends = [place for place, (sign, left) in enumerate(zip(inner, depths, strict=True), 1) if (sign, left) == (")", 0)]
    children = [inner[start:end].strip() for start, end in pairwise([0, *ends])]
    lines = ["  " * depth + label, *(line for child in children for line in _tree_lines(child, depth + 1))]
    return [*lines[:-1], f"{lines[-1]})"]


# -- progress ----------------------------------------------------------------------------------------------------------


if TYPE_CHECKING:
    from rich.console import Console

    from mtlprune.config.blocks import TrainConfig
    from mtlprune.runs.forms import GateLine
    from mtlprune.training.updates import Event


MINUTE = 60.0


@contextlib.contextmanager
def progress_shown(progress: Progress) -> Iterator[None]:
    """Draw a progress bar on a terminal; elsewhere print the progress once a minute, so that work never looks stuck."""
    ended, began = threading.Event(), time.monotonic()

    def report() -> None:
        # `wait` allocates a lock. Without memory for it no progress is printed, and the command reports the shortage.
        with contextlib.suppress(RuntimeError, MemoryError):
            while not ended.wait(MINUTE):
                parts = []
                for task in progress.tasks:
                    count = f", {task.completed:,.0f} of {task.total:,.0f}" if task.total else ""
                    parts.append(f"{task.description}{task.fields.get('left', '')}{count}")
                line = f"after {duration(time.monotonic() - began)}: {'; '.join(parts)}"
                if not ended.is_set():
                    progress.console.print(line, soft_wrap=True)

    if progress.disable:
        # `Thread.start` waits until the thread reports that it has started, which with too little memory never happens.
        with contextlib.suppress(RuntimeError):  # the limit on threads is reached, so no progress is printed
            _thread.start_new_thread(report, ())
    try:
        with progress:
            yield
    finally:
        ended.set()


@contextlib.contextmanager
def working(words: str, terminal: Console | None = None) -> Iterator[None]:
    """Show a description of the current work and the elapsed time, for work whose steps cannot be counted."""
    terminal = terminal or console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    progress = Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal)
    progress.add_task(words, total=None)
    with progress_shown(progress):
        yield


@contextlib.contextmanager
def count_steps(
    total: int | None = None, counter: str = "{task.description}", bar: Console | None = None
) -> Iterator[tuple[Callable[..., None], Callable[..., None]]]:
    """Show a bar that counts steps. It disappears at the end, and without a terminal each part prints one line instead.

    Args:
        total: number of steps, if known.
        counter: description of the steps.
        bar: console for the bar (standard error, if not given).

    Yields:
        Two functions. The first starts a part, with its description and optionally its number of steps. The second
        counts one step, or a number of steps, of the current part. Both take the id of another ``process``, which
        then has a bar of its own.
    """
    bar = bar or console(stderr=True)
    lines: list[str] = []
    columns = SpinnerColumn(), TextColumn(counter), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    progress = Progress(*columns, console=bar, disable=not bar.is_terminal, transient=True)
    bars = {0: progress.add_task("reading" if total is None else "measuring", total=total)}
    with progress_shown(progress):

        def part(words: str, steps: int | None = None, process: int = 0) -> None:
            # A bar that is reset keeps its last total if the new one is unknown, so a new bar replaces it.
            last, bars[process] = bars.get(process), progress.add_task(words, total=steps)
            if last is not None:
                progress.remove_task(last)
            if not process:
                lines[:] = [] if bar.is_terminal else [words if steps is None else f"{words} 1 of {steps:,}"]

        def step(by: int = 1, process: int = 0) -> None:
            if process in bars:
                progress.advance(bars[process], by)
            while lines and not process:
                bar.print(lines.pop(), soft_wrap=True)

        yield part, step


def _in_line(losses: Mapping[str, float]) -> str:
    """Format the losses of tasks in one line."""
    return "  ".join(f"{task} {loss:.3f}" for task, loss in losses.items())


_UNITS = {"days": 86_400, "h": 3600, "min": 60}


def duration(seconds: float) -> str:
    """Format seconds as a time with a suitable unit: 40 s, 2.5 min, 12 h, 10 days."""
    unit, size = next(((unit, size) for unit, size in _UNITS.items() if seconds >= 1.5 * size), ("s", 1))
    number = seconds / size
    return f"{number:,.0f} {unit}" if size == 1 or number >= 9.95 else f"{number:.1f}".removesuffix(".0") + f" {unit}"


class _Watch:
    """Shows the progress of training: one line per evaluation, and on a terminal also a bar over all updates."""

    def __init__(self, terminal: Console) -> None:
        self.terminal, self.losses = terminal, dict[str, float]()
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[status]}"),
            console=terminal,
            transient=True,
            disable=not terminal.is_terminal,
            speed_estimate_period=600,
        )
        self.bar = self.progress.add_task("loading …", total=None, status="")

    def move(self, event: Event, description: str, status: str = "") -> None:
        """Move the bar, and show the latest loss of each task next to it."""
        self.losses |= event.losses
        status_text, step = f"loss {_in_line(self.losses)}{status}", event.progress.step
        self.progress.update(self.bar, description=description, completed=step, total=event.total, status=status_text)

    def time_left(self) -> str:
        """Return the time left at the speed of the last minutes, such as "; 2.1 min left", or "" if it is unknown."""
        seconds = self.progress.tasks[self.bar].time_remaining
        return "" if seconds is None else f"; {duration(seconds)} left"


class TrainingWatch(_Watch):
    """Callback of training: one line per evaluation, and a bar with losses, time left and the best score."""

    def __init__(self, terminal: Console, train: TrainConfig) -> None:
        super().__init__(terminal)
        self.train = train

    def __call__(self, event: Event) -> None:
        step, epoch, best = event.progress.step, event.progress.epoch, event.progress.best.get("joint", {})
        epochs = self.train.epochs
        status = f"  best dev {best['score']:.2f}" if best else ""
        self.move(event, f"epoch {min(epoch + 1, epochs)}/{epochs}", status)
        if event.evaluation is None:
            return
        dev = "  ".join(f"{task} {score:.2f}" for task, score in event.evaluation.main().items())
        mark = "  (best so far)" if best.get("epoch") == self.train.evaluations(epoch, step) else ""
        if not event.progress.best:
            mark = "  (cannot be the best: gates are still closing)"
        heads = f"; {_open_heads(event.gates)}" if event.gates else ""
        when = f"update {step}/{event.total}" if self.train.evaluate_every else f"epoch {epoch}/{epochs}"
        joint = f"joint {event.evaluation.joint():.2f}{mark}{heads}{self.time_left()}"
        self.terminal.print(f"{when}: loss {_in_line(event.losses)}; dev {dev}; {joint}")


class PretrainingWatch(_Watch):
    """Callback of pretraining: one line per evaluation, and a bar with losses and time left."""

    def __call__(self, event: Event) -> None:
        step = event.progress.step
        self.move(event, f"update {step}")
        if event.line is not None:
            self.terminal.print(f"update {step}/{event.total}: {_measured(event.line)}{self.time_left()}")


def _measured(line: Mapping[str, Any]) -> str:
    """Format the numbers of an evaluation in pretraining in one line."""
    parts = {"loss": "loss", "uas_single": "UAS", "uas_best": "UAS by relation", "pairs": "pairs"}
    parts |= {"twonn_mean": "TwoNN"}
    present_values = {name: line[key] for key, name in parts.items() if line.get(key) is not None}
    return "  ".join(f"{name} {value:{'.3f' if name == 'loss' else '.1f'}}" for name, value in present_values.items())


def _open_heads(gates: GateLine) -> str:
    """Format the number of open heads of each gate set: "41 (expected 43.2) of 72 heads open".

    The expected number, over random samples of the gates, is shown only if it differs.
    """
    counts = []
    for name, count in gates["open"].items():
        expected = gates["expected"][name]
        sampled = "" if math.isclose(expected, count) else f" (expected {expected:.1f})"
        counts.append(f"{'' if name == 'shared' else f'{name} '}{count}{sampled}")
    return f"{', '.join(counts)} of {number_of_heads(gates)} heads open"


def number_of_heads(gates: GateLine) -> int:
    """Return the number of all heads, L · A."""
    return sum(len(layer) for layer in next(iter(gates["gates"].values())))
