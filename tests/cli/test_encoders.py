"""mtlprune encoders: the table of families, and what one encoder is."""

import pytest
from transformers import AutoModel, AutoTokenizer, FNetConfig

from mtlprune.encoder.families import FAMILIES
from mtlprune.encoder.sources import quiet


def test_all_families_are_listed(mtlprune) -> None:
    listed = mtlprune("encoders").done().out
    assert all(f" {family} " in listed for family in FAMILIES)


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("bert", ["heads: 2 layers × 4, each 8 wide", "[CLS] and [SEP]", "word dropout: [MASK]"]),
        ("llama", ["Causal attention", "of which 2 share a key and a value", "<s> and </s>", "causal or full"]),
    ],
)
def test_an_encoder_is_described(mtlprune, tiny_encoder, family: str, words: list[str]) -> None:
    shown = mtlprune("encoders", tiny_encoder(family)).done().out
    assert all(word in shown for word in words), shown


def test_an_encoder_without_a_row_can_only_be_trained(mtlprune, tiny_encoder, tmp_path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_encoder("bert"))
    size = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32, "max_position_embeddings": 64}
    with quiet():
        AutoModel.from_config(FNetConfig(vocab_size=len(tokenizer), **size)).save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
    assert "without gates and analyses" in mtlprune("encoders", tmp_path).done().out
    mtlprune("encoders", tmp_path / "no").refuses("no such folder")
