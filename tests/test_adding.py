"""The pages that say how to add something: every block is run, in order, as a reader would."""

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
DOCS = ROOT / "docs/guides"


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


def copied(folder: Path, page: str) -> Callable[..., str]:
    """Copy the package, do to it what a page says, and give what runs a command on it."""
    shutil.copytree(ROOT / "mtlprune", folder / "mtlprune", ignore=shutil.ignore_patterns("__pycache__"))
    for block in blocks(page, "diff"):
        edit(folder, block)
    for kind in (r"python ([\w./]+)", r"yaml ([\w./]+)"):
        for name, content in blocks(page, kind):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(content, encoding="utf-8")

    def run(program: str, *words: object) -> str:
        environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *(["-m", "mtlprune"] if program == "mtlprune" else []), *map(str, words)]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def commands(page: str) -> list[list[str]]:
    lines = re.findall(r"^    ((?:mtlprune|python) .*)$", (DOCS / page).read_text("utf-8"), re.M)
    return [line.split() for line in lines]


@pytest.mark.slow
def test_an_analysis_is_added_as_the_page_says(tiny_encoder: Callable[[str], Path], tmp_path: Path) -> None:
    page = "adding_an_analysis.md"
    run = copied(tmp_path, page)
    encoder = str(tiny_encoder("bert"))
    build, analyze, show, heads = ([word.replace("ENCODER", encoder) for word in one] for one in commands(page))
    run(*build)
    assert "bits (head" in run(*analyze)
    run(*show)
    run(*heads)
    files = {path.name for path in (tmp_path / "found").iterdir()}
    assert files == {f"entropy{end}" for end in (".json", ".md", ".tex", "-heads.png", "-heads.svg")}
    assert (tmp_path / "paper/entropy-heads.pdf").read_bytes().startswith(b"%PDF")
    assert "attention entropy" in (tmp_path / "heads/heads.md").read_text(encoding="utf-8")
    frames = "import mtlprune; print(mtlprune.read_results('found')['entropy'].frames['heads'].to_csv())"
    rows = run("python", "-c", frames)
    assert "layer,head,measure,value" in rows and ",entropy," in rows
    uniform = "import torch; from mtlprune.analyses.entropy.maths import entropy; "
    uniform += "print(entropy(torch.full((1, 1, 8, 8), 0.125), torch.ones(1, 8).bool()).item())"
    assert float(run("python", "-c", uniform)) == pytest.approx(3)
    section = "from mtlprune.reports.page.analyses import parts, results_of; from pathlib import Path; "
    assert "Attention entropy" in run("python", "-c", f"{section}print(parts(results_of([Path('found')]))[0].title)")


@pytest.mark.slow
def test_a_task_is_added_as_the_page_says(tiny_encoder: Callable[[str], Path], tmp_path: Path) -> None:
    page = "adding_a_task.md"
    run = copied(tmp_path, page)
    build, add, learn, score, learn_deep = commands(page)
    run(*build)
    run(*add)
    small = f"encoder.name={tiny_encoder('bert')}", "train.epochs=1", "train.threads=1", "train.device=cpu"
    assert "depth" in run(*learn, *small)
    assert "accuracy" in run(*score)
    assert "DEPTH accuracy" in run("mtlprune", "table", "runs/depth", "--resamples", "0")
    [sentence, *_] = (tmp_path / "runs/depth/predictions/test.jsonl").read_text(encoding="utf-8").splitlines()
    assert '"depth": {"kind": "tags", "value": [' in sentence
    assert "depth" in run(*learn_deep, *small)
