"""What was found is told in one place: pages are what `python results/findings.py` makes, and agree with the report."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
ANSWERS = {"Yes": "supported", "A few": "supported", "Some": "supported", "Many": "supported", "No": "not supported"}
"""How an answer of the HTML report begins → the verdict on the claim."""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    specification = importlib.util.spec_from_file_location("findings", ROOT / "results" / "findings.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page(script):
    return script.read()


def test_the_committed_pages_are_those_of_the_file(script, page):
    for name, make in {"FINDINGS": script.findings, "REGISTER": script.register}.items():
        assert (ROOT / "results" / f"{name}.md").read_text(encoding="utf-8") == make(page), "python results/findings.py"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert script.marked(readme, script.table(page)) == readme, "python results/findings.py"
    index = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    assert script.marked(index, script.questions(page), "questions") == index, "python results/findings.py"
    assert all(bool(row.finding) + bool(row.tests) + bool(row.registered) == 1 for row in page.questions)
    assert {name for row in page.questions for name in row.registered} <= {test.name for test in page.tests}
    assert {row.finding for row in page.questions if row.finding} == set(page.findings)
    words = re.sub(r"\]\(.*?\)", "]", (ROOT / "results" / "FINDINGS.md").read_text(encoding="utf-8")).split()
    assert sum(bool(re.search(r"\w", word)) for word in words) <= 1500  # as README's words are counted


def test_no_number_is_typed(page):
    for name, finding in page.findings.items():
        for text in (finding.claim, finding.evidence, finding.doubt, finding.change):
            assert not re.search(r"\d", re.sub(r"\{\w+\}|\(.*?\)(?=\.$)", "", text)), f"{name}: {text}"


def test_every_figure_and_page_is_there(page):
    for name, finding in page.findings.items():
        picture = finding.picture or f"findings/{name}.png"
        assert (ROOT / "results" / picture).is_file() and (ROOT / "results" / finding.page).is_file()
    assert all((ROOT / "results" / test.page).is_file() for test in page.tests)


def test_the_report_answers_as_the_findings_do(page):
    """The page said "not shown" where README said "refuted"."""
    report = (ROOT / "results" / "ewt5-minilm" / "report.html").read_text(encoding="utf-8")
    asked = {finding.answers: finding.verdict for finding in page.findings.values() if finding.answers}
    assert len(asked) == 3
    for question, verdict in asked.items():
        [answer] = re.findall(rf">{re.escape(question)}<.*?class=\"answer\">([^<]+)<", report, re.DOTALL)
        begins = [said for start, said in ANSWERS.items() if re.match(rf"{start}\b", answer)]
        assert (begins or ["undecided"]) == [verdict], f"{question} {answer}; {verdict}"


def test_verdicts_follow_from_the_interval(script, monkeypatch):
    def verdict(asks: str, low: float, estimate: float, high: float, p_holm: float = float("nan")) -> str:
        value = script.Value(result="", frame="", row={}, asks=asks)
        row = {"estimate": estimate, "low": low, "high": high, "p_holm": p_holm}
        result = type("Result", (), {"withdrawn": []})()
        monkeypatch.setattr(script.Value, "frame_row", property(lambda _: row))
        monkeypatch.setattr(script.Value, "source", property(lambda _: result))
        return value.verdict

    assert verdict("<= -1", -3.0, -2.0, -1.5) == verdict("<= -1", -1.8, -1.0, -0.2) == "supported"
    assert verdict("<= -1", 0.2, 1.0, 1.9) == verdict("<= -1", -0.9, -0.6, -0.3) == "not supported"
    assert verdict("<= -1", -1.4, 0.1, 1.5) == verdict("<= -1", -1.2, -0.7, -0.2) == "undecided"
    assert verdict("> 0.2", 0.3, 0.4, 0.5) == "supported" and verdict("> 0.2", 0.1, 0.4, 0.5) == "undecided"
    assert (
        verdict("> 0.2", 0.3, 0.4, 0.5, 0.155) == "undecided" and verdict("> 0.2", 0.3, 0.4, 0.5, 0.01) == "supported"
    )
    assert verdict("< 0", 0.1, 0.4, 0.5) == "not supported" and verdict("< 0", -0.1, 0.4, 0.5) == "undecided"


def test_places_whose_tests_disagree_are_mixed(script, page, monkeypatch):
    finding = next(
        finding for finding in page.findings.values() if any(isinstance(w, list) for w in finding.where.values())
    )
    place = next(place for place, names in finding.where.items() if isinstance(names, list))
    for verdict, word in script.WORD_OF_VERDICT.items():
        monkeypatch.setattr(script.Value, "verdict", property(lambda _, verdict=verdict: verdict))
        assert finding.cells()[place] == word
    first = finding.values[finding.where[place][0]]
    monkeypatch.setattr(script.Value, "verdict", property(lambda value: ["undecided", "supported"][value is first]))
    assert finding.cells()[place] == "mixed"
