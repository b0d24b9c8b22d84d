"""Batches and the tasks they serve, within their budget; and how losses are weighed against each other."""

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mtlprune.config.config import TrainConfig
from mtlprune.training.checkpoint import epoch_generator
from mtlprune.training.mixing import ROWS, batches, joint, plan, sampled, sampling_probabilities
from mtlprune.training.optimisation import Balance


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


def losses(**values: float) -> dict[str, torch.Tensor]:
    return {task: torch.tensor(value, requires_grad=True) for task, value in values.items()}


def numbers(weighed: dict[str, torch.Tensor]) -> dict[str, float]:
    return {task: float(loss.detach()) for task, loss in weighed.items()}


@pytest.mark.parametrize(
    ("mode", "weights", "given", "weighed"),
    [
        ("none", {}, {"pos": 2.0, "ner": 0.5}, {"pos": 2.0, "ner": 0.5}),
        ("fixed", {"pos": 0.25, "dep": 0.0}, {"pos": 2.0, "ner": 0.5, "dep": 3.0}, {"pos": 0.5, "ner": 0.5, "dep": 0}),
        ("running_mean", {}, {"pos": 0.0, "ner": 2.0}, {"pos": 0.0, "ner": 3.0}),  # a mean of 0 counts as 1
    ],
)
def test_first_losses(mode, weights, given, weighed):
    assert numbers(Balance(mode, weights, 5)(losses(**given))) == weighed


def test_running_mean_by_hand():
    balance = Balance("running_mean", {}, 2)
    # first losses: the means, which are not differentiated, are the losses themselves; every weighed loss is their sum
    first = losses(pos=4.0, ner=1.0)
    weighed = balance(first)
    assert numbers(weighed) == {"pos": 5.0, "ner": 5.0}
    sum(weighed.values()).backward()
    assert float(first["pos"].grad) == 5 / 4 and float(first["ner"].grad) == 5.0
    # pos: mean(4, 2) = 3; ner: mean(1, 3) = 2; sum 5
    weighed = balance(losses(pos=2.0, ner=3.0))
    assert numbers(weighed)["pos"] == pytest.approx(2 * 5 / 3)
    assert numbers(weighed)["ner"] == pytest.approx(3 * 5 / 2)
    # a window of two: pos is mean(2, 6) = 4; ner is not in the batch, its mean of 2 still counts in the sum
    weighed = balance(losses(pos=6.0))
    assert numbers(weighed)["pos"] == pytest.approx(6 * (4 + 2) / 4) and set(weighed) == {"pos"}
    # a task that comes later
    weighed = balance(losses(dep=8.0))
    assert numbers(weighed)["dep"] == pytest.approx(8 * (4 + 2 + 8) / 8)


def test_its_memory_goes_through_a_checkpoint():
    one, other = Balance("running_mean", {}, 3), Balance("running_mean", {}, 3)
    for step in range(5):
        one(losses(pos=1.0 + step, ner=2.0 * step + 0.1))
    other.restore(json.loads(json.dumps(one.state())))
    for step in range(3):
        given = losses(pos=3.0 - step, ner=0.3)
        assert numbers(one(given)) == numbers(other(given))


@pytest.mark.parametrize("mode", ["uw", "imtl-l"])
def test_learnt_factors_bring_losses_to_one_size(mode: str) -> None:
    """At the minimum over s, e^(−s) ℓ = 1 (uw, with a factor of ½) and e^s ℓ = 1."""
    balance, given = Balance(mode, {}, 5, rate=0.05), losses(pos=4.0, dep=0.25)
    assert {task: loss.item() for task, loss in balance(given).items()} == (
        {"pos": 2.0, "dep": 0.125} if mode == "uw" else {"pos": 4.0, "dep": 0.25}
    )
    for _ in range(400):
        weighed = balance(given)
    for loss in weighed.values():
        assert loss.item() == pytest.approx(0.5 if mode == "uw" else 1.0, rel=1e-2)


def test_dwa_weighs_by_the_last_two_epochs() -> None:
    balance = Balance("dwa", {}, 5)
    for epoch, (pos, dep) in enumerate([(4.0, 2.0), (2.0, 2.0)]):
        for shift in (-0.5, 0.5):
            assert balance(losses(pos=pos + shift, dep=dep), epoch=epoch)["dep"] == dep
    weighed = balance(losses(pos=1.0, dep=1.0), epoch=2)
    powers = torch.tensor([2 / 4 / 2, 2 / 2 / 2]).exp()
    torch.testing.assert_close(torch.stack(list(weighed.values())), 2 * powers / powers.sum())
    again = Balance("dwa", {}, 5)
    again.restore(balance.state())
    assert again(losses(pos=3.0, dep=1.0), epoch=2) == balance(losses(pos=3.0, dep=1.0), epoch=2)


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
        weighed = balance(losses(**dict(zip(names, before.tolist(), strict=True))))
        torch.testing.assert_close(torch.stack(list(weighed.values())), before * leaves.grad)
        balance.after(dict(zip(names, after.tolist(), strict=True)))
        adam.zero_grad()
        logits.softmax(0).backward(before.log() - after.log())
        adam.step()
        torch.testing.assert_close(torch.tensor([balance.history[name][0] for name in names]), logits.detach())
