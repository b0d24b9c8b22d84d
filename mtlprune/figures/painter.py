"""vl-convert in a process of its own: where memory runs out, V8 inside it ends the process, and the command goes on.

    paint("vegalite_to_svg", spec)

The process stays for further figures; it ends when its stdin does, that is, at the latest with the process it serves.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from typing import Any

from mtlprune.io.files import RunError

_lock = threading.Lock()
_servers: dict[int, subprocess.Popen[bytes]] = {}
"""Number of a process → the server that it started; a forked process must not speak into its parent's pipes."""


def paint(function: str, text: str, **options: Any) -> bytes:
    """The picture that a function of vl-convert makes of a text. Raises RunError: its process ended; ValueError:
    vl-convert refused."""
    with _lock:
        server = _servers.get(os.getpid())
        if server is None or server.poll() is not None:
            command, pipe = [sys.executable, "-m", __name__], subprocess.PIPE
            server = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
            _servers[os.getpid()] = server
        assert server.stdin is not None and server.stdout is not None
        try:
            server.stdin.write(json.dumps([function, text, options]).encode() + b"\n")
            server.stdin.flush()
            picture, refusal = json.loads(server.stdout.readline())
        # After any error the server is stopped, because an answer that nobody read would be taken for the answer to
        # the next question.
        except BaseException as error:
            server.kill()
            server.wait()
            if not isinstance(error, OSError | ValueError):
                raise
            raise RunError("a figure could not be drawn: its process ended; perhaps memory ran out") from None
    if refusal:
        raise ValueError(refusal)
    return base64.b64decode(picture)


def _serve() -> None:
    """Answer what is asked on stdin, a line each, until it ends."""
    import vl_convert

    for line in sys.stdin.buffer:
        function, text, options = json.loads(line)
        picture, refusal = b"", ""
        try:
            rendered = getattr(vl_convert, function)(text, **options)
            picture = rendered.encode() if isinstance(rendered, str) else bytes(rendered)
        except BaseException as error:  # a panic of Rust is no Exception
            refusal = f"{type(error).__name__}: {error}"
        sys.stdout.buffer.write(json.dumps([base64.b64encode(picture).decode(), refusal]).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()
