"""Score finished runs with the heads closed that a task claims, and with random heads of the same layers closed.

Letters for shapes: S runs (seeds), L layers, A heads per layer, T tasks (or labels of single tasks), U sets of heads,
D draws of random heads, C resamples.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.harness.ablation import SENTENCES, AblatableRun, AblatedCounts, add_counts, join_counts
from mtlprune.analyses.harness.reading import (
    Reading,
    Subject,
    SubjectError,
    SubjectResult,
    find_sources,
    read_request,
    survey,
    training_sentences,
)
from mtlprune.analyses.heads.claims.groups import claimed_heads
from mtlprune.analyses.heads.cross import ALL_TASKS, OTHER_TASKS, PREDICTED_TASKS
from mtlprune.encoder.interventions import CONSTANT
from mtlprune.evaluation.head_masks import Mask, random_sets
from mtlprune.runs.folder import RunError
from mtlprune.runs.groups import is_joint
from mtlprune.runs.results import Result, head_rows
from mtlprune.sentence import Sentence
from mtlprune.statistics.contrast import Contrast, contrast_frame
from mtlprune.statistics.resamples import Resampled, resampled_scores, weighted
from mtlprune.statistics.significance import differences
from mtlprune.statistics.standard_errors import Floats

Tables = dict[tuple[Any, ...], AblatedCounts]
"""Counts by the label of the runs, the task, what is closed (one of _PARTS, _OTHER_HEADS or _ALL_HEADS; "" for
nothing), the label whose heads these are, and "random" for the control ("" otherwise)."""

_PARTS = ("claimed", "exclusive", "shared")
"""Parts of the heads of a label that are closed: all heads that it claims, those that no other single task claims, and
those that another single task also claims."""
_OTHER_HEADS, _ALL_HEADS = "others", "all"
"""What is closed in the runs of a single task to score its claimed heads without the rest: all heads that it does not
claim (for the control, all but random heads), and all heads."""
_COMPARED = {
    "claims - random": (0, 1, -1, 0),
    "claims - none": (0, 1, 0, -1),
    "random - none": (0, 0, 1, -1),
    "all - none": (1, 0, 0, -1),
}
"""Differences of scores that the frame ``claimed_only`` contains, with the weights of the scores with all heads open,
with only claimed heads, with only random heads, and with none."""


def measure(request: Request) -> Result:
    """Measure all runs on the same sentences. ``frames.yaml`` declares the frames.

    Raises:
        RunError, CorpusError, EncoderError, ClaimError: if the input cannot be loaded or compared, or if a label claims
            no head or all heads.
    """
    closed = claimed_heads(request.claims, find_sources(request.names))
    reading = read_request(request)
    generator = np.random.default_rng([request.seed, 10])
    parts = {
        (part, label): heads
        for label, masks in split_by_exclusivity(closed).items()
        for part, heads in masks.items()
        if part == "claimed" or request.options.exclusive
    }
    masks = {key: [heads, *random_sets(heads, request.options.draws, generator)] for key, heads in parts.items()}
    # Random sets are drawn once for all runs, so that runs of different tasks are compared with the same heads closed.
    constant = request.options.closed in CONSTANT
    train = training_sentences(reading, request, SENTENCES) if constant else []
    scored = survey("cross", reading, request, partial(_scored, reading, train, request=request, masks=masks))
    result, tables = scored.result, join_counts(scored.measured)
    claimed_frame = pd.concat(
        [head_rows({part: heads.astype(float)}).assign(other=label) for (part, label), heads in parts.items()],
        ignore_index=True,
    )
    scores = result.frames["scores"]
    own_frame, specificity = _own_and_others(tables, scores, request, result.about["notes"])
    frames = {"own": own_frame, "specificity": specificity}
    if request.options.claimed_only:
        frames["claimed_only"] = _claimed_only(tables, scores, request, result.about["notes"])
    cells = _cells(tables, drawn_scores(scores), request)
    return result.with_frames(claimed=claimed_frame, cells=cells, **frames)


def split_by_exclusivity(closed: Mapping[str, Mask]) -> dict[str, dict[str, Mask]]:
    """Return for each label the masks (L, A) of _PARTS of its heads.

    Exclusive and shared heads are left out if the label has only one of the two kinds.
    """
    parts = {}
    for label, heads in closed.items():
        heads_of_others = [
            mask for other_label, mask in closed.items() if other_label != label and not is_joint(other_label)
        ]
        shared = heads & np.any(heads_of_others, axis=0) if heads_of_others else np.zeros_like(heads)
        exclusive_and_shared = {"exclusive": heads & ~shared, "shared": shared}
        parts[label] = {
            "claimed": heads,
            **(exclusive_and_shared if all(mask.any() for mask in exclusive_and_shared.values()) else {}),
        }
    return parts


def _scored(
    reading: Reading,
    train: Sequence[Sentence],
    subject: Subject,
    request: Request,
    masks: Mapping[tuple[str, str], list[Mask]],
) -> SubjectResult:
    """Score one run with nothing closed, and with each set of heads and each of its random draws closed.

    Args:
        masks: for each part and label, the mask of the claimed heads and those of the random draws.

    Raises:
        SubjectError: no sentence has a layer of the run's tasks.
    """
    sets_of_label = masks.get(("claimed", subject.label))
    if request.options.claimed_only and sets_of_label and not is_joint(subject.label):
        masks = {
            **masks,
            (_OTHER_HEADS, subject.label): [~heads for heads in sets_of_label],
            (_ALL_HEADS, subject.label): [np.ones_like(sets_of_label[0])],
        }
    all_masks = [heads for set_and_draws in masks.values() for heads in set_and_draws]
    run = AblatableRun.of(subject, request.device, reading.fingerprint, request.store)
    run = replace(
        run.contributing(request.options.closed, train, all_masks, request.seed), factor=request.options.factor
    )
    rows, counts = [], dict[tuple[str, str, str, str], AblatedCounts]()
    masks_to_close = [
        (*key, draw, heads) for key, set_and_draws in masks.items() for draw, heads in enumerate(set_and_draws)
    ]
    for mode, closed_label, draw, heads in [("", "", 0, np.zeros(run.size, bool)), *masks_to_close]:
        control = "random" if draw else ""
        for task, system in run.counts(heads, reading.sentences).items():
            keys = {"task": task, "other": closed_label, "mode": mode, "control": control, "step": draw}
            rows.append({**keys, "measure": "score", "value": system.scores(system.totals)[0]})
            add_counts(counts, (task, mode, closed_label, control), subject.seed, system)
        request.on_batch()
    if not rows:
        raise SubjectError("no sentence has a layer of its tasks")
    return SubjectResult({"scores": pd.DataFrame(rows)}, measured=counts)


def drawn_scores(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the scores with random heads closed, as means over seeds.

    Returns:
        A frame with a column for each draw, indexed by label of the runs, task, part and label whose heads are closed.
    """
    random = scores[scores["control"] == "random"]
    return random.groupby(["encoder", "task", "mode", "other", "step"])["value"].mean().unstack("step")


def _cells(tables: Tables, draw_scores: pd.DataFrame, request: Request) -> pd.DataFrame:
    """Return the frame ``cells``: for each task and set of heads, the score beyond that with random heads closed."""
    keys = [key for key in tables if key[2] in _PARTS and not key[4]]
    systems = []
    for label, task, mode, closed_label, _ in keys:
        seeds = tuple(sorted(tables[label, task, "", "", ""].runs))
        # Counts of random heads are summed over draws, so the counts of claimed heads are multiplied by their number.
        systems.append(tables[label, task, mode, closed_label, ""].system(seeds, request.options.draws))
        systems.append(tables[label, task, mode, closed_label, "random"].system(seeds))
        systems.append(tables[label, task, "", "", ""].system(seeds))
    pairs = [(3 * row, 3 * row + 1) for row in range(len(keys))]
    tested = differences(systems, pairs, request.options.resamples, request.seed)
    means = np.reshape([system.scores(system.totals).mean() for system in systems], (-1, 3))
    rows, margin = [], request.options.margin
    for (label, task, mode, closed_label, _), difference, (closed, random, open_) in zip(
        keys, tested, means, strict=True
    ):
        contrast = Contrast.between(difference, -draw_scores.loc[[(label, task, mode, closed_label)]].to_numpy())
        row = {"encoder": label, "task": task, "other": closed_label, "mode": mode}
        row |= {"open": open_, "closed": closed, "random": random}
        rows.append((row | {"p_margin": contrast.p_margin(margin)}, contrast))
    frame = contrast_frame(rows, ["mode"], lambda frame: frame["encoder"] != frame["other"], effect=-margin)
    return frame.sort_values("mode", key=lambda modes: modes.map(_PARTS.index), kind="stable")


def _claimed_only(tables: Tables, scores: pd.DataFrame, request: Request, notes: list[str]) -> pd.DataFrame:
    """Return the frame ``claimed_only``: differences of scores with only the claimed heads of a task, and their means.

    A share is the mean of a difference divided by the mean difference between all heads and none. It is linearised
    around these means (delta method), and left out if the interval of the divisor reaches 0. Reasons why rows are
    missing are appended to ``notes``.
    """
    runs_without_heads = {key[:2]: set(cell.runs) for key, cell in tables.items() if key[2] == _ALL_HEADS}
    keys = list(runs_without_heads)  # of each single task: its label and its task
    seeds = tuple(sorted(set.intersection(*runs_without_heads.values()))) if keys else ()
    if not seeds:
        reason = "the runs of their tasks share no seed" if keys else "no run has a single task with claims"
        notes.append(f"Claimed heads are not scored without the other heads, because {reason}.")
        return pd.DataFrame()
    closed = [("", ""), (_OTHER_HEADS, ""), (_OTHER_HEADS, "random"), (_ALL_HEADS, "")]
    systems = [
        tables[label, task, kind, label if kind else "", control].system(seeds)
        for label, task in keys
        for kind, control in closed
    ]
    resampled = resampled_scores(systems, request.options.resamples, request.seed)
    by_draw = drawn_scores(scores[scores["seed"].isin(seeds)])
    figures: dict[tuple[str, str], dict[str, tuple[Resampled, Floats]]] = {}  # by comparison and scale, then by label
    for start, (label, task) in enumerate(keys):
        scores_of_label = resampled[len(closed) * start :][: len(closed)]
        random = by_draw.loc[[(label, task, _OTHER_HEADS, label)]].to_numpy()  # (1, D)
        total = weighted(scores_of_label, _COMPARED["all - none"])
        scale, has_shares = total.observed.mean(), Contrast.of(total).low > 0
        for name, weights in _COMPARED.items():
            points = weighted(scores_of_label, weights)
            figures.setdefault((name, "points"), {})[label] = points, weights[2] * random
            if has_shares and name != "all - none":
                share = points.observed.mean() / scale
                linear = [
                    share + (part - share * total_part) / scale for part, total_part in zip(points, total, strict=True)
                ]
                figures.setdefault((name, "share"), {})[label] = Resampled(*linear), weights[2] * random / scale
    rows = []
    for (name, term), by_label in figures.items():
        if len(by_label) == len(keys):
            values, draws = zip(*by_label.values(), strict=True)
            by_label[ALL_TASKS] = weighted(values), np.concatenate(draws) / len(keys)
        for label, (figure, draws_of_label) in by_label.items():
            contrast = Contrast.of(figure, draws=draws_of_label) if _COMPARED[name][2] else Contrast.of(figure)
            rows.append(({"encoder": label, "mode": name, "term": term}, contrast))
    without = [label for label, _ in keys if label not in figures.get(("claims - none", "share"), {})]
    if without:
        notes.append(
            f"Shares with only claimed heads are not known for {', '.join(without)}, because the scores with all heads "
            "are not clearly above those with none."
        )
    return contrast_frame(rows, ["mode", "term"], lambda frame: frame["encoder"] != ALL_TASKS)


def _own_and_others(
    tables: Tables, scores: pd.DataFrame, request: Request, notes: list[str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Compare the cost of closing a task's own heads with that of closing the heads of other tasks.

    Reasons why a comparison is missing are appended to ``notes``.

    Returns:
        The frames ``own`` and ``specificity``, both empty if fewer than two single tasks have runs and claims, or if
        their runs have no seed in common.
    """
    labels = [
        key[0] for key in tables if key[2] == "claimed" and key[0] == key[3] and not key[4] and not is_joint(key[0])
    ]
    if len(labels) < 2:
        return pd.DataFrame(), pd.DataFrame()
    # The key of each label's scores with nothing closed. There is one, because runs of a single task have one task.
    open_keys = {key[0]: key for key in tables if key[0] in labels and not key[2]}
    seeds = tuple(sorted(set.intersection(*(set(tables[key].runs) for key in open_keys.values()))))
    if not seeds:
        notes.append(
            f"The heads of a task are not compared with those of other tasks, because runs of {', '.join(labels)} "
            "share no seed."
        )
        return pd.DataFrame(), pd.DataFrame()
    parts = [part for part in _PARTS if {(part, label) for label in labels} <= {(key[2], key[3]) for key in tables}]
    keys = [
        (label, open_keys[label][1], part, closed_label)
        for part in parts
        for label in labels
        for closed_label in labels
    ]
    systems = [tables[(*key, control)].system(seeds) for key in keys for control in ("", "random")]
    shape = (len(parts), len(labels), len(labels))  # (parts, T, T)
    changes = []  # of scores beyond random heads: (parts, T, T, S), and resampled (parts, T, T, C, S)
    for values in zip(*resampled_scores(systems, request.options.resamples, request.seed), strict=True):
        closed_and_random = np.reshape(values, (*shape, 2, *values[0].shape))
        changes.append(closed_and_random[:, :, :, 0] - closed_and_random[:, :, :, 1])
    by_draw = drawn_scores(scores[scores["seed"].isin(seeds)])
    draws = by_draw.loc[keys].to_numpy().reshape(*shape, -1)  # (parts, T, U, D)
    own_rows, specificity_rows = [], []
    for part, change, booted_change, draws_of_part in zip(parts, *changes, draws, strict=True):
        observed, booted = own_minus_others(change), own_minus_others(booted_change)
        contrast_draws = own_of_draws(change, draws_of_part)
        for (term, scale), (index, label) in itertools.product(enumerate(_TERMS), enumerate([*labels, ALL_TASKS])):
            figure = Resampled(observed[term, index], booted[term, index])
            contrast = Contrast.of(figure, draws=contrast_draws[term, index])
            own_rows.append(({"encoder": label, "mode": part, "term": scale}, contrast))
        if request.options.factor is not None:
            continue  # specificity is a ratio of losses by closed heads
        figures = log_specificity(-change, -booted_change, draws_of_part)
        specificity_rows += _specificity_rows(part, labels, figures, request.options.specific, notes)
    return (
        contrast_frame(own_rows, ["mode", "term"], lambda frame: frame["encoder"] != ALL_TASKS),
        contrast_frame(specificity_rows, ["mode"], lambda frame: frame["encoder"].isin(labels)),
    )


def _specificity_rows(
    part: str, labels: Sequence[str], figures: Sequence[tuple[Resampled, Floats]], predicted: str, notes: list[str]
) -> list[tuple[dict[str, str], Contrast]]:
    """Return the rows of the frame ``specificity``, of each label and of the means over predicted and other tasks.

    Args:
        figures: for each label, the result of `log_specificity`.
        predicted: the option ``specific``, names of tasks with commas between them.
        notes: receives a note about labels whose specificity is unknown.

    Raises:
        RunError: ``predicted`` names a task that is none of the labels.
    """
    figure_of_label = {
        label: figure for label, figure in zip(labels, figures, strict=True) if np.isfinite(figure[0].observed).all()
    }
    if labels_without := [label for label in labels if label not in figure_of_label]:
        notes.append(
            f"The specificity of {part} heads is not known for {', '.join(labels_without)}, because the loss of their "
            "task or of the other tasks is not clearly above 0."
        )
    groups = {label: [label] for label in labels}
    if names := [name.strip().upper() for name in predicted.split(",") if name.strip()]:
        if missing := [name for name in names if name not in labels]:
            raise RunError(f"specific: expected some of {', '.join(labels)}, found {', '.join(missing)}")
        groups |= {PREDICTED_TASKS: names, OTHER_TASKS: [label for label in labels if label not in names]}
    rows = []
    for title, group in groups.items():
        if group and all(label in figure_of_label for label in group):
            draws = np.concatenate([figure_of_label[label][1] for label in group]) / len(group)  # (U, D), U labels
            contrast = Contrast.of(weighted([figure_of_label[label][0] for label in group]), draws=draws)
            rows.append(({"encoder": title, "mode": part}, contrast))
    return rows


def log_specificity(observed: Floats, booted: Floats, random: Floats) -> list[tuple[Resampled, Floats]]:
    """Compute the log specificity of each task's heads.

    This is the logarithm of a ratio: the cost for the task itself if its heads are closed, over the mean cost for the
    other tasks. Costs are lost points beyond random heads. The logarithm is taken of means over runs and linearised
    around them (delta method), because the cost in a single run may be below 0. The approximation needs means that are
    clearly above 0, so all values are NaN unless the 95 % intervals of both means are above 0.

    Args:
        observed: (T, T, S), cost for a task (first axis) if the heads of a task (second axis) are closed.
        booted: (T, T, C, S), the same on resampled sentences.
        random: (T, T, D), score of a task (first axis) with a draw of random heads closed that was made for the heads
            of a task (second axis).

    Returns:
        For each task, the log specificity of runs and resamples, and the contribution of each draw of random heads to
        it, (1, D).
    """
    tasks = len(observed)

    def own_and_others(loss: Floats) -> tuple[Floats, Floats]:
        own_loss = np.einsum("aa...->a...", loss)
        return own_loss, (loss.sum(0) - own_loss) / (tasks - 1)

    parts = [own_and_others(values) for values in (observed, booted, random)]
    figures = []
    for index in range(tasks):
        # The losses of one label's heads: in its own task, and in the others. Each has runs, resamples and draws.
        sides = [[values[side][index] for values in parts] for side in (0, 1)]
        contrasts = [Contrast.of(Resampled(runs, resamples), draws=draws[None]) for runs, resamples, draws in sides]
        scale = [contrast.estimate if contrast.low > 0 else math.nan for contrast in contrasts]
        level = math.log(scale[0] / scale[1])
        runs, resamples, draws = (
            own_loss / scale[0] - others_loss / scale[1] for own_loss, others_loss in zip(*sides, strict=True)
        )
        figures.append((Resampled(level + runs, level + resamples), draws[None]))
    return figures


_TERMS = ("units", "points")
"""Scales of `own_minus_others`: units of a task's usual change, and points of its score."""


def own_minus_others(delta: Floats) -> Floats:
    """Compute how much closing its own heads changes a task's score, minus the mean change by the heads of other tasks.

    Values below 0 mean that a task's own heads cost it more. Points of accuracy and of F1 have no common scale, and
    some tasks lose little by any heads while others lose much. The result is therefore also given in units of a task's
    usual change, which is the root mean square of its row of ``delta``.

    Args:
        delta: (T, T, ..., S), change of a task's score (first axis) in S runs if the heads of a task (second axis) are
            closed.

    Returns:
        (2, T + 1, ..., S), in the scales _TERMS, for each task and last the mean over tasks. Units are NaN if no heads
        change the task's score.
    """
    own_change = np.einsum("aa...->a...", delta)
    points = own_change - (delta.sum(1) - own_change) / (len(delta) - 1)
    with np.errstate(invalid="ignore"):  # 0 / 0 for a task whose score no heads change
        units = points / np.sqrt((delta**2).mean(axis=(1, -1)))[..., None]
    both_scales = np.stack([units, points])
    return np.concatenate([both_scales, both_scales.mean(1, keepdims=True)], axis=1)


def own_of_draws(delta: Floats, random: Floats) -> Floats:
    """Compute the contribution of each draw of random heads to `own_minus_others`.

    The unit of a task is treated as a constant.

    Args:
        delta: (T, T, S), the input of `own_minus_others`.
        random: (T, U, D), score of each task with a draw of random heads closed that was made for each of U = T sets.

    Returns:
        (2, T + 1, U, D), in the scales _TERMS, for each task and last the mean over tasks.
    """
    tasks = len(delta)
    points = -((np.eye(tasks) * tasks - 1) / (tasks - 1))[:, :, None] * random
    with np.errstate(invalid="ignore", divide="ignore"):
        units = points / np.sqrt((delta**2).mean(axis=(1, 2)))[:, None, None]
    both_scales = np.stack([units, points])
    return np.concatenate([both_scales, both_scales.mean(1, keepdims=True)], axis=1)
