"""The pages that say how to add something: every block is run, in order, as a reader would."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtlprune.encoder.families import FAMILIES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.M | re.S)


def test_an_encoder_is_added_as_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(FAMILIES, "nomic_bert", raising=False)
    before, names = dict(FAMILIES), dict[str, Any]()
    found = blocks("adding_an_encoder.md", "python")
    assert len(found) == 3 and sum(block.count("assert") for block in found) >= 7
    try:
        for block in found:
            exec(compile(block, "adding_an_encoder.md", "exec"), names)
        row = FAMILIES["nomic_bert"]
        assert {row.attention, row.output} == {"layers.*.self_attn", "layers.*.self_attn.o_proj"}
    finally:
        FAMILIES.clear()
        FAMILIES.update(before)


def edit(folder: Path, block: str) -> None:
    """Do what a block of the page says: lines with - go, lines with + come, the others stand there, once."""
    name, *lines = block.splitlines()
    before = "\n".join(line[1:] for line in lines if line[:1] != "+")
    after = "\n".join(line[1:] for line in lines if line[:1] != "-")
    text = (folder / name).read_text(encoding="utf-8")
    assert text.count(before) == 1, f"{name} holds this {text.count(before)} times:\n{before}"
    (folder / name).write_text(text.replace(before, after), encoding="utf-8")


@pytest.mark.slow
def test_a_task_is_added_as_the_page_says(tiny_encoder: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(ROOT / "mtlprune", tmp_path / "mtlprune", ignore=shutil.ignore_patterns("__pycache__"))
    page = "adding_a_task.md"
    for block in blocks(page, "diff"):
        edit(tmp_path, block)
    for kind in (r"python ([\w./]+)", r"yaml ([\w./]+)"):
        for name, content in blocks(page, kind):
            (tmp_path / name).write_text(content, encoding="utf-8")

    def run(*command: object) -> str:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *map(str, command)], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    verb = "-c", "from mtlprune.cli import main; main()"
    build, add, learn, score, learn_deep = (
        line.split() for line in re.findall(r"^    ((?:mtlprune|python) .*)$", (DOCS / page).read_text("utf-8"), re.M)
    )
    run(*verb, *build[1:])
    run(*add[1:])
    small = f"encoder.name={tiny_encoder('bert')}", "train.epochs=1", "train.threads=1", "train.device=cpu"
    assert "depth" in run(*verb, *learn[1:], *small)
    assert "accuracy" in run(*verb, *score[1:])
    assert "DEPTH accuracy" in run(*verb, "table", "runs/depth", "--no-test")
    [sentence, *_] = (tmp_path / "runs/depth/predictions/test.jsonl").read_text(encoding="utf-8").splitlines()
    assert '"depth": {"kind": "tags", "value": [' in sentence
    assert "depth" in run(*verb, *learn_deep[1:], *small)
