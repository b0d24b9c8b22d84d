"""A server on this machine, an archive it may serve, and the scripts that download from it."""

import contextlib
import importlib.util
import io
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any


class Server(ThreadingHTTPServer):
    """Serves ``addresses``: content, an answer as (status, headers, content), or None: it closes without a word.

    What stands in ``cut`` ends half-way, as if the line broke.
    """

    addresses: dict[str, Callable[[], Any]]
    cut: set[str]
    asked: list[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        server.asked.append(self.path)
        if self.path not in server.addresses:
            self.send_error(404)
            return
        found = server.addresses[self.path]()
        if found is None:
            return
        status, headers, body = found if isinstance(found, tuple) else (200, {"Content-Length": len(found)}, found)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if self.path in server.cut else body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the tests' output free of the access log."""


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), _Handler) as server:
        server.addresses, server.cut, server.asked = {}, set(), []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def tar(members: Mapping[str, bytes | tuple[bytes, str]]) -> bytes:
    """An archive of files; in the place of content stand the kind of another member, such as a link, and its target."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, tuple):
                info.type, info.linkname = content
                content = b""
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


SCRIPTS = Path(__file__).resolve().parents[1] / "data_scripts"
sys.path.append(str(SCRIPTS))  # where a script finds its neighbours


def script(name: str) -> ModuleType:
    """One of data_scripts/, as a module."""
    path = SCRIPTS / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_script", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
