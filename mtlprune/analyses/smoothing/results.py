"""From what a survey of smoothing found to files: ``smoothing.json`` and ``sentences.parquet``.

Layers and heads count from 1 in files; layer 0 are the embeddings. NaN is null in JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mtlprune.files import replacing

if TYPE_CHECKING:
    from mtlprune.analyses.smoothing.survey import Smoothing

SUMMARY, TABLE = "smoothing.json", "sentences.parquet"
POINTS = 120
"""Sentences whose σ₁σ₂ and CosSim stand in the summary, for the figure."""
TOKENS = (
    "sub-words with [CLS] and [SEP], padding left out; cosine_pieces without [CLS] and [SEP]; label splits over words "
    "(means of sub-words) without [CLS] and [SEP]"
)


def summary(
    found: Sequence[Smoothing],
    reading: Mapping[str, Any],
    settings: Mapping[str, Any],
    claims: Mapping[str, Any] | None,
    notes: Sequence[str],
) -> dict[str, Any]:
    """The content of ``smoothing.json``.

    Args:
        reading: ``Reading.head()``.
        claims: tasks, counts and tests; None without claims.
        notes: of the whole, in sentences.
    """
    return {
        **reading,
        "tokens": TOKENS,
        "settings": dict(settings),
        "encoders": [encoder(one) for one in found],
        "claims": None if claims is None else dict(claims),
        "notes": [*notes, *(note for one in found for note in one.notes)],
    }


def encoder(found: Smoothing) -> dict[str, Any]:
    """One entry of ``encoders``."""
    layers, heads = found.heads["gate"].shape
    columns = {name: values for name, values in found.sentences.items() if name != "tokens"}
    rows: list[dict[str, Any]] = [{"layer": layer} for layer in range(layers + 1)]
    for name, values in columns.items():
        for place, column in enumerate(values.T, layers + 1 - values.shape[1]):
            rows[place][name] = spread(column)
    entry: dict[str, Any] = {
        "label": found.label,
        "seed": found.seed,
        "run": found.run,
        "kind": found.kind,
        "shape": [layers, heads],
        "mean_tokens": float(found.sentences["tokens"].mean()),
        "layers": rows,
        "constants": found.constants,
        "outliers": [[{"dimension": d, "share": s} for d, s in row] for row in found.outliers],
        "labels": found.labels,
        "heads": _heads(found.heads),
        "closed_on": found.closed_on,
        "fusion": found.fusion,
    }
    if "bound" in columns:
        entry |= _bounds(columns)
    return entry


def _bounds(columns: Mapping[str, NDArray[np.float64]]) -> dict[str, Any]:
    """σ₁σ₂ against CosSim over sentences, and how near the ratio comes to the bounds."""
    products, after = columns["sigma1"] * columns["sigma2"], columns["cosine"][:, 1:]
    rows = np.linspace(0, len(products) - 1, min(POINTS, len(products))).round().astype(int)
    sigma = [
        {
            "layer": layer,
            "above_one": float((product > 1).mean()),
            "least": float(product.min()),
            "spearman": _spearman(product, cosine),
        }
        for layer, (product, cosine) in enumerate(zip(products.T, after.T, strict=True), 1)
    ]
    points = [
        [layer + 1, round(float(products[row, layer]), 4), round(float(after[row, layer]), 4)]
        for layer in range(products.shape[1])
        for row in rows
    ]
    tightness = {name: columns["ratio"] / columns[name] for name in ("bound", "published")}
    return {
        "sigma": sigma,
        "points": points,
        "exceeded": {name: int((values > 1 + 1e-6).sum()) for name, values in tightness.items()},
        "nearest": {name: float(np.nanmax(values)) for name, values in tightness.items()},
    }


def _spearman(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    known = ~(np.isnan(first) | np.isnan(second))
    if known.sum() < 3 or np.ptp(first[known]) == 0 or np.ptp(second[known]) == 0:
        return math.nan
    return float(stats.spearmanr(first[known], second[known]).statistic)


def _heads(grids: Mapping[str, NDArray[np.float64]]) -> list[dict[str, Any]]:
    shape = grids["gate"].shape
    return [
        {"layer": layer + 1, "head": head + 1} | {name: float(grid[layer, head]) for name, grid in grids.items()}
        for layer, head in np.ndindex(*shape)
    ]


def spread(values: NDArray[np.float64]) -> dict[str, float]:
    """Mean, standard deviation and quantiles over the sentences for which a number is defined."""
    known = values[~np.isnan(values)]
    if not len(known):
        return dict.fromkeys(("mean", "sd", "q05", "median", "q95"), math.nan)
    low, median, high = np.quantile(known, (0.05, 0.5, 0.95))
    deviation = float(known.std(ddof=1)) if len(known) > 1 else math.nan
    return {"mean": float(known.mean()), "sd": deviation, "q05": low, "median": median, "q95": high}


def write(folder: Path, content: Mapping[str, Any], found: Sequence[Smoothing], sentences: Sequence[str]) -> None:
    """Both files, each whole or not at all; the summary last.

    Args:
        sentences: ids, in the order of the rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = []
    for one in found:
        layers = one.heads["gate"].shape[0]
        for layer in range(layers + 1):
            columns: dict[str, Any] = {
                "encoder": [one.label] * len(sentences),
                "seed": np.full(len(sentences), one.seed),
                "sentence": list(sentences),
                "layer": np.full(len(sentences), layer),
            }
            for name, values in one.sentences.items():
                if values.ndim == 1:
                    columns[name] = values.astype(np.float32)
                else:
                    place = layer - (layers + 1 - values.shape[1])
                    column = values[:, place] if place >= 0 else np.full(len(values), np.nan)
                    columns[name] = column.astype(np.float32)
            parts.append(pa.table(columns))
    with replacing(folder / TABLE) as beside:
        pq.write_table(pa.concat_tables(parts, promote_options="default"), beside)
    with replacing(folder / SUMMARY) as beside:
        beside.write_text(_compact(json.dumps(_plain(content), ensure_ascii=False, indent=1)) + "\n", encoding="utf-8")


def _compact(text: str) -> str:
    """Lists and objects that hold only numbers and words stand on one line each: a third of the size."""
    return re.sub(r"([\[{])\n\s*([^\[\]{}]*?)\n\s*([\]}])", lambda m: m[1] + re.sub(r"\n\s*", " ", m[2]) + m[3], text)


def _plain(value: Any) -> Any:
    """JSON's own types, six digits, null for NaN."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float | np.floating):
        return None if not math.isfinite(value) else float(f"{value:.6g}")
    return value.item() if isinstance(value, np.generic) else value
