"""Corpora: readers of annotated files, builders that join them, the store on disk, and export."""

from mtlprune.errors import MtlpruneError


class CorpusError(MtlpruneError):
    """Raised if a corpus file or folder is not as expected.

    The message names the place, what was expected, what was found, and what to do.
    """


_SECONDS = 0.9
"""How many seconds a host has to accept a connection."""


def is_reachable(url: str) -> bool:
    """Return True if the host of an address accepts a connection within 0.9 seconds, including the lookup of its name.

    If the environment sets a proxy for the address, the proxy is tested instead of the host.
    """
    import contextlib
    import socket
    import threading
    from urllib.parse import urlsplit
    from urllib.request import getproxies, proxy_bypass

    host = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(host.scheme) or proxies.get("all")
    if proxy and not proxy_bypass(host.hostname or ""):
        host = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
    connected: list[bool] = []

    def connect() -> None:
        with contextlib.suppress(OSError, ValueError):  # ValueError: the port is not a number
            port = host.port or (80 if host.scheme == "http" else 443)
            socket.create_connection((host.hostname or "", port), timeout=_SECONDS).close()
            connected.append(True)

    # The lookup of a host's name accepts no timeout, so it runs in a thread that we stop waiting for.
    attempt = threading.Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(_SECONDS)
    return bool(connected)
