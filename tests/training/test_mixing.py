"""Joint batches serve all tasks at once; sampled ones a task each, drawn with p ∝ n^τ."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtlprune.config.config import TrainConfig
from mtlprune.training.checkpoint import epoch_generator
from mtlprune.training.mixing import batches, joint, plan, sampled, sampling_probabilities


def test_probabilities_by_hand():
    assert sampling_probabilities([4, 1], 0.5).tolist() == [2 / 3, 1 / 3]
    assert sampling_probabilities([7, 7, 7], 0.8).tolist() == pytest.approx([1 / 3] * 3)
    assert sampling_probabilities([9, 1], 0).tolist() == [0.5, 0.5]
    assert sampling_probabilities([9, 1], 1).tolist() == [0.9, 0.1]
    # He and Choi (2021): 2,350 batches of 32 sentences for four tasks, 1,873 for NER
    shares = sampling_probabilities([2350, 2350, 2350, 2350, 1873], 0.8)
    assert shares == pytest.approx([0.2068] * 4 + [0.1727], abs=2e-4)


def test_joint_takes_every_sentence_with_a_layer_once_for_all_tasks():
    lengths = [5] * 10
    known = {"pos": [True] * 4 + [False] * 6, "ner": [False] * 3 + [True] * 5 + [False] * 2}
    made = joint(lengths, known, 3, 1000, epoch_generator(1, 0))
    assert sorted(row for batch in made for row in batch.rows) == list(range(8))  # 8 and 9 know nothing
    assert all(batch.tasks == ("pos", "ner") for batch in made)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=40),
    st.integers(1, 6),
    st.integers(0, 20),
    st.floats(0, 2),
)
def test_sampled_uses_up_a_task_before_it_repeats(rows, sentences, seed, tau):
    lengths = [row[0] for row in rows]
    known = {"pos": [True] * len(rows), **{t: [r[k] for r in rows] for k, t in enumerate(("ner", "dep", "con"), 1)}}
    known = {task: has for task, has in known.items() if any(has)}
    made = sampled(lengths, known, sentences, 50, epoch_generator(seed, 1), tau)
    generator = epoch_generator(seed, 1)
    number = {}
    for task, has in known.items():
        number[task] = len(batches([n for n, h in zip(lengths, has, strict=True) if h], sentences, 50, generator))
    assert len(made) == sum(number.values())  # the same draws from the generator, so the same first batches
    for task, has in known.items():
        own = [batch.rows for batch in made if batch.tasks == (task,)]
        seen: Counter[int] = Counter()
        for batch in own:
            assert len(batch) <= sentences and (sum(lengths[row] for row in batch) <= 50 or len(batch) == 1)
            assert all(has[row] for row in batch)
            seen.update(batch)
            # no row a second time while another still waits for its first
            full = sum(has)
            assert max(seen.values()) - (0 if len(seen) < full else min(seen.values())) <= 1
    assert {task for batch in made for task in batch.tasks} <= set(known)


def test_sampled_shares_are_those_of_the_formula():
    lengths = [10] * 900
    known = {"pos": [True] * 900, "ner": [row < 300 for row in range(900)], "srl": [row < 90 for row in range(900)]}
    drawn: Counter[str] = Counter()
    draws = 0
    for epoch in range(60):
        made = sampled(lengths, known, 10, 10**6, epoch_generator(3, epoch), 0.5)
        assert len(made) == 90 + 30 + 9
        drawn.update(batch.tasks[0] for batch in made)
        draws += len(made)
    share = np.sqrt([90, 30, 9]) / np.sqrt([90, 30, 9]).sum()
    for task, p in zip(known, share, strict=True):
        assert abs(drawn[task] / draws - p) < 4 * np.sqrt(p * (1 - p) / draws)  # four standard errors


@pytest.mark.parametrize("mixing", ["joint", "sampled"])
@pytest.mark.parametrize("accumulate", [1, 3, 4])
def test_an_update_keeps_the_budget_whatever_is_accumulated(mixing, accumulate):
    settings = TrainConfig(batch_sentences=12, batch_tokens=240, accumulate=accumulate, mixing=mixing)
    lengths = np.random.default_rng(1).integers(3, 30, 100).tolist()
    known = {"pos": [True] * 100, "dep": [True] * 50 + [False] * 50}
    updates = plan(settings, lengths, known, epoch_generator(1, 0))
    for update in updates[:-1]:
        assert len(update) == accumulate
    assert 1 <= len(updates[-1]) <= accumulate
    for update in updates:
        rows = [row for batch in update for row in batch.rows]
        assert len(rows) <= 12 and sum(lengths[row] for row in rows) <= 240
    if mixing == "joint":
        assert sorted(row for update in updates for batch in update for row in batch.rows) == list(range(100))
    assert plan(settings, lengths, known, epoch_generator(1, 0)) == updates
    assert plan(settings, lengths, known, epoch_generator(1, 1)) != updates
