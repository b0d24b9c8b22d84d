"""Our numbers beside those of He and Choi (2021), which are constants in the authors' code; their defects are marked.

table = beside_paper(panel, "BERT")
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from mtlprune.analyses.probes.show import FEW, signed
from mtlprune.analyses.probes.show.reading import PRETRAINED, STL, ProbePanel
from mtlprune.figures.grid import Grid, mean_sd, number
from mtlprune.io.files import RunError

ENCODERS = ("BERT", "RoBERTa", "ELECTRA", "DeBERTa")
DEFECT = "†"


@cache
def read_published() -> dict[str, Any]:
    """The constants, which come with the package.

    Returns:
        ``origin``; ``units``; ``defects``, number → what is wrong; those that bear on ``everywhere``; and ``tables``:
        task and encoder → ``columns``, ``defects`` (number → columns they bear on), ``values`` (label → column → one
        run's number, or a mean and its sample standard deviation over three; labels by falling frequency in their test
        set) and ``layers`` (label → that of the best head of the pretrained encoder, where a picture showed it).
    """
    tree = json.loads((files(__package__) / "paper_probes.json").read_text(encoding="utf-8"))
    layers = {(one["task"], one["encoder"]): one["best"] for one in tree["layers"]}
    tables = {}
    for one in tree["tables"]:
        rows = {label: [cell if isinstance(cell, list) else [cell] for cell in cells] for label, *cells in one["rows"]}
        values = {label: dict(zip(one["columns"], cells, strict=True)) for label, cells in rows.items()}
        key = one["task"], one["encoder"]
        tables[key] = {**one, "values": values, "layers": layers.get(key, {})}
    return {**tree, "tables": tables}


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
    constants = read_published()["tables"].get((panel.task, encoder))
    if constants is None:
        return None
    every = [label for label in (*panel.labels, *panel.apart) if label in constants["values"]]
    titles = [title for title in constants["columns"] if title in panel.titles]
    if not every or not titles:
        return None
    theirs = [constants["values"][label] for label in every]
    pairs: list[tuple[str, list[str], list[str]]] = []  # heading, published, ours
    for title in titles:
        mark = DEFECT * any(title in named for named in constants["defects"].values())
        published = [" ± ".join(map(number, row[title])) for row in theirs]
        pairs.append((f"{title}, paper{mark}", published, [mean_sd(panel.values(title, label)) for label in every]))
    if {PRETRAINED, STL} <= set(titles):
        gaps = [signed(panel.mean(PRETRAINED, label) - panel.mean(STL, label)) for label in every]
        pairs.append(("pretrained − STL, paper", [signed(row[PRETRAINED][0] - row[STL][0]) for row in theirs], gaps))
    if constants["layers"] and PRETRAINED in panel.titles:
        layers = [f"{panel.mean(PRETRAINED, label, 'layer'):g}".replace("nan", "–") for label in every]
        pairs.append(("best layer, paper", [str(constants["layers"].get(label, "–")) for label in every], layers))
    header = ["label", "items", *(part for heading, *_ in pairs for part in (heading, "ours"))]
    named = [label + FEW * (label in panel.few) for label in every]
    cells = [named, [str(panel.items[label]) for label in every], *(part for _, *pair in pairs for part in pair)]
    title = f"{panel.task.upper()}: beside He and Choi (2021), {encoder}"
    return Grid(header, [*zip(*cells, strict=True)], 1, title, _legend(panel, constants, every), f"{panel.task}-paper")


def _legend(panel: ProbePanel, constants: Mapping[str, Any], shared: Sequence[str]) -> str:
    published = read_published()
    told, defects = published["defects"], constants["defects"]
    everywhere = [key for key in published["everywhere"] if key != "10" or panel.apart]  # 10 is about the root
    parts = [
        f"Paper: {published['units']}; from {published['origin']}.",
        *(f"{DEFECT} ({', '.join(defects[key])}): {told[key]}." for key in sorted(defects, key=int)),
        *(f"All of the paper's: {told[key]}." for key in everywhere),
        "Ours: sound (head chosen on dev); --mode as-released is what the paper's numbers can be held against."
        * (panel.mode == "sound"),
        "Corpora, label sets and encoders differ: a label of the same name need not mean the same, so compare the "
        "pattern, not the numbers.",
    ]
    only = {"Only ours": [label for label in panel.labels if label not in constants["values"]]}
    only["Only the paper's"] = [label for label in constants["values"] if label not in shared]
    parts += [f"{whose}: {', '.join(labels)}." for whose, labels in only.items() if labels]
    return " ".join(filter(None, parts))
