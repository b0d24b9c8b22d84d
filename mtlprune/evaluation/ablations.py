"""Names of the kinds of ablation, that is, of what replaces the output of a closed head.

encoder/interventions.py implements them. Settings and texts use the names from here, because they do not import torch.
"""

from typing import Literal

Closed = Literal["zero", "mean", "resample", "optimal"]
"""Kinds that are values of settings: of pruning.closed, and of analyses."""
AblationKind = Literal[Closed, "exchange", "scale"]
"""All kinds. "exchange" needs outputs for each batch, and "scale" needs a factor, so they are no values of settings."""
SENTENCES = {
    "zero": "",
    "mean": " The output of a closed head is replaced by its mean.",
    "resample": " The output of a closed head is replaced by its output for another sentence.",
    "optimal": " The output of a closed head is replaced by a constant that was fitted.",
}
