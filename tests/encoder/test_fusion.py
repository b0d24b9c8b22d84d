"""Fusion of layers: weights, what one-hot weights give, nothing changed without it, saving, loading."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny import WORDS
from torch import Tensor

from mtlprune.encoder.fusion import KINDS, Fusion
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.pieces import EncoderError
from mtlprune.encoder.removal import remove_heads

JOINED = KINDS[1:]


def scattered(fusion: Fusion) -> Fusion:
    torch.manual_seed(4)
    for parameter in fusion.parameters():
        torch.nn.init.normal_(parameter, 0, 0.5)
    return fusion


def test_each_kind_by_its_definition() -> None:
    given = list(torch.randn(3, 2, 5, 8, generator=torch.Generator().manual_seed(0)))
    stacked = torch.stack(given)
    firsts = {"max": stacked.amax(0), "concat": given[-1], "gate": stacked.mean(0), "scalar_mix": stacked.mean(0)}
    for kind, first in firsts.items():
        torch.testing.assert_close(Fusion(kind, 3, 8)(given), first)
    gate, mix, concat = (scattered(Fusion(kind, 3, 8)) for kind in ("gate", "scalar_mix", "concat"))
    scores = torch.stack([h @ w for h, w in zip(given, gate.gate, strict=True)], -1) + gate.bias
    shares = torch.softmax(scores, -1)
    torch.testing.assert_close(gate(given), torch.einsum("btl,lbth->bth", shares, stacked))
    mixed = (torch.softmax(mix.scores, 0)[:, None, None, None] * stacked).sum(0)
    torch.testing.assert_close(mix(given), mix.scale * mixed)
    torch.testing.assert_close(concat(given), torch.cat(given, -1) @ concat.projection.T + concat.bias)
    with torch.autocast("cpu", torch.bfloat16):
        assert {Fusion(kind, 3, 8)([state.bfloat16() for state in given]).dtype for kind in JOINED} == {torch.float32}


@pytest.mark.parametrize("kind", JOINED)
def test_chosen_layers_are_joined_as_if_the_encoder_had_no_others(kind: str) -> None:
    given = list(torch.randn(5, 2, 4, 8, generator=torch.Generator().manual_seed(1)))
    chosen, alone = Fusion(kind, 5, 8, (2, 4)), Fusion(kind, 2, 8)
    alone.load_state_dict(scattered(chosen).state_dict())
    assert torch.equal(chosen(given), alone([given[1], given[3]]))
    assert torch.equal(chosen.weights(given), alone.weights([given[1], given[3]]))
    if kind != "concat":  # whose W and b are scattered
        single = Fusion(kind, 5, 8, (3,))
        torch.testing.assert_close(single(given), given[2])
    with pytest.raises(EncoderError, match="expected layers from 1 to 5, which the encoder has, found 6"):
        Fusion(kind, 5, 8, (2, 6))


def test_weights_of_layers_are_those_that_make_the_vectors() -> None:
    given = list(torch.randn(3, 2, 5, 8, generator=torch.Generator().manual_seed(0)))
    stacked = torch.stack(given, -2)
    fusions = {kind: scattered(Fusion(kind, 3, 8)) for kind in JOINED}
    weights = {kind: fusion.weights(given).detach() for kind, fusion in fusions.items()}
    for kind, of_tokens in weights.items():
        assert of_tokens.shape == (2, 5, 3), kind
        torch.testing.assert_close(of_tokens.sum(-1), torch.ones(2, 5))
    for kind, scale in (("gate", 1.0), ("scalar_mix", fusions["scalar_mix"].scale)):
        torch.testing.assert_close(fusions[kind](given), scale * (weights[kind][..., None] * stacked).sum(-2))
    largest = torch.stack([(state >= stacked.amax(-2)).float().mean(-1) for state in given], -1)
    torch.testing.assert_close(weights["max"], largest)
    torch.testing.assert_close(Fusion("concat", 3, 8).weights(given)[0, 0], torch.tensor([0.0, 0.0, 1.0]))


@torch.no_grad()
def words(encoder: Encoder, gates: Tensor | None = None) -> Tensor:
    return encoder(encoder.collate(encoder.tokenize_all([WORDS[:5], WORDS[7:20]])), gates).words


@pytest.mark.parametrize("family", ["bert", "albert", "modernbert"])
def test_without_fusion_nothing_is_new_and_concat_begins_as_the_last_layer(tiny_encoder, family):
    plain, joined, mixed = (Encoder.load(str(tiny_encoder(family)), fusion=kind) for kind in ("none", "concat", "gate"))
    assert not [name for name in plain.state_dict() if "fusion" in name]
    assert torch.equal(words(plain), words(joined))
    assert not torch.allclose(words(plain), words(mixed), atol=1e-2)


@pytest.mark.parametrize("kind", JOINED)
def test_saved_and_loaded_it_says_the_same(tiny_encoder: Callable[[str], Path], kind: str, tmp_path: Path) -> None:
    encoder, saved = Encoder.load(str(tiny_encoder("bert")), fusion=kind), str(tmp_path / "saved")
    scattered(encoder.fusion)
    encoder.save(saved)
    assert torch.equal(words(Encoder.load(saved, fusion=kind)), words(encoder))
    assert torch.equal(words(Encoder.load(saved)), words(Encoder.load(str(tiny_encoder("bert")))))
    if kind == "concat":
        with pytest.raises(EncoderError, match="does not hold a fusion of the kind 'gate'"):
            Encoder.load(saved, fusion="gate")


def test_gates_and_removed_heads_reach_every_layer(tiny_encoder: Callable[[str], Path]) -> None:
    gates = torch.tensor([[1.0, 0.0, 0.5, 0.25], [0.0, 0.75, 1.0, 0.1]])
    encoder = Encoder.load(str(tiny_encoder("bert")), fusion="gate")
    gated = words(encoder, gates)
    encoder.head_map = remove_heads(encoder.transformer, gates)
    encoder.forget_head_hooks()
    torch.testing.assert_close(words(encoder), gated, rtol=0, atol=1e-5)
