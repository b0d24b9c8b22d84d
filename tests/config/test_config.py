"""Configurations: unknown keys, wrong values, overrides, bases; what the shipped presets say."""

import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from mtlprune.config import TEXTS, rates_remark
from mtlprune.config.config import Config, ConfigError, build_config, load_config, merged
from mtlprune.io.block import Block
from mtlprune.io.files import read_yaml
from mtlprune.layers import LAYERS
from mtlprune.pretraining.config import PretrainConfig
from mtlprune.sweeps.cells import digest

MINIMAL = {"data": {"path": "corpus"}}
MERGE = {"sources": {"pos": "a", "ner": "b"}, "method": "ties"}


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


WRONG = [
    ({"encoder": {"checkpointing": True, "context": False}}, "checkpointing computes layers again, and"),
    ({"trian": {}}, "mine.yaml: unknown key trian (did you mean 'train'?); expected one of name, data, tasks"),
    ({"decoders": {"sRl": {}}}, "unknown key decoders.sRl (did you mean 'srl'?); expected pos, ner, dep, con, srl"),
    ({"train": {"epochs": 0}}, "train.epochs: input should be greater than or equal to 1, found 0"),
    ({"train": {"encoder_rate": "fast"}}, "train.encoder_rate: input should be a valid number"),
    ({"train": {"accumulate": 65}}, "train.accumulate: expected at most as many mini-batches as train.batch_sentences"),
    (
        {"train": {"balance": "fixed", "weights": {"pos": -1}}},
        "expected weights of 0 or more, found -1.0 for pos",
    ),
    ({"train": {"balance": "fixed", "weights": {"psr": 1}}}, "(decoders.psr.type), found 'psr' (did you mean"),
    ({"train": {"weights": {"pos": 2}}}, "train.weights has an effect only with balance: fixed"),
    ({"train": {"mixing": "sampled", "shares": {"pos": 0.5}}}, "train.shares has an effect only with mixing: joint"),
    ({"train": {"shares": {"pos": 0}}}, "expected shares above 0 and at most 1, found 0.0 for pos"),
    ({"train": {"shares": {"pos": 0.1}}, "tasks": ["pos"]}, "expected a task that takes part in all batches"),
    ({"train": {"shares": {"chunk": 0.1}}}, "train.shares: expected one of pos"),
    ({"train": {"shares": {"pos": 0.1}, "balance": "famo"}}, "leave out train.shares"),
    ({"train": {"balance": "famo"}, "pruning": {"method": "gates", "in_loss": True}}, "balance: famo needs losses"),
    ({"tasks": ["pos", "deps"]}, "tasks: expected one of pos, ner, dep, con, srl, or another layer"),
    ({"tasks": ["chunk"]}, "(decoders.chunk.type), found 'chunk'"),
    ({"decoders": {"chunk": {"size": 3}}}, "unknown key decoders.chunk; expected pos, "),
    ({"decoders": {"chunk": {"type": "ner", "kind": "tags"}}}, "decoders.chunk: kind: input should be 'spans'"),
    ({"decoders": {"joint": {"type": "ner"}}}, "expected the name of a layer"),
    ({"tasks": None}, "tasks: expected names of tasks such as pos,ner, found nothing"),
    ({"tasks": ["pos", "pos"]}, "tasks: expected one or more different tasks, found ['pos', 'pos']"),
    ({"train": None}, "train: expected keys and values, found nothing"),
    ({"data": {}}, "data.path is missing"),
    *(
        ({"name": name}, f"characters, found {name!r}")
        for name in ("a/b", "a\nb", "\x1b[31m", "a\u202eb", "a\x85", "  ")
    ),
    (
        {"train": {"balance": "fixed", "weights": dict.fromkeys(LAYERS, 0)}},
        "expected a weight above 0, found 0",
    ),
    ({"tasks": ["pos"], "train": {"balance": "fixed", "weights": {"pos": 0, "ner": 1}}}, "found 0 for all tasks"),
    *(({"treatment": {"merge": MERGE | {"scale": scale}}}, "merge.scale: ") for scale in (1e19, "1e308", math.nan, 0)),
    ({"train": {"encoder_rate": 1e300}}, "train.encoder_rate: expected a number of at most 1e+18"),
    ({"train": {"balance": "fixed", "weights": {"pos": "1e200"}}}, "expected a number of at most 1e+18"),
    ({"pruning": {"method": "gates", "strength": 1e40}}, "pruning.strength: expected a number of at most 1e+18"),
    ({"pruning": {"strength": 1}}, "pruning.strength has an effect only with penalty: lambda (method: gates); leave"),
    ({"pruning": {"method": "gates", "penalty": "exact"}}, "which method: gates, penalty: exact needs, found"),
    ({"pruning": {"method": "random", "keep": 1, "warmup": 0.2}}, "noise: True (method: importance, fisher, stable, "),
]


@pytest.mark.parametrize(("tree", "message"), WRONG, ids=range(len(WRONG)))
def test_unknown_keys_and_wrong_values_are_refused_in_words(tree, message):
    with pytest.raises(ConfigError) as error:
        build_config({**MINIMAL, **tree}, "mine.yaml")
    assert message in str(error.value) and "\n" not in str(error.value)


def test_several_mistakes_are_told_at_once():
    with pytest.raises(ConfigError, match=r"train.epochs: .*; train.clip: .*; unknown key a; expected"):
        build_config({**MINIMAL, "a": 1, "train": {"epochs": -1, "clip": 0}})


OVERRIDES = [
    ("train.encoder_rate=1e-4", lambda c: c.train.encoder_rate == 1e-4),
    ("tasks=pos,ner", lambda c: c.tasks == ("pos", "ner")),
    ("tasks=srl,pos,con", lambda c: c.tasks == ("pos", "con", "srl")),
    ("decoders.chunk.type=ner", lambda c: build_config(c.model_dump(mode="json")) == c),
    ("train.patience=null", lambda c: c.train.patience is None),
    ("decoders.dep.projective=yes", lambda c: c.decoders.dep.projective is True),
    ("train.weights={pos: 2}", lambda c: c.train.weights == {"pos": 2.0}),
    ("data.path=a=b", lambda c: c.data.path == "a=b"),
    ("name='1e5'", lambda c: c.name == "1e5"),
    ('data.path="c #1"', lambda c: c.data.path == "c #1"),
    *(
        (f"data.path={text}", lambda c, text=text: c.data.path == text)
        for text in ("c #1", "#h", "2024", "007", "1e3", "no", "a: b", "[x]", "{y", "'s", "it's", "&a", " b ")
    ),
    ("name=007", lambda c: c.name == "007"),
    ("encoder.name=m #2", lambda c: c.encoder.name == "m #2"),
    ("encoder.revision=1e10", lambda c: c.encoder.revision == "1e10"),
    ("encoder.revision=null", lambda c: c.encoder.revision is None),
]


@pytest.mark.parametrize(("override", "holds"), OVERRIDES, ids=[override for override, _ in OVERRIDES])
def test_overrides(tmp_path, override, holds):
    path = write(tmp_path, "a.yaml", "data: {path: c}\ntrain: {epochs: 2, patience: 3, balance: fixed, seed: 9}\n")
    config = load_config(path, [override])
    assert holds(config) and config.train.seed == 9


def test_another_encoder_with_the_rates_of_a_preset_is_remarked_on(tmp_path):
    assert "rates of minilm-ewt5 are those for minilm" in rates_remark("minilm-ewt5", ["encoder.name=bert-base-cased"])
    path = write(tmp_path, "a.yaml", "base: minilm-ewt5\nencoder: {name: bert-base-cased}\n")
    for source, overrides in (
        ("minilm-ewt5", ["encoder.name=minilm", "train.seed=2"]),
        ("minilm-ewt5", ["encoder.name=bert-base-cased", "train.encoder_rate=5e-5"]),
        ("minilm-ewt5", ["train.encoder_rate.joint=1e-4", "encoder.name=bert-base-cased"]),
        (path, ["encoder.name=roberta-base"]),
    ):
        assert rates_remark(source, overrides) == ""


def fields(block: type[Block], above: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Settings with their types, and ``.task`` behind those of a text a task."""
    for name, field in block.model_fields.items():
        parts = [field.annotation, *get_args(field.annotation)]
        inner = next((part for part in parts if isinstance(part, type) and issubclass(part, Block)), None)
        if inner is None:
            yield f"{above}{name}{'.task' * (field.annotation == dict[str, str])}", field.annotation
        elif depth < 4:
            yield from fields(inner, f"{above}{name}.", depth + 1)


@pytest.mark.parametrize("settings", [Config, PretrainConfig])
def test_every_setting_that_is_text_stands_as_it_is_written(settings):
    for name, kind in fields(settings):
        assert bool(TEXTS.fullmatch(name)) == (kind in (str, str | None, dict[str, str])), name


PLAIN = "data: {path: c}\n"
REFUSED = [
    (PLAIN, "=3", "expected key.path=value, found '=3'"),
    (PLAIN, "ner", "found 'ner'; write several values of one option as one word with commas"),
    (PLAIN, "device=cuda", "unknown key device (did you mean train.device?)"),
    (PLAIN, "init.device=cuda", "unknown key init (did you mean train.device?)"),
    (PLAIN, "train.seed=٣", "train.seed: input should be a valid integer"),
    (PLAIN, "train.epochs=[1", "train.epochs=[1 on the command line: not readable as YAML"),
    (PLAIN, "data.path.more=3", "'data.path.more=3': path is a single value and has no keys"),
    ("[1, 2]", None, "expected keys and values, found [1, 2]"),
    ("grid: {seed: [1, 2]}\n", None, "expected the file of one run, found that of a sweep; run `mtlprune sweep "),
    ("a: !!python/object/apply:os.system ['false']", None, "not readable as YAML"),
    ("base: nowhere\n", None, "expected a file or a preset, found neither of the name 'nowhere'"),
]


@pytest.mark.parametrize(("text", "override", "message"), REFUSED)
def test_files_and_overrides_that_are_refused(tmp_path, text, override, message):
    with pytest.raises(ConfigError) as error:
        load_config(write(tmp_path, "a.yaml", text), [override] if override else [])
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_base_is_merged_block_by_block(tmp_path):
    write(tmp_path, "ground.yaml", "data: {path: c, dev: d}\ntrain: {epochs: 9, seed: 4}\ntasks: [pos, ner]\n")
    write(tmp_path, "sub/middle.yaml", "base: ../ground.yaml\ntrain: {epochs: 8}\ntasks: [dep]\n")
    config = load_config(write(tmp_path, "top.yaml", "base: sub/middle.yaml\nname: top\ndata: {dev: e}\n"))
    assert (config.name, config.tasks, config.data.path, config.data.dev) == ("top", ("dep",), "c", "e")
    assert (config.train.epochs, config.train.seed) == (8, 4)
    config = load_config(write(tmp_path, "preset.yaml", "base: minilm-ewt5\ntrain: {epochs: 1}\n"))
    assert config == load_config("minilm-ewt5", ["train.epochs=1"])


@pytest.mark.parametrize("base", ["a.yaml", "./a.yaml", "../{}/a.yaml", "b.yaml"])
def test_a_base_in_a_circle(tmp_path, base):
    write(tmp_path, "b.yaml", "base: a.yaml\n")
    path = write(tmp_path, "a.yaml", f"base: {base.format(tmp_path.name)}\ndata: {{path: c}}\n")
    with pytest.raises(ConfigError, match=r"without a base, found a circle: .*a.yaml → .*a.yaml"):
        load_config(path)


def test_merge_keys_may_be_overridden(tmp_path):
    path = write(tmp_path, "a.yaml", "data: &d {path: c, dev: d}\nx: {<<: *d, dev: e}\n")
    assert read_yaml(path)["x"] == {"path": "c", "dev": "e"}


def test_layers_of_a_fusion_are_sorted_and_refused_where_they_would_be_ignored() -> None:
    config = load_config("pruning-minilm-ewt5", ["encoder.fusion=gate", "encoder.fusion_layers=3,1,3"])
    assert config.encoder.fusion_layers == (1, 3)
    with pytest.raises(ConfigError, match="fusion_layers has an effect only with fusion: concat, max, gate"):
        load_config("pruning-minilm-ewt5", ["encoder.fusion_layers=1,2"])
    for wrong in ("0,1", "[]", "a,b", "true"):
        with pytest.raises(ConfigError, match="fusion_layers"):
            load_config("pruning-minilm-ewt5", ["encoder.fusion=gate", f"encoder.fusion_layers={wrong}"])


def test_he_choi_2021_is_what_the_paper_and_its_code_say():
    """Sections 2 to 4 of the facts on He and Choi (2021), as a literal table."""
    expected = yaml.safe_load("""
        tasks: [pos, ner, dep, con, srl]
        encoder: {name: bert-base-cased, pooling: mean, word_dropout: 0.2, random: false, context: true, fusion: none}
        decoders:
          ner: {size: 150, loss_per: span}
          dep: {arc_size: 500, relation_size: 100, relation_scorer: biaffine, dropout: 0.33, score_punctuation: false,
                projective: true}
          con: {span_size: 500, label_size: 100, label_scorer: biaffine, dropout: 0.33}
          srl: {size: 150, width_size: 20, max_width: 30, dropout: 0.2, argument_scorer: mlp, affinity: false,
                argument_ratio: 0.8, predicate_ratio: 0.4, predicates: ranked}
        train: {epochs: 30, patience: 15, batch_sentences: 64, batch_tokens: 6400, accumulate: 4, mixing: sampled,
                tau: 0.8, balance: running_mean, balance_window: 5, encoder_rate: 0.00005, decoder_rate: 0.001,
                weight_decay: 0.0, warmup: 0.1, clip: 1.0}
    """)
    said = load_config("he-choi-2021").model_dump(mode="json")
    assert merged(said, expected) == said


def test_a_pruning_method_alone_may_be_followed_by_its_settings(tmp_path):
    path = write(tmp_path, "c.yaml", "data: {path: d}\npruning: random\n")
    for settings, expected in (
        (["pruning.keep=3"], ("random", "lambda", 3)),
        (["pruning=gates", "pruning.penalty=exact", "pruning.keep=2"], ("gates", "exact", 2)),
        (["pruning.keep=3", "pruning=none"], ("none", "lambda", None)),  # the block as a whole
    ):
        pruning = load_config(path, settings).pruning
        assert (pruning.method, pruning.penalty, pruning.keep) == expected


def test_a_rate_can_differ_between_runs_of_one_task_and_of_several() -> None:
    rates = "train.encoder_rate={single: 2e-4, dep: 4e-4, joint: 8e-4}"
    for tasks, rate in (("pos", 2e-4), ("dep", 4e-4), ("dep,pos", 8e-4)):
        config = load_config("minilm-ewt5", [rates, f"tasks={tasks}"])
        assert config.train.rate("encoder_rate", config.tasks) == rate
        same = load_config("minilm-ewt5", [f"train.encoder_rate={rate}", f"tasks={tasks}"])
        assert digest(config, "", {}) == digest(same, "", {})  # the same run
    overridden = load_config("minilm-ewt5", [rates, "train.encoder_rate=1e-5"])
    assert overridden.train.encoder_rate == 1e-5  # a number replaces all of them
    for wrong in ("{joint: 1e-4}", "{single: 1e-4, joint: -1}", "{single: 1e-4, joint: 1e-4, pox: 1}", "-1"):
        with pytest.raises(ConfigError, match="encoder_rate"):
            load_config("minilm-ewt5", [f"train.encoder_rate={wrong}"])


def test_settings_of_further_layers_go_to_other_processes() -> None:
    tree = {"name": "x", "data": {"path": "x"}, "tasks": ["pos", "mood"], "decoders": {"mood": {"type": "label"}}}
    config = build_config(tree)
    sent = pickle.loads(pickle.dumps(config))
    assert sent == config and sent.decoders.mood.type == "label" and sent.model_dump() == config.model_dump()
