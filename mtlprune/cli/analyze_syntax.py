"""mtlprune analyze syntax: which heads attend along dependency arcs?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from mtlprune.analyses.pseudo_likelihood import MaskedLanguageModel
    from mtlprune.corpora.blimp import Paradigm


def syntax(
    names: Annotated[
        list[str],
        typer.Argument(metavar="RUN_OR_ENCODER", help="Run folders, encoder names or folders.", show_default=False),
    ],
    corpus: Annotated[Path, typer.Option(help="Folder of a corpus with trees.", show_default=False)],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="For syntax.json, .parquet, .md and figures.", show_default=False)
    ],
    split: Annotated[str, typer.Option(help="Of the corpus.")] = "dev",
    sentences: Annotated[
        int | None, typer.Option(metavar="N", min=2, help="Of the split, at random (all, if not given).")
    ] = None,
    blimp: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Also judge minimal pairs: data_scripts/blimp.py made it.", show_default=False
        ),
    ] = None,
    pairs: Annotated[
        int | None, typer.Option(min=1, help="Of each paradigm of BLiMP, the first so many (all, if not given).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of samples and halves.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
) -> None:
    """UAS of every head, relation and direction beside the best offset; sentence dimensions; minimal pairs.

    Heads are chosen on all sentences, as published, and on one half to be scored on the other.
    """
    from mtlprune.analyses.reading import read
    from mtlprune.analyses.syntax import with_trees
    from mtlprune.analyses.syntax_results import summary, write
    from mtlprune.analyses.syntax_survey import survey
    from mtlprune.cli.console import console
    from mtlprune.files import make_room

    make_room(out)
    terminal, bar = console(), console(stderr=True)
    models = _models(names, blimp) if blimp is not None else {}
    paradigms = _paradigms(blimp, pairs) if blimp is not None else []
    reading = read(names, corpus, split, sentences, seed)
    with_trees(reading.sentences)
    found = []
    with bar.status("reading") as status:
        for subject in reading.subjects(device):
            status.update(f"attention of {subject.label} ({subject.name})")
            found.append(survey(subject, reading, device))
        judged = {}
        for name, model in models.items():
            status.update(f"minimal pairs: {name}")
            judged[name] = model if isinstance(model, str) else _judged(model, paradigms, device)
    tree = summary(reading.head(), found, judged)
    write(out, tree, found)
    text = _report(out, tree)
    terminal.print(text, soft_wrap=True, highlight=False, markup=False)
    terminal.print(f"written: {out}", soft_wrap=True)


def _models(names: list[str], blimp: Path) -> dict[str, MaskedLanguageModel | str]:
    """By name the model, or why it cannot judge. Raises EncoderError where none can."""
    from mtlprune.analyses.pseudo_likelihood import MaskedLanguageModel
    from mtlprune.encoder.pieces import EncoderError

    found: dict[str, MaskedLanguageModel | str] = {}
    for name in names:
        try:
            found[name] = MaskedLanguageModel.load(name)
        except EncoderError as error:
            found[name] = str(error)
    if found and all(isinstance(model, str) for model in found.values()):
        raise EncoderError(f"--blimp {blimp}: none of these can judge minimal pairs: {next(iter(found.values()))}")
    return found


def _paradigms(blimp: Path, pairs: int | None) -> list[Paradigm]:
    from mtlprune.corpora.blimp import read_blimp

    return read_blimp(blimp, pairs)


def _judged(model: MaskedLanguageModel, paradigms: list[Paradigm], device: str) -> dict[str, Any]:
    from dataclasses import asdict

    from mtlprune.analyses.pseudo_likelihood import VARIANTS, judge

    model.model.to(device)  # type: ignore[arg-type]  # transformers annotates a device only
    return {variant: asdict(judge(model, paradigms, variant)) for variant in VARIANTS}  # type: ignore[arg-type]


def _report(out: Path, tree: dict[str, Any]) -> str:
    """Write tables and figures; return the tables."""
    from mtlprune.reports.canvas_png import png
    from mtlprune.reports.canvas_svg import svg
    from mtlprune.reports.syntax_figures import head_map, relation_panels
    from mtlprune.reports.syntax_tables import markdown, names
    from mtlprune.runs import replacing

    text = markdown(tree)
    with replacing(out / "syntax.md") as beside:
        beside.write_text(text, encoding="utf-8")
    drawings = {"relations": relation_panels(tree)}
    for place, name in enumerate(names(tree)):
        drawings[f"heads-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}"] = head_map(tree, place)
    for name, drawing in drawings.items():
        with replacing(out / f"{name}.png") as beside:
            beside.write_bytes(png(drawing, 2))
        with replacing(out / f"{name}.svg") as beside:
            beside.write_text(svg(drawing), encoding="utf-8")
    return text
