"""mtlprune encoders: the table of families, and what one encoder is."""

import pytest
from tiny import FURTHER, make_lab
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
        (
            "llama",
            [
                "The attention is causal",
                "Each group of 2 consecutive heads (1 to 2, and so on) shares a key and a value",
                "<s> and </s>",
                "causal or full",
            ],
        ),
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


def test_commands_say_what_heads_of_a_decoder_see_and_share(mtlprune, tiny_encoder, tmp_path) -> None:
    some = {"method": "given", "heads": "1-1,2-2,2-3"}
    lab, run = make_lab(tmp_path, tiny_encoder("llama"), (12, 4, 4), tasks=["pos"], pruning=some), tmp_path / "run"
    mtlprune("train", lab, "train.epochs=1", "--out", run).done()
    texts = [mtlprune("claims", run).done().out]
    corpus = ("--corpus", tmp_path / "corpus")
    texts += [mtlprune("analyze", "syntax", run, *corpus).done().out]
    texts += [mtlprune("analyze", "probes", run, *corpus).done().out]
    texts += [mtlprune("analyze", "head", run, "layer=1", "head=1").done().out]
    assert "Each group of 2 consecutive heads (1 to 2" in texts[0] and "The attention is causal" in texts[0]
    assert all("its heads see only words to the left" in words for words in texts[1:])


@pytest.mark.slow
@pytest.mark.parametrize("family", FURTHER)
def test_a_run_goes_all_the_way(mtlprune, tiny_encoder, tmp_path, family: str) -> None:
    """Trained with gates, its closed heads removed, used, probed and exported: each command checks its own result."""
    gates = {"method": "gates", "penalty": "exact", "keep": 3, "rate": 0.5}
    lab = make_lab(tmp_path, tiny_encoder(family), (24, 8, 8), tasks=["pos", "dep"], pruning=gates)
    run, cut = tmp_path / "run", tmp_path / "cut"
    (tmp_path / "text.txt").write_text("the old dog saw London .\n")
    mtlprune("train", lab, "--out", run).done()
    mtlprune("export", run, "--remove", "--out", cut).done()
    mtlprune("predict", cut, tmp_path / "text.txt", "--out", tmp_path / "out.jsonl").done()
    mtlprune("analyze", "probes", run, "--corpus", tmp_path / "corpus", "--out", tmp_path / "probes").done()
    mtlprune("export", run, "--out", tmp_path / "exported").done()
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 1
    assert (tmp_path / "exported/config.json").is_file() and (tmp_path / "probes/probes.json").is_file()
