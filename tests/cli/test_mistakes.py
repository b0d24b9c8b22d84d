"""Users' mistakes are known for what they are, whichever modules are loaded when they are made."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from mtlprune.cli import app
from mtlprune.cli.console import exit_code, sentence
from mtlprune.errors import MtlpruneError
from mtlprune.runs import RunFolder

ROOT = Path(__file__).parents[2]


def test_every_kind_of_mistake_has_its_code():
    assert exit_code(MtlpruneError("x")) == 2 and exit_code(OSError(2, "not there", "f")) == 2
    assert exit_code(MemoryError()) == 2 and "memory" in sentence(MemoryError())
    assert exit_code(RuntimeError("a defect")) is None


def test_messages_do_not_steer_the_terminal():
    assert sentence(MtlpruneError("label \x1b[31m red\x07, ä")) == "label \\x1b[31m red\\x07, ä"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("status", "sweep.yaml"), "`mtlprune sweep --status`"),
        (("plot", "probes", "found", "--out", "plots"), "`mtlprune probe --plot`"),
        (("plot", "pretraining", "run"), "`mtlprune pretrain --plot`"),
        (("heads", "run", "--table"), "use the same command without --table"),
        (("heads", "run", "--gradients=joint"), "`mtlprune analyze gradients RUN"),
        (("heads", "run", 2, 3, "--text", "a b"), "`mtlprune head RUN LAYER HEAD`"),
    ],
)
def test_an_old_command_names_the_new_one(mtlprune, old, new):
    answer = mtlprune(*old)
    assert answer.code == 2 and new in answer.err and answer.err.count("\n") == 1


def test_the_help_names_every_command_and_all_can_be_loaded(mtlprune):
    shown = mtlprune("--help").out
    assert shown.index("quickstart") < shown.index("Advanced:") < shown.index("pretrain")
    further = mtlprune("analyze", "--help").out
    assert further.index("smoothing") < further.index("Advanced:") < further.index("dissect") < further.index("breaks")
    group: Any = typer.main.get_command(app)
    for name in group.list_commands(None):
        assert name in shown and group.get_command(None, name).name == name
    assert "Did you mean 'table'?" in mtlprune("tabel").err


def test_a_mistake_before_much_is_loaded():
    command = [sys.executable, "-m", "mtlprune", "head", "minilm", "0", "1"]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 2 and "counted from 1" in answer.stderr and answer.stderr.count("\n") == 1


PATHS = {
    "train": ("train", "quickstart", "data.path={}"),
    "sweep": ("sweep", "experiments/ewt5-minilm/sweep.yaml", "data.path={}", "--dry-run"),
    "smoothing": ("analyze", "smoothing", "minilm", "--corpus", "{}", "--out", "{}/out"),
    "evaluate": ("evaluate", "RUN", "--split", "dev"),
}
SAID = """
import sys
from mtlprune.cli import main
sys.argv = ["mtlprune", *sys.argv[1:]]
try:
    main()
finally:
    print([name for name in ("torch", "transformers", "datasets") if name in sys.modules])
"""


@pytest.mark.parametrize("command", PATHS)
def test_a_wrong_path_of_a_corpus_is_said_before_torch_is_there(command, tmp_path):
    wrong = tmp_path / "nowhere"
    tree = {"data": {"path": str(wrong)}, "tasks": ["pos"]}
    RunFolder(tmp_path / "run").write_config(tree)
    words = [word.format(wrong).replace("RUN", str(tmp_path / "run")) for word in PATHS[command]]
    done = subprocess.run([sys.executable, "-c", SAID, *words], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2 and str(wrong) in done.stderr and done.stderr.count("\n") == 1
    assert done.stdout == "[]\n"
