"""Embedding tables of which only the rows that occur in training sentences are trained.

Word embeddings are 11.7 of MiniLM's 22.7 million parameters, and 2,000 sentences use a fifth of their rows. All other
rows have a gradient of 0 in every update, so that AdamW changes them by weight decay only. Leaving them out saves their
gradients, gradient clipping and optimizer moments, and gives the same result. Training uses this module.

Letters for shapes: V rows of the vocabulary, U of them used, d numbers in a row.
"""

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from mtlprune.encoder.model import Encoder, input_embeddings
from mtlprune.encoder.pieces import Pieces


class UsedRowsEmbedding(nn.Embedding):
    """An embedding table of which only some rows are trained, as a separate parameter.

    A forward pass in training mode reads ``rows``. The trained rows are written into the whole table when training mode
    ends and when weights are saved, so evaluation and saved files see a plain embedding: a state dict contains only
    ``weight``.

    Attributes:
        weight: (V, d), the whole table, without gradients.
        rows: (U, d), the trained rows.
        used: (U,) int64, the ids of the trained rows, ascending.
        index: (V,) int64, the position in ``rows`` of each id. Ids that are not trained have the position U, at which a
            lookup fails.
    """

    used: Tensor
    index: Tensor

    def __init__(self, table: nn.Embedding, used: Tensor) -> None:
        size, width = table.weight.shape
        super().__init__(size, width, padding_idx=table.padding_idx, _weight=table.weight.detach(), _freeze=True)
        self.rows = nn.Parameter(self.weight[used])
        index = torch.full((self.num_embeddings,), len(used), device=used.device)
        index[used] = torch.arange(len(used), device=used.device)
        self.register_buffer("used", used, persistent=False)
        self.register_buffer("index", index, persistent=False)
        padding = self.padding_idx
        self.padding_row = int(index[padding]) if padding is not None and index[padding] < len(used) else None

    def forward(self, ids: Tensor) -> Tensor:
        if not self.training:
            return super().forward(ids)
        return embedding(self.index[ids], self.rows, self.padding_row)

    def train(self, mode: bool = True) -> "UsedRowsEmbedding":
        if self.training and not mode:
            self._write_back()
        return super().train(mode)

    @torch.no_grad()
    def _write_back(self) -> None:
        """Copy the trained rows into the whole table."""
        self.weight.index_copy_(0, self.used, self.rows)

    def decay(self, optimizer: torch.optim.Optimizer) -> None:
        """Apply the optimizer's weight decay after every update to the rows that the optimizer does not contain."""
        [group] = [group for group in optimizer.param_groups if any(p is self.rows for p in group["params"])]

        def shrink(*_: Any) -> None:
            # AdamW decays a row also where its gradient is 0. Rows outside the optimizer get the same factor here, so
            # training all rows and training the used ones give the same table. Used rows are overwritten by
            # `_write_back`, so decaying their stale copy does no harm.
            self.weight.mul_(1 - group["lr"] * group["weight_decay"])

        if group["weight_decay"]:
            optimizer.register_step_post_hook(shrink)

    # The state dict has the shape of a plain embedding, with the trained rows written into the table: a saved model
    # does not show that only some rows were trained.
    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self._write_back()
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[f"{prefix}rows"]

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        if f"{prefix}weight" in state_dict:
            state_dict[f"{prefix}rows"] = state_dict[f"{prefix}weight"][self.used.cpu()]
        super()._load_from_state_dict(state_dict, prefix, *args)


def train_used_rows(encoder: Encoder, sentences: Iterable[Pieces]) -> UsedRowsEmbedding | None:
    """Restrict the training of an encoder's word embeddings to the rows that occur in training, in place.

    These are the rows of the sentences' pieces, of the special tokens and of the token that word dropout inserts.

    Returns:
        The embedding that replaces the table. None, without any change, if the table is frozen, is not a plain
        `nn.Embedding` (some models scale the vectors that they look up), or is also the weight of another module.
    """
    table = input_embeddings(encoder.transformer)
    # A table that is also the weight of another module (a tied output layer) gets gradients there for every row, so
    # leaving rows out would change training.
    holders = [module for module in encoder.modules() if any(p is table.weight for p in module._parameters.values())]
    plain = type(table) is nn.Embedding and table.max_norm is None and not table.scale_grad_by_freq
    if not plain or len(holders) > 1 or not table.weight.requires_grad:
        return None
    pieces, special = encoder.word_pieces, encoder.tokenizer.all_special_ids
    always_trained = {
        *special,
        *encoder.frame.before,
        *encoder.frame.after,
        encoder.frame.padding,
        pieces.mask,
        pieces.unknown,
    }
    is_used = np.zeros(table.num_embeddings, bool)
    is_used[[piece for piece in always_trained if piece < table.num_embeddings]] = True
    for sentence in sentences:
        is_used[sentence.ids] = True
    used = torch.from_numpy(np.flatnonzero(is_used)).to(table.weight.device)
    rows = UsedRowsEmbedding(table, used)
    for module in list(encoder.modules()):
        # The table is also replaced in plain attributes, because T5's encoder reads it from a plain attribute.
        for attributes in (cast(dict[str, Any], module._modules), vars(module)):
            for name, value in list(attributes.items()):
                if value is table:
                    attributes[name] = rows
    return rows.train(encoder.training)
