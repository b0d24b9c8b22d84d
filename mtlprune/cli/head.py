"""mtlprune head: one head, with what it knows, who claims it, and its attention in sentences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtlprune.cli.console import say

if TYPE_CHECKING:
    from mtlprune.analyses.probes.show.card import HeadCard, Known
    from mtlprune.analyses.probes.show.results import ProbeResults
    from mtlprune.analyses.subjects import Subject

ENDINGS = (".html", ".svg", ".png")
BEST_OF = 5
"""A head shows what it knows where it is among so many best ones."""
SPECIAL = ("[start]", "[end]")


def head(
    encoder: Annotated[
        str, typer.Argument(metavar="RUN_OR_ENCODER", help="A run folder, or an encoder by name.", show_default=False)
    ],
    layer: Annotated[int, typer.Argument(help="From 1.", show_default=False)],
    head: Annotated[int, typer.Argument(help="From 1, in the encoder's original numbering.", show_default=False)],
    probes: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="What mtlprune probe wrote: what the head knows.", show_default=False),
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Sentences come from here; else the run's corpus.", show_default=False),
    ] = None,
    claims: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN", help="A run with gates: does it claim the head? Repeatable.", show_default=False),
    ] = None,
    gates_of: Annotated[
        str | None,
        typer.Option(metavar="TASK", help="Of a run with a gate set a task: whose gates to apply.", show_default=False),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(metavar="WORDS", help="A sentence of your own, words apart by blanks.", show_default=False),
    ] = None,
    sentences: Annotated[int, typer.Option(min=1, max=24, help="How many sentences.")] = 4,
    split: Annotated[str, typer.Option(help="Of the corpus.")] = "dev",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also a page (.html) or a picture (.svg, .png).", show_default=False),
    ] = None,
) -> None:
    """Show one head: what it knows best, which tasks claim it, and example sentences with its attention drawn.

    One table of all heads instead: mtlprune heads RUN...
    """
    _check(layer, head, out)

    from mtlprune.analyses.probes.show import card as shown
    from mtlprune.analyses.probes.show.attention import Example
    from mtlprune.analyses.probes.show.reading import read_probes
    from mtlprune.claimed_heads import load_claims

    results = read_probes([probes]) if probes is not None else None
    claimed_by = shown.claimed(load_claims(claims), layer, head) if claims else []

    from mtlprune.analyses.heads.attention import candidates, chosen, number_in_layer, open_subject

    there, seen_in = candidates(encoder, corpus, text, split)
    subject = open_subject(encoder, gates_of)
    number_in_layer(subject, layer, head)
    rows, notes = _known(results, subject, layer, head)
    label = next(((row.task, row.label) for row in rows if _drawable(row)), None)
    found, how = chosen(subject, layer, head, there, label, sentences, text is not None)
    notes += [note] if (note := f"{how} {seen_in}".strip()) else []
    examples = [
        Example((SPECIAL[0], *one.words, SPECIAL[1]), weights, frozenset(pairs), "" if text is not None else one.id)
        for one, weights, pairs in found
    ]
    name = subject.name if subject.label == "pretrained" else f"{subject.name} ({subject.label}, seed {subject.seed})"
    card = shown.HeadCard(name, layer, head, rows, claimed_by, examples, notes)
    say(shown.text(card), nl=False)
    if out is not None:
        _write(card, out)
        say(f"\nwritten: {out}")


def _check(layer: int, head: int, out: Path | None) -> None:
    from mtlprune.files import RunError

    if layer < 1 or head < 1:
        raise RunError(f"layers and heads are counted from 1; found layer {layer}, head {head}")
    if out is None:
        return
    if out.suffix.lower() not in ENDINGS:
        raise RunError(f"--out: expected a file {', '.join(ENDINGS)}, found {out.name!r}")
    file = next((place for place in out.parents if place.exists() and not place.is_dir()), None)
    if out.is_dir() or file is not None:
        raise RunError(f"--out: {out} is a folder; name a file" if out.is_dir() else f"--out: {file} is a file")


def _drawable(row: Known) -> bool:
    """Whether a label that the head tells well is seen in its attention; root is not, being found at [CLS]."""
    from mtlprune.analyses.probes.show.results import ROOT

    attended = row.task in ("dep", "srl") and (row.task, row.label) != ROOT
    return attended and row.gain > 0 and not row.few and row.rank <= BEST_OF


def _known(results: ProbeResults | None, subject: Subject, layer: int, head: int) -> tuple[list[Known], list[str]]:
    """What the head knows, and what a reader should know of that."""
    from mtlprune.analyses.probes.show.card import known
    from mtlprune.files import RunError

    if results is None:
        return [], []
    if results.shape != (subject.encoder.places.layers, subject.encoder.places.heads):
        raise RunError(
            f"{results.folders[0]} holds results of {results.shape[0]} × {results.shape[1]} heads, but {subject.name} "
            f"has {subject.encoder.places.layers} × {subject.encoder.places.heads}; probe this encoder"
        )
    keys = [key for key in results.labels if (key.encoder, key.seed) == (subject.label, subject.seed)]
    if not keys:
        there = ", ".join(dict.fromkeys(f"{key.encoder} (seed {key.seed})" for key in results.labels))
        raise RunError(
            f"{results.folders[0]} holds no results of {subject.label}, seed {subject.seed} (there: {there}); probe it"
        )
    mode = "sound" if any(key.mode == "sound" for key in keys) else "as-released"
    notes = [f"Probes: {results.folders[0]}, {mode}."]
    probed = {results.runs[key] for key in keys}
    if not any(Path(name).resolve() == Path(subject.name).resolve() for name in probed):
        notes.append(f"Probed was {', '.join(sorted(probed))}; is it the same as {subject.name}?")
    return known(results, subject.label, subject.seed, mode, layer, head), notes


def _write(card: HeadCard, out: Path) -> None:
    from mtlprune.analyses.probes.show.card import html
    from mtlprune.files import write_bytes
    from mtlprune.reports.canvas_png import png
    from mtlprune.reports.canvas_svg import svg

    ending = out.suffix.lower()
    if ending == ".html":
        content = html(card).encode()
    else:
        content = svg(card.drawing()).encode() if ending == ".svg" else png(card.drawing(), 2)
    write_bytes(out, content)
