"""Measure processor time and peak memory of building, loading and training on corpora of different sizes.

    python results/speed/growth.py data/ewt5 FOLDER 2000 12544 100000

A corpus repeats the sentences of a training split. A tenth of their words, drawn at random, get a number as suffix, so
that vocabularies grow as in real text. Every step runs in a separate process on one thread. The cost of an epoch is
extrapolated from UPDATES updates of MTL-5, and dev has DEV sentences.
"""

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

UPDATES, DEV = 6, 100


def sentences(source: Path, number: int) -> Iterator[Any]:
    """Yield the sentences of a corpus of this size."""
    from mtlprune.corpora.store import load_corpus

    generator = np.random.default_rng(number)
    stored = load_corpus(source)["train"]
    for row, sentence in enumerate(islice(cycle(range(len(stored))), number)):
        is_changed = generator.random(len(stored[sentence])) < 0.1
        words = [f"{word}{row}" if new else word for word, new in zip(stored[sentence].words, is_changed, strict=True)]
        yield replace(stored[sentence], id=f"s{row}", words=tuple(words))


def build(source: Path, path: Path, number: int) -> float:
    """Write the corpus."""
    from mtlprune.corpora.store import save_corpus

    dev_source = list(sentences(source, DEV))
    dev = [replace(sentence, id=f"dev-{sentence.id}") for sentence in dev_source]
    save_corpus({"train": sentences(source, number), "dev": dev}, path, name="growth", licence="none", sources={})
    return 0.0


def load(source: Path, path: Path, number: int) -> float:
    """Read all sentences, collect their labels, and tokenise them, as a training does before its first update."""
    from mtlprune.config.config import load_config
    from mtlprune.training.benchmark import make_run

    make_run(load_config("minilm-ewt5", [f"data.path={path}", "train.precision=fp32", "train.threads=1"]))
    return 0.0


def epoch(source: Path, path: Path, number: int) -> float:
    """Make a few updates, and return the processor seconds of an epoch, without loading."""
    from mtlprune.config.config import load_config
    from mtlprune.encoder.embedding_rows import train_used_rows
    from mtlprune.training import benchmark

    config = load_config("minilm-ewt5", [f"data.path={path}", "train.precision=fp32", "train.threads=1"])
    run, precision = benchmark.make_run(config)
    train_used_rows(run.model.encoder, run.pieces)
    plan = benchmark._first_epoch(run)
    stepper = benchmark.Stepper(run, run.config.tasks, precision)
    began = time.process_time()
    for batch in benchmark.evenly(plan, UPDATES, run.lengths):
        stepper.step(batch.rows)
    return (time.process_time() - began) * len(plan) / UPDATES


def measured(step: Callable[..., float], *arguments: Any) -> tuple[float, float, float]:
    """Run a step; return its value, its processor seconds, and the peak memory of its process in GB."""
    from mtlprune.training.hardware import peak_memory

    began = time.process_time()
    value = step(*arguments)
    return value, time.process_time() - began, peak_memory() / 1e9


def main() -> None:
    """Print a row for each number of sentences."""
    source, folder, *numbers = sys.argv[1:]
    print("| sentences | build | load and tokenise | an epoch |\n|--:|--:|--:|--:|")
    for number in map(int, numbers):
        cells = []
        for step in (build, load, epoch):
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                value, seconds, memory = pool.submit(
                    measured, step, Path(source), Path(folder) / str(number), number
                ).result()
            cells.append(f"{value if step is epoch else seconds:,.0f} s, {memory:.2f} GB")
        print(f"| {number:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
