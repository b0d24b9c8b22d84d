"""mtlprune bench: what training and evaluation cost, compared with plain fine-tuning of the encoder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtlprune.cli.console import Overrides, console, new_table
from mtlprune.cli.display import count_steps
from mtlprune.corpora.store import read_info
from mtlprune.io.files import write_json

if TYPE_CHECKING:
    from rich.table import Table

    from mtlprune.training.benchmark import Measured


def bench(
    config: Annotated[str, typer.Argument(help="Configuration file, preset, or a finished run.")],
    overrides: Overrides = None,
    batches: Annotated[int, typer.Option(min=1, help="Training batches, spread over an epoch.")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions; the fastest of each batch counts.")] = 3,
    memory: Annotated[bool, typer.Option(help="Also train in a fresh process and report its peak memory.")] = True,
    out: Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")] = None,
) -> None:
    """Measure STL, MTL and evaluation as multiples of plain fine-tuning, interleaved in one run.

    A step of plain fine-tuning trains the whole encoder, all embedding rows included, with hardly a head on top.
    Evaluation is compared with a forward pass of the encoder.

    Decoding new weights costs more than decoding trained ones, whose predictions hang together: for the speed of
    evaluation give a finished run.
    """
    trained = Path(config) if (Path(config) / "config.yaml").is_file() else None
    source = config if trained is None else trained / "config.yaml"
    from mtlprune.config.config import load_config
    from mtlprune.training.benchmark import measure

    settings = load_config(source, overrides or [])
    read_info(Path(settings.data.path))
    with count_steps(rounds * (batches + 1)) as (_, on_batch):
        result = measure(settings, batches, rounds, memory, on_batch=on_batch, trained=trained)
    console().print(_table(result, f"{settings.encoder.name} on {settings.data.path}"))
    if result.memory:
        console().print(f"peak memory of MTL training in a fresh process: {result.memory / 1e9:.2f} GB")
    if out is not None:
        ratios = result.ratios()
        figures = {"settings": result.settings, "ratios": ratios, "steps": result.steps, "memory": result.memory}
        write_json(out, figures)


def _table(result: Measured, title: str) -> Table:
    """Seconds, sentences a second and ratios of steps and of evaluation."""
    settings = ", ".join(f"{key} {value}" for key, value in result.settings.items())
    table = new_table(f"{title}: {settings}", "", ">seconds", ">sentences/s", ">ratio")
    ratios = result.ratios()
    for kind, seconds in result.steps.items():
        table.add_row(kind, f"{seconds:.2f}", f"{result.sentences / seconds:.0f}", f"{ratios[kind]:.3f}")
    for kind in (kind for kind in ratios if kind.endswith("gated / ungated")):
        table.add_row(kind, "", "", f"{ratios[kind]:.3f}")
    table.add_section()
    for kind, seconds in (("bare forward over dev", result.bare_forward), ("evaluation, all tasks", result.evaluation)):
        ratio = seconds / result.bare_forward
        table.add_row(kind, f"{seconds:.2f}", f"{result.dev_sentences / seconds:.0f}", f"{ratio:.3f}")
    return table
