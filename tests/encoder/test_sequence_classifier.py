"""A linear layer on the first token as plain transformers compute it."""

import pytest
import torch
from tiny import HEAD_FAMILIES

from mtlprune.encoder.export import with_sequence_classifier
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.pieces import EncoderError

ABLE = ["bert", "roberta", "electra", "distilbert", "albert", "deberta-v2", "mpnet"]


@pytest.mark.parametrize("family", [family for family in ABLE if family in HEAD_FAMILIES])
def test_scores_are_those_of_the_linear_layer(tiny_encoder, family: str) -> None:
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


def test_families_and_label_sets_that_cannot_be_had_are_refused(tiny_encoder) -> None:
    for family, labels in (("modernbert", 3), ("bert", 17)):
        encoder = Encoder.load(str(tiny_encoder(family)))
        with pytest.raises(EncoderError, match="so --head cannot be had; export the encoder"):
            with_sequence_classifier(encoder.transformer, torch.nn.Linear(32, labels), ["x"] * labels, "regression")
