"""Ctrl-C and SIGTERM while training: the first asks politely, the second does not."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from rich.console import Console

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Ask it whether somebody wants training to stop; a second signal raises KeyboardInterrupt at once.

        with Interruption(terminal) as wanted:
            train(..., stop=wanted)

    Args:
        terminal: where the first signal is answered.
    """

    def __init__(self, terminal: Console) -> None:
        self.terminal = terminal
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __call__(self) -> bool:
        return self.asked

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():  # elsewhere signals cannot be caught
            self._before = {number: signal.signal(number, self._answer) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _answer(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        self.terminal.print(f"{name}: stopping after this update; once more stops at once", soft_wrap=True)
