"""mtlprune quickstart: from nothing to an STL-vs-MTL table, the heads that tasks use, and a page, in a few minutes."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtlprune.cli.console import Overrides, console
from mtlprune.config import ConfigError
from mtlprune.corpora import CorpusError
from mtlprune.corpora.store import Corpus, load_corpus, save_corpus
from mtlprune.io.files import write_text
from mtlprune.runs.folder import RunFolder

ALONE, GATES = "stl-", "gates-"
"""Prefixes of the names of runs of one task, and of those that bring them to half of their heads."""
ORDER = ("5", "srl", "con", "dep", "ner", "pos", "encoder")
"""Ends of names of runs, those that take longest first: so processes side by side end together."""
MOST, MEMORY = 4, 2 << 30
"""Runs at once, each by one thread, as more make such small batches hardly faster; bytes that each may take."""
GATE_RATE, GATE_EPOCHS = 0.35, 2
"""Rate and epochs of gates: few updates must do, so the rate is higher than elsewhere (docs/gates.md)."""
READ = 300
"""Training sentences by which gradients and probes look at heads."""
OWN = ("name", "tasks", "data.path", "pruning", "train.start", "train.freeze", "encoder.context", "base")
"""Settings in which the quickstart's runs differ."""

if TYPE_CHECKING:
    from rich.console import Console

    from mtlprune.config.config import Config


def quickstart(
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="The folder for corpus, runs and table.")] = Path("quickstart"),
    train: Annotated[int, typer.Option(min=1, help="Sentences to train on.")] = 1200,
    dev: Annotated[int, typer.Option(min=1, help="Sentences that choose the best epoch.")] = 150,
    test: Annotated[int, typer.Option(min=1, help="Held-out sentences.")] = 400,
) -> None:
    """Generate a corpus, train five single-task models and a multi-task one, and ask which heads the tasks use.

    Gates bring each finished single-task run to half of its heads, gradients say how much every task needs every head,
    and a probe what heads know. The table of scores goes to OUT/table.md; with maps, overlap, curves and labels to
    OUT/report.html. The same command again continues where it stopped.
    """
    from mtlprune.cli.show import gold_of, majority_scores
    from mtlprune.cli.sweep import run_cells
    from mtlprune.reports.page import Choices, Sources, report
    from mtlprune.reports.scores.comparisons import compare, with_tests
    from mtlprune.reports.scores.tables import markdown
    from mtlprune.sweeps.cells import Cell
    from mtlprune.sweeps.folder import ASIDE, Place
    from mtlprune.sweeps.pool import cores, visible_gpus
    from mtlprune.training.hardware import decide

    began = time.monotonic()
    terminal = console()
    planned = configurations(out, overrides or [])
    device = decide(planned["mtl-5"]).train.device
    corpus = corpus_at(out / "corpus", {"train": train, "dev": dev, "test": test, "seed": 1}, terminal)
    folders = {name: RunFolder(out / "runs" / name) for name in planned}
    cells = {}
    for name in sorted(planned, key=lambda name: (name.startswith(GATES), ORDER.index(name.rpartition("-")[2]))):
        needed = (name.replace(GATES, ALONE),) if name.startswith(GATES) else ()
        cells[name] = Cell(name, planned[name], name, needed, Place(out / "runs", name), ("test",))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    jobs = min(cores(), MOST, memory // MEMORY) if device == "cpu" else len(visible_gpus())
    run_cells(cells, max(1, jobs), terminal)
    shutil.rmtree(out / "runs" / ASIDE, ignore_errors=True)  # so that runs/* are the runs
    whole = [folder for name, folder in folders.items() if not name.startswith(GATES)]
    analyses = look_at_heads(out, [str(folder.path) for folder in whole if folder.path.name != "no-encoder"], terminal)
    baselines = {"majority": majority_scores(corpus.path, whole[0], "test")}
    text = markdown(with_tests(compare(whole, "test", baselines)))
    sources = Sources(
        list(folders.values()), probes=[analyses["probes"]], analyses=[analyses["gradients"]], baselines=baselines
    )
    files = {"table.md": text, "report.html": report(sources, Choices("mtlprune quickstart"), gold_of(None))}
    for name, content in files.items():
        write_text(out / name, content)
    terminal.print(f"\n{text}\n{out / 'table.md'}, after {time.monotonic() - began:.0f} s")
    terminal.print(f"everything on one page: {(out / 'report.html').resolve().as_uri()}")


def look_at_heads(out: Path, runs: Sequence[str], terminal: Console) -> dict[str, Path]:
    """Gradients of the runs and a probe of the encoder as it was pretrained and in the last of them, where they are not
    made yet; returns analysis → its folder."""
    import torch

    from mtlprune.analyses.analysis import Request, find
    from mtlprune.analyses.gradients import GradientOptions
    from mtlprune.analyses.probes import ProbeOptions
    from mtlprune.runs.results import write_result

    torch.set_num_threads(1)
    corpus, encoder = out / "corpus", str(RunFolder(runs[-1]).read_config()["encoder"]["name"])
    probed = ProbeOptions(train_sentences=READ, random_encoder=False)
    requests = {
        "gradients": Request(runs, corpus, GradientOptions(), "train", READ),
        "probes": Request([encoder, runs[-1]], corpus, probed),
    }
    for name, request in requests.items():
        if not (out / name / f"{name}.json").is_file():
            terminal.print(f"{find(name).title.lower()}: {len(request.names)} encoders")
            write_result(out / name, find(name).measure(request))
    return {name: out / name for name in requests}


def corpus_at(path: Path, sizes: dict[str, int], terminal: Console) -> Corpus:
    """The generated corpus, made where it is not there yet.

    Raises:
        CorpusError: something else lies at ``path``.
    """
    from mtlprune import __version__
    from mtlprune.corpora.grammar import build_grammar

    settings = ", ".join(f"{name} {number}" for name, number in sizes.items())
    sources = {"generator": f"mtlprune {__version__}, {settings}"}
    if path.exists():
        corpus = load_corpus(path)
        if corpus.info["sources"] != sources:
            raise CorpusError(f"{path}: expected the corpus of this quickstart, found another one; name another --out")
        return corpus
    terminal.print(f"generating {path}: {settings}")
    return save_corpus(build_grammar(**sizes), path, name="grammar", licence="Apache-2.0", sources=sources)


def configurations(out: Path, overrides: Sequence[str]) -> dict[str, Config]:
    """Name → configuration: each task alone, all together, all together without an encoder; and gates on the finished
    runs of each task, encoder and decoders frozen, that keep half of the heads.

    Raises:
        ConfigError: an override that is wrong, or of what the quickstart sets itself.
        EncoderError: the encoder cannot be loaded.
    """
    from mtlprune.config.config import load_config
    from mtlprune.encoder.model import Encoder
    from mtlprune.sentence import LAYERS

    for override in overrides:
        key = override.partition("=")[0]
        if key.startswith(OWN):
            raise ConfigError(
                f"{override}: the quickstart sets {key} itself, since its runs differ in it; train a run of your own: "
                f"mtlprune train quickstart {override} data.path=CORPUS"
            )

    def preset(name: str, *own: str) -> Config:
        path = json.dumps(str(out / "corpus"))
        return load_config("quickstart", ["train.threads=1", *overrides, f"name={name}", f"data.path={path}", *own])

    alone = {f"{ALONE}{task}": preset(f"{ALONE}{task}", f"tasks={task}") for task in LAYERS}
    together = {"no-encoder": preset("no-encoder", "encoder.context=false"), "mtl-5": preset("mtl-5")}
    encoder, epochs = together["mtl-5"].encoder, together["mtl-5"].train.epochs
    places = Encoder.load(encoder.name, random=encoder.random).places
    gates = ["pruning.method=gates", "pruning.penalty=exact", f"pruning.keep={places.layers * places.heads // 2}"]
    gates += ["pruning.init=open", f"pruning.rate={GATE_RATE}", "train.freeze=encoder,decoders"]
    gates += [f"train.epochs={min(GATE_EPOCHS, epochs)}"]
    claims = {
        f"{GATES}{task}": preset(
            f"{GATES}{task}", f"tasks={task}", *gates, f"train.start={json.dumps(str(out / 'runs' / (ALONE + task)))}"
        )
        for task in LAYERS
    }
    return {**alone, **together, **claims}
