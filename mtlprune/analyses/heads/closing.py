"""Costs of closing single heads of finished runs, each head alone."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from mtlprune.analyses.analysis import HeadColumn, Request
from mtlprune.analyses.reading import find_sources
from mtlprune.corpora.store import load_corpus
from mtlprune.encoder.gates import Gates
from mtlprune.evaluation.ablations import Closed
from mtlprune.model import SHARED, MultiTaskModel
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.training.ablation import SENTENCES, close_with, closed_losses


def closing_costs(
    run: str, kind: Closed, request: Request, head: tuple[int, int] | None = None
) -> dict[str, tuple[float, NDArray[np.float64]]]:
    """Losses of a run's tasks, in nats, on `SENTENCES` sentences of its dev split, drawn by the seed. Raises RunError:
    no run, or one without its corpus, or one whose heads are closed, removed or cloned.

    Args:
        head: layer and head, from 0; all heads, one after another, if not given.

    Returns:
        Task → its loss with all heads open, and how much more it is with one closed, (layers, heads) or (); NaN where
        no sentence has its layer.
    """
    folder = RunFolder.with_weights(run)
    model = MultiTaskModel.load(run, device=request.device)
    places, data, corpus = model.encoder.places, folder.read_config()["data"], load_corpus(folder.corpus_path())
    if model.gates or model.encoder.clones is not None or min(map(len, places.kept)) < places.heads:
        raise RunError(f"closed={kind}: heads of {run} are closed or cloned; name a run whose heads are all open")
    shape = places.layers, places.heads
    model.gates[SHARED] = Gates(*shape).to(model.device)
    each: list[tuple[int, ...]] = list(np.ndindex(shape)) if head is None else [head]
    masks = torch.ones(1 + len(each), *shape, device=model.device)
    for mask, place in zip(masks[1:], each, strict=True):
        mask[place] = 0
    request.on_status(f"{run}, each of {len(each)} heads closed alone, batch")
    close_with(model, kind, list(corpus[data["train"]]), list(masks[1:]), request.seed)
    sentences = list(corpus[data["dev"]])
    drawn = np.sort(np.random.default_rng([request.seed, 38]).permutation(len(sentences))[:SENTENCES])
    losses = closed_losses(model, [sentences[row] for row in drawn], list(masks), request.on_batch)  # (1 + heads, T)
    rises = (losses[1:] - losses[0]).T.reshape(-1, *(shape if head is None else ()))
    return {task: (float(losses[0, row]), rises[row]) for row, task in enumerate(model.tasks)}


def closing_columns(runs: Sequence[str], kind: Closed, request: Request) -> list[HeadColumn]:
    """The rise of each task's loss with each head closed alone, mean over the runs of a label."""
    rises: dict[str, list[NDArray[np.float64]]] = {}
    for source in find_sources(runs):
        for task, (_, rise) in closing_costs(source.name, kind, request).items():
            title = f"closing {task.upper()}" + f" in {source.label}" * (task.upper() != source.label)
            if not np.isnan(rise).any():
                rises.setdefault(title, []).append(rise)
    meaning = f"Rise of the loss on dev, in nats, with this head alone closed ({kind}); mean of {{}} runs."
    return [
        HeadColumn(title, "closing", np.mean(grids, axis=0), meaning=meaning.format(len(grids)))
        for title, grids in rises.items()
    ]
