"""The comparison of golden outputs: it finds what moved, and lets pass what is said to be meant."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from golden import Changes, compare, needs, read_commands


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two equal outputs of one command."""
    folder = tmp_path / "old/one"
    folder.mkdir(parents=True)
    (folder / "found.json").write_text(json.dumps({"p": 0.5, "mean": [1.25, float("nan")], "begun": "today"}))
    (folder / "found.md").write_text("| pos | 1.25 |\nin 3 s, 2026-01-01")
    pq.write_table(pa.table({"head": [1, 2], "value": [0.5, 0.25]}), folder / "found.parquet")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    return tmp_path / "old", tmp_path / "new"


def found(pair: tuple[Path, Path], tolerance: float = 0.0, **changes: Any) -> list[str]:
    return compare(*pair, [], tolerance, Changes(changes))


def test_the_same_in_another_form_is_no_difference(pair: tuple[Path, Path]) -> None:
    new = pair[1] / "one"
    (new / "found.json").write_text(json.dumps({"begun": "tomorrow", "mean": [1.25, None], "p": 0.5}))
    (new / "found.md").write_text("|pos|  1.250 |\nin 44 s, 2027-01-01 ")
    pq.write_table(pa.table({"value": [0.25, 0.5], "head": [2, 1]}), new / "found.parquet")
    assert found(pair) == []


def test_each_difference_is_a_line(pair: tuple[Path, Path]) -> None:
    new = pair[1] / "one"
    (new / "found.json").write_text(json.dumps({"p": 0.5 + 1e-6, "mean": [1.25]}))
    (new / "found.md").unlink()
    (new / "more.md").write_text("")
    pq.write_table(pa.table({"head": [1, 3], "value": [0.5, 0.25]}), new / "found.parquet")
    assert [line.split(" ")[:2] for line in found(pair)] == [
        ["one/found.json:", "mean"],
        ["one/found.json:", "p"],
        ["one/found.md:", "is"],
        ["one/found.parquet:", "[1].head"],
        ["one/more.md:", "is"],
    ]
    assert not any("found.json: p" in line for line in found(pair, tolerance=1e-5))


def test_meant_differences_pass_and_only_these(pair: tuple[Path, Path]) -> None:
    new = pair[1] / "one"
    (new / "found.json").rename(new / "renamed.json")
    assert len(found(pair)) == 2 and found(pair, renamed={"one/found.json": "one/renamed.json"}) == []
    (new / "renamed.json").write_text(json.dumps({"p": 0.51, "mean": [1.25, None]}))
    meant: dict[str, Any] = {"renamed": {"one/found.json": "one/renamed.json"}}
    assert found(pair, **meant, monte_carlo={"*.json": {"keys": ["p"], "error": 0.02}}) == []
    assert len(found(pair, **meant, monte_carlo={"*.json": {"keys": ["q"], "error": 0.02}})) == 1
    moved = {"scattered": {"one/found.json": ["renamed.json"]}, "new": {"*renamed.json": ""}}
    assert found(pair, **moved, monte_carlo={"*.json": {"keys": ["p"], "error": 0.02}}) == [] != found(pair, **moved)
    (new / "found.md").write_text("Other words around 1.25.")
    meant |= {"monte_carlo": {"*.json": {"keys": ["p"], "error": 0.02}}}
    assert found(pair, **meant, scattered={"one/found.md": ["found.md"]}) == []
    (new / "found.md").write_text("Other words around 1.26.")
    assert found(pair, **meant, scattered={"one/found.md": ["found.md"]}) == [
        "one/found.md: [1] 1.25 is nowhere in found.md"
    ]
    assert found(pair, **meant, scattered={"one/found.md": ["found.md"]}, rounded={"*.md": 0.01}) == []


def test_a_command_comes_behind_those_whose_files_it_reads() -> None:
    commands = read_commands()
    places = {name: place for place, name in enumerate(["inputs", *commands])}
    assert needs(commands, "prune") == {"inputs", "train-gates"}
    assert all(places[other] < places[name] for name in commands for other in needs(commands, name))
