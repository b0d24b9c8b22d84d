"""Maximum spanning arborescences (Chu & Liu 1965, Edmonds 1967) over numpy tables, without recursion.

supar's version recurses once per word (1,500 words in a chain end in a RecursionError) and is several times slower; it
is the oracle in the tests.
"""

from __future__ import annotations

import numpy as np


def single_root_arborescence(scores: np.ndarray) -> np.ndarray:
    """The best tree among those with exactly one arc out of node 0.

    A charge on every arc out of node 0 that outweighs all other differences leaves one such arc, and among trees with
    one it changes nothing. Computed in fp64, where the charge costs no digit that fp32 scores have.

    Args:
        scores: (n+1, n+1) ``scores[dependent, head]``; −inf on the diagonal and in row 0, all else finite. Never
            written to.

    Returns:
        (n+1,) heads; 0 at node 0.
    """
    table = scores.astype(np.float64)
    arcs = table[np.isfinite(table)]
    table[:, 0] -= 1.0 + len(table) * float(arcs.max() - arcs.min())
    return _chu_liu_edmonds(table)


def _chu_liu_edmonds(scores: np.ndarray) -> np.ndarray:
    """Heads of the best tree from node 0, however many arcs leave it; ``scores`` is overwritten."""
    heads = scores.argmax(1)
    heads[0] = 0
    contractions = []
    done = np.zeros(len(scores), dtype=bool)  # known to lead to node 0
    done[0] = True
    for start in range(1, len(scores)):
        path: list[int] = []
        node = start
        while not done[node]:
            if node not in path:
                path.append(node)
                node = int(heads[node])
                continue
            cycle = path[path.index(node) :]
            del path[len(path) - len(cycle) :]
            contractions.append(_contract(scores, heads, cycle))
            node = cycle[0]
        done[path] = True
    for cycle, cycle_heads, entered, left in reversed(contractions):
        outer = heads[cycle[0]]
        heads = np.where(heads == cycle[0], left, heads)
        heads[cycle] = cycle_heads
        heads[entered[outer]] = outer
    return heads


def _contract(scores: np.ndarray, heads: np.ndarray, cycle: list[int]) -> tuple:
    """Let ``cycle[0]`` stand for the cycle: best way in (gain over the arc it replaces) and best way out."""
    cycle_heads = heads[cycle].copy()
    members = np.array(cycle)
    gains = scores[members] - scores[members, cycle_heads][:, None]  # (|C|, n+1)
    entered = members[gains.argmax(0)]
    left = members[scores[:, members].argmax(1)]
    scores[cycle[0]] = gains.max(0)
    scores[:, cycle[0]] = scores[:, members].max(1)
    scores[cycle[0], members] = -np.inf
    scores[:, members[1:]] = -np.inf  # absorbed
    heads[np.isin(heads, members)] = cycle[0]
    heads[cycle[0]] = scores[cycle[0]].argmax()
    return cycle, cycle_heads, entered, left
