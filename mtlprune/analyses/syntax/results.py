"""From what encoders' heads find to syntax.json and syntax.parquet. Layers and heads count from 1 there.

Letters: L layers, A heads a layer before any was removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mtlprune.analyses.syntax.survey import SyntaxFindings
from mtlprune.encoder.arc_counts import DIRECTIONS, LEAST, UNLISTED, ArcCounts, Best
from mtlprune.files import plain, replacing, write_json
from mtlprune.statistics.permutation import layered_rank_test
from mtlprune.statistics.twonn import Dimension

SUMMARY, TABLE = "syntax.json", "syntax.parquet"
PERMUTATIONS = 9999
READING = {
    "attention": "between words: mean over the sub-words that attend, sum over those attended to; the diagonal, [CLS] "
    "and [SEP] left out, not renormalised; of equal weights the first word",
    "uas": "percent; roots and punctuation count in uas_single, and a root is never found; uas_best is over the listed "
    "relations, weighted by their tokens",
    "held_out": "heads and offsets chosen on one half of the sentences, scored on the other, both ways round",
    "weight": "mean attention weight on gold arcs, percent",
    "twonn": "intrinsic dimension of vectors, one a sentence of different pieces",
}
Grid = NDArray[np.float64]


def summary(head: Mapping[str, Any], found: Sequence[SyntaxFindings], blimp: Mapping[str, Any]) -> dict[str, Any]:
    """The tree of syntax.json.

    Args:
        head: where the sentences come from.
        found: of the same sentences, at least one.
        blimp: by name of an encoder its accuracies, or a sentence that says why there are none.
    """
    counts = found[0].counts
    listed = counts.listed()
    single, best = counts.best_offset(), counts.mean_best_offset(listed)
    return {
        **head,
        "reading": READING,
        "least": LEAST,
        "unlisted": list(UNLISTED),
        "tokens": counts.size(),
        "arcs": int(counts.arcs.sum()),
        "directions": list(DIRECTIONS),
        "offset": {
            "single": {"value": _n(single.value), "held_out": _n(single.held_out), "offset": single.offset},
            "best": {"value": _n(best[0]), "held_out": _n(best[1])},
            "relations": [_offset(counts, name) for name in listed],
        },
        "encoders": [_encoder(one, listed, found[0]) | {"blimp": blimp.get(one.run)} for one in found],
    }


def _offset(counts: ArcCounts, name: str) -> dict[str, Any]:
    found = counts.best_offset([name])
    return {
        "relation": name,
        "tokens": counts.size([name]),
        "value": _n(found.value),
        "held_out": _n(found.held_out),
        "offset": found.offset,
    }


def _encoder(found: SyntaxFindings, listed: Sequence[str], first: SyntaxFindings) -> dict[str, Any]:
    counts = found.counts
    uas = counts.uas()
    return {
        "encoder": found.label,
        "run": found.run,
        "seed": found.seed,
        "heads_there": int(counts.there.sum()),
        "uas_single": _best(counts.single()),
        "uas_single_listed": _best(counts.best(listed)),
        "uas_best": _mean(counts.mean_best(listed)),
        "weight_single": _best(counts.best(weight=True)),
        "weight_best": _mean(counts.mean_best(listed, weight=True)),
        "relations": [
            {"relation": name, "uas": _best(counts.best([name])), "weight": _best(counts.best([name], weight=True))}
            for name in listed
        ],
        "heads": {
            "uas": _grid(uas.max(0)),
            **{f"uas {direction}": _grid(part) for direction, part in zip(DIRECTIONS, uas, strict=True)},
            "weight": _grid(counts.weight().max(0)),
            "twonn": _grid(found.heads),
        },
        "twonn": {"sentences": found.cloud, "cls": _dimension(found.cls), "mean": _dimension(found.mean)},
        "uas_like_first": _like(first.counts.by_head(), counts.by_head()),
        "gates_by_uas_of_first": None
        if found.gates is None or found.gates.shape != first.counts.there.shape
        else _gates(first.counts.by_head(), found.gates, found.seed),
    }


def _gates(values: Grid, gates: Grid, seed: int) -> dict[str, Any]:
    """Do gates follow values, layer by layer? NaN where all are equal."""
    found = layered_rank_test(values, gates, PERMUTATIONS, (seed, 26))
    return {"value": _n(found.value), "p": plain(found.p), "heads": found.heads}


def _like(first: Grid, other: Grid) -> float | None:
    """Spearman over heads that both have."""
    if first.shape != other.shape:
        return None
    both = ~(np.isnan(first) | np.isnan(other))
    if both.sum() < 3 or np.ptp(first[both]) == 0 or np.ptp(other[both]) == 0:
        return None
    return _n(float(stats.spearmanr(first[both], other[both]).statistic))


def _best(found: Best) -> dict[str, Any]:
    if found.layer < 0:
        return _mean(found) | {"layer": None, "head": None, "direction": None}
    place = {"layer": found.layer + 1, "head": found.head + 1, "direction": DIRECTIONS[found.direction]}
    return _mean(found) | place


def _mean(found: Best) -> dict[str, Any]:
    return {"value": _n(found.value), "held_out": _n(found.held_out)}


def _dimension(found: Dimension | str) -> dict[str, Any]:
    if isinstance(found, str):
        return {"fit": None, "likelihood": None, "why": found}
    return {"fit": _n(found.fit), "likelihood": _n(found.likelihood), "points": found.points, "dropped": found.dropped}


def _n(value: float) -> float | None:
    return plain(round(float(value), 4))


def _grid(values: Grid) -> list[list[float | None]]:
    return [[_n(value) for value in row] for row in values]


def write(folder: Path, tree: Mapping[str, Any], found: Sequence[SyntaxFindings]) -> None:
    """Both files, each whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [_rows(one, relation) for one in found for relation in one.counts.relations]
    with replacing(folder / TABLE) as beside:
        pq.write_table(pa.concat_tables(tables).combine_chunks(), beside, compression="zstd")
    write_json(folder / SUMMARY, tree)


def _rows(found: SyntaxFindings, relation: str) -> Any:
    """One row a head and direction that is there, for one relation."""
    import pyarrow as pa

    counts, row = found.counts, found.counts.relations.index(relation)
    layers, heads = np.nonzero(counts.there)
    size = len(layers)
    each = []
    for place, direction in enumerate(DIRECTIONS):
        numbers = {"hits": counts.hits, "weight": counts.mass}
        each.append(
            pa.table(
                {
                    "encoder": [found.label] * size,
                    "run": [found.run] * size,
                    "seed": [found.seed] * size,
                    "relation": [relation] * size,
                    "direction": [direction] * size,
                    "layer": layers + 1,
                    "head": heads + 1,
                    "tokens": [counts.size([relation])] * size,
                }
                | {
                    f"{name}_{half + 1}": values[half, place, row, layers, heads]
                    for name, values in numbers.items()
                    for half in (0, 1)
                }
            )
        )
    return pa.concat_tables(each)
