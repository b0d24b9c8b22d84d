"""Labels, words and names of folders come from others: none steers a terminal or puts markup into a document."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_runs import gold_sentences, write_study_run

from mtlprune.corpora.store import save_corpus
from mtlprune.errors import printable_lines
from mtlprune.reports.grid import Grid

RED, TAG, BAR = "\x1b[31mred", "<script>alert(1)</script>", "a|b"
NAME = f"{RED}|<script>x\n{{}}"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Path]:
    """Runs in folders of hostile names, and their corpus."""
    root = tmp_path_factory.mktemp("hostile")
    gold = [
        replace(sentence, pos=(RED, TAG, BAR, "\x9b1m", "\x07"), words=(RED, TAG, BAR, "\x9b1m", ".")).validate()
        for sentence in gold_sentences(12)
    ]
    splits = {"train": gold[:8], "dev": gold[8:10], "test": gold[10:]}
    save_corpus(splits, root / "corpus", name="hostile", licence="none", sources={})
    runs = []
    for tasks in (("pos",), ("dep",), ("pos", "dep")):
        for pruned in (False, True):
            path = root / NAME.format(f"{'-'.join(tasks)}-{pruned}")
            runs.append(write_study_run(path, tasks, 1, pruned, 0.8, gold).path)
    return runs, root / "corpus"


COMMANDS = {
    "table": ("table", "ALL", "--out", "OUT/table.md"),
    "table-terminal": ("table", "ALL"),
    "latex": ("table", "ALL", "--format", "latex", "--out", "OUT/table.tex"),
    "csv": ("table", "ALL", "--format", "csv", "--out", "OUT/table.csv"),
    "claims": ("claims", "GATED", "--permutations", 10, "--out", "OUT/claims"),
    "maps": ("maps", "GATED", "--format", "svg", "--out", "OUT/maps"),
    "report": ("report", "ALL", "--resamples", 10, "--permutations", 10, "--out", "OUT/page.html"),
    "show": ("data", "show", "CORPUS", "dev:1"),
    "check": ("data", "check", "CORPUS"),
    "mistake": ("evaluate", "NONE", "--split", "dev"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_steers_or_marks_up(command, study, mtlprune, tmp_path):
    runs, corpus = study
    out = tmp_path / NAME.format("out")
    several = {"ALL": runs, "GATED": [run for run in runs if "True" in run.name]}
    words: list[Any] = []
    for word in COMMANDS[command]:
        one = str(word).replace("OUT", str(out)).replace("CORPUS", str(corpus)).replace("NONE", str(out / "none"))
        words += several.get(word, [one])  # type: ignore[call-overload]
    answer = mtlprune(*words)
    assert answer.code == (2 if command == "mistake" else 0), answer.err
    files = [path for path in out.rglob("*") if path.is_file() and path.suffix not in (".png", ".parquet")]
    texts = {path: path.read_text(encoding="utf-8") for path in files} | {"out": answer.out, "err": answer.err}
    assert len(texts) > 2 or answer.out or answer.err
    for name, text in texts.items():
        plain = text.replace("\t", "")
        assert plain == printable_lines(plain), f"{name}: {text[:300]!r}"
        if isinstance(name, Path) and name.suffix in (".md", ".html", ".svg"):
            assert TAG not in text and "<script>x" not in text, name


def test_a_cell_stays_a_cell():
    hostile = ("a|b", "<b>x</b>", "&lt;", "[x](javascript:1)", "two\nlines", "\x1b[31m")
    text = Grid(["word"], [[cell] for cell in hostile]).markdown()
    rows = [line.strip("| ").strip() for line in text.splitlines()[2:]]
    assert rows == ["a\\|b", "&lt;b>x&lt;/b>", "&amp;lt;", "[x]\\(javascript:1)", "two\\nlines", "\\x1b[31m"]
    assert "p < 0.05 & q" in Grid(["word"], [["p < 0.05 & q"]]).markdown()
