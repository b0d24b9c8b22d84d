"""Closed forms that several tests compare with."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from mtlprune.corpora.formats import blocks, read_lines
from mtlprune.corpora.formats.propbank import read_predicates
from mtlprune.sentence import Predicate


def mean_cosine(rows: Tensor) -> float:
    """R by its definition, 1/N² Σ_i Σ_{j≠i} cos(w_i, w_j), of rows (N, D)."""
    cosines = torch.nn.functional.cosine_similarity(rows[:, None], rows[None], dim=-1)  # (N, N)
    return float(cosines.fill_diagonal_(0).mean())


def read_props(path: Path) -> Iterator[tuple[Predicate, ...]]:
    """CoNLL-2005 props: column 1 the lemma or ``-``, then one column of arguments for each predicate; by sentence."""
    for block in blocks(read_lines(path)):
        rows = [line.text.split() for line in block]
        yield read_predicates(str(path), block, [(row[0], None) for row in rows], [row[1:] for row in rows])
