"""What removing heads saves: seconds of the encoder's forward pass in full, with heads masked, and with them removed.

The three are measured in turn, round after round, and the fastest round of each counts, so that a busy machine disturbs
less. Inputs are random tokens without padding; the gradient is off.

The *ideal gain* is the removed heads' share of the multiply-adds. Of one pass over B rows of T tokens are counted

    every linear layer:   2 · (inputs it reads) · (outputs it has)    for each vector it reads
    every layer's heads:  4 · B · T² · n · d                          scores Q Kᵀ and mixture P V

with n heads of width d: once for the whole encoder, once for the attention block alone (queries, keys, values, T² part,
output projection). The ideal gain is 1 − FLOPs after / FLOPs before, and of it is *reached* (1 − seconds removed /
seconds full) / ideal gain. Soft-max, norms, activations, embeddings, DeBERTa's products with positions: not counted.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mtlprune.encoder.heads import HeadPlaces, by_layer, family_of
from mtlprune.encoder.sources import FLOAT32_ONLY
from mtlprune.model import autocast

BATCHES = (1, 8, 32)
LENGTHS = (16, 64, 256)
MOST_ROUNDS = 100


@dataclass
class LatencyPart:
    """The whole encoder or its attention blocks, in one cell of the grid."""

    share: float
    """The removed heads' share of the FLOPs: the ideal gain."""
    seconds: dict[str, float] = field(default_factory=dict)
    """full, masked, removed → seconds of one forward pass, the fastest round."""

    def take(self, kind: str, seconds: float) -> None:
        """Remember a round if it is the fastest."""
        self.seconds[kind] = min(self.seconds.get(kind, float("inf")), seconds)

    @property
    def gain(self) -> float:
        """The share of the full model's time that removal saves."""
        return 1 - self.seconds["removed"] / self.seconds["full"]

    @property
    def reached(self) -> float | None:
        """How much of the ideal gain that is; None where nothing was removed."""
        return self.gain / self.share if self.share > 0 else None


@dataclass
class LatencyCell:
    """One batch size and length."""

    batch: int
    length: int
    rounds: int
    encoder: LatencyPart
    attention: LatencyPart

    def record(self) -> dict[str, Any]:
        """For JSON."""
        figures = {
            name: {"ideal_gain": p.share, "gain": p.gain, "reached": p.reached, "seconds": p.seconds}
            for name, p in (("encoder", self.encoder), ("attention", self.attention))
        }
        return {"batch": self.batch, "length": self.length, "rounds": self.rounds, **figures}


class TimedModel:
    """A model that is measured.

    Args:
        gating: makes the context of a pass.
    """

    def __init__(self, model: PreTrainedModel, gating: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self.model, self.gating = model, gating
        family = family_of(model)
        self.attentions, self.outputs = (by_layer(model, path) for path in (family.attention, family.output))

    def run(self, ids: Tensor, precision: torch.dtype) -> float:
        """Seconds of one pass. ``ids``: (B, T)."""
        kept = torch.float32 if self.model.config.model_type in FLOAT32_ONLY else precision
        with torch.inference_mode(), self.gating(), autocast(ids.device, kept):
            begun = self._now()
            self.model(input_ids=ids, attention_mask=torch.ones_like(ids))
            return self._now() - begun

    def run_attention(self, ids: Tensor, precision: torch.dtype) -> float:
        """Seconds that one pass spends between the entry of the attention modules and the end of their projections."""
        entered: list[float] = []
        left: list[float] = []
        with ExitStack() as hooks:
            for part in dict.fromkeys(self.attentions):
                hook = part.register_forward_pre_hook(lambda *_: entered.append(self._now()), prepend=True)
                hooks.enter_context(hook)
            for part in dict.fromkeys(self.outputs):
                hooks.enter_context(part.register_forward_hook(lambda *_: left.append(self._now())))
            self.run(ids, precision)
        return sum(left) - sum(entered)

    def _now(self) -> float:
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)
        return time.perf_counter()

    def flops(self, ids: Tensor) -> tuple[float, float]:
        """FLOPs of one pass over ``ids`` (B, T): the whole encoder, and its attention blocks alone."""
        squares = 4.0 * ids.shape[0] * ids.shape[1] ** 2 * sum(output.in_features for output in self.outputs)
        inside = {part for attention in self.attentions for part in attention.modules()} | set(self.outputs)
        counted = [squares, squares]

        def count(part: nn.Linear, args: tuple[Tensor, ...], result: Any) -> None:
            flops = 2.0 * args[0].shape[:-1].numel() * part.in_features * part.out_features
            counted[0] += flops
            counted[1] += flops if part in inside else 0.0

        with ExitStack() as hooks, torch.inference_mode():
            for part in self.model.modules():
                if isinstance(part, nn.Linear):
                    hooks.enter_context(part.register_forward_hook(count))
            self.model(input_ids=ids, attention_mask=torch.ones_like(ids))
        return counted[0], counted[1]


def measure(
    full: PreTrainedModel,
    masked: PreTrainedModel,
    removed: PreTrainedModel,
    gates: Tensor,
    *,
    kept: Sequence[Sequence[int]] | None = None,
    batches: Sequence[int] = BATCHES,
    lengths: Sequence[int] = LENGTHS,
    precision: torch.dtype = torch.float32,
    rounds: int = 5,
    seconds: float = 1.0,
    on_batch: Callable[[], None] = lambda: None,
) -> list[LatencyCell]:
    """Measure every batch size with every length. Raises EncoderError: the family is unknown, or gates do not fit.

    Args:
        full: the model before removal, in evaluation mode.
        masked: a copy of it, which is run under ``gates`` (it gets hooks).
        removed: the model after removal.
        gates: (L, A), in original numbering.
        kept: heads that ``masked`` has left from an earlier removal.
        lengths: tokens a row, special ones included; none may be more than the model sees at once.
        precision: of autocast.
        rounds: repetitions at least; short passes are repeated for ``seconds``, up to 100 times.
        on_batch: called after every cell, for a progress bar.
    """
    places = HeadPlaces(masked, kept)
    subjects = {
        "full": TimedModel(full),
        "masked": TimedModel(masked, partial(places.gated, gates.to(full.device))),
        "removed": TimedModel(removed),
    }
    generator = torch.Generator().manual_seed(0)
    cells = []
    for length in lengths:
        for batch in batches:
            ids = torch.randint(full.config.vocab_size, (batch, length), generator=generator).to(full.device)
            cells.append(_measure_cell(subjects, ids, precision, rounds, seconds))
            on_batch()
    return cells


def _measure_cell(
    subjects: dict[str, TimedModel], ids: Tensor, precision: torch.dtype, rounds: int, seconds: float
) -> LatencyCell:
    before, after = subjects["full"].flops(ids), subjects["removed"].flops(ids)
    encoder, attention = (LatencyPart(1 - left / all_) for left, all_ in zip(after, before, strict=True))
    for subject in subjects.values():  # the first pass allocates
        subject.run(ids, precision)
    begun, done = time.perf_counter(), 0
    while done < rounds or (time.perf_counter() - begun < seconds and done < MOST_ROUNDS):
        for kind, subject in subjects.items():
            encoder.take(kind, subject.run(ids, precision))
        for kind, subject in subjects.items():
            attention.take(kind, subject.run_attention(ids, precision))
        done += 1
    return LatencyCell(len(ids), ids.shape[1], done, encoder, attention)
