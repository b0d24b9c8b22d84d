"""A console on which printed text cannot control the terminal by escape sequences.

The class has a separate module because importing rich takes time, and many commands do not need it.
"""

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
        """Print as rich does, but let the terminal wrap plain text, so that copied lines contain no line breaks."""
        super().print(*objects, **{"soft_wrap": all(isinstance(item, str) for item in objects), **options})

    def on_broken_pipe(self) -> None:
        """Continue without output, because training should not end when the process that reads its output ends."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())
