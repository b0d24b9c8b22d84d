"""Files to sentences and back: strict readers, builders of joined corpora, the store, and export."""

from mtlprune.errors import MtlpruneError


class CorpusError(MtlpruneError):
    """A corpus file is not what was expected; the message says where, what was expected, what was found, what to do."""


def answers(url: str) -> bool:
    """True where somebody answers for a host within five seconds; and behind a proxy, which answers for none."""
    import socket
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    host = urlsplit(url)
    if getproxies():
        return True
    try:
        socket.create_connection((host.hostname or "", host.port or 443), timeout=5).close()
    except OSError:
        return False
    return True
