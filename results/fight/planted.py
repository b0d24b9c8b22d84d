"""Test whether `analyze roles` finds heads that cost a task a known number of points (PLAN.md, 2026-11-28).

    python results/fight/planted.py measure OUT CORPUS RUN [fresh]   # plant six heads in a run; adds a line to OUT
    python results/fight/planted.py show OUT                         # print the results in OUT as Markdown

A *plant* is a head whose output is scaled up so far that closing it gains POS a given number of points (SIZES) on a
quarter of dev. One random head of each layer is planted, one at a time, by changing weights in memory. Then the plant
is tested on the test split as in `analyze roles closing=single`, where one half of the sentences chooses heads and the
other half confirms them. The gain on dev counts as known. With `fresh`, the plant is tested on the training sentences
that the run was not trained on, and the gain on dev and test counts as known.
"""

import json
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedModel

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.harness.ablation import AblatableRun
from mtlprune.analyses.harness.reading import find_sources, read_request
from mtlprune.analyses.heads.roles import RoleOptions
from mtlprune.analyses.heads.roles.single import gains, halves, select_sentences
from mtlprune.corpora.store import load_corpus
from mtlprune.encoder.export import fold_gates
from mtlprune.evaluation.head_masks import Mask
from mtlprune.figures.grid import Grid, probability
from mtlprune.runs.folder import RunFolder
from mtlprune.sentence import Sentence
from mtlprune.statistics.resamples import System
from mtlprune.statistics.standard_errors import LEVEL

TASK, SIZES, STEPS, MAX_LOG_SCALE, SEED = "pos", (0.77, 0.44, 0.31, 0.21, 0.08, 0.03), 6, 6.0, 0
"""STEPS is the number of steps of a bisection over log₂ of a head's scale, between 0 and MAX_LOG_SCALE."""
RESAMPLES, CALIBRATION_SENTENCES, BONFERRONI_FACTOR = 4000, 500, 5
"""Number of resamples, approximate number of dev sentences to which scales are fitted, and factor of Bonferroni's
correction: with one plant, the first half of the sentences chooses about five of 72 heads, four of them by chance."""
SENTENCE_KINDS = {
    "test": ("Test (2,077 sentences)", "dev"),
    "fresh": ("Training sentences that the runs never saw (10,544)", "dev and test"),
}
"""For each kind of tested sentences, a title, and the sentences on which the known gain was measured."""
LARGE_GAIN, NEGLIGIBLE_GAIN, HALVES = 0.3, 0.05, ("first", "second")
"""Gain from which on a plant should be found, gain below which it should not be found, and halves of the sentences."""


class Scorer:
    """A function that counts a task's correct items on the same sentences with different closed heads.

    It does not recompute the layers below the first layer that differs. Their outputs for each batch are those of the
    last call with ``remember``, because batches come in the same order in each call.
    """

    def __init__(self, run: AblatableRun, sentences: list[Sentence]) -> None:
        self.run, self.sentences, self.first = run, sentences, 0
        transformer: Any = run.model.encoder.transformer
        self.layers = list(transformer.encoder.layer)  # the layers of a BERT model
        self.outputs: list[list[Any]] = [[] for _ in self.layers]
        self.batches = [0] * len(self.layers)

    def __call__(self, heads: Mask, first: int = 0, remember: bool = False) -> System:
        """Count the items with some heads closed.

        Args:
            heads: mask (L, A) of the heads to close.
            first: the lowest layer, counted from 0, that differs from the last call with ``remember``.
            remember: whether to store the outputs of all layers for later calls.
        """
        self.first, self.batches = first, [0] * len(self.layers)
        forwards = [layer.forward for layer in self.layers]
        for number, layer in enumerate(self.layers):
            layer.forward = self._forward(number, forwards[number], remember)
        try:
            return self.run.counts(heads, self.sentences)[TASK]
        finally:
            for layer in self.layers:
                del layer.forward

    def _forward(self, number: int, forward: Any, remember: bool) -> Any:
        def called(*args: Any, **options: Any) -> Any:
            batch, self.batches[number] = self.batches[number], self.batches[number] + 1
            if number < self.first:
                return self.outputs[number][batch]
            output = forward(*args, **options)
            if remember:
                self.outputs[number][batch : batch + 1] = [output]
            return output

        return called

    def score(self, heads: Mask, first: int = 0, remember: bool = False) -> float:
        """Return the task's main score, with the arguments of a call."""
        counted = self(heads, first, remember)
        return float(counted.scores(counted.totals)[0])


def plant(scorer: Scorer, head: Mask, size: float) -> float:
    """Scale the output of a head so that closing it gains ``size`` points, and return the scale."""
    run, layer, no_heads = scorer.run, int(head.any(1).argmax()), np.zeros_like(head)
    hooks, transformer = run.model.encoder.head_hooks, cast(PreTrainedModel, run.model.encoder.transformer)
    target, scale, low, high = scorer.score(head, layer) - size, 1.0, 0.0, MAX_LOG_SCALE

    def scaled(by: float) -> None:
        nonlocal scale
        factors = torch.ones(run.size)
        factors[torch.from_numpy(head)] = by / scale
        fold_gates(transformer, factors, hooks.kept_heads)
        scale = by

    for _ in range(STEPS):
        middle = (low + high) / 2
        scaled(2**middle)
        low, high = (middle, high) if scorer.score(no_heads, layer) > target else (low, middle)
    scaled(2 ** ((low + high) / 2))
    return scale


def measure(out: str, corpus: str, name: str, sentences: str = "test") -> None:
    """Plant the heads one at a time, measure what closing each of them gains, and append the results to ``out``."""
    if sentences not in ("test", "fresh"):
        raise SystemExit(f"{sentences}: expected test or fresh")
    request = Request([name], Path(corpus), RoleOptions(), "test", seed=SEED)
    [subject] = [opened for source in find_sources([name]) for opened in source.open()]
    reading = read_request(request)
    joint_run = AblatableRun.of(subject, "cpu", reading.fingerprint)
    run = joint_run.of_task(TASK)
    run.model.eval().requires_grad_(False)
    splits = load_corpus(Path(corpus))
    dev, test = list(splits["dev"]), reading.sentences
    calibration = Scorer(run, dev[:: len(dev) // CALIBRATION_SENTENCES])
    if sentences == "fresh":
        dev, test = dev + test, list(splits["train"])[RunFolder(Path(name)).config.data.train_sentences :]
    scorers = [Scorer(run, dev), Scorer(run, test)]
    no_heads = np.zeros(run.size, bool)
    for scorer in (calibration, *scorers):
        scorer(no_heads, remember=True)  # the layers below a plant are the unchanged layers of the run
    generator, planted = np.random.default_rng([SEED, 40, subject.seed]), []
    heads_to_plant = [
        (int(layer), int(generator.integers(run.size[1]))) for layer in generator.permutation(run.size[0])
    ]
    for (layer, head), size in zip(heads_to_plant, SIZES, strict=True):
        weight = scorers[0].layers[layer].attention.output.dense.weight
        before, mask = weight.detach().clone(), no_heads.copy()
        mask[layer, head] = True
        row: dict[str, Any] = {
            "layer": layer + 1,
            "head": head + 1,
            "size": size,
            "scale": plant(calibration, mask, size),
        }
        on_dev, on_test = ([scorer(heads, layer) for heads in (no_heads, mask)] for scorer in scorers)
        sides = halves(len(test), SEED)
        systems_by_part = {"dev": on_dev, "test": on_test}
        systems_by_part |= {
            half: [select_sentences(system, rows) for system in on_test]
            for half, rows in zip(HALVES, sides, strict=True)
        }
        for part, systems in systems_by_part.items():
            gained = gains(systems, RESAMPLES, SEED)
            row |= {part: float(gained["gain"][0]), f"p {part}": float(gained["p"][0])}
            row |= {f"detectable {part}": float(gained["detectable"][0])}
        planted.append(row)
        weight.data.copy_(before)
    content = {
        "run": name,
        "asked": sentences,
        "tasks": len(joint_run.model.tasks),
        "seed": subject.seed,
        "planted": planted,
    }
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    with Path(out).open("a", encoding="utf-8") as file:
        file.write(json.dumps(content) + "\n")


def show(out: str) -> None:
    """Print a table of the plants of all runs for each kind of tested sentences."""
    print("# Planted heads")
    all_runs = [json.loads(line) for line in Path(out).read_text(encoding="utf-8").splitlines()]
    for kind, (title, known_on) in SENTENCE_KINDS.items():
        runs = [run for run in all_runs if run.get("asked", "test") == kind]
        if runs:
            show_runs(runs, title, known_on)


def show_runs(runs: list[dict[str, Any]], title: str, known_on: str) -> None:
    """Print which plants both halves of the sentences find.

    Args:
        runs: the lines of the file.
        title: title of the table.
        known_on: name of the sentences on which the known gain was measured.
    """
    rows = []
    for run in runs:
        for row in (row for row in run["planted"] if row["p first"] < LEVEL):
            row["corrected"] = min(1.0, BONFERRONI_FACTOR * row["p second"])
        for row in run["planted"]:
            labels = {"run": f"MTL-{run['tasks']}, seed {run['seed']}", "where": f"{row['layer']}-{row['head']}"}
            outcome = "found" if row.get("corrected", 1.0) < LEVEL else "chosen" if "corrected" in row else "–"
            rows.append({**row, **labels, "found": outcome})
    caption = (
        "Values are points of POS by closing the head alone, one plant at a time. *Planted* points are on a quarter of "
        f"dev, to which the scale is fitted, and *known* points on {known_on}. A head is chosen on the first half "
        f"(one-sided p < 0.05) and found on the second (p counted {BONFERRONI_FACTOR} times, as four heads of 72 would "
        "be chosen at random). *Detectable* is what the second half would show in four of five cases."
    )
    columns: dict[str, Any] = {"run": "run", "head": "where", "planted": ("size", 2), "scale": ("scale", 1)}
    columns |= {"known": ("dev", 2), "both halves": ("test", 2)} | {f"{half} half": (half, 2) for half in HALVES}
    columns |= {"p": ("corrected", probability), "detectable": ("detectable second", 2), "closed alone": "found"}
    print()
    print(Grid.of(title, pd.DataFrame(rows), columns, caption, texts=2).part().rstrip())
    print()
    for words, lower, upper in (
        (f"{LARGE_GAIN:g} points or more", LARGE_GAIN, 9.0),
        (f"less than {NEGLIGIBLE_GAIN:g}", -9.0, NEGLIGIBLE_GAIN),
    ):
        of = [row["found"] for row in rows if lower <= row["dev"] < upper]
        print(f"- {of.count('found')} of {len(of)} plants that cost POS {words} on {known_on} are found.")


if __name__ == "__main__":
    (measure if sys.argv[1] == "measure" else show)(*sys.argv[2:])
