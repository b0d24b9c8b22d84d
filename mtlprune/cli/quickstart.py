"""mtlprune quickstart: from nothing to an STL-vs-MTL table and a page, in a few minutes on two cores."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtlprune.cli.console import Overrides

if TYPE_CHECKING:
    from rich.console import Console

    from mtlprune.config.config import Config
    from mtlprune.corpora.store import Corpus


def quickstart(
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="The folder for corpus, runs and table.")] = Path("quickstart"),
    train: Annotated[int, typer.Option(min=1, help="Sentences to train on.")] = 1200,
    dev: Annotated[int, typer.Option(min=1, help="Sentences that choose the best epoch.")] = 150,
    test: Annotated[int, typer.Option(min=1, help="Held-out sentences.")] = 400,
) -> None:
    """Generate a corpus, train five single-task models and a multi-task one, and compare them on held-out sentences.

    The table goes to OUT/table.md, and with curves and labels to OUT/report.html. The same command again continues
    where it stopped.
    """
    from mtlprune.cli.console import console
    from mtlprune.cli.report import gold_of
    from mtlprune.cli.table import majority_scores
    from mtlprune.cli.train import train_run
    from mtlprune.files import write_text
    from mtlprune.reports.page import Choices, Sources, report
    from mtlprune.reports.scores.tables import compare, markdown
    from mtlprune.reports.scores.tests import with_tests
    from mtlprune.runs import RunFolder
    from mtlprune.training.evaluation import evaluate_run

    began = time.monotonic()
    terminal = console()
    corpus = corpus_at(out / "corpus", {"train": train, "dev": dev, "test": test, "seed": 1}, terminal)
    folders = []
    for name, config in configurations(corpus.path, overrides or []).items():
        folder = RunFolder(out / "runs" / name)
        train_run(config, folder, terminal)
        if "test" not in folder.splits():
            evaluate_run(folder, "test")
        folders.append(folder)
    baselines = {"majority": majority_scores(corpus.path, folders[0], "test")}
    text = markdown(with_tests(compare(folders, "test", baselines)))
    sources = Sources(folders, baselines=baselines)
    files = {"table.md": text, "report.html": report(sources, Choices("mtlprune quickstart"), gold_of(None))}
    for name, content in files.items():
        write_text(out / name, content)
    terminal.print(f"\n{text}\n{out / 'table.md'}, after {time.monotonic() - began:.0f} s")
    terminal.print(f"everything on one page: {(out / 'report.html').resolve().as_uri()}")


def corpus_at(path: Path, sizes: dict[str, int], terminal: Console) -> Corpus:
    """The generated corpus, made where it is not there yet.

    Raises:
        CorpusError: something else lies at ``path``.
    """
    from mtlprune import __version__
    from mtlprune.corpora import CorpusError
    from mtlprune.corpora.grammar import build_grammar
    from mtlprune.corpora.store import load_corpus, save_corpus

    settings = ", ".join(f"{name} {number}" for name, number in sizes.items())
    sources = {"generator": f"mtlprune {__version__}, {settings}"}
    if path.exists():
        corpus = load_corpus(path)
        if corpus.info["sources"] != sources:
            raise CorpusError(f"{path}: expected the corpus of this quickstart, found another one; name another --out")
        return corpus
    terminal.print(f"generating {path}: {settings}")
    return save_corpus(build_grammar(**sizes), path, name="grammar", licence="Apache-2.0", sources=sources)


def configurations(corpus: Path, overrides: Sequence[str]) -> dict[str, Config]:
    """Name → configuration: each task alone, all together, and all together without an encoder."""
    from mtlprune.config.config import load_config
    from mtlprune.sentence import LAYERS

    def preset(name: str, *own: str) -> Config:
        return load_config("quickstart", [*overrides, f"name={name}", f"data.path={json.dumps(str(corpus))}", *own])

    alone = {f"stl-{task}": preset(f"stl-{task}", f"tasks={task}") for task in LAYERS}
    return {
        **alone,
        "mtl-5": preset("mtl-5"),
        "no-encoder": preset("no-encoder", "encoder.context=false"),
    }
