"""Compare two published ways to select heads, HIES and CIRCUS, with importance (PLAN.md, experiment 5).

    python results/why/published_selectors.py measure data/ewt5 results/why/published-selectors.json \\
        'runs/equal-loss/252-???-2[123]-*'
    python results/why/published_selectors.py show results/why/published-selectors.json

`measure` computes the importance, Fisher information and attention entropy of each head of single-task runs on training
sentences. `show` selects heads with them, and prints the agreement Φ of the heads that runs with different seeds select
for one task and for two tasks. The note of 2026-11-30 in the plan defines the selections.

Letters in shapes: M runs, L layers, A heads per layer.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from mtlprune import load
from mtlprune.analyses.harness.ablation import known_target
from mtlprune.analyses.heads.claims.stability import Runs, jackknife, phi
from mtlprune.corpora.store import load_corpus
from mtlprune.encoder.observe import observations, use_eager
from mtlprune.encoder.pieces import Pieces
from mtlprune.model import MultiTaskModel
from mtlprune.runs.folder import RunFolder
from mtlprune.sentence import Sentence
from mtlprune.sweeps.folder import expanded
from mtlprune.training.head_gradients import derivatives

TASKS, NUMBERS = ("pos", "ner", "dep", "con", "srl"), (7, 8, 9, 6, 7)
"""The tasks, and the number of stable heads of each (results/claims/stable)."""
SENTENCES, BATCH, WEIGHTS = 500, 25, (0.5, 0.25, 0.75, 0.9)
"""Number of sentences, sentences of a batch, and weights of importance in HIES, the planned weight first."""
REDUCTIONS, PLANTED = (0.0, 0.1, 0.3, 0.5), 200
"""Reductions of the noise between seeds in planted maps, and number of draws of each."""


def sentence_slopes(folder: RunFolder, sentences: list[Sentence]) -> tuple[MultiTaskModel, list[Pieces], torch.Tensor]:
    """Load a single-task run, and compute the derivative of its loss on each sentence with respect to each head.

    Returns:
        The model, SENTENCES annotated sentences in sub-words, and the derivatives (sentences, L, A).
    """
    model = load(folder).eval()
    [name] = model.tasks
    task = cast(Any, model.tasks[name])
    targets = [(sentence, known_target(task, sentence)) for sentence in sentences]
    pairs = [(sentence, target) for sentence, target in targets if target is not None][:SENTENCES]
    pieces = model.encoder.tokenize_sentences([sentence for sentence, _ in pairs])
    parts = [
        derivatives(model, pieces[start : start + BATCH], {name: [t for _, t in pairs[start : start + BATCH]]})
        for start in range(0, len(pairs), BATCH)
    ]
    return model, pieces, torch.cat(parts).double()


def measure(corpus: str, out: str, pattern: str) -> None:
    """Measure all runs, and write their maps to ``out``."""
    rows, sentences = [], load_corpus(Path(corpus))["train"][: SENTENCES + 100]  # a few have unknown labels
    for folder in map(RunFolder, expanded([pattern])):
        model, pieces, slopes = sentence_slopes(folder, sentences)
        total, queries = torch.zeros(slopes.shape[1:], dtype=torch.float64), 0
        for _, seen in observations(use_eager(model.encoder), pieces, None, ("attention",)):
            is_token = seen.batch.attention_mask.bool()  # (B, T)
            keys = is_token.sum(1).double()
            for layer, attention in enumerate(seen.attention):
                entropy = -torch.xlogy(attention.double(), attention.double()).sum(-1) / keys.log()[:, None, None]
                total[layer] += (entropy * is_token[:, None]).sum((0, 2))  # (B, A, T) → (A,)
            queries += int(keys.sum())
        maps = {"importance": slopes.abs().mean(0), "fisher": slopes.square().mean(0), "entropy": total / queries}
        rows.append(
            {"task": folder.config.tasks[0], "seed": folder.config.train.seed}
            | {k: v.tolist() for k, v in maps.items()}
        )
    Path(out).write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


def top(scores: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Select for each run as many heads with the largest scores as ``numbers`` says, (M, L, A) → (M, L, A) bool."""
    ranks = (-scores.reshape(len(scores), -1)).argsort(1).argsort(1).reshape(scores.shape)
    return ranks < numbers[:, None, None]


def normalised(scores: np.ndarray) -> np.ndarray:
    """Divide scores by the l2 norm of their layer."""
    return scores / np.linalg.norm(scores, axis=2, keepdims=True)


def scaled(scores: np.ndarray) -> np.ndarray:
    """Scale the scores of each run to [0, 1]."""
    low, high = scores.min((1, 2), keepdims=True), scores.max((1, 2), keepdims=True)
    return (scores - low) / (high - low)


def selections(maps: dict[str, np.ndarray], numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Select heads in all ways, with importance first: name → (M, L, A) bool."""
    importance, fisher = maps["importance"], maps["fisher"]
    scale, focus = scaled(normalised(importance)), 1 - scaled(maps["entropy"])
    ways = {"importance": top(normalised(importance), numbers)}
    ways |= {f"HIES, weight {w}": top(w * scale + (1 - w) * focus, numbers) for w in WEIGHTS}
    ways["entropy alone"] = top(focus, numbers)
    scores = [importance, fisher, normalised(importance), normalised(fisher)]
    views = [top(score, np.ceil(factor * numbers)) for score in scores for factor in (1, 1.5, 2)]
    ways["CIRCUS"] = np.all(views, axis=0)
    ways["as many by importance"] = top(normalised(importance), ways["CIRCUS"].sum((1, 2)))
    return ways


def agreements(chosen: list[np.ndarray], tasks: np.ndarray, seeds: np.ndarray, left: int | None = None) -> np.ndarray:
    """Compute Φ within one task and between two tasks, means over tasks, without one run: (selections, 2)."""
    rows = []
    for heads in chosen:
        runs = Runs(tasks, heads.astype(float), heads.astype(float), np.stack([seeds, seeds, np.zeros_like(seeds)], 1))
        values = phi(runs, seeds[:, None] != seeds, np.arange(len(tasks)) != (-1 if left is None else left))[0]
        within = np.diagonal(values).mean()
        rows.append((within, values[~np.eye(len(values), dtype=bool)].mean()))
    return np.array(rows)


def compared(chosen: list[np.ndarray], tasks: np.ndarray, seeds: np.ndarray, base: list[int]) -> tuple[np.ndarray, ...]:
    """Return Φ of each selection and its difference from the selection ``base`` names, with jack-knife intervals."""

    def statistics(left: int | None = None) -> np.ndarray:
        values = agreements(chosen, tasks, seeds, left)
        return np.column_stack([values, values[:, 0] - values[base, 0]])

    estimates = statistics()
    low, high, found_from, p = jackknife(estimates, np.stack([statistics(run) for run in range(len(tasks))]), tasks)
    return estimates, low, high, found_from, p


def planted(reduction: float, tasks: np.ndarray, seeds: np.ndarray, generator: np.random.Generator) -> bool:
    """Return whether a smaller noise between seeds is found, for maps in which importance has a Φ of about 0.7."""
    common = generator.normal(size=(len(TASKS), 6, 12))[tasks]
    noise = [0.3 * generator.normal(size=common.shape), 0.3 * (1 - reduction) * generator.normal(size=common.shape)]
    chosen = [top(common + each, np.array(NUMBERS)[tasks]) for each in noise]
    _, low, _, _, _ = compared(chosen, tasks, seeds, [0, 0])
    return bool(low[1, 2] > 0)


def show(source: str) -> None:
    """Print how often planted differences are found, and a row for each selection."""
    rows = json.loads(Path(source).read_text())
    tasks, seeds = np.array([TASKS.index(row["task"]) for row in rows]), np.array([row["seed"] for row in rows])
    order = np.lexsort((seeds, tasks))
    tasks, seeds = tasks[order], seeds[order]
    maps = {name: np.array([row[name] for row in rows])[order] for name in ("importance", "fisher", "entropy")}
    generator = np.random.default_rng(0)
    print("# Do HIES and CIRCUS select heads that repeat better over seeds than importance?\n")
    print("[Experiment 5](secondary.md) explains Φ. In planted maps the noise between seeds is lower by construction.")
    print("\n## Planted maps\n")
    print("| noise between seeds lower by | found (interval above 0) |\n|--:|--:|")
    for reduction in REDUCTIONS:
        found = sum(planted(reduction, tasks, seeds, generator) for _ in range(PLANTED))
        print(f"| {100 * reduction:.0f} % | {found} of {PLANTED} |")
    ways = selections(maps, np.array(NUMBERS)[tasks])
    names = list(ways)
    base = [names.index("as many by importance") if name == "CIRCUS" else 0 for name in names]
    estimates, low, high, found_from, p = compared(list(ways.values()), tasks, seeds, base)
    print("\n## Runs\n\n| selection | heads | Φ of one task | Φ of two tasks | minus importance | p | detectable |")
    print("|:--|--:|--:|--:|--:|--:|--:|")
    for row, (name, heads) in enumerate(ways.items()):
        values = [f"{estimates[row, k]:.2f} [{low[row, k]:.2f}, {high[row, k]:.2f}]" for k in range(3)]
        is_base = row in (0, names.index("as many by importance"))
        difference = ["", "", ""] if is_base else [values[2], f"{p[row, 2]:.4f}", f"{found_from[row, 2]:.2f}"]
        print(f"| {' | '.join([name, f'{heads.sum((1, 2)).mean():.1f}', *values[:2], *difference])} |")


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {"measure": measure, "show": show}
    commands[sys.argv[1]](*sys.argv[2:])
