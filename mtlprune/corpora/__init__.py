"""Files to sentences and back: strict readers, builders of joined corpora, the store, and export."""

from mtlprune.errors import MtlpruneError


class CorpusError(MtlpruneError):
    """A corpus file is not what was expected; the message says where, what was expected, what was found, what to do."""


SECONDS = 0.9
"""How long a host has to answer."""


def answers(url: str) -> bool:
    """True where a host answers within a second, the search for its name included; and behind a proxy, which
    answers for none."""
    import contextlib
    import socket
    import threading
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    host = urlsplit(url)
    if getproxies():
        return True
    connected: list[bool] = []

    def connect() -> None:
        with contextlib.suppress(OSError):
            socket.create_connection((host.hostname or "", host.port or 443), timeout=SECONDS).close()
            connected.append(True)

    attempt = threading.Thread(target=connect, daemon=True)  # the search for a name knows no limit of time
    attempt.start()
    attempt.join(SECONDS)
    return bool(connected)
