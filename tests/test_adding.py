"""The pages that say how to add something: every block is run, in order, as a reader would."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mtlprune.encoder.families import FAMILIES

DOCS = Path(__file__).parents[1] / "docs"


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
