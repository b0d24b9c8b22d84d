"""Write the pages of docs/ that are generated from the code, and the outputs of the notebook: python docs/generate.py

PAGES lists the pages and the functions that generate them. tests/test_docs.py compares them with the committed pages.
"""

import ast
import contextlib
import copy
import inspect
import json
import os
import re
import runpy
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

import mtlprune
from mtlprune.encoder.abilities import Abilities, table
from mtlprune.figures.maps import GateMap
from mtlprune.model import MultiTaskModel
from mtlprune.reports.scores.tables import Comparison
from mtlprune.runs.results import Result
from mtlprune.sentence import Dependencies, Predicate, Span

DOCS = Path(__file__).parent
reference = runpy.run_path(str(DOCS / "reference.py"))
READERS = ("existing", "config", "read_manifest", "read_best", "read_metrics", "gates", "best_gates", "splits")
CLASSES: dict[Any, tuple[str, ...]] = {
    mtlprune.RunFolder: (*READERS, "read_scores", "read_counts", "read_predictions"),
    MultiTaskModel: ("parse", "annotate"),
    mtlprune.Sentence: ("get", "kinds", "layers", "bare", "with_layers", "validate"),
    Span: (),
    Dependencies: (),
    Predicate: (),
    Comparison: ("frame",),
    GateMap: ("spec",),
    Result: ("with_names", "wide", "rows_with_measure", "grids"),
}
"""The classes that functions of the API return, and their public members."""


def api() -> str:
    """Return the page on the Python API, with a line for each function and class."""
    lines = [
        "# Python API",
        "",
        "`python docs/generate.py` makes this page from the code. [notebook.ipynb](../start/notebook.ipynb) shows "
        "these functions in use, and",
        "`help(mtlprune.RunFolder.gates)` explains more. Invalid input raises `mtlprune.errors.MtlpruneError`.",
        "",
    ]
    lines += [
        entry(name, function) for name in mtlprune.__all__ if inspect.isfunction(function := getattr(mtlprune, name))
    ]
    for kind, members in CLASSES.items():
        module = "mtlprune" if kind.__name__ in mtlprune.__all__ else kind.__module__
        attributes = [(name, getattr(kind, name)) for name in members]
        called = ", ".join(f"`{name}{signature(it)[0] if callable(it) else ''}`" for name, it in attributes)
        lines += [f"- `{module}.{kind.__name__}`: {first(kind)}" + (f" Members: {called}" if called else "")]
    return "\n".join(lines) + "\n"


def families() -> str:
    """Return the page on encoders with a new table of families, where families with equal abilities share a line."""
    families_by_abilities: dict[tuple[str, ...], list[str]] = {}
    for family, *abilities in table():
        families_by_abilities.setdefault(tuple(abilities), []).append(f"`{family}`")
    rows = [("families", *Abilities._fields[1:]), ("---",) * len(Abilities._fields)]
    rows += [(", ".join(names), *abilities) for abilities, names in families_by_abilities.items()]
    lines = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    text = (DOCS / "reference/encoder.md").read_text(encoding="utf-8")
    start, end = "<!-- families: python docs/generate.py -->\n", "<!-- end of families -->"
    return text.partition(start)[0] + start + lines + end + text.partition(end)[2]


def papers() -> str:
    """Return the page on the source papers, with a table for each paper from docs/papers.yaml."""
    lines = [
        "# The source papers, row by row",
        "",
        "Each experiment, figure and measure of the five papers is listed with a command, a documentation page and a",
        "result of this repository, or with the reason why one of them is missing. `python docs/generate.py` makes",
        "this page from [papers.yaml](../papers.yaml). A test checks that commands are valid and results exist.",
        "If a row is removed, the [changelog](../../CHANGELOG.md) lists it under *Gone from a source paper*.",
    ]
    for paper in yaml.safe_load((DOCS / "papers.yaml").read_text(encoding="utf-8")):
        lines += ["", f"## {paper['paper']}", "", f"<{paper['link']}>. {paper['about']}", ""]
        lines += ["| experiment, figure or measure | command | result | where we differ |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(cells(row))} |" for row in paper["rows"]]
    return "\n".join(lines) + "\n"


def cells(row: dict[str, Any]) -> list[str]:
    """Return the cells of a row on an experiment of a paper, with several commands or results on separate lines."""
    subject = f"[{row['what']}]({os.path.relpath(row['page'], 'reference')})" if "page" in row else row["what"]
    commands = "<br>".join(f"`{command}`" for command in several(row.get("command")))
    results = "<br>".join(f"[{path.removeprefix('results/')}](../../{path})" for path in several(row.get("result")))
    return [subject, commands or "–", results or "–", row.get("missing") or row["differs"]]


def several(value: str | list[str] | None) -> list[str]:
    """Return one value, several values or no value as a list."""
    return [value] if isinstance(value, str) else value or []


def entry(name: str, function: Any) -> str:
    """Return a line with a function's signature and the first paragraph of its docstring."""
    return f"- `{name}{' → '.join(signature(function))}`: {first(function)}"


def first(member: Any) -> str:
    """Return the first paragraph of a docstring on one line, without the sentence on errors."""
    paragraph = re.sub("``|:meth:`", "`", inspect.getdoc(member) or "").partition("\n\n")[0].replace("\n", " ")
    return paragraph.partition(" Raises ")[0]


def signature(function: Any) -> tuple[str, str]:
    """Return the parameters with their defaults, and the return type as it is written in the source."""
    call_signature = inspect.signature(function)
    bare = [
        parameter.replace(annotation=parameter.empty)
        for name, parameter in call_signature.parameters.items()
        if name != "self"
    ]
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    returned = ast.unparse(definition.returns).strip("'")  # type: ignore[attr-defined]
    return str(call_signature.replace(parameters=bare, return_annotation=call_signature.empty)), returned


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """Run the cells of a notebook in docs/start/ and return a copy of it with the outputs.

    An error in a cell is raised.
    """
    copied, names = copy.deepcopy(notebook), {}
    with inside(DOCS / "start"):
        for number, cell in enumerate(
            (candidate for candidate in copied["cells"] if candidate["cell_type"] == "code"), 1
        ):
            *body, last = ast.parse("".join(cell["source"])).body
            shown = ast.Expression(last.value) if isinstance(last, ast.Expr) else None
            exec(compile(ast.Module(body if shown else [*body, last], []), "notebook", "exec"), names)
            value = eval(compile(shown, "notebook", "eval"), names) if shown else None
            data = {"text/plain": repr(value)}
            if hasattr(value, "_repr_html_"):
                data = {"text/html": value._repr_html_(), **data}
            result = {"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data}
            cell |= {"execution_count": number, "outputs": [] if value is None else [result]}
    return copied


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Change the working directory inside the block, as contextlib.chdir, which Python 3.10 does not have."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


PAGES: dict[str, Callable[[], str]] = {
    "reference/papers.md": papers,
    "reference/api.md": api,
    "reference/commands.md": reference["commands"],
    "reference/encoder.md": families,
    "reference/frames.md": reference["analyses"],
    "reference/settings.md": reference["settings"],
}
"""The function that generates each page in docs/."""


def main() -> None:
    for page, make in PAGES.items():
        (DOCS / page).write_text(make(), encoding="utf-8")
    path = DOCS / "start/notebook.ipynb"
    notebook = executed(json.loads(path.read_text(encoding="utf-8")))
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
