"""What one sees of a training: bars on a terminal, a line an epoch elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from mtlprune.cli.pruning_display import open_heads, open_heads_short

if TYPE_CHECKING:
    from mtlprune.training.loop import Event

SMOOTHING = 0.95  # the share of the past in a shown loss


class Pace:
    """Smoothed losses of updates, sentences a second and time left, from the events of a training."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self._sums: dict[str, tuple[float, float]] = {}  # weighed losses, weights
        self._last = time.monotonic()
        self._seconds = self._evaluation_seconds = 0.0
        self._sentences = self._updates = self._evaluations = 0

    def see(self, event: Event) -> None:
        """Take one event in."""
        now = time.monotonic()
        passed, self._last = now - self._last, now
        if event.evaluation is not None:
            self._evaluation_seconds += passed
            self._evaluations += 1
            return
        if self._updates or self._evaluations:  # the first one took the loading too
            self._seconds += passed
            self._sentences += event.sentences
        self._updates += 1
        for task, loss in event.losses.items():
            total, weight = self._sums.get(task, (0.0, 0.0))
            self._sums[task] = (SMOOTHING * total + loss, SMOOTHING * weight + 1)

    @property
    def losses(self) -> str:
        return in_line({task: total / weight for task, (total, weight) in self._sums.items()})

    @property
    def speed(self) -> float:
        """Sentences a second while training (evaluation does not count); 0 where nothing was timed yet."""
        return self._sentences / self._seconds if self._seconds else 0.0

    def text(self, event: Event) -> str:
        """Speed and time left; the speed is not known before the second update."""
        speed = f"{self.speed:.0f} sentences/s, " if self._seconds else ""
        return f"{speed}{clock(self.left(event))} left"

    def left(self, event: Event) -> float:
        """Seconds until the last epoch ends, evaluations included."""
        update = self._seconds / max(1, self._updates - 1)
        evaluation = self._evaluation_seconds / max(1, self._evaluations)
        return update * (event.total - event.progress.step) + evaluation * (self.epochs - event.progress.epoch)


def in_line(losses: Mapping[str, float]) -> str:
    """Task and loss, side by side."""
    return "  ".join(f"{task} {loss:.3f}" for task, loss in losses.items())


def clock(seconds: float) -> str:
    """1:02:03 or 2:03"""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Lines:
    """One short line an epoch: for logs and pipes."""

    def __init__(self, terminal: Console, epochs: int) -> None:
        self.terminal, self.epochs, self.pace = terminal, epochs, Pace(epochs)

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """There is nothing to take down."""

    def __call__(self, event: Event) -> None:
        self.pace.see(event)
        if event.evaluation is None:
            return
        epoch = event.progress.epoch
        dev = "  ".join(f"{task} {score:.2f}" for task, score in event.evaluation.main().items())
        best = "  (best so far)" if event.progress.best.get("joint", {}).get("epoch") == epoch else ""
        if not event.progress.best:
            best = "  (cannot be the best: gates are still closing)"
        heads = f"; {open_heads(event.gates)}" if event.gates else ""
        joint = event.evaluation.joint()
        self.terminal.print(
            f"epoch {epoch}/{self.epochs}: loss {in_line(event.losses)}; dev {dev}; joint {joint:.2f}{best}{heads}; "
            f"{self.pace.text(event)}",
            soft_wrap=True,
        )


class Bars(Lines):
    """A bar over all updates with losses, speed and time left; the epochs' lines scroll by above it."""

    def __init__(self, terminal: Console, epochs: int) -> None:
        super().__init__(terminal, epochs)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.fields[status]}"),
            console=terminal,
            transient=True,
        )
        self.heads = ""
        self.bar = self.progress.add_task("loading …", total=None, status="")

    def __enter__(self) -> Bars:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        best = event.progress.best.get("joint")
        dev = f"  best dev {best['score']:.2f}" if best else ""
        pace = self.pace
        if event.gates:
            self.heads = f"  {open_heads_short(event.gates)}"
        self.progress.update(
            self.bar,
            description=f"epoch {min(event.progress.epoch + 1, self.epochs)}/{self.epochs}",
            completed=event.progress.step,
            total=event.total,
            status=f"{pace.text(event)}{dev}  loss {pace.losses}{self.heads}",
        )


def display(terminal: Console, epochs: int) -> Lines:
    """Bars on a terminal, lines elsewhere."""
    return Bars(terminal, epochs) if terminal.is_terminal else Lines(terminal, epochs)
