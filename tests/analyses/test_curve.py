"""Curves over open heads: areas, orders, planted sets that are sufficient, necessary and minimal."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from mtlprune.analyses.harness.ablation import AblatableRun
from mtlprune.analyses.heads.curve.maths import (
    Mask,
    areas,
    head_set_tests,
    numbers,
    ranked,
    sufficient_sets,
    within_layers,
)
from mtlprune.analyses.heads.curve.measure import HeadSetScorer
from mtlprune.config.config import build_config
from mtlprune.corpora.grammar import build_grammar
from mtlprune.model import MultiTaskModel
from mtlprune.sentence import Sentence
from mtlprune.tasks import TASKS
from mtlprune.training.evaluation import evaluate

SIZE = (3, 8)


def planted(*heads: tuple[int, int]) -> Mask:
    mask = np.zeros(SIZE, bool)
    mask[tuple(zip(*heads, strict=True))] = True
    return mask


FIRST, SECOND = planted((0, 1), (1, 2), (2, 3)), planted((0, 4), (1, 5), (2, 0))


def score(*copies: Mask) -> Callable[[Mask], float]:
    """40 points and 60 more, in equal parts for each open head of the best copy."""
    return lambda heads: max(40 + 60 * float(heads[copy].mean()) for copy in copies)


def test_area_of_a_line_a_step_and_a_curve_above_the_whole() -> None:
    opened = [0, 6, 12]
    curves = np.array([[40, 70, 100], [40, 100, 100], [40, 130, 100], [40, 40, 100], [50, 50, 50]], float)
    performance = areas(curves, opened)
    assert performance[:4] == pytest.approx([0.5, 0.75, 1.0, 0.25]) and np.isnan(performance[4])
    assert numbers(8, 3) == [0, 3, 6, 8] and numbers(6, 3) == [0, 3, 6]


@pytest.mark.parametrize("seed", range(10))
def test_orders_open_so_many_heads_and_within_layers_as_many_of_each(seed: int) -> None:
    generator = np.random.default_rng(seed)
    values = generator.integers(0, 4, SIZE).astype(float)
    best = ranked(values, generator)
    random = within_layers(best, SIZE, generator)
    for keep in range(25):
        mask = best(keep)
        assert mask.sum() == keep and (keep in (0, 24) or values[mask].min() >= values[~mask].max())
        assert (random(keep).sum(1) == mask.sum(1)).all() and not (random(keep) & ~random(min(24, keep + 1))).any()


def test_the_curve_of_planted_heads_reaches_the_whole_at_their_number() -> None:
    generator = np.random.default_rng(1)
    best, opened = ranked(FIRST.astype(float), generator), numbers(24, 1)
    orders = [best, *(within_layers(best, SIZE, generator) for _ in range(5)), lambda keep: ~best(24 - keep)]
    curves = np.array([[score(FIRST)(order(keep)) for keep in opened] for order in orders])
    assert curves[0, :4].tolist() == pytest.approx([40, 60, 80, 100]) and (curves[0, 3:] == 100).all()
    performance = areas(curves, opened)
    assert performance[0] > performance[1:-1].max() and performance[-1] < performance[:-1].min()


def test_a_planted_set_is_sufficient_needed_and_minimal() -> None:
    tests = head_set_tests(score(FIRST), FIRST, 39, np.random.default_rng(0))
    assert tests["without"] == 40 and tests["random_without"] > 80
    assert tests["needed_p"] <= 0.05 and tests["sufficient_p"] <= 0.05 and tests["superfluous"] == 0


def test_a_head_too_many_can_go_and_a_copy_is_not_needed() -> None:
    more = FIRST | planted((0, 7))
    tests = head_set_tests(score(FIRST), more, 39, np.random.default_rng(0))
    assert tests["superfluous"] == 1
    tests = head_set_tests(score(FIRST, SECOND), FIRST, 39, np.random.default_rng(0))
    assert tests["without"] == 100 and tests["needed_p"] == 1


def test_two_planted_copies_are_two_sets_without_a_common_head() -> None:
    def select(taken: Mask) -> Callable[[int], Mask]:
        values = 2.0 * FIRST + SECOND - 9.0 * taken
        return ranked(values, np.random.default_rng(0))

    nothing = np.zeros(SIZE, bool)
    for copies in ((FIRST,), (FIRST, SECOND)):
        sets = sufficient_sets(score(*copies), select, 99, 3, nothing)
        assert [one.tolist() for one in sets] == [copy.tolist() for copy in copies]


# -- a model -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scorer(tiny_encoder: Callable[[str], Path]) -> HeadSetScorer:
    """A tagger on a tiny encoder in which two heads alone have an effect: others do not reach the residual stream."""
    sentences: list[Sentence] = list(build_grammar(30, 1, 1, seed=3)["train"])
    tree = {"data": {"path": "nowhere"}, "tasks": ["pos"], "encoder": {"name": str(tiny_encoder("bert"))}}
    model = MultiTaskModel.build(build_config(tree, "test"), {"pos": TASKS["pos"].collect(sentences)}).eval()
    places = model.encoder.head_hooks
    for parameter in model.tasks.parameters():
        nn.init.normal_(parameter, 0, 0.3)
    with torch.no_grad():
        for layer, effective in enumerate(([1], [2])):
            weight = model.encoder.transformer.encoder.layer[layer].attention.output.dense.weight  # type: ignore[union-attr,index]
            for head in set(range(places.heads)) - set(effective):
                weight[:, head * places.width : (head + 1) * places.width] = 0
    return HeadSetScorer(AblatableRun(model), "pos", sentences, sentences)


@pytest.mark.parametrize("selector", ["fisher", "importance"])
def test_selectors_open_the_heads_with_an_effect_first(scorer: HeadSetScorer, selector: str) -> None:
    expected = np.zeros((2, 4), bool)
    expected[0, 1] = expected[1, 2] = True
    best = scorer.rank(selector, np.zeros((2, 4), bool), 0)
    assert (best(2) == expected).all()
    assert (scorer.counts(best(2)).counts == scorer.counts(np.ones((2, 4), bool)).counts).all()
    assert not scorer.rank(selector, expected, 0)(6)[expected].any()


def test_all_open_is_the_run_and_none_is_all_closed(scorer: HeadSetScorer) -> None:
    plain = MultiTaskModel(scorer.run.model.encoder, {"pos": scorer.task})
    assert scorer.score(np.ones((2, 4), bool)) == evaluate(plain, scorer.sentences, torch.float32).main()["pos"]
    with torch.no_grad(), scorer.run.model.encoder.head_hooks.gated(torch.zeros(2, 4)):
        closed = evaluate(plain, scorer.sentences, torch.float32).main()["pos"]
    assert scorer.score(np.zeros((2, 4), bool)) == closed
