"""What one sees of a pretraining: a bar on a terminal, a line an evaluation everywhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from mtlprune.cli.training_display import SMOOTHING, clock

if TYPE_CHECKING:
    from mtlprune.pretraining.loop import Event


def told(line: dict[str, Any]) -> str:
    """The numbers of an evaluation, in a line."""
    parts = [("loss", line.get("loss"), ".3f"), ("UAS", line.get("uas_single"), ".1f")]
    parts += [("UAS by relation", line.get("uas_best"), ".1f"), ("BLiMP", line.get("blimp"), ".1f")]
    parts += [("TwoNN", line.get("twonn_mean"), ".1f")]
    return "  ".join(f"{name} {value:{form}}" for name, value, form in parts if value is not None)


class Lines:
    """One short line an evaluation: for logs and pipes."""

    def __init__(self, terminal: Console) -> None:
        self.terminal = terminal
        self._last = time.monotonic()
        self._updating = 0.0
        self._timed = self._updates = 0
        self._sums: dict[str, tuple[float, float]] = {}

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """There is nothing to take down."""

    def __call__(self, event: Event) -> None:
        now = time.monotonic()
        passed, self._last = now - self._last, now
        if event.line is not None:
            self.terminal.print(f"update {event.progress.step}/{event.total}: {told(event.line)}", soft_wrap=True)
            return
        if self._updates:  # the first one took the loading too
            self._updating += passed
            self._timed += 1
        self._updates += 1
        for name, loss in event.losses.items():
            total, weight = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = (SMOOTHING * total + loss, SMOOTHING * weight + 1)

    def status(self, event: Event) -> str:
        """Speed, time left without evaluations, smoothed losses."""
        losses = "  ".join(f"{name} {total / weight:.3f}" for name, (total, weight) in self._sums.items())
        if not self._timed:
            return losses
        each = self._updating / self._timed
        left = clock(each * (event.total - event.progress.step))
        return f"{1 / max(each, 1e-9):.1f} updates/s, {left} left  {losses}"


class Bar(Lines):
    """A bar over all updates with speed, time left and losses; lines of evaluations scroll by above it."""

    def __init__(self, terminal: Console) -> None:
        super().__init__(terminal)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.fields[status]}"),
            console=terminal,
            transient=True,
        )
        self.bar = self.progress.add_task("loading …", total=None, status="")

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        step = event.progress.step
        self.progress.update(
            self.bar, description=f"update {step}", completed=step, total=event.total, status=self.status(event)
        )


def display(terminal: Console) -> Lines:
    """A bar on a terminal, lines elsewhere."""
    return Bar(terminal) if terminal.is_terminal else Lines(terminal)
