"""mtlprune quickstart: from nothing to an STL-vs-MTL table, in a few minutes on two cores."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from mtlprune.config import Config
    from mtlprune.corpora.store import Corpus

SIZES = {"train": 2000, "dev": 200, "test": 500, "seed": 1}


def quickstart(
    out: Annotated[Path, typer.Option(help="The folder for corpus, runs and table.")] = Path("quickstart"),
) -> None:
    """Generate a corpus, train five single-task models and a multi-task one, and compare them on held-out sentences.

    The same command again goes on where it stopped.
    """
    from mtlprune.cli.console import console
    from mtlprune.cli.evaluate import evaluate_run
    from mtlprune.cli.table import majority_scores
    from mtlprune.cli.train import train_run
    from mtlprune.reports.tables import compare, markdown
    from mtlprune.runs import RunFolder, replacing

    began = time.monotonic()
    terminal = console()
    corpus = corpus_at(out / "corpus", terminal)
    folders = []
    for name, config in configurations(corpus.path).items():
        folder = RunFolder(out / "runs" / name)
        train_run(config, folder, terminal)
        if "test" not in folder.splits():
            evaluate_run(folder, "test")
        folders.append(folder)
    baseline = majority_scores(corpus.path, folders[0], "test")
    text = markdown(compare(folders, "test", {"majority": baseline}))
    file = out / "table.md"
    with replacing(file) as beside:
        beside.write_text(text, encoding="utf-8")
    terminal.print(f"\n{text}\n{file}, after {time.monotonic() - began:.0f} s", soft_wrap=True)


def corpus_at(path: Path, terminal: Console) -> Corpus:
    """The generated corpus, made where it is not there yet.

    Raises:
        CorpusError: something else lies at ``path``.
    """
    from mtlprune import __version__
    from mtlprune.corpora import CorpusError
    from mtlprune.corpora.grammar import build_grammar
    from mtlprune.corpora.store import load_corpus, save_corpus

    settings = ", ".join(f"{name} {number}" for name, number in SIZES.items())
    sources = {"generator": f"mtlprune {__version__}, {settings}"}
    if path.exists():
        corpus = load_corpus(path)
        if corpus.info["sources"] != sources:
            raise CorpusError(f"{path}: expected the corpus of this quickstart, found another one; name another --out")
        return corpus
    terminal.print(f"generating {path}: {settings}", soft_wrap=True)
    return save_corpus(build_grammar(**SIZES), path, name="grammar", licence="Apache-2.0", sources=sources)


def configurations(corpus: Path) -> dict[str, Config]:
    """Name → configuration: each task alone, all together, and all together without an encoder."""
    from mtlprune.config import load_config
    from mtlprune.sentence import LAYERS

    def preset(name: str, *overrides: str) -> Config:
        return load_config("quickstart", [f"name={name}", f"data.path={json.dumps(str(corpus))}", *overrides])

    alone = {f"stl-{task}": preset(f"stl-{task}", f"tasks={task}") for task in LAYERS}
    return {
        **alone,
        "mtl-5": preset("mtl-5"),
        "no-encoder": preset("no-encoder", "encoder.context=false"),
    }
