"""Verdicts of the first screen, as a table of cases."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mtlprune.analyses.heads.claims.measure import overlap
from mtlprune.reports.page.answers import (
    NOT_ASKED,
    Joint,
    TaskDelta,
    claims_verdict,
    on_scores,
    phi_of,
    sharing_verdict,
)
from mtlprune.runs.claims import Claim
from mtlprune.runs.results import Result, read_result
from mtlprune.statistics.contrast import with_verdict

NAN = math.nan


def task_delta(name: str, value: float, sure: bool = True, seeds: bool = True, low: float = -9.0) -> TaskDelta:
    return TaskDelta(name, value, low, 9.0, sure, seeds, 1.25)


WORSE, BETTER, OPEN = task_delta("NER", -3.0), task_delta("SRL", 2.0), task_delta("POS", -0.5, sure=False)
SEEN = "a difference of 1.2 points or more would have been found in four of five studies."
EQUAL, OWN = "at equal updates", "with more updates (MTL-2, sampled)"


@pytest.mark.parametrize(
    ("deltas", "more", "answer", "words"),
    [
        ([], [], NOT_ASKED, "No task"),
        ([WORSE, task_delta("SRL", 6.2)], [], "Yes, on 1 of 2 tasks", "; joint training is better on SRL +6.2"),
        (
            [WORSE, task_delta("DEP", -5.0), OPEN],
            [],
            "Yes, on 2 of 3 tasks",
            "largest loss is that of DEP, −5.0 points [−9.0",
        ),
        ([WORSE, BETTER], [OPEN], "Yes, on 1 of 2 tasks", "(MTL-2, sampled), joint training costs points on no tasks."),
        ([WORSE], [WORSE], "Yes, on 1 of 1 tasks", "of NER, −3.0 points [−9.0, 9.0] at equal updates; "),
        ([BETTER, OPEN], [], "No, better on 1 of 2", "of SRL, +2.0 points"),
        (
            [OPEN, task_delta("NER", 0.1, sure=False)],
            [],
            "Not shown",
            "of POS, −0.5 points [−9.0, 9.0] at equal updates; " + SEEN,
        ),
        ([task_delta("NER", -3.0, False, False)], [], "One seed cannot say", "of NER, −3.0 points"),
        ([task_delta("NER", -3.0, False, False, NAN)], [], "Not tested", "of NER, −3.0 points at equal updates."),
        ([], [WORSE], "Yes, on 1 of 1 tasks", "with more updates (MTL-2, sampled)"),
    ],
)
def test_does_joint_training_cost_points(deltas, more, answer, words):
    verdict = on_scores(Joint("MTL-2 − STL", deltas, EQUAL, more, OWN))
    assert verdict.answer == answer and words in verdict.number and len(answer.split()) <= 6
    assert bool(verdict.link) == bool(deltas or more)


def claims(heads: dict[str, list[list[int]]], size: int = 24) -> Result:
    made = []
    for label, seeds in heads.items():
        for seed, opened in enumerate(seeds, 1):
            gates = np.zeros(size)
            gates[opened] = 1.0
            made.append(Claim(f"{label}-{seed}", label, seed, "e", gates.reshape(2, -1), []))
    return overlap(made, 500)


SAME, APART = [0, 1, 2], ([3, 4, 5], [6, 7, 8])


@pytest.mark.parametrize(
    ("heads", "tied", "answer", "words"),
    [
        (None, False, NOT_ASKED, "do not choose heads"),
        ({"POS": [SAME]}, False, NOT_ASKED, "do not choose heads"),
        (
            {"POS": [SAME] * 2, "NER": [SAME] * 2},
            False,
            "A few: 3 of 24",
            "by both tasks, of which layer depth alone explains 0.",
        ),
        ({"A": [SAME] * 2, "B": [SAME] * 2, "C": [SAME] * 2}, False, "A few: 3 of 24", "by all three tasks"),
        (
            {"A": [SAME] * 2, "B": [APART[0]] * 2},
            False,
            "Not beyond layer depth",
            "0 of 24 heads are claimed by both tasks",
        ),
        (
            {"A": [[0]] * 2, "B": [[20]] * 2},
            False,
            "Too few heads are claimed",
            "0 of 24 heads are claimed by both tasks",
        ),
        ({"A": [SAME], "B": [SAME]}, False, "One seed cannot say", "3 of 24 heads are claimed by both tasks"),
        (
            {"A": [SAME], "B": [SAME]},
            True,
            "Gates do not distinguish heads",
            "One seed does not show the agreement of seeds.",
        ),
    ],
)
def test_do_tasks_claim_the_same_heads(heads, tied, answer, words):
    verdict = claims_verdict(claims(heads) if heads else None, tied)
    assert verdict.answer == answer and words in verdict.number and len(answer.split()) <= 6


def test_phi_is_that_of_the_seeds_of_a_task():
    assert phi_of(claims({"A": [SAME], "B": [SAME]})) is None
    assert phi_of(claims({"A": [SAME] * 2, "B": [SAME] * 2}))[0] == pytest.approx(1.0)
    assert phi_of(claims({"A": [SAME, APART[0]], "B": [SAME, APART[1]]}))[0] < 0.2


def treated(delta: float, p: float, equal: float = 1.0, share: float = 0.33) -> Result:
    rows = {"term": ["clone", "other"], "label": ["MTL-5, clone of claimed heads", "MTL-5, clone of random heads"]}
    shares = {"share": [share, 0.23], "share_low": [-0.001, 0.01], "share_high": [0.52, 0.46]}
    pair = {"term": ["clone"], "other": ["other"], "mode": ["primary"], "estimate": [delta], "low": [-1.0]}
    pair |= {"high": [1.0]}
    pair |= {"p": [p], "p_holm": [p], "p_margin": [equal], "detectable": [1.25]}
    return Result("treatments", {}, {"settings": pd.DataFrame(rows | shares), "pairs": pd.DataFrame(pair)})


def closed(*holm: float, encoder: str = "POS", seeds: int = 3) -> Result:
    row = {"encoder": encoder, "other": "NER", "mode": "claimed", "low": -6.0, "high": -2.0}
    row |= {"n": seeds, "detectable": 1.25}
    rows = [row | {"p_holm": p, "estimate": -4.0 - place} for place, p in enumerate(holm)]
    return Result("cross", {}, {"cells": pd.DataFrame(rows)})


def given(**results: Result | None) -> dict[str, Result]:
    return {name: result for name, result in results.items() if result is not None}


def scarce(delta: float, low: float, high: float, seeds: int = 3) -> Result:
    row = {"term": "18 heads", "other": "72 heads", "task": "mean", "estimate": delta, "low": low, "high": high}
    row |= {"p": 0.01 if low * high > 0 else 0.5, "n": seeds, "heads": -54}
    control = row | {"term": "72 heads, longer", "heads": 0, "estimate": -8.0, "high": -7.0}
    frame = pd.DataFrame([control, row, row | {"task": "pos", "estimate": -9.0}])
    about = {"settings": {"margin": 1.0}, "notes": []}
    return Result("scarcity", about, {"changes": with_verdict(frame, effect=-1.0)})


def roles(delta: float, low: float, high: float, *notes: str) -> Result:
    row = {"encoder": "MTL-5", "task": "mean", "estimate": delta, "low": low, "high": high, "n": 3}
    single = row | {"encoder": "POS", "estimate": -2.0, "low": -3.0, "high": -1.0, "p": 0.01}
    frame = pd.DataFrame([single, row | {"p": 0.01 if low * high > 0 else 0.5}])
    return Result("roles", {"notes": list(notes)}, {"gains": with_verdict(frame, effect=0.3)})


FALLS, NO_FALL, OPEN_FALL = scarce(-2.0, -3.0, -1.0), scarce(1.0, 0.2, 1.9), scarce(0.1, -1.4, 1.5)
GAIN, NO_GAIN = roles(0.5, 0.1, 0.9), roles(0.0, -0.2, 0.2)
WITHDRAWN = roles(0.0, -0.2, 0.2, "Withdrawn on a day: the push was not felt.")


@pytest.mark.parametrize(
    ("results", "answer", "words"),
    [
        (
            {"scarcity": NO_FALL},
            "Undecided",
            "72 heads joint minus single-task scores change by +1.0 [0.2, 1.9] points. A fall by 1",
        ),
        (
            {"scarcity": NO_FALL, "roles": NO_GAIN},
            "No",
            "A fall by 1 is ruled out. Closing heads that hinder a task",
        ),
        (
            {"scarcity": NO_FALL, "roles": WITHDRAWN},
            "Undecided",
            "Closing heads gives no answer, because the result is withdrawn or no heads were found.",
        ),
        ({"scarcity": OPEN_FALL, "roles": NO_GAIN}, "Undecided", "A fall by 1 is possible"),
        ({"scarcity": FALLS, "roles": WITHDRAWN}, "Yes, in part", "A fall by 1 is found"),
        (
            {"scarcity": FALLS, "roles": NO_GAIN},
            "Undecided",
            "gains +0.0 [−0.2, 0.2] points. Competition predicts 0.3 or more",
        ),
        ({"roles": GAIN}, "Yes, in part", "gains +0.5 [0.1, 0.9] points"),
        ({"scarcity": scarce(-2.0, -3.0, -1.0, 1)}, "Undecided", "is possible"),
        (
            {"scarcity": NO_FALL, "treatments": treated(0.3, 0.5)},
            "Undecided",
            "ruled out. Copies of shared heads close 33",
        ),
        (
            {"scarcity": OPEN_FALL, "treatments": treated(2.0, 0.01)},
            "Yes, in part",
            "Copies of shared heads close 33 %",
        ),
        ({"scarcity": NO_FALL, "treatments": treated(2.0, 0.01)}, "Undecided", "Copies of shared heads close 33 %"),
    ],
)
def test_tests_of_a_fight_are_answered_together(results, answer, words):
    verdict = sharing_verdict(results)
    assert verdict.answer == answer and words in verdict.number and verdict.link == "why"


def test_roles_of_single_tasks_are_no_test_of_competition():
    result = roles(0.5, 0.1, 0.9)
    gains = result.frames["gains"]
    single = result.with_frames(gains=gains[gains["encoder"] == "POS"])
    assert sharing_verdict({"roles": single}).answer == NOT_ASKED


def test_groups_of_a_file_are_no_test_of_scarce_heads():
    """They may compare corpora or settings, as results/baselines/gaps does."""
    falls = scarce(-2.0, -3.0, -1.0)
    falls.about["settings"]["groups"] = "groups.yaml"
    del falls.frames["changes"]["heads"]
    assert sharing_verdict({"scarcity": falls}).answer == NOT_ASKED
    assert sharing_verdict({"scarcity": falls, "roles": NO_GAIN}).number == sharing_verdict({"roles": NO_GAIN}).number


def test_the_committed_results_and_their_page_give_one_answer():
    """The page said "not shown" where results/fight said "undecided"."""
    folders = {"treatments": "treatments/test", "cross": "claims/cross"}
    folders |= {"scarcity": "fight/scarcity", "roles": "fight/roles"}
    results = {name: read_result(Path("results") / folder / f"{name}.json") for name, folder in folders.items()}
    answer = sharing_verdict(results).answer
    why = Path("results/fight/README.md").read_text(encoding="utf-8")
    assert why.startswith(f"# Do tasks compete for heads?\n\n**{answer}.**")
    assert f'<p class="answer">{answer}</p>' in Path("results/ewt5-minilm/report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("treatments", "cross", "answer", "words"),
    [
        (None, None, NOT_ASKED, "No run"),
        (None, closed(0.01, seeds=1), "One seed cannot say", "1 of 1 cases"),
        (treated(0.3, 0.5), closed(0.01), "Not shown", "close 33 % [0, 52] of the gap, and copies of random heads"),
        (treated(0.3, 0.5), None, "Not shown", f"23 % [1, 46]; {SEEN}"),
        (treated(2.0, 0.01), None, "Yes, in part", "23 % [1, 46]."),
        (treated(0.0, 0.9, 0.01), None, "No", "33 %"),
        (treated(0.3, 0.5, share=NAN), None, "No gap to close", "0.30 points [−1.00, 1.00]"),
        (
            None,
            closed(0.01),
            "Possible: tasks need each other's heads",
            "1 of 1 cases. The largest change is that of POS without the heads of NER, −4.0",
        ),
        (None, closed(0.5), "Not shown", f"without the heads of NER, −4.0 [−6.0, −2.0]; {SEEN}"),
        (
            None,
            closed(0.01, 0.5),
            "Possible: tasks need each other's heads",
            "1 of 2 cases. The largest change is that of POS without the heads of NER, −4.0",
        ),
        (None, closed(0.01, encoder="MTL-5"), NOT_ASKED, "No run"),
    ],
)
def test_because_they_share_heads(treatments, cross, answer, words):
    verdict = sharing_verdict(given(treatments=treatments, cross=cross))
    assert verdict.answer == answer and words in verdict.number and len(answer.split()) <= 6


def test_without_a_claimed_head_there_are_none_to_close():
    none, some = claims({"POS": [[0], [1], [2]], "NER": [[3], [4], [5]]}), claims({"POS": [SAME], "NER": [SAME]})
    assert sharing_verdict({}, none).answer == "No heads to close"
    assert sharing_verdict({}, some).answer == NOT_ASKED
