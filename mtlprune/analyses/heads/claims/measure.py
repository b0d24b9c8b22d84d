"""Measure whether tasks claim the same heads, and compare every number with its expectation under a null hypothesis.

Example:
    result = overlap(load_claims(["runs/pos-1", "runs/pos-2", "runs/dep-1", "runs/dep-2"]))
    result.frames["tests"], result.frames["pairs"]
"""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.heads.claims.maths import (
    STEM_TASKS,
    claimed_by,
    compare_pairs,
    list_heads,
    pair_statistics,
    share_by_seed,
    share_over_pairs,
    share_within,
)
from mtlprune.analyses.heads.claims.stability import identifiability_notes, label_tests, stability, variance_split
from mtlprune.evaluation.head_masks import OPEN_ABOVE
from mtlprune.runs.claims import Claim, Gates, RunGroup, by_chance, group, load_claims, notes
from mtlprune.runs.results import Result, head_rows
from mtlprune.statistics.agreement import decompose, jaccard, multiple_correlation, overlap_coefficient, pearson
from mtlprune.statistics.permutation import shared_null


def measure(request: Request) -> Result:
    """Compute the overlap of the claims of the runs ``request.names``.

    Raises:
        ClaimError: the runs have no gates, or their gates cannot be read or compared.
    """
    return overlap(load_claims(request.names), request.options.permutations, request.seed)


def overlap(claims: Iterable[Claim], permutations: int = 10_000, seed: int = 0) -> Result:
    """Compare the heads that runs claim. Undefined values are NaN, and the notes of the Result give the reasons.

    Args:
        claims: claims of one encoder, in any order; claims with the same label are the seeds of this label.
        permutations: number of permutations of each test; with 0, p-values from permutations are NaN.
        seed: seed of the permutations.

    Returns:
        A Result in which each entry of ``about["encoders"]`` is one gate set of one run. ``frames.yaml`` declares the
        frames: ``heads`` (the ``gate`` of each head in each run, and for stable heads the selection ``frequency`` π),
        ``layers`` and ``labels`` (of each label), ``pairs`` (of labels), ``tests`` (means over all pairs of single
        tasks), ``labellings`` (tests that permute the tasks of runs), ``numbers`` (heads claimed by at least k tasks),
        ``groups`` (the group of each head), ``variance``, ``stability`` (Φ) and ``split`` (of the variance by seeds).
    """
    run_groups = group(claims)
    frames = _frames(run_groups, permutations, np.random.SeedSequence(seed))
    filled_frames = {name: frame.reset_index(drop=True) for name, frame in frames.items() if len(frame)}
    settings = {"permutations": permutations, "seed": seed, "open_above": OPEN_ABOVE, "stem_tasks": STEM_TASKS}
    all_notes = [*notes(run_groups), *identifiability_notes(run_groups), *_undefined_notes(run_groups, permutations)]
    return Result("claims", {**_about(run_groups, settings), "notes": all_notes}, filled_frames)


def _frames(run_groups: Sequence[RunGroup], permutations: int, seed: np.random.SeedSequence) -> dict[str, pd.DataFrame]:
    """Compute all frames of the Result; some of them may be empty."""
    single = [run_group for run_group in run_groups if not run_group.joint]  # a prefix of run_groups
    # Each test has its own generator, so that a change of one test does not change the p-values of the others.
    between, within, layered, uniform, unequal, relabelled, resampled = map(np.random.default_rng, seed.spawn(7))
    null = shared_null(np.stack([run_group.times for run_group in run_groups]), permutations, between)
    pairs = compare_pairs(run_groups, null)
    equal_seeds, unequal_seeds = share_by_seed(single, permutations, unequal)
    tests = {
        "all": share_over_pairs(single, null[:, : len(single), : len(single)]),
        "equal seeds": equal_seeds,
        "unequal seeds": unequal_seeds,
    }
    all_claims = [claim for run_group in run_groups for claim in run_group.claims]
    return {
        "heads": pd.concat([head_rows(_grids(claim)).assign(**_keys(claim)) for claim in all_claims]),
        "layers": pd.DataFrame(
            {"encoder": run_group.label, "layer": layer, "claimed": heads_claimed}
            for run_group in run_groups
            for layer, heads_claimed in enumerate(run_group.claimed_by_most.sum(1), 1)
        ),
        "labels": pd.DataFrame([_label(run_group, permutations, within) for run_group in run_groups]),
        "pairs": pairs,
        "tests": pd.DataFrame([{"mode": mode, **row} for mode, row in tests.items()]),
        "labellings": label_tests(single, permutations, relabelled),
        "numbers": claimed_by([run_group.claimed_by_most for run_group in single], permutations, layered, uniform),
        "groups": list_heads(single),
        "variance": _variance(single),
        "stability": stability(run_groups, len(single)),
        "split": variance_split(run_groups, len(single), resampled),
    }


def _variance(single: Sequence[RunGroup]) -> pd.DataFrame:
    """Return the frame ``variance``: the variance of gates of single tasks by layers, heads, tasks and seeds."""
    variance = decompose([run_group.gates for run_group in single])
    parts = {part: (value, variance.shares[part]) for part, value in variance.components.items()}
    parts |= {f"seeds: {part}": (value, np.nan) for part, value in variance.seeds.items()}
    parts["total"] = variance.total, np.nan
    return pd.DataFrame([(part, *values) for part, values in parts.items()], columns=["part", "component", "share"])


def _about(run_groups: Sequence[RunGroup], settings: dict[str, float]) -> dict[str, object]:
    """Return the entries of ``Result.about`` that describe the runs and the settings."""
    _, layers, heads = run_groups[0].gates.shape
    shape = {"layers": layers, "heads": heads}
    all_claims = [claim for run_group in run_groups for claim in run_group.claims]
    return {
        "encoder": all_claims[0].encoder,
        **shape,
        "settings": settings,
        "encoders": [
            {**_keys(claim), "kind": claim.encoder, **shape, "open": int(claim.open.sum())}
            | {"training": claim.training, "half": claim.half, "name": claim.name}
            | ({} if claim.frequencies is None else {"stable": _stable(claim)})
            | ({"by_chance": chance_counts[0]} if (chance_counts := by_chance(claim))[0] else {})
            for claim in all_claims
        ],
        "single": [run_group.label for run_group in run_groups if not run_group.joint],
    }


def _keys(claim: Claim) -> dict[str, str | int]:
    return {"encoder": claim.label, "run": claim.run, "seed": claim.seed}


def _grids(claim: Claim) -> dict[str, Gates]:
    return {"gate": claim.gates} | ({} if claim.frequencies is None else {"frequency": claim.frequencies})


def _stable(claim: Claim) -> dict[str, float | None]:
    """Return the rule of stable heads (threshold π and number of halves) and the bound on false claims."""
    rule = {name: claim.settings[f"pruning.{name}"] for name in ("threshold", "halves")}
    return {**rule, "expected_false": claim.expected_false}


def _label(run_group: RunGroup, permutations: int, generator: np.random.Generator) -> dict[str, object]:
    """Return the row of the frame ``labels``: how far the seeds of one label agree."""
    seeds = range(len(run_group.claims))
    gates, open_flat = (grid.reshape(len(seeds), -1) for grid in (run_group.gates, run_group.open))
    pairs = list(itertools.combinations(seeds, 2))
    multiple = [multiple_correlation(gates[last], np.delete(gates, last, axis=0)) for last in seeds]
    return {
        "encoder": run_group.label,
        "claimed": int(run_group.claimed_by_most.sum()),
        "multiple_last": multiple[-1],
        "multiple_mean": pd.Series(multiple, dtype=float).mean(),
        **pair_statistics(
            pearson=(pearson(gates[i], gates[j]) for i, j in pairs),
            jaccard=(jaccard(open_flat[i], open_flat[j]) for i, j in pairs),
            overlap_coefficient=(overlap_coefficient(open_flat[i], open_flat[j]) for i, j in pairs),
        ),
        **share_within(run_group, permutations, generator),
    }


def _undefined_notes(run_groups: Sequence[RunGroup], permutations: int) -> list[str]:
    """Return one sentence for each reason why some numbers are undefined for these groups of runs."""
    single = [run_group for run_group in run_groups if not run_group.joint]
    one_seed_labels = [run_group.label for run_group in run_groups if len(run_group.claims) == 1]
    even_labels = [run_group.label for run_group in run_groups if not np.ptp(run_group.times, axis=1).any()]
    constant_labels = [
        run_group.label for run_group in run_groups if any(not np.ptp(gates) for gates in run_group.gates)
    ]
    number = "one" if single else "no"
    reasons = [
        (one_seed_labels, f"{', '.join(one_seed_labels)}: with one seed, the agreement of seeds is not known."),
        (
            even_labels,
            f"{', '.join(even_labels)}: the heads of each layer are open equally often, so permuting heads within "
            "layers changes nothing, and there is no p-value.",
        ),
        (
            constant_labels,
            f"{', '.join(constant_labels)}: all gates of a run are equal, so they have no variance and no "
            "correlations.",
        ),
        (permutations == 0, "No permutations were asked for, so there are no p-values from permutations."),
        (len(run_groups) < 2, "There is only one setting, so settings cannot be compared."),
        (
            len(single) < 2,
            f"There is {number} single task, so tasks cannot be compared, and their part of the variance is unknown.",
        ),
        (len(single) < STEM_TASKS, f"With fewer than {STEM_TASKS} single tasks there can be no stem head."),
        (
            single and all(len(run_group.claims) < 2 for run_group in single),
            "No single task has two seeds, so seeds cannot be resampled, and their part of the variance is included in "
            "that of tasks by heads.",
        ),
    ]
    return [sentence for holds, sentence in reasons if holds]
