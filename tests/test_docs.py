"""The method cards name every setting there is, with its default, and nothing else; the index names every card."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mtlprune.config import Config, load_config
from mtlprune.tasks import TASKS

DOCS = Path(__file__).parents[1] / "docs"


def settings(text: str) -> dict[str, str]:
    """Key → default in the rows of Markdown tables whose first cell is a key."""
    return dict(re.findall(r"^\| `([\w.]+)` \| ([^|]*?) \|", text, re.MULTILINE))


def written(value: Any) -> str:
    """A default as the cards write it."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def fields(model: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Path and default of every field, blocks unfolded, decoders left out."""
    for name, field in model.model_fields.items():
        if name == "decoders":
            continue
        if hasattr(field.annotation, "model_fields"):
            yield from fields(field.annotation, f"{name}.")
        elif name == "tasks":
            yield name, "all five"
        else:
            yield prefix + name, "–" if field.is_required() else written(field.default)


@pytest.mark.parametrize("name", TASKS)
def test_every_setting_of_a_decoder_is_on_its_card(name: str) -> None:
    card = (DOCS / "tasks.md").read_text(encoding="utf-8").split(f"\n## `{name}`:")[1].split("\n## ")[0]
    options = TASKS[name].Options.model_fields
    assert settings(card) == {key: written(field.default) for key, field in options.items()}


def test_every_setting_of_a_run_is_on_the_card_of_training() -> None:
    card = (DOCS / "training.md").read_text(encoding="utf-8")
    assert settings(card.split("\n## Settings\n")[1]) == dict(fields(Config))


def test_every_command_of_the_regimes_is_a_run_that_can_be_asked_for() -> None:
    card = (DOCS / "regimes.md").read_text(encoding="utf-8")
    commands = [shlex.split(line) for line in re.findall(r"^    (mtlprune train .*)$", card, re.MULTILINE)]
    made = [str(command[-1]) for command in commands]
    methods = set()
    for _, verb, preset, *overrides, option, _ in commands:
        assert (verb, option) == ("train", "--out")
        config = load_config(preset, overrides)
        methods.add((config.pruning.method, config.pruning.sets, config.train.freeze))
        named = (config.train.start, config.pruning.importance_of, config.pruning.layers_like)
        assert {run for run in named if run} <= set(made)
    assert len(set(made)) == len(made) and len(methods) == 7


def test_every_card_is_in_the_index() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / "README.md").read_text(encoding="utf-8")))
    assert listed == {path.name for path in DOCS.glob("*.md")} - {"README.md"}
