"""Batches keep to their budget, hold every row once, and depend on their generator only."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mtlprune.training.checkpoint import epoch_generator
from mtlprune.training.mixing import ROWS, batches

lengths = st.lists(st.integers(1, 60), max_size=60)


@given(lengths, st.integers(1, 9), st.integers(1, 120), st.integers(0, 5), st.booleans())
def test_every_row_once_within_the_budget(sizes, sentences, tokens, seed, shuffle):
    cut = batches(sizes, sentences, tokens, epoch_generator(seed, 0), shuffle)
    assert sorted(row for batch in cut for row in batch) == list(range(len(sizes)))
    for batch in cut:
        assert 1 <= len(batch) <= sentences
        assert max(sizes[row] for row in batch) * len(batch) <= tokens or len(batch) == 1


@given(lengths, st.integers(1, 9), st.integers(1, 120))
def test_unshuffled_batches_are_cut_from_the_longest_on_and_full(sizes, sentences, tokens):
    cut = batches(sizes, sentences, tokens, epoch_generator(1, 0), shuffle=False)
    flat = [row for batch in cut for row in batch]
    assert flat == sorted(range(len(sizes)), key=lambda row: (-sizes[row], row))
    for batch, _ in pairwise(cut):  # the next sentence did not fit, or the one after the next multiple of ROWS
        fits = tokens // sizes[batch[0]]
        assert len(batch) == (sentences if fits >= sentences else max(1, fits // ROWS * ROWS if fits > ROWS else fits))


def test_a_function_of_seed_and_epoch_only():
    sizes = np.random.default_rng(0).integers(1, 50, 300).tolist()

    def order(seed, epoch):
        np.random.seed(np.random.default_rng().integers(1000))  # whatever other generators do
        return batches(sizes, 16, 400, epoch_generator(seed, epoch))

    assert order(1, 3) == order(1, 3)
    orders = [order(seed, epoch) for seed in (1, 2) for epoch in (0, 1, 2)]
    assert all(orders[i] != orders[j] for i in range(6) for j in range(i))


def test_shuffled_batches_hold_similar_lengths_in_changing_company():
    sizes = np.random.default_rng(0).integers(1, 100, 2000).tolist()
    first, second = (batches(sizes, 32, 10**6, epoch_generator(1, epoch)) for epoch in (0, 1))
    for batch in first:
        longest, shortest = max(sizes[row] for row in batch), min(sizes[row] for row in batch)
        assert shortest >= 0.7 * longest - 2  # the noise is ±10 % on either side
    assert [max(sizes[row] for row in batch) for batch in first] != sorted(
        (max(sizes[row] for row in batch) for batch in first), reverse=True
    )
    company = {row: set(batch) for batch in first for row in batch}
    same = sum(set(batch) == company[batch[0]] for batch in second)
    assert same < len(second) / 10
