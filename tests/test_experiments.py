"""Every shipped configuration, and every one the experiments' README derives on a command line, can be trained."""

import itertools
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from conll2012_files import small_corpus

from mtlprune.config.config import PRESETS, Config, digest, load_config
from mtlprune.corpora.ontonotes5 import build_ontonotes5
from mtlprune.corpora.store import save_corpus
from mtlprune.layers import Layer
from mtlprune.runs.folder import RunFolder
from mtlprune.sweeps.cells import resolve, select_cells
from mtlprune.sweeps.folder import state
from mtlprune.sweeps.pool import write_config
from mtlprune.sweeps.specification import read_specification
from mtlprune.sweeps.worker import main

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "experiments"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
EXPERIMENTS = sorted(FOLDER.glob("*.yaml"))
TUNING = ("decoders", "word-dropout", "encoder-rate", "edges", "decoder-rate", "pooling", "batch", "quickstart")
NAMED = [f"fight/{name}.yaml" for name in ("gum", "longer", "masc", "mpnet", "mpnet-heads", "multiberts")] + [
    "treatments/full.yaml",
    "sentences/full.yaml",
    "why/equal_loss.yaml",
    "why/dep.yaml",
    "why/dep_width.yaml",
    *(f"baselines/{name}.yaml" for name in TUNING),
    *(f"baselines/{name}.yaml" for name in ("tuned", "full", "sampled")),
    "five-papers/gates.yaml",
    "five-papers/mpnet.yaml",
]
SHEETS = sorted({*FOLDER.glob("*/sweep.yaml"), *FOLDER.glob("he-choi-2021/*.yaml"), *(FOLDER / name for name in NAMED)})
SELECTIONS = {
    "baselines/tuned": {4, 5},
    "baselines/full": {101},
    "fight/sweep": {4, 5},
    "fight/longer": {4, 5},
    "fight/mpnet-heads": {4, 5},
    "claims/sweep": {11, 12, 13, 21, 22, 23, 31, 32, 33},
    "claims-updates/sweep": {11, 21, 31},
}
FRESH_SEEDS = {
    "why/equal_loss": {21, 22, 23, 24, 25},
    "why/dep": {*range(11, 21)},
    "why/dep_width": {1, 2},
    "baselines/quickstart": {101},
}
SHIPPED = [*sorted(PRESETS.glob("*.yaml")), *EXPERIMENTS]
TRAININGS = [shlex.split(line)[2:] for line in README.splitlines() if line.startswith("mtlprune train ")]


@pytest.fixture(scope="module")
def ontonotes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All five layers, read from files in the formats of CoNLL-2012, and layers of whole sentences by length; do not
    write into it."""
    folder = tmp_path_factory.mktemp("ontonotes")
    files, dependencies = small_corpus(folder)
    splits = {
        split: [
            sentence.with_layers(
                **dict.fromkeys(("genre", "sentence_type", "transition"), Layer("label", f"l{len(sentence) % 3}")),
                prominence=Layer("number", float(len(sentence))),
            )
            for sentence in sentences
        ]
        for split, sentences in build_ontonotes5(files, dep=dependencies).items()
    }
    save_corpus(splits, folder / "corpus", name="ontonotes5", licence="none", sources={})
    return folder / "corpus"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_configuration_trains(path, ontonotes, tiny_encoder, tmp_path):
    """On a stand-in corpus and encoder, until its first update."""
    from mtlprune.training.loop import train

    settings = [f"data.path={ontonotes}", f"encoder.name={tiny_encoder('bert')}", "train.threads=1", "train.device=cpu"]
    settings += ["pruning.keep=2"] if load_config(path).pruning.keep is not None else []
    run = RunFolder(tmp_path / "run")
    assert train(load_config(path, settings), run, stop=lambda: True).step == 1
    assert run.read_config()["name"] == path.stem
    assert run.checkpoint_path.is_file() or run.read_json("manifest.json")["finished"]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_all_settings_with_their_explanations_are_the_same_run_again(path, mtlprune, tmp_path):
    lines = mtlprune("train", path, "--all").done().out.splitlines()
    (tmp_path / "whole.yaml").write_text("\n".join(lines), encoding="utf-8")
    assert load_config(tmp_path / "whole.yaml") == load_config(path)
    for above, line in itertools.pairwise(lines):
        indent = len(line) - len(line.lstrip())
        assert line.lstrip().startswith("#") or above.startswith(" " * indent + "# "), line  # each key is explained


def test_every_training_of_the_readme_is_a_configuration_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    own = [words[: words.index("--out")] if "--out" in words else words for words in TRAININGS]
    assert len({digest(load_config(source, overrides)) for source, *overrides in own}) == len(TRAININGS)


def test_experiments_and_their_readme_name_the_same_files() -> None:
    assert set(re.findall(r"[\w-]+\.yaml", README)) == {path.name for path in [*EXPERIMENTS, *SHEETS]}


def cells_of(path: Path, corpus: Path, tmp_path: Path) -> dict[str, Config]:
    found = resolve(read_specification(path), tmp_path / "sweep", [f"data.path={corpus}"]).cells
    return {name: cell.config for name, cell in found.items()}


@pytest.mark.parametrize("path", SHEETS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_sweep_has_the_cells_that_its_readme_says(path: Path, ontonotes: Path, tmp_path: Path) -> None:
    cells = cells_of(path, ontonotes, tmp_path)
    name = path.name if path.parent.name == "he-choi-2021" else f"{path.parent.name}/{path.name}"
    row = next(line for line in README.splitlines() if name in line and re.search(r"\d+ cells|\| [\d, ]+ \|", line))
    assert str(len(cells)) in re.findall(r"\d+", row)
    sheet = f"{path.parent.name}/{path.stem}"
    seeds = {101, 102} if path.stem in TUNING else {1, 2, 3}  # tuning has seeds of its own
    seeds |= SELECTIONS.get(sheet, set())
    assert {config.train.seed for config in cells.values()} == FRESH_SEEDS.get(sheet, seeds)
    if "scores" in path.stem or path.parent.name == "ewt5-minilm":
        sizes = Counter(map(len, {frozenset(config.tasks) for config in cells.values()}))
        assert sizes == {1: 5, 2: 10, 5: 1}  # all tasks, all pairs, all five


def test_released_constants(ontonotes: Path, tmp_path: Path) -> None:
    """The tables of facts about the released scripts: λ, epochs, patience, rates, accumulation."""
    folder = FOLDER / "he-choi-2021"
    bert = cells_of(folder / "gates-as-released-bert.yaml", ontonotes, tmp_path)
    others = cells_of(folder / "gates-as-released-others.yaml", ontonotes, tmp_path)
    strengths = {task: bert[f"bert-{task}-1"].pruning.strength for task in ("pos", "ner", "dep", "con", "srl", "mtl5")}
    assert strengths == {"pos": 0.01, "ner": 0.0002, "dep": 0.01, "con": 0.01, "srl": 0.001, "mtl5": 0.001}
    assert (others["deberta-dep-1"].pruning.strength, others["electra-srl-2"].pruning.strength) == (0.02, 0.002)
    assert (bert["bert-mtl5-1"].train.epochs, others["roberta-mtl5-1"].train.epochs) == (100, 30)
    for config in (*bert.values(), *others.values()):
        assert config.train.encoder_rate == 1e-5 and not config.train.shuffle
        assert config.pruning.in_loss and config.train.balance == "running_mean"
    random = {name for name, config in (bert | others).items() if config.encoder.random}
    assert random == {f"bert-mtl5-random-{seed}" for seed in (1, 2, 3)}
    scores = cells_of(folder / "scores-as-released-others.yaml", ontonotes, tmp_path)
    assert scores["electra-pos-3"].train.encoder_rate == 1e-5 and scores["electra-ner-3"].train.encoder_rate == 5e-5
    assert (scores["deberta-srl-1"].train.epochs, scores["roberta-srl-1"].train.epochs) == (100, 30)
    alone = cells_of(folder / "scores-as-released-bert.yaml", ontonotes, tmp_path)
    assert (alone["bert-dep-1"].train.accumulate, scores["roberta-dep-1"].train.accumulate) == (1, 4)


EVERY_CELL = "MTLPRUNE_EVERY_CELL"
"""Set, all 828 cells of the paper run to their end on stand-ins, not one of each kind."""
HUB = {  # the paper's encoders, and the tiny ones that stand in for them
    "bert-base-cased": "bert",
    "roberta-base": "roberta",
    "google/electra-base-discriminator": "electra",
    "microsoft/deberta-base": "deberta",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [path for path in SHEETS if path == FOLDER / "he-choi-2021" / "gates.yaml" or EVERY_CELL in os.environ],
    ids=lambda path: path.stem,
)
def test_a_sweep_of_the_paper_runs_on_stand_ins(path, ontonotes, tiny_encoder, tmp_path, signals):
    """Cells whose steps differ run to the end, each in this process; others differ from them in numbers only."""
    text = path.read_text(encoding="utf-8").replace("keep: 72", "keep: 3")
    for name, family in HUB.items():
        text = text.replace(f"name: {name}}}", f"name: {tiny_encoder(family)}}}")
    (tmp_path / "sheet.yaml").write_text(text, encoding="utf-8")
    small = f"data.path={ontonotes}", "train.epochs=1", "train.patience=null", "train.device=cpu", "train.threads=1"
    whole = resolve(read_specification(tmp_path / "sheet.yaml"), tmp_path / "swept", small)
    regimes = ("none", "dynamic", "static", "importance", "random")
    kinds = {*(f"bert-{regime}-pos-1" for regime in regimes), "bert-per-task-mtl5-1"}
    wanted = set(whole.cells) if EVERY_CELL in os.environ else kinds
    cells = select_cells(whole, sorted(wanted))
    for cell in cells.values():
        write_config(cell)
        assert main([str(whole.root), cell.place.label, "--evaluate", "test"]) == 0, cell.name
    assert {name for name, cell in cells.items() if state(cell.place, ["test"]).kind == "done"} == wanted


def permuted(folder: Path, out: Path) -> Path:
    import torch
    from transformers import AutoModel, AutoTokenizer

    model, generator = AutoModel.from_pretrained(folder), torch.Generator().manual_seed(1)
    heads = model.config.num_attention_heads
    for layer in model.encoder.layer:
        order = torch.randperm(heads, generator=generator)
        for part in (layer.attention.self.query, layer.attention.self.key, layer.attention.self.value):
            for values in (part.weight.data, part.bias.data):
                values.copy_(values.unflatten(0, (heads, -1))[order].flatten(0, 1))
        weight = layer.attention.output.dense.weight.data
        weight.copy_(weight.unflatten(1, (heads, -1))[:, order].flatten(1))
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(folder).save_pretrained(out)
    return out


@pytest.mark.slow
def test_heads_in_another_order_are_matched(ontonotes, tiny_encoder, tmp_path, signals):
    """The sweep of MultiBERTs on stand-ins: one encoder and the same with its heads in another order."""
    text = (FOLDER / "fight" / "multiberts.yaml").read_text(encoding="utf-8").replace("keep: 24", "keep: 3")
    text = text.replace("../untuned.yaml", str(FOLDER / "untuned.yaml"))
    folders = (tiny_encoder("bert"), permuted(tiny_encoder("bert"), tmp_path / "permuted"))
    for place, folder in enumerate(folders):
        text = text.replace(f"name: google/multiberts-seed_{place}}}", f"name: {folder}}}")
    (tmp_path / "sheet.yaml").write_text(text, encoding="utf-8")
    small = f"data.path={ontonotes}", "train.epochs=1", "train.device=cpu", "train.threads=1"
    whole = resolve(read_specification(tmp_path / "sheet.yaml"), tmp_path / "swept", small)
    for cell in select_cells(whole, ["stable-m[01]-pos-[12]", "stable-m[01]-con-[12]"]).values():
        write_config(cell)
        assert main([str(whole.root), cell.place.label]) == 0, cell.name
    script = [sys.executable, FOLDER / "fight" / "matched.py", whole.root, ontonotes]
    done = subprocess.run(script, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    one_task = {cells[1].strip(): float(cells[2].split()[0]) for cells in table_rows(done.stdout)}
    assert one_task["by index"] < one_task["matched"] == one_task["matched within layers"] == 1.0


def table_rows(text: str) -> list[list[str]]:
    return [line.split("|") for line in text.splitlines() if line.startswith("|")][2:]
