"""Batches and the tasks they serve, within their budget; and how losses are weighed against each other."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mtlprune.config.config import TrainConfig
from mtlprune.training.balance import Balance
from mtlprune.training.checkpoint import epoch_generator
from mtlprune.training.mixing import ROWS, batches, plan, sampled, sampling_probabilities


def test_probabilities_by_hand():
    assert sampling_probabilities([4, 1], 0.5).tolist() == [2 / 3, 1 / 3]
    assert sampling_probabilities([7, 7, 7], 0.8).tolist() == pytest.approx([1 / 3] * 3)
    assert sampling_probabilities([9, 1], 0).tolist() == [0.5, 0.5]
    assert sampling_probabilities([9, 1], 1).tolist() == [0.9, 0.1]
    # He and Choi (2021): 2,350 batches of 32 sentences for four tasks, 1,873 for NER
    shares = sampling_probabilities([2350, 2350, 2350, 2350, 1873], 0.8)
    assert shares == pytest.approx([0.2068] * 4 + [0.1727], abs=2e-4)


@given(
    st.lists(st.tuples(st.integers(1, 30), *3 * [st.booleans()]), min_size=1, max_size=40),
    st.integers(1, 6),
    st.integers(0, 20),
    st.floats(0, 2, allow_subnormal=False),
)
def test_sampled_uses_up_a_task_before_it_repeats(rows, sentences, seed, tau):
    lengths = [row[0] for row in rows]
    known = {"pos": [True] * len(rows), **{t: [r[k] for r in rows] for k, t in enumerate(("ner", "dep", "con"), 1)}}
    known = {task: has for task, has in known.items() if any(has)}
    made = sampled(lengths, known, sentences, 50, epoch_generator(seed, 1), tau)
    generator = epoch_generator(seed, 1)  # the same draws, so the same first batches
    first = [batches(list(itertools.compress(lengths, has)), sentences, 50, generator) for has in known.values()]
    assert len(made) == sum(map(len, first)) and {batch.tasks for batch in made} <= {(task,) for task in known}
    for task, has in known.items():
        waiting: set[int] = set()
        for batch in (batch.rows for batch in made if batch.tasks == (task,)):
            assert len(batch) <= sentences and (sum(lengths[row] for row in batch) <= 50 or len(batch) == 1)
            waiting = waiting or set(itertools.compress(range(len(rows)), has))
            assert waiting.issuperset(batch)  # no row a second time while another still waits for its first
            waiting -= set(batch)


@pytest.mark.parametrize("mixing", ["joint", "sampled"])
@pytest.mark.parametrize("accumulate", [1, 3, 4])
def test_an_update_keeps_the_budget_whatever_is_accumulated(mixing, accumulate):
    settings = TrainConfig(batch_sentences=12, batch_tokens=240, accumulate=accumulate, mixing=mixing)
    lengths = np.random.default_rng(1).integers(3, 30, 100).tolist()
    known = {"pos": [True] * 98 + [False] * 2, "dep": [False] * 40 + [True] * 50 + [False] * 10}
    updates = plan(settings, lengths, known, epoch_generator(1, 0))
    for update in updates[:-1]:
        assert len(update) == accumulate
    assert 1 <= len(updates[-1]) <= accumulate
    for update in updates:
        rows = [row for batch in update for row in batch.rows]
        assert len(rows) <= 12 and sum(lengths[row] for row in rows) <= 240
    if mixing == "joint":
        assert sorted(row for update in updates for batch in update for row in batch.rows) == list(range(98))
        assert {batch.tasks for update in updates for batch in update} == {("pos", "dep")}
    assert plan(settings, lengths, known, epoch_generator(1, 0)) == updates
    assert plan(settings, lengths, known, epoch_generator(1, 1)) != updates


@pytest.mark.parametrize("share", [0.03, 0.1, 0.3, 1.0])
def test_a_task_with_a_share_takes_part_in_that_share_of_batches_spread_evenly(share):
    lengths, known = [10] * 500, {"pos": [True] * 500, "ner": [True] * 500}
    settings = TrainConfig(batch_sentences=5, batch_tokens=50)
    chosen = []
    for epoch in range(60):
        batches_of_epoch = [batch for [batch] in plan(settings, lengths, known, epoch_generator(1, epoch))]
        with_share = [
            batch
            for [batch] in plan(
                settings.model_copy(update={"shares": {"ner": share}}), lengths, known, epoch_generator(1, epoch)
            )
        ]
        assert [batch.rows for batch in with_share] == [batch.rows for batch in batches_of_epoch]
        assert all(batch.tasks in (("pos",), ("pos", "ner")) for batch in with_share)
        places = np.flatnonzero(["ner" in batch.tasks for batch in with_share])
        assert len(places) in (np.floor(100 * share), np.ceil(100 * share))
        assert set(np.diff(places)) <= {np.floor(1 / share), np.ceil(1 / share)}
        chosen.append(len(places))
    assert np.mean(chosen) == pytest.approx(100 * share, abs=0.3)


def test_batches_without_a_layer_of_their_tasks_are_left_out():
    known = {"pos": [True] * 50 + [False] * 50, "ner": [False] * 50 + [True] * 50}
    settings = TrainConfig(batch_sentences=5, batch_tokens=50, shares={"ner": 0.3})
    planned = [batch for [batch] in plan(settings, [10] * 50 + [5] * 50, known, epoch_generator(1, 0))]
    assert all(any(known[task][row] for task in batch.tasks for row in batch.rows) for batch in planned)
    assert {row for batch in planned for row in batch.rows} >= set(range(50))


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
    for batch, _ in itertools.pairwise(
        cut
    ):  # the next sentence did not fit, or the one after the next multiple of ROWS
        fits = tokens // sizes[batch[0]]
        assert len(batch) == (sentences if fits >= sentences else max(1, fits // ROWS * ROWS if fits > ROWS else fits))


def test_shuffled_batches_hold_similar_lengths_in_changing_company():
    sizes = np.random.default_rng(0).integers(1, 100, 2000).tolist()
    first, second = (batches(sizes, 32, 10**6, epoch_generator(1, epoch)) for epoch in (0, 1))
    longest = [max(sizes[row] for row in batch) for batch in first]
    for batch, most in zip(first, longest, strict=True):
        assert min(sizes[row] for row in batch) >= 0.7 * most - 2  # the noise is ±10 % on either side
    assert longest != sorted(longest, reverse=True)
    assert len({frozenset(batch) for batch in first} & {frozenset(batch) for batch in second}) < len(second) / 10


def weighed(balance: Balance, epoch: int = 0, **values: float) -> dict[str, float]:
    losses = {task: torch.tensor(value) for task, value in values.items()}
    return {task: loss.item() for task, loss in balance.weigh(losses, epoch).items()}


@pytest.mark.parametrize(
    ("mode", "weights", "given", "expected"),
    [
        ("none", {}, {"pos": 2.0, "ner": 0.5}, {"pos": 2.0, "ner": 0.5}),
        ("fixed", {"pos": 0.25, "dep": 0.0}, {"pos": 2.0, "ner": 0.5, "dep": 3.0}, {"pos": 0.5, "ner": 0.5, "dep": 0}),
        ("running_mean", {}, {"pos": 0.0, "ner": 2.0}, {"pos": 0.0, "ner": 3.0}),  # a mean of 0 counts as 1
        ("uw", {}, {"pos": 4.0, "dep": 0.25}, {"pos": 2.0, "dep": 0.125}),
        ("imtl-l", {}, {"pos": 4.0, "dep": 0.25}, {"pos": 4.0, "dep": 0.25}),
    ],
)
def test_first_losses(mode, weights, given, expected):
    assert weighed(Balance(mode, weights, 5), **given) == expected


@pytest.mark.parametrize(("mode", "size"), [("uw", 0.5), ("imtl-l", 1.0)])
def test_learnt_factors_bring_losses_to_one_size(mode, size):
    """At the minimum over s, e^(−s) ℓ = 1 (uw, with a factor of ½) and e^s ℓ = 1."""
    balance = Balance(mode, {}, 5, rate=0.05)
    for _ in range(400):
        found = weighed(balance, pos=4.0, dep=0.25)
    assert found == pytest.approx({"pos": size, "dep": size}, rel=1e-2)


def test_dwa_weighs_by_the_last_two_epochs():
    balance = Balance("dwa", {}, 5)
    for epoch, (pos, dep) in enumerate([(4.0, 2.0), (2.0, 2.0)]):
        for shift in (-0.5, 0.5):
            assert weighed(balance, epoch, pos=pos + shift, dep=dep)["dep"] == dep
    powers = np.exp([2 / 4 / 2, 2 / 2 / 2])
    found = weighed(balance, epoch=2, pos=1.0, dep=1.0)
    assert list(found.values()) == pytest.approx(2 * powers / powers.sum())


def test_famo_is_the_gradient_of_weighed_logarithms_and_looks_after_slow_tasks() -> None:
    """Against the formulas with torch's own softmax, derivative and Adam."""
    balance, names = Balance("famo", {}, 5), ("pos", "dep", "srl")
    logits = torch.zeros(3, requires_grad=True)
    adam = torch.optim.Adam([logits], 0.025, weight_decay=1e-3)
    draw = torch.Generator().manual_seed(0)
    for _ in range(5):
        before, after = (torch.rand(3, generator=draw) + 0.1 for _ in range(2))
        leaves = before.clone().requires_grad_()
        share = logits.detach().softmax(0)
        ((share * leaves.log()).sum() / (share / before).sum()).backward()
        found = weighed(balance, **dict(zip(names, before.tolist(), strict=True)))
        torch.testing.assert_close(torch.tensor(list(found.values())), before * leaves.grad)
        balance.update_logits(dict(zip(names, after.tolist(), strict=True)))
        adam.zero_grad()
        logits.softmax(0).backward(before.log() - after.log())
        adam.step()
        torch.testing.assert_close(torch.tensor([balance.history[name][0] for name in names]), logits.detach())
