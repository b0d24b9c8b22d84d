"""Commands with little memory: they end, with a sentence or killed, and never wait for what could not begin."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import forked
import pytest

from mtlprune.figures.painter import _servers, paint
from mtlprune.io.files import RunError

MEGABYTES = (2, 5, 6, 8, 10, 12, 16, 24, 48, 400)
ENDED = {0, 2, -6, -9, -11, 127}
"""Done, a sentence; killed by the system, or by a library in C or Rust that cannot go on."""


def limited(words: list[str], megabytes: int, log: str) -> None:
    """Run a command in this process with so much memory more than it has by now."""
    from mtlprune.cli import main

    with Path(log).open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + megabytes * 2**20, used + megabytes * 2**20))
    sys.argv = ["mtlprune", *words]
    main()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "evaluate", "predict", "export", "claims", "report"])
def test_with_little_memory_a_command_ends(name: str, lab: Any, own_gates: Path, tmp_path: Path) -> None:
    run, words = own_gates, tmp_path / "words.txt"
    words.write_text("The cat saw the dog .\n")
    commands: dict[str, Callable[[Path], tuple[Any, ...]]] = {
        "train": lambda out: (lab.config, "tasks=pos,dep", "train.epochs=1", "--out", out / "new"),
        "evaluate": lambda out: (run, "--split", "dev"),
        "predict": lambda out: (run, words),
        "export": lambda out: (run, "--task", "pos", "--out", out / "export"),
        "claims": lambda out: (run, "--permutations", 10, "--out", out / "claims", "--format", "png"),
        "report": lambda out: (run, "--out", out / "page.html", "--resamples", 10),
    }
    codes = {}
    for megabytes in MEGABYTES:
        log = tmp_path / f"{megabytes}.log"
        command = [name, *map(str, commands[name](tmp_path / str(megabytes)))]
        for _ in range(3):
            process = forked.start(limited, command, megabytes, str(log))
            process.join(60)
            codes[megabytes] = process.exitcode
            process.kill()
            if codes[megabytes] is not None:
                break  # one in a hundred waits for ever in a thread of a library, as `Thread.start` of Python 3.11 can
        text = log.read_text(errors="replace")
        assert codes[megabytes] in ENDED and "Traceback" not in text, (name, megabytes, codes, text[-3000:])
        if codes[megabytes] == 2:
            # Python may have begun the line, with "Exception ignored in ..."
            assert "mtlprune: " in text.rstrip().rpartition("\n")[2], text
    print(name, codes)


def test_openblas_is_loaded_while_there_is_memory_for_it(tmp_path: Path) -> None:
    """Where it finds no memory for its buffers while it is loaded, OpenBLAS tries for ever: `table` hung at 339 MB."""

    def limit(megabytes: int) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes * 2**20, megabytes * 2**20))

    command = [sys.executable, "-m", "mtlprune", "table", str(tmp_path / "run")]
    for megabytes in (300, 340, 400):
        how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 120, "check": False}
        done = subprocess.run(command, preexec_fn=partial(limit, megabytes), **how)
        assert done.returncode == 2 and "MB of address space" in done.stderr, (megabytes, done)


def test_the_process_that_draws_may_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end is a sentence where a figure is asked for, and no trouble for the next one."""
    text = '<svg xmlns="http://www.w3.org/2000/svg" width="4" height="4"></svg>'
    assert paint("svg_to_png", text, scale=1).startswith(b"\x89PNG")
    server = _servers[os.getpid()]
    server.kill()
    server.wait()
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(RunError, match="its process ended; perhaps memory ran out"):
        paint("svg_to_png", text, scale=1)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="JSON"):
        paint("vegalite_to_svg", "{")
    assert paint("svg_to_png", text, scale=1).startswith(b"\x89PNG")
