"""Are heads found that are planted to cost a task a known number of points? (PLAN.md, 2026-11-28, 01:18)

    python results/fight/planted.py measure OUT.json CORPUS RUN      # plant six heads in a finished run, look for them
    python results/fight/planted.py show OUT.json...                 # Markdown of such files

A random head of each layer is planted: its output is scaled so far that closing it alone gains POS so many points
(SIZES) on dev. Weights are changed in memory only. Then test is asked with `mtlprune.analyses.roles`, for POS: each
head closed alone, and two-sided gates.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.closing import WholeRun, count_closed, whole_run, with_task
from mtlprune.analyses.reading import find_sources, read_request, training_sentences
from mtlprune.analyses.roles import ROLES, RoleOptions
from mtlprune.analyses.roles.maths import agreed, least_effect
from mtlprune.analyses.roles.measure import _fitted, _Study
from mtlprune.analyses.roles.single import gains, interfering, one_by_one
from mtlprune.corpora.store import load_corpus
from mtlprune.encoder.export import fold_gates
from mtlprune.evaluation.head_masks import Mask
from mtlprune.figures.grid import Grid, probability
from mtlprune.sentence import Sentence
from mtlprune.statistics.resamples import System
from mtlprune.training.ablation import close_with, closed_losses

TASK, SIZES, STEPS, WIDEST, SEED = "pos", (0.77, 0.44, 0.31, 0.21, 0.08, 0.03), 6, 6.0, 0
"""STEPS of a bisection over the logarithm (base 2) of a head's scale, from 0 to WIDEST."""
RESAMPLES, FITTED, CALIBRATED = 4000, 1000, 1000
"""Resamples of sentences; training sentences that gates are fitted to; sentences of dev, about, that scales are fitted
to."""
FOUND, NOTHING = 0.3, 0.05
"""Gains that must be found, and that must not."""


class Scorer:
    """Counts of a task with heads closed, on the same sentences again and again.

    What layers put out below the first one that differs is not computed anew: the outputs of each layer for each batch
    are those of the last call of `remember`, as batches come in the same order.
    """

    def __init__(self, run: WholeRun, sentences: list[Sentence]) -> None:
        self.run, self.sentences, self.first = run, sentences, 0
        self.layers = list(run.model.encoder.transformer.encoder.layer)
        self.outputs: list[list[Any]] = [[] for _ in self.layers]
        self.batches = [0] * len(self.layers)

    def __call__(self, heads: Mask, first: int = 0, remember: bool = False) -> System:
        """``first``: the lowest layer, from 0, that differs from the last call with ``remember``."""
        self.first, self.batches = first, [0] * len(self.layers)
        forwards = [layer.forward for layer in self.layers]
        for place, layer in enumerate(self.layers):
            layer.forward = self._forward(place, forwards[place], remember)
        try:
            return count_closed(self.run.model, heads, self.sentences, self.run.precision)[TASK]
        finally:
            for layer in self.layers:
                del layer.forward

    def _forward(self, place: int, forward: Any, remember: bool) -> Any:
        def called(*args: Any, **options: Any) -> Any:
            batch, self.batches[place] = self.batches[place], self.batches[place] + 1
            if place < self.first:
                return self.outputs[place][batch]
            output = forward(*args, **options)
            if remember:
                self.outputs[place][batch : batch + 1] = [output]
            return output

        return called

    def score(self, heads: Mask, first: int = 0, remember: bool = False) -> float:
        """The task's main score with heads closed."""
        counted = self(heads, first, remember)
        return float(counted.scores(counted.totals)[0])


def plant(scorer: Scorer, head: Mask, size: float) -> float:
    """Scale the output of a head until closing it gains ``size`` points; returns the scale."""
    run, layer, opened = scorer.run, int(head.any(1).argmax()), np.zeros_like(head)
    encoder = run.model.encoder
    scorer(opened, remember=True)
    wanted, scale, low, high = scorer.score(head, layer) - size, 1.0, 0.0, WIDEST

    def scaled(by: float) -> None:
        nonlocal scale
        factors = torch.ones(run.size)
        factors[torch.from_numpy(head)] = by / scale
        fold_gates(encoder.transformer, factors, encoder.places.kept)
        scale = by

    for _ in range(STEPS):
        middle = (low + high) / 2
        scaled(2**middle)
        low, high = (middle, high) if scorer.score(opened, layer) > wanted else (low, middle)
    scaled(2 ** ((low + high) / 2))
    return scale


def measure(out: str, corpus: str, name: str) -> None:
    """Plant heads in a run, ask for them, and write what is found of every head."""
    options = RoleOptions()
    request = Request([name], Path(corpus), options, "test", seed=SEED)
    [subject] = [one for source in find_sources([name]) for one in source.open()]
    whole = whole_run(subject, "cpu")
    if isinstance(whole, str):
        raise SystemExit(f"{name}: {whole}")
    run = whole._replace(model=with_task(whole.model, TASK))
    run.model.eval().requires_grad_(False)
    dev, reading = list(load_corpus(Path(corpus))["dev"]), read_request(request)
    generator = np.random.default_rng([SEED, 40, subject.seed])
    layers, heads = run.size
    places = [(int(layer), int(generator.integers(heads))) for layer in generator.permutation(layers)]
    grid = one_by_one(run.size)
    masks = [grid[int(np.ravel_multi_index(place, run.size))] for place in places]
    close_with(run.model, "zero", [], masks)
    nothing = np.zeros(run.size, bool)
    scorer = Scorer(run, dev[:: len(dev) // CALIBRATED])
    scales = [plant(scorer, mask, size) for mask, size in zip(masks, SIZES, strict=True)]
    scorer = Scorer(run, dev)
    opened = scorer.score(nothing, remember=True)
    on_dev = [scorer.score(mask, layer) - opened for mask, (layer, _) in zip(masks, places, strict=True)]
    nats = closed_losses(run.model, scorer.sentences[::4], [nothing, *masks], lambda: None)[:, 0]
    scorer = Scorer(run, reading.sentences)
    opened_on_test = scorer(nothing, remember=True)
    counts = {TASK: [opened_on_test, *(scorer(mask, place // heads) for place, mask in enumerate(grid))]}
    every = gains(counts[TASK], RESAMPLES, SEED)
    _, chosen, _ = interfering(counts, run.size, RESAMPLES, SEED)
    study = _Study(reading, request, training_sentences(reading, request, FITTED))
    fitted = _fitted(study, run, TASK)
    assert fitted is not None
    roles = {role: agreed(values).ravel().tolist() for role, values in fitted.items()}
    planted = [
        {"layer": layer + 1, "head": head + 1, "size": size, "scale": scale, "dev": gain, "nats": float(nats[0] - loss)}
        for (layer, head), size, scale, gain, loss in zip(places, SIZES, scales, on_dev, nats[1:], strict=True)
    ]
    content: dict[str, Any] = {"run": name, "tasks": len(whole.model.tasks), "seed": subject.seed, "dev": opened}
    content |= {"heads": heads, "layers": layers, "least": least_effect(options.strength, layers * heads)}
    content |= {
        "planted": planted,
        "gain": every["gain"].tolist(),
        "detectable": every["detectable"].tolist(),
    }
    content |= {"chosen": chosen.to_dict("records"), "roles": roles, "strength": options.strength}
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def role(roles: dict[str, list[bool]], place: int) -> str:
    """The role of a head by gates; undecided where selections disagree or no score is above a half."""
    return next((name for name in ROLES if roles[name][place]), "undecided")


def show(*files: str) -> None:
    """Print tables of all runs: planted heads, and all others that one of the two methods names."""
    rows, others, plants = [], [], []
    for one in (json.loads(Path(file).read_text(encoding="utf-8")) for file in files):
        run = f"{'MTL-' + str(one['tasks']) if one['tasks'] > 1 else 'POS'}, seed {one['seed']}"
        chosen = {(row["layer"], row["head"]): row for row in one["chosen"]}
        at = {(row["layer"], row["head"]): row for row in one["planted"]}
        for place in range(len(one["gain"])):
            layer, head = place // one["heads"] + 1, place % one["heads"] + 1
            test, half = one["gain"][place], chosen.get((layer, head), {})
            found = half.get("holm", 1.0) < 0.05
            row = {"run": run, "where": f"{layer}-{head}", "test": test, "first": half.get("first"), "found": found}
            row |= {"second": half.get("second"), "holm": half.get("holm"), "gates": role(one["roles"], place)}
            row |= {"closing": "found" if found else "chosen" if half else "–", **at.get((layer, head), {})}
            if (layer, head) in at:
                plants.append(row)
            elif found or row["gates"] == "interfering":
                others.append(row)
            rows.append(row)
    columns: dict[str, Any] = {"run": "run", "head": "where", "planted": ("size", 2), "dev": ("dev", 2)}
    columns |= {"nats": ("nats", 4), "scale": ("scale", 1), "test": ("test", 2)}
    asked: dict[str, Any] = {"first half": ("first", 2), "second half": ("second", 2), "Holm p": ("holm", probability)}
    asked |= {"closed alone": "closing", "gates": "gates"}
    print("# Planted heads\n")
    for name, least, most in ((f"{FOUND:g} points or more", FOUND, 9.0), (f"less than {NOTHING:g}", -9.0, NOTHING)):
        of = [row for row in plants if least <= row["dev"] < most]
        by_closing, by_gates = sum(row["found"] for row in of), sum(row["gates"] == "interfering" for row in of)
        print(
            f"- Of {len(of)} planted heads that cost POS {name} on dev, closing each head alone finds {by_closing}, "
            f"two-sided gates find {by_gates}."
        )
    none = [row for row in rows if row not in plants and row["test"] < NOTHING]
    flagged, gated = sum(row["found"] for row in none), sum(row["gates"] == "interfering" for row in none)
    print(
        f"- Of {len(none)} other heads whose closing gains POS less than {NOTHING:g} points on all of test, {flagged} "
        f"are found by closing, {gated} by gates.\n"
    )
    caption = (
        "Points that POS gains by closing the head alone, in the run with all six plants; nats: how much lower its "
        "loss on dev is then. Holm p is of the second half of test."
    )
    print(Grid.of("Planted heads", pd.DataFrame(plants), {**columns, **asked}, caption, texts=2).part())
    rest = {name: column for name, column in columns.items() if name in ("run", "head", "test")} | asked
    if others:
        print(Grid.of("Other heads that a method names", pd.DataFrame(others), rest, "", texts=2).part())


if __name__ == "__main__":
    {"measure": measure, "show": show}[sys.argv[1]](*sys.argv[2:])
