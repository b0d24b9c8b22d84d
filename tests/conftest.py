import contextlib
import functools
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import hypothesis
import pytest

from mtlprune.cli import main

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded: tests side by side share the cores
os.fsync = lambda descriptor: None  # no test cuts the power; tests/power_cuts.py records what would be on the disk

hypothesis.settings.register_profile("mtlprune", deadline=None, max_examples=50)  # a busy machine is no defect
hypothesis.settings.load_profile("mtlprune")

sys.path.insert(0, str(Path(__file__).parent))  # so that every test can import tiny, in any import mode


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    def done(self) -> "Answer":
        assert self.code == 0, self.err
        return self

    def names(self, said: str) -> bool:
        """Whether an error says so; a path may be written as seen from the working directory."""
        return said in self.err or (said.startswith("/") and os.path.relpath(said) in self.err)

    def refuses(self, said: str, code: int = 2) -> None:
        """Assert that it is one sentence that says so, with its exit code."""
        assert (self.code, self.names(said)) == (code, True), (said, self)
        assert self.err.startswith("mtlprune: ") and self.err.count("\n") == 1, self.err


def call(*arguments: object) -> Answer:
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stopped:
        patch.setattr(sys, "argv", ["mtlprune", *map(str, arguments)])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    assert isinstance(stopped.value.code, int)
    return Answer(stopped.value.code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def mtlprune() -> Callable[..., Answer]:
    return call


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Ask for a family, get the folder of a tiny encoder; made once a session, so do not write into it."""
    from tiny import make_tiny

    return functools.cache(lambda family: make_tiny(family, tmp_path_factory.mktemp(f"tiny-{family}")))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Families whose layers are BERT's and whose tokenizers others have too are left to the slow tests."""
    for item in items:
        values = getattr(item, "callspec", None) and item.callspec.params.values()  # type: ignore[attr-defined]
        if {"camembert", "electra", "xlm-roberta"} & {value for value in values or () if isinstance(value, str)}:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that nobody answers for, and no proxy that might."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def signals() -> Iterator[None]:
    """What the worker of a sweep, run in this process, does to signals is undone."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
