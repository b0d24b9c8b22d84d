"""The command of an analysis, from its record: what it reads, its own options, and what all analyses ask for alike."""

from __future__ import annotations

from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from mtlprune.analyses.analysis import Analysis, Request
from mtlprune.cli.analyze.lens_options import Claims, Corpus, Device, Names, Out, Sentences, Split

SEED = Annotated[int, typer.Option(min=0, help="Of samples and permutations.")]
NEEDED: dict[str, dict[str, tuple[Any, Any]]] = {
    "encoders": {"names": (Names, ...), "corpus": (Corpus, ...), "out": (Out, ...), "split": (Split, "dev")},
    "claims": {"claims": (Claims, None)},
}
"""What an analysis can need → parameters, their types and defaults."""


def command(name: str, analysis: Analysis) -> Any:
    """The command of ``mtlprune analyze`` with this name."""
    parameters = dict(NEEDED["encoders"]) | {"sentences": (Sentences, None)}
    if "splits" in analysis.needs:
        del parameters["split"], parameters["sentences"]
    parameters |= NEEDED["claims"] if "claims" in analysis.needs else {}
    parameters |= {key: (_option(field), field.default) for key, field in analysis.options.model_fields.items()}
    parameters |= {"seed": (SEED, 0), "device": (Device, "cpu")}

    def call(**values: Any) -> None:
        run(analysis, **values)

    call.__doc__ = analysis.help
    call.__annotations__ = {key: kind for key, (kind, _) in parameters.items()}
    call.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(
                key, Parameter.KEYWORD_ONLY, default=Parameter.empty if default is ... else default, annotation=kind
            )
            for key, (kind, default) in parameters.items()
        ]
    )
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(name, short_help=analysis.question)(call)
    return typer.main.get_command(app)


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
    corpus: Path,
    out: Path,
    claims: list[Path] | None = None,
    **values: Any,
) -> None:
    """Measure, write the Result, its Markdown and figures into ``out``, and say what was found.

    Args:
        values: the rest of a Request, and the analysis's own settings.
    """
    from mtlprune.cli.early import check_corpora

    check_corpora(corpus)

    from mtlprune.cli.console import console
    from mtlprune.cli.progress import counted
    from mtlprune.files import make_room
    from mtlprune.reports.analyses import write_shown
    from mtlprune.results import read_result, write_result
    from mtlprune.sweeps.folder import expanded

    make_room(out)
    own = {key: values.pop(key) for key in analysis.options.model_fields if key in values}
    terminal = console()
    with counted() as (say, tick):
        request = Request(
            [str(name) for name in expanded(names)],
            corpus,
            analysis.options(**own),
            claims=claims or (),
            on_status=say,
            on_batch=tick,
            **values,
        )
        write_result(out, analysis.measure(request))
    result = read_result(out / f"{analysis.name}.json")  # with the digits that are stored
    write_shown(analysis, result, out)
    terminal.print("\n".join(analysis.show.findings(result)), soft_wrap=True, highlight=False, markup=False)
    terminal.print(f"written: {out}", soft_wrap=True)
