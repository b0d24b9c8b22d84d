"""Users' mistakes are known for what they are, whichever modules are loaded when they are made."""

from __future__ import annotations

import subprocess
import sys

from mtlprune.cli.mistakes import exit_code, sentence
from mtlprune.errors import MtlpruneError


def test_every_kind_of_mistake_has_its_code() -> None:
    assert exit_code(MtlpruneError("x")) == 2 and exit_code(OSError(2, "not there", "f")) == 2
    assert exit_code(MemoryError()) == 2 and "memory" in sentence(MemoryError())
    assert exit_code(RuntimeError("a defect")) is None


def test_messages_do_not_steer_the_terminal() -> None:
    assert sentence(MtlpruneError("label \x1b[31m red\x07, ä")) == "label \\x1b[31m red\\x07, ä"


def test_a_mistake_before_much_is_loaded() -> None:
    command = [sys.executable, "-m", "mtlprune", "heads", "minilm", "0", "1"]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 2 and "counted from 1" in answer.stderr and answer.stderr.count("\n") == 1
