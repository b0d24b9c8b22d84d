"""Our numbers beside those of He and Choi (2021), which are constants in the authors' code; their defects are marked.

published = read_published()
table = beside_paper(panel, "BERT")
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from mtlprune.analyses.probes.show import FEW, mean_sd, signed
from mtlprune.analyses.probes.show.reading import PRETRAINED, STL, ProbePanel
from mtlprune.files import RunError
from mtlprune.reports.grid import Grid, number

ENCODERS = ("BERT", "RoBERTa", "ELECTRA", "DeBERTa")
DEFECT = "†"


class Value(NamedTuple):
    """A published number: one run (pretrained), or a mean with its sample standard deviation over three."""

    mean: float
    sd: float | None = None


@dataclass(frozen=True, eq=False)
class Constants:
    """What was published for one task and encoder.

    Attributes:
        defects: number of a defect → the columns it bears on.
        values: label → column → number; labels by falling frequency in their test set.
        layers: label → layer of the best head of the pretrained encoder, where a picture showed it.
    """

    defects: Mapping[str, Sequence[str]]
    columns: Sequence[str]
    values: Mapping[str, Mapping[str, Value]]
    layers: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Published:
    """All of it: ``defects``, number → what is wrong; those that bear on every number; ``tables`` by task, encoder."""

    origin: str
    units: str
    defects: Mapping[str, str]
    everywhere: Sequence[str]
    tables: Mapping[tuple[str, str], Constants]


@cache
def read_published() -> Published:
    """The constants, which come with the package."""
    tree = json.loads((files(__package__) / "paper_probes.json").read_text(encoding="utf-8"))
    layers = {(one["task"], one["encoder"]): one["best"] for one in tree["layers"]}
    tables = {}
    for one in tree["tables"]:
        values = {
            label: {
                column: Value(*cell) if isinstance(cell, list) else Value(cell)
                for column, cell in zip(one["columns"], cells, strict=True)
            }
            for label, *cells in one["rows"]
        }
        key = one["task"], one["encoder"]
        tables[key] = Constants(one["defects"], one["columns"], values, layers.get(key, {}))
    return Published(**{key: tree[key] for key in ("origin", "units", "defects", "everywhere")}, tables=tables)


def named_encoder(against: str) -> str:
    """The published encoder that ``paper`` or ``paper:ROBERTA`` asks for. Raises RunError."""
    name, _, encoder = against.partition(":")
    found = next((one for one in ENCODERS if one.lower() == (encoder or ENCODERS[0]).lower()), None)
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
    theirs = [constants.values[label] for label in every]
    header = ["label", "items"]
    cells = [[f"{label}{FEW * (label in panel.few)}" for label in every], [str(panel.items[label]) for label in every]]

    def beside(heading: str, published: list[str], ours: list[str]) -> None:
        header.extend([heading, "ours"])
        cells.extend([published, ours])

    for title in titles:
        mark = DEFECT if any(title in named for named in constants.defects.values()) else ""
        published = [
            number(mean) + ("" if sd is None else f" ± {number(sd)}") for mean, sd in (row[title] for row in theirs)
        ]
        beside(f"{title}, paper{mark}", published, [mean_sd(panel.values(title, label)) for label in every])
    if {PRETRAINED, STL} <= set(titles):
        gaps = [panel.mean(PRETRAINED, label) - panel.mean(STL, label) for label in every]
        published = [signed(row[PRETRAINED].mean - row[STL].mean) for row in theirs]
        beside("pretrained − STL, paper", published, [*map(signed, gaps)])
    if constants.layers and PRETRAINED in panel.titles:
        layers = [panel.mean(PRETRAINED, label, "layer") for label in every]
        published = [str(constants.layers.get(label, "–")) for label in every]
        beside("best layer, paper", published, [f"{layer:g}".replace("nan", "–") for layer in layers])
    title = f"{panel.task.upper()}: beside He and Choi (2021), {encoder}"
    return Grid(header, [*zip(*cells, strict=True)], 1, title, _legend(panel, constants, every), f"{panel.task}-paper")


def _legend(panel: ProbePanel, constants: Constants, shared: Sequence[str]) -> str:
    published = read_published()
    told = published.defects
    everywhere = [key for key in published.everywhere if key != "10" or panel.apart]  # 10 is about the root
    parts = [
        f"Paper: {published.units}; from {published.origin}.",
        *(
            f"{DEFECT} ({', '.join(constants.defects[key])}): {told[key]}."
            for key in sorted(constants.defects, key=int)
        ),
        *(f"All of the paper's: {told[key]}." for key in everywhere),
        "Ours: sound (head chosen on dev); --mode as-released is what the paper's numbers can be held against."
        * (panel.mode == "sound"),
        "Corpora, label sets and encoders differ: a label of the same name need not mean the same, so compare the "
        "pattern, not the numbers.",
    ]
    only = {"Only ours": [label for label in panel.labels if label not in constants.values]}
    only["Only the paper's"] = [label for label in constants.values if label not in shared]
    parts += [f"{whose}: {', '.join(labels)}." for whose, labels in only.items() if labels]
    return " ".join(filter(None, parts))
