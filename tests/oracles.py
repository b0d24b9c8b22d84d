"""Closed forms that several tests compare with."""

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from mtlprune.corpora.formats import blocks, read_lines
from mtlprune.corpora.formats.propbank import read_predicates
from mtlprune.sentence import Predicate


def mean_cosine_gradient(rows: Tensor) -> Tensor:
    """∂R / ∂w_k = (2/N²) (I − ŵ_k ŵ_kᵀ) S / ‖w_k‖ with S = Σ ŵ: (N, D). At right angles to w_k, so norms stay."""
    units = rows / rows.norm(dim=1, keepdim=True)
    total = units.sum(0)
    return 2 / len(rows) ** 2 * (total - units * (units @ total)[:, None]) / rows.norm(dim=1, keepdim=True)


def read_props(path: Path) -> Iterator[tuple[Predicate, ...]]:
    """CoNLL-2005 props: column 1 the lemma or ``-``, then one column of arguments for each predicate; by sentence."""
    for block in blocks(read_lines(path)):
        rows = [line.text.split() for line in block]
        yield read_predicates(str(path), block, [(row[0], None) for row in rows], [row[1:] for row in rows])
