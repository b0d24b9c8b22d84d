"""Verdicts on the first screen of the HTML report: three questions, each with an answer of at most six words, and the
numbers on which the answer rests.

The verdicts are computed from a Result of ``claims``, from differences between joint and single-task training, and from
Results of analyses that treat or close heads. `mtlprune.reports.page.first_screen` collects this input from runs and
folders.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mtlprune.analyses.frames import MEAN
from mtlprune.analyses.heads.claims.stability import MODES, OVER_TASKS
from mtlprune.analyses.heads.roles import GAIN
from mtlprune.analyses.heads.roles import show as roles
from mtlprune.analyses.heads.scarcity import show as scarcity
from mtlprune.analyses.heads.treatments.show import pairs_not_shown
from mtlprune.figures.grid import number, power_clause, probability
from mtlprune.runs.groups import is_joint
from mtlprune.statistics.contrast import NOT_SUPPORTED, SUPPORTED, UNDECIDED, only_not_shown
from mtlprune.statistics.standard_errors import LEVEL

if TYPE_CHECKING:
    from mtlprune.runs.results import Result

NOT_ASKED, _NOT_SHOWN, _ONE_SEED = "Not asked by these runs", "Not shown", "One seed cannot say"
_UNDECIDED_ANSWER = "Undecided"
_CLAIMS, _SCORES, _SHARING = (
    "Do tasks claim the same heads?",
    "Does joint training cost points?",
    "Because they share heads?",
)
_FEW_BELOW, _SOME_BELOW = 1 / 6, 1 / 2
"""Largest shares of an encoder's heads that are called "a few" and "some", for the heads that several tasks claim."""
_CHANCE = 0.1
"""Number of shared heads expected from layer depth alone, below which it is uninformative that no head is shared."""
UNSTABLE = 0.5
"""Φ below which the report warns that another seed would choose other heads."""


@dataclass(frozen=True)
class Verdict:
    """The answer to one of the three questions.

    Attributes:
        question: the question.
        answer: the answer, in at most six words.
        number: sentences with the decisive number, its interval or p-value, and its meaning.
        link: anchor of the section with details; "" if the runs cannot answer the question.
    """

    question: str
    answer: str
    number: str
    link: str = ""


@dataclass(frozen=True)
class TaskDelta:
    """The score of joint training minus that of single-task training for one task, in points.

    Attributes:
        name: name of the task, followed by the setting if there are several joint settings.
        value: the difference.
        low, high: ends of the 95 % interval; NaN without a test.
        significant: whether the table of scores marks the difference as significant over seeds and sentences, after
            Holm's correction.
        seeds: whether the test covers seeds as well as sentences.
        detectable: minimum detectable effect; NaN if it was not computed.
    """

    name: str
    value: float
    low: float
    high: float
    significant: bool
    seeds: bool
    detectable: float = math.nan


@dataclass(frozen=True)
class Joint:
    """The joint setting with the most tasks, compared with single tasks.

    Attributes:
        title: title of the comparison, such as MTL-5 − STL.
        deltas: differences of joint training with as many updates as single tasks, or fewer.
        training_budget: the number of updates in ``deltas``, in words, such as "at equal updates".
        deltas_with_more_updates: differences of joint training with more updates than single tasks.
        larger_budget: the number of updates in ``deltas_with_more_updates``, in words.
    """

    title: str = ""
    deltas: Sequence[TaskDelta] = ()
    training_budget: str = ""
    deltas_with_more_updates: Sequence[TaskDelta] = ()
    larger_budget: str = ""


def required_tasks(tasks: int) -> tuple[int, str]:
    """Return how many of the ``tasks`` must claim a head for the map to mark it as shared, and this number in words."""
    return min(3, tasks), {2: "both tasks", 3: "all three tasks"}.get(tasks, "three tasks or more")


def phi_of(result: Result) -> tuple[float, float, float] | None:
    """Return the mean over single tasks of Φ between the seeds of a task, and the ends of its interval (NaN if not
    computed). Return None if Φ is not defined, such as with one seed for each task."""
    rows = result.frames.get("stability")
    if rows is None:
        return None
    rows = rows[(rows["encoder"] == OVER_TASKS) & (rows["other"] == OVER_TASKS) & (rows["term"] == "within")]
    rows = rows[(rows["mode"] == MODES[0]) & (rows["measure"] == "phi")]
    return None if rows.empty or math.isnan(rows.iloc[-1]["value"]) else tuple(rows.iloc[-1][["value", "low", "high"]])


def phi_words(result: Result) -> str:
    """Format the result of ``phi_of`` as ``Φ 0.66 [0.55, 0.78]``, or as "" with one seed."""
    phi = phi_of(result)
    return f"Φ {number(phi[0])}{interval_text(*phi[1:])}" if phi else ""


def claims_verdict(result: Result | None, tied: bool = False) -> Verdict:
    """Decide whether tasks claim the same heads.

    Args:
        result: Result of ``claims`` of the selection whose seeds agree most, or None without claims.
        tied: whether training did not separate the gates of the heads, so that the choice of heads is arbitrary.
    """
    if result is None or len(result.about["single"]) < 2 or "numbers" not in result.frames:
        return Verdict(_CLAIMS, NOT_ASKED, "These runs do not choose heads for two or more single tasks.")
    minimum, claiming_tasks = required_tasks(len(result.about["single"]))
    numbers = result.frames["numbers"].set_index("tasks").loc[minimum]
    count, total, p = int(numbers["heads"]), result.about["layers"] * result.about["heads"], numbers["layers_more"]
    fraction = f"{count} of {total}"
    labels = [entry["encoder"] for entry in result.about["encoders"]]
    one_seed = len(set(labels)) == len(labels)
    if tied:
        answer = "Gates do not distinguish heads"
    elif one_seed:
        answer = _ONE_SEED
    elif math.isnan(p):
        answer = f"{fraction}, not tested"
    elif not count and numbers["layers_expected"] < _CHANCE:
        answer = "Too few heads are claimed"
    elif p > LEVEL:
        answer = "Not beyond layer depth"
    else:
        quantity = "A few" if count <= _FEW_BELOW * total else "Some" if count <= _SOME_BELOW * total else "Many"
        answer = f"{quantity}: {fraction}"
    chance = f"layer depth alone explains {number(numbers['layers_expected'], 1)}"
    chance += "" if math.isnan(p) else f" (p {probability(p)})"
    phi = phi_words(result)
    unknown = "One seed does not show the agreement of seeds." if one_seed else "The agreement of seeds is not defined."
    seeds = f"The agreement of the seeds of a task is {phi}." if phi else unknown
    return Verdict(
        _CLAIMS,
        answer,
        f"{fraction} heads are claimed by {claiming_tasks}, of which {chance}. {seeds}",
        "claims",
    )


def on_scores(joint: Joint) -> Verdict:
    """Decide whether joint training costs points, from the joint setting with the most tasks."""
    deltas, deltas_with_more_updates = joint.deltas, joint.deltas_with_more_updates
    deltas_shown, training_budget = (
        (deltas, joint.training_budget) if deltas else (deltas_with_more_updates, joint.larger_budget)
    )
    if not deltas_shown:
        return Verdict(_SCORES, NOT_ASKED, "No task has both single-task and joint runs.")
    worse, better = _significant(deltas_shown, -1), _significant(deltas_shown, 1)
    if not any(delta.seeds for delta in deltas_shown):
        untested = all(math.isnan(delta.low) for delta in deltas_shown)
        answer = "Not tested" if untested else _ONE_SEED
    elif worse:
        answer = f"Yes, on {len(worse)} of {len(deltas_shown)} tasks"
    else:
        answer = f"No, better on {len(better)} of {len(deltas_shown)}" if better else _NOT_SHOWN
    largest = (
        min(worse, key=lambda delta: delta.value)
        if worse
        else max(better or deltas_shown, key=lambda delta: abs(delta.value))
    )
    name = f"The largest {'loss' if worse else 'difference'} is" if len(deltas_shown) > 1 else "The difference is"
    text = f"{name} that of {largest.name}, {signed(largest.value)} points"
    text += f"{interval_text(largest.low, largest.high, 1)} {training_budget}{_seen_from(answer, largest.detectable)}"
    if worse and better:  # the answer "Yes" must not hide the tasks that joint training improves
        gains = [f"{delta.name} {signed(delta.value)}{interval_text(delta.low, delta.high, 1)}" for delta in better]
        text += f"; joint training is better on {' and '.join(gains)}"
    if deltas and deltas_with_more_updates:
        lost_tasks = _significant(deltas_with_more_updates, -1)
        text += (
            f"; {joint.larger_budget}, joint training costs points on {len(lost_tasks) if lost_tasks else 'no'} "
            f"task{'s' * (len(lost_tasks) != 1)}"
        )
    return Verdict(_SCORES, answer, f"{text}.", "scores")


def _significant(deltas: Sequence[TaskDelta], sign: int) -> list[TaskDelta]:
    return [delta for delta in deltas if delta.significant and sign * delta.value > 0]


def sharing_verdict(results: Mapping[str, Result], claims: Result | None = None) -> Verdict:
    """Decide whether joint training costs points because tasks share heads.

    The evidence is copies of shared heads (``treatments``) or, without them, ablations of the heads that other tasks
    claim (``cross``). If scarce heads (``scarcity``) or facilitating and interfering heads (``roles``) were measured,
    these direct tests of competition are combined with the first evidence.

    Args:
        results: name of the analysis → its Result.
        claims: Result of ``claims``, or None.
    """
    verdict = _by_copies(results["treatments"]) if "treatments" in results else None
    if verdict is None and "cross" in results:
        verdict = _by_closing(results["cross"])
    # Controls, and groups of runs that a file defines, differ in data or settings and do not test scarce heads.
    direct_tests = {name: by for name, by in _DIRECT.items() if name in results}
    if "scarcity" in direct_tests and not _with_closed_heads(results["scarcity"]):
        del direct_tests["scarcity"]
    if "roles" in direct_tests and roles.is_of_single_tasks(results["roles"]):
        del direct_tests["roles"]
    if tests := [by(results[name]) for name, by in direct_tests.items()]:
        return _combine_tests(tests, verdict)
    numbers = {} if claims is None or "numbers" not in claims.frames else claims.frames["numbers"]
    if verdict is None and len(numbers) and not numbers["heads"].any():
        return Verdict(_SHARING, "No heads to close", "No task claims a head in most seeds.", "claims")
    return verdict or Verdict(
        _SHARING, NOT_ASKED, "No run copies heads for each task, and no analysis closes the heads of another task."
    )


def _combine_tests(tests: Sequence[tuple[str, str]], other_verdict: Verdict | None) -> Verdict:
    """Combine direct tests of competition with the verdict from copies or ablations, if there is one.

    The answer is "Yes, in part" if a test or the verdict supports competition and none contradicts it, "No" if there
    are at least two direct tests, all contradict competition and the verdict does not support it, and otherwise
    "Undecided".

    Args:
        tests: verdict and sentence of each direct test.
        other_verdict: the verdict from copies or ablations.
    """
    of_answer = {"Yes, in part": SUPPORTED, "No": NOT_SUPPORTED}
    verdicts = [verdict for verdict, _ in tests]
    answer = _UNDECIDED_ANSWER
    if len(tests) > 1 and {*verdicts} == {NOT_SUPPORTED}:
        answer = "No"
    verdict_of_other = (
        [of_answer[other_verdict.answer]] if other_verdict is not None and other_verdict.answer in of_answer else []
    )
    if SUPPORTED in (all_verdicts := [*verdicts, *verdict_of_other]):
        answer = _UNDECIDED_ANSWER if NOT_SUPPORTED in all_verdicts else "Yes, in part"
    return Verdict(
        _SHARING,
        answer,
        " ".join([*(words for _, words in tests), *([other_verdict.number] if other_verdict else [])]),
        "why",
    )


def _with_closed_heads(result: Result) -> list[Any]:
    """Return the changes of the mean Δ by closing heads, without controls and comparisons of a file of groups."""
    rows = result.frames["changes"].itertuples() if "changes" in result.frames else ()
    return [row for row in rows if row.task == MEAN and scarcity.closes_heads(row)]


def _by_scarcity(result: Result) -> tuple[str, str]:
    """Return the verdict of ``scarcity`` and a sentence with the change of the mean Δ with the fewest heads."""
    # Competition predicts the largest change there. The smallest estimate of several numbers of heads would be a choice
    # after the result.
    row, margin = min(_with_closed_heads(result), key=lambda change: change.heads), result.about["settings"]["margin"]
    words = {SUPPORTED: "is found", NOT_SUPPORTED: "is ruled out", UNDECIDED: "is possible"}[row.verdict]
    change = f"{signed(row.estimate)}{interval_text(row.low, row.high, 1)}"
    return (
        row.verdict,
        f"With {row.term} instead of {row.other} joint minus single-task scores change by {change} points. A fall by "
        f"{margin:g} {words}.",
    )


def _by_roles(result: Result) -> tuple[str, str]:
    """Return the verdict of ``roles`` and a sentence with the gain from closing interfering heads."""
    verdict, row = roles.verdict(result)
    if row is None:
        return verdict, "Closing heads gives no answer, because the result is withdrawn or no heads were found."
    gain = f"{signed(row.estimate)}{interval_text(row.low, row.high, 1)}"
    return verdict, f"Closing heads that hinder a task gains {gain} points. Competition predicts {GAIN:g} or more."


_DIRECT = {"scarcity": _by_scarcity, "roles": _by_roles}
"""Name of an analysis that tests competition for heads directly → function from its Result to a verdict and a
sentence."""


def _by_copies(result: Result) -> Verdict | None:
    """Decide from copies of claimed heads, compared with copies of other heads of the same layers. Return None if the
    Result lacks one of them."""
    settings, pairs = result.frames["settings"].set_index("term"), pairs_not_shown(result)
    for pair in pairs[pairs["mode"].isin(("primary", "control"))].itertuples():
        clone_row, control = settings.loc[pair.term], settings.loc[pair.other]
        if "clone of claimed heads" not in clone_row["label"]:
            continue
        if math.isnan(clone_row["share"]):  # without a significant gap there is no share of it
            return Verdict(_SHARING, "No gap to close", _points(pair), "why")
        answer = _NOT_SHOWN if pair.p_decisive > LEVEL else "Yes, in part" if pair.estimate > 0 else "No"
        answer = "No" if pair.p_decisive > LEVEL and pair.p_margin < LEVEL else answer
        kind = control["label"].rpartition("clone of ")[2]
        text = (
            f"Copies of shared heads close {_share(clone_row)} of the gap, and copies of {kind} of the same layers "
            "close"
        )
        return Verdict(_SHARING, answer, f"{text} {_share(control)}{_seen_from(answer, pair.detectable)}.", "why")
    return None


def _seen_from(answer: str, detectable: float) -> str:
    """Return a clause with the minimum detectable effect if the answer is _NOT_SHOWN, and otherwise ""."""
    return power_clause(detectable) if answer == _NOT_SHOWN else ""


def _share(row: Any) -> str:
    value, low, high = (
        float(f"{100 * row[name]:.0f}") + 0.0
        for name in ("share", "share_low", "share_high")  # + 0.0 turns −0 into 0
    )
    return f"{number(value, 0)} %{interval_text(low, high, 0)}"


def _points(pair: Any) -> str:
    change = f"{number(pair.estimate)} points{interval_text(pair.low, pair.high)}"
    return f"Copies of shared heads minus copies of other heads change the score by {change}."


def _by_closing(result: Result) -> Verdict | None:
    """Decide from the ablation of heads that another task claims, compared with random heads of the same layers. Return
    None without such an ablation."""
    cells = result.frames["cells"]
    cells = cells[(cells["encoder"] != cells["other"]) & (cells["mode"] == "claimed") & cells["p_holm"].notna()]
    cells = only_not_shown(cells[~cells["encoder"].map(is_joint)])
    if cells.empty:
        return None
    lower = cells[(cells["p_holm"] < LEVEL) & (cells["estimate"] < 0)]
    cases = lower if len(lower) else cells
    worst = cases.loc[cases["estimate"].idxmin()]
    answer = "Possible: tasks need each other's heads" if len(lower) else _NOT_SHOWN
    answer = answer if cells["n"].max() > 1 else _ONE_SEED
    text = (
        "Closing the heads that another task claims, instead of random heads of the same layers, costs a task points "
        f"in {len(lower)} of {len(cells)} cases. The largest change is that of {worst['encoder']} without the heads of "
        f"{worst['other']}, {signed(worst['estimate'])}{interval_text(worst['low'], worst['high'], 1)}"
        f"{_seen_from(answer, worst['detectable'])}."
    )
    return Verdict(_SHARING, answer, text, "why")


def signed(value: float) -> str:
    """Format a number with its sign and one decimal."""
    return f"{value:+.1f}".replace("-", "−")


def interval_text(low: float, high: float, digits: int = 2) -> str:
    """Format an interval that follows a number, or return "" if its ends are NaN."""
    return "" if math.isnan(low) else f" [{number(low, digits)}, {number(high, digits)}]"
