"""Gradient checkpointing of the few batches whose activations decide the peak memory (encoder.checkpointing: auto)."""

import numpy as np

from mtlprune.config.config import Config
from mtlprune.training import mixing
from mtlprune.training.checkpoint import epoch_generator
from mtlprune.training.mixing import MiniBatch
from mtlprune.training.run import Run

_SHARE = 0.02
"""Share of an epoch's batches whose layers are computed again. By `LargestBatches.size`, the largest of 393 batches of
the English Web Treebank is 1.9 times as large as the ninth largest, so that few batches decide the peak."""


class LargestBatches:
    """The batches of a run that are trained with gradient checkpointing.

    Checkpointing changes no gradient, so ``auto`` gives the same run as ``false``, bit for bit.

    Attributes:
        smallest_size: size (see `size`) of the smallest of these batches; None if the setting is not ``auto``, or if
            ``auto`` does not apply to the run.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.smallest_size: float | None = None
        if _is_possible(run.config) and run.model.encoder.can_use_checkpointing:
            settings = run.config.train
            epoch = mixing.plan(settings, run.lengths, run.is_annotated, epoch_generator(settings.seed, 0))
            sizes = sorted((self.size(batch) for update in epoch for batch in update), reverse=True)
            self.smallest_size = sizes[int(np.ceil(_SHARE * len(sizes))) - 1]

    def size(self, batch: MiniBatch) -> float:
        """Estimate how many numbers a layer keeps for the backward pass of a batch.

        With T sub-words in the longest sentence, width w and A heads, these are 20 · w per sub-word (12 vectors of the
        width, and 2 of four times the width in the feed-forward network), and 3 · A · T attention weights (before and
        after dropout, and its mask).
        """
        encoder, longest = self.run.model.encoder, max(self.run.lengths[row] for row in batch.rows)
        heads = getattr(encoder.config, "num_attention_heads", 1)
        return len(batch.rows) * longest * (20 * encoder.hidden_size + 3 * heads * longest)

    def contains(self, batch: MiniBatch) -> bool:
        """Return whether a batch is trained with gradient checkpointing."""
        return self.smallest_size is not None and self.size(batch) >= self.smallest_size

    def switch(self, batch: MiniBatch) -> None:
        """Switch gradient checkpointing on or off for a batch, before its forward pass."""
        if self.smallest_size is not None:
            self.run.model.encoder.use_checkpointing(self.contains(batch))


def _is_possible(config: Config) -> bool:
    """Return whether ``auto`` applies to a run.

    Treatments and the syntax penalty are left out, because some of them use gradients or attention maps of single
    layers, which the second forward pass would give twice.
    """
    needs_layers = config.treatment.chosen_treatments or config.syntax.strength
    is_on_cpu = config.train.device == "cpu"
    return config.encoder.checkpointing == "auto" and is_on_cpu and not needs_layers
