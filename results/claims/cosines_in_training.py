"""Test whether cosines of gradients during training predict which task hurts which (results/why/PLAN.md, experiment 5).

    python results/claims/cosines_in_training.py measure data/ewt5 runs/cosines results/claims/cosines-in-training.json
    python results/claims/cosines_in_training.py show results/claims/cosines-in-training.json \\
        leave-one-out.json

`measure` trains the joint runs of the leave-one-out study again. Before six of the updates it computes the gradient of
each task's loss with respect to all weights of the encoder on two halves of the same training sentences, without
dropout. `show` prints the correlations of effects with two kinds of cosines: between two tasks on the same sentences,
and between one task on one half of the sentences and the other task on the other half. Effects of a task on another are
those of [leave_one_out.py](leave_one_out.py), which also describes the test.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from leave_one_out import TASKS, correlation, read_effects

from mtlprune.config.config import load_config
from mtlprune.encoder.observe import evaluating
from mtlprune.runs.folder import RunFolder
from mtlprune.statistics.standard_errors import LEVEL
from mtlprune.training import loop
from mtlprune.training.callbacks import Callback
from mtlprune.training.run import Run

STEPS, SENTENCES, SEEDS = (25, 50, 100, 150, 200, 250), 200, (1, 2, 3)
"""Numbers of finished updates at which gradients are computed, number of sentences, and seeds of the runs."""
PLANTED, DRAWS = (0.0, 0.4, 0.6, 0.8), 200
"""Correlations of planted effects with the predictor, and number of draws of each."""


class CosinesOfTasks(Callback):
    """A callback that computes cosines of the tasks' gradients and changes nothing."""

    def __init__(self, run: Run) -> None:
        self.run, self.measured = run, dict[int, list[list[float]]]()
        is_annotated = np.all([run.is_annotated[task] for task in TASKS], axis=0)
        rows = np.flatnonzero(is_annotated)[:SENTENCES].tolist()
        self.halves = rows[::2], rows[1::2]

    def before_update(self, step: int, epoch: int = 0) -> None:
        """Compute the cosines of all gradients before an update of STEPS, (2 · tasks, 2 · tasks)."""
        if step in STEPS:
            gradients = torch.stack([gradient for rows in self.halves for gradient in self.gradients(rows)])
            lengths = gradients.norm(dim=1)
            self.measured[step] = (gradients @ gradients.T / (lengths[:, None] * lengths)).tolist()

    def gradients(self, rows: list[int]) -> list[torch.Tensor]:
        """Return the gradient of each task's mean loss over the words of these training sentences."""
        model, parameters = self.run.model, [p for p in self.run.model.encoder.parameters() if p.requires_grad]
        sums = torch.zeros(len(TASKS), sum(p.numel() for p in parameters))
        with evaluating(model), torch.enable_grad():
            for start in range(0, len(rows), 25):
                part = rows[start : start + 25]
                targets = {task: [self.run.targets[task][row] for row in part] for task in TASKS}
                batch = model.collate([self.run.pieces[row] for row in part], targets)
                losses = model.losses(batch)
                for place, task in enumerate(TASKS):
                    slopes = torch.autograd.grad(losses[task], parameters, retain_graph=True, allow_unused=True)
                    whole = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, slopes, strict=True)]
                    sums[place] += batch.words * torch.cat([g.flatten() for g in whole])
        return list(sums)


class TrainerWithCosines(loop.Trainer):
    """A trainer that also computes the cosines."""

    def make_callbacks(self) -> list[Callback]:
        """Append the callback to those of the run."""
        self.cosines = CosinesOfTasks(self.data)
        return [*super().make_callbacks(), self.cosines]

    def run(self) -> loop.Progress:
        """Train to the end, and write the cosines into the folder of the run."""
        progress = super().run()
        if set(self.cosines.measured) != set(STEPS):
            raise SystemExit(f"{self.folder.path}: expected cosines at updates {STEPS}; delete it and train again")
        self.folder.path.joinpath("cosines.json").write_text(json.dumps(self.cosines.measured))
        return progress


def measure(corpus: str, out: str, target: str) -> None:
    """Train the joint runs, and write the cosines of all seeds and updates to ``target``."""
    loop.Trainer = TrainerWithCosines  # type: ignore[misc]
    measured = {}
    for seed in SEEDS:
        settings = [f"tasks={','.join(TASKS)}", f"train.seed={seed}", f"data.path={corpus}", "train.precision=bf16"]
        folder = RunFolder(Path(out) / str(seed))
        loop.train(load_config("experiments/untuned.yaml", [*settings, "train.threads=1"]), folder)
        measured[seed] = json.loads(folder.path.joinpath("cosines.json").read_text())
    Path(target).write_text(json.dumps(measured) + "\n")


def predictors(measured: dict[str, dict[str, list[list[float]]]]) -> dict[str, np.ndarray]:
    """Return the mean cosines of two tasks on the same and on disjoint sentences: (S, steps, tasks, tasks) each."""
    cubes = np.array([[steps[str(step)] for step in STEPS] for steps in measured.values()])
    first, second = slice(None, len(TASKS)), slice(len(TASKS), None)
    return {
        "same sentences": (cubes[..., first, first] + cubes[..., second, second]) / 2,
        "disjoint sentences": (cubes[..., first, second] + cubes[..., second, first]) / 2,
    }


def show(source: str, scores: str) -> None:
    """Print how often planted effects are found, the correlations, and the cosines."""
    (_, effect), generator = read_effects(scores), np.random.default_rng(0)
    cosines = predictors(json.loads(Path(source).read_text()))
    print("# Do cosines of gradients during training predict effects of one task on another?\n\n## Planted effects\n")
    print(f"| correlation with the cosine | p ≤ {LEVEL} |\n|--:|--:|")
    same = cosines["same sentences"].mean((0, 1))
    is_measured = ~np.isnan(effect)
    standard = (same - same[is_measured].mean()) / same[is_measured].std()
    for size in PLANTED:
        found = 0
        for _ in range(DRAWS):
            drawn = size * standard + np.sqrt(1 - size**2) * generator.normal(size=standard.shape)
            found += correlation(np.where(is_measured, drawn, np.nan), same)[1] <= LEVEL
        print(f"| {size:.1f} | {found} of {DRAWS} |")
    print("\n## Measured effects\n\n| sentences | Spearman's correlation | p | significant from |\n|:--|--:|--:|--:|")
    for name, cube in cosines.items():
        observed, p, smallest = correlation(effect, cube.mean((0, 1)))
        print(f"| {name.removesuffix(' sentences')} | {observed:+.2f} | {p:.4f} | {smallest:.2f} |")
    print(f"\n## Mean cosines\n\n| tasks | {' | '.join(cosines)} |\n|:--|--:|--:|")
    for first, second in zip(*np.triu_indices(len(TASKS), 1), strict=True):
        cells = [f"{cube[..., first, second].mean():+.3f}" for cube in cosines.values()]
        print(f"| {TASKS[first].upper()}, {TASKS[second].upper()} | {' | '.join(cells)} |")
    print(f"\n| finished updates | {' | '.join(cosines)} |\n|--:|--:|--:|")
    upper = np.triu_indices(len(TASKS), 1)
    for place, step in enumerate(STEPS):
        cells = [f"{cube[:, place, upper[0], upper[1]].mean():+.3f}" for cube in cosines.values()]
        print(f"| {step} | {' | '.join(cells)} |")


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {"measure": measure, "show": show}
    commands[sys.argv[1]](*sys.argv[2:])
