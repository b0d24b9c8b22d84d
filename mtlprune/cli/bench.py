"""mtlprune bench: what training and evaluation cost beside the bare encoder."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from mtlprune.cli.check import check_settings
from mtlprune.cli.console import Overrides, console, exit_code, new_table, sentence
from mtlprune.cli.display import counted
from mtlprune.config import ConfigError
from mtlprune.corpora.store import load_corpus
from mtlprune.io.files import RunError, read_json, write_json

if TYPE_CHECKING:
    from rich.table import Table

    from mtlprune.config.config import Config
    from mtlprune.training.benchmark import Measured
    from mtlprune.training.launches import Asked

ANALYSES_MEASURED = ("smoothing", "dissection", "syntax", "degeneration")
SPLIT = "dev"
GOAL_SECONDS, GOAL_BYTES = 300.0, 4e9
GOAL = "goal: 1,000 sentences, MiniLM, 2 cores"


def bench(
    config: Annotated[str, typer.Argument(help="Configuration file, preset, or a finished run.")],
    overrides: Overrides = None,
    batches: Annotated[int, typer.Option(min=1, help="Training batches, spread over an epoch.")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions; the fastest of each batch counts.")] = 3,
    memory: Annotated[bool, typer.Option(help="Also train in a fresh process and report its peak memory.")] = True,
    probes: Annotated[
        bool, typer.Option("--probes", help="Measure probing of dev beside the eager forward pass instead.")
    ] = False,
    analyses: Annotated[
        bool, typer.Option("--analyses", help="Measure the four analyses of mtlprune analyze on dev instead.")
    ] = False,
    treatments: Annotated[
        bool,
        typer.Option("--treatments", help="Measure updates of every treatment, or of its own, beside the joint one."),
    ] = False,
    shapes: Annotated[
        bool, typer.Option("--shapes", help="Measure random encoders of MiniLM, BERT-base and BERT-large shape.")
    ] = False,
    sentences: Annotated[int, typer.Option(metavar="N", min=2, help="Of dev, for --analyses.")] = 1000,
    launches: Annotated[
        bool, typer.Option("--launches", help="Count operations and host waits of steps and annotation instead.")
    ] = False,
    tflops: Annotated[
        float, typer.Option(min=0.001, help="For --launches: 10¹² operations a second that a GPU really does.")
    ] = 50.0,
    link: Annotated[
        float, typer.Option(min=0.001, help="For --launches: 10⁹ bytes a second from one GPU to the next.")
    ] = 10.0,
    out: Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")] = None,
) -> None:
    """Measure STL, MTL, sampled mixing and evaluation as multiples of the bare encoder, interleaved in one run.

    Decoding new weights costs more than decoding trained ones, whose predictions hang together: for the speed of
    evaluation give a finished run.
    """
    if probes + analyses + treatments + shapes + launches > 1:
        raise ConfigError(
            "--probes, --analyses, --treatments, --shapes and --launches are different measurements; ask for one at a "
            "time"
        )
    trained = Path(config) if (Path(config) / "config.yaml").is_file() else None
    source = config if trained is None else trained / "config.yaml"
    if not launches:  # which needs no corpus
        check_settings(source, overrides or ())

    from mtlprune.config.config import load_config

    settings = load_config(source, overrides or [])
    if shapes:
        return _bench_shapes(settings, batches, rounds, memory, out)
    if probes:
        figures = _bench_probes(settings, trained, rounds)
    elif analyses:
        figures = _bench_analyses(settings, trained, sentences)
    elif treatments:
        figures = _bench_treatments(settings, batches, rounds, memory)
    elif launches:
        figures = _bench_launches(settings, tflops, link)
    else:
        figures = _bench_training(settings, trained, batches, rounds, memory)
    if out is not None:
        write_json(out, figures)


def _bench_training(settings: Config, trained: Path | None, batches: int, rounds: int, memory: bool) -> dict[str, Any]:
    """Without another measurement: steps of training and evaluation beside the bare encoder."""
    from mtlprune.training.benchmark import measure

    with counted(rounds * (batches + 1)) as (_, on_batch):
        result = measure(settings, batches, rounds, memory, on_batch=on_batch, trained=trained)
    console().print(_figures_table(result, f"{settings.encoder.name} on {settings.data.path}"))
    if result.memory:
        console().print(f"peak memory of MTL training in a fresh process: {result.memory / 1e9:.2f} GB")
    return _figures(result)


def _figures(result: Measured) -> dict[str, Any]:
    """As JSON holds them."""
    found = {"settings": result.settings, "ratios": result.ratios(), "steps": result.steps, "memory": result.memory}
    return found | ({"memory with checkpointing": result.checkpointed} if result.checkpointed else {})


def _bench_shapes(settings: Config, batches: int, rounds: int, memory: bool, out: Path | None) -> None:
    """With ``--shapes``: one encoder after another, with the tokenizer, corpus and tasks of a configuration."""
    from mtlprune.training.benchmark import SHAPES, measure_shape

    found = {}
    with counted(len(SHAPES) * rounds * (batches + 1)) as (_, on_batch):
        for shape in SHAPES:
            found[shape] = measure_shape(settings, shape, batches, rounds, memory, on_batch=on_batch)
            if out is not None:  # the largest may be too large
                write_json(out, {shape: _figures(one) for shape, one in found.items()})
    terminal = console()
    for shape, one in found.items():
        terminal.print(_figures_table(one, f"random weights, {shape} shape, on {settings.data.path}"))
    if memory:
        table = new_table("MTL training in a fresh process", "", ">peak GB", ">with checkpointing")
        for shape, one in found.items():
            table.add_row(shape, f"{one.memory / 1e9:.2f}", f"{one.checkpointed / 1e9:.2f}")
        terminal.print(table)


def _figures_table(result: Measured, title: str) -> Table:
    """Seconds, sentences a second and ratios: of steps, of epochs, of evaluation."""
    how = ", ".join(f"{key} {value}" for key, value in result.settings.items())
    table = new_table(f"{title}: {how}", "", ">seconds", ">sentences/s", ">ratio")
    ratios = result.ratios()
    for kind, seconds in result.steps.items():
        table.add_row(kind, f"{seconds:.2f}", f"{result.sentences / seconds:.0f}", f"{ratios[kind]:.3f}")
    for kind in (kind for kind in ratios if kind.endswith("gated / ungated")):
        table.add_row(kind, "", "", f"{ratios[kind]:.3f}")
    table.add_section()
    for kind, seconds in (("joint epoch", result.joint_epoch), ("sampled epoch", result.sampled_epoch)):
        table.add_row(f"{kind}, estimated from steps", f"{seconds:.1f}", "", f"{seconds / result.joint_epoch:.3f}")
    table.add_section()
    for kind, seconds in (("bare forward over dev", result.bare_forward), ("evaluation, all tasks", result.evaluation)):
        ratio = seconds / result.bare_forward
        table.add_row(kind, f"{seconds:.2f}", f"{result.dev_sentences / seconds:.0f}", f"{ratio:.3f}")
    return table


def _bench_treatments(settings: Config, batches: int, rounds: int, memory: bool) -> dict[str, Any]:
    """With ``--treatments``: of the tasks and treatments of a configuration (none: of every one), from the pretrained
    encoder."""
    from dataclasses import asdict

    from mtlprune.training.treatments.benchmark import measure, ratios

    with counted(rounds * batches) as (_, on_batch):
        costs = measure(settings, batches, rounds, memory, on_batch)
    found = ratios(costs, settings.treatment)
    title = f"updates of {settings.encoder.name} on {settings.data.path}, {len(settings.tasks)} tasks"
    table = new_table(title, "", ">seconds", ">ratio", ">peak GB")
    for name, cost in costs.items():
        peak = f"{cost.memory / 1e9:.2f}" if cost.memory else "–"
        table.add_row(name, f"{cost.seconds:.2f}", f"{found[name]:.2f}", peak)
    console().print(table)
    return {"costs": {name: asdict(cost) for name, cost in costs.items()}, "ratios": found}


def _bench_probes(settings: Config, trained: Path | None, rounds: int) -> dict[str, Any]:
    """With ``--probes``: the encoder of a configuration (or of a run) on its corpus's dev."""
    from mtlprune.analyses.probes.benchmark import measure

    encoder = settings.encoder.name if trained is None else str(trained)
    threads = settings.train.threads or 1
    with counted(2) as (_, on_batch):
        cost = measure(encoder, Path(settings.data.path), rounds, threads, on_batch)
    title = f"{encoder}, {cost.heads} heads, dev of {settings.data.path}: {cost.sentences} sentences, {threads} threads"
    table = new_table(title, "", ">processor seconds", ">ratio", ">all / twice half")
    ratios, growth = cost.ratios(), cost.growth()
    for kind, seconds in cost.seconds.items():
        table.add_row(kind, f"{seconds:.2f}", f"{ratios[kind]:.3f}", f"{growth[kind]:.2f}")
    console().print(table)
    console().print(f"peak memory of both passes in a fresh process: {cost.memory / 1e9:.2f} GB")
    return {"seconds": cost.seconds, "ratios": ratios, "growth": growth, "memory": cost.memory}


GPUS = (1, 2, 4, 8, 16, 32, 64)


def _bench_launches(settings: Config, tflops: float, link: float) -> dict[str, Any]:
    """With ``--launches``: operations and host waits of a new model on made sentences, and a plan for several GPUs."""
    from mtlprune.training.launches import BARE, SENTENCES, WIDTHS, measure

    figures: dict[str, Any] = {}
    for words in WIDTHS:
        found = measure(settings, words)
        title = f"{settings.encoder.name}, {SENTENCES} sentences of {words} words"
        table = new_table(title, "", ">operations", ">ratio", ">waits", ">kernels", ">GFLOP", ">MB kept")
        bare = found.parts["step"][BARE].operations.total()
        for part, kinds in found.parts.items():
            table.add_section()
            for kind, one in kinds.items():
                operations, kernels = one.operations.total(), str(one.kernels or "")
                ratio, waits = f"{operations / bare:.2f}", str(one.waits.total())
                sizes = f"{one.products / 1e9:.2f}", f"{one.kept / 1e6:.1f}" if one.kept else ""
                table.add_row(f"{part}, {kind}", str(operations), ratio, waits, kernels, *sizes)
        console().print(table)
        console().print(_plan_table(found, words, settings, tflops, link))
        figures[str(words)] = {
            part: {kind: one.figures() for kind, one in kinds.items()} for part, kinds in found.parts.items()
        }
    console().print(f"sent by each process of several in a step: {found.sent / 1e6:.1f} MB of gradients")
    return {"sent": found.sent, "words": figures}


def _plan_table(found: Asked, words: int, settings: Config, tflops: float, link: float) -> Table:
    """What an update would take on 1 to 64 GPUs, by arithmetic from what was counted."""
    many = settings.train.batch_sentences
    title = f"planned, not measured: {many} sentences of {words} words, {tflops:g} TFLOP/s, {link:g} GB/s"
    table = new_table(
        title, ">GPUs", ">ms computing", ">ms summing", ">MB sent", ">speed-up", ">GB each", ">h/10⁶ sentences"
    )
    alone = found.plan(many, 1, tflops * 1e12, link * 1e9)
    for gpus in GPUS:
        one = found.plan(many, gpus, tflops * 1e12, link * 1e9)
        seconds = one.compute + one.sum
        figures = 1e3 * one.compute, 1e3 * one.sum, one.sent / 1e6, alone.compute / seconds, one.memory / 1e9
        table.add_row(str(gpus), *(f"{figure:.2f}" for figure in (*figures, seconds * 1e6 / many / 3600)))
    return table


# -- analyses: each as its command with defaults, in a process of its own, so that imports, loading and figures count --


class AnalysisCost(NamedTuple):
    """What one analysis took."""

    wall: float
    """Seconds from the start of its process to its end."""
    processor: float
    """Seconds of all its threads."""
    memory: int
    """Its peak, in bytes."""
    threads: int
    """Of torch."""
    sentences: int
    """That it says it read; those too long for the encoder are left out."""
    refused: str = ""
    """Why the analysis does not take this encoder or corpus; empty where it does."""


def _bench_analyses(settings: Config, trained: Path | None, sentences: int) -> dict[str, Any]:
    """With ``--analyses``: on the encoder of a configuration (or of a run), on sentences of its corpus's dev.

    Raises:
        RunError: no dev, fewer sentences than asked for, no analysis takes the encoder, or a process was ended.
    """
    corpus = Path(settings.data.path)
    stored = load_corpus(corpus)
    there = len(stored[SPLIT]) if SPLIT in stored.splits else 0
    if there < sentences:
        raise RunError(
            f"{corpus}: expected {sentences} sentences in {SPLIT}, found {there}; ask for fewer (--sentences)"
        )
    subject = settings.encoder.name if trained is None else str(trained)
    load, costs = os.getloadavg()[0], {}
    with counted(len(ANALYSES_MEASURED)) as (_, on_batch):
        for analysis in ANALYSES_MEASURED:
            asked = analysis, subject, str(corpus), sentences, settings.train.threads, time.perf_counter()
            try:
                with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                    costs[analysis] = pool.submit(alone, *asked).result()
            except BrokenProcessPool:
                raise RunError(
                    f"{analysis}: its process was ended from outside; had it too little memory? Try fewer --sentences"
                ) from None
            on_batch()
    refused = {analysis: cost.refused for analysis, cost in costs.items() if cost.refused}
    if len(refused) == len(ANALYSES_MEASURED):
        raise RunError(f"no analysis could be measured; {ANALYSES_MEASURED[0]}: {refused[ANALYSES_MEASURED[0]]}")
    measured, terminal = total(costs), console()
    title = f"{subject}, {measured.sentences} sentences of {SPLIT} of {corpus}"
    table = new_table(title, "analysis", ">wall seconds", ">processor seconds", ">peak GB")
    for name, cost in [*costs.items(), ("all, one after the other", measured)]:
        cells = (f"{cost.wall:.1f}", f"{cost.processor:.1f}", f"{cost.memory / 1e9:.2f}")
        table.add_row(name, *(("refused", "", "") if cost.refused else cells))
    table.add_row(GOAL, f"{GOAL_SECONDS:.1f}", "", f"{GOAL_BYTES / 1e9:.2f}")
    terminal.print(table)
    for analysis, why in refused.items():
        terminal.print(f"note: no {analysis}: {why}")
    cores = os.cpu_count()
    terminal.print(f"{measured.threads} threads; load of the machine when it began: {load:.2f}, on {cores} cores")
    return {
        "subject": subject,
        "corpus": str(corpus),
        "split": SPLIT,
        "load": load,
        "cores": cores,
        "analyses": {analysis: cost._asdict() for analysis, cost in costs.items()},
        "total": measured._asdict(),
        "goal": {"wall": GOAL_SECONDS, "memory": GOAL_BYTES, "of": GOAL},
    }


def total(costs: Mapping[str, AnalysisCost]) -> AnalysisCost:
    """Times added up, and the largest memory, over the analyses that were measured."""
    wall, processor, memory, threads, sentences, _ = zip(*(c for c in costs.values() if not c.refused), strict=True)
    return AnalysisCost(sum(wall), sum(processor), max(memory), max(threads), min(sentences))


def alone(analysis: str, subject: str, corpus: str, sentences: int, threads: int | None, begun: float) -> AnalysisCost:
    """The cost of one analysis, where it is the only thing that this process does.

    Args:
        threads: of torch; None for as many as the commands would take.
        begun: what ``time.perf_counter`` said when the process was started; all processes of a machine share it.
    """
    import torch

    from mtlprune.analyses.analysis import find
    from mtlprune.cli.analyze import run
    from mtlprune.training.hardware import peak_memory

    if threads is not None:
        torch.set_num_threads(threads)
    refused, read = "", 0
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        try:
            run(find(analysis), names=[subject], corpus=Path(corpus), out=Path(folder), sentences=sentences)
            tree = read_json(Path(folder) / f"{analysis}.json")
            read = tree.get("head", tree)["sentences"]
        except Exception as error:
            if exit_code(error) is None:
                raise
            refused = sentence(error)
    wall, threads = time.perf_counter() - begun, torch.get_num_threads()
    return AnalysisCost(wall, time.process_time(), peak_memory(), threads, read, refused)
