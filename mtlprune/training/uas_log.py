"""Which heads attend along dependency arcs, at every evaluation of a training: uas.jsonl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mtlprune.config.config import ConfigError
from mtlprune.encoder.arcs import DIRECTIONS, uas_of
from mtlprune.files import plain
from mtlprune.model import MultiTaskModel
from mtlprune.sentence import Sentence
from mtlprune.training.pruning import gate_sets

if TYPE_CHECKING:
    from mtlprune.training.setup import Beginning

UNGATED = "none"
"""What stands in place of a gate set's name in a run without gates."""


def check_uas(run: Beginning) -> None:
    """Refuse at the beginning what could not be measured at the first evaluation.

    Raises:
        ConfigError: no sentence of dev has a tree.
        EncoderError: a family whose heads are unknown, or an encoder without context.
    """
    if not run.config.train.log_uas:
        return
    if all(sentence.dep is None for sentence in run.dev):
        raise ConfigError(
            "train.log_uas: UAS of heads needs dependency trees, and no sentence of the split "
            f"{run.config.data.dev} has one; leave it out, or take a corpus with the layer dep"
        )
    _ = run.model.encoder.places


def uas_line(model: MultiTaskModel, dev: Sequence[Sentence], epoch: int, step: int) -> dict[str, Any]:
    """One line of uas.jsonl.

    Args:
        dev: sentences, some with trees; words, punctuation and roots count as in `ArcCounts.uas`.

    Returns:
        epoch, step, and uas: gate set (``none`` where there are no gates) → direction → (L, A) in percent; None for
        heads that are closed or removed.
    """
    values: dict[str, Tensor | None] = {name: gates.evaluated().detach() for name, gates in gate_sets(model).items()}
    found: dict[str, dict[str, list[list[float | None]]]] = {}
    for name, gates in (values or {UNGATED: None}).items():
        shares = uas_of(model.encoder, dev, gates).uas()  # (D, L, A)
        found[name] = {
            direction: plain([[round(float(share), 4) for share in layer] for layer in table])
            for direction, table in zip(DIRECTIONS, shares, strict=True)
        }
    return {"epoch": epoch, "step": step, "uas": found}
