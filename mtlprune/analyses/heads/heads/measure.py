"""Join the columns that claims and analyses have about heads into one table, and correlate them within layers."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mtlprune.analyses import ANALYSES
from mtlprune.analyses.analysis import HeadColumn, Request, find, read, usable
from mtlprune.analyses.harness.ablation import ablation_columns
from mtlprune.analyses.heads.claims.maths import claim_columns
from mtlprune.evaluation.ablations import Closed
from mtlprune.io.files import RunError, reading
from mtlprune.runs.claims import load_claims
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.results import Result, head_rows
from mtlprune.statistics.permutation import benjamini_hochberg, layered_rank_test

_FEWEST = 3
"""The fewest heads with a value in both columns for which two columns are correlated."""


def measure(request: Request) -> Result:
    """Join the columns of all runs and folders in ``request.names``. ``frames.yaml`` declares the frames.

    Raises:
        RunError: there is nothing to join, or if results are damaged or about different encoders.
    """
    folders = [
        name
        for name in map(Path, request.names)
        if any((name / f"{analysis_name}.json").is_file() for analysis_name in ANALYSES)
    ]
    runs = [name for name in map(Path, request.names) if name not in folders]
    kind: Closed | None = request.options.closed
    sources = sorted((analysis.name for analysis in usable() if analysis.columns != ()), reverse=True)
    table = HeadTable()
    runs_without_gates = [name for name in runs if kind is not None and not RunFolder.existing(name).has("gates.jsonl")]
    if kind is not None:
        if not runs_without_gates:
            raise RunError(
                f"closed={kind}: expected finished runs without gates, whose heads are all open, found none; name such "
                "runs"
            )
        table.add(ablation_columns(list(map(str, runs_without_gates)), kind, request), "the runs without gates")
    if runs := [name for name in runs if name not in runs_without_gates]:
        table.add(claim_columns(load_claims(runs)), "the runs with gates")
        sources.remove("claims")
    for folder in folders:
        table.read(folder, request.options.of, sources)
    present = {column.source for column in table.columns}
    if absent := [name for name in (*sources, "claims") if name not in present]:
        table.notes.append(
            f"These sources were not named, so the table has no columns of them: {', '.join(dict.fromkeys(absent))}."
        )
    if not table.columns:
        raise RunError("analyze heads: expected runs with gates, or folders that analyses wrote, found none; name some")
    values: dict[str, Any] = {column.name: column.values for column in table.columns}
    numbers = {name: grid for name, grid in values.items() if grid.dtype.kind == "f"}
    words = [head_rows({name: grid}) for name, grid in values.items() if name not in numbers]
    about = {
        "layers": table.columns[0].values.shape[0],
        "heads": table.columns[0].values.shape[1],
        "settings": {**request.options.model_dump(), "seed": request.seed, "sources": list(map(str, request.names))},
        "encoders": [],
        "notes": table.notes,
    }
    frames = {
        "heads": head_rows(numbers),
        "words": pd.concat([pd.DataFrame(), *words]).rename(columns={"measure": "term", "value": "words"}),
        "columns": pd.DataFrame(
            {"term": column.name, "source": column.source, "meaning": column.meaning} for column in table.columns
        ),
        "correlations": correlations(table.columns, request.options.permutations, request.seed),
    }
    return Result("heads", about, {name: frame for name, frame in frames.items() if len(frame)})


@dataclass(eq=False)
class HeadTable:
    """Columns of the table of heads, with notes about them.

    Element (l, a) of a column is head a + 1 of layer l + 1 in the encoder's original numbering.
    """

    columns: list[HeadColumn] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, columns: Iterable[HeadColumn], where: str) -> None:
        """Add columns to the table.

        Args:
            where: source of the columns, which error messages name.

        Raises:
            RunError: the numbers of layers or heads differ from those of earlier columns, or if a name is taken.
        """
        for column in columns:
            first = self.columns[0] if self.columns else column
            if column.values.shape != first.values.shape:
                (layers, heads), (here, a_layer) = first.values.shape, column.values.shape
                raise RunError(
                    f"{where} is about an encoder of {here} × {a_layer} heads, but {first.name!r} about one of "
                    f"{layers} × {heads}; leave one of the two out, because heads of different encoders do not "
                    "correspond"
                )
            if any(column.name == existing.name for existing in self.columns):
                raise RunError(f"{where}: found {column.name!r} twice; name one folder of each analysis")
            self.columns.append(column)

    def read(self, folder: Path, of: str, names: Collection[str]) -> None:
        """Add the columns of the analyses in a folder for one encoder. Claims and gradients add columns of all runs.

        Args:
            of: label of the encoder.
            names: names of the analyses that are read.

        Raises:
            RunError: the folder has no result of these analyses, a damaged result, or none of this encoder.
        """
        found_names = [name for name in names if (folder / f"{name}.json").is_file()]
        if not found_names:
            files = ", ".join(f"{name}.json" for name in names)
            raise RunError(
                f"{folder}: expected one of {files}, found none; name a folder that an analysis wrote (--out DIR)"
            )
        missing_labels: dict[str, list[str]] = {}
        for name in found_names:
            path, analysis = folder / f"{name}.json", find(name)
            with reading(path, RunError, "run the analysis again"):
                result = read(folder, name)
                labels = [entry["encoder"] for entry in result.about["encoders"]]
                # Only analyses of encoders have columns of one encoder; claims and gradients have those of all runs.
                is_of_one_encoder = "encoders" in analysis.needs and "decoders" not in analysis.needs
                if is_of_one_encoder and of not in labels:
                    missing_labels[name] = labels
                    continue
                make = analysis.show.head_columns if analysis.columns is None else _declared_columns
                columns, notes = make(result, of)
            self.notes += [*notes, *([] if columns else [f"{path} has no measures of single heads of {of}."])]
            self.add(columns, str(path))
        if len(missing_labels) == len(found_names):
            expected = " or ".join(dict.fromkeys(label for labels in missing_labels.values() for label in labels))
            raise RunError(f"{folder} has no result of {of!r}; expected of={expected}")
        self.notes += [f"{folder / name}.json has no result of {of}." for name in missing_labels]


def _declared_columns(result: Result, of: str) -> tuple[list[HeadColumn], list[str]]:
    """Return the columns that the record of an analysis declares, for the encoder ``of``, and notes in sentences.

    If the Result has several seeds of this encoder, columns are means over seeds.
    """
    analysis = find(result.analysis)
    grids_of_runs = [result.grids(entry) for entry in result.about["encoders"] if entry["encoder"] == of]
    columns = []
    for column in analysis.columns or ():
        grids = [grids[column.measure] for grids in grids_of_runs if column.measure in grids]
        if grids and not np.isnan(grids[0]).all():
            mean = np.mean(grids, axis=0)
            columns.append(HeadColumn(column.title, analysis.name, mean, column.tested, column.meaning))
    note = f"{analysis.name}.json: means of {len(grids_of_runs)} results of {of}."
    return columns, [note] if len(grids_of_runs) > 1 else []


def correlations(columns: Sequence[HeadColumn], permutations: int = 9999, seed: int = 0) -> pd.DataFrame:
    """Compute Spearman's correlation within layers of every two tested columns.

    Returns:
        One row for each pair, with the columns ``first`` and ``second`` (names of the two columns); ``one_source``,
        whether both come from one source, so that they may be correlated by construction; ``heads``, the number of
        heads with a value in both columns; ``rho`` and ``p``, NaN if a column varies within no layer; and ``q``
        (Benjamini and Hochberg, separately for pairs from one source and from two). Pairs from two sources come first,
        and within these two parts the smallest p.
    """
    rows = []
    for first, second in combinations([column for column in columns if column.tested], 2):
        ranks = layered_rank_test(first.values, second.values, permutations, (seed, 7), _FEWEST)
        rows.append((first.name, second.name, first.source == second.source, ranks.heads, ranks.value, ranks.p))
    compared = pd.DataFrame(rows, columns=["first", "second", "one_source", "heads", "rho", "p"])
    compared["q"] = compared.groupby("one_source")["p"].transform(lambda p: benjamini_hochberg(p.to_numpy()))
    order = compared.assign(size=-compared["rho"].abs()).sort_values(["one_source", "p", "size"])
    return compared.loc[order.index]
