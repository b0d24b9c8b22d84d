"""mtlprune export: a run's encoder as a folder that plain transformers load."""

from pathlib import Path
from typing import Annotated

import typer

from mtlprune.cli.console import RunFolderArgument


def export(
    run: RunFolderArgument,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The new folder.", show_default=False)],
    task: Annotated[
        str | None, typer.Option(help="Where each task has its own gates: whose.", show_default=False)
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Cut closed heads out (then mtlprune loads it).")] = False,
    head: Annotated[
        str | None,
        typer.Option(metavar="TASK", help="Add a task's linear layer: for token classification.", show_default=False),
    ] = None,
    licence: Annotated[
        str | None, typer.Option(metavar="ID", help="For the model card, such as apache-2.0.", show_default=False)
    ] = None,
) -> None:
    """Write a run's encoder for Hugging Face transformers, with its gates folded into the weights, and a model card.

    AutoModel.from_pretrained(DIR) gives the states that the run computes; this is checked before DIR is there.
    """
    from mtlprune.cli.console import console
    from mtlprune.files import write_text
    from mtlprune.training import export as exporting
    from mtlprune.training.model_card import model_card
    from mtlprune.training.pruning.head_removal import appearing

    terminal = console()
    asked = exporting.request(run, task, head, remove, licence)
    with appearing(out) as folder:
        if not asked.run.is_finished():
            terminal.print(f"warning: {asked.run.path} is not trained to the end; its best weights so far are taken")
        found = exporting.export(asked, folder.path)
        write_text(folder.path / "README.md", model_card(asked, found))
    terminal.print(exporting.account(found))
    terminal.print(f"checked: states of random sub-words differ from the run's by {found.difference:.1e} (relative)")
    if licence is None:
        terminal.print("note: the model card states no licence of the whole; --licence ID does")
    terminal.print(f"written: {out}; `hf upload OWNER/NAME {out}` puts it on the hub")
