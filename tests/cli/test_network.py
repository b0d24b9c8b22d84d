"""No command contacts the network, unless the name of a hub is given: a comparison whose processes may not connect."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUARD = """
import pathlib, sys

def refuse(event, arguments):
    if event in ("socket.getaddrinfo", "socket.connect") and not isinstance(arguments[-1], (str, bytes)):
        with pathlib.Path({asked!r}).open("a") as file:
            print(event, arguments, file=file)
        raise OSError("a test allows no connection")

sys.addaudithook(refuse)
pathlib.Path({guarded!r}).touch()
"""
"""Python runs this module when it starts, so that it also holds in workers. A path of this machine is no network."""


@pytest.mark.slow
def test_a_comparison_opens_no_connection(encoder: Path, tmp_path: Path) -> None:
    asked, guarded = tmp_path / "asked.txt", tmp_path / "guarded"
    (tmp_path / "sitecustomize.py").write_text(GUARD.format(asked=str(asked), guarded=str(guarded)))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT)])
    sizes = ["--train", "24", "--dev", "8", "--test", "8", "--out", str(tmp_path / "out")]
    fast = [f"encoder.name={encoder}", "train.epochs=1", "train.device=cpu", "train.threads=1", "--jobs", "1"]
    command = [sys.executable, "-m", "mtlprune", "quickstart", *fast, *sizes]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0 and guarded.exists(), done.stderr
    assert (tmp_path / "out/report.html").is_file() and not asked.exists(), asked.read_text()
