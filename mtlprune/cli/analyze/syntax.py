"""mtlprune analyze syntax: which heads attend along dependency arcs?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtlprune.cli.analyze.lens_options import Device, Names, Split

if TYPE_CHECKING:
    from mtlprune.analyses.syntax.pseudo_likelihood import MaskedLanguageModel
    from mtlprune.corpora.blimp import Paradigm


def syntax(
    names: Names,
    corpus: Annotated[Path, typer.Option(help="Folder of a corpus with trees.", show_default=False)],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="For syntax.json, .parquet, .md and figures.", show_default=False)
    ],
    split: Split = "dev",
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
    device: Device = "cpu",
) -> None:
    """UAS of every head, relation and direction beside the best offset; sentence dimensions; minimal pairs.

    Heads are chosen on all sentences, as published, and on one half to be scored on the other.
    """
    from mtlprune.cli.check import check_corpora

    check_corpora(corpus)

    from mtlprune.analyses.reading import read
    from mtlprune.analyses.syntax.results import summary, write
    from mtlprune.analyses.syntax.survey import survey
    from mtlprune.cli.console import console
    from mtlprune.encoder.arcs import with_trees
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
    from mtlprune.analyses.syntax.pseudo_likelihood import MaskedLanguageModel
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

    from mtlprune.analyses.syntax.pseudo_likelihood import VARIANTS, judge

    model.model.to(device)  # type: ignore[arg-type]  # transformers annotates a device only
    return {variant: asdict(judge(model, paradigms, variant)) for variant in VARIANTS}  # type: ignore[arg-type]


def _report(out: Path, tree: dict[str, Any]) -> str:
    """Write tables and figures; return the tables."""
    from mtlprune.analyses.syntax.show.figures import head_map, relation_panels
    from mtlprune.analyses.syntax.show.tables import markdown, names
    from mtlprune.reports.lens_files import write_lens

    text = markdown(tree)
    drawings = {"relations": relation_panels(tree)}
    for place, name in enumerate(names(tree)):
        drawings[f"heads-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}"] = head_map(tree, place)
    write_lens(out, "syntax", text, drawings)
    return text
