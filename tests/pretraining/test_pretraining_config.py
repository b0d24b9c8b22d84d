"""Settings of a pretraining: unknown and useless ones are refused in words; schedules; shipped files."""

from pathlib import Path

import pytest

from mtlprune.config.config import ConfigError, validated
from mtlprune.pretraining.config import PretrainConfig, load_pretraining

SHIPPED = Path(__file__).parents[2] / "experiments" / "syntax"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text("data:\n  corpora: [a]\n" + text)
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sintax: {}", r"unknown key sintax \(did you mean 'syntax'\?\)"),
        ("model: {layer: 2}", r"unknown key model.layer \(did you mean 'layers'\?\); known there: start, tokenizer"),
        ("model: {hidden: 10, heads: 4}", "cannot be shared out among 4 heads"),
        ("model: {start: x, layers: 2}", "model.layers has no effect with model.start"),
        ("model: {tokenizer: x, vocabulary: 200}", "only with tokenizer: learn"),
        ("watch: {blimp_pairs: 5}", "only with watch.blimp"),
        ("watch: {first: 20000}", "beyond the end"),
        ("mask: {hidden: 0.9, random: 0.2}", "more than all"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(tmp_path, text, words):
    path = write(tmp_path, text) if not text.startswith("data") else write(tmp_path, "")
    if text.startswith("data"):
        path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_pretraining(path)


def test_the_command_line_needs_no_brackets(tmp_path):
    config = load_pretraining(
        write(tmp_path, ""), ["data.corpora=a,b/c", "syntax.strength=-0.5", "syntax.heads=2-1,1-3", "train.rate=1e-4"]
    )
    assert config.data.corpora == ("a", "b/c") and config.syntax.heads == ("1-3", "2-1")
    assert config.syntax.strength == -0.5 and config.train.rate == 1e-4


def test_points_lie_evenly_on_a_log_axis(tmp_path):
    config = load_pretraining(write(tmp_path, "train: {steps: 1000}\nwatch: {points: 4, first: 1, every: 300}"))
    assert config.log_steps() == [0, 1, 10, 100, 1000]
    assert config.watched_steps() == [0, 1, 10, 100, 300, 600, 900, 1000]
    short = load_pretraining(write(tmp_path, "train: {steps: 3}\nwatch: {points: 20, first: 1}"))
    assert short.log_steps() == [0, 1, 2, 3]


def test_shipped_files_differ_by_the_price_alone():
    configs = {path.stem: load_pretraining(path) for path in sorted(SHIPPED.glob("*.yaml"))}
    assert set(configs) == {"base", "sas-minus", "sas-plus", "sas-minus-released"}
    base = configs["base"]
    for name, config in configs.items():
        assert config.name == name
        same = config.model_copy(update={"name": base.name, "syntax": base.syntax})
        assert same == base
    assert base.syntax.strength == 0 and configs["sas-minus"].syntax.strength > 0 > configs["sas-plus"].syntax.strength
    released = configs["sas-minus-released"].syntax
    assert released.release and released.model_copy(update={"release": None}) == configs["sas-minus"].syntax
    assert len({config.digest() for config in configs.values()}) == 4


def test_what_is_written_down_is_read_again():
    config = load_pretraining(SHIPPED / "sas-minus-released.yaml")
    assert validated(PretrainConfig, config.model_dump(mode="json"), "x") == config
