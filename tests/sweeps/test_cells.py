"""From the file of a sweep to its cells: combinations, digests, order, shared blocks, and what each will cost."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest
from pydantic import BaseModel

from mtlprune.config.config import ConfigError, load_config
from mtlprune.corpora.grammar import build_grammar
from mtlprune.corpora.store import save_corpus
from mtlprune.runs.settings import WITHOUT_EFFECT
from mtlprune.sweeps import cells, times
from mtlprune.sweeps.cells import Sweep, digest, resolve
from mtlprune.sweeps.folder import State, read_index
from mtlprune.sweeps.specification import SweepError, is_specification, read_specification
from mtlprune.sweeps.times import NEXT, data_missing, expected_times, kind_of, rough_seconds

PLAIN = """
base: quickstart
grid:
  regime: {none: {}, gates: {pruning: {method: gates}}}
  tasks: [pos, [dep, con]]
  seed: [1, 2]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def names(folder: Path, text: str) -> list[str]:
    return [recipe.name for recipe in read_specification(written(folder, text)).recipes()]


def test_cells_are_combinations_but_for_only_and_exclude(tmp_path):
    tasks = ("pos", "dep-con")
    expected = [f"{regime}-{task}-{seed}" for regime in ("none", "gates") for task in tasks for seed in (1, 2)]
    assert names(tmp_path, PLAIN) == expected
    only = "only: [{regime: none}, {regime: gates, tasks: [pos], seed: [1, 2]}]\n"
    assert names(tmp_path, PLAIN + only) == expected[:6]
    left = names(tmp_path, PLAIN + only + "exclude: {seed: 2}\n")
    assert left == ["none-pos-1", "none-dep-con-1", "gates-pos-1"]
    assert is_specification(written(tmp_path, PLAIN))
    assert not is_specification(written(tmp_path, "data: {path: x}\n"))
    assert not is_specification(tmp_path)
    with pytest.raises(SweepError, match="no such file"):
        read_specification(tmp_path / "none.yaml")


def test_seeds_share_a_title_and_further_cells_come_by_name(tmp_path):
    text = "base: quickstart\ngrid: {encoder: [org/one, two], seed: [3], train.epochs: [7]}\n"
    first, second = read_specification(written(tmp_path, text)).recipes()
    assert (first.name, first.title, second.title) == ("one-3-7", "one-7", "two-7")
    assert first.layers[1:] == ({"encoder": {"name": "org/one"}}, {"train": {"seed": 3}}, {"train": {"epochs": 7}})
    text = "base: quickstart\nsettings: {train: {epochs: 9}}\ncells: {control: {encoder: {random: true}}, plain: }\n"
    control, plain = read_specification(written(tmp_path, text)).recipes()
    assert (control.name, plain.name, plain.title) == ("control", "plain", "")
    assert control.layers == ({"train": {"epochs": 9}}, {"encoder": {"random": True}})


def test_an_index_keeps_the_cells_that_it_cannot_know(tmp_path):
    """The folder of a cell depends on the corpora of the cells that it needs, of which one may be gone."""
    for seed, name in enumerate("ab"):
        save_corpus(build_grammar(4, 1, 1, seed), tmp_path / name, name="grammar", licence="Apache-2.0", sources={})
    text = f"""
base: quickstart
cells:
  first: {{data: {{path: {tmp_path}/a}}}}
  next: {{data: {{path: {tmp_path}/b}}, train: {{start: "@first"}}}}
  alone: {{data: {{path: {tmp_path}/b}}}}
  lost: {{data: {{path: {tmp_path}/c}}}}
  gone: {{data: {{path: {tmp_path}/d}}}}
"""
    path = written(tmp_path, text)

    def indexed() -> dict[str, str]:
        resolve(read_specification(path), tmp_path / "out", planned=True).write_index()
        return {name: cell["folder"] for name, cell in read_index(tmp_path / "out")["cells"].items()}

    before = indexed()
    assert sorted(before) == ["alone", "first", "next"]
    shutil.rmtree(tmp_path / "a")
    assert indexed() == before


GRID = """
grid:
  regime:
    none: {}
    static: {train: {start: "@none-{tasks}-{seed}", freeze: decoders}, pruning: gates}
    random: {pruning: {method: random, layers_like: "@static-{tasks}-{seed}"}}
  tasks: [pos, dep]
  seed: [1, 2]
"""


def cells_of(path: Path, *overrides: str) -> Sweep:
    return resolve(read_specification(path), Path("out"), overrides)


def changed(one: Sweep, other: Sweep) -> set[str]:
    assert one.cells.keys() == other.cells.keys()
    return {name for name, cell in one.cells.items() if cell.digest != other.cells[name].digest}


def test_a_cell_comes_after_those_it_needs_and_knows_their_folders(specification):
    sweep = cells_of(specification(GRID))
    order = list(sweep.cells)
    cell = sweep.cells["random-dep-2"]
    assert len(order) == 12 and len({cell.digest for cell in sweep.cells.values()}) == 12
    assert all(order.index(other) < order.index(name) for name in order for other in sweep.cells[name].needs)
    assert cell.needs == ("static-dep-2",)
    assert cell.config.pruning.layers_like == str(sweep.cells["static-dep-2"].place.run.path)
    assert cell.config.name == "random-dep" and cell.place.label == f"random-dep-2-{cell.digest}"


def test_digests_change_with_what_changes_a_result_and_with_those_of_the_cells_needed(specification, base, tmp_path):
    before = cells_of(specification(GRID))
    every, dep, unnamed = set(before.cells), {n for n in before.cells if "-dep-" in n}, "decoders.srl.size=20"
    shutil.copytree(base.parent / "corpus", tmp_path / "copy")
    save_corpus(build_grammar(16, 6, 6, 2), tmp_path / "other", name="grammar", licence="Apache-2.0", sources={})
    for overrides, expected in [
        (["name=other", "train.threads=2", unnamed, "train.tau=0.5", "train.balance_window=9"], set()),
        (["train.clip=2"], every),
        (["decoders.dep.arc_size=20"], dep),
        ([f"data.path={tmp_path / 'copy'}"], set()),
        ([f"data.path={tmp_path / 'other'}"], every),
    ]:
        assert changed(before, cells_of(specification(GRID), *overrides)) == expected, overrides
    static = GRID.replace("pruning: gates}", "pruning: {method: gates, strength: 0.02}}")
    assert changed(before, cells_of(specification(static))) == {name for name in every if "none" not in name}


def test_every_other_setting_changes_it(specification):
    config = cells_of(specification(GRID)).cells["none-pos-1"].config
    train = config.train.model_copy(update={"mixing": "sampled", "balance": "running_mean"})
    config = config.model_copy(update={"train": train})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of values that no field would take
        known, same = {digest(config, "data", {})}, set()
        for name, block in dict(config).items():
            inner = dict(block) if isinstance(block, BaseModel) else {}
            changes = {
                **{f"{name}.{key}": block.model_copy(update={key: "unlikely"}) for key in inner if name != "decoders"},
                **({} if inner else {name: ("pos", "con") if name == "tasks" else "unlikely"}),
            }
            for key, value in changes.items():
                found = digest(config.model_copy(update={name: value}), "data", {})
                if found in known:
                    same.add(key)
                known.add(found)
    assert same == {"name", "data.path", *WITHOUT_EFFECT}


THOUSAND = list(range(1, 1001))
MISTAKES = [
    ("base: quickstart\ngird: {}\n", "unknown key gird (did you mean 'grid'?)"),
    ("grid: {seed: [1]}\n", "base: expected a preset or a configuration file, found None"),
    ("base: quickstart\n", "expected a grid or cells, found neither"),
    ("base: quickstart\ngrid: {seed: 1}\n", "grid.seed: expected names with settings, or a list"),
    ("base: quickstart\ngrid: {a: {no: {}}}\n", "YAML reads a name there as False; write it in quotes"),
    ("base: quickstart\ngrid: {a: {x: 3}}\n", "grid.a.x: expected keys and values such as"),
    ("base: quickstart\ngrid: {encoder: [a/b, c/b]}\n", "two values would both be called b"),
    (PLAIN + "only: [{regim: none}]\n", "only: there is no axis regim (did you mean 'regime'?)"),
    (PLAIN + "exclude: {regime: gate}\n", "exclude: axis regime has no value gate (did you mean 'gates'?)"),
    (PLAIN + "exclude: {seed: [1, 2]}\n", "only and exclude leave no cell"),
    ("- 1\n", "expected keys and values, found ["),
    ('base: BASE\ncells: {a: {train: {start: "@b"}}}\n', "cell a: train.start: expected a cell of this sweep, found b"),
    ('base: BASE\ncells: {a: {train: {start: "@b"}}, b: {train: {start: "@a"}}}\n', "found: a → b → a"),
    ("base: BASE\n" + GRID.replace("{tasks}-{seed}", "{task}-{seed}", 1), "no axis task (did you mean 'tasks'?)"),
    ("base: BASE\ncells: {one: {}, other: {name: another}}\n", "one and other are the same run"),
    ("base: BASE\ncells: {a: {}, b: {data: {train: trian}}}\n", "has no split 'trian' (did you mean 'train'"),
    ("base: BASE\ngrid: {seed: [1]}\nevaluate: [tset]\n", "has no split 'tset' (did you mean 'test'"),
    ("base: BASE\ncells: {a: {}, b: {train: {epoch: 3}}}\n", "cell b: unknown key train.epoch (did you mean 'epochs'"),
    (f"base: BASE\ngrid: {{seed: {THOUSAND}, train.epochs: {THOUSAND}}}\n", "1,000,000 combinations"),
]


@pytest.mark.parametrize(("text", "said"), MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_is_a_sentence(base, tmp_path, text, said):
    with pytest.raises((SweepError, ConfigError)) as caught:
        cells_of(written(tmp_path, text.replace("BASE", str(base))))
    assert said in str(caught.value)


def test_the_folder_of_a_cell_is_found_by_its_digest(specification, tmp_path):
    path = specification("cells: {before: {}}\n")
    [cell] = resolve(read_specification(path), tmp_path).cells.values()
    cell.place.run.write_config({})
    path.write_text(path.read_text().replace("before", "after"))
    [renamed] = resolve(read_specification(path), tmp_path).cells.values()
    assert renamed.name == "after" and renamed.place == cell.place


def test_equal_letters(specification, monkeypatch):
    monkeypatch.setattr(cells, "digest", lambda config, *_: f"aaaaaaaa{config.train.seed:056x}")
    alike = cells_of(specification("grid: {seed: [1, 2]}\n")).cells
    assert {name: cell.digest for name, cell in alike.items()} == {"1": "aaaaaaaa", "2": "aaaaaaaa00000000"}


def test_cells_cost_the_same_whatever_their_seeds_rates_and_sources(specification):
    grid = GRID.replace("-{seed}", "-{seed}-{rate}-{train.epochs}")
    grid += "  rate: {low: {train: {encoder_rate: 0.1}}, high: {train: {encoder_rate: 0.2}}}\n  train.epochs: [1, 2]\n"
    sweep = cells_of(specification(grid))
    kinds: dict[str, set[str]] = {}
    for name, cell in sweep.cells.items():
        regime, tasks, _, _, epochs = name.split("-")
        kinds.setdefault(kind_of(cell), set()).add(f"{regime} {tasks} {epochs}")
    assert len(kinds) == 12 and all(len(alike) == 1 for alike in kinds.values())


def test_a_time_is_that_of_done_cells_of_the_kind_or_scaled_by_done_cells(specification):
    sweep = cells_of(specification(GRID))
    standing = {name: State("left") for name in sweep.cells}
    rough = expected_times(sweep.cells.values(), standing)
    assert rough == {name: (rough_seconds(cell.config, cell.evaluate), True) for name, cell in sweep.cells.items()}
    done = {"none-pos-1": 10.0, "none-pos-2": 20.0, "none-dep-1": 7.0}
    for name, seconds in done.items():
        standing[name] = State("done", trained=True, seconds=seconds)
    known = expected_times(sweep.cells.values(), standing)
    assert known.pop("none-dep-2") == (7.0 + NEXT, False)
    slowness = sum(done.values()) / sum(rough_seconds(sweep.cells[name].config) for name in done)
    assert known == {name: (pytest.approx(rough[name].seconds * slowness), True) for name in known}
    assert len(known) == 8


def test_a_rough_time_is_right_within_a_factor_of_one_and_a_half(monkeypatch):
    """Processor seconds of runs on 2,000 sentences, on one core with bf16 (results/five-papers)."""
    monkeypatch.setattr(times, "core", lambda: times.BF16)
    measured = {"ner": 88, "dep": 92, "con": 94, "con,srl": 100, "pos,ner,dep,con,srl": 120}
    for tasks, seconds in measured.items():
        overrides = ["data.path=nowhere/ewt5", "data.train_sentences=2000", "train.epochs=4", f"tasks={tasks}"]
        rough = rough_seconds(load_config("minilm-ewt5", overrides))
        assert seconds / 1.5 < rough - NEXT < seconds * 1.5


def test_rough_figures_grow_with_what_is_computed(tmp_path):
    def seconds(*overrides: str) -> float:
        return rough_seconds(load_config("minilm-ewt5", ["data.path=nowhere/ewt5", *overrides]))

    assert rough_seconds(load_config("minilm-ewt5", ["data.path=nowhere/mine"])) is None
    assert seconds("encoder.context=false") < seconds("tasks=pos") < seconds() < seconds("train.mixing=sampled")
    assert seconds() < seconds("train.epochs=6") < seconds("encoder.name=bert-base-cased", "train.epochs=6")
    frozen = ["train.start=x", "train.freeze=encoder,decoders", "pruning=fisher", "pruning.keep=3"]
    assert seconds(*frozen, "pruning.importance_of=x") < seconds("encoder.context=false")
    assert "LDC2013T19" in data_missing(tmp_path / "ontonotes5") and "data build" in data_missing(tmp_path / "mine")
    assert "exists, but it is not a corpus" in data_missing(tmp_path)
