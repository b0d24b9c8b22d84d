"""mtlprune probe: what every head knows, before and after fine-tuning, with controls beside it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from mtlprune.analyses.probes.results import Results
    from mtlprune.config.config import Config


class Mode(str, Enum):
    sound = "sound"
    released = "as-released"
    both = "both"


class Heights(str, Enum):
    lowest = "lowest"
    all = "all"
    each = "each"


def probe(
    names: Annotated[
        list[str],
        typer.Argument(metavar="RUN_OR_ENCODER", help="Runs, sweeps, encoder names or folders.", show_default=False),
    ],
    corpus: Annotated[Path, typer.Option(help="Folder of a corpus.", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="DIR", help="For probes.parquet and probes.json.", show_default=False)],
    mode: Annotated[
        Mode, typer.Option(help="sound: train makes centroids, dev chooses heads; as-released: test does both.")
    ] = Mode.sound,
    train_sentences: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Of train, at random (all, if not given).")
    ] = None,
    few: Annotated[int, typer.Option(min=1, help="Labels with fewer test items are marked.")] = 20,
    con_heights: Annotated[
        Heights, typer.Option(help="Phrases of words only; of every height; or every height a label of its own.")
    ] = Heights.lowest,
    random_encoder: Annotated[bool, typer.Option(help="Also probe each encoder with random weights.")] = True,
    seed: Annotated[int, typer.Option(min=0, help="Of shuffled labels, random weights and --train-sentences.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
) -> None:
    """Probe all heads of encoders and runs for all five tasks, without training anything.

    DEP and SRL by what words attend to most; POS, NER and CON by the nearest centroid of what heads say. Beside each
    result: the same encoder with random weights, shuffled labels, the best fixed offset, and chance.
    """
    from mtlprune.cli.check import check_corpora

    check_corpora(corpus)

    from mtlprune.analyses.probes.probing import ProbeRequest
    from mtlprune.analyses.probes.probing import probe as run
    from mtlprune.analyses.probes.survey import MODES
    from mtlprune.cli.console import console
    from mtlprune.cli.progress import counted
    from mtlprune.files import make_room
    from mtlprune.sweeps.folder import expanded

    make_room(out)
    request = ProbeRequest(
        tuple(str(name) for name in expanded(names)),
        corpus,
        MODES if mode is Mode.both else (mode.value,),
        train_sentences,
        few,
        con_heights.value,  # type: ignore[arg-type]
        random_encoder,
        seed,
        device,
    )
    terminal = console()
    with counted() as (say, tick):
        results = run(request, say, tick)
    results.write(out)
    terminal.print(_table(results))
    for note in _notes(results):
        terminal.print(note, soft_wrap=True, highlight=False)
    terminal.print(f"written: {out}", soft_wrap=True)


def _table(results: Results) -> Table:
    """Means over labels with enough items."""
    from rich.table import Table

    table = Table(title=f"mean over labels of at least {results.few} test items, percent", title_justify="left")
    for column in ("mode", "encoder", "task"):
        table.add_column(column)
    for column in ("labels", "best head", "best control", "gain", "labels with gain"):
        table.add_column(column, justify="right")
    for row in results.means():
        numbers = f"{row['test']:.2f}", f"{row['control']:.2f}", f"{row['gain']:+.2f}"
        words = row["mode"], f"{row['encoder']}, seed {row['seed']}", row["task"]
        table.add_row(*words, str(row["labels"]), *numbers, str(row["gained"]))
    return table


def _notes(results: Results) -> Iterator[str]:
    for split, numbers in results.head["splits"].items():
        if numbers["too_long"]:
            words = f"{numbers['too_long']} sentences of {split} are left out: an encoder cannot see them at once"
            yield f"note: {words} (attention between windows does not exist)"
    yield "dep root is left out of means: it is scored by attention to [CLS], where attention rests anyway"


def bench_probes(settings: Config, trained: Path | None, rounds: int, out: Path | None) -> None:
    """What ``mtlprune bench --probes`` does: the encoder of a configuration (or of a run) on its corpus's dev."""

    from rich.table import Table

    from mtlprune.analyses.probes.benchmark import measure
    from mtlprune.cli.console import console
    from mtlprune.cli.progress import counted
    from mtlprune.files import write_json

    encoder = settings.encoder.name if trained is None else str(trained)
    threads = settings.train.threads or 1
    with counted(2) as (_, tick):
        cost = measure(encoder, Path(settings.data.path), rounds, threads, tick)
    title = f"{encoder}, {cost.heads} heads, dev of {settings.data.path}: {cost.sentences} sentences, {threads} threads"
    table = Table(title=title)
    for column in ("", "processor seconds", "ratio", "all / twice half"):
        table.add_column(column, justify="left" if not column else "right")
    ratios, growth = cost.ratios(), cost.growth()
    for kind, seconds in cost.seconds.items():
        table.add_row(kind, f"{seconds:.2f}", f"{ratios[kind]:.3f}", f"{growth[kind]:.2f}")
    console().print(table)
    console().print(f"peak memory of both passes in a fresh process: {cost.memory / 1e9:.2f} GB")
    if out is not None:
        figures = {"seconds": cost.seconds, "ratios": ratios, "growth": growth, "memory": cost.memory}
        write_json(out, figures)
