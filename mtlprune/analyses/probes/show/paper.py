"""Our numbers beside those of He and Choi (2021), which are constants in the authors' code; their defects are marked.

published = read_published()
table = beside_paper(panel, published, "BERT")
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from mtlprune.analyses.probes.show import FEW, mean_sd, signed
from mtlprune.analyses.probes.show.reading import PRETRAINED, STL, ProbePanel
from mtlprune.files import RunError
from mtlprune.reports.grid import Grid, number

FILE = "paper_probes.json"
ENCODERS = ("BERT", "RoBERTa", "ELECTRA", "DeBERTa")
USUAL = "BERT"
DEFECT = "†"


class Value(NamedTuple):
    """A published number: one run (pretrained), or a mean with its sample standard deviation over three."""

    mean: float
    sd: float | None


@dataclass(frozen=True, eq=False)
class Constants:
    """What was published for one task and encoder."""

    task: str
    encoder: str
    defects: Mapping[str, Sequence[str]]
    """Number of a defect → the columns it bears on."""
    columns: tuple[str, ...]
    values: Mapping[str, Mapping[str, Value]]
    """Label → column → number; labels by falling frequency in their test set."""
    layers: Mapping[str, int]
    """Label → layer of the best head of the pretrained encoder, where a picture showed it."""


@dataclass(frozen=True, eq=False)
class Published:
    """All of it."""

    origin: str
    units: str
    defects: Mapping[str, str]
    """Number → what is wrong."""
    everywhere: tuple[str, ...]
    """Defects that bear on every number."""
    tables: Mapping[tuple[str, str], Constants]
    """By task and encoder."""


@cache
def read_published() -> Published:
    """The constants, which come with the package."""
    tree = json.loads((files("mtlprune.analyses.probes.show") / FILE).read_text(encoding="utf-8"))
    layers = {(one["task"], one["encoder"]): one["best"] for one in tree["layers"]}
    tables = {}
    for one in tree["tables"]:
        values = {
            label: {
                column: Value(*cell) if isinstance(cell, list) else Value(cell, None)
                for column, cell in zip(one["columns"], cells, strict=True)
            }
            for label, *cells in one["rows"]
        }
        key = one["task"], one["encoder"]
        tables[key] = Constants(*key, one["defects"], tuple(one["columns"]), values, layers.get(key, {}))
    return Published(tree["origin"], tree["units"], tree["defects"], tuple(tree["everywhere"]), tables)


def named_encoder(against: str) -> str:
    """The published encoder that ``paper`` or ``paper:ROBERTA`` asks for. Raises RunError."""
    name, _, encoder = against.partition(":")
    found = next((one for one in ENCODERS if one.lower() == (encoder or USUAL).lower()), None)
    if name != "paper" or found is None:
        raise RunError(
            f"--against: expected paper, or paper: and one of {', '.join(ENCODERS)}, such as paper:RoBERTa; "
            f"found {against!r}"
        )
    return found


def beside_paper(panel: ProbePanel, encoder: str) -> Grid | None:
    """Published and own numbers in pairs of columns; None where labels or columns have nothing in common."""
    constants = read_published().tables.get((panel.task, encoder))
    if constants is None:
        return None
    every = [label for label in (*panel.labels, *panel.apart) if label in constants.values]
    titles = [title for title in constants.columns if title in panel.titles]
    if not every or not titles:
        return None
    header = ["label", "items"]
    for title in titles:
        header += [f"{title}, paper{_mark(constants, title)}", "ours"]
    both_change = {PRETRAINED, STL} <= set(titles)
    header += ["pretrained − STL, paper", "ours"] if both_change else []
    header += ["best layer, paper", "ours"] if constants.layers and PRETRAINED in panel.titles else []
    rows = [_row(panel, constants, titles, label, both_change) for label in every]
    title = f"{panel.task.upper()}: beside He and Choi (2021), {encoder}"
    return Grid(header, rows, 1, title, _legend(panel, constants, every), f"{panel.task}-paper")


def _row(panel: ProbePanel, constants: Constants, titles: Sequence[str], label: str, both_change: bool) -> list[str]:
    theirs = constants.values[label]
    row = [f"{label}{FEW if label in panel.few else ''}", str(panel.items[label])]
    for title in titles:
        value = theirs[title]
        row.append(number(value.mean) if value.sd is None else f"{number(value.mean)} ± {number(value.sd)}")
        row.append(mean_sd(panel.values(title, label)))
    if both_change:
        row.append(signed(theirs[PRETRAINED].mean - theirs[STL].mean))
        row.append(signed(panel.mean(PRETRAINED, label) - panel.mean(STL, label)))
    if constants.layers and PRETRAINED in panel.titles:
        row.append(str(constants.layers.get(label, "–")))
        layer = panel.mean(PRETRAINED, label, "layer")
        row.append("–" if math.isnan(layer) else f"{layer:g}")
    return row


def _mark(constants: Constants, column: str) -> str:
    return DEFECT if any(column in columns for columns in constants.defects.values()) else ""


def _legend(panel: ProbePanel, constants: Constants, shared: Sequence[str]) -> str:
    published = read_published()
    here = sorted(constants.defects, key=int)
    parts = [
        f"Paper: {published.units}; from {published.origin}.",
        *(f"{DEFECT} ({', '.join(constants.defects[key])}): {published.defects[key]}." for key in here),
        *(f"All of the paper's: {published.defects[key]}." for key in published.everywhere if _bears(key, panel)),
    ]
    if panel.mode == "sound":
        parts.append(
            "Ours: sound (head chosen on dev); --mode as-released is what the paper's numbers can be held against."
        )
    parts.append(
        "Corpora, label sets and encoders differ: a label of the same name need not mean the same, so compare the "
        "pattern, not the numbers."
    )
    only_ours = [label for label in panel.labels if label not in constants.values]
    only_theirs = [label for label in constants.values if label not in shared]
    parts += [f"Only ours: {', '.join(only_ours)}."] if only_ours else []
    parts += [f"Only the paper's: {', '.join(only_theirs)}."] if only_theirs else []
    return " ".join(parts)


def _bears(defect: str, panel: ProbePanel) -> bool:
    return defect != "10" or bool(panel.apart)
