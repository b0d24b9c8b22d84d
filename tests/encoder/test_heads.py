"""Gates at the places of heads: for every family, exact where exactness is possible."""

import copy

import pytest
import torch
from head_models import CASES, SHARED, WIDTH, build, drawn, gated, run
from tiny import HEAD_FAMILIES, HEADS
from torch import nn
from transformers import PreTrainedModel

from mtlprune.encoder.families import by_layer, family_of
from mtlprune.encoder.heads import HeadHooks
from mtlprune.encoder.pieces import EncoderError
from mtlprune.encoder.removal import remove_heads
from mtlprune.encoder.sources import FLOAT32_ONLY


def silence(model: PreTrainedModel, layer: int, head: int) -> None:
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


@pytest.mark.parametrize(
    ("family", "attention", "mode"),
    [(*case, mode) for case in CASES for mode in ("eval", "train", "autocast")[: 2 + (case[0] not in FLOAT32_ONLY)]],
)
def test_open_gates_change_no_bit(family, attention, mode):
    model = build(family, attention, dropout=0.1).train(mode != "eval")
    places = HeadHooks(model)
    assert model.config._attn_implementation == attention
    assert (places.layers, places.heads, places.width) == (model.config.num_hidden_layers, HEADS, WIDTH)
    gates = drawn(places.layers).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast"):
        before = run(model)
        with places.gated(torch.ones(places.layers, HEADS)), places.cache_outputs():
            after = run(model)
        with places.gated(gates):
            changed = run(model)
    assert torch.equal(before, after) and not torch.allclose(before, changed, atol=1e-3)
    learnt = [weight for weight in model.parameters() if weight.requires_grad]
    slopes = [torch.autograd.grad(out.float().square().sum(), learnt, allow_unused=True) for out in (before, after)]
    assert all(one is other or torch.equal(one, other) for one, other in zip(*slopes, strict=True))
    changed.float().square().sum().backward()
    assert gates.grad.dtype == torch.float32 and gates.grad.abs().min() > 0


@pytest.mark.parametrize(("family", "attention"), CASES)
def test_a_closed_gate_equals_zeroed_value_rows(family, attention):
    model = build(family, attention)
    places, modules = HeadHooks(model), by_layer(model, family_of(model).attention)
    open_ = run(model)
    for layer in range(places.layers):
        for head in range(HEADS):
            gates = torch.ones(places.layers, HEADS)
            gates[[other for other, module in enumerate(modules) if module is modules[layer]], head] = 0
            closed = gated(model, gates)
            oracle = copy.deepcopy(model)
            silence(oracle, layer, head)
            assert torch.equal(closed, run(oracle)), (layer, head)
            assert not torch.allclose(closed, open_, atol=1e-4), (layer, head)


@pytest.mark.parametrize("family", HEAD_FAMILIES)
def test_contexts_leave_no_trace_nor_do_passes_that_break_off(family):
    model = build(family)
    names, before = list(model.state_dict()), run(model)
    places, gates = HeadHooks(model), drawn(model.config.num_hidden_layers)
    expected = gated(model, gates)
    breaker = by_layer(model, family_of(model).output)[0]
    with pytest.raises(KeyboardInterrupt), places.gated(gates), places.cache_outputs() as seen:
        handle = breaker.register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(model)
        handle.remove()
        assert torch.equal(expected, run(model))
        assert len(seen) == places.layers
        raise KeyboardInterrupt
    last = seen[-1]
    assert torch.equal(before, run(model)) and seen[-1] is last
    assert list(model.state_dict()) == names


def test_albert_layers_have_gates_of_their_own():
    """The oracle: the same weights in a model that has one group a layer, where each layer is a module of its own."""
    shared = build("albert")
    apart = build("albert", num_hidden_groups=SHARED["num_hidden_layers"])
    for layer, group in enumerate((0, 0, 1, 1)):
        groups = apart.encoder.albert_layer_groups
        groups[layer].load_state_dict(shared.encoder.albert_layer_groups[group].state_dict())
    apart.embeddings.load_state_dict(shared.embeddings.state_dict())
    apart.encoder.embedding_hidden_mapping_in.load_state_dict(shared.encoder.embedding_hidden_mapping_in.state_dict())
    one, four = HeadHooks(shared), HeadHooks(apart)
    assert one.layers == four.layers == 4
    for gates in (drawn(4), drawn(4).round()):
        with one.gated(gates), four.gated(gates):
            assert torch.equal(run(shared), run(apart))
            assert torch.equal(run(shared), run(apart))


def test_unknown_families_and_layouts_are_refused():
    model = build("bert")
    model.encoder.layer[1].attention.output = nn.Identity()
    with pytest.raises(EncoderError, match=r"to have encoder\.layer\.\*\.attention\.output\.dense, found none"):
        HeadHooks(model)
    model.config.model_type = "xlnet"
    with pytest.raises(EncoderError, match=r"'xlnet'.*albert, bert, .*xlm-roberta-xl; to add it, write a row"):
        HeadHooks(model)


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ([[0, 1, 2, 3]], "expected 2 layers, found 1"),
        ([[0, 1, 2, 3], [0, 1, 2, 2]], "4 different heads from 0 to 3 in layer 1"),
        ([[0, 1, 2, 3], [0, 1]], r"expected 4 different heads .* in layer 1 .*, found \[0, 1\]; give the head map"),
    ],
)
def test_a_head_map_that_does_not_fit_is_refused(kept, message):
    for use in (HeadHooks, lambda model, kept: remove_heads(model, torch.ones(2, HEADS), kept)):
        with pytest.raises(EncoderError, match=message):
            use(build("bert"), kept)
