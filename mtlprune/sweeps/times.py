"""Times of cells: as long as finished cells of their kind took.

Cells are of one kind whose configurations differ in seeds, rates and the runs they make use of only.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping

from mtlprune.sweeps.cells import REFERENCES, Cell, digest
from mtlprune.sweeps.folder import State

WITHOUT_COST = {
    "train": ("seed", "encoder_rate", "decoder_rate", "weight_decay", "warmup", "schedule", "clip"),
    "pruning": ("strength", "rate", "multiplier_rate", "temperature", "anneal_from"),
}
"""Block → settings that change what is learnt, not how long that takes."""
OTHER = "another run"


def kind_of(cell: Cell) -> str:
    """A digest that is the same for cells that cost the same."""
    config, runs = cell.config, {f"treatment.{key}": OTHER for key in cell.config.treatment.runs}
    for setting in REFERENCES:
        block, _, key = setting.partition(".")
        if getattr(getattr(config, block), key) is not None:
            runs[setting] = OTHER
    for name, keys in WITHOUT_COST.items():
        block = getattr(config, name)
        defaults = {key: type(block).model_fields[key].default for key in keys}
        config = config.model_copy(update={name: block.model_copy(update=defaults)})
    return digest(config, config.data.path, runs)


def expected_times(cells: Iterable[Cell], standing: Mapping[str, State]) -> dict[str, float | None]:
    """Name of each cell that is not trained → seconds from its beginning to its end; None where none of its kind is
    trained."""
    several = list(cells)
    known: dict[str, list[float]] = defaultdict(list)
    for cell in several:
        if (seconds := standing[cell.name].seconds) is not None:
            known[kind_of(cell)].append(seconds)
    left = [cell for cell in several if not standing[cell.name].trained]
    if not known:
        return dict.fromkeys([cell.name for cell in left])
    times = {kind: statistics.mean(seconds) for kind, seconds in known.items()}
    return {cell.name: times.get(kind_of(cell)) for cell in left}
