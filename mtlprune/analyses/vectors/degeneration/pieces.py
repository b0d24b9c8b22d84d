"""Compare rows of embedding tables with the frequency of their pieces or words, and measure the softmax over pieces.

The theory of Gao et al. (2019) describes a softmax whose weight rows are also the embeddings: the rows of rare pieces
are pushed away from all hidden states, and the rows of pieces that never occur are pushed away without end. Pieces
(sub-words) are therefore counted in training sentences. The hidden states are those of masked language models on
sentences in which every piece is masked once.

Letters for shapes: V pieces of the vocabulary, D features, M masked pieces.
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
"""Range of the number of occurrences in training → its smallest number."""
_MASKING_TURNS = 7
"""One piece in this many is masked at a time: 14 %, about as many as in pretraining."""
_MAX_POINTS = 400
"""Largest number of pieces in the figure that occur in training; of other pieces the figure shows half as many."""

_Measures = dict[str, Tensor]
"""Measure → (V,), a value for each piece; NaN where a piece has none."""


def count_pieces(encoder: Encoder, training: Sequence[Sequence[str]]) -> NDArray[np.int64]:
    """Count how often each piece of an encoder occurs in training sentences: (V,), −1 for special tokens.

    Sentences are given as words. Sentences that do not fit into the encoder's window are ignored, as in pretraining.
    """
    size, room = encoder.word_pieces.rows, encoder.frame.capacity or sys.maxsize
    ids = [np.asarray(pieces.ids, np.int64) for pieces in encoder.tokenize_all(training) if len(pieces.ids) <= room]
    counts = np.bincount(np.concatenate(ids), minlength=size)
    counts[[place for place in encoder.tokenizer.all_special_ids if place < size]] = -1
    return counts


def by_frequency(
    table: Tensor, names: Sequence[str], counts: NDArray[np.int64], more: _Measures
) -> tuple[dict[str, pd.DataFrame], float]:
    """Summarise the rows of a table by ranges of the frequency of their pieces.

    Args:
        table: (V, D), float64.
        names: texts of the V pieces.
        counts: (V,); rows with a count below 0 are left out.
        more: further measures of each piece. ``predicted`` is summed over the pieces of a range; ``loss`` is summed and
            divided by this sum. For other measures, and for ``cosine`` and ``norm``, the median is reported.

    Returns:
        The frames ``pieces``, with one row for each range (``term``), and ``sample``; and Spearman's correlation of the
        cosine to the mean row with the frequency, over pieces that occur (NaN for fewer than three).
    """
    cosines = torch.cos(torch.deg2rad(maths.angles_to_mean(table[counts >= 0])))
    measures = {"cosine": torch.full((len(table),), torch.nan, dtype=torch.float64), "norm": table.norm(dim=1), **more}
    measures["cosine"][counts >= 0] = cosines
    bands = np.searchsorted(list(BANDS.values()), counts, side="right") - 1  # −1 for rows that are left out
    rows = []
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
    correlation = (
        float(spearmanr(measures["cosine"].numpy()[occur], counts[occur]).statistic) if len(occur) > 2 else np.nan
    )
    return {"pieces": long_frame(rows, "term"), "sample": pd.DataFrame(sample)}, correlation


@dataclass(frozen=True, eq=False)
class Softmax:
    """The inputs of the softmax of a masked language model, and how well it predicts masked pieces.

    Attributes:
        states: (M, D), vectors that are multiplied by the embedding table.
        gold: (M,), ids of the masked pieces.
        losses: (M,), −log p of each masked piece, in nats.
        plane: ``maths.plane`` of the last LayerNorm before the softmax; empty if there is none.
    """

    states: Tensor
    gold: Tensor
    losses: Tensor
    plane: Mapping[str, float]

    @classmethod
    def of(cls, name: str, mask: int, batches: Iterable[EncoderBatch], device: str) -> "Softmax":
        """Run a masked language model over sentences in which every piece is masked once, one piece in seven at a time.

        Args:
            name: folder or hub name of the model.
            mask: id of the mask token.

        Raises:
            EncoderError: the model is not a masked language model, or its checkpoint lacks the prediction head.
        """
        full_model, missing = load_masked(name)
        if missing or full_model.get_output_embeddings() is None:
            raise EncoderError(f"{name} has no head that predicts pieces")
        full_model = full_model.eval().to(device)
        inputs, norms_run = list[Tensor](), list[nn.LayerNorm]()  # of the softmax; in the order of the forward pass

        def record_input(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            inputs.append(args[0])

        parts: list[tuple[Tensor, ...]] = []
        with ExitStack() as hooks, torch.no_grad():
            for norm in [module for module in full_model.modules() if isinstance(module, nn.LayerNorm)]:
                hooks.enter_context(norm.register_forward_hook(lambda module, *_: norms_run.append(module)))
            # The output embeddings multiply the table, so their input is the input of the softmax.
            hooks.enter_context(full_model.get_output_embeddings().register_forward_pre_hook(record_input))
            for batch in batches:
                column = torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device)
                for turn in range(_MASKING_TURNS):
                    is_masked = (batch.source >= 0) & (column % _MASKING_TURNS == turn)
                    slots = is_masked.flatten().nonzero()[:, 0]
                    if not len(slots):
                        continue
                    gold = batch.input_ids.flatten()[slots]
                    masked_ids = batch.input_ids.masked_fill(is_masked, mask)
                    with head_at(full_model, slots, masked_ids.shape):
                        logits = full_model(input_ids=masked_ids, attention_mask=batch.attention_mask).logits  # (m, V)
                    losses = nn.functional.cross_entropy(logits.double(), gold, reduction="none")
                    parts.append((inputs.pop().double().cpu(), gold.cpu(), losses.cpu()))
        states, gold, losses = (torch.cat(part) for part in zip(*parts, strict=True))
        plane = maths.plane(norms_run[-1].weight, norms_run[-1].bias, states) if norms_run else {}
        return cls(states, gold, losses, plane)

    def measures(self, table: Tensor) -> _Measures:
        """Compute measures of each piece.

        Returns:
            ``loss`` and ``predicted``, sum of losses and number of times that the piece was masked; ``negative``, the
            share of states that have a negative product with the row of the piece. By theorem 1 of Gao et
            al. (2019), this share is 1 for pieces that never occur.
        """
        sums = torch.zeros(2, len(table), dtype=torch.float64)
        sums.index_add_(1, self.gold, torch.stack([self.losses, torch.ones_like(self.losses)]))
        below = torch.stack([(part @ table.T < 0).sum(0) for part in self.states.split(4096)]).sum(0)
        return {"loss": sums[0], "predicted": sums[1], "negative": below.double() / len(self.states)}


def drift(table: Tensor, initial: Tensor, states: Tensor | None) -> _Measures:
    """Measure how far each row moved from its initial value.

    Returns:
        ``moved``, the distance divided by the initial norm; ``turned``, the angle in degrees; and, if the hidden states
        (M, D) are given, ``away``, the cosine of the movement with minus the mean hidden state.
    """
    way = table - initial
    cosines = (unit_rows(table) * unit_rows(initial)).sum(1)
    measures = {"moved": way.norm(dim=1) / initial.norm(dim=1), "turned": torch.rad2deg(cosines.clamp(-1, 1).acos())}
    if states is not None:
        measures["away"] = -unit_rows(way) @ unit_rows(states.mean(0, keepdim=True))[0]
    return measures


def first_checkpoint(name: str) -> Path | None:
    """Return the folder of the initial weights of a pretraining, next to a later checkpoint; None if there is none."""
    path = Path(name).resolve()
    first = path.with_name("step-0")
    return first if path.parent.name == "checkpoints" and first.is_dir() and first != path else None


def read_vectors(path: Path) -> tuple[list[str], Tensor]:
    """Read words and vectors (N, D) from a text file in the format of word2vec.

    The first line contains N and D, and each of the following lines contains a word and D numbers.

    Raises:
        ProbeError: the file is not in this format.
    """
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
