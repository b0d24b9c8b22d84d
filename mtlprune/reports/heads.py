"""The table of heads: all that is known of each head side by side, and which of it goes together within layers.

Letters: L layers, A heads a layer, K heads of which two columns both say something.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mtlprune.analyses.analysis import Analysis, HeadColumn, find, read, usable
from mtlprune.errors import printable_lines
from mtlprune.figures.grid import Grid, markdown_document
from mtlprune.io.files import RunError, json_text, plain, read_json, reading, write_text
from mtlprune.reports.analyses import Section
from mtlprune.runs.results import Result
from mtlprune.statistics.permutation import corrected, layered_rank_test
from mtlprune.statistics.significance import LEVEL

FILE = "heads.json"
DIGITS = 6
"""Significant digits of numbers in FILE."""
FEWEST = 3
"""Heads that two columns must share to be compared."""
SHOWN = 40
"""Correlations listed at most; all are in FILE."""
SOURCES = sorted((one.name for one in usable() if one.columns != ()), reverse=True)
"""Analyses with columns."""


@dataclass(eq=False)
class HeadTable:
    """The join; row (l, a) is head a + 1 of layer l + 1 in the encoder's original numbering."""

    columns: list[HeadColumn] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, columns: Iterable[HeadColumn], where: str) -> None:
        """Add columns. Raises RunError: other layers or heads than before, or a heading that is there already."""
        for column in columns:
            first = self.columns[0] if self.columns else column
            if column.values.shape != first.values.shape:
                (layers, heads), (here, a_layer) = first.values.shape, column.values.shape
                raise RunError(
                    f"{where} is about an encoder of {here} × {a_layer} heads, but {first.name!r} about one of "
                    f"{layers} × {heads}; heads of different encoders do not correspond, so leave one out"
                )
            if any(column.name == other.name for other in self.columns):
                raise RunError(f"{where}: {column.name!r} is there twice; name one folder of each analysis")
            self.columns.append(column)

    def read(self, folder: Path, of: str, names: Collection[str] = SOURCES) -> None:
        """Add what every analysis in a folder says of one encoder's heads; claims and gradients are those of all runs.

        Raises:
            RunError: no result of ``names`` there, a damaged one, or none of this encoder.
        """
        here = [name for name in names if (folder / f"{name}.json").is_file()]
        if not here:
            files = ", ".join(f"{name}.json" for name in names)
            raise RunError(f"{folder} holds none of {files}; name a folder that an analysis wrote (--out DIR)")
        lacking: dict[str, list[str]] = {}
        for name in here:
            path, analysis = folder / f"{name}.json", find(name)
            with reading(path, RunError, "make it anew"):
                result = read(folder, name)
                labels = [one["encoder"] for one in result.about["encoders"]]
                one = "encoders" in analysis.needs and "decoders" not in analysis.needs  # else columns of all runs
                if one and of not in labels:
                    lacking[name] = labels
                    continue
                make = analysis.show.head_columns if analysis.columns is None else measured
                columns, notes = make(result, of)
            self.notes += [*notes, *([] if columns else [f"{path} says nothing of single heads of {of}."])]
            self.add(columns, str(path))
        if len(lacking) == len(here):
            expected = " or ".join(dict.fromkeys(label for labels in lacking.values() for label in labels))
            raise RunError(f"{folder} has no result of {of!r}; expected --of {expected}")
        self.notes += [f"{folder / name}.json has no result of {of}." for name in lacking]


def measured(result: Result, of: str) -> tuple[list[HeadColumn], list[str]]:
    """The columns that the record of an analysis names, means where an encoder was read with several seeds; notes."""
    analysis: Analysis = find(result.analysis)
    each = [result.grids(one) for one in result.about["encoders"] if one["encoder"] == of]
    columns = []
    for column in analysis.columns or ():
        grids = [grids[column.measure] for grids in each if column.measure in grids]
        if grids and not np.isnan(grids[0]).all():
            mean = np.mean(grids, axis=0)
            columns.append(HeadColumn(column.title, analysis.name, mean, column.tested, column.meaning))
    return columns, [f"{analysis.name}.json: means of {len(each)} results of {of}."] if len(each) > 1 else []


def correlations(columns: Sequence[HeadColumn], permutations: int = 9999, seed: int = 0) -> pd.DataFrame:
    """Spearman's correlation within layers of every two tested columns, the surest first, those of two sources before.

    Returns:
        ``first``, ``second``; ``one_source``, whether both come from one source, and so may go together by
        construction; ``heads``, K; ``rho`` and ``p``, NaN where a column does not vary within any layer; ``q``,
        Benjamini and Hochberg over the pairs from one source or over those from two.
    """
    rows = []
    for one, other in combinations([column for column in columns if column.tested], 2):
        ranks = layered_rank_test(one.values, other.values, permutations, (seed, 7), FEWEST)
        rows.append((one.name, other.name, one.source == other.source, ranks.heads, ranks.value, ranks.p))
    compared = pd.DataFrame(rows, columns=["first", "second", "one_source", "heads", "rho", "p"])
    compared["q"] = compared.groupby("one_source")["p"].transform(lambda p: corrected(p.to_numpy()))
    order = compared.assign(size=-compared["rho"].abs()).sort_values(["one_source", "p", "size"])
    return compared.loc[order.index]


def tree(table: HeadTable, compared: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The content of FILE; NaN becomes null."""
    numbers = [column for column in table.columns if column.values.dtype.kind == "f"]
    words = {column.name: column.values.tolist() for column in table.columns if column not in numbers}
    content = {
        "shape": table.columns[0].values.shape,
        "settings": settings,
        "columns": list(map(vars, numbers)),
        "words": words,
        "correlations": compared.to_dict("records"),
        "notes": table.notes,
    }
    return dict(plain(content, DIGITS))


# -- how it is shown ---------------------------------------------------------------------------------------------------


def read_heads(folder: Path) -> dict[str, Any]:
    """The content of what ``mtlprune heads`` wrote. Raises RunError: no such file, or a damaged one."""
    path, remedy = folder / FILE, "run `mtlprune heads` again"
    if not path.is_file():
        raise RunError(f"{path} is missing; `mtlprune heads ... --out {folder}` makes it")
    with reading(path, RunError, remedy):
        content: dict[str, Any] = read_json(path, RunError, remedy)
        [content[name] for name in ("columns", "shape", "settings", "words", "correlations", "notes")]
    return content


def section(folder: Path) -> Section:
    """From the folder that ``mtlprune heads`` wrote. Raises RunError: no result there, or a damaged one."""
    content = read_heads(folder)
    return Section("head-table", "Every head", [lead(content), heads(content), *tables(content), *content["notes"]])


def lead(content: Mapping[str, Any]) -> str:
    """Sentences: what the tables are, and what the correlations come to."""
    across = [pair for pair in content["correlations"] if not pair["one_source"] and pair["p"] is not None]
    few = sum(pair["q"] < LEVEL for pair in across)
    settings = content["settings"]
    answer = (
        f"Of {len(across)} pairs of columns from different sources, {few} go together within layers at q < {LEVEL:g} "
        f"(Spearman, {settings['permutations']} permutations of heads within layers, Benjamini and Hochberg)."
        if across
        else "There are no two sources with numbers that vary within layers, so nothing is compared between them."
    )
    of = settings["of"]
    return f"One row per head; claims and gradients are of the runs, probes and other analyses of {of}. {answer}"


def tables(content: Mapping[str, Any]) -> list[Grid]:
    """Correlations, of two sources and of one, and what the columns are; those without a row are left out."""
    named = pd.DataFrame([one for one in content["columns"] if one.get("meaning")])
    about = {"column": "name", "source": "source", "what it is": "meaning"}
    meanings = Grid.of("Columns", named, about, "The reduction that makes each of them.", texts=3)
    return [made for made in (pairs(content, False), pairs(content, True), meanings) if made.rows]


def heads(content: Mapping[str, Any], digits: int = 3) -> Grid:
    """One row a head, numbers first to last by source, then words."""
    layers, a_layer = content["shape"]
    rows = []
    for layer, head in np.ndindex(layers, a_layer):
        values = [column["values"][layer][head] for column in content["columns"]]
        words = [words[layer][head] or "–" for words in content["words"].values()]
        shown = ["–" if value is None else f"{value:.{digits}g}" for value in values]
        rows.append([str(layer + 1), str(head + 1), *shown, *words])
    header = ["layer", "head", *(column["name"] for column in content["columns"]), *content["words"]]
    caption = "Layers and heads are counted from 1."
    return Grid(header, rows, 0, "All heads", caption, texts_last=len(content["words"]))


def pairs(content: Mapping[str, Any], one_source: bool) -> Grid:
    """Correlations below LEVEL after correction; the ten closest where there is none."""
    every = [pair for pair in content["correlations"] if pair["one_source"] is one_source and pair["p"] is not None]
    clear = [pair for pair in every if pair["q"] < LEVEL]
    shown = (clear or every[:10])[:SHOWN]
    what = "one source (they may go together by construction)" if one_source else "different sources"
    many = f"{len(clear)} of {len(every)} pairs have" if clear else f"None of {len(every)} has"
    four = "{:.4f}".format
    return Grid.of(
        f"Columns of {what}",
        pd.DataFrame(shown),
        {
            **{"column": "first", "and": "second", "heads": ("heads", str), "ρ": ("rho", "{:+.2f}".format)},
            **{"p": ("p", four), "q": ("q", four)},
        },
        f"Spearman's ρ within layers. {many} q < {LEVEL:g}; {len(shown)} shown.",
        texts=2,
    )


@markdown_document
def markdown(content: Mapping[str, Any]) -> str:
    """heads.md."""
    parts = [table.part() for table in [*tables(content), heads(content)]]  # 72 rows or more last
    return "\n".join(["# Every head\n", f"{lead(content)}\n", *parts, *(f"{note}\n" for note in content["notes"])])


def comma_separated(content: Mapping[str, Any]) -> str:
    """heads.csv: as in the table, with six digits; empty where nothing is known."""
    grid = heads(content, DIGITS)
    rows = pd.DataFrame(grid.rows, columns=grid.header).replace("–", "")
    return printable_lines(rows.to_csv(index=False, lineterminator="\n"))


def write(folder: Path, content: Mapping[str, Any]) -> None:
    """heads.csv, heads.md and, last, FILE. Raises RunError: the disk refuses."""
    files = {"heads.csv": comma_separated(content), "heads.md": markdown(content), FILE: json_text(content)}
    for name, text in files.items():
        write_text(folder / name, text)
