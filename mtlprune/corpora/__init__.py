"""Files to sentences and back: strict readers, builders of joined corpora, the store, and export."""

from mtlprune.errors import MtlpruneError


class CorpusError(MtlpruneError):
    """A corpus file is not what was expected; the message says where, what was expected, what was found, what to do."""


_SECONDS = 0.9
"""Seconds that a host has to answer."""


def answers(url: str) -> bool:
    """True where a host answers within a second, the search for its name included; behind a proxy, where that does."""
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
        with contextlib.suppress(OSError, ValueError):  # the latter for a port that is no number
            port = host.port or (80 if host.scheme == "http" else 443)
            socket.create_connection((host.hostname or "", port), timeout=_SECONDS).close()
            connected.append(True)

    attempt = threading.Thread(target=connect, daemon=True)  # the search for a name knows no limit of time
    attempt.start()
    attempt.join(_SECONDS)
    return bool(connected)
