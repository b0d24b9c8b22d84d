"""Small tensors with known answers: ties, labels without a centroid, heads that say nothing, nested spans."""

import numpy as np
import torch
from torch import Tensor

from mtlprune.analyses.probes.maths import (
    AttendedPlaces,
    Centroids,
    arcs_found,
    arguments_found,
    chosen,
    nearest_found,
    paired_interval,
)


def column(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


def test_an_arc_counts_in_either_direction():
    # one sentence of three words, two heads; what place 0 ([CLS]) to 3 attends to most
    choices = AttendedPlaces(column(0, 2, 2, 0, 3, 1, 2, 2).view(2, 4).T.contiguous(), torch.zeros(4, 2), 4)
    row, head, dependent = column(0, 0, 0, 0), column(2, 0, 3, 0), column(1, 3, 2, 2)
    found = arcs_found(choices, row, head, dependent)
    assert found[:, 0].tolist() == [True, True, False, False]  # 1 → 2, 3 → root
    assert found[:, 1].tolist() == [False, True, True, False]  # root → 3 by [CLS], 3 → 2 by the head


def test_any_word_of_an_argument_will_do():
    # two sentences of four words; the first head of the second sentence: word 1 looks at word 3, all others at word 0
    words = torch.ones(10, 1, dtype=torch.int64)
    words[5 + 2] = 4
    choices = AttendedPlaces(words, words, 5)
    start, end, predicate = column(0, 1, 2, 0), column(2, 2, 4, 1), column(3, 3, 1, 2)
    found = arguments_found(choices, column(1, 1, 1, 1), start, end, predicate)[:, 0]
    assert found.tolist() == [True, True, True, True]
    assert (
        arguments_found(choices, column(0, 0), column(1, 2), column(3, 3), column(3, 3))[:, 0].tolist() == [False] * 2
    )
    nothing = torch.zeros(0, dtype=torch.int64)
    assert arguments_found(choices, *[nothing] * 4).shape == (0, 1)


def test_the_direction_counts_not_the_length():
    made = Centroids(3, 1, 2)
    made.add(torch.tensor([[[1.0, 0.0]], [[0.0, 9.0]]]), column(0, 1))
    made.add(torch.tensor([[[3.0, 0.2]]]), column(0))
    assert made.counts.tolist() == [2, 1, 0] and made.known.tolist() == [True, True, False]
    units = torch.tensor([[[0.5, 0.4]], [[100.0, 120.0]], [[-1.0, -1.0]], [[0.0, 0.0]], [[1.0, 0.0]]])
    label = column(0, 1, 0, 0, 2)
    found = nearest_found(units, label, made.directions(), made.known)[:, 0]
    # far from all, the nearest is still one; nothing said is nothing found; a label without centroid is never found
    assert found.tolist() == [True, True, False, False, False]


def test_of_equally_good_heads_the_lowest_is_chosen():
    dev = np.array([[[1.0, 5.0], [5.0, 2.0]], [[np.nan, 0.0], [0.0, np.nan]], np.full((2, 2), np.nan)])
    assert chosen(dev).tolist() == [1, 1, -1]


def test_items_of_one_sentence_count_as_one_observation():
    generator = np.random.default_rng(3)
    gap = generator.choice([-1.0, 0.0, 1.0], 100, p=[0.2, 0.5, 0.3])
    repeated, sentence = np.repeat(gap, 9), np.repeat(np.arange(100), 9)
    assert np.allclose(paired_interval(repeated, sentence), paired_interval(gap, np.arange(100)))
    narrow, wide = paired_interval(repeated, np.arange(900)), paired_interval(repeated, sentence)
    assert narrow[1] - narrow[0] < 0.5 * (wide[1] - wide[0])


def test_sentences_of_different_sizes_are_resampled_as_wholes():
    """Against the plain bootstrap, sentence by sentence."""
    generator = np.random.default_rng(4)
    sizes = generator.integers(1, 6, 80)
    sentence = np.repeat(np.arange(80), sizes)
    gap = generator.choice([-1.0, 0.0, 1.0], len(sentence))
    sums = np.bincount(sentence, gap)
    rows = generator.integers(0, 80, (20_000, 80))
    plain = np.quantile(sums[rows].sum(1) / sizes[rows].sum(1), [0.025, 0.975])
    assert np.allclose(paired_interval(gap, sentence), plain, atol=0.01)
