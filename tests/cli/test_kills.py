"""Every command that writes, killed at any of its operations on files, ends as if it never had been.

Training, pretraining, removal and evaluation are in tests/training/test_power_cuts.py, packing in
tests/sweeps/test_packing.py, the beginnings of compare and quickstart in tests/cli/test_compare.py.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from power_cuts import KEPT, Recorder, contents, images, lay_out

FIRST, LATER = 40, 20
"""Moments at the beginning that are all tried, and those that are drawn evenly from the others."""


@pytest.fixture
def commands(lab: Any, own_gates: Path, tmp_path: Path) -> dict[str, tuple[Any, ...]]:
    """Command → its words; what they write is below ROOT."""
    words, tags = tmp_path / "words.txt", tmp_path / "own.conll"
    words.write_text("The cat saw the dog .\n")
    tags.write_text("".join(f"The\tDT\ncat\tNN\n{number}\tCD\n\n" for number in range(8)))
    columns = ("columns", "--columns", "word,pos", "--train", tags, "--out", "ROOT/corpus")
    dev, few = ("--split", "dev"), ("--resamples", 10)
    sweep = {"base": str(lab.config), "grid": {"tasks": ["pos"], "seed": [1, 2]}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    return {
        "train": ("train", lab.config, "tasks=pos", "train.epochs=1", "--seeds", "1,2", "--out", "ROOT/run"),
        "export": ("export", own_gates, "--task", "pos", "--out", "ROOT/export"),
        "predict": ("predict", own_gates, words, "--out", "ROOT/predicted.jsonl"),
        "data build": ("data", "build", *columns),
        "data export": ("data", "export", lab.corpus, *dev, "--layer", "pos", "--out", "ROOT/exported.conllu"),
        "claims": ("claims", own_gates, "--permutations", 10, "--out", "ROOT/claims", "--format", "svg"),
        "report": ("report", own_gates, *few, "--out", "ROOT/page.html"),
        "table": ("table", own_gates, *dev, *few, "--out", "ROOT/table.md"),
        "sweep": ("sweep", tmp_path / "sweep.yaml", "--out", "ROOT/sweep", "--jobs", 1),
        "analyze": ("analyze", "gradients", own_gates, "--corpus", lab.corpus, "--out", "ROOT/analyses"),
    }


NAMES = ("train", "export", "predict", "data build", "data export", "claims", "report", "table", "analyze", "sweep")


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("name", NAMES)
def test_a_command_that_is_killed_and_given_again_ends_as_if_never_killed(
    name: str, commands: dict[str, tuple[Any, ...]], mtlprune: Callable[..., Any], tmp_path: Path
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    dead = subprocess.Popen(["true"])
    dead.wait()
    words = [str(word).replace("ROOT", str(root)) for word in commands[name]]
    with Recorder(root) as recorder:
        mtlprune(*words).done()
    expected = without_times(contents(root))
    recorder.root = root.rename(tmp_path / "recorded")
    moments = images(recorder, kept_of=("all",) if name == "sweep" else KEPT)
    later = moments[FIRST:]
    for image in [*moments[:FIRST], *later[:: max(1, len(later) // LATER)]]:
        shutil.rmtree(root, ignore_errors=True)
        lay_out({path.replace(f"-{os.getpid()}-", f"-{dead.pid}-"): held for path, held in image.items()}, root)
        if without_times(contents(root)) != expected:  # what was complete may be refused, as something that is there
            mtlprune(*words).done()
        assert without_times(contents(root)) == expected, (name, sorted(image))
    print(name, len(moments), "moments")


def without_times(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: b"" if name.endswith(("manifest.json", ".log")) else text for name, text in files.items()}
