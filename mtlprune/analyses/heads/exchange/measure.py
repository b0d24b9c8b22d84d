"""Measure the share of the change of a task's decision that passes through sets of heads, and through each head.

The decision of a task on sentence x of a pair (a, b) is its loss margin m(x) = L(x, gold of b) − L(x, gold of a), in
nats, where L is the loss of the task on the sentence. If the outputs of the heads H are taken from b, m(a) becomes
m(a; H). The share of the change that passes through H is

    Σ over pairs of m(a) − m(a; H)   /   Σ over pairs of m(a) − m(b)

The share is 0 if H carries nothing, and 1 if these outputs alone make the run decide a as it decides b. Shares of
disjoint sets need not add up to the share of their union.

Letters for shapes: P pairs, L layers, A heads per layer, D draws of random heads, C resamples, S runs (seeds).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, cast

import numpy as np
import pandas as pd
import torch

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.harness.ablation import AblatableRun, known_target
from mtlprune.analyses.harness.reading import (
    Reading,
    Subject,
    SubjectError,
    SubjectResult,
    find_sources,
    read_request,
    survey,
)
from mtlprune.analyses.heads.claims.groups import claimed_heads
from mtlprune.analyses.heads.claims.maths import STEM_TASKS
from mtlprune.analyses.heads.exchange import MIN_PAIRS, STEM
from mtlprune.corpora.grammar import Pair, draw_pairs
from mtlprune.corpora.swaps import SWAPPED, swapped_pairs
from mtlprune.corpora.tables import batched
from mtlprune.encoder.batch import Encoded, EncoderBatch
from mtlprune.encoder.interventions import ablated, head_outputs
from mtlprune.evaluation.head_masks import Mask, random_sets, single_heads
from mtlprune.model import MultiTaskModel, autocast
from mtlprune.runs.groups import is_joint
from mtlprune.runs.results import Result, head_rows
from mtlprune.sentence import Sentence
from mtlprune.statistics.contrast import Contrast, contrast_frame
from mtlprune.statistics.resamples import Resampled, weighted
from mtlprune.statistics.standard_errors import Floats
from mtlprune.tasks.base import Target, Task
from mtlprune.training.head_gradients import sentence_loss

_BATCH = 50
"""Pairs of sentences in a batch."""
_CARRIED_FROM = 0.1
"""The least share with which a set of heads counts as carrying a task's change."""
_LAYERS = ("pos", "ner", "dep", "con", "srl")
"""Layers of annotation in which the two generated sentences of a pair can differ."""


class Change(NamedTuple):
    """Change of the decisions of one task of a run, and the part of it that passes through each set of heads.

    Attributes:
        full_change: (P,), m(a) − m(b) of each pair.
        decided: share of pairs with m(a) > 0 > m(b), which the run decides correctly for both sentences.
        through: for each set of heads H, m(a) − m(a; H) of each pair, (1 + D, P): first for the set, then for each
            draw of random heads.
    """

    full_change: Floats
    decided: float
    through: dict[str, Floats]


_Usable = tuple[Pair, tuple[Target, Target]]
"""A pair of sentences, and the targets of the task for the first and the second sentence."""
Changes = dict[tuple[str, str], dict[int, Change]]
"""Changes by label of the runs and task, and then by seed."""


def measure(request: Request) -> Result:
    """Measure all runs on the same pairs of sentences. ``frames.yaml`` declares the frames.

    Raises:
        RunError, CorpusError, EncoderError, ClaimError: if the input cannot be loaded, or if a label claims no head or
            all heads.
    """
    sets = with_stem(claimed_heads(request.claims, find_sources(request.names)))
    reading = read_request(replace(request, split=request.options.natural or request.split))
    generator = np.random.default_rng([request.seed, 16])
    masks = {name: [heads, *random_sets(heads, request.options.draws, generator)] for name, heads in sets.items()}
    exchanged = survey("exchange", reading, request, partial(_exchanged, reading, request=request, masks=masks))
    changes: Changes = {}
    for (label, seed), of_tasks in exchanged.measured.items():
        for task, change in of_tasks.items():
            changes.setdefault((label, task), {})[seed] = change
    shares = _shares(changes, request)
    cells, contrasts = contrast_frame(_cells(shares, changes), []), contrast_frame(_contrasts(shares))
    return exchanged.result.with_frames(cells=cells, contrasts=contrasts, stems=pd.DataFrame(_stems(shares)))


def with_stem(claimed_heads: Mapping[str, Mask]) -> dict[str, Mask]:
    """Return the heads (L, A) of each label, and as STEM those that at least STEM_TASKS single tasks claim, if any."""
    single = [heads for label, heads in claimed_heads.items() if not is_joint(label)]
    stem = np.sum(single, axis=0) >= STEM_TASKS if single else np.zeros(1, bool)
    return {**claimed_heads, **({STEM: stem} if stem.any() else {})}


def _exchanged(
    reading: Reading, subject: Subject, request: Request, masks: Mapping[str, Sequence[Mask]]
) -> SubjectResult:
    """Measure the changes of all tasks of one run through each set of heads and through each single head.

    Raises:
        SubjectError: none of its tasks has enough pairs that the run can compare.
    """
    run = AblatableRun.of(subject, request.device, reading.fingerprint)
    frames, notes, changes = [], list[str](), dict[str, Change]()
    single_head_masks = single_heads(run.size)[: None if request.options.single else 0]
    exchanges = sum(map(len, masks.values())) + len(single_head_masks)
    natural = reading.sentences if request.options.natural else None
    for name in (name for name in run.model.tasks if name in (_LAYERS if natural is None else SWAPPED)):
        pairs = usable_pairs(run.model, name, request.options.pairs, request.seed, natural)
        if len(pairs) < MIN_PAIRS:
            notes.append(
                f"{subject.label}, seed {subject.seed}: {name} is left out, because it has only {len(pairs)} pairs "
                f"with known labels and equal numbers of sub-words, and at least {MIN_PAIRS} are needed."
            )
            continue
        request.on_status(
            subject.part(name, f"sets{' and single heads' * bool(len(single_head_masks))}, exchange"), exchanges
        )
        margins = _Margins(run.model, name, pairs, run.precision)
        changes[name], shares = _change(margins, masks, single_head_masks, request.on_batch)
        if len(single_head_masks):
            frames.append(head_rows({"share": shares.reshape(run.size)}).assign(task=name))
    if not changes:
        raise SubjectError(" ".join(notes).removesuffix(".") or "none of its tasks is a layer in which pairs differ")
    tables = {"heads": pd.concat(frames, ignore_index=True)} if frames else {}
    return SubjectResult(tables, notes=notes, measured=changes)


def _change(
    margins: "_Margins", masks: Mapping[str, Sequence[Mask]], single_head_masks: Mask, on_batch: Callable[[], None]
) -> tuple[Change, Floats]:
    """Measure the change of a task's margins through each set of heads.

    Args:
        masks: for each set, its mask and those of the random draws.
        single_head_masks: (heads, L, A), a mask for each single head, possibly none.

    Returns:
        The change, and its share that passes through each single head, (heads,).
    """
    first, second = margins.of("first"), margins.of("second")

    def passing(heads: Mask) -> Floats:
        on_batch()
        return first - margins.exchanged(heads)

    through = {}
    for label, set_and_draws in masks.items():
        through[label] = np.stack([passing(mask) for mask in set_and_draws])
    change = Change(first - second, float(((first > 0) & (second < 0)).mean()), through)
    return change, np.array([passing(mask).sum() / change.full_change.sum() for mask in single_head_masks])


def usable_pairs(
    model: MultiTaskModel, name: str, size: int, seed: int, natural: Sequence[Sentence] | None = None
) -> list[_Usable]:
    """Return at most ``size`` pairs of sentences that differ in the layer ``name`` and that the run can compare.

    A pair is left out if the run does not know one of its labels, or if corresponding words have different numbers of
    sub-words, because positions would not correspond. Exactly ``size`` pairs are
    generated, so fewer may remain.

    Args:
        natural: sentences of a corpus from which pairs are made; pairs are generated if not given.

    Returns:
        Pairs with the targets of both sentences, the shortest first, so that batches need little padding.
    """
    if natural is None:
        # A changed attachment changes both the dependencies and the constituents, so both tasks also use such pairs.
        layers = [name, "dep+con"] if name in ("dep", "con") else [name]
        number = math.ceil(size / len(layers))
        drawn_pairs = [pair for layer in layers for pair in draw_pairs(number, seed + 1, (layer,))][:size]
    else:
        drawn_pairs = swapped_pairs(natural, name, seed + 1)
    task, usable = cast(Task, model.tasks[name]), list[_Usable]()
    for pair in drawn_pairs:
        first, second = model.encoder.tokenize_all([pair.first.words, pair.second.words])
        targets = known_target(task, pair.first), known_target(task, pair.second)
        if np.array_equal(first.counts, second.counts) and targets[0] is not None and targets[1] is not None:
            usable.append((pair, (targets[0], targets[1])))
        if len(usable) == size:
            break
    return sorted(usable, key=lambda usable_pair: len(usable_pair[0].first))


class _Margins:
    """Computes the margins m (P,) of one task: how much better the gold of the first sentence of a pair fits."""

    def __init__(self, model: MultiTaskModel, name: str, pairs: Sequence[_Usable], precision: torch.dtype) -> None:
        self.model, self.name, self.targets = model, name, [targets for _, targets in pairs]
        encoder, self.precision = model.encoder, precision
        self.batches: list[tuple[list[int], dict[str, EncoderBatch]]] = []
        for rows in batched(range(len(pairs)), _BATCH):
            batches_of_sides = {
                side: encoder.collate(encoder.tokenize_all([getattr(pairs[row][0], side).words for row in rows]))
                for side in ("first", "second")
            }
            self.batches.append((rows, {side: batch.to(model.device) for side, batch in batches_of_sides.items()}))
        with autocast(model.device, precision):
            self.outputs_of_second = [
                head_outputs(encoder, batch_of_side["second"]) for _, batch_of_side in self.batches
            ]

    @torch.no_grad()
    def of(self, side: str) -> Floats:
        """Return the margins (P,) on the "first" or the "second" sentences, without any exchange."""
        with autocast(self.model.device, self.precision):
            return np.concatenate(
                [self._margins(rows, self.model.encoder(batch_of_side[side])) for rows, batch_of_side in self.batches]
            )

    @torch.no_grad()
    def exchanged(self, heads: Mask) -> Floats:
        """Return the margins (P,) on the first sentences, with the outputs of these heads taken from the second."""
        encoder, mask, parts = self.model.encoder, torch.from_numpy(heads), []
        for (rows, batch_of_side), outputs in zip(self.batches, self.outputs_of_second, strict=True):
            with autocast(self.model.device, self.precision), ablated(encoder, mask, "exchange", outputs=outputs):
                parts.append(self._margins(rows, encoder(batch_of_side["first"])))
        return np.concatenate(parts)

    def _margins(self, rows: Sequence[int], encoded: Encoded) -> Floats:
        """Return the margins of encoded sentences, which belong to the pairs with these indices."""
        task = self.model.tasks[self.name]
        losses = [
            [float(sentence_loss(task, encoded.select([index]), self.targets[row][side])) for side in (1, 0)]
            for index, row in enumerate(rows)
        ]
        second, first = np.array(losses).T
        return np.asarray(second - first)


class Share(NamedTuple):
    """Shares of a task's change that pass through one set of heads.

    Attributes:
        set_share: (S,), share through the set.
        random: (S,), mean share through random heads of the same layers.
        beyond: difference of the two shares, with its resamples of pairs.
        draw_shares: (D,), contribution of each draw of random heads to the difference, as a mean over seeds.
    """

    seeds: tuple[int, ...]
    set_share: Floats
    random: Floats
    beyond: Resampled
    draw_shares: Floats


Shares = dict[tuple[str, str, str], Share]
"""Shares by label of the runs, task, and label of the set of heads."""


def _shares(changes: Changes, request: Request) -> Shares:
    """Compute the shares of all sets. Within a task, all sets use the same resamples of pairs."""
    shares = {}
    for (label, task), runs in changes.items():
        seeds = tuple(sorted(runs))
        full_change = np.stack([runs[seed].full_change for seed in seeds])  # (S, P)
        size = full_change.shape[1]
        generator = np.random.default_rng([request.seed, 17, _LAYERS.index(task)])
        weights = generator.multinomial(size, np.full(size, 1 / size), size=request.options.resamples)  # (C, P)
        for closed_label in runs[seeds[0]].through:
            through = np.stack([runs[seed].through[closed_label] for seed in seeds], 1)  # (1 + D, S, P)
            beyond = through[0] - through[1:].mean(0)
            booted = (beyond @ weights.T / (full_change @ weights.T)).T  # (C, S)
            set_share, *draws = through.sum(2) / full_change.sum(1)  # (S,) each
            random = np.mean(draws, axis=0)
            draw_shares = -np.mean(draws, axis=1)  # negative, because random shares are subtracted
            shares[label, task, closed_label] = Share(
                seeds, set_share, random, Resampled(set_share - random, booted), draw_shares
            )
    return shares


def _cells(shares: Shares, changes: Changes) -> Iterator[tuple[dict[str, object], Contrast]]:
    """Yield the rows of the frame ``cells``, with their contrasts."""
    for (label, task, closed_label), share in shares.items():
        runs = changes[label, task]
        row = {"encoder": label, "task": task, "other": closed_label, "share": share.set_share.mean()}
        row |= {"random": share.random.mean(), "pairs": len(runs[share.seeds[0]].full_change)}
        row |= {"decided": np.mean([run.decided for run in runs.values()])}
        yield row, Contrast.of(share.beyond, one_run=True, draws=share.draw_shares[None])


def _contrasts(shares: Shares) -> Iterator[tuple[dict[str, object], Contrast]]:
    """Yield the rows of the frame ``contrasts``, with their contrasts, as means over the tasks that claim heads.

    A label is left out if fewer than two of its tasks claim heads, or if these tasks have different seeds.
    """
    for label in dict.fromkeys(label for label, *_ in shares):
        shares_of_label = {
            (task, closed_label): share
            for (encoder_label, task, closed_label), share in shares.items()
            if encoder_label == label
        }
        tasks = [task for task in _LAYERS if (task, task.upper()) in shares_of_label]
        if len(tasks) < 2 or len({shares_of_label[task, task.upper()].seeds for task in tasks}) > 1:
            continue
        claimed_labels = [
            closed_label
            for closed_label in dict.fromkeys(closed_label for _, closed_label in shares_of_label)
            if closed_label != STEM and not is_joint(closed_label)
        ]
        own_weights = {(task, task.upper()): 1 / len(tasks) for task in tasks}
        pairs_of_others = [
            (task, closed_label) for task in tasks for closed_label in claimed_labels if closed_label != task.upper()
        ]
        weights_of_others = dict.fromkeys(pairs_of_others, 1 / len(pairs_of_others))
        terms = {
            "own": own_weights,
            "others": weights_of_others,
            "own minus others": {**own_weights, **{key: -w for key, w in weights_of_others.items()}},
        }
        if (tasks[0], STEM) in shares_of_label:
            terms["stem"] = {(task, STEM): 1 / len(tasks) for task in tasks}
        for name, weights in terms.items():
            figure = weighted([shares_of_label[key].beyond for key in weights], [*weights.values()])
            # All tasks use the same draws for a set, so their contributions are added before the variance is taken.
            by_set: dict[str, Floats] = {}
            for key, weight in weights.items():
                by_set[key[1]] = by_set.get(key[1], 0.0) + weight * shares_of_label[key].draw_shares
            yield {"encoder": label, "term": name}, Contrast.of(figure, draws=np.stack([*by_set.values()]))


def _stems(shares: Shares) -> Iterator[dict[str, object]]:
    """Yield the rows of the frame ``stems``: for each run, the number of tasks whose change stem heads carry."""
    carried_by_run: dict[tuple[str, int], list[bool]] = {}
    for (label, _, closed_label), share in shares.items():
        for seed, set_share in zip(share.seeds, share.set_share, strict=True) if closed_label == STEM else ():
            carried_by_run.setdefault((label, seed), []).append(set_share >= _CARRIED_FROM)
    for (label, seed), tasks in sorted(carried_by_run.items()):
        yield {"encoder": label, "seed": seed, "carried": sum(tasks), "of": len(tasks)}
