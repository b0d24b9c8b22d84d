"""Selectors on a finished run: Fisher information against enumeration, halves of the data, bounds on false claims."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from small_runs import Settings, corpus_of, prepared, trained
from tiny import HEADS, LAYERS
from torch import Tensor

from mtlprune.config.config import ConfigError, build_config
from mtlprune.encoder.gates import top_mask
from mtlprune.runs.claims import load_claims
from mtlprune.runs.folder import SELECTION, RunFolder
from mtlprune.sweeps.packing import pack
from mtlprune.training.pruning import selectors
from mtlprune.training.pruning.penalty import largest
from mtlprune.training.pruning.selectors import SELECTORS, Finished, fisher_mask, halves, refine_by_swaps, selections

# -- Fisher information ------------------------------------------------------------------------------------------------


def removed(mask: Tensor, information: Tensor) -> float:
    """Σ_{g,h closed} F_gh."""
    closed = (mask == 0).double()
    return float(closed @ information @ closed)


def all_masks(heads: int, keep: int) -> list[Tensor]:
    return [torch.tensor([float(h in kept) for h in range(heads)]) for kept in combinations(range(heads), keep)]


@pytest.mark.parametrize("keep", range(7))
def test_rearranged_masks_against_all_masks_of_a_layer(keep: int) -> None:
    """No exchange of two heads is better; nearly always no mask at all is; never is it worse than the diagonal."""
    generator, found = torch.Generator().manual_seed(keep), []
    for _ in range(40):
        slopes = torch.randn(4, 6, generator=generator, dtype=torch.float64)
        information = slopes.T @ slopes
        greedy = top_mask(information.diagonal()[None], keep)[0]
        mask = refine_by_swaps(greedy, information)
        own = removed(mask, information)
        assert set(mask.tolist()) <= {0.0, 1.0} and mask.sum() == keep and own <= removed(greedy, information) + 1e-9
        others = {tuple(other.tolist()): removed(other, information) for other in all_masks(6, keep)}
        near = [cost for other, cost in others.items() if (torch.tensor(other) - mask).abs().sum() <= 2]
        assert own <= min(near) + 1e-9
        found.append(own <= min(others.values()) + 1e-9)
        torch.testing.assert_close(refine_by_swaps(greedy, information.diagonal().diag()), greedy)
    assert np.mean(found) > 0.7


def test_fisher_in_closed_form_on_a_model_with_one_layer() -> None:
    """A linear model of heads' outputs and squared loss: ∂L/∂ξ_h = (Σ_g x_g − y) · x_h, so F is known; the mask is
    that of the smallest Σ F over all masks."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(200, 5, generator=generator, dtype=torch.float64) * torch.tensor([0.2, 2.0, 0.3, 1.0, 3.0])
    slopes = torch.randn(200, 1, generator=generator, dtype=torch.float64) * x
    for keep in range(1, 5):
        best = min(all_masks(5, keep), key=lambda mask: removed(mask, slopes.T @ slopes))
        assert fisher_mask(slopes[:, None], keep, np.random.default_rng(0))[0].tolist() == best.tolist()


@pytest.mark.parametrize("size", [2, 7, 10])
def test_halves_are_complements(size: int) -> None:
    rows = list(range(100, 100 + size))
    found = list(halves(rows, 6, np.random.default_rng(0)))
    assert len(found) == 6 and {len(half) for half in found} == {size // 2}
    for one, other in zip(found[::2], found[1::2], strict=True):
        assert len({*one, *other}) == 2 * (size // 2) and {*one, *other} <= set(rows)
    assert size == 2 or len({frozenset(half) for half in found}) > 2


def test_planted_heads_are_claimed_and_false_ones_no_more_often_than_the_bound_says() -> None:
    """Sentences whose derivatives are noise but for four heads of 72; 12 are selected on each half."""
    generator, slopes = np.random.default_rng(0), torch.zeros(60, 6, 12)

    def select(_: Finished, rows: Sequence[int], __: int) -> Tensor:
        return top_mask(slopes[list(rows)].square().sum(0), 12)

    bound, false = selectors.expected_false(12, 0.9, 72), []
    assert bound == pytest.approx(2.5)  # by hand, as in the others
    for given, expected in (((36, 0.9, 72), 22.5), ((8, 0.9, 72), 1.1), ((12, 1.0, 144), 1.0)):
        assert selectors.expected_false(*given) == pytest.approx(expected, abs=0.02)
    for _ in range(20):
        slopes.copy_(torch.from_numpy(generator.normal(size=(60, 6, 12))))
        slopes[:, 1, :4] *= 3
        chosen = selections(select, cast(Finished, None), range(60), 32, generator)
        assert chosen.shape == (32, 6, 12) and (chosen.sum((1, 2)) == 12).all()
        claimed = chosen.mean(0) >= 0.9
        assert claimed[1, :4].all()
        false.append(int(claimed.sum()) - 4)
    assert np.mean(false) <= bound


@pytest.fixture(scope="module")
def finished(small_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained(small_settings("pos,dep", epochs=1), tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture(scope="module")
def asks(small_settings: Settings, finished: RunFolder) -> Settings:
    """Settings of a run that chooses heads on ``finished`` and trains nothing."""
    frozen = {"epochs": 1, "start": str(finished.path), "freeze": "encoder,decoders"}
    return lambda method, **pruning: (
        small_settings("pos,dep", **frozen)
        | {"pruning": {"method": method, "keep": 3, "importance_of": str(finished.path), **pruning}}
    )


@pytest.mark.parametrize("method", ["importance", "fisher"])
def test_a_run_keeps_the_heads_chosen(asks: Settings, method: str, tmp_path: Path) -> None:
    settings = asks(method, importance_sentences=40)
    run = trained(settings, tmp_path / "run")
    seen = Finished(prepared(settings, tmp_path / "other"), torch.float32)
    assert len(set(seen.rows)) == 40 and run.selection() is None
    assert (SELECTORS[method](seen, seen.rows, 1).numpy() == run.best_gates()[1]["shared"]).all()


@pytest.mark.parametrize("selector", SELECTORS)
def test_stable_heads_of_a_run(asks: Settings, selector: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frequencies are those of the selector on each half, all from one pass; claims are the run's gates; the record of
    the run has them too."""
    passes: list[list[int]] = []
    measure = selectors.sentence_derivatives
    monkeypatch.setattr(selectors, "sentence_derivatives", lambda *given: passes.append(given[2]) or measure(*given))
    alone = {"init": "open", "rate": 0.5, "selector_updates": 10, "selector_sentences": 5}
    more = alone | {"noise": selector == "gates"} if selector in ("gates", "topk") else {}
    settings = asks("stable", selector=selector, halves=6, threshold=1.0, **more)
    folder = trained(settings, tmp_path / "run")
    gates, found = folder.best_gates()[1]["shared"], folder.selection()
    selected = np.zeros((6, LAYERS, HEADS))  # on each half
    for half, places in zip(selected, folder.read_json(SELECTION)["selected"], strict=True):
        half.flat[places] = 1
    assert sorted(row for rows in passes for row in rows) == (list(range(60)) if not more else [])
    assert (selected.sum((1, 2)) == 3).all()
    np.testing.assert_array_equal(found["frequencies"], selected.mean(0))
    np.testing.assert_array_equal(gates, found["frequencies"] == 1)
    assert (found["frequencies"] % 1 > 0).any()  # or the halves agree on all
    run = prepared(settings, tmp_path / "other")
    seen, generator = Finished(run, torch.float32), selectors.seeded(run.config, 6)
    parts = list(halves(seen.rows, 6, generator))
    for part, seed, mask in zip(parts, generator.integers(2**31, size=6).tolist(), selected, strict=True):
        np.testing.assert_array_equal(SELECTORS[selector](seen, part, seed), mask)
    assert all(parameter.grad is None for parameter in seen.model.parameters())
    corpus = corpus_of(settings)
    pack([tmp_path / "run"], tmp_path / "study", lambda _, __, split: list(corpus[split]))
    for path in (tmp_path / "run", tmp_path / "study/run"):
        [claim] = load_claims([path])
        np.testing.assert_array_equal(claim.gates, gates)
        np.testing.assert_array_equal(claim.frequencies, found["frequencies"])


def test_gates_of_a_selector_move_farther_than_chance_sets_them_apart(asks: Settings, tmp_path: Path) -> None:
    """By default, or with what is given; else heads would be those of the first logits, and are refused."""
    slow = {"init": "paper", "rate": 1e-3}
    for selector in ("gates", "topk"):
        for given in ({}, slow, {"init": "paper"}, {"rate": 0.01}):
            pruning = build_config(asks("stable", selector=selector, **given)).pruning
            assert {"init": pruning.init, "rate": pruning.rate} == {"init": "open", "rate": 0.1, **given}
        with pytest.raises(ConfigError, match=r"pruning.rate: expected at least 0.0\d+ for init: paper and 250 selec"):
            prepared(asks("stable", selector=selector, **slow), tmp_path)
    assert build_config(asks("stable")).pruning.rate == 1e-3  # which has no effect, as ever
    with pytest.raises(ConfigError, match=rf"one of {', '.join(SELECTORS)}, found 'fischer' .*'fisher'"):
        prepared(asks("stable", selector="fischer"), tmp_path)


def test_gates_that_are_alike_are_told_where_their_logits_choose(caplog) -> None:
    logits = torch.tensor([[5.0, 4.0, 3.0, -9.0]])
    found = largest(logits, 1, np.random.default_rng(0), "gates pos have", torch.tensor([[1.0, 1.0, 1.0, 0.0]]))
    assert (
        found.tolist() == [[1, 0, 0, 0]]
        and "gates pos have not distinguished heads, because 3 are equal" in caplog.text
    )


@pytest.mark.parametrize(
    ("values", "keep", "tied"),
    [([3, 2, 2, 2], 2, 2), ([3, 2, 2, 1], 3, 0), ([0, 0, 0, 0], 1, 3), ([1, 0, 0, 0], 4, 0), ([1, 0, 0, 0], 0, 0)],
)
def test_ties_at_the_border_are_drawn_and_told(values, keep, tied, caplog):
    """Each of the equal heads is as often open as the others, whatever its place; one seed, one choice."""
    rows, opened = torch.tensor([values], dtype=torch.float32), torch.zeros(1, 4)
    for seed in range(200):
        mask, again = (largest(rows, keep, np.random.default_rng(seed)) for _ in range(2))
        assert int(mask.sum()) == keep and torch.equal(mask, again)
        assert keep in (0, 4) or rows[mask == 1].min() >= rows[mask == 0].max()
        opened += mask / 200
    assert len(caplog.messages) == (400 if tied else 0)
    if tied:
        equal = opened[rows == rows[mask == 1].min()]
        assert f"{len(equal)} are equal" in caplog.text and float(equal.max() - equal.min()) < 0.2
