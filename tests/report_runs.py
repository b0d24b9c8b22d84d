"""A small study as run folders hold it: five tasks alone, joint and with gates, three seeds, and its gold sentences."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from run_folders import scattered, write_run

from mtlprune.analyses.analysis import Request, find
from mtlprune.evaluation.scores import count, main_score, score
from mtlprune.io.files import append_line
from mtlprune.layers import LAYERS
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.results import Result, read_result, write_result
from mtlprune.sentence import Dependencies, Predicate, Sentence, Span

TASKS = tuple(LAYERS)
SHAPE = (3, 4)
EVIL = "<script>alert(1)</script>"
"""A tag of the corpus, and a word of every sentence."""


def gold_sentences(number: int = 40) -> list[Sentence]:
    """Short sentences with all layers, among whose labels is one that would break a careless page."""
    made = []
    for place in range(number):
        tags = ("DT", "NN", EVIL if place % 2 else "VB", "NN", ".")
        sentence = Sentence(
            f"s{place:03d}",
            ("the", "cat", EVIL, f"w{place}", "."),
            pos=tags,
            ner=(Span(1, 2, "PER" if place % 3 else "LOC"),),
            dep=Dependencies((2, 3, 0, 3, 3), ("det", "nsubj", "root", "obj", "punct")),
            con=(Span(0, 5, "S"), Span(0, 2, "NP"), Span(2, 4, "VP")),
            srl=(Predicate(2, None, (Span(0, 2, "ARG0"), Span(3, 4, "ARG1")), None),),
        )
        made.append(sentence.validate())
    return made


def guessed(gold: Sentence, tasks: Sequence[str], skill: float, generator: np.random.Generator) -> Sentence:
    """Layers of the tasks, each right as often as ``skill`` says."""
    wrong: dict[str, Any] = {
        "pos": ("DT", "NN", "NN", "VB", "."),
        "ner": (Span(3, 4, "ORG"),),
        "dep": Dependencies((3, 3, 0, 2, 3), ("det", "obj", "root", "nsubj", "punct")),
        "con": (Span(0, 5, "S"), Span(1, 3, "NP")),
        "srl": (Predicate(2, None, (Span(0, 2, "ARG1"),), None),),
    }
    layers = {task: (getattr(gold, task) if generator.random() < skill else wrong[task]) for task in tasks}
    return replace(gold, **{layer: layers.get(layer) for layer in TASKS})


def write_study(root: Path, seeds: Sequence[int] = (1, 2, 3), gold: Sequence[Sentence] = ()) -> list[RunFolder]:
    """Run folders: STL and MTL-5, without pruning and with gates."""
    made = []
    for pruned, tasks, seed in product((False, True), (*((task,) for task in TASKS), TASKS), seeds):
        name = f"{'gates' if pruned else 'none'}-{tasks[0] if len(tasks) == 1 else 'mtl5'}-{seed}"
        skill = (0.9 if len(tasks) == 1 else 0.7) - 0.1 * pruned
        made.append(write_study_run(root / name, tasks, seed, pruned, skill, gold or gold_sentences()))
    return made


def end_with(folder: RunFolder, **end: Any) -> None:
    """Change what the manifest says of the end of a run, such as its number of updates (step)."""
    manifest = folder.read_manifest()
    folder.write_json("manifest.json", {**manifest, "finished": {**manifest["finished"], **end}})


def result_of(root: Path, name: str, options: Any, runs: Sequence[str] | None = None) -> Result:
    """What an analysis finds in runs, by default in all below a folder, written and read again."""
    names = runs if runs is not None else sorted(str(path.parent) for path in root.glob("*/config.yaml"))
    write_result(root / "result", find(name).measure(Request(names, Path(), options, split="test")))
    return read_result(root / "result" / f"{name}.json")


def write_study_run(
    path: Path, tasks: Sequence[str], seed: int, pruned: bool, skill: float, gold: Sequence[Sentence]
) -> RunFolder:
    generator = np.random.default_rng([seed, len(tasks), TASKS.index(tasks[0]), pruned])
    gates = scattered(generator, (3, 2, 1), SHAPE[1])
    settings = {"data.train": "train", "data.dev": "dev", "data.train_sentences": 500, "pruning.method": "none"}
    if pruned:
        settings |= {"pruning.method": "gates", "pruning.keep": 6, "pruning.penalty": "exact"}
    folder = write_run(path, tasks, gates if pruned else None, seed=seed, **settings)
    manifest = folder.read_manifest()
    about = {"begun": "2026-01-01T00:00:00+00:00", "mtlprune": "0.1.0", "python": "3.11", "packages": {"torch": "2"}}
    finished = {"epoch": 3, "seconds": 61.0, "best": {"joint": {"epoch": 2, "score": 50.0}}}
    folder.write_json("manifest.json", manifest | about | {"finished": finished})
    guesses = [guessed(sentence, tasks, skill, generator) for sentence in gold]
    rows = {task: [count(task, g, p) for g, p in zip(gold, guesses, strict=True)] for task in tasks}
    scores = {task: score(task, rows[task]) for task in tasks}
    folder.write_results("test", scores, [s.id for s in gold], rows, guesses)
    main = {task: scores[task][main_score(task, {})] for task in tasks}
    for epoch in (1, 2, 3):
        dev = {task: {main_score(task, {}): main[task] * (0.7 + 0.1 * epoch)} for task in tasks}
        losses = dict.fromkeys(tasks, 3.0 / epoch)
        line = {"epoch": epoch, "step": 10 * epoch, "loss": losses, "dev": dev, "joint": 10.0 * epoch}
        append_line(folder.metrics_path, line)
    return folder
