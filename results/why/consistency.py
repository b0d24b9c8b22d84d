"""Measure how consistently single sentences rank the heads that a task claims first (PLAN.md, experiment 4).

    python results/why/consistency.py measure data/ewt5 results/why/consistency.json 'runs/equal-loss/252-???-2[123]-*'
    python results/why/consistency.py show results/why/consistency.json > results/why/consistency.md

`measure` ranks the heads of single-task runs by the absolute derivative of the loss on each of 500 training sentences.
*Consistency* is the share of a task's n claims that are among the n heads ranked first, as a mean over sentences.
`show` compares it with the expected share if heads are permuted within layers. The table of planted maps comes first:
the importance of heads is noise, and that of claims is larger by the given share of the noise's standard deviation.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from published_selectors import SENTENCES, TASKS, sentence_slopes, top

from mtlprune.analyses.harness.reading import find_sources
from mtlprune.analyses.heads.claims.groups import claimed_heads
from mtlprune.corpora.store import load_corpus
from mtlprune.figures.grid import probability, with_interval
from mtlprune.runs.folder import RunFolder
from mtlprune.statistics.contrast import Contrast, contrast_frame
from mtlprune.statistics.resamples import Resampled, weighted
from mtlprune.sweeps.folder import expanded

CLAIMS = "results/baselines/records/tuned:claims-*"
RESAMPLES, SEEDS, STUDIES = 2_000, 3, 200
SIZES = (0.0, 0.05, 0.1, 0.2)
"""Planted differences between claims and other heads, in standard deviations."""


def shares(importance: np.ndarray, claims: np.ndarray) -> np.ndarray:
    """Return for each sentence the share of claims that it ranks first, and the share within layers: (N, 2).

    Args:
        importance: (N, L, A), of each head on each sentence.
        claims: (L, A).
    """
    number = claims.sum()
    first = top(importance, np.full(len(importance), number))
    by_layer = first.sum(2) @ claims.mean(1)  # of permuted heads, the expected number in each layer is a product
    return np.column_stack([(first & claims).sum((1, 2)), by_layer]) / number


def resampled(values: np.ndarray, generator: np.random.Generator, resamples: int = RESAMPLES) -> Resampled:
    """Return the mean of each run, (S, N) → S, on all and on resampled sentences, which all runs share."""
    drawn = generator.integers(values.shape[1], size=(resamples, values.shape[1]))
    return Resampled(values.mean(1), np.stack([run[drawn].mean(1) for run in values], axis=1))


def measure(corpus: str, out: str, pattern: str) -> None:
    """Measure all runs, and write the shares of their sentences to ``out``."""
    names, sentences = list(map(str, expanded([pattern]))), load_corpus(Path(corpus))["train"][: SENTENCES + 100]
    masks, rows = claimed_heads(expanded([CLAIMS]), find_sources(names)), []
    for folder in map(RunFolder, names):
        [task] = folder.config.tasks
        _, _, slopes = sentence_slopes(folder, sentences)
        both = shares(slopes.abs().numpy(), masks[task.upper()])
        rows.append({"task": task, "seed": folder.config.train.seed, "shares": both.round(4).T.tolist()})
        print(f"{task}, seed {folder.config.train.seed}: {both.mean(0).round(3)}", file=sys.stderr, flush=True)
    Path(out).write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


def planted(size: float, generator: np.random.Generator) -> Contrast:
    """Measure consistency in maps with 8 claims of 72 heads, three runs and 100 sentences."""
    claims = np.zeros((6, 12), bool)
    claims.reshape(-1)[generator.choice(72, 8, replace=False)] = True
    maps = generator.normal(size=(SEEDS, 100, 6, 12)) + size * claims
    values = np.stack([-np.diff(shares(importance, claims), axis=1)[:, 0] for importance in maps])
    return Contrast.of(resampled(values, generator, 200))


def show(source: str) -> None:
    """Print how often planted differences are found, and the consistency of each task."""
    rows, generator = json.loads(Path(source).read_text()), np.random.default_rng(0)
    print("# Do single sentences rank the claimed heads of a task first?\n")
    print("[Experiment 4](specificity.md) explains the measure. In planted maps claims matter more by construction.")
    print("\n## Planted maps\n")
    print("| larger importance of claims (standard deviations) | found (interval above 0) |\n|--:|--:|")
    for size in SIZES:
        found = sum(planted(size, generator).low > 0 for _ in range(STUDIES))
        print(f"| {size:g} | {found} of {STUDIES} |")
    by_task = {task: np.array([row["shares"] for row in rows if row["task"] == task]) for task in TASKS}  # (S, 2, N)
    # Tasks share nearly all sentences, so they also share their resamples.
    excess = {
        task: resampled(values[:, 0] - values[:, 1], np.random.default_rng(1)) for task, values in by_task.items()
    }
    excess["mean"] = weighted(list(excess.values()))
    contrasts = [({"task": task}, Contrast.of(figure)) for task, figure in excess.items()]
    tested = contrast_frame(contrasts, [], lambda frame: frame["task"] != "mean")
    means = {task: values.mean((0, 2)) for task, values in by_task.items()}
    means["mean"] = np.mean(list(means.values()), axis=0)
    print("\n## Runs\n\n| task | consistency | within layers | difference | p | p (Holm) |\n|:--|--:|--:|--:|--:|--:|")
    for row in tested.itertuples():
        name = row.task if row.task == "mean" else row.task.upper()
        numbers = [f"{share:.2f}" for share in means[row.task]]
        print(f"| {' | '.join([name, *numbers, with_interval(row), probability(row.p), probability(row.p_holm)])} |")


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {"measure": measure, "show": show}
    commands[sys.argv[1]](*sys.argv[2:])
