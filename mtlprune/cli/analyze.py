"""`mtlprune analyze`: runs the analyses that mtlprune.analyses registers, and writes or prints their results."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtlprune.analyses import ANALYSES
from mtlprune.analyses.analysis import Analysis, Request, find, read, results_in
from mtlprune.cli.console import (
    ADVANCED,
    Device,
    Width,
    chosen_formats,
    console,
    named_runs,
    paper_style,
    say,
    seen_from_here,
    show_result,
    shown_log,
)
from mtlprune.config import nearest
from mtlprune.corpora.store import read_info
from mtlprune.errors import command
from mtlprune.io.block import Block, explanations
from mtlprune.io.files import RunError, make_room
from mtlprune.io.plugins import PluginError

if TYPE_CHECKING:
    from mtlprune.figures.charts import Style
    from mtlprune.runs.results import Result

_FORMATS = ("png", "svg", "pdf", "tex")
SETTING = re.compile(r"[a-z_]+=")

_Formats = Annotated[
    str,
    typer.Option(
        "--format",
        help="Formats of figures (png, svg, pdf) and tables (tex), separated by commas.",
        rich_help_panel=ADVANCED,
    ),
]
_Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for JSON, Markdown, tables and figures.")]
_Seed = Annotated[int, typer.Option(min=0, help="Random seed for samples and permutations.", rich_help_panel=ADVANCED)]


def analyze(
    name: Annotated[str | None, typer.Argument(help="Name of an analysis in the list above, or show.")] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN_OR_ENCODER|KEY=VALUE",
            help="Runs and encoders that are analysed, and settings of the analysis.",
        ),
    ] = None,
    corpus: Annotated[
        list[Path] | None,
        typer.Option(
            "--corpus",
            "--data",
            metavar="DIR",
            help="Folder of a corpus. Repeatable for smoothing, which compares corpora.",
        ),
    ] = None,
    out: _Out = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Split that is analysed (dev, if not given), or on which runs are scored (test, if not given)."
        ),
    ] = None,
    sentences: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Number of random sentences of the split (all, if not given)."),
    ] = None,
    claims: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RUN",
            help="Runs with gates whose claimed heads are used, or a pattern of runs in quotes. Repeatable.",
        ),
    ] = None,
    seed: _Seed = 0,
    device: Device = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Number of processes that share the runs and the cores.")
    ] = None,
    format_: _Formats = "png,svg,tex",
    width: Width = None,
) -> None:
    style, formats = paper_style(width), chosen_formats(format_, _FORMATS)
    if name is None:
        say(_list_analyses())
    elif name == "show":
        _show(results_in(_folder(words or ())), out, formats, style)
    elif not words:
        help_command = command("analyze", _find_analysis(name).name, "--help")
        raise RunError(
            f"analyze {name}: expected runs or encoders, found none; `{help_command}` describes the analysis"
        )
    else:
        analysis = _find_analysis(name)
        settings = [word for word in words if SETTING.match(word) and not Path(word).exists()]
        names, options = [word for word in words if word not in settings], _options(analysis, settings)
        all_options = dict[str, Any](
            corpus=corpus, split=split, sentences=sentences, claims=claims, device=device, jobs=jobs
        )
        given_options = {key: value for key, value in all_options.items() if value not in (None, [])}
        _refuse_expanded(name, names)
        result = _run(analysis, names, options, given_options, out, seed)
        if out is not None:
            _show({name: result}, out, formats, style)


def _list_analyses() -> str:
    """Return one line for each analysis, with its name and its question."""
    lines = []
    for name in ANALYSES:
        try:
            lines.append(f"{name:<14}{find(name).question}")
        except PluginError as error:
            lines.append(f"{name:<14}{error}")
    return "\n".join(
        [*lines, f"{'show':<14}Print the tables in DIR, or draw its figures again, such as for a paper (--out)."]
    )


HELP = f"""Measure heads, encoders and runs, write tables and figures into --out, and print the findings.

`mtlprune analyze NAME --help` describes an analysis, and lists its options, its settings (KEY=VALUE) and the columns of
the tables that it writes.

\b
{_list_analyses()}
"""


def described(analysis: Analysis) -> str:
    """Return the help of an analysis: usage, description, options, settings with defaults, columns of its frames."""
    argument = "RUN" if analysis.needs & {"scores", "runs", "decoders"} else "RUN_OR_ENCODER"
    lines = [
        f"Usage: {command('analyze', analysis.name)} [{argument}]... [KEY=VALUE]... [OPTIONS]",
        "",
        re.sub(r"\n +", "\n", analysis.help),
        "",
        "Options: " + ", ".join(f"--{option}" for option in options_taken(analysis)),
    ]
    texts, fields = explanations(analysis.options), analysis.options.model_fields
    lines += ["", "Settings:"] if fields else []
    for name, field in fields.items():
        default = "needed" if field.is_required() else "" if field.default in (None, [], ()) else f"{field.default}"
        lines.append(f"  {name}={default.lower() if isinstance(field.default, bool) else default}\n      {texts[name]}")
    for name, frame in analysis.declared.frames.items():
        lines += ["", f"{analysis.name}-{name}.parquet: {frame.meaning}"]
        lines += [f"  {column:<20}{meaning}{', key' * (kind == 'key')}" for column, kind, meaning in frame.rows()]
    return "\n".join(lines)


def options_taken(analysis: Analysis) -> list[str]:
    """Return the names of the options of `mtlprune analyze` that have an effect on an analysis."""
    needs = analysis.needs
    one_split = needs & {"sentences", "scores"} or ("encoders" in needs and not needs & {"splits", "generated"})
    options = {
        "corpus": needs & {"encoders", "sentences"},
        "split": one_split,
        "sentences": one_split and "scores" not in needs,
        "claims": "claims" in needs,
        "device": "encoders" in needs,
        "jobs": "processes" in needs,
        "seed": "sentences" not in needs,
    }
    return [name for name, has_effect in options.items() if has_effect]


def _find_analysis(name: str) -> Analysis:
    if name not in ANALYSES:
        raise RunError(
            f"analyze: expected show or one of {', '.join(ANALYSES)}, found {name!r}{nearest(name, ANALYSES)}"
        )
    return find(name)


def _refuse_expanded(name: str, names: Sequence[str]) -> None:
    """Refuse what a shell makes of a pattern without quotes: one run for --claims, and others to be read."""
    for option, first, second in zip(sys.argv, sys.argv[1:], sys.argv[2:], strict=False):
        same_folder = option == "--claims" and second in names and Path(first).parent == Path(second).parent
        if same_folder and (Path(second) / "gates.jsonl").is_file():
            raise RunError(
                f"analyze {name}: expected one run or pattern after --claims, found {first} and {second}; put a "
                "pattern in quotes (--claims 'runs/x-*'), and name the runs that are read before --claims"
            )


def _options(analysis: Analysis, settings: Sequence[str]) -> Block:
    """The settings of an analysis from KEY=VALUE. Raises ConfigError."""
    if not settings and not any(field.is_required() for field in analysis.options.model_fields.values()):
        return analysis.options()

    from mtlprune.config import apply_override
    from mtlprune.config.config import validated

    tree: dict[str, Any] = {}
    for setting in settings:
        apply_override(tree, setting)
    return validated(analysis.options, tree, f"analyze {analysis.name}", settings)


def _check_options(analysis: Analysis, given_options: Mapping[str, Any]) -> None:
    """Raise RunError if an option has no effect on the analysis, or if the corpora are missing or unsuitable."""
    if unused := [option for option in given_options if option not in options_taken(analysis)]:
        raise RunError(f"analyze {analysis.name}: --{unused[0]} has no effect on this analysis; leave it out")
    corpora = given_options.get("corpus", [])
    if not corpora and "encoders" in analysis.needs:
        raise RunError(
            f"analyze {analysis.name}: expected --corpus DIR, found none; name the corpus whose sentences are read"
        )
    if len(corpora) > 1 and "corpora" not in analysis.needs:
        raise RunError(
            f"analyze {analysis.name}: expected one --corpus, found {len(corpora)}; run the command once for each "
            "corpus"
        )
    called = [read_info(path)["name"] for path in corpora]
    if len(set(called)) < len(called):
        raise RunError(f"--corpus: expected corpora of different names, found {', '.join(called)}")


def _run(
    analysis: Analysis,
    names: Sequence[str],
    options: Block,
    given_options: dict[str, Any],
    out: Path | None,
    seed: int = 0,
) -> Result:
    """Run an analysis and return its result.

    With ``out``, the result is written to this folder and its findings are printed. Without ``out``, all tables and
    findings are printed as Markdown.

    Args:
        names: runs or encoders.
        options: settings of the analysis.
        given_options: options of the command that the user gave, by name. They become fields of the Request.

    Raises:
        RunError: an option has no effect on the analysis, or the corpora are missing or unsuitable.
    """
    _check_options(analysis, given_options)
    corpora = given_options.pop("corpus", [])
    given_options |= {"corpus": corpora[0] if corpora else Path(), "further": corpora[1:]}

    from mtlprune.cli.display import count_steps
    from mtlprune.runs.results import write_result
    from mtlprune.sweeps.folder import expanded

    gated = "gates.jsonl" if "runs" in analysis.needs else ""
    if out is not None:
        make_room(out)
    terminal = console(stderr=True)
    jobs = given_options.pop("jobs", 1)
    with contextlib.ExitStack() as contexts:
        on_status, on_batch = contexts.enter_context(count_steps(bar=terminal))
        contexts.enter_context(shown_log(terminal))
        if jobs > 1:
            from mtlprune.analyses.harness.processes import processes
            from mtlprune.sweeps.pool import cores

            callbacks = {"on_status": on_status, "on_batch": on_batch}
            given_options["pool"] = contexts.enter_context(processes(jobs, max(1, cores() // jobs), **callbacks))
        given_options["claims"] = [
            Path(path) for path in expanded(seen_from_here(given_options.get("claims")), having="gates.jsonl")
        ]
        given_options.setdefault("split", "test" if "scores" in analysis.needs else "dev")
        # Only analyses of scores require runs. The names given to other analyses may be encoders, which are no runs.
        if "scores" in analysis.needs:
            paths = [folder.path for folder in named_runs(seen_from_here(names), gated)]
        else:
            paths = expanded(seen_from_here(names), gated)
        if out is not None and "processes" in analysis.needs:
            given_options["store"] = out / f".unfinished-{analysis.name}"
            if given_options["store"].exists():
                # Their files have other names if the code of mtlprune has changed since.
                terminal.print(
                    "Evaluations that an interrupted command made with this version of mtlprune and these runs are not "
                    "made again."
                )
        request = Request(
            list(map(str, paths)), options=options, seed=seed, on_status=on_status, on_batch=on_batch, **given_options
        )
        result = analysis.measure(request)
    if out is None:
        show_result(analysis, result)
        return result
    write_result(out, result)
    if request.store is not None:
        shutil.rmtree(request.store, ignore_errors=True)
    if not gated:
        result = read(out, analysis.name)  # read again, so that findings use the rounded numbers of the file
    console().print("\n".join(analysis.show.findings(result)), soft_wrap=True, highlight=False, markup=False)
    return result


def _folder(words: Sequence[str]) -> Path:
    if len(words) != 1:
        raise RunError(
            f"analyze show: expected one folder that an analysis wrote, found {len(words)} names; give one folder"
        )
    return Path(words[0])


def _show(results: dict[str, Result], out: Path | None, formats: Sequence[str], style: Style) -> None:
    """Print the tables of results, or write their figures and Markdown to a folder. Nothing is measured again."""
    from mtlprune.reports.analyses import write_shown

    if out is None:
        for name, result in results.items():
            show_result(find(name), result)
        return
    make_room(out)
    for name, result in results.items():
        write_shown(find(name), result, out, formats, style)
    say(f"written: {out}")
