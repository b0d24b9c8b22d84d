"""Roles of heads: planted roles are found, one gate ends where a line search ends, gates and conflicts against
enumeration, heads closed alone on counts that hold planted ones."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import pytest
import torch

from mtlprune.analyses.frames import MEAN
from mtlprune.analyses.heads.roles import RoleOptions, show
from mtlprune.analyses.heads.roles.maths import (
    LIMIT,
    START,
    conflict_heads,
    conflicts,
    fit_gates,
    least_effect,
    role_scores,
    two_sided,
)
from mtlprune.analyses.heads.roles.measure import _mean_gains, with_draws
from mtlprune.analyses.heads.roles.single import halves, interfering, select_sentences
from mtlprune.runs.results import Result
from mtlprune.statistics.resamples import Resampled, System


def test_one_gate_without_a_push_ends_where_a_line_search_ends():
    best = 0.3  # (g − 0.3)² + 0.1 g has its minimum at 0.25
    begin = torch.full((1, 1), START)
    logits = fit_gates(lambda gates, update: ((gates - best) ** 2 + 0.1 * gates).sum(), begin, 0, 400, 0.1)
    grid = torch.linspace(0, 1, 10001)
    found = grid[((grid - best) ** 2 + 0.1 * grid).argmin()]
    assert torch.sigmoid(logits).item() == pytest.approx(found.item(), abs=2e-3)


def test_planted_roles_are_found():
    need = torch.tensor([[1.0, -1.0], [0.0, 0.0]])
    opened, closed = two_sided(lambda gates, update: -(need * gates).sum(), (2, 2), 0.5, 120, 0.3)
    scores = role_scores(opened.double().numpy(), closed.double().numpy())
    assert (scores["facilitating"] > 0.5).tolist() == [[True, False], [False, False]]
    assert (scores["interfering"] > 0.5).tolist() == [[False, True], [False, False]]
    assert (scores["irrelevant"] > 0.5).tolist() == [[False, False], [True, True]]


def roles_of(opened: torch.Tensor, closed: torch.Tensor) -> dict[str, list[bool]]:
    scores = role_scores(opened.double().numpy(), closed.double().numpy())
    return {role: (values > 0.5).ravel().tolist() for role, values in scores.items()}


def test_a_head_keeps_its_role_from_the_least_effect_on() -> None:
    """Heads whose effect is a multiple of the least one that the push lets through, 0.001 nats; 0.00001 is nothing.

    Without a projection all ten kept their role, because no push reached logits beyond the clip.
    """
    strength, heads = 0.0025, 10
    assert least_effect(strength, heads) == pytest.approx(0.001)
    effects = torch.tensor([[100.0, 2.0, 1.3, 0.9, 0.01], [-100.0, -2.0, -1.3, -0.9, -0.01]]) * 0.001
    opened, closed = two_sided(lambda gates, update: -(effects * gates).sum(), (2, 5), strength, 60, 0.3)
    assert roles_of(opened, closed) == {
        "facilitating": [True, True, True, *[False] * 7],
        "interfering": [*[False] * 5, True, True, True, False, False],
        "irrelevant": [False, False, False, True, True] * 2,
    }


@pytest.mark.parametrize("sign", [1, -1])
def test_gates_end_at_the_best_of_all_masks(sign: int) -> None:
    """240 losses of four heads, each with effects of 0.002 nats or more, or next to none, and weaker effects of pairs:
    what a push leaves open is the mask with the least loss − strength · mean of logits at ± LIMIT.

    Effects between once and about twice the least one that a push lets through are left out: there a gate that stays
    at its own end is a local minimum of the objective, and the other end is the global one. So are effects of pairs
    as large as those of heads, of which any descent may find another minimum.
    """
    generator, push = np.random.default_rng(sign + 1), 2e-4
    nothing = generator.random((240, 4)) < 0.3
    sizes = np.where(nothing, 1e-5, np.exp(generator.uniform(np.log(0.002), np.log(0.2), (240, 4))))
    effects = sizes * generator.choice([-1, 1], (240, 4))
    pairs = generator.uniform(-0.05, 0.05, (240, 4, 4)) * np.minimum(sizes[:, :, None], sizes[:, None])
    pairs = np.triu(pairs, 1)
    masks = np.array(list(itertools.product((0, 1), repeat=4)), dtype=float)  # (16, 4)
    losses = -masks @ effects.T + np.einsum("mi,cij,mj->mc", masks, pairs, masks)  # (16, 240)
    best = (losses - sign * push * (LIMIT * (2 * masks - 1)).sum(1)[:, None]).argmin(0)
    heads, weights = torch.from_numpy(effects), torch.from_numpy(pairs)

    def loss(gates: torch.Tensor, update: int) -> torch.Tensor:
        gates = gates.double()
        return -(heads * gates).sum() + torch.einsum("ci,cij,cj->", gates, weights, gates)

    assert least_effect(push * 960, 960) < 0.002 / 2
    opened, closed = two_sided(loss, (240, 4), push * 960, 60, 0.3)
    assert (((opened if sign > 0 else closed) > 0.5).numpy() == masks[best].astype(bool)).all()


def test_logits_stay_where_a_push_is_felt() -> None:
    logits = fit_gates(lambda gates, update: -(gates * torch.tensor([[5.0, 1e-5]])).sum(), torch.zeros(1, 2), 0, 99, 1)
    assert logits.tolist() == [[LIMIT, LIMIT]]


def planted_counts(gains: np.ndarray, generator: np.random.Generator) -> list[System]:
    """Counts of 2,000 sentences of ten words with all heads open, then with each of some heads closed, which changes a
    hundredth of the words to either side and gains so many points."""
    correct = generator.random((2000, 10)) < 0.9
    systems = [correct]
    for gain in gains:
        better = ~correct & (generator.random(correct.shape) < (0.01 + gain / 100) / 0.1)
        systems.append(correct & ~(generator.random(correct.shape) < 0.01 / 0.9) | better)
    counts = [np.stack([one.sum(1), np.full(2000, 10)], axis=1)[None] for one in systems]
    return [System(one, ("correct", "all"), lambda sums: 100 * sums["correct"] / sums["all"], (1,)) for one in counts]


def on_halves(systems: list[System], seed: int) -> Callable[[int, Sequence[int]], dict[str, list[System]]]:
    """What closing some of these heads counts on a half of the sentences, for one task."""
    sides = halves(2000, seed)
    return lambda half, heads: {
        "pos": [select_sentences(systems[place], sides[half]) for place in (0, *(1 + head for head in heads))]
    }


def test_heads_closed_alone_are_found_on_both_halves() -> None:
    gains = np.zeros(12)
    gains[[3, 8]] = 0.8, 0.6
    count = on_halves(planted_counts(gains, np.random.default_rng(4)), 0)
    frame, chosen, masks = interfering(count, (3, 4), 500, 0)
    assert masks["pos"].ravel().tolist() == (gains > 0).tolist()
    confirmed = chosen[chosen["p_holm"] < 0.05]
    assert confirmed[["layer", "head"]].to_numpy().tolist() == [[1, 4], [3, 1]]
    second = frame[(frame["measure"] == "gain") & (frame["step"] == 1)].set_index(["layer", "head"])["value"]
    assert second[1, 4] == pytest.approx(confirmed["second"].iloc[0])
    assert len(frame) == 12 * 2 * 2
    assert interfering(count, (3, 4), 500, 0, max_chosen=1)[1][["layer", "head"]].to_numpy().tolist() == [[1, 4]]
    only_chosen, again, _ = interfering(count, (3, 4), 500, 0, confirmed="chosen")
    pd.testing.assert_frame_equal(again, chosen)
    is_known = only_chosen["value"].notna()
    pd.testing.assert_frame_equal(only_chosen[is_known], frame[is_known])
    known = only_chosen[is_known & (only_chosen["step"] == 1) & (only_chosen["measure"] == "gain")]
    assert known[["layer", "head"]].to_numpy().tolist() == chosen[["layer", "head"]].to_numpy().tolist()


def test_heads_that_cost_nothing_are_named_in_few_runs() -> None:
    """Chosen and confirmed at 5 % each, with Holm's correction over what is chosen: at most one run in twenty."""
    named = 0
    for seed in range(60):
        count = on_halves(planted_counts(np.zeros(6), np.random.default_rng([seed, 5])), seed)
        named += len(interfering(count, (2, 3), 200, seed)[2]) > 0
    assert named <= 6  # 97 % of binomial draws of 60 at 0.05


def test_halves_have_every_sentence_once() -> None:
    first, second = halves(7, 3)
    assert sorted([*first, *second]) == list(range(7)) and abs(len(first) - len(second)) == 1


def test_draws_are_in_the_interval() -> None:
    """Draws that differ by nothing but themselves: their mean varies by their standard error."""
    values = np.random.default_rng(0).normal(0, 2.0, 16)
    draws = [Resampled(np.full(3, value), np.full((4000, 3), value)) for value in values]
    mean = with_draws(draws, np.random.default_rng(1))
    assert mean.observed == pytest.approx(np.full(3, values.mean()))
    assert mean.booted.std(0) == pytest.approx(np.full(3, values.std() / 4), rel=0.05)


def test_settings_of_gates_are_refused_without_gates() -> None:
    with pytest.raises(ValueError, match="strength has no effect; leave it out"):
        RoleOptions.model_validate({"closing": "single", "strength": 0.1})
    assert RoleOptions.model_validate({"closing": "single", "draws": 3}).draws == 3


@pytest.mark.parametrize("seed", range(20))
def test_conflict_heads_are_those_of_two_different_tasks(seed: int) -> None:
    generator = np.random.default_rng(seed)
    helps, hinders = generator.random((2, 3, 2, 4)) < 0.4
    expected = np.zeros((2, 4), bool)
    for one, other in itertools.permutations(range(3), 2):
        expected |= helps[one] & hinders[other]
    assert (conflict_heads(helps, hinders) == expected).all()


def test_chance_keeps_layers():
    """Tasks that meet in no layer can have no conflict by chance; those that fill a layer always have."""
    helps, hinders = np.zeros((2, 2, 2, 4), bool)
    helps[0, 0], hinders[1, 1] = True, True
    assert conflicts(helps, hinders, 99, np.random.default_rng(0)) == (0, 0.0, 1.0)
    hinders[1, 0] = True
    assert conflicts(helps, hinders, 99, np.random.default_rng(0)) == (4, 4.0, 1.0)


def test_a_planted_conflict_is_above_chance():
    helps, hinders = np.zeros((2, 2, 3, 12), bool)
    helps[0, :, :3], hinders[1, :, :3] = True, True
    count, expected, p = conflicts(helps, hinders, 999, np.random.default_rng(0))
    assert count == 9 and expected == pytest.approx(9 / 4, abs=0.3) and p == pytest.approx(0.001)


def test_mean_gains_are_over_the_tasks_of_each_run() -> None:
    """A run's gain is the mean of its tasks, however many have conflict heads."""
    noise = np.random.default_rng(0).normal(0, 0.1, (3, 2000))

    def gain(value: float, draws: np.ndarray) -> Resampled:
        return Resampled(np.array([value]), value + draws[:, None])

    runs = {("MTL-2", 1): [gain(1, noise[0]), gain(3, noise[1])], ("MTL-2", 2): [gain(2.4, noise[2])]}
    fitted = {("MTL-2", 1): 0, ("MTL-2", 2): 0, ("MTL-3", 1): 0}  # gates: no task is scored with heads closed alone
    [(keys, contrast)] = _mean_gains({**runs, ("MTL-3", 1): [gain(1, noise[0])]}, fitted, 2000)
    assert (keys, contrast.runs) == ({"encoder": "MTL-2", "task": MEAN}, 2)
    assert contrast.estimate == pytest.approx(2.2) and contrast.high - contrast.low > 2 * 12.7 * 0.2 * 0.99


def test_tasks_without_heads_that_interfere_count_0() -> None:
    """Of four tasks two gain 1 and 3 points in the first run, and none gains in the second: the means are 1 and 0."""
    noise = np.random.default_rng(0).normal(0, 0.1, (2, 2000))
    gains = [
        Resampled(np.array([value]), value + draws[:, None]) for value, draws in zip((1.0, 3.0), noise, strict=True)
    ]
    runs = {("MTL-4", 1): gains, ("MTL-4", 2): []}
    [(_, contrast)] = _mean_gains(runs, {("MTL-4", 1): 4, ("MTL-4", 2): 4}, 2000)
    assert contrast.estimate == pytest.approx(0.5) and contrast.runs == 2
    [(_, nothing)] = _mean_gains({key: [] for key in runs}, {("MTL-4", 1): 4, ("MTL-4", 2): 4}, 2000)
    assert nothing.estimate == 0 and np.isnan(nothing.p)


def test_a_gain_of_one_run_is_reported_without_p() -> None:
    row = {"encoder": "MTL-5", "open": 80, "closed": 81, "random": 80.5, "estimate": 0.5, "detectable": 0.4}
    measured_rows = [
        row | {"task": "srl", "low": 0.2, "high": 0.8, "n": 1, "p": np.nan, "p_holm": np.nan},
        row | {"task": "pos", "low": 0.1, "high": 0.9, "n": 3, "p": 0.01, "p_holm": 0.02},
        row | {"task": "ner", "low": np.nan, "high": np.nan, "n": 3, "p": np.nan, "p_holm": np.nan},
    ]
    result = Result("roles", {"settings": {}}, {"gains": pd.DataFrame(measured_rows)})
    srl, pos = show.findings(result)
    assert "0.50 [0.20, 0.80]" in srl and "no p" in srl and "p 0.0200" in pos
    assert list(show.TABLES["gains"](result).rows["task"]) == ["SRL", "POS"]
