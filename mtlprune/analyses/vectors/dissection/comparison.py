"""Measures of decompositions for one encoder and for comparisons of encoders, in numpy without torch.

The measures answer four questions. How linear are the feed-forward parts? Which term carries the loss of multi-task
learning? Do gates keep the heads with the largest shares? Is the term h or f of the joint encoder a compromise between
those of the single-task encoders? ``frames`` and ``side_by_side`` turn the measures into tidy tables.

Letters for shapes: N tokens, P features that a map reads, Q features that it returns, W words, L layers, A heads of a
layer, T = 4 terms, S = 16 subsets, X sentences, M sampled words, H hidden size, D seeds of decoders, U items of a task.

Source: Mickus, Paperno and Constant (2022). They compute r² on the tokens on which the map was fitted (least squares
with a constant; z-scoring features does not change r²; uniform average over outputs). This module adds r² on held-out
tokens.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import linalg, optimize, stats

from mtlprune.analyses.vectors.dissection import SUBSETS, TERMS
from mtlprune.evaluation.head_masks import OPEN_ABOVE
from mtlprune.runs.results import KEYS, VALUES, head_rows
from mtlprune.statistics.permutation import hypergeometric_p, layered_rank_test
from mtlprune.statistics.standard_errors import Floats

Ints = NDArray[np.int64]
Encoder = Mapping[str, Any]
"""Measures of one encoder by name; ``frames`` and ``side_by_side`` list the names."""
_TINY = 1e-10
"""A feature is treated as constant if its variance is below this fraction of its mean square."""
_SCORES = ("score", "macro_f1", "score_sd", "macro_f1_sd")
"""Measures of the frame ``scores``, in the order of display."""
_RESAMPLES = 1000
"""Number of resamples of sentences in the intervals of ``losses``."""
_PERMUTATIONS = 2000
"""Number of permutations of heads within layers in ``gates_against_shares``."""

# -- one encoder -------------------------------------------------------------------------------------------------------


def moments(x: Floats, y: Floats) -> Floats:
    """Sum [1, x, y] ⊗ [1, x, y] over tokens, which is all that a least-squares fit of y on x needs.

    ``x`` and ``y`` are (N, P) and (N, Q) in float64, and the sum is (1 + P + Q, 1 + P + Q). Sums over different tokens
    can be added.
    """
    design = np.concatenate([np.ones((len(x), 1)), x, y], axis=1)
    return design.T @ design


def fit(sums: Floats, inputs: int) -> Floats:
    """Compute least-squares coefficients from ``moments``, (1 + P, Q), with the constant first.

    If the solution is not unique, the coefficients are those with the smallest norm.
    """
    side = 1 + inputs
    return np.linalg.pinv(sums[:side, :side], rcond=1e-12, hermitian=True) @ sums[:side, side:]


def r2(sums: Floats, coefficients: Floats) -> float:
    """Compute the mean over outputs of 1 − residual / total sum of squares; NaN without tokens.

    A constant output counts as 1 if it is predicted exactly and as 0 otherwise, as in scikit-learn.

    Args:
        sums: ``moments`` of the tokens on which the map is scored.
        coefficients: (1 + P, Q), the map.
    """
    side, tokens = len(coefficients), sums[0, 0]
    if not tokens:
        return math.nan
    squares = sums.diagonal()[side:]
    crossed = np.einsum("pq,pq->q", coefficients, sums[:side, side:])
    fitted = np.einsum("pq,pr,rq->q", coefficients, sums[:side, :side], coefficients, optimize=True)
    residual = squares - 2 * crossed + fitted
    total = squares - sums[0, side:] ** 2 / tokens
    floor = _TINY * np.maximum(squares, 1e-300)
    constant = total <= floor
    flat = np.where(residual <= 10 * floor, 1.0, 0.0)
    moving = 1 - np.maximum(residual, 0) / np.where(constant, 1, total)
    return float(np.where(constant, flat, moving).mean())


def linearity(first_moments: Floats, second_moments: Floats, inputs: int) -> dict[str, float]:
    """Compute r² of a linear map on the tokens on which it was fitted, and on held-out tokens.

    The held-out value is the mean of two: each half of the tokens is predicted by the map that was fitted on the other
    half.

    Args:
        first_moments, second_moments: ``moments`` of the two halves.
        inputs: P.
    """
    all_moments = first_moments + second_moments
    held_out = (r2(first_moments, fit(second_moments, inputs)) + r2(second_moments, fit(first_moments, inputs))) / 2
    return {
        "in_sample": r2(all_moments, fit(all_moments, inputs)),
        "held_out": held_out,
        "tokens": int(all_moments[0, 0]),
    }


def f1(counts: NDArray) -> Floats:
    """Compute F1 = 2 · correct / (predicted + gold) from counts (..., 3); 0 where predicted and gold are both 0."""
    return 2 * counts[..., 0] / np.maximum(counts[..., 1] + counts[..., 2], 1)


def macro_f1(answers: Ints, gold: Ints) -> float:
    """Compute the mean F1 over all labels that occur in answers or gold.

    The result is that of scikit-learn, computed without its slow checks of the input.
    """
    size = int(max(answers.max(), gold.max())) + 2  # class −1 is a label that does not occur in training
    correct, predicted, gold_count = (
        np.bincount(labels + 1, minlength=size) for labels in (answers[answers == gold], answers, gold)
    )
    occurring = predicted + gold_count > 0
    return float((2 * correct / np.maximum(predicted + gold_count, 1))[occurring].mean())


def agreement(first: Ints, second: Ints) -> dict[str, Floats]:
    """Compute the F1 of answers from one subset with the answers from another subset as gold, for all pairs of subsets.

    Args:
        first, second: (D, S, U), answers by seed and subset. Answers are compared with answers of the same seed.

    Returns:
        ``micro_agreement`` and ``macro_agreement``, (S, S) each, as means over seeds.
    """
    pairs = list(zip(first, second, strict=True))

    def matrix(f1_of: Callable[[Ints, Ints], float]) -> Floats:
        return np.mean(
            [[[f1_of(a, b) for b in second_answers] for a in first_answers] for first_answers, second_answers in pairs],
            0,
        )

    return {
        "micro_agreement": matrix(
            lambda first_answers, second_answers: float((first_answers == second_answers).mean())
        ),
        "macro_agreement": matrix(macro_f1),
    }


def _tidy_frame(measure: str, values: Any, **axes: Sequence[Any]) -> pd.DataFrame:
    """Turn an array into rows of a frame, with a column for each axis that names the position; None becomes NaN."""
    rows = pd.DataFrame(list(product(*axes.values())), columns=list(axes))
    return rows.assign(measure=measure, value=np.array(values, np.float64).ravel())


def frames(encoder: Encoder) -> dict[str, pd.DataFrame]:
    """Turn the measures of one encoder into the frames that ``frames.yaml`` declares.

    Args:
        encoder: ``error``, ``largest``, ``pieces``; ``mu`` and ``mu_sd`` (L + 1, T); ``gates`` and ``heads`` (L, A);
            ``linearity``, one entry for each layer; ``scores``, one entry for each task, with ``task``, ``train``,
            ``test``, ``unseen``, ``baseline`` and the measures of ``decoders.entry``.
    """
    lines, layers = encoder["linearity"], range(1, len(encoder["linearity"]) + 1)
    parts: dict[str, list[pd.DataFrame]] = {
        "encoders": [_tidy_frame(name, encoder[name]) for name in ("error", "largest", "pieces")],
        "layers": [
            _tidy_frame(name, encoder[key], layer=range(len(lines) + 1), term=TERMS)
            for name, key in (("importance", "mu"), ("importance_sd", "mu_sd"))
        ],
        "linearity": [
            _tidy_frame(name, [line[name] for line in lines], layer=layers).assign(n=lines[0]["tokens"])
            for name in ("in_sample", "held_out")
        ],
        "heads": [head_rows({"gate": np.array(encoder["gates"]), "importance": np.array(encoder["heads"])})],
        **{name: [] for name in ("tasks", "scores", "agreement")},
    }
    for task in encoder["scores"]:
        task_name = [task["task"]]
        parts["tasks"] += [
            _tidy_frame(name, task[name], task=task_name) for name in ("train", "test", "unseen", "baseline")
        ]
        parts["scores"] += [
            _tidy_frame(name, task[name], task=task_name, term=SUBSETS) for name in _SCORES if name in task
        ]
        parts["agreement"] += [
            _tidy_frame(name, task[f"{name}_agreement"], task=task_name, term=SUBSETS, other=SUBSETS)
            for name in ("micro", "macro")
        ]
    return {
        name: pd.concat(frames_of_name, ignore_index=True).dropna(subset="value")
        for name, frames_of_name in parts.items()
        if frames_of_name
    }


# -- several encoders --------------------------------------------------------------------------------------------------


def side_by_side(encoders: Sequence[Encoder], seed: int) -> dict[str, pd.DataFrame]:
    """Compare encoders and return a frame for each comparison that has encoders to compare.

    A row belongs to the first encoder of a pair, and the column ``other`` names the second.

    Args:
        encoders: mappings as in ``frames``, with further keys.
            - ``label``, ``run``, ``seed``, ``name``: as in a Result.
            - ``variant``: the words that distinguish runs of the same tasks.
            - ``tasks``: tasks on which the run was trained; empty for a pretrained encoder.
            - ``whole``: whether the encoder has all its heads and no gates.
            - ``word_mu`` (W, L + 1, T): μ of each word.
            - ``added`` (L, 2, M, H): h and f after each layer, for the same sampled words in all encoders.
            - ``counts`` (D, S, X, 3), correct, predicted and gold, and ``answers`` (D, S, U), in each of ``scores``.
    """
    parts: dict[str, list[pd.DataFrame]] = {}

    def add(name: str, frame: pd.DataFrame, first: Encoder, second: Encoder | None = None, **more: Any) -> None:
        more |= {"encoder": first["label"], "run": first["run"], "seed": first["seed"]}
        keyed = frame.assign(**more, **({} if second is None else {"other": second["name"]}))
        parts.setdefault(name, []).append(keyed[[column for column in (*KEYS, *VALUES) if column in keyed]])

    for first, second in combinations(encoders, 2):
        if first["word_mu"].shape == second["word_mu"].shape:
            for name, values in mu_correlations(first["word_mu"], second["word_mu"]).items():
                add("across", _tidy_frame(name, values, layer=range(len(values)), term=TERMS), first, second)
    for pretrained, tuned in product(encoders, encoders):
        for pretrained_scores, tuned_scores in product(pretrained["scores"], tuned["scores"]):
            if tuned["tasks"] and not pretrained["tasks"] and pretrained_scores["task"] == tuned_scores["task"]:
                for name, values in agreement(pretrained_scores["answers"], tuned_scores["answers"]).items():
                    frame = _tidy_frame(name.removesuffix("_agreement"), values, term=SUBSETS, label=SUBSETS)
                    add("tuned_agreement", frame, pretrained, tuned, task=pretrained_scores["task"])
    for first, second in product(encoders, encoders):
        if second["whole"] and not first["whole"] and first["gates"].shape == second["heads"].shape:
            add("gates", _measure_rows(gates_against_shares(first["gates"], second["heads"], seed)), first, second)
    pairs = [
        (task, single, joint)
        for single, joint in product(encoders, encoders)
        if len(single["tasks"]) == 1 and len(joint["tasks"]) > 1
        for task in {*single["tasks"]} & {*joint["tasks"]}
        if ":" not in joint["label"] or joint["label"].endswith(f":{task.upper()}")
        if all(single[key] == joint[key] for key in ("seed", "variant"))
    ]
    for task, single, joint in pairs:
        for pretrained_scores, tuned_scores in product(single["scores"], joint["scores"]):
            if pretrained_scores["task"] == tuned_scores["task"] == task:
                loss_values = losses(pretrained_scores["counts"], tuned_scores["counts"], seed)
                frame = _tidy_frame("loss", loss_values["difference"], term=SUBSETS).assign(
                    low=loss_values["low"], high=loss_values["high"]
                )
                add("losses", frame, single, joint, task=task)
    for joint in (first for first in encoders if len(first["tasks"]) > 1):
        same_shape = [entry for entry in encoders if entry["added"].shape == joint["added"].shape]
        candidates = [
            candidate
            for candidate in same_shape
            if not candidate["tasks"] or (len(candidate["tasks"]), candidate["seed"]) == (1, joint["seed"])
        ]
        for layer, place in np.ndindex(joint["added"].shape[:2] if len(candidates) > 1 else (0, 0)):
            added_vectors = {candidate["name"]: candidate["added"][layer, place] for candidate in candidates}
            for mode, (weights, unexplained) in composition(joint["added"][layer, place], added_vectors).items():
                for frame in (
                    _tidy_frame("weight", [*weights.values()], other=[*weights]),
                    _tidy_frame("unexplained", unexplained),
                ):
                    add("compositions", frame, joint, layer=layer + 1, term="hf"[place], mode=mode)
    return {name: pd.concat(frames_of_name, ignore_index=True) for name, frames_of_name in parts.items()}


def _measure_rows(measures: Mapping[str, float]) -> pd.DataFrame:
    """Turn measures into rows; the value of ``X_p`` becomes the column ``p`` of the row of ``X``."""
    names = [name for name in measures if not name.endswith("_p")]
    tested = [measures.get(f"{name}_p", math.nan) for name in names]
    return pd.DataFrame({"measure": names, "value": [measures[name] for name in names], "p": tested})


def mu_correlations(first: NDArray, second: NDArray) -> dict[str, Floats]:
    """Correlate the importance μ in two encoders over the same words: (W, L + 1, T) twice → (L + 1, T).

    Returns:
        ``spearman`` and ``pearson``; NaN where μ is constant, such as the importance of heads before the first layer.
    """
    sides = [np.asarray(side, np.float64).reshape(len(side), -1) for side in (first, second)]
    flat = np.any([np.ptp(side, axis=0) == 0 for side in sides], axis=0)
    correlations = {}
    for name, values in (("spearman", [stats.rankdata(side, axis=0) for side in sides]), ("pearson", sides)):
        a, b = (side - side.mean(0) for side in values)
        norms = np.sqrt((a**2).sum(0) * (b**2).sum(0))
        value = np.where(flat, math.nan, (a * b).sum(0) / np.where(flat, 1, norms))
        correlations[name] = value.reshape(first.shape[1:])
    return correlations


def gates_against_shares(gates: NDArray, shares: NDArray, seed: int = 0) -> dict[str, float]:
    """Test whether gates (L, A) keep the heads with the largest mean importance μ (L, A) in some encoder.

    Returns:
        ``rho``: rank correlation (Spearman) within layers; ``rho_p``: its two-sided p-value, from permutations within
        layers; ``open``: number of open heads; ``shared``: number of open heads among the heads of largest μ, as many
        in each layer as the layer has open heads; ``expected``: expected value of ``shared`` for random heads of the
        same layers; ``shared_p``: its one-sided p-value (upper tail).
    """
    ranks = layered_rank_test(gates, shares, _PERMUTATIONS, (seed, 12))
    is_open = gates > OPEN_ABOVE
    numbers = is_open.sum(1)
    order = np.argsort(np.argsort(-shares, axis=1, kind="stable"), axis=1)  # rank of each head in its layer, from 0
    shared = int((is_open & (order < numbers[:, None])).sum())
    return {
        "rho": ranks.value,
        "rho_p": ranks.p,
        "open": int(numbers.sum()),
        "shared": shared,
        "expected": float((numbers**2).sum() / gates.shape[1]),
        "shared_p": hypergeometric_p(numbers, numbers, gates.shape[1], shared),
    }


def losses(single: NDArray[np.int64], joint: NDArray[np.int64], seed: int = 0) -> dict[str, Floats]:
    """Compute the loss of F1 from a single-task encoder to the joint encoder, for the decoder of each subset of terms.

    Args:
        single, joint: (D, S, X, 3), counts (correct, predicted, gold) by seed, subset and sentence; the sentences are
            the same.

    Returns:
        ``difference`` (S,): F1 of the single-task encoder minus F1 of the joint encoder, as the mean over seeds;
        ``low``, ``high`` (S,): 2.5th and 97.5th percentile over resamples of the sentences, which are the same for both
        encoders and all subsets. The interval covers the choice of sentences, but neither the seeds of encoders nor
        those of decoders.
    """
    sentences = single.shape[2]
    generator = np.random.default_rng([seed, 13])
    times = generator.multinomial(sentences, np.full(sentences, 1 / sentences), _RESAMPLES).astype(np.float64)  # (R, X)
    sums = [np.einsum("rx,dsxc->drsc", times, counts.astype(np.float64), optimize=True) for counts in (single, joint)]
    resampled_scores = [f1(counts).mean(0) for counts in sums]
    low, high = np.percentile(resampled_scores[0] - resampled_scores[1], (2.5, 97.5), axis=0)
    difference = f1(single.sum(2)).mean(0) - f1(joint.sum(2)).mean(0)
    return {"difference": difference, "low": low, "high": high}


def composition(target: NDArray, sources: Mapping[str, NDArray]) -> dict[str, tuple[dict[str, float], float]]:
    """Fit a term of one encoder as a non-negative combination of the same term in several source encoders.

    Args:
        target: (M, H), the term of one encoder.
        sources: name of a source encoder → its term, (M, H).

    Returns:
        For each mode the weights of the source encoders, from least squares over words and features, and the
        unexplained share ‖target − Σ a · source‖² / ‖target‖²; all are NaN if the target is 0. The mode ``weights``
        uses the terms unchanged. The mode ``centred`` first subtracts the mean over words from all terms. The mode
        ``rotated`` does not centre, but first maps each source term onto the target by the best orthogonal map
        (Schönemann 1966), as a control for encoders that differ only by a rotation.
    """
    goal = np.asarray(target, np.float64)
    source_values = {name: np.asarray(values, np.float64) for name, values in sources.items()}
    turned = {name: values @ linalg.orthogonal_procrustes(values, goal)[0] for name, values in source_values.items()}
    centred = {name: values - values.mean(0) for name, values in source_values.items()}
    return {
        "weights": _weights(goal, source_values),
        "centred": _weights(goal - goal.mean(0), centred),
        "rotated": _weights(goal, turned),
    }


def _weights(goal: Floats, source_values: Mapping[str, Floats]) -> tuple[dict[str, float], float]:
    """Fit the target by non-negative least squares and return the weights and the unexplained share of its squares."""
    total_square = float((goal**2).sum())
    if total_square == 0:
        return dict.fromkeys(source_values, math.nan), math.nan
    columns = [*(values.ravel() for values in source_values.values()), goal.ravel()]
    # R of a QR decomposition has the same sums of squares and products as the k + 1 columns, in only k + 1 rows.
    small = np.asarray(np.linalg.qr(np.column_stack(columns), mode="r"))
    weights, residual = optimize.nnls(small[:, :-1], small[:, -1])
    return dict(zip(source_values, weights.tolist(), strict=True)), float(residual**2 / total_square)
