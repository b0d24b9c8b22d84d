"""mtlprune pretrain: masked-language-model training, with syntactic attention priced and watched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from mtlprune.pretraining.config import PretrainConfig
    from mtlprune.runs import RunFolder


def pretrain(
    config: Annotated[
        str, typer.Argument(help="A YAML file, such as experiments/syntax/base.yaml.", show_default=False)
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY.PATH=VALUE", help="Settings that replace the file's.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder; runs/NAME-DIGEST if not given.", show_default=False)
    ] = None,
) -> None:
    """Pretrain a masked language model; the same command again goes on where it stopped.

    Loss, syntactic attention of every head, dimension of sentences and minimal pairs are logged on a log schedule, and
    each checkpoint is a folder that transformers loads and `encoder.name` takes. Ctrl-C leaves a run that can go on.
    """
    from mtlprune.cli.early import check_settings

    check_settings(config, overrides or ())

    from mtlprune.cli.console import console, shown_log
    from mtlprune.cli.interrupt import Interruption
    from mtlprune.cli.progress import PretrainingWatch
    from mtlprune.cli.train import INTERRUPTED, command
    from mtlprune.config.config import default_folder
    from mtlprune.pretraining.config import load_pretraining
    from mtlprune.pretraining.loop import CHECKPOINTS, finished
    from mtlprune.pretraining.loop import pretrain as run
    from mtlprune.runs import RunFolder

    settings = load_pretraining(config, overrides or [])
    folder = RunFolder(out or default_folder(settings))
    terminal = console()
    done_before = finished(folder) is not None
    _begins(terminal, settings, folder)
    again = f"the same command goes on: {command()}"
    try:
        with shown_log(terminal), Interruption(terminal) as stop, PretrainingWatch(terminal) as watch:
            progress = run(settings, folder, watch=watch, stop=stop)
    except KeyboardInterrupt:
        terminal.print(f"stopped at once; what came after the last saved state is lost; {again}", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    if not progress.finished:
        terminal.print(f"stopped after update {progress.step}; its state is saved; {again}", soft_wrap=True)
        raise typer.Exit(INTERRUPTED)
    state = "was finished already" if done_before else "finished"
    last = folder.path / CHECKPOINTS / f"step-{progress.step}"
    terminal.print(f"{folder.path} {state}: {progress.step} updates, {progress.seconds:.0f} s; {last}", soft_wrap=True)


def _begins(terminal: Console, settings: PretrainConfig, folder: RunFolder) -> None:
    syntax, words = settings.syntax, [f"pretraining {folder.path}: {', '.join(settings.data.corpora)}"]
    if syntax.strength:
        until = f" until update {syntax.release}" if syntax.release else ""
        words.append(f"syntax λ {syntax.strength:g} ({syntax.variant}, {syntax.scale}){until}")
    if settings.cosreg:
        words.append(f"CosReg γ {settings.cosreg:g}")
    terminal.print("; ".join(words), soft_wrap=True)
