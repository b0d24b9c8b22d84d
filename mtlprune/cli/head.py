"""mtlprune prune: remove the heads that a run's gates closed, for good."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtlprune.cli.check import check_run
from mtlprune.cli.console import Device, console, new_table, warn_unfinished

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from mtlprune.runs.folder import RunFolder
    from mtlprune.training.evaluation import Evaluation
    from mtlprune.training.pruning.head_removal import LatencyCell, Pruned, RemovalRequest


def prune(
    run: Annotated[Path, typer.Argument(help="A run with gates.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The new run folder.")],
    heads: Annotated[
        int | None, typer.Option(metavar="K", min=0, help="Keep the K most open heads (all, if not given).")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Whose gates or clones, where each task has its own.")] = None,
    latency: Annotated[bool, typer.Option(help="Measure the time before and after.")] = True,
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions at least; the fastest counts.")] = 5,
    device: Device = None,
) -> None:
    """Cut closed heads out of a run's encoder, check that it computes the same, and write it as a run of its own.

    Open gates are folded into the weights. DIR is evaluated on dev and works with evaluate, predict, bench and table.
    """
    check_run(run)

    from mtlprune.training.pruning import head_removal

    terminal = console()
    asked = head_removal.request(run, task, heads)
    with head_removal.appearing(out) as folder:
        warn_unfinished(asked.source, terminal)
        pruned = head_removal.prune(asked, folder, out, device)
        for line in _account(asked, pruned):
            terminal.print(line)
        terminal.print(_layers_table(pruned))
        terminal.print(_scores_table(asked, head_removal.score(folder, pruned.model, asked.corpus)))
        if latency:
            _measure(folder, pruned, rounds, terminal)
    terminal.print(f"written: {out}")


def _account(asked: RemovalRequest, pruned: Pruned) -> Iterator[str]:
    layers, heads = pruned.gates.shape
    folded = int(((pruned.gates > 0) & (pruned.gates < 1)).sum())
    yield f"heads: {pruned.heads.count} of {layers * heads} are kept; {folded} gates below 1 are in the weights now"
    if asked.most_open is not None and pruned.heads.count < asked.most_open:
        yield f"note: only {pruned.heads.count} heads are open; closed ones add nothing, so they go too"
    if pruned.heads.layer_gates:
        yield "note: layers share weights here: a head goes when all of them closed it, and gates stay in the model"
    before, after = pruned.parameters["before"], pruned.parameters["after"]
    for name, number in (("encoder", before["encoder"]), ("encoder and decoders", sum(before.values()))):
        left = after["encoder"] if name == "encoder" else sum(after.values())
        yield f"parameters of {name}: {number:,} before, {left:,} after ({1 - left / number:.1%} fewer)"
    yield f"checked: word vectors of dev sentences differ from the masked model's by {pruned.difference:.1e} (relative)"


def _layers_table(pruned: Pruned) -> Table:
    table = new_table("Heads kept", ">layer", ">heads", "which (from 1)")
    for layer, row in enumerate(pruned.heads.kept, 1):
        table.add_row(str(layer), str(len(row)), " ".join(str(head + 1) for head in row) or "none")
    return table


def _scores_table(asked: RemovalRequest, scored: Evaluation) -> Table:
    from mtlprune.evaluation.scores import name_of

    split = asked.source.read_config()["data"]["dev"]
    before = asked.source.read_scores(split) if split in asked.source.splits() else {}
    table = new_table(f"{split}, before and after", "task", "score", ">before", ">after")
    for task, value in scored.main().items():
        name = scored.names[task]
        old = before.get(task, {}).get(name)
        shown = name_of(task, name, asked.source.read_config().get("decoders", {}))
        table.add_row(task, shown, "" if old is None else f"{old:.2f}", f"{value:.2f}")
    return table


def _measure(folder: RunFolder, pruned: Pruned, rounds: int, terminal: Console) -> None:
    import copy
    import os

    import torch

    from mtlprune.cli.display import counted
    from mtlprune.training import hardware
    from mtlprune.training.pruning.head_removal import BATCHES, LENGTHS, measure
    from mtlprune.training.setup import processor

    encoder, settings = pruned.model.encoder, folder.read_config()["train"]
    lengths = [length for length in LENGTHS if encoder.limit is None or length <= encoder.limit]
    with counted(len(BATCHES) * len(lengths)) as (_, on_batch):
        cells = measure(
            pruned.full,
            copy.deepcopy(pruned.full),
            encoder.transformer,  # type: ignore[arg-type]
            pruned.gates,
            kept=pruned.kept_before,
            lengths=lengths,
            precision=hardware.dtype(settings["precision"]),
            rounds=rounds,
            on_batch=on_batch,
        )
    device = str(pruned.model.device)
    how: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else processor(),
        "precision": settings["precision"],
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "load": round(os.getloadavg()[0], 1),
    }
    folder.write_json("latency.json", {**how, "cells": [cell.record() for cell in cells]})
    terminal.print(_latency_table(cells, how))
    for length in sorted(set(LENGTHS) - set(lengths)):
        terminal.print(f"not measured: length {length}; the encoder sees {encoder.limit} tokens at once")
    if how["load"] > (os.cpu_count() or 1):
        terminal.print("note: more was running here than there are cores, so times are noisy; measure again when idle")
    terminal.print(
        "ms: fastest pass of the encoder. ideal: the removed heads' share of the FLOPs, 2·in·out a linear layer and "
        "vector, 4·B·T²·n·d a layer's heads. reached: (1 − removed / full) / ideal. attention: queries, keys, values, "
        "scores, mixture and output projection alone"
    )


def _reached(share: float | None) -> str:
    """Times that contradict each other say nothing of the gain: no program saves twice the work that was taken out."""
    if share is None:
        return ""
    return f"{share:.0%}" if -0.5 <= share <= 1.5 else "noise"


def _latency_table(cells: list[LatencyCell], how: dict[str, Any]) -> Table:
    measured = (">masked", ">removed", ">ideal", ">reached")
    title = ", ".join(f"{key} {value}" for key, value in how.items())
    table = new_table(title, ">batch × length", ">full ms", *measured, ">attention full ms", *measured)
    for cell in cells:
        row = [f"{cell.batch} × {cell.length}"]
        for part in (cell.encoder, cell.attention):
            row += [f"{1000 * part.seconds[kind]:.1f}" for kind in ("full", "masked", "removed")]
            row += [f"{part.share:.1%}", _reached(part.reached)]
        table.add_row(*row)
    return table
