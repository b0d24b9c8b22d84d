"""mtlprune bench: what training and evaluation cost beside the bare encoder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtlprune.cli.console import Overrides, new_table

if TYPE_CHECKING:
    from rich.table import Table

    from mtlprune.config.config import Config
    from mtlprune.training.benchmark import Measured


def bench(
    config: Annotated[str, typer.Argument(help="Configuration file, preset, or a finished run.")],
    overrides: Overrides = None,
    batches: Annotated[int, typer.Option(min=1, help="Training batches, spread over an epoch.")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions; the fastest of each batch counts.")] = 3,
    memory: Annotated[bool, typer.Option(help="Also train in a fresh process and report its peak memory.")] = True,
    probes: Annotated[
        bool, typer.Option("--probes", help="Measure probing of dev beside the eager forward pass instead.")
    ] = False,
    analyses: Annotated[
        bool, typer.Option("--analyses", help="Measure the four analyses of mtlprune analyze on dev instead.")
    ] = False,
    sentences: Annotated[int, typer.Option(metavar="N", min=2, help="Of dev, for --analyses.")] = 1000,
    out: Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")] = None,
) -> None:
    """Measure STL, MTL, sampled mixing and evaluation as multiples of the bare encoder, interleaved in one run.

    Decoding new weights costs more than decoding trained ones, whose predictions hang together: for the speed of
    evaluation give a finished run.
    """
    from mtlprune.cli.check import check_settings
    from mtlprune.cli.console import console
    from mtlprune.cli.progress import counted
    from mtlprune.config import ConfigError
    from mtlprune.files import write_json

    if probes and analyses:
        raise ConfigError("--probes and --analyses are two measurements; ask for one at a time")
    trained = Path(config) if (Path(config) / "config.yaml").is_file() else None
    source = config if trained is None else trained / "config.yaml"
    check_settings(source, overrides or ())

    from mtlprune.config.config import load_config

    settings = load_config(source, overrides or [])
    if probes:
        return _bench_probes(settings, trained, rounds, out)
    if analyses:
        from mtlprune.cli.bench_analyses import bench_analyses

        return bench_analyses(settings, trained, sentences, out)
    from mtlprune.training.benchmark import measure

    terminal = console()
    with counted(rounds * (batches + 1)) as (_, on_batch):
        result = measure(settings, batches, rounds, memory, on_batch=on_batch, trained=trained)
    title = f"{settings.encoder.name} on {settings.data.path}"
    terminal.print(_figures_table(result, title))
    if result.memory:
        terminal.print(f"peak memory of MTL training in a fresh process: {result.memory / 1e9:.2f} GB")
    if out is not None:
        figures = {
            "settings": result.settings,
            "ratios": result.ratios(),
            "steps": result.steps,
            "memory": result.memory,
        }
        write_json(out, figures)


def _figures_table(result: Measured, title: str) -> Table:
    """Seconds, sentences a second and ratios: of steps, of epochs, of evaluation."""
    how = ", ".join(f"{key} {value}" for key, value in result.settings.items())
    table = new_table(f"{title}: {how}", "", ">seconds", ">sentences/s", ">ratio")
    ratios = result.ratios()
    for kind, seconds in result.steps.items():
        table.add_row(kind, f"{seconds:.2f}", f"{result.sentences / seconds:.0f}", f"{ratios[kind]:.3f}")
    for kind in (kind for kind in ratios if kind.endswith("gated / ungated")):
        table.add_row(kind, "", "", f"{ratios[kind]:.3f}")
    table.add_section()
    for kind, seconds in (("joint epoch", result.joint_epoch), ("sampled epoch", result.sampled_epoch)):
        table.add_row(f"{kind}, estimated from steps", f"{seconds:.1f}", "", f"{seconds / result.joint_epoch:.3f}")
    table.add_section()
    for kind, seconds in (("bare forward over dev", result.bare_forward), ("evaluation, all tasks", result.evaluation)):
        ratio = seconds / result.bare_forward
        table.add_row(kind, f"{seconds:.2f}", f"{result.dev_sentences / seconds:.0f}", f"{ratio:.3f}")
    return table


def _bench_probes(settings: Config, trained: Path | None, rounds: int, out: Path | None) -> None:
    """With ``--probes``: the encoder of a configuration (or of a run) on its corpus's dev."""
    from mtlprune.analyses.probes.benchmark import measure
    from mtlprune.cli.console import console
    from mtlprune.cli.progress import counted
    from mtlprune.files import write_json

    encoder = settings.encoder.name if trained is None else str(trained)
    threads = settings.train.threads or 1
    with counted(2) as (_, on_batch):
        cost = measure(encoder, Path(settings.data.path), rounds, threads, on_batch)
    title = f"{encoder}, {cost.heads} heads, dev of {settings.data.path}: {cost.sentences} sentences, {threads} threads"
    table = new_table(title, "", ">processor seconds", ">ratio", ">all / twice half")
    ratios, growth = cost.ratios(), cost.growth()
    for kind, seconds in cost.seconds.items():
        table.add_row(kind, f"{seconds:.2f}", f"{ratios[kind]:.3f}", f"{growth[kind]:.2f}")
    console().print(table)
    console().print(f"peak memory of both passes in a fresh process: {cost.memory / 1e9:.2f} GB")
    if out is not None:
        figures = {"seconds": cost.seconds, "ratios": ratios, "growth": growth, "memory": cost.memory}
        write_json(out, figures)
