"""`mtlprune export`: writes a run's encoder for Hugging Face transformers, or (--remove) a run without closed heads."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtlprune.cli.console import ADVANCED, Runs, console, named_runs, new_table, next_command, warn_unfinished
from mtlprune.io.files import RunError, write_sums, write_text
from mtlprune.sweeps.folder import output_folders

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from mtlprune.training.evaluation import Evaluation
    from mtlprune.training.pruning.head_removal import Pruned, RemovalRequest


def export(
    runs: Runs,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="New folder. For several runs, the new folder contains one folder per run."),
    ],
    remove: Annotated[
        bool,
        typer.Option(
            "--remove", help="Remove closed heads from the weights, and write a run instead of a Hugging Face model."
        ),
    ] = False,
    keep: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            min=0,
            help="With --remove, number of heads that are kept, the most open heads first (all open heads, if "
            "not given).",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="TASK", help="Task whose gates or clones are used, if tasks have separate gates or clones."
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(metavar="TASK", help="Task whose linear layer is added to the model.", rich_help_panel=ADVANCED),
    ] = None,
    licence: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Licence in the model card, such as apache-2.0.", rich_help_panel=ADVANCED),
    ] = None,
) -> None:
    """Write a run's encoder for Hugging Face transformers, with its gates folded into the weights, and a model card.

    AutoModel.from_pretrained(DIR) computes the same hidden states as the run. The command checks the hidden states
    before it creates DIR. With --remove, DIR is a run without the closed heads. The command compares this new run with
    the masked run and scores it on dev. The commands evaluate, predict, bench and table accept the new run.
    """
    if keep is not None and not remove:
        raise RunError("--keep has an effect only with --remove; add --remove, or leave --keep out")
    if remove and (licence or head):
        option = "--licence" if licence else "--head"
        raise RunError(
            f"{option} has no effect with --remove, which writes a run and not a model for transformers; leave it out"
        )
    from mtlprune.cli.display import working
    from mtlprune.runs.claims import load_claims

    folders, terminal = named_runs(runs), console()
    for folder in folders:  # checks all runs before torch is imported and before anything is written
        folder.check_weights_kept()
        if remove:
            load_claims([folder.path])
    for folder, place in zip(folders, output_folders(out, folders), strict=True):
        with working(f"writing {place}", terminal):
            if remove:
                _remove(folder.path, place, task, keep, terminal)
            else:
                _export(folder.path, place, task, head, licence, terminal)


def _export(run: Path, out: Path, task: str | None, head: str | None, licence: str | None, terminal: Console) -> None:
    """Write the encoder of one run, with a model card, as a folder for Hugging Face transformers."""
    from mtlprune.training import export as exporting
    from mtlprune.training.export import model_card
    from mtlprune.training.pruning.head_removal import appearing

    export_request = exporting.request(run, task, head, licence)
    with appearing(out) as folder:
        warn_unfinished(export_request.run, terminal)
        exported = exporting.export(export_request, folder.path)
        write_sums(folder.path)  # before the card is written, because users may edit the card
        write_text(folder.path / "README.md", model_card(export_request, exported))
    terminal.print(exporting.account(exported))
    terminal.print(
        f"checked: states of random sub-words differ from those of the run by {exported.difference:.1e} (relative)"
    )
    if exported.compared:
        terminal.print(
            f"checked: the code of the model card gives {exported.compared} words the same labels as the run"
        )
    if licence is None:
        terminal.print("note: the model card names no licence for the whole model; give --licence ID to name one")
    terminal.print(f"written: {out}; `hf upload OWNER/NAME {shlex.quote(str(out))}` uploads it to the hub")


def _remove(run: Path, out: Path, task: str | None, keep: int | None, terminal: Console) -> None:
    """Cut closed heads out of a run's encoder, fold open gates into the weights, and write the result as a new run.

    The new run is written only if its word vectors agree with those of the masked run.
    """
    from mtlprune.training.pruning import head_removal

    removal_request = head_removal.request(run, task, keep)
    with head_removal.appearing(out) as folder:
        warn_unfinished(removal_request.source, terminal)
        pruned = head_removal.prune(removal_request, folder, out)
        for line in _account(removal_request, pruned):
            terminal.print(line)
        terminal.print(_layers_table(pruned))
        terminal.print(
            _scores_table(
                removal_request,
                head_removal.score(folder, pruned.model, removal_request.corpus, removal_request.source),
            )
        )
    terminal.print(f"written: {out}")
    if "test" in removal_request.corpus.splits:
        next_command(terminal, "evaluate", out, "--split", "test")


def _account(removal_request: RemovalRequest, pruned: Pruned) -> Iterator[str]:
    """Yield lines on the heads and parameters that are kept, and on the check of the word vectors."""
    layers, heads = pruned.gates.shape
    folded = int(((pruned.gates > 0) & (pruned.gates < 1)).sum())
    yield (
        f"heads: {pruned.heads.count} of {layers * heads} are kept; {folded} gates below 1 are folded into the weights"
    )
    if removal_request.most_open is not None and pruned.heads.count < removal_request.most_open:
        yield f"note: only {pruned.heads.count} heads are open; closed heads add nothing, so they are removed too"
    if pruned.heads.layer_gates:
        yield (
            "note: layers share weights in this encoder, so a head is removed only if all layers close it, and gates "
            "stay in the model"
        )
    before, after = pruned.parameters["before"], pruned.parameters["after"]
    for name, number in (("encoder", before["encoder"]), ("encoder and decoders", sum(before.values()))):
        left = after["encoder"] if name == "encoder" else sum(after.values())
        yield f"parameters of {name}: {number:,} before, {left:,} after ({1 - left / number:.1%} fewer)"
    yield (
        f"checked: word vectors of dev sentences differ from those of the masked model by {pruned.difference:.1e} "
        "(relative)"
    )


def _layers_table(pruned: Pruned) -> Table:
    table = new_table("Heads kept", ">layer", ">heads", "which (from 1)")
    for layer, row in enumerate(pruned.heads.kept, 1):
        table.add_row(str(layer), str(len(row)), " ".join(str(head + 1) for head in row) or "none")
    return table


def _scores_table(removal_request: RemovalRequest, scored: Evaluation) -> Table:
    """Return the table of main scores on dev, before and after removal."""
    from mtlprune.evaluation.scores import name_of

    source, config = removal_request.source, removal_request.source.config
    split = config.data.dev
    before = source.read_scores(split) if split in source.splits() else {}
    table = new_table(f"{split}, before and after", "task", "score", ">before", ">after")
    for task, value in scored.main().items():
        name = scored.names[task]
        old = before.get(task, {}).get(name)
        score_title = name_of(task, name, config.decoders.model_dump())
        table.add_row(task, score_title, "" if old is None else f"{old:.2f}", f"{value:.2f}")
    return table
