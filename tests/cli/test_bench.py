"""mtlprune bench: prints what it measured, and writes the same figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_it_prints_and_writes_ratios(mtlprune: Callable[..., Any], lab: Any, tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    answer = mtlprune("bench", lab.config, "tasks=pos,dep", "--batches", 2, "--rounds", 1, "--out", out)
    assert answer.code == 0, answer.err
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert set(figures["steps"]) == {"bare encoder", "STL pos", "STL dep", "MTL-2 joint", "MTL-2 joint, gated"}
    for kind, ratio in figures["ratios"].items():
        if kind in figures["steps"]:
            row = next(line for line in answer.out.splitlines() if kind in line)
            assert f"{ratio:.3f}" in row and f"{figures['steps'][kind]:.2f}" in row
    assert "sampled epoch, estimated from steps" in answer.out
    assert 1e8 < figures["memory"] < 1e10  # a fresh process with torch in it
    assert f"{figures['memory'] / 1e9:.2f} GB" in answer.out
