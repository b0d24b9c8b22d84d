"""mtlprune analyze: analyses of the same heads. A command follows from the record of its analysis."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from mtlprune.analyses import ANALYSES, COMMANDS
from mtlprune.analyses.analysis import Analysis, Request, find, results_in
from mtlprune.cli import ADVANCED, PLAIN, CommandGroup
from mtlprune.cli.check import check_corpora
from mtlprune.cli.console import FontSize, Title, Width, chosen_formats, console, say, seen_from_here, with_parameters
from mtlprune.io.files import make_room
from mtlprune.io.plugins import PluginError

Names = Annotated[list[str], typer.Argument(metavar="RUN_OR_ENCODER", help="Run folders, encoder names or folders.")]
Logs = Annotated[list[str], typer.Argument(metavar="FILE", help="Logs (*.jsonl with step), or folders of them.")]
Runs = Annotated[list[str], typer.Argument(metavar="RUN", help="Run folders with gates, or sweeps.")]
Scored = Annotated[list[str], typer.Argument(metavar="RUN", help="Scored runs, sweeps or studies.")]
ScoredOn = Annotated[str, typer.Option(help="That runs are scored on.")]
Corpus = Annotated[Path, typer.Option(help="Folder of a corpus.")]
Out = Annotated[Path, typer.Option(metavar="DIR", help="For json, Markdown, parquet and figures.")]
AlsoOut = Annotated[Path | None, typer.Option(metavar="DIR", help="Also write json, Markdown, tables, figures.")]
Split = Annotated[str, typer.Option(help="Of the corpus.")]
Sentences = Annotated[int | None, typer.Option(metavar="N", min=1, help="Of the split, at random (all, if not given).")]
Claims = Annotated[
    list[Path] | None, typer.Option(metavar="RUN", help="Runs with gates, for groups of heads. Repeatable.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, ...")]
SEED = Annotated[int, typer.Option(min=0, help="Of samples and permutations.")]
NEEDED: dict[str, dict[str, tuple[Any, Any]]] = {
    "encoders": {
        "names": (Names, ...),
        "corpus": (Corpus, ...),
        "out": (Out, ...),
        "split": (Split, "dev"),
        "sentences": (Sentences, None),
    },
    "claims": {"claims": (Claims, None)},
    "runs": {"names": (Runs, ...), "out": (AlsoOut, None)},
    "scores": {"names": (Scored, ...), "out": (AlsoOut, None), "split": (ScoredOn, "test")},
    "logs": {"names": (Logs, ...), "out": (AlsoOut, None)},
}
"""Need of an analysis → parameters, their types and defaults."""


class Analyses(CommandGroup):
    """Those of ANALYSES that are no command by themselves, and ``show``."""

    def panels(self) -> dict[str, dict[str, str]]:

        def question(package: str) -> str:
            try:
                return find(package).question
            except PluginError as error:
                return str(error)

        lines = {name: question(package) for name, package in ANALYSES.items() if name not in COMMANDS}
        further = {name: lines.pop(name) for name in ("dissect", "breaks")}
        return {"Commands": lines | {"show": "Draw what an analysis found once more, for a paper."}, ADVANCED: further}

    def load(self, name: str) -> Any:
        return show if name == "show" else of_record(name)


app = typer.Typer(cls=Analyses, no_args_is_help=True, **PLAIN)


@app.callback()
def analyze() -> None:
    """Gradients on heads, other tasks' heads closed, treatments, over-smoothing, syntactic attention, degeneration."""


def of_record(name: str) -> Callable[..., None]:
    """The function of a command that follows from the record of an analysis."""
    analysis = find(ANALYSES[name])
    return with_parameters(partial(run, analysis), parameters_of(name), analysis.help)


def parameters_of(name: str) -> dict[str, tuple[Any, Any]]:
    """Its options → their types and defaults (...: none)."""
    analysis = find(ANALYSES[name])
    parameters = {key: kind for need, kinds in NEEDED.items() if need in analysis.needs for key, kind in kinds.items()}
    if "splits" in analysis.needs:
        del parameters["split"], parameters["sentences"]
    parameters |= {key: (_option(field), field.default) for key, field in analysis.options.model_fields.items()}
    return parameters | {"seed": (SEED, 0)} | ({"device": (Device, "cpu")} if "encoders" in analysis.needs else {})


def _option(field: Any) -> Any:
    """A field of an analysis's own settings as an option."""
    bounds = {
        bound: getattr(limit, key)
        for limit in field.metadata
        for key, bound in (("ge", "min"), ("le", "max"))
        if hasattr(limit, key)
    }
    option: Any = typer.Option
    return Annotated[field.annotation, option(help=field.description, **bounds)]


def run(
    analysis: Analysis,
    *,
    names: list[str],
    out: Path | None,
    corpus: Path | None = None,
    claims: list[Path] | None = None,
    **values: Any,
) -> None:
    """Measure, write the Result, its Markdown and figures into ``out``, and say what was found; without ``out`` say
    all of the Markdown. Of runs with gates all of it is said anyway, and the tables are written as LaTeX too.

    Args:
        values: the rest of a Request, and the analysis's own settings.
    """
    check_corpora(corpus)

    from mtlprune.cli.display import counted
    from mtlprune.reports.analyses import markdown, write_shown
    from mtlprune.runs.results import read_result, write_result
    from mtlprune.sweeps.folder import expanded

    if out is not None:
        make_room(out)
    own = {key: values.pop(key) for key in analysis.options.model_fields if key in values}
    terminal = console()
    gated = "runs" in analysis.needs
    if "logs" not in analysis.needs:
        names = [str(name) for name in expanded(seen_from_here(names), having="gates.jsonl" if gated else "")]
    with counted() as (on_status, on_batch):
        request = Request(
            names,
            corpus or Path(),
            analysis.options(**own),
            claims=[Path(one) for one in expanded(seen_from_here(claims), having="gates.jsonl")],
            on_status=on_status,
            on_batch=on_batch,
            **values,
        )
        result = analysis.measure(request)
        if out is not None:
            write_result(out, result)
    if out is not None:
        if not gated:
            result = read_result(out / f"{analysis.name}.json")  # with the digits that are stored
        write_shown(analysis, result, out, ("png", "svg", *(("tex",) if gated else ())))
    if out is None or gated:
        say(markdown(analysis, result), nl=False)
        return
    terminal.print("\n".join(analysis.show.findings(result)), soft_wrap=True, highlight=False, markup=False)
    terminal.print(f"written: {out}", soft_wrap=True)


def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="That an analysis wrote.")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="For the figures (DIR itself, if not given).")] = None,
    formats: Annotated[str, typer.Option("--format", help="png, svg, pdf, with commas between.")] = "pdf",
    width: Width = None,
    font_size: FontSize = 11,
    title: Title = True,
) -> None:
    """Figures ANALYSIS-FIGURE and ANALYSIS.md of every Result in a folder, without measuring anything again.

    With --width and --font-size words keep their size and panels give way, so that a figure fits the column of a paper.
    """
    from mtlprune.figures.charts import FORMATS, Style
    from mtlprune.reports.analyses import write_shown

    asked = chosen_formats(formats, FORMATS)
    results = results_in(folder)
    make_room(out or folder)
    for name, result in results.items():
        write_shown(find(name), result, out or folder, asked, Style(width, font_size, title))
    say(f"written: {out or folder}")
