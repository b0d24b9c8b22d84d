"""Compare treated and other joint runs with single-task runs and with untreated joint runs, by mean scores and costs.

In the frame ``settings`` the gap is the score of single tasks minus that of a setting, so a larger gap is worse.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.harness.settings import Setting, common_seeds, difference, have_all, joint_pairs, read_settings
from mtlprune.io.files import read_json, reading
from mtlprune.runs.columns import MORE_UPDATES, Columns, in_columns
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.runs.results import Result
from mtlprune.statistics.contrast import Contrast, contrast_frame, corrected, with_verdict
from mtlprune.statistics.resamples import Resampled, ratio_over_seeds, swapped_p
from mtlprune.statistics.standard_errors import StandardError

_SINGLE, _JOINT, _TREATED, _OTHER_KIND = "single", "joint", "treated", "other"


def measure(request: Request) -> Result:
    """Measure all runs. ``frames.yaml`` declares the frames.

    Raises:
        RunError: there are no single-task and untreated joint runs of the same settings, if runs have several
            encoders, or if runs cannot be compared.
    """
    comparison = in_columns([RunFolder(name) for name in request.names], request.split)
    single, joint = _baselines(comparison)
    tasks = comparison.columns[joint].runs[0].tasks
    settings, notes = _settings(comparison, single, joint, tasks, request)
    sentences = settings[0].systems[0].counts.shape[1]
    option_values = request.options.model_dump(mode="json", exclude={"costs"})
    about = {
        "split": request.split,
        "sentences": sentences,
        "settings": {**option_values, "seed": request.seed},
        "encoders": [],
    }
    about |= {"encoder": comparison.encoders()[0], "tasks": list(tasks)}
    by_kind = {kind: next(setting for setting in settings if setting.kind == kind) for kind in (_SINGLE, _JOINT)}
    costs = {setting.label: _cost(setting) for setting in settings}
    clock = "cpu_seconds" if all(cost["cpu_seconds"] for cost in costs.values()) else "seconds"
    if request.options.costs is not None:
        clock, cost_ratios = "update", _ratios(request.options.costs)
        for setting in settings:
            costs[setting.label]["update"] = cost_ratios.get(min(run.name for run in setting.column.runs), math.nan)
    rows = _rows(settings, by_kind[_SINGLE], by_kind[_JOINT], costs, clock, request)
    if unknown := rows.loc[(rows["n"] > 1) & rows["p"].isna(), "term"].tolist():
        notes.append(
            f"The gain of {', '.join(unknown)} has no interval, because all seeds or resampled sentences give the same "
            "value."
        )
    frames = {
        "scores": pd.DataFrame(
            {"term": setting.label, "task": task, "measure": "score", "value": score, "n": len(setting.seeds)}
            for setting in settings
            for task, score in zip(tasks, _means(setting), strict=True)
        ),
        "settings": rows,
        "pairs": _pairs(settings, by_kind[_JOINT], dict(zip(rows["term"], rows["total"], strict=True)), request),
    }
    about["clock"] = {"cpu_seconds": "processor", "seconds": "wall", "update": "update"}[clock]
    return Result(
        "treatments", {**about, "notes": notes}, {name: frame for name, frame in frames.items() if len(frame)}
    )


def _baselines(comparison: Columns) -> tuple[int, int]:
    """Return the indices of the columns of single tasks and of the untreated joint runs that are the baselines.

    Their settings are the same. If there are several such pairs, the joint runs with the fewest updates are chosen.

    Raises:
        RunError: there are runs of several encoders, or no such pair of columns.
    """
    columns = comparison.columns
    if len(comparison.encoders()) != 1:
        raise RunError(
            f"expected runs of one encoder, found {', '.join(comparison.encoders())}; name runs of only one encoder"
        )
    # A column of single-task runs may include tasks that the joint runs lack, and mean scores are then not comparable.
    pairs = [
        pair for pair in joint_pairs(comparison) if {*pair} <= {*have_all(comparison, columns[pair[1]].runs[0].tasks)}
    ]
    if not pairs:
        raise RunError(
            "expected finished single-task runs of every task and untreated joint runs of the same settings, found "
            "none that match; name runs of both kinds"
        )
    return min(pairs, key=lambda pair: (columns[pair[1]].runs[0].updates, *pair))


def _settings(
    comparison: Columns, single: int, joint: int, tasks: Sequence[str], request: Request
) -> tuple[list[Setting], list[str]]:
    """Return the settings of all columns with every task, single tasks and joint runs first, and notes in sentences.

    The notes name columns that are left out, and settings with other seeds than single tasks have.
    """
    columns, complete = comparison.columns, have_all(comparison, tasks)
    order = sorted(complete, key=lambda column: (column != single, column != joint))
    notes = [
        f"{column.title} is left out, because it has other tasks."
        for k, column in enumerate(columns)
        if k not in complete
    ]
    settings = []
    for setting in read_settings(comparison, order, tasks, request.options.resamples, request.seed, request.on_batch):
        run = setting.column.runs[0]
        has_treatment = run.treatment or any(".heads." in path for path in run.settings)  # sparse sharing is pruning
        kind = {single: _SINGLE, joint: _JOINT}.get(setting.place, _TREATED if has_treatment else _OTHER_KIND)
        settings.append(replace(setting, kind=kind))
    seed_notes = [f"{setting.label} has only the seeds {', '.join(map(str, setting.seeds))}." for setting in settings]
    return settings, notes + [
        note for note, setting in zip(seed_notes, settings, strict=True) if setting.seeds != settings[0].seeds
    ]


def difference_errors(request: Request) -> dict[str, StandardError]:
    """Return the standard errors of the score of joint minus single-task training of the same settings.

    The keys are "mean", for the mean over all tasks, and the names of the tasks.

    Raises:
        RunError: as in `measure`.
    """
    comparison = in_columns([RunFolder(name) for name in request.names], request.split)
    single, joint = _baselines(comparison)
    tasks = comparison.columns[joint].runs[0].tasks
    (single_setting, joint_setting, *_), _ = _settings(comparison, single, joint, tasks, request)
    parts = {"mean": slice(None)} | {task: slice(index, index + 1) for index, task in enumerate(tasks)}
    differences = {
        name: difference(joint_setting, single_setting, common_seeds(joint_setting, single_setting), part)
        for name, part in parts.items()
    }
    return {name: StandardError.of([observed], [booted]) for name, (observed, booted) in differences.items()}


def _difference_of_settings(first: Setting, second: Setting) -> Resampled:
    return difference(first, second, common_seeds(first, second))


def _means(setting: Setting) -> list[float]:
    """Return the score of each task as a mean over seeds."""
    return [float(scores.observed.mean()) for scores in setting.scores]


def _rows(
    settings: Sequence[Setting],
    single: Setting,
    joint: Setting,
    costs: Mapping[str, Mapping[str, float]],
    clock: str,
    request: Request,
) -> pd.DataFrame:
    """Return the frame ``settings``: the gap, the gain and the costs of each setting.

    Args:
        costs: for each label of a setting, the result of `_cost`.
        clock: the key of the cost that is reported.
    """
    joint_gap, margin = Contrast.of(_difference_of_settings(single, joint)), request.options.margin
    rows: list[dict[str, Any]] = []
    for setting in settings:
        cost = costs[setting.label]
        row: dict[str, Any] = {"term": setting.label, "mode": setting.kind, "label": setting.column.title}
        row |= {"mean": float(np.mean(_means(setting))), "seeds": len(setting.seeds)}
        row |= {"parameters": cost["parameters"] - costs[joint.label]["parameters"]}
        total_costs = [_total_cost(costs[costed.label], clock) for costed in (setting, joint, single)]
        row |= {"cost": cost[clock] / costs[joint.label][clock]}
        row |= {"total": (total_costs[0] + (total_costs[2] if cost["owes"] else 0.0)) / total_costs[1]}
        if setting is not single:
            gap_of_setting = Contrast.of(_difference_of_settings(single, setting))
            row |= {"gap": gap_of_setting.estimate, "gap_low": gap_of_setting.low, "gap_high": gap_of_setting.high}
            row |= {"p_reach": Contrast.of(_difference_of_settings(setting, single)).p_at_most(-margin)}
        if setting is not joint:
            gain = Contrast.of(gained := _difference_of_settings(setting, joint))
            row |= gain.row()
            if joint_gap.low > 0 and setting.seeds == single.seeds == joint.seeds and setting is not single:
                ends = ratio_over_seeds(gained, _difference_of_settings(single, joint))
                row |= {"share": gain.estimate / joint_gap.estimate, "share_low": ends[0], "share_high": ends[1]}
        rows.append(row)
    frame = pd.DataFrame(rows).reindex(columns=[*dict.fromkeys([*(k for r in rows for k in r), *_SHARES])])
    among = frame["mode"].isin((_TREATED, _OTHER_KIND))
    frame = corrected(corrected(frame, ["mode"], among), ["mode"], among, p="p_reach")
    return with_verdict(frame, effect=margin)


_SHARES = ("share", "share_low", "share_high")


def _ratios(path: Path) -> dict[str, float]:
    """Read the cost of an update for each name of runs, as a multiple of that of a joint update."""
    with reading(path, remedy='costs: expected {"ratios": {NAME: NUMBER}} in the file, found other content'):
        return {str(name): float(ratio) for name, ratio in read_json(path)["ratios"].items()}


def _total_cost(cost: Mapping[str, float], clock: str) -> float:
    """Return the cost of all updates of a run, in the unit of ``clock``."""
    return cost["update"] * cost["updates"] if clock == "update" else cost[clock]


def _cost(setting: Setting) -> dict[str, float]:
    """Compute the cost of a setting, as a mean over seeds of the sum over the runs of all tasks.

    Returns:
        ``parameters``; ``updates``; ``seconds`` of the wall clock and ``cpu_seconds`` (NaN and 0 if they are unknown);
        and ``owes``, which is 1 if the setting uses finished single-task runs (distillation or merging), whose cost has
        to be added.
    """
    runs = setting.runs
    ends = [run.manifest.get("finished", {}) for run in runs]
    cost = {
        clock: sum(float(end.get(clock, 0)) for end in ends) / len(setting.seeds)
        for clock in ("seconds", "cpu_seconds")
        if all(clock in end for end in ends)
    }
    sizes = [sum(run.manifest.get("parameters", {"": math.nan}).values()) for run in runs]
    owes = any(run.config.treatment.distil or run.config.treatment.merge for run in runs)
    missing = {"seconds": math.nan, "cpu_seconds": 0.0}
    updates = sum(run.updates for run in runs)
    cost["updates"] = updates / len(setting.seeds) if updates else math.nan
    return {**missing, **cost, "parameters": math.fsum(sizes) / len(setting.seeds), "owes": float(owes)}


def _pairs(settings: Sequence[Setting], joint: Setting, costs: Mapping[str, float], request: Request) -> pd.DataFrame:
    """Return the frame ``pairs``: the comparisons of two settings.

    Args:
        costs: for each label of a setting, its total cost as a multiple of that of joint training.
    """
    options, rows = request.options, []
    for first, second, mode in _compared(settings, joint, costs, set(options.primary.split(","))):
        distance = _difference_of_settings(first, second)
        contrast, p_sentences = Contrast.of(distance), math.nan
        if first.seeds == second.seeds:
            p_sentences = swapped_p(first.systems, second.systems, options.resamples, request.seed)
        row = {"term": first.label, "other": second.label, "mode": mode, "p_margin": contrast.p_margin(options.margin)}
        rows.append((row | {"p_sentences": p_sentences}, contrast))
        request.on_batch()
    return contrast_frame(rows, ["mode"], lambda frame: frame["mode"].isin(("primary", "tuned")))


def _compared(
    settings: Sequence[Setting], joint: Setting, costs: Mapping[str, float], primary: set[str]
) -> Iterator[tuple[Setting, Setting, str]]:
    """Yield the pairs of settings that are compared, with the mode of the comparison.

    Yields:
        - Treated settings and their controls, which treat random, unclaimed or permuted heads instead of chosen ones
          and are otherwise the same ("primary" for the treatments in ``primary``, "control" for others).
        - Treated settings and longer joint training ("budget"), if the treatment uses finished runs, or if its total
          cost is more than four fifths of that of the longer training.
        - Treated settings and the untreated joint training that is best on dev without more updates ("tuned"), unless
          this is the baseline.
    """
    treated = [setting for setting in settings if setting.kind == _TREATED]
    # Precision depends on the machine, so it does not distinguish settings.
    values = {
        setting.label: {
            path: value for path, value in setting.column.runs[0].settings.items() if path != "train.precision"
        }
        for setting in treated
    }
    for control in treated:
        settings_of_control = values[control.label]
        for path, rule in settings_of_control.items():
            if not (path.endswith(".heads.rule") and rule in ("random", "unclaimed", "permuted")):
                continue
            # The settings below heads.like are those of the heads that the control imitates. In place of the control's
            # own settings of heads, they make the settings of the treatment with chosen heads.
            heads = path.removesuffix("rule")
            chosen_settings = {key: value for key, value in settings_of_control.items() if not key.startswith(heads)}
            for key, value in settings_of_control.items():
                if key.startswith(f"{heads}like."):
                    chosen_settings[heads + key.removeprefix(f"{heads}like.")] = value
            for first in treated:
                if values[first.label] == chosen_settings:
                    yield first, control, "primary" if path.split(".")[1] in primary else "control"
    for longer in settings:
        if longer.kind == _OTHER_KIND and not longer.is_single_task and longer.updates > MORE_UPDATES * joint.updates:
            for treated_setting in treated:
                if _cost(treated_setting)["owes"] or costs[treated_setting.label] * 1.25 > costs[longer.label]:
                    yield treated_setting, longer, "budget"
    candidates = [
        setting for setting in settings if setting.kind in (_JOINT, _OTHER_KIND) and not setting.is_single_task
    ]
    tuned = max((setting for setting in candidates if setting.updates <= MORE_UPDATES * joint.updates), key=_dev_score)
    if tuned is not joint:
        yield from ((setting, tuned, "tuned") for setting in treated)


def _dev_score(setting: Setting) -> float:
    """Return the mean over seeds of the mean score of tasks on dev, by which the best epoch was chosen."""
    return float(np.mean([run.folder.read_best()["joint"]["score"] for run in setting.runs]))
