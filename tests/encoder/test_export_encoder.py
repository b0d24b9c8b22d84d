"""Gates in weights ≡ gates on heads, read back by transformers alone; heads put back ≡ heads removed; tokens ≡ ours."""

import copy
from pathlib import Path

import pytest
import torch
from head_models import build, drawn, gated, run
from tiny import FAMILIES, HEAD_FAMILIES, HEADS, HIDDEN
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from mtlprune.encoder.abilities import abilities
from mtlprune.encoder.export import (
    fold_gates,
    text_tokenizer,
    with_all_heads,
    with_classifier,
    with_sequence_classifier,
)
from mtlprune.encoder.heads import HeadHooks
from mtlprune.encoder.interventions import fold_means
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.pieces import EncoderError
from mtlprune.encoder.removal import KeptHeads, load_pruned, remove_heads, save_pruned
from mtlprune.encoder.sources import quiet
from mtlprune.tasks.products import Linear


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


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_means_of_closed_heads_are_in_the_biases(family: str, tiny_encoder) -> None:
    """Folded ≡ mean ablation, with heads closed and with heads removed; refused in words where there is no bias."""
    encoder = Encoder.load(str(tiny_encoder(family)))
    gates, places = in_pairs(encoder.head_hooks.layers), encoder.head_hooks
    batch = encoder.collate(encoder.tokenize_all([["the", "old", "dog", "saw", "it"], ["cats"]]))
    zero = encoder(batch, gates).words
    encoder.head_constants = torch.randn(*gates.shape, places.width, generator=torch.Generator().manual_seed(1))
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
    fold_gates(encoder.transformer, gates, places.kept_heads)
    assert apart(encoder(batch).words, wanted) <= 1e-5 and encoder.head_constants is None
    fold_means(removed, gates)
    remove_heads(removed.transformer, gates)
    assert apart(removed(batch).words, wanted) <= 1e-5


def test_layers_that_share_weights_need_equal_gates(tmp_path: Path) -> None:
    model = build("albert")  # layers 0 and 1 are one module
    gates, before = drawn(4), run(model)
    with pytest.raises(EncoderError, match=r"layers 1 and 2 share their weights, but their gates differ.*--remove"):
        fold_gates(model, gates, HeadHooks(model).kept_heads)
    assert torch.equal(run(model), before)
    wanted = gated(model, gates)
    with quiet():
        save_pruned(model, remove_heads(model, gates), tmp_path)
        assert apart(run(load_pruned(tmp_path, attention="eager")), wanted) <= 1e-6
        with pytest.raises(OSError, match=r"model\.safetensors"):
            AutoModel.from_pretrained(tmp_path)  # the gates would be lost without a word
    with pytest.raises(EncoderError, match="export with --remove"):
        with_all_heads(model, remove_heads(model, torch.ones(4, HEADS), KeptHeads.read(tmp_path).kept))


@pytest.mark.parametrize("family", [*HEAD_FAMILIES, "llama", "gpt2", "splinter"])
def test_a_linear_layer_goes_on_top_where_transformers_have_no_more(family: str) -> None:
    model, scores, labels = build(family), Linear(HIDDEN, 3), ["O", "B-X", "I-X"]
    if "with a head" not in abilities(family).export:
        with pytest.raises(EncoderError, match=r"is not one linear layer on the last|has no token classification"):
            with_classifier(model, scores, labels)
        return
    classifier = with_classifier(model, scores, labels)
    assert classifier.config.id2label == dict(enumerate(labels))
    assert apart(run(classifier), scores(run(model))) <= 1e-6


@pytest.mark.parametrize("family", [*FAMILIES, "llama", "gpt2", "t5"])
def test_the_tokenizer_reads_texts_as_words_are_read(family: str, tiny_encoder, tmp_path: Path) -> None:
    encoder = Encoder.load(str(tiny_encoder(family)))
    tokenizer, advice = text_tokenizer(encoder, tiny_encoder(family))
    assert not advice
    words = ["London", "dog", "unbelievably", "the", "xyz", "."]
    pieces = encoder.tokenize(words)
    with quiet():
        tokenizer.save_pretrained(tmp_path)
        again = AutoTokenizer.from_pretrained(tmp_path)
    wanted = [*encoder.frame.before, *pieces.ids.tolist(), *encoder.frame.after]
    assert again(" ".join(words))["input_ids"] == again(words, is_split_into_words=True)["input_ids"] == wanted


ABLE = ["bert", "roberta", "electra", "distilbert", "albert", "deberta-v2", "mpnet"]


@pytest.mark.parametrize("family", [family for family in ABLE if family in HEAD_FAMILIES])
def test_a_linear_layer_on_the_first_token_gives_its_scores_in_plain_transformers(tiny_encoder, family: str) -> None:
    encoder, generator = Encoder.load(str(tiny_encoder(family))), torch.Generator().manual_seed(0)
    linear = torch.nn.Linear(encoder.hidden_size, 3)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(linear.weight.shape, generator=generator) * 3)
        linear.bias.copy_(torch.randn(3, generator=generator) * 3)
        model = with_sequence_classifier(encoder.transformer, linear, list("abc"), "single_label_classification")
        batch = encoder.collate(encoder.tokenize_all([["the", "old", "dog"], ["a", "cat"]]))
        expected = linear(encoder(batch).cls)
        found = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))
    assert model.config.id2label == {0: "a", 1: "b", 2: "c"}


def test_families_and_label_sets_without_such_a_layer_are_refused(tiny_encoder) -> None:
    for family, labels in (("modernbert", 3), ("bert", 17)):
        encoder = Encoder.load(str(tiny_encoder(family)))
        with pytest.raises(EncoderError, match="so --head is not possible; export the encoder"):
            with_sequence_classifier(encoder.transformer, torch.nn.Linear(32, labels), ["x"] * labels, "regression")
