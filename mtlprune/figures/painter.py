"""Drawing of figures by vl-convert in a separate process.

    paint("vegalite_to_svg", spec)

If memory runs out, the JavaScript engine V8 inside vl-convert ends its process, and a command must survive this. The
process stays for further figures and ends when its stdin is closed, so at the latest when the process that started it
ends. Run as a script, this file is the separate process.
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
"""Process id → the server that this process started. A forked process inherits the dictionary, but must start its own
server, because it must not write into the pipes of its parent."""


def paint(function: str, text: str, **options: Any) -> bytes:
    """Call a function of vl-convert with a text, and return the picture that it draws.

    Args:
        function: name of the function, such as ``vegalite_to_svg`` or ``svg_to_png``.
        text: a specification as JSON, or an SVG.
        options: further arguments of the function.

    Raises:
        RunError: the process of vl-convert ended.
        ValueError: vl-convert refused the text.
    """
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
        # After any error, the server is stopped. Otherwise an unread answer would be taken for that of the next call.
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
    """Answer requests, one JSON line each, from stdin to stdout until stdin is closed."""
    import vl_convert

    for line in sys.stdin.buffer:
        function, text, options = json.loads(line)
        picture, refusal = b"", ""
        try:
            rendered = getattr(vl_convert, function)(text, **options)
            picture = rendered.encode() if isinstance(rendered, str) else bytes(rendered)
        except BaseException as error:  # a panic in Rust code raises a BaseException that is no Exception
            refusal = f"{type(error).__name__}: {error}"
        sys.stdout.buffer.write(json.dumps([base64.b64encode(picture).decode(), refusal]).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()
