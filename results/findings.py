"""Write results/FINDINGS.md, results/REGISTER.md, their figures, and the tables of findings in two READMEs.

    python results/findings.py            # in README.md and results/README.md it changes only the text between marks

The source is results/findings.yaml, which states claims and doubts in words, and names the row of a committed result
for every number. No number or verdict is written by hand. A verdict follows from the interval of its row and from the
effect that the claim predicts.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import Field

from mtlprune.figures.charts import Interval, Style, figure, forest, render
from mtlprune.figures.grid import number, percent, probability
from mtlprune.io.block import Block
from mtlprune.io.files import RunError, read_yaml
from mtlprune.runs.results import Result, read_result
from mtlprune.statistics.standard_errors import LEVEL

HERE = Path(__file__).parent
ENCODERS_AND_CORPORA = ("MiniLM, EWT", "MiniLM, MASC", "MPNet, EWT", "MPNet, MASC")
WORD_OF_VERDICT = {"supported": "confirmed", "not supported": "contradicted", "undecided": "undecided"}
"""The word for each verdict in the table of encoders and corpora."""


REGISTER = (
    "# Register of hypothesis tests",
    "",
    "This table has tests of hypotheses that lie behind the findings. Findings 3, 5 and 11 rest on further tests,",
    "which their pages give. Other planned tests have no row: those of [gates on frozen runs](claims/selections.md)",
    "(not supported in the size that the plan required), [two random encoders](claims/controls.md) (not supported),",
    "[who hurts whom](claims/leave-one-out.md), [tasks of whole",
    "sentences](sentences/README.md), [secondary comparisons](why/secondary.md), and of further pages with *several",
    "tests* in the list of [results](README.md).",
    "",
    "*Plan* is the date on which we wrote the test down before its runs. *Afterwards* marks tests that we did not",
    "plan. *Predicted* is the effect that the hypothesis predicts. Effects are in points, unless they have a % sign",
    "or the name of the test ends with another unit in parentheses. RMS units divide the change of a task's score by",
    "the root mean square of all changes of this score in the analysis. The p-values are two-sided against no effect,",
    "and that of the share in *Why 2* is against 40 %. *p (Holm)* is corrected for the tests that one analysis",
    "corrected together, and – means that the analysis corrected nothing (its page may do so). For the primary",
    "comparisons of *Why 0* to *Why 4* (all but that in logits) it is that of [the five planned",
    "experiments](why/primaries.md), which have the largest p of their places. A place without a p, such as MPNet in",
    "*Why 4*, counts as 1. *Detectable* is the effect that four of five such studies would find (80 % power). If it",
    "exceeds the predicted effect, a test can hardly find the predicted effect, but may rule it out.",
    "",
    "A prediction with < or > is *supported* if the whole interval lies beyond the predicted effect. A prediction with",
    "≤ or ≥ is *supported* if the interval excludes 0 and the estimate reaches the predicted effect. If there is a p",
    "(Holm), it must also be below 0.05. A prediction is *not supported* if the whole interval falls short of the",
    "predicted effect, and otherwise it is *undecided*. A withdrawn test is undecided.",
    "",
    "E1 to E4 are [the planned tests of competition for heads](fight/README.md). *Why 0* to *Why 4* are [the planned",
    "tests of the reasons why joint training costs points](why/README.md). The",
    "[glossary](../docs/reference/glossary.md) explains Δ, Φ, claims and tasks.",
    "`python results/findings.py` makes this page from [findings.yaml](findings.yaml).",
)


class Value(Block):
    """A number of a committed result, with its interval."""

    result: str = Field(description="Path of the result's JSON file, relative to results/.")
    frame: str
    row: dict[str, str | float] = Field(description="Values of columns that select one row of the frame.")
    column: str = Field(default="estimate", description="Column of the estimate; the row also has low, high, n and p.")
    label: str = Field(default="", description="Name of the number in a figure.")
    unit: Literal["points", "Φ", "share", "heads", "count"] = "points"
    of: str = Field(default="seeds", description="What n counts.")
    asks: str = Field(
        default="",
        description="The effect that a claim predicts. '> 0.2' is supported if the whole interval is above 0.2. "
        "'<= -1' is supported if the interval excludes 0 and the estimate is -1 or less, and not supported if the "
        "interval is above -1.",
    )
    chance: str = Field(default="", description="Column with the p-value of a count, which decides instead of asks.")
    digits: int = Field(default=-1, description="Decimals that are shown, if not the usual number of the unit.")
    unknown: str = Field(default="", description="The reason why the analysis has no such frame.")
    family: str = Field(
        default="", description="Row of why/primaries with the p-value after correction over five experiments."
    )

    @property
    def source(self) -> Result:
        """The result that contains the number."""
        return read_result(HERE / self.result)

    @property
    def frame_row(self) -> pd.Series:
        """The row that contains the number, which is NaN for an unknown number.

        Raises RunError unless exactly one row matches, or if a frame exists whose number is said to be unknown.
        """
        frames = self.source.frames
        if self.unknown and self.frame not in frames:
            return pd.Series(dict.fromkeys((self.column, "low", "high"), math.nan))
        if self.unknown:
            raise RunError(f"findings.yaml: {self.result} has the frame {self.frame}; delete `unknown`")
        frame = frames[self.frame]
        for column, value in self.row.items():
            frame = frame[frame[column] == value]
        if len(frame) != 1:
            raise RunError(
                f"findings.yaml: {self.result}, {self.frame}, {self.row}: expected one row, found {len(frame)}"
            )
        row = frame.iloc[0].copy()
        if self.family:
            family = read_result(HERE / "why/primaries/primaries.json").frames["family"].set_index("term")
            row["p_holm"], row["p"] = family.loc[self.family, "p_holm"], row.get("p", family.loc[self.family, "p"])
        return row

    def number(self, value: float) -> str:
        """Format a number of this unit."""
        usual = {"points": 1, "Φ": 2, "heads": 1, "count": 0, "share": 0}[self.unit]
        shown = percent(value) if self.unit == "share" else number(value, usual if self.digits < 0 else self.digits)
        return shown if re.search("[1-9]", shown) else shown.removeprefix("−")  # no minus before a zero

    def shown(self, row: pd.Series | None = None) -> str:
        """Format the estimate with its interval, if it has one."""
        row = self.frame_row if row is None else row
        if self.unknown:
            return "unknown"
        cells = [self.number(row[name]) for name in (self.column, "low", "high") if name in row]
        return cells[0] if len(cells) < 3 or row["low"] != row["low"] else f"{cells[0]} [{cells[1]}, {cells[2]}]"

    @property
    def prediction(self) -> str:
        """The predicted effect with the sign and the unit of the register, such as "≤ −0.5" or "> 40 %"."""
        sign, _, size = self.asks.partition(" ")
        effect = percent(float(size)) if self.unit == "share" and float(size) else size.replace("-", "−")
        return f"{sign.replace('>=', '≥').replace('<=', '≤')} {effect}"

    @property
    def verdict(self) -> str:
        """The verdict on the predicted effect, from the interval and, if the claim predicts a size, the estimate."""
        row = self.frame_row
        if self.chance:
            return "supported" if row[self.chance] < LEVEL else "undecided"
        sign, _, size = self.asks.partition(" ")
        side = 1 if sign.startswith(">") else -1  # with this sign, the claim always predicts a large value
        low, high = sorted((side * float(row["low"]), side * float(row["high"])))
        size_asked, estimate = side * float(size), side * float(row[self.column])
        if self.source.withdrawn or math.isnan(low):
            return "undecided"
        least = 0.0 if sign.endswith("=") else size_asked
        if low > least and estimate >= size_asked:
            # A test in a family of several tests must also be significant after the correction.
            return "undecided" if row.get("p_holm", math.nan) >= LEVEL else "supported"
        return "not supported" if high < size_asked else "undecided"


def agreed(verdicts: set[str]) -> str:
    """Return the only verdict of several tests; if they differ, they decide nothing."""
    return next(iter(verdicts)) if len(verdicts) == 1 else "undecided"


class Finding(Block):
    """A claim with its evidence and doubts."""

    claim: str = Field(description="A sentence without numbers.")
    evidence: str = Field(description="Sentences in which {name} is replaced by a value.")
    values: dict[str, Value]
    decides: list[str] = Field(description="Names of the values that must all be as the claim predicts.")
    where: dict[str, str | list[str]] = Field(
        default={}, description="Names of the deciding values by encoder and corpus. Different verdicts are *mixed*."
    )
    figure: list[str] = Field(default=[], description="Names of the values in the figure, from top to bottom.")
    axis: str = Field(description="Title of the figure's axis, or what the picture shows.")
    picture: str = Field(default="", description="Path of a picture, relative to results/, which replaces the figure.")
    further_picture: str = Field(default="", description="Path of a second picture, relative to results/.")
    doubt: str
    change: str = Field(default="", description="What is untested, or would change the verdict.")
    command: str
    page: str = Field(description="Path of the page on the finding, relative to results/.")
    readme: str = Field(default="", description="The evidence in README.md, which leaves the finding out without it.")
    answers: str = Field(default="", description="The question of the HTML report that the finding answers.")

    @property
    def verdict(self) -> str:
        """The verdict of the deciding tests if all of them agree, and otherwise "undecided"."""
        return agreed({self.values[name].verdict for name in self.decides})

    def filled(self, text: str) -> str:
        """Insert the values into a text."""
        return text.format(**{name: value.shown() for name, value in self.values.items()})

    def cells(self) -> dict[str, str]:
        """Return the word of WORD_OF_VERDICT for each encoder and corpus, "mixed" or "not tried"."""
        cells = {}
        for place in ENCODERS_AND_CORPORA:
            names = self.where.get(place, [])
            words = {
                WORD_OF_VERDICT[self.values[name].verdict] for name in ([names] if isinstance(names, str) else names)
            }
            cells[place] = words.pop() if len(words) == 1 else "mixed" if words else "not tried"
        return cells


class Test(Value):
    """A test of a hypothesis, which is a row of the register."""

    name: str
    planned: str = Field(default="afterwards", description="The date of the plan.")
    plan: str = Field(default="", description="Path of the plan, relative to results/.")
    page: str = Field(description="Path of the page on the test, relative to results/.")


class Question(Block):
    """A question with the pages that answer it, which is a row of results/README.md."""

    question: str
    pages: dict[str, str] = Field(description="Paths of pages, relative to results/, by name.")
    seeds: str = Field(description="The number of training seeds, in words.")
    finding: str = Field(default="", description="The finding that answers it, whose verdict is shown.")
    registered: list[str] = Field(
        default=[], description="Without a finding, tests of the register that must all have the verdict that is shown."
    )
    tests: Literal["", "several tests", "description", "no verdict yet"] = Field(
        default="", description="If no finding answers the question, the kind of verdicts that the page reports."
    )


class Page(Block):
    """The content of findings.yaml."""

    findings: dict[str, Finding]
    questions: list[Question] = []
    gaps: list[dict[str, Any]] = Field(description="Rows of the table of values of the mean Δ.")
    tests: list[Test] = []


def read(path: Path = HERE / "findings.yaml") -> Page:
    """Read and check findings.yaml."""
    return Page.model_validate(read_yaml(path))


def pictures(page: Page, out: Path) -> None:
    """Draw a forest plot for each finding, with filled marks for intervals that exclude 0."""
    for name, finding in page.findings.items():
        if finding.picture:
            continue
        rows = []
        has_opposite_predictions = len({finding.values[key].asks[:1] for key in finding.decides}) > 1
        for value in (finding.values[key] for key in finding.figure):
            row, label = value.frame_row, value.label or f"{value.frame}"
            if has_opposite_predictions and value.asks:
                label += f", predicted {value.prediction}"
            scale = 100 if value.unit == "share" else 1
            estimate, low, high = (scale * float(row.get(column, math.nan)) for column in (value.column, "low", "high"))
            sure = row[value.chance] < LEVEL if value.chance else low > 0 or high < 0
            rows.append(Interval(label, estimate, low, high, bool(sure), f"{label}: {value.shown(row)}"))
        spec = figure(forest(rows, x_title=finding.axis, width=300, cut=False))
        (out / f"{name}.png").write_bytes(render(spec, "png", Style(font_size=12, title=False)))


def findings(page: Page) -> str:
    """Return the text of results/FINDINGS.md."""
    lines = [
        "# What we found",
        "",
        "A task *claims* the heads to which its loss is most sensitive. Φ measures how far two runs agree on claimed "
        "heads: 1 means the same heads, and 0 means chance. Δ is the joint minus the single-task score, in points. "
        "Brackets contain 95 % intervals. See also the [glossary](../docs/reference/glossary.md) and the [register of "
        "tests](REGISTER.md). `python results/findings.py` makes this page.",
        "",
        "*Supported* (*confirmed* for one encoder and corpus): the predicted effect is there. *Not supported* "
        "(*contradicted*): an effect of the predicted size is ruled out. *Undecided*: the data allow both, tests "
        "disagree (*mixed*), or correction removes significance. Filled dots in figures mark intervals "
        "without 0, or more heads than chance (p < 0.05).",
    ]
    for rank, (name, finding) in enumerate(page.findings.items(), start=1):
        lines += [
            "",
            f"## {rank} {finding.claim}",
            "",
            f"**{finding.verdict.capitalize()}.** {finding.filled(finding.evidence)}",
        ]
        lines += ["", f"![{finding.axis}]({finding.picture or f'findings/{name}.png'})"]
        lines += ["", f"![Score curves]({finding.further_picture})"] if finding.further_picture else []
        lines += ["", f"- {where(finding)}"]
        lines += [f"- Predicted: {effect}." for effect in filter(None, [predicted(finding)])]
        lines += [f"- Detectable with 80 % power: {power}." for power in detectable(finding)]
        lines += [f"- Doubt: {finding.filled(finding.doubt)}"]
        lines += [f"- {change}" for change in filter(None, [finding.filled(finding.change)])]
        lines += [f"- `{finding.command}` ([page]({finding.page}))"]
    lines += ["", "## Values of the mean Δ under different conditions", "", *gaps(page)]
    return "\n".join(lines) + "\n"


def predicted(finding: Finding) -> str:
    """List the predicted effects of the deciding tests, with the names of tests where the effects differ."""
    tests = [value for value in (finding.values[name] for name in finding.decides) if value.asks]
    effects = list(dict.fromkeys(test.prediction for test in tests))
    if len(effects) == 1 < len(tests):
        return effects[0]
    return ", ".join(f"{test.prediction} ({test.label})" if test.label else test.prediction for test in tests)


def where(finding: Finding) -> str:
    """Write the sentence that says for which encoders and corpora a claim was tested, and with which verdicts."""
    places = _places(finding, "/")
    untried = places.pop("not tried", [])
    [first, *_] = places.values()
    if len(places) == len(first) == 1:
        return f"Tested only for {first[0]}."
    parts = [f"{cell} for {_listed(tested)}" for cell, tested in places.items()]
    return f"Verdicts: {', '.join([*parts, *['untested elsewhere'] * bool(untried)])}."


def _listed(names: list[str]) -> str:
    """Join names as in "A, B and C"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _places(finding: Finding, joint: str) -> dict[str, list[str]]:
    """Group encoders and corpora by the word of WORD_OF_VERDICT, where ``joint`` joins the names of a pair."""
    places: dict[str, list[str]] = {}
    for place, cell in finding.cells().items():
        places.setdefault(cell, []).append(place.replace(", ", joint))
    return places


def detectable(finding: Finding) -> Iterator[str]:
    """Yield the minimum detectable effects of the undecided tests of a finding."""
    for value in (finding.values[name] for name in finding.decides):
        least = value.frame_row.get("detectable", math.nan)
        if value.verdict == "undecided" and not math.isnan(least):
            unit = " points" if value.unit == "points" else ""
            yield f"{value.number(float(least))}{unit}{f' ({value.label})' if len(finding.decides) > 1 else ''}"


def gaps(page: Page) -> Iterator[str]:
    """Yield the lines of the table that explains why several pages give different numbers for the mean Δ."""
    yield "| Δ, mean of tasks | tasks | seeds | precision | where it is used |"
    yield "|:--|:--|--:|:--|:--|"
    for row in page.gaps:
        value = Value.model_validate(row["value"])
        yield f"| {value.shown()} | {row['tasks']} | {value.frame_row['n']:.0f} | {row['precision']} | {row['why']} |"


def table(page: Page) -> str:
    """Return the table of findings in README.md."""
    lines = ["| finding | verdict | evidence | by encoder/corpus |", "|:--|:--|:--|:--|"]
    for finding in page.findings.values():
        if finding.readme:
            claim, evidence = f"[{finding.claim}](results/{finding.page})", finding.filled(finding.readme)
            places = {cell: names for cell, names in _places(finding, "/").items() if cell != "not tried"}
            parts = [f"{cell} {', '.join(names)}" for cell, names in places.items()]
            lines.append(f"| {claim} | {finding.verdict} | {evidence} | {'; '.join(parts)} |")
    return "\n".join(lines) + "\n"


def register(page: Page) -> str:
    """Return the text of results/REGISTER.md, which lists the tests of hypotheses behind the findings."""
    rows = []
    for test in page.tests:
        row = test.frame_row
        corrected = row.get("p_holm", float("nan"))
        plan = test.planned if not test.plan else f"[{test.planned}]({test.plan})"
        cells = [
            f"[{test.name}]({test.page})",
            plan,
            test.prediction,
            f"{row['n']:.0f} {test.of}" if "n" in row else "–",
            test.shown(row),
        ]
        cells += [probability(float(row.get("p", float("nan")))), probability(float(corrected))]
        least = row.get("detectable", float("nan"))
        rows.append([*cells, "–" if math.isnan(least) else test.number(float(least)), test.verdict])
    header = ("test", "plan", "predicted", "n", "estimate, 95 % interval", "p", "p (Holm)", "detectable", "verdict")
    lines = [
        f"| {' | '.join(header)} |",
        "|:--|:--|:--|:--|:--|--:|--:|--:|:--|",
        *(f"| {' | '.join(r)} |" for r in rows),
    ]
    return "\n".join([*REGISTER, "", *lines]) + "\n"


def questions(page: Page) -> str:
    """Return the table of questions in results/README.md."""
    lines = ["| question | page | verdict | seeds |", "|:--|:--|:--|:--|"]
    for row in page.questions:
        links = ", ".join(f"[{name}]({path})" for name, path in row.pages.items())
        verdict = page.findings[row.finding].verdict if row.finding else row.tests
        if row.registered:
            verdict = agreed({test.verdict for test in page.tests if test.name in row.registered})
        lines.append(f"| {row.question} | {links} | {verdict} | {row.seeds} |")
    return "\n".join(lines) + "\n"


def marked(text: str, block: str, name: str = "findings") -> str:
    """Replace the text between the two marks of this name by ``block``; a text without marks does not change."""
    before, begin, rest = text.partition(f"<!-- {name}:begin -->\n")
    _, end, after = rest.partition(f"<!-- {name}:end -->")
    return f"{before}{begin}{block}{end}{after}" if begin and end else text


def main() -> None:
    """Write all pages, tables and figures."""
    page, readme, index = read(), HERE.parent / "README.md", HERE / "README.md"
    (HERE / "findings").mkdir(exist_ok=True)
    pictures(page, HERE / "findings")
    (HERE / "FINDINGS.md").write_text(findings(page), encoding="utf-8")
    (HERE / "REGISTER.md").write_text(register(page), encoding="utf-8")
    readme.write_text(marked(readme.read_text(encoding="utf-8"), table(page)), encoding="utf-8")
    index.write_text(marked(index.read_text(encoding="utf-8"), questions(page), "questions"), encoding="utf-8")


if __name__ == "__main__":
    main()
