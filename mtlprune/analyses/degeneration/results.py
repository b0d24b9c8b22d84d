"""From what a survey of degeneration found to files: ``degeneration.json``, ``heads.parquet``, ``labels.parquet``.

Layers and heads count from 1 in files; layer 0 are the embeddings. NaN is null in JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlprune.analyses.degeneration.cone import Cone
from mtlprune.analyses.degeneration.labels import Decoder
from mtlprune.analyses.degeneration.survey import Degeneration
from mtlprune.files import replacing, write_json

DIGITS = 6
SUMMARY, HEADS, LABELS = "degeneration.json", "heads.parquet", "labels.parquet"
ROWS = "words (means of their sub-words), without [CLS] and [SEP]; of token embeddings, all of the vocabulary"
RANKS = 40
"""Singular values of a spectrum that stand in the summary, at evenly spaced logarithms of their ranks."""


def encoder(found: Degeneration, reference: Degeneration | None) -> dict[str, Any]:
    """One entry of ``encoders``.

    Args:
        reference: the untuned encoder whose negative direction this one's is compared with.
    """
    shape = list(found.heads["gate"].shape) if found.heads else [0, 0]
    return {
        "label": found.label,
        "seed": found.seed,
        "run": found.run,
        "kind": found.kind,
        "shape": shape,
        "embeddings": found.embeddings,
        "hidden": [{"layer": layer} | row for layer, row in enumerate(found.hidden)],
        "heads": [
            {"layer": layer + 1, "head": head + 1} | {name: float(grid[layer, head]) for name, grid in _grids(found)}
            for layer, head in np.ndindex(*shape)
        ],
        "spectra": {name: thinned(values) for name, values in found.spectra.items()},
        "points": {name: rounded(values) for name, values in found.points.items()},
        "cone": None if found.cone is None else cone(found.cone, None if reference is None else reference.cone),
    }


def _grids(found: Degeneration) -> list[tuple[str, NDArray[np.float64]]]:
    return [*found.heads.items(), *([("cone", found.cone.heads)] if found.cone is not None else [])]


def cone(found: Cone, reference: Cone | None) -> dict[str, Any]:
    """Shares of the mean vector, and the LayerNorms' hyperplanes."""
    entry: dict[str, Any] = {
        "terms": [dict(zip("ihfc", row, strict=True)) | {"layer": k} for k, row in enumerate(found.terms.tolist())],
        "planes": [
            {"layer": layer, "offset": plane.offset, "distance": plane.distance, "largest": plane.largest}
            | {"spread": spread, "angle": angle}
            for layer, (plane, spread, angle) in enumerate(
                zip(found.planes, found.spreads, found.angles, strict=True), 1
            )
            if plane is not None
        ],
    }
    if reference is not None:
        pairs = {"mean": (found.means[-1], reference.means[-1]), "direction": (found.direction, reference.direction)}
        entry["to_untuned"] = {
            name: angle(first, second) for name, (first, second) in pairs.items() if None not in (first, second)
        }
    return entry


def angle(first: Any, second: Any) -> float:
    """Degrees between two vectors."""
    cosine = float(first @ second / (first.norm() * second.norm()))
    return float(np.degrees(np.arccos(np.clip(cosine, -1, 1))))


def decoder(found: Decoder) -> dict[str, Any]:
    """One entry of ``decoders``."""
    return {
        "task": found.task,
        "label": found.label,
        "seed": found.seed,
        "run": found.run,
        "matrix": found.matrix,
        "slope": found.slope,
        "spectrum": thinned(found.spectrum),
        "points": rounded(found.points),
        "labels": [
            {name: column[place] for name, column in columns(found).items()} for place in range(len(found.names))
        ],
    }


def columns(found: Decoder) -> dict[str, list[Any]]:
    """A row a label."""
    return {
        "name": found.names,
        "frequency": found.frequency.tolist(),
        "norm": found.norm.tolist(),
        "cosine": found.cosine.tolist(),
        "rival": [found.names[place] for place in found.rival],
        "rival_cosine": found.rival_cosine.tolist(),
        "gold": found.gold.tolist(),
        "f1": found.f1.tolist(),
    }


def thinned(spectrum: NDArray[np.float64]) -> list[list[float]]:
    """Rank and value at RANKS evenly spaced logarithms of the rank."""
    ranks = np.unique(np.geomspace(1, len(spectrum), min(RANKS, len(spectrum))).round().astype(int))
    return [[int(k), round(float(spectrum[k - 1]), 5)] for k in ranks]


def rounded(points: NDArray[np.float64]) -> list[list[float]]:
    """Four digits are enough to draw."""
    return [[float(f"{x:.4g}") for x in row] for row in points]


def write(folder: Path, content: Mapping[str, Any], found: Sequence[Degeneration], decoders: Sequence[Decoder]) -> None:
    """All files, each whole or not at all; the summary last."""
    heads = [
        {"encoder": one.label, "seed": one.seed, "run": one.run, "layer": layer + 1, "head": head + 1}
        | {name: float(grid[layer, head]) for name, grid in _grids(one)}
        for one in found
        if one.heads
        for layer, head in np.ndindex(*one.heads["gate"].shape)
    ]
    labels = [
        {"run": one.run, "encoder": one.label, "seed": one.seed, "task": one.task} | dict(zip(table, row, strict=True))
        for one in decoders
        for table in [columns(one)]
        for row in zip(*table.values(), strict=True)
    ]
    _parquet(folder / HEADS, heads)
    _parquet(folder / LABELS, labels)
    write_json(folder / SUMMARY, content, DIGITS)


def _parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    """A table, where there is anything in it; one that lies there from another run goes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not rows:
        path.unlink(missing_ok=True)
        return
    with replacing(path) as beside:
        pq.write_table(pa.Table.from_pylist(rows), beside)
