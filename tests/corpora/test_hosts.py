"""Which hosts answer, directly and by a proxy."""

import socket
from collections.abc import Iterator

import pytest

from mtlprune.corpora import is_reachable

NOBODY = "127.0.0.1:9"


@pytest.fixture
def somebody() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize(
    ("host", "proxies", "reached"),
    [
        ("somebody", {}, True),
        (NOBODY, {}, False),
        ("no-host.invalid", {}, False),
        (NOBODY, {"https_proxy": "http://somebody"}, True),
        (NOBODY, {"all_proxy": "somebody"}, True),
        (NOBODY, {"http_proxy": "http://somebody"}, False),
        ("somebody", {"https_proxy": f"http://{NOBODY}"}, False),
        ("somebody", {"https_proxy": f"http://{NOBODY}", "no_proxy": "127.0.0.1"}, True),
        ("somebody", {"https_proxy": "http://127.0.0.1:port"}, False),
    ],
)
def test_a_host_answers_or_its_proxy(
    somebody: str, host: str, proxies: dict[str, str], reached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    for name, proxy in proxies.items():
        monkeypatch.setenv(name, proxy.replace("somebody", somebody))
    assert is_reachable(f"https://{host.replace('somebody', somebody)}") == reached
