"""Over-smoothing: identities, known λ, the split by labels, and the bound on random and tiny encoders."""

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from found import GATES, column, grids, reading_of, sentences_of, subject_of, without_heads
from hypothesis import given
from hypothesis import strategies as st
from tiny import FAMILIES, make_config
from torch import Tensor
from torch.nn import functional
from transformers import BertModel
from transformers.activations import ACT2FN

from mtlprune.analyses.analysis import Request, find
from mtlprune.analyses.harness.reading import of_corpora, survey
from mtlprune.analyses.heads.claims.groups import Groups, compare, compared, difference
from mtlprune.analyses.vectors.smoothing import SmoothingOptions, maths
from mtlprune.analyses.vectors.smoothing.measure import (
    BOUNDS,
    CHANGED_MEASURES,
    COMPARED,
    EFFECTS,
    STATES,
    SmoothingSurvey,
)
from mtlprune.analyses.vectors.smoothing.show import FIGURES
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import observe
from mtlprune.encoder.post_norm import LIPSCHITZ, LayerNorms, head_norms, read_layers, refusal
from mtlprune.reports.analyses import tables
from mtlprune.runs.results import Result
from mtlprune.sentence import Dependencies, Predicate, Sentence, Span

SEEDS = st.integers(0, 10**6)


def rows(seed: int, n: int = 7, width: int = 5) -> Tensor:
    return torch.randn(1, n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def of(measure: Callable[[Tensor, Tensor], Tensor], values: Tensor) -> float:
    """A measure of the (..., N, D) vectors of one sentence, none of them padding."""
    return float(measure(values, torch.ones(1, values.shape[-2], dtype=torch.bool)))


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-10, abs=1e-12)


@given(SEEDS)
def test_distance_is_a_mean_over_pairs_and_cosine_counts_pairs(seed):
    h = rows(seed)
    pairs = torch.cdist(h[0], h[0]).square().sum() / 2
    assert of(maths.distance, h) ** 2 == near(float(pairs) / 7)
    one_by_one = [functional.cosine_similarity(h[0, i], h[0, j], dim=0) for i in range(7) for j in range(7) if i != j]
    assert of(maths.cosine, h) == near(float(torch.stack(one_by_one).mean()))


@given(SEEDS)
def test_mixing_is_a_squared_singular_value(seed):
    a = torch.softmax(2 * rows(seed, 6, 6)[0], -1)
    centre = torch.eye(6, dtype=torch.float64) - 1 / 6
    assert of(maths.mixing, a[None, None]) == near(float(torch.linalg.matrix_norm(centre @ a, ord=2)) ** 2)


@pytest.mark.parametrize("name", LIPSCHITZ)
def test_slopes_of_activations_are_bounded_and_not_far_off(name):
    x = torch.linspace(-8, 8, 400_001, dtype=torch.float64, requires_grad=True)
    slope = float(torch.autograd.grad(ACT2FN[name](x).sum(), x)[0].abs().max())
    assert slope <= LIPSCHITZ[name] <= slope + 2e-3


def test_the_published_factor_by_hand_and_without_heads():
    one = torch.ones(2, dtype=torch.float64)
    layer = LayerNorms((2.0, 1.0), (0.0, 0.0), (3.0, 0.5), 1.129, torch.tensor([1.0, 0.0, 2.0]).double())
    mixings = torch.tensor([[0.25, 9.0, 0.04], [0.0, 1.0, 0.0]]).double()  # the closed head's λ counts for nothing
    expected = torch.tensor([10 * (1 + 0.5 * 2 * 3), 10.0]).double()
    torch.testing.assert_close(maths.published_factor(layer, 2 * one, 0.5 * one, mixings), expected)
    empty = layer._replace(heads=torch.zeros(0).double())
    none = torch.zeros(2, 0, dtype=torch.float64)
    torch.testing.assert_close(maths.published_factor(empty, one, one, none), 10 * one)
    torch.testing.assert_close(maths.rigorous_bound(empty, one, one, none).value, one * 2 * (1 + 1.129 * 1.5))


@given(SEEDS)
def test_shares_of_dimensions_are_of_the_expected_cosine(seed):
    unit = functional.normalize(rows(seed, 40, 6)[0] + 1, dim=-1)
    shares, without = maths.shares_of_dimensions(unit.mean(0)), unit * (torch.arange(6) != 2)
    assert float(shares.sum()) == near(1)
    assert float(shares[2]) == near(1 - float((without @ without.T).mean() / (unit @ unit.T).mean()))


def test_a_label_a_word_for_every_task():
    one = Sentence(
        "1",
        ("she", "gave", "Ann", "Lee", "it", "to", "keep"),
        pos=("P", "V", "N", "N", "P", "T", "V"),
        ner=(Span(2, 4, "PER"),),
        dep=Dependencies((2, 0, 4, 2, 2, 7, 2), ("a", "root", "b", "c", "d", "e", "f")),
        con=(Span(0, 7, "S"), Span(1, 7, "VP"), Span(2, 4, "NP"), Span(5, 7, "VP2")),
        srl=(
            Predicate(1, arguments=(Span(0, 1, "A0"), Span(1, 2, "V"), Span(2, 4, "A2"), Span(4, 7, "A1"))),
            Predicate(6, arguments=(Span(4, 5, "A1b"), Span(6, 7, "V"))),
        ),
    )
    expected = {"pos": "P V N N P T V", "dep": "a root b c d e f", "ner": "O O PER PER O O O"}
    expected |= {"con": "S VP NP NP VP VP2 VP2", "srl": "A0 V A2 A2 A1b A1 A1"}
    for task, labels in expected.items():
        assert maths.word_labels(one, task) == labels.split() and maths.word_labels(one.bare(), task) is None


def vectors(seed: int, words: int) -> Tensor:
    return rows(seed, words, 4)[0]


def grams(held: list[Tensor]) -> Tensor:
    padded = torch.nn.utils.rnn.pad_sequence([values - values.mean(0) for values in held], batch_first=True)
    return (padded @ padded.mT)[:, None]


def test_shares_are_those_of_the_split_chance_their_mean_over_all_orders_and_draws_keep_labels():
    held = [vectors(1, 6), vectors(2, 4)]
    labels = torch.tensor([[0, 1, 0, 2, 2, 1], [0, 0, 1, 1, -1, -1]])
    found = maths.between_shares(grams(held), labels[:, None])[:, 0, 0]
    for values, numbers, share in zip(held, labels, found, strict=True):
        own, off = functional.one_hot(numbers[: len(values)]).double(), values - values.mean(0)
        means = own @ torch.linalg.pinv(own) @ off  # that of its label, for each word
        assert float(share) == pytest.approx(float(means.square().sum() / off.square().sum()))
    orders = torch.tensor(sorted(set(itertools.permutations((0, 0, 0, 1, 2)))))
    mean = float(maths.between_shares(grams([vectors(3, 5)]), orders[None])[0, :, 0].mean())
    assert mean == pytest.approx((3 - 1) / (5 - 1))
    drawn = maths.permuted(labels, 400, torch.Generator().manual_seed(0))
    assert torch.equal(drawn.sort(-1).values, labels.sort(-1).values[:, None].expand(2, 400, 6))
    assert (drawn[1, :, 4:] == -1).all() and abs(float(drawn[1, :, 0].double().mean()) - 0.5) < 0.1


@pytest.mark.parametrize("planted", [False, True])
def test_a_planted_label_is_found_and_a_blind_one_is_not(planted):
    counted = maths.LabelSplit("pos", 1, 199, 0)
    said_nothing = [Sentence("s", ("w",) * len(tags), pos=(*tags,)) for tags in ("AB", "AAA", "ABC")]
    counted.add(said_nothing, grams([vectors(1, len(one)) for one in said_nothing]))
    assert counted.sentences == 0 and not list(counted.records())
    generator = np.random.default_rng(5)
    for batch in range(10):
        tags = [generator.choice(["A", "B"], 8).tolist() for _ in range(4)]
        held = [vectors(10 * batch + k, 8) for k in range(4)]
        if planted:
            held = [v + 2 * torch.tensor([t == "A" for t in row])[:, None] for v, row in zip(held, tags, strict=True)]
        counted.add([Sentence("s", ("w",) * 8, pos=tuple(row)) for row in tags], grams(held))
    rows = list(counted.records())
    gain, p, found = rows[2]["value"], rows[0]["p"], {row["measure"]: row["value"] for row in rows}
    assert counted.sentences >= 38 and gain == pytest.approx(found["share"] - found["chance"])
    assert p <= 0.01 and gain > 0.2 if planted else p > 0.01 and abs(gain) < 0.1
    assert abs(counted.null.mean() / counted.sentences - found["chance"]) < 0.01


SENTENCES = sentences_of((5, 11, 3, 8, 1, 6))
REQUEST = Request((), Path("nowhere"), SmoothingOptions(closing=4, permutations=19))


def measured(encoder: Encoder, gates: Tensor | None = None, sentences: list[Sentence] = SENTENCES) -> SimpleNamespace:
    """A Result, and arrays of it: measure → of sentences (S, L + 1), of heads (L, A)."""
    held = reading_of(sentences, subject_of(encoder, gates))
    result = survey("smoothing", held, REQUEST, lambda one: SmoothingSurvey(held, one, REQUEST).run()).result
    tables = result.frames["sentences"].set_index(["sentence", "layer"]).select_dtypes("float32")
    arrays = {name: table.unstack().loc[[one.id for one in sentences]].to_numpy() for name, table in tables.items()}
    return SimpleNamespace(result=result, sentences=arrays, heads=grids(result))


def values_of(result: Result, frame: str) -> dict[str, float]:
    rows = result.frames[frame]
    return dict(zip(rows["measure"], rows["value"], strict=True))


@pytest.mark.parametrize("chosen", [None, (1,)])
def test_fused_vectors_of_one_layer_are_those_of_the_layer(tiny_encoder: Callable[[str], Path], chosen) -> None:
    """A mix with all its weight on the first layer; a maximum over one layer; and no other number changes."""
    mix = Encoder.load(str(tiny_encoder("bert")), attention="eager", fusion="scalar_mix", fusion_layers=chosen)
    with torch.no_grad():
        mix.fusion.scores[0] = 100.0
    plain = measured(Encoder.load(str(tiny_encoder("bert")), attention="eager"))
    found = measured(mix)
    for name, values in plain.sentences.items():
        np.testing.assert_array_equal(found.sentences[name], values)
    layers = plain.result.wide("layers").set_index("layer")
    fused = values_of(found.result, "fused")
    for name in STATES:
        assert fused[name] == pytest.approx(layers.loc[1, name], rel=1e-5), name
    for name in CHANGED_MEASURES:
        assert fused[f"{name}_change"] == pytest.approx(layers.loc[1, name] - layers.loc[2, name], abs=1e-5)
    weights = found.result.rows_with_measure("layers", "fusion")
    assert weights["fusion"].tolist() == pytest.approx([1.0, 0.0] if chosen is None else [1.0])
    assert "fused" not in plain.result.frames and "fusion" not in plain.result.wide("layers")
    if chosen:
        best = Encoder.load(str(tiny_encoder("bert")), attention="eager", fusion="max", fusion_layers=chosen)
        assert values_of(measured(best).result, "fused") == pytest.approx(fused, rel=1e-5, abs=1e-7)


def test_corpora_in_one_result_are_what_each_is_alone(bert: Encoder) -> None:
    alone = [measured(bert, sentences=SENTENCES[:4]).result, measured(bert, sentences=SENTENCES[2:]).result]
    alone[1].about["corpus"] = "other"
    together = of_corpora(alone)
    assert together.names == ["POS on tiny", "POS on other"] and together.about["sentences"] == 8
    assert of_corpora(alone[:1]) is alone[0]
    for result, name in zip(alone, together.names, strict=True):
        for frame in result.frames:
            rows = together.with_names(frame)
            own = rows[rows["name"] == name].drop(columns=["name", "encoder"])
            expected = result.frames[frame].drop(columns="encoder")
            pd.testing.assert_frame_equal(own.reset_index(drop=True), expected, check_like=True)
    [across] = [grid for grid in tables(find("smoothing"), together) if grid.title == "σ₁σ₂ and CosSim by corpus"]
    layers = alone[1].wide("layers").iloc[-1]
    shown = dict(zip(across.header, across.rows[0], strict=True))
    assert (shown["corpus"], shown["encoder"]) == ("other", "POS")
    assert float(shown["σ₁σ₂"]) == pytest.approx(layers["product"], abs=5e-4)
    assert FIGURES["corpora"](together) is not None and FIGURES["corpora"](alone[0]) is None


@pytest.mark.parametrize("scale", [0.02, pytest.param(0.1, marks=pytest.mark.slow), 0.3])
@pytest.mark.parametrize("activation", ["relu", pytest.param("gelu", marks=pytest.mark.slow)])
def test_the_bound_holds_on_random_berts(bert, activation, scale):
    config = make_config("bert", num_hidden_layers=20, hidden_act=activation, initializer_range=scale)
    config._attn_implementation = "eager"
    torch.manual_seed(3)
    model = BertModel(config, add_pooling_layer=False).double().eval()
    for name, parameter in model.named_parameters():
        if "LayerNorm.weight" in name:
            torch.nn.init.normal_(parameter, 1, 0.3)
        elif name.endswith("bias"):
            torch.nn.init.normal_(parameter, 0, 0.5)
    encoder = Encoder(model, config, bert.tokenizer, pooling="mean", word_dropout=0.0, limit=64)
    for gates in (None, torch.rand(20, 4)):
        found = {name: values[:, 1:] for name, values in measured(encoder, gates).sentences.items()}
        assert (found["ratio"] <= found["bound"] * (1 + 1e-6)).all()  # they are stored as float32
        assert (found["ratio"] > 1e-3 * found["bound"]).any()  # it says something
        product = found["bound_norm"] * found["bound_attention"]
        forward = [1 + p.lipschitz * p.feed_forward[0] * p.feed_forward[1] for p in read_layers(encoder, gates)]
        np.testing.assert_allclose(found["bound"], product * forward, rtol=1e-6)


def test_gates_and_removed_heads_are_one(bert):
    gated = measured(bert, GATES)
    removed = measured(without_heads(bert, GATES))
    for name, values in gated.sentences.items():
        np.testing.assert_allclose(removed.sentences[name], values, rtol=1e-9, err_msg=name)
    open_ = GATES.numpy() > 0
    for name in ("mixing", "norm", "amplification", *EFFECTS):
        np.testing.assert_allclose(removed.heads[name][open_], gated.heads[name][open_], rtol=1e-6, atol=1e-12)
        assert np.isnan(removed.heads[name][~open_]).all()
    assert (gated.heads["amplification"][~open_] == 0).all() and np.isnan(gated.heads["effect"][~open_]).all()
    assert column(gated.result, "layers", "s") == pytest.approx(column(removed.result, "layers", "s"))


def test_padding_and_order_of_batches_change_nothing(bert):
    together, order = measured(bert), [3, 0, 5, 1, 4, 2]
    shuffled = measured(bert, sentences=[SENTENCES[k] for k in order])
    for name, values in together.sentences.items():
        np.testing.assert_allclose(shuffled.sentences[name], values[order], rtol=1e-9, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(shuffled.heads["mixing"], together.heads["mixing"], rtol=1e-9)
    for name in ("share", "chance"):
        assert column(together.result, "labels", name) == pytest.approx(column(shuffled.result, "labels", name))
    alone = measured(bert, sentences=[SENTENCES[1]])
    for name in ("cosine", "distance", "relative_distance", "ratio", *BOUNDS):
        np.testing.assert_allclose(alone.sentences[name][0], together.sentences[name][1], rtol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(tiny_encoder, family):
    encoder = Encoder.load(str(tiny_encoder(family)), attention="eager")
    found = measured(encoder, GATES)
    assert np.isfinite(found.sentences["cosine"][:, 1:]).all() and np.isfinite(found.heads["effect"][0, 0])
    if family in ("modernbert", "eurobert"):
        assert "bound" not in found.sentences and not len(column(found.result, "layers", "s"))
        assert "not a Post-LN encoder" in found.result.about["notes"][0]
    else:
        assert refusal(encoder) is None and not found.result.about["notes"]
        assert (found.sentences["ratio"] <= found.sentences["bound"] * (1 + 1e-5))[:, 1:].all()


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_the_effect_of_a_head_is_that_of_a_gate_at_zero(tiny_encoder, family):
    encoder = Encoder.load(str(tiny_encoder(family)), attention="eager")
    drawn = np.random.default_rng([REQUEST.seed, 61]).permutation(len(SENTENCES))[: REQUEST.options.closing]
    batch, closed = encoder.collate(encoder.tokenize_all([SENTENCES[row].words for row in drawn])), GATES.clone()
    closed[0, 0] = 0
    states = [observe(encoder, batch, gates, {"hidden"}).hidden for gates in (GATES, closed)]
    heads = measured(encoder, GATES).heads
    for name, layer in (("effect", 1), ("effect_last", -1)):
        mask = batch.attention_mask.bool()
        whole, without = (maths.distance(hidden[layer].double(), mask).log().mean() for hidden in states)
        assert heads[name][0, 0] == pytest.approx(float(whole - without), rel=1e-3)
    np.testing.assert_array_equal(np.isfinite(heads["effect"]), GATES.numpy() > 0)


def test_layers_without_heads_and_norms_of_heads(bert):
    attention = bert.transformer.encoder.layer[1].attention
    out, value = attention.output.dense.weight, attention.self.value.weight
    for head in range(4):
        rows = slice(8 * head, 8 * head + 8)
        norm = torch.linalg.matrix_norm(out[:, rows] @ value[rows], ord=2) * GATES[1, head]
        assert float(head_norms(bert, GATES)[1][head]) == pytest.approx(norm.item())
    found = measured(without_heads(bert, torch.tensor([[0.0] * 4, [1.0] * 4])))
    assert (found.sentences["bound_attention"][:, 1] == 1).all() and (found.sentences["mixing"][:, 1] == 0).all()
    assert (found.sentences["ratio"] <= found.sentences["bound"])[[0, 1, 2, 3, 5], 1:].all()


def test_differences_by_hand_and_their_correction(bert):
    values = np.array([[1.0, 3.0, 5.0, np.nan], [2.0, 2.0, 8.0, 0.0]])
    first = np.array([[True, False, False, True], [True, False, True, False]])
    second = np.array([[False, True, True, False], [False, True, False, False]])
    value, _, heads = difference(values, first, second, 200, (0,))
    assert value == pytest.approx(((2 / 3) * (1 - 4) + (2 / 3) * (5 - 2)) / (4 / 3)) and heads == 6
    assert np.isnan(difference(values, first, np.zeros_like(first), 200, (0,))[1])
    claimed = np.array([[True, True, True, True, False, False], [False, False, False, True, False, False]] * 3)
    depth = np.array([1.0, -1.0] * 3)[:, None] + 1e-3 * np.random.default_rng(0).standard_normal(claimed.shape)
    value, p, heads = difference(depth, claimed, ~claimed, 500, (0,))  # values follow the layer only, and so do claims
    assert abs(value) < 2e-3 and p > 0.05 and heads == 36
    value, p, _ = difference(depth + claimed, claimed, ~claimed, 500, (0,))
    assert value == pytest.approx(1, abs=1e-2) and p < 0.01
    groups, grids = Groups("tiny", ("POS",), 3 * claimed, {}, {}), {"depth": depth, "claims": depth + claimed}
    plain, claims = (compare(groups, {**grids, "gate": np.ones((6, 6))}, [one], 500, 0)[-1] for one in grids)
    assert claims["value"] > 0.7 and abs(plain["value"]) < 0.5 and plain["pooled"] > 0.3
    assert compare(groups, {**grids, "gate": np.eye(6)}, ["depth"], 99, 0)[-1]["n"] == 6  # shut heads are left out
    counts = np.array([[4, 0, 1, 0], [0, 3, 0, 1]])
    groups = Groups("tiny", ("POS", "NER", "DEP", "SRL"), counts, {"POS": counts / 4}, {})
    found = compared(measured(bert).result, groups, COMPARED, 0)
    tests = found.frames["tests"]
    known = tests.dropna(subset=["p"])
    assert (known["q"] >= known["p"]).all() and len(known) and found.about["claims"]["groups"]["stem"] == 2
    assert set(tests["term"]) >= {"stem - free", "tasks", "tasks, pooled"}
