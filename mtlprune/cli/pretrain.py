"""mtlprune pretrain: pretrain a language model, or draw pretrainings (--plot)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtlprune.cli.console import Scale, say
from mtlprune.cli.train import attended

if TYPE_CHECKING:
    from rich.console import Console

    from mtlprune.pretraining.config import PretrainConfig
    from mtlprune.runs import RunFolder


def pretrain(
    config: Annotated[
        str, typer.Argument(help="A YAML file, such as experiments/syntax/base.yaml; to plot, a folder it made.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY.PATH=VALUE", help="Settings that replace the file's; to plot, folders."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder (runs/NAME-DIGEST, if not given), or that of plots.")
    ] = None,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw and tabulate pretrainings with their breaks; train nothing.")
    ] = False,
    scale: Scale = 2,
) -> None:
    """Pretrain a masked language model; the same command again continues where it stopped.

    Loss, syntactic attention of every head, dimension of sentences and minimal pairs are logged on a log schedule, and
    each checkpoint is a folder that transformers loads and `encoder.name` takes. Ctrl-C leaves a run that can go on.
    """
    if plot:
        return _plot([Path(run) for run in [config, *(overrides or [])]], out, scale)

    from mtlprune.cli.check import check_settings

    check_settings(config, overrides or ())

    from mtlprune.cli.console import console
    from mtlprune.cli.display import PretrainingWatch
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
    progress = attended(terminal, PretrainingWatch(terminal), partial(run, settings, folder))
    state = "was finished already" if done_before else "finished"
    last = folder.path / CHECKPOINTS / f"step-{progress.step}"
    terminal.print(f"{folder.path} {state}: {progress.step} updates, {progress.seconds:.0f} s; {last}")


def _begins(terminal: Console, settings: PretrainConfig, folder: RunFolder) -> None:
    syntax, words = settings.syntax, [f"pretraining {folder.path}: {', '.join(settings.data.corpora)}"]
    if syntax.strength:
        until = f" until update {syntax.release}" if syntax.release else ""
        words.append(f"syntax λ {syntax.strength:g} ({syntax.variant}, {syntax.scale}){until}")
    if settings.cosreg:
        words.append(f"CosReg γ {settings.cosreg:g}")
    terminal.print("; ".join(words))


def _plot(runs: list[Path], out: Path | None, scale: int) -> None:
    """Loss, syntactic attention, minimal pairs and dimension by update, all runs in one figure, breaks marked."""
    from mtlprune.files import RunError, json_text, make_room, write_bytes
    from mtlprune.reports.charts import Style, render
    from mtlprune.reports.pretraining import chart, markdown, read_pretrainings, summary

    if out is None:
        raise RunError("pretrain --plot: expected --out DIR, a folder for figure, table and breaks")
    logs = read_pretrainings(runs)
    spec, text = chart(logs), markdown(logs)
    made = {
        "pretraining.png": render(spec, "png", Style(scale=scale)),
        "pretraining.svg": render(spec, "svg"),
        "pretraining.md": text.encode(),
        "pretraining.json": json_text(summary(logs)).encode(),
    }
    make_room(out)
    for name, content in made.items():
        write_bytes(out / name, content)
    say(text)
    say(f"{', '.join(made)} in {out}")
