"""Our numbers beside published ones: a table such as experiments/he-choi-2021/probes.csv, with its own remarks."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mtlprune.analyses.probes.show import FEW, signed
from mtlprune.analyses.probes.show.reading import PRETRAINED, STL, ProbePanel
from mtlprune.figures.grid import Grid, mean_sd
from mtlprune.io.files import RunError

KEYS = ("encoder", "task", "label")


@dataclass(frozen=True)
class PublishedProbes:
    """Published numbers of one encoder.

    Attributes:
        encoder: its name.
        remarks: what the lines that begin with # say.
        rows: by task and label, cells by the title of their column, as they were written; ``layer`` is that of the best
            head of the pretrained encoder.
    """

    encoder: str
    remarks: str
    rows: dict[tuple[str, str], dict[str, str]]

    @classmethod
    def read(cls, against: str) -> "PublishedProbes":
        """Read FILE, or FILE:ENCODER of a file of several encoders (else its first one). Raises RunError."""
        path, encoder = Path(against), ""
        if not path.is_file():
            name, _, encoder = against.rpartition(":")
            path = Path(name)
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            raise RunError(
                f"--against: expected a table of published numbers such as experiments/he-choi-2021/probes.csv, or "
                f"FILE:ENCODER, found {against!r}"
            ) from None
        remarks = [line.lstrip("# ") for line in lines if line.startswith("# ")]
        rows = list(csv.DictReader(lines[len(remarks) :]))
        if not rows or not rows[0].keys() >= set(KEYS):
            raise RunError(f"{path}: expected a CSV table with the columns {', '.join(KEYS)}, found no such table")
        names = list(dict.fromkeys(row["encoder"] for row in rows))
        chosen = next((name for name in names if name.lower() == (encoder or names[0]).lower()), None)
        if chosen is None:
            raise RunError(f"{path}: expected one of {', '.join(names)}, found {encoder!r}")
        own = {(row["task"], row["label"]): row for row in rows if row["encoder"] == chosen}
        return cls(chosen, " ".join(remarks), own)


def beside_paper(panel: ProbePanel, published: PublishedProbes) -> Grid | None:
    """Published and own numbers in pairs of columns; None where labels or columns have nothing in common."""
    rows = {label: row for (task, label), row in published.rows.items() if task == panel.task}
    every = [label for label in (*panel.labels, *panel.apart) if label in rows]
    theirs = [rows[label] for label in every]
    titles = [title for title in panel.titles if any(row.get(title) for row in theirs)]
    if not titles:
        return None
    pairs = [  # heading, published, ours
        (f"{title}, paper", [row[title] for row in theirs], [mean_sd(panel.values(title, one)) for one in every])
        for title in titles
    ]
    if {PRETRAINED, STL} <= set(titles):
        gaps = [signed(panel.mean(PRETRAINED, label) - panel.mean(STL, label)) for label in every]
        pairs.append(
            ("pretrained − STL, paper", [signed(_value(r[PRETRAINED]) - _value(r[STL])) for r in theirs], gaps)
        )
    if any(row.get("layer") for row in theirs) and PRETRAINED in panel.titles:
        layers = [f"{panel.mean(PRETRAINED, label, 'layer'):g}".replace("nan", "–") for label in every]
        pairs.append(("best layer, paper", [row["layer"] or "–" for row in theirs], layers))
    header = ["label", "items", *(part for heading, *_ in pairs for part in (heading, "ours"))]
    named = [label + FEW * (label in panel.few) for label in every]
    cells = [named, [str(panel.items[label]) for label in every], *(part for _, *pair in pairs for part in pair)]
    title = f"{panel.task.upper()}: beside the published numbers of {published.encoder}"
    legend = _legend(panel, published, rows, every)
    return Grid(header, [*zip(*cells, strict=True)], 1, title, legend, f"{panel.task}-paper")


def _value(cell: str) -> float:
    """The number that a cell such as "91.44 ± 0.89†" begins with."""
    return float(cell.partition(" ")[0].rstrip("†"))


def _legend(panel: ProbePanel, published: PublishedProbes, rows: Mapping[str, object], shared: Sequence[str]) -> str:
    parts = [
        published.remarks,
        "Ours: sound (head chosen on dev); --mode as-released is what the paper's numbers can be held against."
        * (panel.mode == "sound"),
        "Corpora, label sets and encoders differ: a label of the same name need not mean the same, so compare the "
        "pattern, not the numbers.",
    ]
    only = {"Only ours": [label for label in panel.labels if label not in rows]}
    only["Only the paper's"] = [label for label in rows if label not in shared]
    parts += [f"{whose}: {', '.join(labels)}." for whose, labels in only.items() if labels]
    return " ".join(filter(None, parts))
