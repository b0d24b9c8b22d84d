"""The result of an analysis: tidy tables (frames) that are stored in one JSON file, or as Parquet files if large.

    write_result(folder, Result("smoothing", about, {"heads": frame}))   # smoothing.json (and smoothing-heads.parquet)
    result = read_result(folder / "smoothing.json")
    result.wide("heads")                                                 # one row per head, one column per measure

The columns in KEYS identify what a row describes, and the columns in VALUES hold what was measured. Layers and heads
count from 1, and layer 0 is the embeddings. Frames without the column ``measure`` (sentences, point clouds, spectra)
are wide: every column that is not in KEYS is a value.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mtlprune.errors import plural
from mtlprune.io import files

KEYS: tuple[str, ...] = ("encoder", "run", "seed", "split", "layer", "head", "task", "label", "sentence")
KEYS += ("step", "mode", "control", "direction", "term", "other")
VALUES = ("measure", "value", "low", "high", "p", "q", "n")
_FORMAT = 1
EMBEDDED_ROWS = 4_000
"""Largest number of rows with which a frame is part of the JSON file, where it can be read and compared as text."""
_HINT_RERUN = "run the analysis again"

Grid = NDArray[np.float64]  # (L, A)
Part = tuple[Mapping[str, Any], Mapping[str, pd.DataFrame]]
"""Keys, such as those of an encoder, and frames by name. All rows of these frames share the keys."""


class ResultError(files.RunError):
    """A result cannot be read. The message names the reason and the remedy."""


@dataclass(frozen=True, eq=False)
class Result:
    """The result of an analysis, with tidy tables, and with the data and settings from which the tables were computed.

    Attributes:
        analysis: name of the analysis, with which the names of its files begin.
        about: provenance and settings, in types that JSON can hold: ``corpus``, ``split``, ``sentences``,
            ``settings``, ``notes``, ... and ``encoders``, a list with one entry for each encoder in the order of
            display. An entry has ``encoder`` (its label), ``run``, ``seed``, ``layers``, ``heads`` (per layer) and
            ``open`` (number of heads that are not closed).
        frames: data frames by name.
    """

    analysis: str
    about: Mapping[str, Any]
    frames: Mapping[str, pd.DataFrame]

    def __repr__(self) -> str:
        sizes = (f"{name} ({len(frame)} × {len(frame.columns)})" for name, frame in self.frames.items())
        return f"{self.analysis}: {', '.join(sizes)}"

    def with_frames(self, **frames: pd.DataFrame) -> "Result":
        """Return a copy of the result with more frames. Empty frames are left out."""
        return replace(self, frames={**self.frames, **{name: frame for name, frame in frames.items() if len(frame)}})

    def frame(self, name: str, *columns: str) -> pd.DataFrame:
        """Return a frame by name, or an empty frame with these columns if the result has no frame of this name."""
        return self.frames.get(name, pd.DataFrame(columns=list(columns)))

    @property
    def withdrawn(self) -> list[str]:
        """Notes that retract the result. They are displayed first."""
        return [note for note in self.about["notes"] if note.startswith("Withdrawn")]

    @cached_property
    def names(self) -> list[str]:
        """Displayed name of each encoder: its label, with the seed if labels repeat, and with the number of open heads
        if some heads are closed."""
        encoders = self.about["encoders"]
        labels = [entry["encoder"] for entry in encoders]
        names = []
        for entry in encoders:
            seed = entry.get("name") or entry["seed"]
            name = entry["encoder"] + (f", seed {seed}" if labels.count(entry["encoder"]) > 1 else "")
            total = entry["layers"] * entry["heads"]
            names.append(name if entry["open"] == total else f"{name}, {entry['open']} of {total} heads")
        return names

    @property
    def source(self) -> str:
        """Description of the sentences that the analysis read."""
        return f"{plural(self.about['sentences'], 'sentence')} of {self.about['split']} of {self.about['corpus']}"

    @property
    def origin(self) -> str:
        """Description of the sentences that the analysis read and left out, and of the seed."""
        corpus, left_out = self.about["fingerprint"][:8], self.about["too_long"]
        return (
            f"The analysis read {self.source} ({corpus}) and left out {left_out} that are too long. The seed is "
            f"{self.about['seed']}."
        )

    def with_names(self, frame: str) -> pd.DataFrame:
        """Return a frame with a first column ``name`` (the encoder), ordered by encoder; empty if there is no such
        frame.

        A run with several gate sets counts as several encoders. If a frame describes such a run as a whole, ``name``
        is the label of the run.
        """
        if frame not in self.frames:
            return pd.DataFrame({"name": pd.Categorical([], self.names), "measure": [], "value": []})
        name_of_pair = {
            (entry["encoder"], entry["seed"]): name
            for entry, name in zip(self.about["encoders"], self.names, strict=True)
        }
        rows = self.frames[frame]
        pairs = list(zip(rows["encoder"], rows["seed"], strict=True))
        repeated = [label for label, _ in dict.fromkeys(pairs) if (label, _) not in name_of_pair]
        name_of_pair |= {
            pair: pair[0] if repeated.count(pair[0]) == 1 else f"{pair[0]}, seed {pair[1]}"
            for pair in {*pairs} - {*name_of_pair}
        }
        names = [name_of_pair[pair] for pair in pairs]
        with_name_column = rows.assign(
            name=pd.Categorical(names, list(dict.fromkeys([*self.names, *names])), ordered=True)
        )
        return with_name_column[["name", *rows.columns]].sort_values("name", kind="stable", ignore_index=True)

    def wide(self, frame: str, column: str = "value") -> pd.DataFrame:
        """Return a data frame with one row for each combination of keys, and one column for each measure.

        The first column is ``name`` (the encoder). Missing measures are NaN.

        Args:
            column: the column whose entries are shown: "value", or another one of VALUES, such as "p".
        """
        long = self.with_names(frame)
        # A frame may lack the column altogether, as a frame without tests lacks p.
        long = long if column in long else long.assign(**{column: math.nan})
        keys = [key for key in ("name", *KEYS) if key in long]
        rows = long[keys].drop_duplicates(ignore_index=True)
        number = long.merge(rows.reset_index(), on=keys, how="left")["index"]
        table = long.assign(row=number.to_numpy()).pivot(index="row", columns="measure", values=column)
        return pd.concat([rows, table.rename_axis(index=None, columns=None)], axis=1)

    def rows_with_measure(self, frame: str, measure: str) -> pd.DataFrame:
        """Return the rows of ``wide`` in which a measure is not NaN."""
        rows = self.wide(frame)
        return rows[rows[measure].notna()] if measure in rows else rows[:0]

    def dashed(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Add the column ``closed`` to a frame of ``with_names`` or ``wide``: True if the encoder has closed heads.

        Charts draw the lines of such encoders dashed.
        """
        entries = zip(self.names, self.about["encoders"], strict=True)
        closed = {name for name, entry in entries if entry["open"] < entry["layers"] * entry["heads"]}
        return frame.assign(closed=frame["name"].isin(closed))

    def grids(self, encoder: Mapping[str, Any], frame: str = "heads") -> dict[str, Grid]:
        """Return a grid (L, A) for each measure of an entry of ``about["encoders"]``, as means over tasks. Heads
        without a value are NaN."""
        all_rows = self.frame(frame, "encoder", "seed")
        keys = [key for key in ("encoder", "run", "seed") if key in all_rows]
        own_rows = all_rows[(all_rows[keys] == [encoder[key] for key in keys]).all(axis=1)]
        grids = {}
        for measure, rows in own_rows.groupby("measure", sort=False) if len(own_rows) else ():
            grids[str(measure)] = grid = np.full((encoder["layers"], encoder["heads"]), np.nan)
            means = rows.groupby(["layer", "head"], as_index=False)["value"].mean()
            grid[means["layer"] - 1, means["head"] - 1] = means["value"]
        return grids


def head_rows(grids: Mapping[str, Grid]) -> pd.DataFrame:
    """Turn ``{measure: grid (L, A)}`` into a frame with the columns layer, head, measure and value."""
    parts = []
    for measure, grid in grids.items():
        layers, heads = np.indices(grid.shape).reshape(2, -1) + 1
        parts.append(pd.DataFrame({"layer": layers, "head": heads, "measure": measure, "value": grid.ravel()}))
    return pd.concat(parts, ignore_index=True)


def long_frame(rows: Sequence[Mapping[str, Any]], *keys: str) -> pd.DataFrame:
    """Turn rows with keys and one column for each measure into a tidy frame with the columns measure and value.

    Args:
        rows: key or measure → value; None for a measure without a value.
        keys: the columns that are keys.
    """
    frame = pd.DataFrame(rows, columns=None if rows else keys)
    return frame.melt([*keys], var_name="measure").astype({"value": float})


def joined(parts: Iterable[Part]) -> dict[str, pd.DataFrame]:
    """Concatenate the frames of the same name, after adding the keys of each part as first columns.

    Empty frames are left out.
    """
    of_name: dict[str, list[pd.DataFrame]] = {}
    for keys, frames in parts:
        for name, frame in frames.items():
            if len(frame):
                of_name.setdefault(name, []).append(pd.DataFrame(dict(keys), frame.index).join(frame))
    return {name: pd.concat(frames_of_name, ignore_index=True) for name, frames_of_name in of_name.items()}


def quantile_rows(measure: str, values: NDArray[np.float64]) -> Iterable[dict[str, Any]]:
    """Yield rows that summarise one value per sentence: the mean, ``_median`` and ``_sd`` (standard deviation).

    In the row of the mean, ``low`` and ``high`` are the 5 % and 95 % quantiles of the values. NaN is left out, and
    ``n`` counts the values that remain. The mean and the quantiles are NaN without values, and the standard deviation
    (with n − 1) is NaN with fewer than two.
    """
    finite = values[~np.isnan(values)]
    low, median, high = np.quantile(finite, (0.05, 0.5, 0.95)) if len(finite) else (math.nan,) * 3
    mean = float(finite.mean()) if len(finite) else math.nan
    deviation = float(finite.std(ddof=1)) if len(finite) > 1 else math.nan
    yield {"measure": measure, "value": mean, "low": low, "high": high, "n": len(finite)}
    yield {"measure": f"{measure}_median", "value": median, "n": len(finite)}
    yield {"measure": f"{measure}_sd", "value": deviation, "n": len(finite)}


def write_result(folder: Path, result: Result) -> None:
    """Write a result as ``NAME.json``, where NAME is the name of the analysis.

    Frames with many rows are first written as ``NAME-FRAME.parquet``, and the JSON file holds their SHA-256. Files are
    replaced atomically. Figures of an earlier result of the same name are removed. Values of float64 are rounded to six
    significant digits, unless a frame has ``attrs["exact"]``.

    Raises:
        RunError: the files cannot be written.
        ValueError: a tidy frame has columns that are neither keys nor values, or two rows with the same keys and
            measure.
    """
    stored, tables = {}, {}
    with files.one_writer(folder):
        files.remove(*(path for path in folder.glob(f"{result.analysis}-*") if path.suffix in (".png", ".svg", ".pdf")))
        for name, frame in result.frames.items():
            keys = _keys(name, frame)
            values = [column for column in frame.columns if column not in keys]
            rounded = frame if frame.attrs.get("exact") else _six_digits(frame)
            stored[name] = {"rows": len(frame), "keys": keys, "values": values}
            if (types := _embedded_types(rounded)) is not None:
                tables[name] = rounded
                stored[name] |= {"types": types, "table": _PLACEHOLDER + name}
                continue
            path = folder / f"{result.analysis}-{name}.parquet"
            with files.replacing(path) as staging:
                rounded.to_parquet(staging, index=False)
            stored[name] |= {"sha256": files.file_sha256(path)}
        content = {"analysis": result.analysis, "format": _FORMAT, **result.about, "frames": stored}
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1)
        for name, table in tables.items():
            text = text.replace(json.dumps(_PLACEHOLDER + name, ensure_ascii=False), _rows_as_lines(table))
        files.write_text(folder / f"{result.analysis}.json", f"{text}\n")
        written_files = {f"{result.analysis}-{name}.parquet" for name in stored if name not in tables}
        files.remove(*(path for path in folder.glob(f"{result.analysis}-*.parquet") if path.name not in written_files))


_PLACEHOLDER = "the table of "
"""Stands in the JSON for a table until the text is replaced by the table's rows, one on each line."""


def _embedded_types(frame: pd.DataFrame) -> dict[str, str] | None:
    """Return the type of each column if a table is small and JSON can hold all of its values exactly, else None."""
    types = {}
    for name, column in frame.items():
        kind = str(column.dtype)
        if kind in ("int64", "Int64", "bool", "float64") or (kind == "object" and column.isna().all()):
            types[str(name)] = kind
        elif kind in ("object", "str") and all(isinstance(value, str) for value in column.dropna()):
            types[str(name)] = "str"
        else:
            return None
    return types if len(frame) <= EMBEDDED_ROWS else None


def _rows_as_lines(frame: pd.DataFrame) -> str:
    """Return the rows of a table as JSON with one row on each line, so that version control shows changed rows.

    JSON has no infinity, so it is written as the text "inf", which becomes a number again when the column is read.
    """
    columns = [
        [
            None if missing else str(value) if value in (math.inf, -math.inf) else value
            for value, missing in zip(column.tolist(), column.isna(), strict=True)
        ]
        for _, column in frame.items()
    ]
    lines = (json.dumps(row, ensure_ascii=False, allow_nan=False) for row in zip(*columns, strict=True))
    return "[\n   " + ",\n   ".join(lines) + "\n  ]"


def read_result(path: Path) -> Result:
    """Read a result that ``write_result`` wrote, by the path of its JSON file.

    Raises:
        ResultError: the file is missing, damaged or of another format, or a Parquet file is missing or is not the one
            that was written with it.
    """
    content = files.read_json(path, ResultError, _HINT_RERUN)
    with files.reading(path, ResultError, _HINT_RERUN):
        if content["format"] != _FORMAT:
            raise ResultError(
                f"{path}: expected format {_FORMAT}, found {content['format']!r}; install a newer mtlprune"
            )
        name, stored = str(content["analysis"]), content["frames"]
        content_about = {key: value for key, value in content.items() if key not in ("analysis", "format", "frames")}
        content_about["encoders"], content_about["notes"]  # raises KeyError here, because every display needs both
    frames = {}
    for frame, entry in stored.items():
        if "table" in entry:
            with files.reading(path, ResultError, _HINT_RERUN):
                rows = pd.DataFrame(entry["table"], columns=list(entry["types"]), dtype=object)
                frames[frame] = rows.astype(entry["types"])
            continue
        table = path.with_name(f"{name}-{frame}.parquet")
        with files.reading(table, ResultError, _HINT_RERUN):
            files.verify_file(table, entry["sha256"], _HINT_RERUN)
            frames[frame] = pd.read_parquet(table)
    return Result(name, content_about, frames)


def _keys(name: str, frame: pd.DataFrame) -> list[str]:
    """Return the names of a frame's key columns.

    Raises:
        ValueError: a tidy frame has unknown columns, or two rows with the same keys and measure.
    """
    keys = [column for column in frame.columns if column in KEYS]
    if "measure" in frame:
        if unknown := set(frame.columns) - set(KEYS) - set(VALUES):
            raise ValueError(f"frame {name}: {', '.join(sorted(unknown))} is not a key or a value of a tidy frame")
        if (is_repeated := frame.duplicated([*keys, "measure"])).any():
            raise ValueError(f"frame {name}: two rows for {frame[is_repeated].iloc[0].to_dict()}")
    return keys


def _six_digits(frame: pd.DataFrame) -> pd.DataFrame:
    columns: Sequence[str] = frame.select_dtypes("float64").columns
    return frame.assign(**{name: [float(f"{value:.6g}") for value in frame[name]] for name in columns})
