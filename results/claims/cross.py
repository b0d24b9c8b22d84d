"""Own heads against those of others in a Result of cross whose counts are gone: from the scores of its runs alone.

python results/claims/cross.py results/claims/cross && mtlprune analyze show results/claims/cross --format png,svg

The Result here was measured before mtlprune asked for units without a scale, and its runs are gone. So the frame `own`
is made of the stored scores: t intervals over the runs of a task, sentences held fixed. Only the mean in points keeps
its interval over seeds and sentences, which was measured then. A second call changes nothing.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from mtlprune import read_results
from mtlprune.analyses.cross import ALL_TASKS
from mtlprune.analyses.cross.measure import TERMS, corrected_over_labels, own_minus_others
from mtlprune.runs.results import Result, write_result

NOTES = [
    "Own minus others: intervals over the three runs of a task (t), on these sentences, except that of the mean in "
    "points, which resamples seeds and sentences too.",
    "The random heads were drawn from those of a layer that the label does not claim, and claims were not split into "
    "exclusive and shared ones: the runs are gone, so neither can be measured again.",
]


def over_runs(values: np.ndarray) -> dict[str, float]:
    """Mean, t interval and two-sided p of a number a run."""
    mean, error, free = values.mean(), stats.sem(values), len(values) - 1
    half = stats.t.ppf(0.975, free) * error
    return {"delta": mean, "low": mean - half, "high": mean + half, "p": 2 * stats.t.sf(abs(mean) / error, free)}


def main(folder: str) -> None:
    """Write the Result anew."""
    result = read_results(folder)["cross"]
    scores, own = result.frames["scores"], result.frames["own"]
    means = scores.groupby(["encoder", "other", "control", "seed"])["value"].mean()
    labels = list(dict.fromkeys(scores["encoder"]))
    seeds = sorted(set(scores["seed"]))
    delta = [[[means[a, b, "", s] - means[a, b, "random", s] for s in seeds] for b in labels] for a in labels]
    made = own_minus_others(np.array(delta))  # (terms, labels + 1, S)
    rows = []
    for term, label in np.ndindex(made.shape[:2]):
        keys = {"encoder": [*labels, ALL_TASKS][label], "mode": "claimed", "term": TERMS[term], "n": len(seeds)}
        rows.append(keys | over_runs(made[term, label]))
    counted = own[(own["encoder"] == ALL_TASKS) & (own["term"] == "points")]
    rows[-1] |= counted[["delta", "low", "high", "p"]].iloc[0].to_dict()
    frames = {**result.frames, "own": corrected_over_labels(pd.DataFrame(rows))}
    write_result(Path(folder), Result("cross", {**result.about, "notes": NOTES}, frames))


if __name__ == "__main__":
    main(*sys.argv[1:])
