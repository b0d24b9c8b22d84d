"""Embedding rows that no training sentence contains are left out of the updates, with the same result.

A tiny vocabulary's rows are all in use, so the encoders here know many more words than the sentences have.
"""

from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file
from small_runs import Settings, trained

from mtlprune.encoder.embedding_rows import UsedRowsEmbedding, train_used_rows
from mtlprune.encoder.model import Encoder, input_embeddings

SENTENCES = [["time", "people"], ["time", "year", "year"]]


def encoder_of(family: str, folder: Path) -> Encoder:
    return Encoder.load(str(tiny.make_tiny(family, folder)), word_dropout=0.0, attention="eager")


def updated(encoder: Encoder, rows: UsedRowsEmbedding | None) -> dict[str, torch.Tensor]:
    """The weights after five updates on SENTENCES, with weight decay."""
    encoder.train()
    parameters = [p for p in encoder.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)
    if rows is not None:
        rows.decay(optimizer)
    for _ in range(5):
        words = encoder(encoder.collate(encoder.tokenize_all(SENTENCES))).words
        words.square().mean().backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    encoder.eval()
    return {name: value.clone() for name, value in encoder.state_dict().items()}


@pytest.mark.parametrize("family", [*tiny.HEAD_FAMILIES, *tiny.FURTHER])
def test_updates_of_used_rows_are_those_of_all(family, tmp_path):
    whole = updated(encoder_of(family, tmp_path / "a"), None)
    encoder = encoder_of(family, tmp_path / "a")
    before = input_embeddings(encoder.transformer)
    rows = train_used_rows(encoder, encoder.tokenize_all(SENTENCES))
    if rows is None:  # scaled or bounded lookups, which a table of ours would not do
        assert type(before) is not torch.nn.Embedding
        return
    assert len(rows.rows) < len(rows.weight) / 2
    weights = updated(encoder, rows)
    assert list(weights) == list(whole)
    for name, value in whole.items():
        torch.testing.assert_close(
            weights[name], value, rtol=1e-6, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert torch.equal(encoder.transformer.get_input_embeddings().weight, rows.weight)


def test_sentences_with_other_rows_are_encoded_when_evaluated_and_refused_when_trained_on(tmp_path):
    encoder = encoder_of("bert", tmp_path / "a")
    sentence = encoder.tokenize_all([["government"]])
    expected = encoder(encoder.collate(sentence)).words
    train_used_rows(encoder, encoder.tokenize_all(SENTENCES))
    assert torch.equal(encoder(encoder.collate(sentence)).words, expected)
    with pytest.raises(IndexError):
        encoder.train()(encoder.collate(sentence))


def test_a_frozen_or_a_shared_table_is_left_alone(tmp_path):
    encoder = encoder_of("bert", tmp_path / "a")
    pieces, table = encoder.tokenize_all(SENTENCES), input_embeddings(encoder.transformer)
    encoder.output = torch.nn.Linear(table.embedding_dim, table.num_embeddings, bias=False)
    encoder.output.weight = table.weight
    assert train_used_rows(encoder, pieces) is None
    del encoder.output
    encoder.requires_grad_(False)
    assert train_used_rows(encoder, pieces) is None and input_embeddings(encoder.transformer) is table


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_a_run_ends_as_with_all_rows(decay, small_settings: Settings, tmp_path):
    settings = small_settings("pos,dep", weight_decay=decay)
    weights = {}
    for how in ("used", "all"):
        folder = trained({**settings, "train": {**settings["train"], "embedding_rows": how}}, tmp_path / how)
        weights[how] = load_file(next(iter(sorted((folder.path / "weights").iterdir(), reverse=True))))
    assert list(weights["used"]) == list(weights["all"])
    for name, value in weights["all"].items():
        torch.testing.assert_close(weights["used"][name], value, rtol=1e-5, atol=2e-5)
