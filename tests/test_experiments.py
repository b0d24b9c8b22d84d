"""Every shipped configuration, and every one the experiments' README derives on a command line, can be trained."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from mtlprune.config import PRESETS, load_config
from mtlprune.corpora.grammar import build_grammar
from mtlprune.corpora.store import save_corpus
from mtlprune.runs import RunFolder

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "experiments"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
EXPERIMENTS = sorted(FOLDER.glob("*.yaml"))
SHIPPED = [*sorted(PRESETS.glob("*.yaml")), *EXPERIMENTS]
TRAININGS = [shlex.split(line)[2:] for line in README.splitlines() if line.startswith("mtlprune train ")]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A handful of sentences with all five layers; do not write into it."""
    path = tmp_path_factory.mktemp("data") / "corpus"
    save_corpus(build_grammar(train=8, dev=3, test=1, seed=1), path, name="grammar", licence="Apache-2.0", sources={})
    return path


def one_update(source: str, settings: list[str], corpus: Path, encoder: Path, out: Path) -> RunFolder:
    """Begin a run of that configuration on a stand-in corpus and encoder, and stop it after its first update."""
    from mtlprune.training.loop import train

    stand_ins = [f"data.path={corpus}", f"encoder.name={encoder}", "train.threads=1", "train.device=cpu"]
    run = RunFolder(out)
    progress = train(load_config(source, [*settings, *stand_ins]), run, stop=lambda: True)
    assert progress.step == 1
    return run


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_configuration_trains(
    path: Path, corpus: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    steered = load_config(path).pruning.keep is not None
    run = one_update(str(path), ["pruning.keep=2"] if steered else [], corpus, tiny_encoder("bert"), tmp_path / "run")
    assert run.read_config()["name"] == path.stem
    assert run.checkpoint_path.is_file() or run.read_json("manifest.json")["finished"]


@pytest.mark.parametrize("arguments", TRAININGS, ids=" ".join)
def test_every_training_of_the_readme_is_a_configuration(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    if "--out" in arguments:
        place = arguments.index("--out")
        assert arguments[place + 1].startswith("runs/")
        arguments = arguments[:place]
    config = load_config(arguments[0], arguments[1:])
    if config.name.startswith("he-choi-2021-"):
        assert config.name == "-".join(["he-choi-2021", *config.tasks])


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_an_experiment_says_what_differs_from_a_preset(path: Path) -> None:
    base = re.search(r"^base: (\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert base is not None
    preset = load_config(base[1])
    config = load_config(path)
    assert config.name == path.stem != preset.name
    assert path.read_text(encoding="utf-8").startswith("# ")


def test_experiments_and_their_readme_name_the_same_files() -> None:
    assert set(re.findall(r"[\w-]+\.yaml", README)) == {path.name for path in EXPERIMENTS}


def test_no_two_trainings_of_the_readme_are_the_same() -> None:
    configs = [
        load_config(ROOT / a[0] if a[0].endswith(".yaml") else a[0], [x for x in a[1:] if "=" in x]) for a in TRAININGS
    ]
    assert len({config.digest() for config in configs}) == len(TRAININGS)
    assert {frozenset(config.tasks) for config in configs if config.name.startswith("he-choi-2021")} == {
        frozenset(pair) for pair in _subsets()
    }


def _subsets() -> list[set[str]]:
    """All single tasks, all pairs, all five."""
    from mtlprune.sentence import LAYERS

    pairs = [{one, other} for place, one in enumerate(LAYERS) for other in LAYERS[place + 1 :]]
    return [*({task} for task in LAYERS), *pairs, set(LAYERS)]
