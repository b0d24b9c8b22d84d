"""How long cells take, measured on a part of their batches: the part stands for all."""

from __future__ import annotations

import random

import pytest

from mtlprune.model import evaluation_batches
from mtlprune.sweeps.times import part_of


@pytest.mark.parametrize("seed", range(20))
def test_a_part_of_dev_costs_its_share(seed: int) -> None:
    """Whatever decoding costs, by sub-words, by pairs of them or by their third power, always with padding."""
    draw = random.Random(seed)
    longest = draw.choice([40, 100, 400])
    lengths = [min(longest, 1 + int(draw.expovariate(1 / 20))) for _ in range(draw.choice([1, 3, 200, 2000, 5000]))]
    rows, share = part_of(lengths)
    part, whole = list(evaluation_batches([lengths[row] for row in rows])), list(evaluation_batches(lengths))
    of_whole = {tuple(lengths[row] for row in batch) for batch in whole}
    assert {tuple(lengths[rows[row]] for row in batch) for batch in part} <= of_whole  # the batches are those of all
    assert len(set(rows)) == len(rows) <= max(len(lengths), 6 * 128)

    def cost(batches: list[list[int]], sizes: list[int], power: int) -> float:
        return sum(len(batch) * sizes[batch[0]] ** power for batch in batches)

    for power, off in [(1, 1.001), (2, 1.5), (3, 2.5)]:
        found = cost(part, [lengths[row] for row in rows], power) / share
        assert 1 / off < found / cost(whole, lengths, power) < off
