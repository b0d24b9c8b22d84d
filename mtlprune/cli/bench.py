"""`mtlprune bench`: measures the cost of training and evaluation, compared with plain fine-tuning of the encoder."""

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

    from mtlprune.training.benchmark import Measured, Ratio


def bench(
    config: Annotated[str, typer.Argument(help="Configuration file, preset, or a finished run.")],
    overrides: Overrides = None,
    batches: Annotated[int, typer.Option(min=1, help="Number of training batches, taken evenly from an epoch.")] = 20,
    rounds: Annotated[
        int, typer.Option(min=1, help="Number of repetitions. The median of the repetitions is reported.")
    ] = 3,
    memory: Annotated[bool, typer.Option(help="Also train in a new process and report its peak memory.")] = True,
    out: Annotated[Path | None, typer.Option(help="JSON file to which the numbers are also written.")] = None,
) -> None:
    """Compare the speed of single-task and joint training (STL, MTL) and of evaluation with that of plain fine-tuning.

    A step of plain fine-tuning trains the whole encoder, all embedding rows included, with a minimal output layer.
    Evaluation is compared with a forward pass of the encoder. The measurements are interleaved. Batches hold sentences
    of similar length. A second ratio compares with plain fine-tuning on as many random sentences per batch, which need
    more padding; Hugging Face's Trainer makes such batches by default.

    On a CPU, ratios compare processor seconds, which other work on the machine hardly affects. Brackets show the lowest
    and the highest ratio of a single round. If these two ratios differ by more than a fifth, no other ratio is printed.

    Decoding with new weights takes longer than decoding with trained weights, whose predictions are consistent. To
    measure the speed of evaluation, give a finished run.
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
        console().print(f"peak memory of MTL training in a new process: {result.memory / 1e9:.2f} GB")
    ratios = result.ratios()
    if disturbed_kinds := [kind for kind, ratio in ratios.items() if not ratio.is_steady]:
        console().print(
            f"{len(disturbed_kinds)} of {len(ratios)} ratios differ by more than a fifth between rounds, because other "
            "work disturbs this machine. Repeat the command with more --rounds, with train.threads=1, or when the "
            "machine is idle."
        )
    if out is not None:
        seconds = {kind: result.steps.seconds(kind) for kind in result.steps.clock}
        fields, to_random = (
            {kind: ratio._asdict() for kind, ratio in of.items()} for of in (ratios, result.ratios_to_random())
        )
        facts = {"settings": result.settings, "ratios": fields, "ratios_to_random": to_random}
        write_json(out, facts | {"steps": seconds, "memory": result.memory})


def _table(result: Measured, title: str) -> Table:
    """Build the table with seconds, processor seconds, sentences per second and ratios of training and evaluation."""
    from mtlprune.training.benchmark import BARE, EVALUATION

    settings = ", ".join(f"{key} {value}" for key, value in result.settings.items())
    columns = ">seconds", ">processor seconds", ">sentences/s", ">ratio (rounds)", ">ratio to random batches"
    table = new_table(f"{title}: {settings}", "", *columns)
    ratios, to_random = (
        {kind: _in_words(ratio) for kind, ratio in of.items()} for of in (result.ratios(), result.ratios_to_random())
    )
    rows = [(kind, result.steps) for kind in result.steps.clock]
    for kind, times in [*rows, (BARE, result.evaluation), (EVALUATION, result.evaluation)]:
        seconds, processor = times.seconds(kind)
        speed = f"{times.sentences / seconds:.0f}"
        ratio_cells = ratios.pop(kind, ""), to_random.get(kind, "")
        table.add_row(kind, f"{seconds:.2f}", f"{processor:.2f}", speed, *ratio_cells)
    for kind, ratio in ratios.items():
        table.add_row(kind, "", "", "", ratio, "")
    return table


def _in_words(ratio: Ratio) -> str:
    """Format a ratio with its lowest and highest round, or only these two if they differ too much."""
    if not ratio.is_steady:
        return f"unsteady: {ratio.lowest_round:.1f} to {ratio.highest_round:.1f}"
    return f"{ratio.value:.2f} ({ratio.lowest_round:.2f} to {ratio.highest_round:.2f})"
