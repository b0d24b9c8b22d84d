"""Time finished runs with all heads open, with closed heads masked, and with closed heads removed.

The forms are interleaved: every round times each form once on each batch in turn. For each batch and form only the
fastest round counts, because other work on the machine can only add time.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch.utils.flop_counter import FlopCounterMode

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.harness.ablation import with_task
from mtlprune.analyses.harness.reading import Reading, Subject, SubjectError, SubjectResult, read_request, survey
from mtlprune.evaluation.head_masks import OPEN_ABOVE
from mtlprune.model import MultiTaskModel
from mtlprune.runs.results import Result
from mtlprune.sentence import Sentence
from mtlprune.training import hardware
from mtlprune.training.benchmark import clock
from mtlprune.training.pruning.head_removal import cut

Work = Callable[[], object]


def measure(request: Request) -> Result:
    """Time every run with its closed heads masked and removed. ``frames.yaml`` declares the frames."""
    hardware.configure_process(1)
    reading = read_request(request)
    return survey("speed", reading, request, lambda subject: _timed(reading, subject, request)).result


def _timed(reading: Reading, subject: Subject, request: Request) -> SubjectResult:
    """Time one run with batches of each size, whose sentences range from the longest to the shortest.

    Raises SubjectError if the run has no gates or all its heads are open.
    """
    if subject.gates is None or bool((subject.gates > OPEN_ABOVE).all()):
        raise SubjectError(
            "expected a run whose gates closed some heads, found one with all heads open; name another run"
        )
    masked, removed = (subject.model(request.device) for _ in range(2))
    cut(removed.encoder, subject.gates)
    removed = MultiTaskModel(removed.encoder, dict(removed.tasks.items()))  # type: ignore[arg-type]
    if subject.task is not None:
        masked, removed = with_task(masked, subject.task), with_task(removed, subject.task)
    order = sorted(reading.sentences, key=lambda sentence: -len(sentence))
    options, rows = request.options, []
    request.on_status(f"{subject.label}, seed {subject.seed}: round", options.rounds * len(options.sizes))
    for size in options.sizes:
        starts = np.linspace(0, max(0, len(order) - size), options.batches).round().astype(int)
        batches = [order[first : first + size] for first in dict.fromkeys(starts.tolist())]
        kinds = [_kinds(masked, removed, subject, batch_rows) for batch_rows in batches]
        ideal = 1 - sum(_flops(kinds_of_batch["removed"]) for kinds_of_batch in kinds) / sum(
            _flops(kinds_of_batch["full"]) for kinds_of_batch in kinds
        )
        seconds = _fastest(kinds, masked.device, options.rounds, request.on_batch)
        rows.append({"batch": size, "sentences": sum(map(len, batches)), "ideal": ideal, **seconds})
    return SubjectResult({"times": pd.DataFrame(rows)})


def _kinds(
    masked: MultiTaskModel, removed: MultiTaskModel, subject: Subject, sentences: list[Sentence]
) -> dict[str, Work]:
    """Return the functions that are timed on a batch, by name.

    Whole predictions ("_whole") include decoding. They are not timed for the model with all heads open, because it
    predicts different structures, which take different times to decode.
    """
    pieces = masked.encoder.tokenize_sentences(sentences)
    batch = masked.encoder.collate(pieces).to(masked.device)
    return {
        "full": partial(masked.encoder, batch),
        "masked": partial(masked.encoder, batch, subject.gates),
        "removed": partial(removed.encoder, batch),
        "masked_whole": lambda: list(masked.annotate(sentences)),
        "removed_whole": lambda: list(removed.annotate(sentences)),
    }


@torch.no_grad()
def _flops(work: Work) -> int:
    """Return the number of floating-point operations of matrix products, attention included."""
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


@torch.no_grad()
def _fastest(
    kinds: list[dict[str, Work]], device: torch.device, rounds: int, on_round: Callable[[], None]
) -> Mapping[str, float]:
    """Return the seconds of each form, summed over batches, with the fastest round of each batch."""
    times = {name: np.full((rounds, len(kinds)), np.inf) for name in kinds[0]}
    for round_ in range(rounds):
        for place, works in enumerate(kinds):
            for name, work in works.items():
                times[name][round_, place] = _seconds(work, device)
        on_round()
    return {name: float(seconds.min(0).sum()) for name, seconds in times.items()}


def _seconds(work: Work, device: torch.device) -> float:
    """Return the time of ``work`` in seconds: on a CPU of this process only, and on a GPU by the wall clock."""
    if device.type != "cpu":
        with clock(device) as seconds:
            work()
        return seconds[0]
    start = time.process_time()
    work()
    return time.process_time() - start
