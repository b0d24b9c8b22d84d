"""`mtlprune quickstart`: runs `mtlprune compare` on generated sentences, in a few minutes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtlprune.cli.compare import ComparisonRequest, Jobs, KeepWeights, refuse_foreign_files, run
from mtlprune.cli.console import Overrides, console
from mtlprune.corpora import CorpusError
from mtlprune.corpora.store import INFO, load_corpus, save_corpus
from mtlprune.errors import refuse_launcher
from mtlprune.io.files import make_room

if TYPE_CHECKING:
    from rich.console import Console


def quickstart(
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="Folder for corpus, runs, table and report.")] = Path("quickstart"),
    train: Annotated[int, typer.Option(min=1, help="Number of training sentences.")] = 800,
    dev: Annotated[int, typer.Option(min=1, help="Number of dev sentences, on which the best epoch is chosen.")] = 100,
    test: Annotated[int, typer.Option(min=1, help="Number of test sentences.")] = 300,
    jobs: Jobs = None,
    keep_weights: KeepWeights = None,
) -> None:
    """Run `mtlprune compare` with five tasks on a small generated corpus, in a few minutes.

    The command writes the table of scores to OUT/table.md, and the report with maps, overlap, probes and labels to
    OUT/report.html. If it is interrupted, run the same command again to continue.
    """
    from mtlprune.config.config import load_config
    from mtlprune.sweeps.compare import QUICKSTART

    terminal = console()
    refuse_launcher()
    load_config(QUICKSTART.base, overrides or [])  # so that unknown settings are refused before the corpus is generated
    make_room(out)
    if not (out / "corpus" / INFO).is_file():  # nothing is written if the corpus exists, and `run` checks the rest
        refuse_foreign_files(out)
    _make_corpus(out / "corpus", {"train": train, "dev": dev, "test": test, "seed": 1}, terminal)
    request = ComparisonRequest(
        out / "corpus", out, None, [1], overrides or [], False, QUICKSTART, "mtlprune quickstart"
    )
    run(request, terminal, jobs, keep_weights=keep_weights)


def _make_corpus(path: Path, sizes: dict[str, int], terminal: Console) -> None:
    """Generate the corpus at ``path``, unless it exists. An incomplete corpus of a killed process is generated again.

    Raises:
        CorpusError: there is another corpus at ``path``.
    """
    from mtlprune import __version__
    from mtlprune.corpora.grammar import build_grammar

    settings = ", ".join(f"{name} {number}" for name, number in sizes.items())
    sources = {"generator": f"mtlprune {__version__}, {settings}"}
    if (path / INFO).is_file():  # this file is written last, so the corpus is complete
        if load_corpus(path).info["sources"] != sources:
            raise CorpusError(
                f"{path}: expected the corpus of this quickstart, found another corpus; name another --out"
            )
        return
    terminal.print(f"generating {path}: {settings}")
    save_corpus(build_grammar(**sizes, reflexives=False), path, name="grammar", licence="Apache-2.0", sources=sources)
