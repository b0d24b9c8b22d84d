"""Gates at the places of heads: for every family, exact where exactness is possible."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from tiny import HEAD_FAMILIES, HEADS, HIDDEN, LAYERS, make_config
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForMaskedLM, PreTrainedModel

from mtlprune.encoder.heads import FAMILIES, Family, HeadPlaces, by_layer, family_of
from mtlprune.encoder.pieces import EncoderError
from mtlprune.encoder.sources import FLOAT32_ONLY

WIDTH = HIDDEN // HEADS
WITH_SDPA = [name for name in HEAD_FAMILIES if name not in ("deberta", "deberta-v2", "mpnet", "roformer")]
CASES = [(name, "eager") for name in HEAD_FAMILIES] + [(name, "sdpa") for name in WITH_SDPA]
PARTLY_FLOAT32 = ("deberta", "modernbert", "eurobert")  # soft-max or norms there are in float32 also for float64
SHARED = dict(num_hidden_layers=4, num_hidden_groups=2)  # ALBERT: layers 0 and 1 are one module, 2 and 3 another

Build = Callable[..., PreTrainedModel]


@pytest.fixture(scope="module")
def build() -> Build:
    """Make a tiny random model in evaluation mode; biases are random too, so that forgetting one shows."""

    def make(family: str, attention: str = "eager", dropout: float = 0.0, **more) -> PreTrainedModel:
        if family == "albert":
            more = SHARED | more
        if family in ("modernbert", "eurobert"):
            more = {"attention_bias": True} | more
        with torch.random.fork_rng():
            torch.manual_seed(5)
            config = make_config(family, dropout=dropout, **more)
            model = AutoModel.from_config(config, attn_implementation=attention, dtype=torch.float32)
            for name, weight in model.named_parameters():
                if "bias" in name:
                    nn.init.normal_(weight, std=0.2)
        return model.eval()

    return make


IDS = torch.tensor([[7, 40, 80, 120, 140, 60, 9], [7, 90, 150, 33, 9, 1, 1]])
MASK = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])


def run(model: PreTrainedModel, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    hidden = model(input_ids=IDS, attention_mask=MASK)[0]
    return hidden[MASK.bool()]  # what padding says is nobody's concern


def ones(places: HeadPlaces) -> Tensor:
    return torch.ones(places.layers, places.heads)


def drawn(places: HeadPlaces) -> Tensor:
    """Gates strictly between 0 and 1, all different."""
    return torch.linspace(0.2, 0.9, places.layers * places.heads).view(places.layers, places.heads)


def silence(model: PreTrainedModel, layer: int, head: int) -> None:
    """Zero the weights that make a head's values: the oracle of a closed gate."""
    family = family_of(model)
    attention = by_layer(model, family.attention)[layer]
    rows = family.rows("value", [head], HEADS, WIDTH)
    value = getattr(attention, family.qkv[2])
    with torch.no_grad():
        value.weight[rows] = 0
        if value.bias is not None:
            value.bias[rows] = 0
        if family.value_bias:
            getattr(attention, family.value_bias)[family.columns([head], WIDTH)] = 0


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize(("family", "attention"), CASES)
def test_open_gates_change_no_bit(build, family, attention, training):
    model = build(family, attention, dropout=0.1).train(training)
    before = run(model)
    before.square().sum().backward()
    slopes = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    places = HeadPlaces(model)
    assert model.config._attn_implementation == attention
    assert (places.layers, places.heads, places.width) == (model.config.num_hidden_layers, HEADS, WIDTH)
    with places.gated(ones(places)), places.watched():
        after = run(model)
    assert torch.equal(before, after)
    after.square().sum().backward()
    assert all(torch.equal(slope, model.get_parameter(name).grad) for name, slope in slopes.items())
    with places.gated(drawn(places)):
        assert not torch.allclose(before, run(model), atol=1e-3)


@pytest.mark.parametrize(("family", "attention"), [case for case in CASES if case[0] not in FLOAT32_ONLY])
def test_open_gates_change_no_bit_under_autocast(build, family, attention):
    model = build(family, attention, dropout=0.1).train()
    places = HeadPlaces(model)
    with torch.autocast("cpu", torch.bfloat16):
        before = run(model)
        with places.gated(ones(places)), places.watched() as seen:
            assert torch.equal(before, run(model))
        assert {heads.dtype for heads in seen} <= {torch.bfloat16, torch.float32}
        gates = drawn(places).requires_grad_()
        with places.gated(gates):
            after = run(model)
    after.float().square().sum().backward()
    assert not torch.equal(before, after) and gates.grad.dtype == torch.float32 and gates.grad.abs().min() > 0


@pytest.mark.parametrize(("family", "attention"), CASES)
def test_a_closed_gate_equals_zeroed_value_rows(build, family, attention):
    model = build(family, attention)
    places = HeadPlaces(model)
    open_ = run(model)
    for layer in range(places.layers):
        for head in range(HEADS):
            gates = ones(places)
            gates[[other for other in range(places.layers) if same(model, layer, other)], head] = 0
            with places.gated(gates):
                closed = run(model)
            oracle = copy.deepcopy(model)
            silence(oracle, layer, head)
            assert torch.equal(closed, run(oracle)), (layer, head)
            assert not torch.allclose(closed, open_, atol=1e-4), (layer, head)


def same(model: PreTrainedModel, layer: int, other: int) -> bool:
    attentions = by_layer(model, family_of(model).attention)
    return attentions[layer] is attentions[other]


@pytest.mark.parametrize("family", HEAD_FAMILIES)
def test_gradient_reaches_exactly_the_gates_used(build, family):
    model = build(family).double()
    places = HeadPlaces(model)
    gates = drawn(places).double().requires_grad_()
    torch.manual_seed(1)
    target = torch.randn(int(MASK.sum()), HIDDEN, dtype=torch.float64)

    def loss(values: Tensor) -> Tensor:
        with places.gated(values):
            return (run(model) * target).sum()

    (slope,) = torch.autograd.grad(loss(gates), gates)
    size, tolerance = (2e-3, 1e-2) if family in PARTLY_FLOAT32 else (1e-5, 1e-6)
    for layer in range(places.layers):
        for head in range(HEADS):
            step = torch.zeros_like(gates)
            step[layer, head] = size
            with torch.no_grad():
                measured = (loss(gates + step) - loss(gates - step)) / (2 * size)
            assert measured.abs() > 1e-6
            torch.testing.assert_close(slope[layer, head], measured, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("family", HEAD_FAMILIES)
def test_watching_shows_ungated_heads_on_the_way_to_the_loss(build, family):
    """Michel et al. (2019): the slope by a gate is the head's output times the slope by what the projection reads."""
    model = build(family)
    places = HeadPlaces(model)
    torch.manual_seed(1)
    target = torch.randn(int(MASK.sum()), HIDDEN)
    gates = ones(places).requires_grad_()
    with places.watched() as seen, places.gated(gates):
        assert seen == []
        loss = (run(model) * target).sum()
    assert [heads.shape for heads in seen] == [(*IDS.shape, HEADS, WIDTH)] * places.layers
    slopes = torch.autograd.grad(loss, [gates, *seen])
    through = torch.stack([(heads * slope).sum((0, 1, 3)) for heads, slope in zip(seen, slopes[1:], strict=True)])
    torch.testing.assert_close(slopes[0], through, rtol=1e-4, atol=1e-4)
    with torch.no_grad(), places.watched() as plain, places.gated(0.5 * ones(places)):
        run(model)
        run(model)
    assert len(plain) == places.layers and torch.equal(plain[0], seen[0])  # the first layer: before any gate acted
    assert not torch.allclose(plain[-1], seen[-1], atol=1e-4)  # the others hear what the gates below let through


@pytest.mark.parametrize("family", HEAD_FAMILIES)
def test_what_is_watched_times_the_projection_is_the_output_of_attention(build, family):
    model = build(family)
    places = HeadPlaces(model)
    outputs = by_layer(model, family_of(model).output)
    said: list[Tensor] = []
    handles = [part.register_forward_hook(lambda _, __, out: said.append(out)) for part in dict.fromkeys(outputs)]
    gates = drawn(places)
    with torch.no_grad(), places.watched() as seen, places.gated(gates):
        run(model)
    assert len(said) == places.layers and len(handles) == len(set(outputs))
    for layer, (heads, out) in enumerate(zip(seen, said, strict=True)):
        gated = (heads * gates[layer][:, None]).flatten(-2)
        assert torch.equal(nn.functional.linear(gated, outputs[layer].weight, outputs[layer].bias), out)


@pytest.mark.parametrize("family", HEAD_FAMILIES)
def test_a_padded_row_is_gated_like_a_lone_one(build, family):
    model = build(family)
    places = HeadPlaces(model)
    with torch.no_grad(), places.gated(drawn(places)):
        together = run(model)[7:]
        alone = model(input_ids=IDS[1:, :5], attention_mask=MASK[1:, :5])[0][0]
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", HEAD_FAMILIES)
def test_contexts_leave_no_trace(build, family):
    model = build(family)
    names, before = list(model.state_dict()), run(model)
    places = HeadPlaces(model)
    with pytest.raises(KeyboardInterrupt), places.watched(), places.gated(drawn(places)):
        run(model)
        raise KeyboardInterrupt
    with places.watched() as seen:
        assert torch.equal(before, run(model))
    last = seen[-1]
    assert torch.equal(before, run(model)) and seen[-1] is last
    assert list(model.state_dict()) == names


@pytest.mark.parametrize("family", HEAD_FAMILIES)
def test_a_pass_that_breaks_off_does_not_shift_later_ones(build, family):
    model = build(family)
    places = HeadPlaces(model)
    gates = drawn(places)
    with places.gated(gates):
        expected = run(model)
    breaker = by_layer(model, family_of(model).output)[0]
    with places.gated(gates), places.watched() as seen:
        handle = breaker.register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(model)
        handle.remove()
        assert torch.equal(expected, run(model))
        assert len(seen) == places.layers


@pytest.mark.parametrize("family", HEAD_FAMILIES)
def test_copies_have_places_of_their_own(build, family):
    holder = nn.ModuleDict({"transformer": build(family)})
    holder.places = HeadPlaces(holder["transformer"])
    before = run(holder["transformer"])
    with holder.places.gated(drawn(holder.places).requires_grad_()):
        after = run(holder["transformer"])
        twin = copy.deepcopy(holder)
        assert torch.equal(before, run(twin["transformer"]))
    with twin.places.gated(drawn(twin.places)):
        assert torch.equal(before, run(holder["transformer"]))
        assert torch.equal(after, run(twin["transformer"]))


CHECKPOINTED = [name for name in HEAD_FAMILIES if name not in ("albert", "mpnet")]  # transformers has none for these


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable.:FutureWarning")  # 5.0 knows no other name
@pytest.mark.parametrize("family", CHECKPOINTED)
def test_gradient_checkpointing_inside_the_context(build, family):
    model = build(family, dropout=0.1).train()
    places = HeadPlaces(model)
    slopes = []
    for on in (False, True):
        if on:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        gates = drawn(places).requires_grad_()
        with places.gated(gates):
            run(model).square().sum().backward()
        slopes.append(gates.grad)
    assert torch.equal(*slopes)


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable.:FutureWarning")
def test_checkpointing_outside_the_context_is_not_silently_wrong(build):
    model = build("bert").train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    places = HeadPlaces(model)
    with places.gated(drawn(places).requires_grad_()):
        loss = run(model).square().sum()
    with pytest.raises(torch.utils.checkpoint.CheckpointError):
        loss.backward()


def test_albert_layers_have_gates_of_their_own(build):
    """The oracle: the same weights in a model that has one group a layer, where each layer is a module of its own."""
    shared = build("albert")
    apart = build("albert", num_hidden_groups=SHARED["num_hidden_layers"])
    for layer, group in enumerate((0, 0, 1, 1)):
        groups = apart.encoder.albert_layer_groups
        groups[layer].load_state_dict(shared.encoder.albert_layer_groups[group].state_dict())
    apart.embeddings.load_state_dict(shared.embeddings.state_dict())
    apart.encoder.embedding_hidden_mapping_in.load_state_dict(shared.encoder.embedding_hidden_mapping_in.state_dict())
    one, four = HeadPlaces(shared), HeadPlaces(apart)
    assert one.layers == four.layers == 4
    gates = drawn(one)
    with one.gated(gates), four.gated(gates):
        assert torch.equal(run(shared), run(apart))
        assert torch.equal(run(shared), run(apart))
    closed = ones(one)
    closed[2] = 0
    with one.gated(closed), four.gated(closed):
        assert torch.equal(run(shared), run(apart))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_grouped_queries_own_their_place_but_share_their_values(build, attention):
    model = build("eurobert", attention, num_key_value_heads=2)
    places = HeadPlaces(model)
    assert places.group == 2
    family = FAMILIES["eurobert"]
    gates = ones(places)
    gates[1, 2:] = 0
    with places.gated(gates):
        closed = run(model)
    value = by_layer(model, family.attention)[1].v_proj
    rows = family.rows("value", [2, 3], HEADS, WIDTH, places.group)
    assert rows.tolist() == list(range(WIDTH, 2 * WIDTH)) * 2
    with torch.no_grad():
        value.weight[rows], value.bias[rows] = 0, 0
    assert torch.equal(closed, run(model))


@pytest.mark.parametrize("layout", ["apart", "by_part", "by_head"])
def test_kept_rows_are_those_of_the_kept_heads(layout):
    now, heads = 4, [3, 1]
    family = Family(layout=layout, positions=("pos",), value_bias="v_bias")
    kept = family.keep(heads, now, WIDTH)
    assert kept["pos"].tolist() == kept["v_bias"].tolist() == family.columns(heads, WIDTH).tolist()
    names = ("query", "key", "value") if layout == "apart" else ("query",)
    parts = 1 if layout == "apart" else 3
    for place, name in enumerate(names):
        weight = torch.arange(now * parts * WIDTH)  # each row says where it was
        cut = weight[kept[name]]
        assert len(cut) == len(heads) * parts * WIDTH
        for part in ("query", "key", "value") if parts == 3 else (("query", "key", "value")[place],):
            for after, before in enumerate(heads):
                new, old = family.rows(part, [after], len(heads), WIDTH), family.rows(part, [before], now, WIDTH)
                assert cut[new].tolist() == weight[old].tolist()
    assert all(rows.numel() == 0 for rows in family.keep([], now, WIDTH).values())


def cut(model: PreTrainedModel, kept: list[list[int]]) -> None:
    """Cut heads out of a BERT by hand, which is all that the table says it takes."""
    family = family_of(model)
    for heads, attention, output in zip(
        kept, by_layer(model, family.attention), by_layer(model, family.output), strict=True
    ):
        with torch.no_grad():
            for name, rows in family.keep(heads, HEADS, WIDTH).items():
                part = getattr(attention, name)
                part.weight, part.bias = nn.Parameter(part.weight[rows]), nn.Parameter(part.bias[rows])
            output.weight = nn.Parameter(output.weight[:, family.columns(heads, WIDTH)])
            output.in_features = len(heads) * WIDTH


@pytest.mark.parametrize("kept", [[[1, 3], [0, 1, 2, 3]], [[2, 0, 1], []]])
def test_gates_keep_their_numbers_where_heads_are_gone(build, kept):
    whole, part = build("bert").double(), build("bert").double()
    cut(part, kept)
    masked, left = HeadPlaces(whole), HeadPlaces(part, kept)
    assert (left.layers, left.heads, left.width) == (LAYERS, HEADS, WIDTH) and left.kept == [tuple(k) for k in kept]
    present = torch.zeros(LAYERS, HEADS, dtype=torch.float64)
    for layer, heads in enumerate(kept):
        present[layer, heads] = 1
    gates = drawn(left).double().requires_grad_()
    with masked.gated(gates * present), left.gated(gates), left.watched() as seen:
        expected, found = run(whole), run(part)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert [heads.shape[2] for heads in seen] == [len(heads) for heads in kept]
    (slope,) = torch.autograd.grad(found.square().sum(), gates)
    assert torch.equal(slope != 0, present != 0)


def test_a_model_with_a_decoder_for_words_has_the_same_places(build):
    config = make_config("roberta")
    model = AutoModelForMaskedLM.from_config(config).eval()
    places = HeadPlaces(model)
    with torch.no_grad(), places.watched() as seen:
        model(input_ids=IDS, attention_mask=MASK)
    assert len(seen) == LAYERS


def test_head_mask_does_nothing_in_transformers_5(build):
    """Why the hooks exist: should this fail, the sentence about ``head_mask`` in heads.py is out of date."""
    model = build("bert")
    with torch.no_grad():
        masked = model(input_ids=IDS, attention_mask=MASK, head_mask=torch.zeros(LAYERS, HEADS))[0]
    assert torch.equal(masked[MASK.bool()], run(model))


def test_every_row_is_proved_here():
    assert set(FAMILIES) == set(HEAD_FAMILIES)


def test_an_unknown_family_is_refused(build):
    model = build("bert")
    model.config.model_type = "xlnet"
    with pytest.raises(EncoderError, match=r"'xlnet'.*albert, bert, .*xlm-roberta; to add it, write a row"):
        HeadPlaces(model)


def test_another_layout_of_a_known_family_is_refused(build):
    model = build("bert")
    model.encoder.layer[1].attention.output = nn.Identity()
    with pytest.raises(EncoderError, match=r"to have encoder\.layer\.\*\.attention\.output\.dense, found none"):
        HeadPlaces(model)
    with pytest.raises(EncoderError, match=r"expected inner_group_num 1.*found 2"):
        HeadPlaces(build("albert", inner_group_num=2))


@pytest.mark.parametrize("shape", [(LAYERS, HEADS + 1), (LAYERS + 1, HEADS), (LAYERS * HEADS,), (HEADS, LAYERS)])
def test_gates_of_another_shape_are_refused(build, shape):
    places = HeadPlaces(build("bert"))
    expected = rf"shape \(layers, heads\) = \({LAYERS}, {HEADS}\), found \({', '.join(map(str, shape))}"
    with pytest.raises(EncoderError, match=expected), places.gated(torch.ones(shape)):
        pass


def test_contexts_within_themselves_are_refused_and_stay_on(build):
    model = build("bert")
    places = HeadPlaces(model)
    with places.gated(drawn(places)), places.watched() as seen:
        expected = run(model)
        with pytest.raises(EncoderError, match="gates are on already"), places.gated(ones(places)):
            pass
        with pytest.raises(EncoderError, match="watched already"), places.watched():
            pass
        assert torch.equal(expected, run(model)) and len(seen) == LAYERS


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ([[0, 1, 2, 3]], "expected 2 layers, found 1"),
        ([[0, 1, 2, 3], [0, 1, 2, 2]], "different heads from 0 to 3 in layer 1"),
        ([[0, 1, 2, 4], [0, 1, 2, 3]], r"in layer 0, found \[0, 1, 2, 4\]"),
        ([[0, 1, 2, 3], [0, 1]], "layer 1 keeps 2 heads of width 8, expected 16 inputs.*found 32"),
    ],
)
def test_a_head_map_that_does_not_fit_is_refused(build, kept, message):
    with pytest.raises(EncoderError, match=message):
        HeadPlaces(build("bert"), kept)


def test_one_module_in_several_layers_keeps_the_same_heads_in_them(build):
    with pytest.raises(EncoderError, match=r"layers 0 and 1 are one module.*\[0, 1, 2, 3\] and \[1, 0, 2, 3\]"):
        HeadPlaces(build("albert"), [[0, 1, 2, 3], [1, 0, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]])
