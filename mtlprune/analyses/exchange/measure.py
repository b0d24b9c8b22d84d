"""Shares of the change of a task's decision that pass through sets of heads, and through each head.

The decision of task t on sentence x of a pair (a, b) is m(x) = L(x, gold of b) − L(x, gold of a), in nats, with
L the loss of t on the sentence. With the outputs of heads S taken from b, m(a) becomes m(a; S); the share that passes
through S is

    Σ over pairs of m(a) − m(a; S)   /   Σ over pairs of m(a) − m(b)

0 where S carries nothing; 1 where putting S alone into a makes it decide as b. Shares of sets need not add up.

Letters for shapes: P pairs, L layers, A heads a layer, C resamples, S runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.claims.groups import groups_of
from mtlprune.analyses.exchange import STEM
from mtlprune.analyses.reading import Found, Reading, Subject, read_request, survey
from mtlprune.corpora.grammar import Pair, draw_pairs
from mtlprune.encoder.batch import Encoded, EncoderBatch
from mtlprune.encoder.interventions import exchange, head_outputs
from mtlprune.evaluation.head_masks import random_heads
from mtlprune.model import MultiTaskModel
from mtlprune.runs.claims import ClaimError, group, load_claims
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.groups import is_joint
from mtlprune.runs.results import Result, head_rows
from mtlprune.statistics.significance import Floats, holm, over_seeds
from mtlprune.tasks.base import Target, Task
from mtlprune.training.head_gradients import alone

BATCH = 50
CARRIED = 0.1
"""A set carries a task's change from this share on."""
Mask = NDArray[np.bool_]
LAYERS = ("pos", "ner", "dep", "con", "srl")
"""Layers of generated sentences."""


@dataclass(frozen=True, eq=False)
class _Changes:
    """Of one label's runs and one task: seed → what pairs change, and what they change by each set of heads.

    Attributes:
        whole: seed → (P,) m(a) − m(b).
        decided: seed → the part of pairs with m(a) > 0 > m(b).
        through: label of a set → seed → (1 or draws, P) m(a) − m(a; S); the first row of "" is of nothing exchanged.
    """

    whole: dict[int, Floats] = field(default_factory=dict)
    decided: dict[int, float] = field(default_factory=dict)
    through: dict[tuple[str, str], dict[int, Floats]] = field(default_factory=dict)


def measure(request: Request) -> Result:
    """All runs on the same pairs of sentences. Frames:

    - ``cells``, wide: for each label of runs, changed ``task`` and set of heads (``other``, a label of the claims or
      STEM) the mean ``share`` over seeds, that of ``random`` heads of the same layers, and ``delta``, their difference
      with interval and p over seeds and pairs (over pairs alone with one seed), ``holm`` over all cells; how many
      ``pairs``, and which part of them is ``decided`` as gold has both sentences.
    - ``contrasts``: means over tasks of the share beyond random heads (``term``): through the task's ``own`` claims,
      through those of ``others``, and ``own minus others``.
    - ``stems``: of how many tasks of a run the STEM heads carry a tenth of the change or more (``carried``).
    - ``heads``: ``share`` of each head by ``task``.

    Raises:
        RunError, CorpusError, EncoderError, ClaimError: what cannot be loaded; claims of no head or of all.
    """
    reading = read_request(request)
    if groups_of(request.claims, reading) is None:
        raise ClaimError("whose heads are to be exchanged? name runs with gates or with stable claims (--claims)")
    sets = claimed_sets({one.label: one.claimed for one in group(load_claims(request.claims))})
    generator = np.random.default_rng([request.seed, 16])
    draws = {
        name: [random_heads(heads.sum(1).tolist(), heads.shape[1], generator) for _ in range(request.options.draws)]
        for name, heads in sets.items()
    }
    changes: dict[tuple[str, str], _Changes] = {}
    result = survey(
        "exchange", reading, request, lambda subject: _exchanged(reading, subject, request, sets, draws, changes)
    )
    shares = _shares(changes, request)
    cells = pd.DataFrame(_cells(shares, changes))
    frames = {"cells": cells.assign(holm=holm(cells["p"].to_numpy()))}
    frames |= {"contrasts": pd.DataFrame(_contrasts(shares)), "stems": pd.DataFrame(_stems(shares))}
    return replace(result, frames={**result.frames, **{name: frame for name, frame in frames.items() if len(frame)}})


def claimed_sets(claimed: Mapping[str, Mask]) -> dict[str, Mask]:
    """The heads (L, A) of each label, and those that three single tasks or more claim, where there are some.

    Raises:
        ClaimError: a label claims no head.
    """
    for label, heads in claimed.items():
        if not heads.any():
            raise ClaimError(f"{label} claims no head, so there is nothing to exchange; name other runs")
    single = [heads for label, heads in claimed.items() if not is_joint(label)]
    stem = np.sum(single, axis=0) >= 3 if single else np.zeros(1, bool)
    return {**claimed, **({STEM: stem} if stem.any() else {})}


def _exchanged(
    reading: Reading,
    subject: Subject,
    request: Request,
    sets: Mapping[str, Mask],
    draws: Mapping[str, list[Mask]],
    changes: dict[tuple[str, str], _Changes],
) -> Found | str:
    folder = RunFolder(subject.name)
    if not folder.config_path.is_file():
        return "an encoder without decoders decides nothing; name a run"
    model = subject.model(request.device)
    places = model.encoder.places
    if model.gates or min(map(len, places.kept)) < places.heads:
        return "some of its heads are closed already; name a run whose heads are all open"
    frames, notes = [], []
    for name in (name for name in model.tasks if name in LAYERS):
        pairs, targets = usable_pairs(model, name, request.options.pairs, request.seed)
        if len(pairs) < 2:
            notes.append(f"{subject.label}: {len(pairs)} pairs of {name} have known labels and as many sub-words each.")
            continue
        margins = _Margins(model, name, pairs, targets)
        first, second = margins.of("first"), margins.of("second")
        change = changes.setdefault((subject.label, name), _Changes())
        change.whole[subject.seed] = first - second
        change.decided[subject.seed] = float(((first > 0) & (second < 0)).mean())
        for label, heads in sets.items():
            rows = np.stack([first - margins.exchanged(mask) for mask in (heads, *draws[label])])  # (1 + draws, P)
            change.through.setdefault((label, ""), {})[subject.seed] = rows[:1]
            change.through.setdefault((label, "random"), {})[subject.seed] = rows[1:]
            request.on_batch()
        grid = np.empty((places.layers, places.heads))
        for layer, head in np.ndindex(grid.shape):
            one = np.zeros(grid.shape, bool)
            one[layer, head] = True
            grid[layer, head] = (first - margins.exchanged(one)).sum() / (first - second).sum()
        request.on_batch()
        frames.append(head_rows({"share": grid}).assign(task=name))
    if not frames:
        return "none of its tasks is a layer of generated sentences whose labels it knows"
    return Found({"heads": pd.concat(frames, ignore_index=True)}, {}, notes)


def usable_pairs(
    model: MultiTaskModel, name: str, size: int, seed: int
) -> tuple[list[Pair], list[tuple[Target, Target]]]:
    """Pairs that differ in a layer, with the task's targets of both; those left out have labels that the run does not
    know, or other numbers of sub-words, so that places would not correspond."""
    layers = [name, "dep+con"] if name in ("dep", "con") else [name]
    drawn = [pair for layer in layers for pair in draw_pairs(-(-size // len(layers)), seed + 1, (layer,))]
    task, pairs, targets = cast(Task, model.tasks[name]), [], []
    for pair in drawn[:size]:
        first, second = model.encoder.tokenize_all([pair.first.words, pair.second.words])
        try:
            both = task.target(pair.first), task.target(pair.second)
        except KeyError:  # of an index of labels
            continue
        if len(first.ids) == len(second.ids):
            pairs.append(pair)
            targets.append(both)
    return pairs, targets


class _Margins:
    """Decisions (P,) of one task on pairs: how much better the gold of the first sentence fits than the other."""

    def __init__(
        self, model: MultiTaskModel, name: str, pairs: Sequence[Pair], targets: Sequence[tuple[Target, Target]]
    ) -> None:
        self.model, self.name, self.targets = model, name, targets
        encoder = model.encoder
        self.batches: list[tuple[list[int], dict[str, EncoderBatch]]] = []
        for start in range(0, len(pairs), BATCH):
            rows = list(range(start, min(start + BATCH, len(pairs))))
            both = {
                side: encoder.collate(encoder.tokenize_all([getattr(pairs[row], side).words for row in rows]))
                for side in ("first", "second")
            }
            self.batches.append((rows, {side: batch.to(model.device) for side, batch in both.items()}))
        self.given = [head_outputs(encoder, both["second"]) for _, both in self.batches]

    @torch.no_grad()
    def of(self, side: str) -> Floats:
        """Of the first or second sentences as they are."""
        return np.concatenate([self._margins(rows, self.model.encoder(both[side])) for rows, both in self.batches])

    @torch.no_grad()
    def exchanged(self, heads: Mask) -> Floats:
        """Of the first sentences with the outputs of some heads (L, A) taken from the second."""
        gates = torch.from_numpy(~heads).float().to(self.model.device)
        parts = [
            self._margins(rows, exchange(self.model.encoder, both["first"], outputs, gates))
            for (rows, both), outputs in zip(self.batches, self.given, strict=True)
        ]
        return np.concatenate(parts)

    def _margins(self, rows: Sequence[int], encoded: Encoded) -> Floats:
        task = self.model.tasks[self.name]
        losses = [
            [float(alone(task, encoded.select([place]), self.targets[row][side])) for side in (1, 0)]
            for place, row in enumerate(rows)
        ]
        second, first = np.array(losses).T
        return np.asarray(second - first)


# -- shares, over seeds and pairs ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Cell:
    """Shares of one task's change that pass through one set of heads.

    Attributes:
        own, random: (S,) through the set, and through random heads of the same layers.
        booted: (C, S), own − random on resampled pairs.
    """

    seeds: tuple[int, ...]
    own: Floats
    random: Floats
    booted: Floats


def _shares(changes: Mapping[tuple[str, str], _Changes], request: Request) -> dict[tuple[str, str, str], _Cell]:
    """Label of runs, task, label of a set → its shares; pairs are resampled alike for all sets, apart for each task."""
    cells = {}
    for (label, task), change in changes.items():
        seeds = sorted(change.whole)
        size = len(change.whole[seeds[0]])
        generator = np.random.default_rng([request.seed, 17, LAYERS.index(task)])
        weights = generator.multinomial(size, np.full(size, 1 / size), size=request.options.resamples)  # (C, P)
        whole = np.stack([change.whole[seed] for seed in seeds])  # (S, P)
        for other in dict.fromkeys(name for name, _ in change.through):
            own, random = (
                np.stack([change.through[other, control][seed].mean(0) for seed in seeds]) for control in ("", "random")
            )
            booted = ((own - random) @ weights.T / (whole @ weights.T)).T  # (C, S)
            total = whole.sum(1)
            cells[label, task, other] = _Cell(tuple(seeds), own.sum(1) / total, random.sum(1) / total, booted)
    return cells


def _cells(
    shares: Mapping[tuple[str, str, str], _Cell], changes: Mapping[tuple[str, str], _Changes]
) -> Iterator[dict[str, object]]:
    """Rows of the frame ``cells``."""
    for (label, task, other), cell in shares.items():
        figure = over_seeds(cell.own - cell.random, cell.booted)
        if len(cell.seeds) < 2:
            beyond = min((cell.booted <= 0).sum(), (cell.booted >= 0).sum())
            figure["p"] = min(1.0, 2 * (1 + beyond) / (1 + len(cell.booted)))
        change = changes[label, task]
        keys = {"encoder": label, "task": task, "other": other, "share": cell.own.mean(), "random": cell.random.mean()}
        keys |= {"pairs": len(change.whole[cell.seeds[0]]), "n": len(cell.seeds)}
        keys |= {"decided": float(np.mean([change.decided[seed] for seed in cell.seeds]))}
        yield {**keys, **{name: figure[name] for name in ("delta", "low", "high", "p", "detectable")}}


def _contrasts(shares: Mapping[tuple[str, str, str], _Cell]) -> Iterator[dict[str, object]]:
    """Rows of the frame ``contrasts``, of labels all of whose tasks claim heads and have the same seeds."""
    for label in dict.fromkeys(label for label, *_ in shares):
        cells = {(task, other): cell for (one, task, other), cell in shares.items() if one == label}
        tasks = [task for task in LAYERS if (task, task.upper()) in cells]
        if len(tasks) < 2 or len({cells[task, task.upper()].seeds for task in tasks}) > 1:
            continue
        means = {}
        for name, alike in (("own", True), ("others", False)):
            some = [
                np.mean([part(cells[task, other.upper()]) for other in tasks if (other == task) == alike], axis=0)
                for part in (lambda cell: cell.own - cell.random, lambda cell: cell.booted)
                for task in tasks
            ]
            means[name] = [np.mean(some[: len(tasks)], axis=0), np.mean(some[len(tasks) :], axis=0)]
        means["own minus others"] = [own - other for own, other in zip(means["own"], means["others"], strict=True)]
        for name, (observed, booted) in means.items():
            yield {"encoder": label, "term": name, "n": len(observed), **over_seeds(observed, booted)}


def _stems(shares: Mapping[tuple[str, str, str], _Cell]) -> Iterator[dict[str, object]]:
    """Rows of the frame ``stems``."""
    for label in dict.fromkeys(label for label, _, other in shares if other == STEM):
        cells = [cell for (one, _, other), cell in shares.items() if (one, other) == (label, STEM)]
        for seed in sorted({seed for cell in cells for seed in cell.seeds}):
            carried = [cell.own[cell.seeds.index(seed)] >= CARRIED for cell in cells if seed in cell.seeds]
            yield {"encoder": label, "seed": seed, "carried": int(sum(carried)), "of": len(carried)}
