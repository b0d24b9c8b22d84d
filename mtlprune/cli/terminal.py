"""A terminal that text cannot steer. In a file of its own, because rich takes time to import and many commands print
nothing by it."""

import os
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from mtlprune.errors import printable_lines


class PlainConsole(Console):
    """A console of rich that replaces escape sequences in text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable_lines(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)

    def print(self, *objects: Any, **options: Any) -> None:  # type: ignore[override]
        """Print as rich does; the terminal wraps text."""
        super().print(*objects, **{"soft_wrap": all(isinstance(item, str) for item in objects), **options})

    def on_broken_pipe(self) -> None:
        """Go on without output, because a training need not end where whoever read its lines does."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())
