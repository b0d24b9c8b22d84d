"""Measures of decompositions, of one encoder and of several side by side: plain arrays, nothing of torch.

How linear are feed-forward parts; which term carries the loss of multi-task learning; do gates keep the heads with the
largest shares; is what the heads of the joint encoder add a compromise between those of single-task ones. ``frames``
and ``side_by_side`` make tidy tables of these.

Letters for shapes: N tokens, P features read, Q features given, W words, L layers, A heads a layer, T = 4 terms, S = 16
subsets, X sentences, M sampled words, H hidden size, D seeds of decoders, U items of a task.

Source: Mickus, Paperno and Constant (2022). They score r² on the tokens that were fitted (least squares with a
constant; z-scored features change no r²; uniform average over outputs); a held-out value stands beside it here.
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
from mtlprune.runs.results import KEYS, VALUES, head_rows
from mtlprune.statistics.permutation import hypergeometric_p, layered_rank_test

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Encoder = Mapping[str, Any]
"""Measures of one encoder; ``frames`` and ``side_by_side`` say which."""
TINY = 1e-10
"""A feature whose variance is below this part of its mean square is constant."""
SCORES = ("score", "macro_f1", "score_sd", "macro_f1_sd")
RESAMPLES = 1000
PERMUTATIONS = 2000
OPEN = 0.5
"""Gates from which a head is open."""

# -- one encoder -------------------------------------------------------------------------------------------------------


def moments(x: Floats, y: Floats) -> Floats:
    """Sums over tokens of [1, x, y] ⊗ [1, x, y], from which any least squares of y on x follows. (1 + P + Q, 1 + P + Q)
    ``x``, ``y``: (N, P) and (N, Q), float64."""
    design = np.concatenate([np.ones((len(x), 1)), x, y], axis=1)
    return design.T @ design


def fit(sums: Floats, inputs: int) -> Floats:
    """(1 + P, Q): least-squares coefficients, the constant first; the smallest ones where they are not unique."""
    side = 1 + inputs
    return np.linalg.pinv(sums[:side, :side], rcond=1e-12, hermitian=True) @ sums[:side, side:]


def r2(sums: Floats, coefficients: Floats) -> float:
    """Mean over outputs of 1 − residual / total sum of squares on the tokens of ``sums``; NaN without tokens.

    An output that is constant counts 1 where it is met exactly and 0 otherwise, as scikit-learn has it.
    """
    side, tokens = len(coefficients), sums[0, 0]
    if not tokens:
        return math.nan
    squares = sums.diagonal()[side:]
    crossed = np.einsum("pq,pq->q", coefficients, sums[:side, side:])
    fitted = np.einsum("pq,pr,rq->q", coefficients, sums[:side, :side], coefficients, optimize=True)
    residual = squares - 2 * crossed + fitted
    total = squares - sums[0, side:] ** 2 / tokens
    floor = TINY * np.maximum(squares, 1e-300)
    constant = total <= floor
    flat = np.where(residual <= 10 * floor, 1.0, 0.0)
    moving = 1 - np.maximum(residual, 0) / np.where(constant, 1, total)
    return float(np.where(constant, flat, moving).mean())


def linearity(first_moments: Floats, second_moments: Floats, inputs: int) -> dict[str, float]:
    """r² on the tokens that were fitted, and held out: each half's ``moments`` by the map of the other, averaged."""
    all_moments = first_moments + second_moments
    held_out = (r2(first_moments, fit(second_moments, inputs)) + r2(second_moments, fit(first_moments, inputs))) / 2
    return {
        "in_sample": r2(all_moments, fit(all_moments, inputs)),
        "held_out": held_out,
        "tokens": int(all_moments[0, 0]),
    }


def f1(counts: NDArray) -> Floats:
    """2 · correct / (predicted + gold) of (..., 3); 0 where there is neither."""
    return 2 * counts[..., 0] / np.maximum(counts[..., 1] + counts[..., 2], 1)


def macro_f1(answers: Ints, gold: Ints) -> float:
    """Mean F1 over the labels that occur on either side, as scikit-learn has it, without its checks of the input."""
    size = int(max(answers.max(), gold.max())) + 2  # −1 stands for a label that training lacks
    correct, predicted, gold_count = (
        np.bincount(labels + 1, minlength=size) for labels in (answers[answers == gold], answers, gold)
    )
    occurring = predicted + gold_count > 0
    return float((2 * correct / np.maximum(predicted + gold_count, 1))[occurring].mean())


def agreement(first: Ints, second: Ints) -> dict[str, Floats]:
    """``micro_agreement`` and ``macro_agreement``: F1 of one's answers against the other's by subset of each, (D, S, U)
    twice to (S, S), mean over seeds; answers of one seed are compared with those of the same seed."""
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


def tidy_frame(measure: str, values: Any, **axes: Sequence[Any]) -> pd.DataFrame:
    """An array as rows: a column for each axis with its names; None is NaN."""
    rows = pd.DataFrame(list(product(*axes.values())), columns=list(axes))
    return rows.assign(measure=measure, value=np.array(values, np.float64).ravel())


def frames(encoder: Encoder) -> dict[str, pd.DataFrame]:
    """Measures of one encoder, as tables.

    Args:
        encoder: ``error``, ``largest``, ``pieces``; ``mu`` and ``mu_sd`` (L + 1, T); ``gates`` and ``heads`` (L, A);
            ``linearity``, an entry a layer; ``scores``, an entry a task: ``task``, ``train``, ``test``, ``unseen``,
            ``baseline``, and measures as ``decoders.entry`` makes them.
    """
    lines, layers = encoder["linearity"], range(1, len(encoder["linearity"]) + 1)
    parts: dict[str, list[pd.DataFrame]] = {
        "encoders": [tidy_frame(name, encoder[name]) for name in ("error", "largest", "pieces")],
        "layers": [
            tidy_frame(name, encoder[key], layer=range(len(lines) + 1), term=TERMS)
            for name, key in (("importance", "mu"), ("importance_sd", "mu_sd"))
        ],
        "linearity": [
            tidy_frame(name, [line[name] for line in lines], layer=layers).assign(n=lines[0]["tokens"])
            for name in ("in_sample", "held_out")
        ],
        "heads": [head_rows({"gate": np.array(encoder["gates"]), "importance": np.array(encoder["heads"])})],
        **{name: [] for name in ("tasks", "scores", "agreement")},
    }
    for task in encoder["scores"]:
        task_name = [task["task"]]
        parts["tasks"] += [
            tidy_frame(name, task[name], task=task_name) for name in ("train", "test", "unseen", "baseline")
        ]
        parts["scores"] += [
            tidy_frame(name, task[name], task=task_name, term=SUBSETS) for name in SCORES if name in task
        ]
        parts["agreement"] += [
            tidy_frame(name, task[f"{name}_agreement"], task=task_name, term=SUBSETS, other=SUBSETS)
            for name in ("micro", "macro")
        ]
    return {
        name: pd.concat(frames_of_name, ignore_index=True).dropna(subset="value")
        for name, frames_of_name in parts.items()
        if frames_of_name
    }


# -- several encoders --------------------------------------------------------------------------------------------------


def side_by_side(encoders: Sequence[Encoder], seed: int) -> dict[str, pd.DataFrame]:
    """Tables of each comparison that there are encoders for; a row is of the first encoder, ``other`` names the second.

    Args:
        encoders: as in ``frames``, and more: ``label``, ``run``, ``seed``, ``name`` as in a Result; ``variant``, what
            sets runs of the same tasks apart; ``tasks`` it was trained on, none for a pretrained encoder; ``whole``,
            whether all heads are open; ``word_mu`` (W, L + 1, T); ``added`` (L, 2, M, H), h and f of each layer; and
            of each of ``scores`` the ``counts`` (D, S, X, 3), correct, predicted and gold, and ``answers`` (D, S, U).
    """
    parts: dict[str, list[pd.DataFrame]] = {}

    def add(name: str, frame: pd.DataFrame, first: Encoder, second: Encoder | None = None, **more: Any) -> None:
        more |= {"encoder": first["label"], "run": first["run"], "seed": first["seed"]}
        keyed = frame.assign(**more, **({} if second is None else {"other": second["name"]}))
        parts.setdefault(name, []).append(keyed[[column for column in (*KEYS, *VALUES) if column in keyed]])

    for first, second in combinations(encoders, 2):
        if first["word_mu"].shape == second["word_mu"].shape:
            for name, values in mu_correlations(first["word_mu"], second["word_mu"]).items():
                add("across", tidy_frame(name, values, layer=range(len(values)), term=TERMS), first, second)
    for pretrained, tuned in product(encoders, encoders):
        for pretrained_scores, tuned_scores in product(pretrained["scores"], tuned["scores"]):
            if tuned["tasks"] and not pretrained["tasks"] and pretrained_scores["task"] == tuned_scores["task"]:
                for name, values in agreement(pretrained_scores["answers"], tuned_scores["answers"]).items():
                    frame = tidy_frame(name.removesuffix("_agreement"), values, term=SUBSETS, label=SUBSETS)
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
                frame = tidy_frame("loss", loss_values["difference"], term=SUBSETS).assign(
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
                    tidy_frame("weight", [*weights.values()], other=[*weights]),
                    tidy_frame("unexplained", unexplained),
                ):
                    add("compositions", frame, joint, layer=layer + 1, term="hf"[place], mode=mode)
    return {name: pd.concat(frames_of_name, ignore_index=True) for name, frames_of_name in parts.items()}


def _measure_rows(measures: Mapping[str, float]) -> pd.DataFrame:
    """Measures as rows; ``X_p`` is the p of ``X``."""
    names = [name for name in measures if not name.endswith("_p")]
    tested = [measures.get(f"{name}_p", math.nan) for name in names]
    return pd.DataFrame({"measure": names, "value": [measures[name] for name in names], "p": tested})


def mu_correlations(first: NDArray, second: NDArray) -> dict[str, Floats]:
    """``spearman`` and ``pearson`` over the same words of μ in two encoders: (W, L + 1, T) twice to (L + 1, T).

    NaN where μ is constant, such as that of heads before the first layer.
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
    """Test whether gates (L, A) keep the heads with the largest mean μ (L, A) in some encoder.

    Returns:
        ``rho``: correlation of ranks within layers (Spearman, layers taken out), ``rho_p``: two-sided, by permuting
        within layers; ``open`` heads; ``shared``: those that are among as many of largest μ in their layer,
        ``expected`` by chance, ``shared_p``: upper tail.
    """
    ranks = layered_rank_test(gates, shares, PERMUTATIONS, (seed, 12))
    is_open = gates >= OPEN
    numbers = is_open.sum(1)
    order = np.argsort(np.argsort(-shares, axis=1, kind="stable"), axis=1)
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
    """F1 that a decoder of each subset of terms loses from a task's own encoder to the joint one, with intervals.

    Args:
        single, joint: (D, S, X, 3), counts (correct, predicted, gold) by seed and subset, of the same X sentences.

    Returns:
        ``difference`` (S,): F1 of the single-task encoder minus F1 of the joint one, means over seeds; ``low``,
        ``high`` (S,): 2.5th and 97.5th percentile when sentences are drawn anew, the same for both encoders and all
        subsets. The interval covers the choice of sentences, neither seeds of encoders nor of decoders.
    """
    sentences = single.shape[2]
    generator = np.random.default_rng([seed, 13])
    times = generator.multinomial(sentences, np.full(sentences, 1 / sentences), RESAMPLES).astype(np.float64)  # (R, X)
    sums = [np.einsum("rx,dsxc->drsc", times, counts.astype(np.float64), optimize=True) for counts in (single, joint)]
    resampled_scores = [f1(counts).mean(0) for counts in sums]
    low, high = np.percentile(resampled_scores[0] - resampled_scores[1], (2.5, 97.5), axis=0)
    difference = f1(single.sum(2)).mean(0) - f1(joint.sum(2)).mean(0)
    return {"difference": difference, "low": low, "high": high}


def composition(target: NDArray, sources: Mapping[str, NDArray]) -> dict[str, tuple[dict[str, float], float]]:
    """A term of one encoder as a sum of the same term in others, with weights that are not negative, (M, H) each.

    Returns:
        by mode the weights of the others, from least squares over words and features, and ‖target − Σ a · other‖² /
        ‖target‖², NaN where the target is 0. Modes: ``weights``, of terms as they are; ``centred``, after the mean over
        words is taken from all; ``rotated``: not centred, but each other turned onto the target by the best orthogonal
        map (Schönemann 1966): the control for encoders that differ by a rotation only.
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
    total_square = float((goal**2).sum())
    if total_square == 0:
        return dict.fromkeys(source_values, math.nan), math.nan
    columns = [*(values.ravel() for values in source_values.values()), goal.ravel()]
    small = np.asarray(np.linalg.qr(np.column_stack(columns), mode="r"))  # the same sums of squares, in k + 1 rows
    weights, residual = optimize.nnls(small[:, :-1], small[:, -1])
    return dict(zip(source_values, weights.tolist(), strict=True)), float(residual**2 / total_square)
