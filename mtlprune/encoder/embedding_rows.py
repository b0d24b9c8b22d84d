"""Training without the embedding rows that no training sentence contains.

Of MiniLM's 22.7 million parameters 11.7 million are its word embeddings, of which 2,000 sentences contain a fifth. The
other rows have a gradient of 0 in every update, so that AdamW leaves them where they are but for weight decay. They
need no gradient, no clipping and no moments.

Letters for shapes: V rows of the vocabulary, U of them used, d numbers a row.
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
    """A table of embeddings of which only some rows are trained, as a parameter of their own.

    A forward pass in training mode reads ``rows``. The whole table is brought up to date when training mode ends and
    when weights are saved, so that evaluation and files know nothing of the split: a state dict has ``weight`` alone.

    Attributes:
        weight: (V, d), the whole table, without a gradient.
        rows: (U, d), what is trained.
        used: (U,) int64, ids of these rows, ascending.
        index: (V,) int64, id → its row among those used; U, which no lookup accepts, where there is none.
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
            self.write_back()
        return super().train(mode)

    @torch.no_grad()
    def write_back(self) -> None:
        """Copy the trained rows into the whole table."""
        self.weight.index_copy_(0, self.used, self.rows)

    def decay(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the other rows decay at every update, as they would if the optimizer had them."""
        [group] = [group for group in optimizer.param_groups if any(p is self.rows for p in group["params"])]

        def shrink(*_: Any) -> None:
            # AdamW decays a row also where its gradient is 0. Rows outside the optimizer get the same factor here, so
            # training all rows and training the used ones give the same table. Used rows are overwritten by
            # `write_back`, so decaying their stale copy does no harm.
            self.weight.mul_(1 - group["lr"] * group["weight_decay"])

        if group["weight_decay"]:
            optimizer.register_step_post_hook(shrink)

    # The state dict has the shape of a plain embedding, with the trained rows written into the table: a saved model
    # does not show that only some rows were trained.
    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self.write_back()
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[f"{prefix}rows"]

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        if f"{prefix}weight" in state_dict:
            state_dict[f"{prefix}rows"] = state_dict[f"{prefix}weight"][self.used.cpu()]
        super()._load_from_state_dict(state_dict, prefix, *args)


def train_used_rows(encoder: Encoder, sentences: Iterable[Pieces]) -> UsedRowsEmbedding | None:
    """From now on train only the embedding rows of these sentences, of special tokens and of word dropout. None, and
    nothing changes, where the table is frozen, is no plain `nn.Embedding` (some models scale what they look up), or
    serves as another weight too."""
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
    parts = [
        np.array([piece for piece in always_trained if piece < table.num_embeddings]),
        *(sentence.ids for sentence in sentences),
    ]
    used = torch.from_numpy(np.unique(np.concatenate(parts)).astype(np.int64)).to(table.weight.device)
    rows = UsedRowsEmbedding(table, used)
    for module in list(encoder.modules()):
        # T5's encoder reads the table by an attribute that is no submodule
        for attributes in (cast(dict[str, Any], module._modules), vars(module)):
            for name, value in list(attributes.items()):
                if value is table:
                    attributes[name] = rows
    return rows.train(encoder.training)
