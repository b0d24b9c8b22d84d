"""Gradients by head against a moved gate and whole gradients; closing one task's heads in another task's runs."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from found import model_of

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.heads.cross import ALL_TASKS, OTHER_TASKS, PREDICTED_TASKS, CrossOptions
from mtlprune.analyses.heads.cross.measure import (
    AblatedCounts,
    Tables,
    _cells,
    _claimed_only,
    _own_and_others,
    _specificity_rows,
    drawn_scores,
    log_specificity,
    own_minus_others,
    own_of_draws,
    split_by_exclusivity,
)
from mtlprune.corpora.grammar import build_grammar
from mtlprune.encoder.removal import remove_heads
from mtlprune.evaluation.head_masks import random_heads
from mtlprune.evaluation.scores import SCORES, count_names
from mtlprune.model import MultiTaskModel
from mtlprune.runs.folder import RunError
from mtlprune.statistics.contrast import Contrast
from mtlprune.statistics.resamples import Resampled
from mtlprune.training.head_gradients import agreement, derivatives, head_parameters

SENTENCES = list(build_grammar(12, 1, 1, seed=9)["train"])


def make(folder: Path) -> tuple[MultiTaskModel, list[Any], dict[str, list[Any]]]:
    model = model_of(folder, SENTENCES, ("pos", "ner", "dep"))
    pieces = model.encoder.tokenize_all([s.words for s in SENTENCES])
    return model, pieces, {name: [task.target(s) for s in SENTENCES] for name, task in model.tasks.items()}


@pytest.fixture(scope="module", params=["bert", "modernbert"])
def made(request: pytest.FixtureRequest, tiny_encoder: Callable[[str], Path]) -> Any:
    return make(tiny_encoder(request.param))


def test_derivatives_are_those_of_a_gate(made):
    model, pieces, targets = made
    wanted = {"dep": [*targets["dep"][:2], None]}
    found = derivatives(model, pieces[:3], wanted)
    step = 1e-3  # decoders have kinks (LeakyReLU), which a longer one may cross; a shorter one drowns in rounding
    for row in range(2):
        for place in ((0, 1), (1, 3)):
            losses = []
            for sign in (1, -1):
                gates = torch.ones(found.shape[1:])
                gates[place] += sign * step
                batch = model.encoder.collate([pieces[row]])
                encoded = model.encoder(batch, gates)
                target = model.tasks["dep"].collate([wanted["dep"][row]], encoded.sizes)
                losses.append(float(model.tasks["dep"].loss(encoded, target).detach()) * encoded.sizes[0])
            slope = (losses[0] - losses[1]) / (2 * step)
            assert float(found[row][place]) == pytest.approx(slope, rel=2e-2, abs=1e-2)
    assert (found[2] == 0).all()


def test_in_bf16_derivatives_are_near_those_in_fp32_and_take_the_plain_attention_kernel(made):
    model, pieces, targets = made
    full = derivatives(model, pieces, {"dep": targets["dep"]})
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as told:
        low = derivatives(model, pieces, {"dep": targets["dep"]}, torch.bfloat16)
    assert np.corrcoef(full.ravel(), low.ravel())[0, 1] > 0.95
    assert not [event.key for event in told.key_averages() if "flash_attention" in event.key]


def test_cosines_are_those_of_whole_gradients(made):
    model, pieces, targets = made
    told = agreement(model, pieces, targets, size=12)
    batch = model.collate(pieces, targets)
    vectors = []
    for loss in model.losses(batch).values():
        model.zero_grad()
        loss.backward(retain_graph=True)
        parts = [part for part in head_parameters(model.encoder, weights_only=True) if part.layer == 1]
        own = [part.parameter.grad.movedim(part.dim, 0)[part.owners[2]].flatten() for part in parts]
        vectors.append(torch.nn.functional.normalize(torch.cat(own), dim=0))
    expected = torch.stack(vectors) @ torch.stack(vectors).T
    assert told.tasks == tuple(targets) and np.allclose(told.cosines[:, :, 1, 2], expected, atol=1e-5)
    pairs = told.cosines[np.triu_indices(3, 1)]
    np.testing.assert_allclose(told.mean(), pairs.mean(0))
    assert set(np.unique(told.opposed())) <= {0, 1 / 3, 2 / 3, 1}
    assert np.isnan(told.halves).all()  # one mini-batch has no other half


def test_heads_own_all_attention_weights_once(made):
    model, _, _ = made
    parts = head_parameters(model.encoder, weights_only=True)
    if model.encoder.config.model_type == "bert":
        block = model.encoder.transformer.encoder.layer[1].attention
        named = {"q": block.self.query, "k": block.self.key, "v": block.self.value, "o": block.output.dense}
        own = {id(p.parameter): (p.owners[2].nonzero().flatten().tolist(), p.dim) for p in parts if p.layer == 1}
        assert own == {id(part.weight): ([*range(16, 24)], int(name == "o")) for name, part in named.items()}
    assert len({id(p.parameter) for p in parts}) == len(parts) and all((p.owners.sum(0) == 1).all() for p in parts)


def test_the_same_task_agrees_with_itself_and_removed_heads_say_nothing(tiny_encoder):
    model, pieces, targets = make(tiny_encoder("bert"))
    whole = agreement(model, pieces, targets, size=3)
    assert np.allclose(whole.cosines[[0, 1, 2], [0, 1, 2]], 1) and (np.abs(whole.halves) <= 1).all()
    gates = torch.tensor([[1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]])
    encoder = model.encoder
    before = encoder.head_hooks.kept_heads
    encoder.__dict__.pop("head_hooks", None)
    encoder.head_map = remove_heads(encoder.transformer, gates, before)  # type: ignore[arg-type]
    cut = agreement(model, pieces, {t: targets[t] for t in ("pos", "dep")}, size=6)
    assert (np.isnan(cut.mean()) == (gates.numpy() == 0)).all() and cut.cosines.shape == (2, 2, 2, 4)
    assert math.isnan(cut.opposed()[1, 0]) and derivatives(model, pieces[:2], {"pos": targets["pos"][:2]})[0, 1, 0] == 0


def test_random_heads_are_as_many_of_each_layer_claimed_or_not():
    heads = np.array([[1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0], [0] * 6, [1] * 6], bool)
    generator = np.random.default_rng(2)
    drawn = np.stack([random_heads(heads.sum(1).tolist(), 6, generator) for _ in range(4000)])
    assert (drawn.sum(2) == heads.sum(1)).all()
    assert np.allclose(drawn.mean(0), heads.mean(1, keepdims=True), atol=0.04)  # every head as often, the claimed too


def test_claims_are_split_into_those_of_one_task_and_of_several():
    claims = {
        "POS": np.array([[1, 1, 0, 0]], bool),
        "NER": np.array([[0, 1, 1, 0]], bool),
        "SRL": np.array([[0, 0, 0, 1]], bool),  # it shares none
        "DEP": np.array([[0, 1, 0, 0]], bool),  # it shares all
        "MTL-5": np.array([[1, 0, 0, 1]], bool),  # joint runs make no task's head shared, but have parts themselves
        "POS+NER": np.array([[0, 1, 0, 0]], bool),
    }
    found = {label: {part: heads.astype(int).tolist()[0] for part, heads in of.items()}
             for label, of in split_by_exclusivity(claims).items()}  # fmt: skip
    assert found["POS"] == {"claimed": [1, 1, 0, 0], "exclusive": [1, 0, 0, 0], "shared": [0, 1, 0, 0]}
    assert found["NER"] == {"claimed": [0, 1, 1, 0], "exclusive": [0, 0, 1, 0], "shared": [0, 1, 0, 0]}
    assert all([*found[label]] == ["claimed"] for label in ("SRL", "DEP", "MTL-5", "POS+NER"))
    assert [*split_by_exclusivity({"POS": claims["POS"]})["POS"]] == ["claimed"]


def test_own_minus_others_by_hand_and_its_unit_has_no_scale():
    """Two tasks: the first loses 3 by its own heads and 1 by the other's, the second 10 and 30."""
    delta = np.array([[[-3.0], [-1.0]], [[-30.0], [-10.0]]])
    units, points = own_minus_others(delta)[..., 0]
    assert points.tolist() == [-2, 20, 9]
    sizes = np.array([math.sqrt((9 + 1) / 2), math.sqrt((100 + 900) / 2)])
    assert units.tolist() == pytest.approx([-2 / sizes[0], 20 / sizes[1], (20 / sizes[1] - 2 / sizes[0]) / 2])
    rescaled = own_minus_others(delta * np.array([7.0, 0.1])[:, None, None])[..., 0]
    assert rescaled[0] == pytest.approx(units) and rescaled[1, 2] != pytest.approx(points[2])
    seeds = np.random.default_rng(0).normal(size=(3, 3, 5, 2))  # resamples, and two runs: the unit is of both
    whole = own_minus_others(seeds)
    assert whole.shape == (2, 4, 5, 2)
    assert whole[0, 0] == pytest.approx(whole[1, 0] / np.sqrt((seeds[0] ** 2).mean((0, 2)))[:, None])
    assert np.isnan(own_minus_others(np.zeros((2, 2, 1)))[0]).all()  # a task that loses nothing has no unit


def test_what_draws_add_to_own_minus_others_is_its_change_with_them():
    """With the draws of one set alone the contrast is the mean over these of what is said to be added."""
    generator = np.random.default_rng(4)
    closed, random = generator.normal(size=(3, 3, 2)), generator.normal(size=(3, 3, 5))  # (T, U, S), (T, U, D)
    delta = closed - random.mean(2)[..., None]
    added = own_of_draws(delta, random)
    assert added.shape == (2, 4, 3, 5)
    for name, draw in np.ndindex(3, 5):
        chosen = random.mean(2)
        chosen[:, name] = random[:, name, draw]
        points = own_minus_others(closed - chosen[..., None])[1].mean(-1) - own_minus_others(delta)[1].mean(-1)
        assert points == pytest.approx(added[1, :, name, draw] - added[1, :, name].mean(-1))
    sizes = np.sqrt((delta**2).mean((1, 2)))
    assert added[0, :3] == pytest.approx(added[1, :3] / sizes[:, None, None])


def test_specificity_by_hand_and_its_interval_covers_the_truth():
    """Heads of the first task cost it 4 points and the others 2 on average; those of the second 1, and the others 4."""
    truth = np.array([[4.0, 6.0, 1.0], [1.0, 1.0, 0.0], [3.0, 2.0, -1.0]])[..., None]  # scored, closed
    generator, inside, studies = np.random.default_rng(3), np.zeros(2), 300
    near = truth[..., None] + np.linspace(-0.1, 0.1, 50)[:, None]  # of resampled sentences
    values = log_specificity(truth, near, np.zeros((3, 3, 2)))
    first, second, third = (figure.observed.item() for figure, _ in values)
    assert (first, second) == (pytest.approx(math.log(2)), pytest.approx(-math.log(4))) and math.isnan(third)
    far = truth[..., None] + np.linspace(-3, 3, 50)[:, None]  # 1 point is not clearly above 0
    assert [np.isfinite(figure.observed).all() for figure, _ in log_specificity(truth, far, np.zeros((3, 3, 2)))] == [
        False,
        False,
        False,
    ]
    for _ in range(studies):
        random = generator.normal(0, 0.2, (3, 3, 8))  # the mean of draws is what closed heads are compared with
        loss = truth + generator.normal(0, 0.3, (3, 3, 5)) + random.mean(-1, keepdims=True)
        booted = loss[:, :, None] + generator.normal(0, 0.05, (3, 3, 100, 1))
        for place, (figure, draws) in enumerate(log_specificity(loss, booted, random)[:2]):
            contrast = Contrast.of(figure, draws=draws)
            inside[place] += contrast.low <= (math.log(2), -math.log(4))[place] <= contrast.high
    assert (inside / studies > 0.92).all() and (inside / studies < 0.99).all()


def test_specificity_of_predicted_and_other_tasks_are_means_of_logarithms():
    figures = [
        (Resampled(np.array([level, level + 0.1]), np.zeros((4, 2))), np.zeros((1, 3))) for level in (0.5, 1, -1)
    ]
    notes: list[str] = []
    rows = _specificity_rows("claimed", ["POS", "DEP", "SRL"], figures, "pos, dep", notes)
    found = {row["encoder"]: contrast.estimate for row, contrast in rows}
    assert (
        found == pytest.approx({"POS": 0.55, "DEP": 1.05, "SRL": -0.95, PREDICTED_TASKS: 0.8, OTHER_TASKS: -0.95})
        and not notes
    )
    figures[1][0].observed[:] = math.nan
    rows = _specificity_rows("claimed", ["POS", "DEP", "SRL"], figures, "pos,dep", notes)
    assert [row["encoder"] for row, _ in rows] == ["POS", "SRL", OTHER_TASKS] and "not known for DEP" in notes[0]
    with pytest.raises(RunError, match="specific: expected some of POS, DEP, SRL, found NER"):
        _specificity_rows("claimed", ["POS", "DEP", "SRL"], figures, "ner", notes)


@pytest.mark.parametrize("planted", [0.0, 0.2])
def test_a_planted_loss_in_the_own_task_is_found(planted):
    names = count_names("tags", "accuracy")
    generator, labels, words, sentences = np.random.default_rng(5), ("POS", "NER", "DEP"), 20, 300
    held: Tables = {}
    rows: list[dict[str, Any]] = []
    closed = [("", "", ""), *((part, label, control) for part in ("claimed", "shared") for label in labels
                              for control in ("", "random"))]  # fmt: skip
    for label in labels:
        for part, other, control in closed:
            rate = 0.9 - planted * (part == "claimed" and not control and other == label)
            key = label, label.lower(), part, other, control
            cell = held[key] = AblatedCounts(names, SCORES["tags"]["accuracy"])
            for seed in (1, 2, 3):
                draws = generator.binomial(words, rate, (1 + (control == "random"), sentences))
                cell.runs[seed] = np.stack([draws.sum(0), np.full(sentences, len(draws) * words)], 1)
                keys = {"encoder": label, "task": label.lower(), "mode": part, "other": other, "control": control}
                values = [100 * one.mean() / words for one in draws]
                rows += [{**keys, "seed": seed, "step": step, "value": one} for step, one in enumerate(values, 1)]
    request = Request([], Path(), CrossOptions(draws=2, resamples=400, margin=3.0))
    notes: list[str] = []
    scores = pd.DataFrame(rows)
    own, _ = _own_and_others(held, scores, request, notes)
    own = own.set_index(["mode", "term", "encoder"]).sort_index()
    assert len(own) == 2 * 2 * 4 and own["p_holm"].isna().sum() == 4
    mean = own.loc["claimed", "points", ALL_TASKS]
    assert mean["low"] < -100 * planted < mean["high"] and (mean["p"] < 1e-3) == bool(planted)
    units = own.loc[("claimed", "units"), :].loc[[*labels, ALL_TASKS]]
    if planted:  # of three cells one loses: its root mean square is the loss by the square root of 3
        assert units["estimate"].to_numpy() == pytest.approx(-math.sqrt(3), abs=0.03)
        assert (units["p_holm"][:3] < 0.05).all()
    assert (own.loc["shared"]["p"] > 1e-3).all()
    cells = _cells(held, drawn_scores(scores), request)
    assert cells["mode"].tolist() == ["claimed"] * 9 + ["shared"] * 9 and cells["p_holm"].isna().sum() == 6
    cells = cells.query("mode == 'claimed'").set_index(["encoder", "other"])
    delta = cells["estimate"].unstack().loc[[*labels], [*labels]].to_numpy()
    assert np.isclose(mean["estimate"], np.diag(delta).mean() - delta[~np.eye(3, dtype=bool)].mean())
    for place, label in enumerate(labels):
        by_hand = delta[place, place] - np.delete(delta[place], place).mean()
        assert np.isclose(own.loc[("claimed", "points", label), "estimate"], by_hand)
    assert (cells["p_margin"].drop([(label, label) for label in labels]) < 0.05).all()
    for (label, *_), cell in held.items():
        if label == "DEP":
            others_seeds = {seed + 3: counts for seed, counts in cell.runs.items()}
            cell.runs.clear()
            cell.runs.update(others_seeds)
    notes.clear()
    assert _own_and_others(held, scores, request, notes)[0].empty and "share no seed" in notes[0]


def test_shares_of_claimed_heads_without_the_rest_are_those_planted():
    """POS keeps three quarters of what all heads add, and NER a half. If no heads add to DEP, it has no shares."""
    names, words, sentences = count_names("tags", "accuracy"), 20, 400
    rates = {
        "POS": {"": 0.9, "others": 0.8, "random": 0.6, "all": 0.5},
        "NER": {"": 0.8, "others": 0.6, "random": 0.6, "all": 0.4},
        "DEP": dict.fromkeys(("", "others", "random", "all"), 0.5),
    }
    generator, rows = np.random.default_rng(6), []
    held: Tables = {}
    for label, kind, seed in itertools.product(rates, ("", "others", "random", "all"), (1, 2, 3)):
        control = "random" if kind == "random" else ""
        mode, other = "others" if control else kind, label if kind else ""
        key = label, label.lower(), mode, other, control
        cell = held.setdefault(key, AblatedCounts(names, SCORES["tags"]["accuracy"]))
        draws = generator.binomial(words, rates[label][kind], (4 if control else 1, sentences))
        cell.runs[seed] = np.stack([draws.sum(0), np.full(sentences, len(draws) * words)], 1)
        keys = {"encoder": label, "task": label.lower(), "mode": mode, "other": other, "control": control}
        rows += [
            {**keys, "seed": seed, "step": step, "value": 100 * draw.mean() / words}
            for step, draw in enumerate(draws, 1)
        ]
    request, notes = Request([], Path(), CrossOptions(draws=4, resamples=400)), list[str]()
    two_tasks = {key: cell for key, cell in held.items() if key[0] != "DEP"}
    frame = _claimed_only(two_tasks, pd.DataFrame(rows), request, notes).set_index(["mode", "term", "encoder"])
    assert not notes and len(frame) == (4 + 3) * 3
    expected = {
        ("claims - none", "share"): (0.75, 0.5),
        ("random - none", "share"): (0.25, 0.5),
        ("claims - random", "share"): (0.5, 0),
        ("claims - random", "points"): (20, 0),
        ("all - none", "points"): (40, 40),
    }
    for keys, (pos, ner) in expected.items():
        for label, truth in (("POS", pos), ("NER", ner), (ALL_TASKS, (pos + ner) / 2)):
            row = frame.loc[(*keys, label)]
            assert abs(row["estimate"] - truth) < (0.02 if keys[1] == "share" else 1) and row["low"] < row["high"]
    all_tasks = _claimed_only(held, pd.DataFrame(rows), request, notes).query("term == 'share'")
    assert set(all_tasks["encoder"]) == {"POS", "NER"} and "not known for DEP" in notes.pop()
    assert _claimed_only({}, pd.DataFrame(rows), request, notes).empty and "no run has a single task" in notes[0]
