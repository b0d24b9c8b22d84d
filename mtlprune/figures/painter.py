"""vl-convert in a process of its own: where memory runs out, V8 inside it ends the process, and the command goes on.

    paint("vegalite_to_svg", spec)

The process stays for further figures; it ends when its stdin does, that is, at the latest with the process it serves.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from typing import Any

from mtlprune.io.files import RunError

_lock = threading.Lock()
_servers: dict[int, subprocess.Popen[bytes]] = {}
"""Number of a process → the server that it started; a forked process must not speak into its parent's pipes."""


def paint(function: str, *arguments: Any, **named: Any) -> Any:
    """The value of a function of vl-convert. Raises RunError: its process ended; ValueError: vl-convert refused."""
    with _lock:
        server = _servers.get(os.getpid())
        if server is None or server.poll() is not None:
            command, pipe = [sys.executable, "-m", __name__], subprocess.PIPE
            server = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
            _servers[os.getpid()] = server
        assert server.stdin is not None and server.stdout is not None
        try:
            pickle.dump((function, arguments, named), server.stdin)
            server.stdin.flush()
            value, refusal = pickle.load(server.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            raise RunError("a figure could not be drawn: its process ended; is there enough memory?") from None
        except BaseException:  # an answer that nobody read would be taken for that to the next question
            server.kill()
            raise
    if refusal is not None:
        raise ValueError(refusal)
    return value


def _serve() -> None:
    """Answer what is asked on stdin until it ends."""
    import vl_convert

    while True:
        try:
            function, arguments, named = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        answer: tuple[Any, str | None]
        try:
            answer = getattr(vl_convert, function)(*arguments, **named), None
        except BaseException as error:  # a panic of Rust is no Exception
            answer = None, f"{type(error).__name__}: {error}"
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()
