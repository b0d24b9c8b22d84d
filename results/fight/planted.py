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
from mtlprune.analyses.roles.single import count_each, gains, interfering, one_by_one
from mtlprune.corpora.store import load_corpus
from mtlprune.encoder.export import fold_gates
from mtlprune.evaluation.head_masks import Mask
from mtlprune.figures.grid import Grid, probability
from mtlprune.sentence import Sentence
from mtlprune.training.ablation import close_with, closed_losses

TASK, SIZES, STEPS, WIDEST, SEED = "pos", (0.77, 0.44, 0.31, 0.21, 0.08, 0.03), 6, 6.0, 0
"""STEPS of a bisection over the logarithm (base 2) of a head's scale, from 0 to WIDEST."""
RESAMPLES, FITTED, FOUND, NOTHING = 4000, 1000, 0.3, 0.05
"""Resamples of sentences; training sentences that gates are fitted to; gains that must be found, that must not."""


def score(run: WholeRun, heads: Mask, sentences: list[Sentence]) -> float:
    """The task's main score with heads closed."""
    counted = count_closed(run.model, heads, sentences, run.precision)[TASK]
    return float(counted.scores(counted.totals)[0])


def plant(run: WholeRun, head: Mask, size: float, sentences: list[Sentence]) -> float:
    """Scale the output of a head until closing it gains ``size`` points; returns the scale."""
    encoder = run.model.encoder
    wanted, scale, low, high = score(run, head, sentences) - size, 1.0, 0.0, WIDEST

    def scaled(by: float) -> None:
        nonlocal scale
        factors = torch.ones(run.size)
        factors[torch.from_numpy(head)] = by / scale
        fold_gates(encoder.transformer, factors, encoder.places.kept)
        scale = by

    for _ in range(STEPS):
        middle = (low + high) / 2
        scaled(2**middle)
        low, high = (middle, high) if score(run, np.zeros(run.size, bool), sentences) > wanted else (low, middle)
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
    scales = [plant(run, mask, size, dev) for mask, size in zip(masks, SIZES, strict=True)]
    opened = score(run, np.zeros(run.size, bool), dev)
    on_dev = [score(run, mask, dev) - opened for mask in masks]
    nats = closed_losses(run.model, dev, [np.zeros(run.size, bool), *masks], lambda: None)[:, 0]
    counts = count_each(run, reading.sentences)
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
    content |= {"planted": planted, "gain": every["gain"].tolist(), "detectable": every["detectable"].tolist()}
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
