"""Tables of embeddings against the frequency of their pieces or words, and the softmax of a language model over them.

The theory of Gao et al. (2019) is about a softmax whose rows are also the embeddings: rows of rare pieces are pushed
away from all hidden states, those of pieces that never occur for ever. So pieces are counted in training sentences; the
hidden states are those of masked language models on sentences in which every piece is hidden once.

Letters: V pieces, D features, M hidden pieces.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor, nn

from mtlprune.analyses.harness.reading import ProbeError
from mtlprune.analyses.vectors.degeneration import maths
from mtlprune.encoder.batch import EncoderBatch
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.pieces import EncoderError
from mtlprune.encoder.pseudo_likelihood import head_at, load_masked
from mtlprune.runs.results import long_frame
from mtlprune.training.cosreg import mean_cosine, unit_rows

BANDS = {"never": 0, "1 to 9": 1, "10 to 99": 10, "100 to 999": 100, "1,000 or more": 1000}
"""How often a piece occurs in the training sentences, and the least number of each."""
_STEPS_OF_ANGLE = 7
"""One piece in so many is hidden at a time: 14 %, about as many as in pretraining."""
_MAX_POINTS = 400
"""Pieces that occur, and half as many that never do, which a figure shows."""

Measures = dict[str, Tensor]
"""Name → (V,), a number a piece; NaN where it has none."""


def count_pieces(encoder: Encoder, training: Sequence[Sequence[str]]) -> NDArray[np.int64]:
    """(V,): how often each piece of an encoder occurs in training sentences, given as words, that it sees whole, as in
    pretraining; −1 for special tokens."""
    size, room = encoder.word_pieces.rows, encoder.frame.capacity or sys.maxsize
    ids = [np.asarray(pieces.ids, np.int64) for pieces in encoder.tokenize_all(training) if len(pieces.ids) <= room]
    counts = np.bincount(np.concatenate(ids), minlength=size)
    counts[[place for place in encoder.tokenizer.all_special_ids if place < size]] = -1
    return counts


def by_frequency(
    table: Tensor, names: Sequence[str], counts: NDArray[np.int64], more: Measures
) -> tuple[dict[str, pd.DataFrame], float]:
    """Frames ``pieces``, by band (``term``), and ``sample``; and Spearman's correlation of the cosine to the mean row
    with the frequency, over pieces that occur.

    Args:
        table: (V, D), float64.
        counts: (V,); rows below 0 are left out.
        more: ``loss`` and ``predicted`` are summed over pieces, and the first divided by the second; of all others, as
            of ``cosine`` and ``norm``, the median over pieces is given.
    """
    cosines = torch.cos(torch.deg2rad(maths.angles_to_mean(table[counts >= 0])))
    measures = {"cosine": torch.full((len(table),), torch.nan, dtype=torch.float64), "norm": table.norm(dim=1), **more}
    measures["cosine"][counts >= 0] = cosines
    bands, rows = np.searchsorted(list(BANDS.values()), counts, side="right") - 1, []
    for place, band in enumerate(BANDS):
        inside = torch.from_numpy(bands == place)
        if inside.any():
            row: dict[str, Any] = {"term": band, "pieces": int(inside.sum()), "R": float(mean_cosine(table[inside]))}
            row |= {name: float(values[inside].nanmedian()) for name, values in measures.items()}
            if "loss" in more:
                row["predicted"] = float(more["predicted"][inside].sum())
                row["loss"] = float(more["loss"][inside].sum()) / row["predicted"] if row["predicted"] else None
            rows.append(row)
    generator, occur = np.random.default_rng(76), np.flatnonzero(counts > 0)
    never = np.flatnonzero(counts == 0)
    points_shown = np.concatenate(
        [generator.permutation(occur)[:_MAX_POINTS], generator.permutation(never)[: _MAX_POINTS // 2]]
    )
    sample = {"label": [names[place] for place in points_shown], "frequency": counts[points_shown]}
    sample |= {name: measures[name].numpy()[points_shown] for name in ("cosine", "norm")}
    rising = float(spearmanr(measures["cosine"].numpy()[occur], counts[occur]).statistic) if len(occur) > 2 else np.nan
    return {"pieces": long_frame(rows, "term"), "sample": pd.DataFrame(sample)}, rising


@dataclass(frozen=True, eq=False)
class Softmax:
    """What the softmax of a masked language model gets, and how well it predicts.

    Attributes:
        states: (M, D), what is multiplied by the table.
        gold: (M,), the hidden pieces.
        losses: (M,), −log p of each in nats.
        plane: ``maths.plane`` of the last LayerNorm and the states; empty where there is none.
    """

    states: Tensor
    gold: Tensor
    losses: Tensor
    plane: Mapping[str, float]

    @classmethod
    def of(cls, name: str, mask: int, batches: Iterable[EncoderBatch], device: str) -> "Softmax":
        """Collect it from the model in a folder or of a hub name. ``mask``: the id of its mask token. Raises
        EncoderError: it is no masked language model, or one without its head."""
        full_model, missing = load_masked(name)
        if missing or full_model.get_output_embeddings() is None:
            raise EncoderError(f"{name} has no head that predicts pieces")
        full_model, states, used = full_model.eval().to(device), list[Tensor](), list[nn.LayerNorm]()
        parts: list[tuple[Tensor, ...]] = []
        with ExitStack() as hooks, torch.no_grad():
            for norm in [module for module in full_model.modules() if isinstance(module, nn.LayerNorm)]:
                hooks.enter_context(norm.register_forward_hook(lambda module, *_: used.append(module)))
            before_softmax = lambda _, arguments: states.append(arguments[0])  # noqa: E731
            hooks.enter_context(full_model.get_output_embeddings().register_forward_pre_hook(before_softmax))
            for batch in batches:
                column = torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device)
                for turn in range(_STEPS_OF_ANGLE):
                    hidden = (batch.source >= 0) & (column % _STEPS_OF_ANGLE == turn)
                    slots = hidden.flatten().nonzero()[:, 0]
                    if not len(slots):
                        continue
                    gold = batch.input_ids.flatten()[slots]
                    masked_ids = batch.input_ids.masked_fill(hidden, mask)
                    with head_at(full_model, slots, masked_ids.shape):
                        logits = full_model(input_ids=masked_ids, attention_mask=batch.attention_mask).logits  # (m, V)
                    losses = nn.functional.cross_entropy(logits.double(), gold, reduction="none")
                    parts.append((states.pop().double().cpu(), gold.cpu(), losses.cpu()))
        masked_ids, gold, losses = (torch.cat(part) for part in zip(*parts, strict=True))
        plane = maths.plane(used[-1].weight, used[-1].bias, masked_ids) if used else {}
        return cls(masked_ids, gold, losses, plane)

    def measures(self, table: Tensor) -> Measures:
        """``loss`` and ``predicted``, sums over hidden pieces, and ``negative``, the share of states with which the row
        of a piece has a negative product, as theorem 1 says of pieces that never occur."""
        sums = torch.zeros(2, len(table), dtype=torch.float64)
        sums.index_add_(1, self.gold, torch.stack([self.losses, torch.ones_like(self.losses)]))
        below = torch.stack([(part @ table.T < 0).sum(0) for part in self.states.split(4096)]).sum(0)
        return {"loss": sums[0], "predicted": sums[1], "negative": below.double() / len(self.states)}


def drift(table: Tensor, initial: Tensor, states: Tensor | None) -> Measures:
    """How far each row went from its initial place: ``moved``, the distance by the initial norm; ``turned``, degrees;
    and ``away``, the cosine of the way with minus the mean hidden state, where the states (M, D) are known."""
    way = table - initial
    cosines = (unit_rows(table) * unit_rows(initial)).sum(1)
    measures = {"moved": way.norm(dim=1) / initial.norm(dim=1), "turned": torch.rad2deg(cosines.clamp(-1, 1).acos())}
    if states is not None:
        measures["away"] = -unit_rows(way) @ unit_rows(states.mean(0, keepdim=True))[0]
    return measures


def first_checkpoint(name: str) -> Path | None:
    """The folder of the initial weights beside a checkpoint of a pretraining; None where there is none."""
    path = Path(name).resolve()
    first = path.with_name("step-0")
    return first if path.parent.name == "checkpoints" and first.is_dir() and first != path else None


def read_vectors(path: Path) -> tuple[list[str], Tensor]:
    """Words and vectors (N, D) of a text file as word2vec writes it: N and D in the first line, then in each line a
    word and D numbers. Raises ProbeError: it is not one."""
    try:
        first, *lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ProbeError(f"vectors: {path} cannot be read as text ({error})") from error
    sizes = first.split()
    if len(sizes) != 2 or not all(size.isdecimal() for size in sizes):
        raise ProbeError(
            f"{path}:1: expected the numbers of words and of features, as word2vec writes them, found {first[:60]!r}; "
            "put them into a first line"
        )
    number, features = map(int, sizes)
    words, rows = [], np.zeros((len(lines), features))
    for place, line in enumerate(lines):
        word, *values = line.rstrip(" ").split(" ")
        try:
            rows[place] = np.array(values, np.float64)
            sound = len(values) == features and bool(np.isfinite(rows[place]).all())
        except ValueError:
            sound = False
        if not sound:
            raise ProbeError(f"{path}:{place + 2}: expected a word and {features} numbers, found {line[:60]!r}")
        words.append(word)
    if len(words) != number or number < 2:
        raise ProbeError(f"{path}: expected {number} words (at least two), found {len(words)}; get a complete file")
    return words, torch.from_numpy(rows)
