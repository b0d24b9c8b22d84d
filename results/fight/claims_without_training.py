"""Score single-task runs that keep only the heads that their task claims (PLAN.md, E4).

    python results/fight/claims_without_training.py measure FOLDER CORPUS CLAIMS RUN...
    python results/fight/claims_without_training.py show FOLDER...

``measure`` scores finished runs and writes FOLDER/claimed-heads-only.json. ``show`` prints such results as Markdown.
The runs have all heads open. They are scored on SENTENCES test sentences with all heads, with no head, with only the
heads that their task claims (the heads that are open in more than half of the runs CLAIMS, which have gates), and with
each of DRAWS random sets of the same size in each layer. Closed heads contribute zero, and nothing is trained.

Letters in shapes: S runs (seeds), C resamples.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.harness.ablation import AblatableRun, AblatedCounts, add_counts, join_counts
from mtlprune.analyses.harness.reading import Subject, SubjectResult, find_sources, read_request, survey
from mtlprune.analyses.heads.claims.groups import claimed_heads
from mtlprune.analyses.heads.cross import CrossOptions
from mtlprune.evaluation.head_masks import Mask, random_sets
from mtlprune.figures.grid import Grid, number, probability, with_interval
from mtlprune.runs.results import Result, read_result, write_result
from mtlprune.statistics.contrast import Contrast, contrast_frame
from mtlprune.statistics.resamples import Resampled, resampled_scores, weighted
from mtlprune.sweeps.folder import expanded

SENTENCES, DRAWS, SEED = 500, 20, 0
SETS = ("all", "claims", "random", "none")
CONTRASTS = {
    "claims - random": (0, 1, -1, 0),
    "claims - none": (0, 1, 0, -1),
    "random - none": (0, 0, 1, -1),
    "all - none": (1, 0, 0, -1),
}
"""The compared differences of scores, each with the weights of the sets in SETS."""
SHARES = ("claims - random", "claims - none", "random - none")
"""The differences that are also given as shares of the difference "all - none"."""
MEAN = "mean of tasks"


def measure(folder: str, corpus: str, claims: str, *runs: str) -> None:
    """Score all runs on the same sentences and write a result.

    The frame ``scores`` contains the score of each run by set and draw, ``sizes`` the number of claimed heads of each
    task, and ``contrasts`` what the function ``contrasts`` returns.
    """
    options = CrossOptions(draws=DRAWS)
    request = Request(runs, Path(corpus), options, "test", SENTENCES, expanded([claims], having="gates.jsonl"), SEED)
    claimed, reading = claimed_heads(request.claims, find_sources(runs)), read_request(request)
    generator = np.random.default_rng([SEED, 10])
    random_heads = {label: random_sets(heads, DRAWS, generator) for label, heads in claimed.items()}

    def score(subject: Subject) -> SubjectResult:
        run = AblatableRun.of(subject, "cpu")
        counts: dict[tuple[str], AblatedCounts] = {}
        all_heads, claimed_set = np.ones(run.size, bool), claimed[subject.label]
        sets: dict[str, list[Mask]] = {
            "all": [all_heads],
            "claims": [claimed_set],
            "random": random_heads[subject.label],
            "none": [~all_heads],
        }
        rows = []
        for name, masks in sets.items():
            for draw, heads in enumerate(masks, start=1):
                [(task, counted)] = run.counts(~heads, reading.sentences).items()
                add_counts(counts, (name,), subject.seed, counted)
                rows.append({"task": task, "mode": name, "step": draw, "measure": "score"})
                rows[-1]["value"] = counted.scores(counted.totals)[0]
        print(f"{subject.label}, seed {subject.seed}", file=sys.stderr)
        return SubjectResult({"scores": pd.DataFrame(rows)}, measured=counts)

    surveyed = survey("claimed-heads-only", reading, request, score)
    sizes = pd.DataFrame([{"encoder": label, "n": int(heads.sum())} for label, heads in claimed.items()])
    compared = contrasts(join_counts(surveyed.measured), options.resamples)
    write_result(Path(folder), surveyed.result.with_frames(sizes=sizes, contrasts=compared))


def contrasts(tables: Mapping[tuple[Any, ...], AblatedCounts], resamples: int) -> pd.DataFrame:
    """Compute the CONTRASTS of each task and of the mean over tasks, in points and as SHARES.

    Intervals, p-values and minimum detectable effects cover seeds and sentences. Holm's correction is over tasks.

    Args:
        tables: counts by label of the runs (the task) and by set of heads.
        resamples: number of resamples C.
    """
    labels = list(dict.fromkeys(label for label, _ in tables))
    seeds = tuple(sorted(set.intersection(*(set(table.runs) for table in tables.values()))))
    systems = [tables[label, name].system(seeds) for label in labels for name in SETS]
    scored = resampled_scores(systems, resamples, SEED)  # arrays (S,) and (C, S) for each label and set
    by_label = [scored[len(SETS) * row :][: len(SETS)] for row in range(len(labels))]
    rows = []
    for name, weights in CONTRASTS.items():
        points = [weighted(sets, weights) for sets in by_label]
        total = [weighted(sets, CONTRASTS["all - none"]) for sets in by_label]
        shares = [
            Resampled(*(top / all_ for top, all_ in zip(*pair, strict=True)))
            for pair in zip(points, total, strict=True)
        ]
        for term, figures in (("points", points), *([("share", shares)] if name in SHARES else [])):
            for label, figure in zip([*labels, MEAN], [*figures, weighted(figures)], strict=True):
                rows.append(({"encoder": label, "mode": name, "term": term}, Contrast.of(figure)))
    return contrast_frame(rows, ["mode", "term"], lambda frame: frame["encoder"] != MEAN)


def show(*folders: str) -> None:
    """Print the scores and contrasts of each folder."""
    print("# What do claimed heads score without the other heads?\n")
    for folder in folders:
        result = read_result(Path(folder) / "claimed-heads-only.json")
        print(f"## {Path(folder).name}: {result.source}\n\n{result.origin}", end=" ")
        print(f"Random heads are {DRAWS} draws from all heads of the same layers.\n")
        for grid in (scores(result), differences(result)):
            print(f"{grid.markdown()}\n{grid.caption}\n")


def scores(result: Result) -> Grid:
    """Tabulate the number of claimed heads and the mean score of each set, with a row for each task."""
    means = result.frames["scores"].groupby(["encoder", "mode"], sort=False)["value"].mean().unstack()[list(SETS)]
    frame = means.reset_index().merge(result.frames["sizes"], on="encoder")
    columns: dict[str, Any] = {"task": "encoder", "heads": ("n", 0), **{name: (name, 1) for name in SETS}}
    return Grid.of(
        "", frame, columns, "Values are main scores on test with these heads alone, as means over runs and draws."
    )


def differences(result: Result) -> Grid:
    """Tabulate the contrasts, with rows for each task and for the mean over tasks."""
    frame = result.frames["contrasts"]
    texts = [with_interval(row) for row in frame.itertuples()]
    frame = frame.assign(shown=texts).sort_values(["term", "mode"], ascending=[False, True], kind="stable")
    columns: dict[str, Any] = {
        "in": "term",
        "difference": "mode",
        "task": "encoder",
        "95 %": "shown",
        "p": ("p", probability),
    }
    columns |= {"p (Holm)": ("p_holm", probability), "detectable": ("detectable", number)}
    return Grid.of("", frame, columns, "Shares are of all - none. Holm's correction is over tasks.", texts=3)


if __name__ == "__main__":
    (measure if sys.argv[1] == "measure" else show)(*sys.argv[2:])
