"""Analysis ``head``: the labels that one head identifies best, the tasks that claim it, and its attention."""

import re
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from mtlprune.analyses.analysis import Analysis
from mtlprune.evaluation.ablations import Closed
from mtlprune.io.block import Block


class HeadOptions(Block):
    """Options of ``analyze head``: the head, and what the command shows of it."""

    layer: int = Field(ge=1, description="Layer, counted from 1; head=6-9 is short for layer=6 head=9.")
    head: int = Field(ge=1, description="Head, counted from 1 in the encoder's original numbering.")
    probes: Path | None = Field(default=None, description="Folder that `mtlprune analyze probes` wrote.")
    gates_of: str | None = Field(
        default=None, description="Task whose gates or clones are used, in a run of several tasks."
    )
    closed: Closed | None = Field(
        default=None, description="Output that replaces that of the head when it is closed in a run."
    )
    text: str | None = Field(default=None, description="Words of a sentence that is shown, with spaces between them.")

    @model_validator(mode="before")
    @classmethod
    def _as_numbers(cls, value: Any) -> Any:
        """Split head=6-9, the name of a head in maps and tables, into layer=6 and head=9."""
        match = isinstance(value, dict) and re.fullmatch(r"(\d+)-(\d+)", str(value.get("head")))
        return {**value, "layer": int(match[1]), "head": int(match[2])} if match and "layer" not in value else value


ANALYSIS = Analysis(
    name="head",
    title="One head",
    question="Which labels does one head identify, and to what does it attend?",
    help="""Show the labels that one head identifies best, the tasks that claim it, and its attention in example
    sentences.

    Sentences come from the corpus of the run, or from --corpus. --sentences sets their number (four, if not given). If
    the head is among the five best heads of a relation or role (probes=DIR), the command shows the sentences with most
    of that relation or role, and otherwise the first short sentences.""",
    needs=frozenset({"sentences", "claims"}),
    options=HeadOptions,
)
