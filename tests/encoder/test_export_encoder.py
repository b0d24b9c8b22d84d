"""Gates in weights ≡ gates on heads, read back by transformers alone; heads put back ≡ heads removed; tokens ≡ ours."""

import copy
from pathlib import Path

import pytest
import torch
from head_models import WITH_SDPA, build, drawn, gated, run
from tiny import FAMILIES, HEAD_FAMILIES, HEADS
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from mtlprune.encoder.export import fold_gates, text_tokenizer, with_all_heads
from mtlprune.encoder.heads import HeadHooks
from mtlprune.encoder.interventions import fold_means
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.pieces import EncoderError
from mtlprune.encoder.removal import KeptHeads, load_pruned, remove_heads, save_pruned
from mtlprune.encoder.sources import quiet


def in_pairs(layers: int) -> Tensor:
    """Gates all different but for the first layer's, which the second one has too (in ALBERT they are one module); two
    heads of each are closed."""
    gates = drawn(layers)
    gates[1::2] = gates[::2]
    gates[:, [0, 2]] = 0
    return gates


@torch.no_grad()
def apart(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("family", HEAD_FAMILIES)
def test_transformers_alone_compute_what_gates_make_of_it(family: str, tmp_path: Path) -> None:
    model = build(family, "sdpa" if family in WITH_SDPA else "eager")
    gates = in_pairs(model.config.num_hidden_layers)
    wanted = gated(model, gates)
    assert apart(run(model), wanted) > 1e-3  # gates matter
    fold_gates(model, gates, HeadHooks(model).kept)
    with quiet():
        model.save_pretrained(tmp_path)
        again = AutoModel.from_pretrained(tmp_path).eval()
    assert apart(run(again), wanted) <= 1e-6


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_means_of_closed_heads_are_in_the_biases(family: str, tiny_encoder, tmp_path: Path) -> None:
    """Folded ≡ mean ablation, with heads closed and with heads removed; refused in words where there is no bias."""
    encoder = Encoder.load(str(tiny_encoder(family)))
    gates, places = in_pairs(encoder.places.layers), encoder.places
    batch = encoder.collate(encoder.tokenize_all([["the", "old", "dog", "saw", "it"], ["cats"]]))
    zero = encoder(batch, gates).words
    encoder.head_means = torch.randn(*gates.shape, places.width, generator=torch.Generator().manual_seed(1))
    wanted = encoder(batch, gates).words
    assert apart(wanted, zero) > 1e-3
    if family in ("albert", "modernbert", "eurobert"):
        why = "layers 1 and 2 share their weights" if family == "albert" else "projection has no bias"
        with pytest.raises(EncoderError, match=f"cannot be folded into the biases of this {family}: .*{why}"):
            fold_means(encoder, gates)
        assert torch.equal(encoder(batch, gates).words, wanted)
        return
    removed = copy.deepcopy(encoder)
    fold_means(encoder, gates)
    fold_gates(encoder.transformer, gates, places.kept)
    assert apart(encoder(batch).words, wanted) <= 1e-5 and encoder.head_means is None
    fold_means(removed, gates)
    remove_heads(removed.transformer, gates)
    assert apart(removed(batch).words, wanted) <= 1e-5


def test_layers_that_share_weights_need_equal_gates(tmp_path: Path) -> None:
    model = build("albert")  # layers 0 and 1 are one module
    gates, before = drawn(4), run(model)
    with pytest.raises(EncoderError, match=r"layers 1 and 2 share their weights, but their gates differ.*--remove"):
        fold_gates(model, gates, HeadHooks(model).kept)
    assert torch.equal(run(model), before)
    wanted = gated(model, gates)
    with quiet():
        save_pruned(model, remove_heads(model, gates), tmp_path)
        assert apart(run(load_pruned(tmp_path, attention="eager")), wanted) <= 1e-6
        with pytest.raises(OSError, match=r"model\.safetensors"):
            AutoModel.from_pretrained(tmp_path)  # the gates would be lost without a word
    with pytest.raises(EncoderError, match="export with --remove"):
        with_all_heads(model, remove_heads(model, torch.ones(4, HEADS), KeptHeads.read(tmp_path).kept))


@pytest.mark.parametrize("family", [family for family in HEAD_FAMILIES if family != "deberta"])
def test_heads_put_back_are_closed_heads(family: str) -> None:
    model = build(family)
    gates = in_pairs(model.config.num_hidden_layers)
    gates[-2:] = 0  # two layers (in ALBERT one module) without any head
    cut = copy.deepcopy(model)
    whole = with_all_heads(cut, remove_heads(cut, gates))
    shapes = [{n: p.shape for n, p in one.state_dict().items() if "pooler" not in n} for one in (whole, model)]
    assert shapes[0] == shapes[1] and apart(run(whole), run(cut)) <= 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tokenizer_reads_texts_as_words_are_read(family: str, tiny_encoder, tmp_path: Path) -> None:
    encoder = Encoder.load(str(tiny_encoder(family)))
    tokenizer, does = text_tokenizer(encoder, tiny_encoder(family))
    assert does
    words = ["London", "dog", "unbelievably", "the", "xyz", "."]
    pieces = encoder.tokenize(words)
    with quiet():
        tokenizer.save_pretrained(tmp_path)
        again = AutoTokenizer.from_pretrained(tmp_path)
    wanted = [*encoder.frame.before, *pieces.ids.tolist(), *encoder.frame.after]
    assert again(" ".join(words))["input_ids"] == again(words, is_split_into_words=True)["input_ids"] == wanted
