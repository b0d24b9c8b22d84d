"""Heads chosen on a finished run: by importance, by Fisher information, and those on which halves of the data agree.

A selector is one function ``select(finished, rows, seed)`` → mask (L, A): on a finished run, from some training
sentences, with a seed for its noise where it has any. ``SELECTORS`` names them; ``stable`` calls one again and again.

Letters for shapes: S sentences, L layers, A heads a layer before any was removed, d values a head has, H halves of the
data.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import Tensor

from mtlprune.config.config import Config
from mtlprune.encoder.batch import EncoderBatch, donors
from mtlprune.encoder.gates import Gates
from mtlprune.encoder.heads import Substitutes
from mtlprune.encoder.interventions import CONSTANT, measure_means, set_substitute
from mtlprune.model import SHARED, MultiTaskModel, autocast, make_gates
from mtlprune.runs.folder import SELECTION, RunFolder
from mtlprune.training.head_gradients import Substitute, derivatives
from mtlprune.training.mixing import MiniBatch, batches
from mtlprune.training.pruning.gate_penalty import GatePenalty, seeded
from mtlprune.training.pruning.penalty import largest
from mtlprune.training.run import Run

log = logging.getLogger(__name__)

BATCH = 32
ROUNDING = 1e-12
"""Gains below this part of the trace of a layer's Fisher matrix do not move a head, so that exchanging heads ends."""


class Finished:
    """A finished run (pruning.importance_of) as selectors see it, on the training sentences of the run that asks.

    Args:
        run: the one that asks.
        precision: to compute in.

    Attributes:
        model: the finished one, in evaluation mode.
        means: of its heads, (L, A, d), with pruning.closed: mean or optimal; else None.
        keep: how many heads a selector has to choose.
        rows: the sentences to choose by, at most pruning.importance_sentences, drawn by the seed; each has a layer.

    Raises:
        RunError: a run that cannot be read.
    """

    def __init__(self, run: Run, precision: torch.dtype) -> None:
        settings = run.config.pruning
        self.run, self.precision, self.keep = run, precision, cast(int, settings.keep)
        self.model = MultiTaskModel.load(cast(str, settings.importance_of), device=str(run.model.device))
        self.means = measure_means(self.model.encoder, run.pieces) if settings.closed in CONSTANT else None
        # A sentence without any layer of the run's tasks has no loss and so no derivative; counting it would only
        # dilute the halves.
        annotated_rows = [row for row in range(len(run.pieces)) if any(has[row] for has in run.is_annotated.values())]
        count = min(settings.importance_sentences, len(annotated_rows))
        # The number at the end of such a list tells apart what randomness is for, so that drawing sentences here does
        # not shift the noise of gates or the order of batches.
        self._generator = np.random.default_rng(np.random.SeedSequence([run.config.train.seed, 5]))
        self.rows = [
            annotated_rows[place] for place in self._generator.permutation(len(annotated_rows))[:count].tolist()
        ]

    @cached_property
    def _slopes(self) -> Tensor:
        """Derivatives for all ``rows`` in one pass, by the number of the sentence."""
        places = self.model.encoder.head_hooks
        # Indexed by the number of the sentence in the corpus and not by its place in `rows`, so that every half reads
        # its own with one index. The whole tensor is small: 2,000 sentences × 72 heads are half a megabyte.
        slopes = torch.zeros(len(self.run.pieces), places.layers, places.heads)
        lengths = [self.run.lengths[row] for row in self.rows]
        for batch in batches(lengths, BATCH, 4096, self._generator, shuffle=False):
            batch_rows = [self.rows[place] for place in batch]
            slopes[batch_rows] = sentence_derivatives(
                self.run, self.model, batch_rows, self.precision, self.substitutes
            )
        return slopes

    def substitutes(self, batch: EncoderBatch) -> Substitutes | None:
        """The contributions of heads to a batch where the run that asks closes them; None for nothing."""
        if self.run.config.pruning.closed != "resample":
            return self.means
        return self.model.encoder.outputs_elsewhere(batch, donors(batch, self.run.config.train.seed))

    def derivatives(self, rows: Sequence[int]) -> Tensor:
        """∂L(x) / ∂ξ for some of ``rows`` (see `sentence_derivatives`): the first call makes the only pass.

        Returns:
            (len(rows), L, A) float32, on the CPU.
        """
        return self._slopes[list(rows)]


def sentence_derivatives(
    run: Run, model: MultiTaskModel, rows: list[int], precision: torch.dtype, substitute: Substitute | None = None
) -> Tensor:
    """`derivatives` of some training sentences of a run, (len(rows), L, A), on the tasks of the run.

    Args:
        model: in evaluation mode, with the vocabularies of the run.
    """
    targets = {
        name: [run.targets[name][row] if run.is_annotated[name][row] else None for row in rows]
        for name in run.config.tasks
    }
    return derivatives(model, [run.pieces[row] for row in rows], targets, precision, substitute)


def importance(slopes: Tensor) -> Tensor:
    """The importance of each head of a finished run: E_x |∂L(x) / ∂ξ_h| (Michel, Levy and Neubig 2019, equation 5),
    normalised within each layer by the l2 norm as there. (S, L, A) → (L, A)"""
    sums = slopes.abs().sum(0)
    # Each layer is divided by its norm, because derivatives shrink or grow with depth whatever heads do; without it,
    # whole layers would be chosen. The clamp serves layers in which no head matters at all.
    return sums / sums.norm(dim=1, keepdim=True).clamp(min=1e-30)


def fisher_mask(slopes: Tensor, keep: int, generator: np.random.Generator) -> Tensor:
    """The heads whose closing raises the loss least by its second-order expansion at ξ = 1, with the empirical Fisher
    matrix F = Σ_x ∂L(x) ∂L(x)ᵀ for its curvature (Kwon et al. 2022, sections 4.2 and 4.3): the ``keep`` heads with the
    largest F_hh stay open, then each layer exchanges heads by its whole block of F (`refine_by_swaps`).

    Args:
        slopes: (S, L, A), ∂L(x) / ∂ξ.
        generator: draws among equal heads.

    Returns:
        (L, A) of 0 and 1, float32.
    """
    slopes = slopes.double()
    # The diagonal of the empirical Fisher matrix is the sum of squared derivatives over sentences. It says how many
    # heads each layer keeps; which ones, the layer's block decides below.
    mask = largest(slopes.square().sum(0), keep, generator)
    return torch.stack([refine_by_swaps(heads, g.T @ g) for heads, g in zip(mask, slopes.unbind(1), strict=True)])


def refine_by_swaps(mask: Tensor, information: Tensor) -> Tensor:
    """Exchange closed heads of a layer for open ones until no exchange of two lowers Σ_{g,h closed} F_gh any more.

    A round as in the code of Kwon et al. (2022): every open head, the least important first, is closed for a trial, and
    of the closed ones that head is opened which leaves the least. They do one round; here rounds follow until one
    changes nothing.

    Args:
        mask: (A,) of 0 and 1.
        information: F, (A, A), float64.

    Returns:
        (A,), as many open heads as before.
    """
    importances = information.diagonal()
    # No entry of a mask is −1, so `before` differs from `closed` in the first round whatever the mask.
    closed, before = mask == 0, mask == -1
    while not torch.equal(closed, before):
        before = closed.clone()
        for head in importances.argsort(stable=True).tolist():
            if closed[head]:
                continue
            closed[head] = True
            # With the trial head closed too, the loss of opening g again changes Σ F over closed pairs by F_gg − 2
            # Σ_h F_gh (h closed, with g itself, which is why the sign of the diagonal is plus). The smallest value is
            # the best head to open; open heads cannot be opened again.
            left = (importances - 2 * information @ closed.double()).where(
                closed, torch.inf
            )  # change where one is opened
            best = int(left.argmin())
            # The head that was closed for the trial is opened again unless another one gains more than rounding does,
            # so every exchange lowers the sum, and the loop must end.
            closed[best if left[best] < left[head] - ROUNDING * importances.sum() else head] = False
    return (~closed).to(mask)


def _train_gates(finished: Finished, rows: Sequence[int], seed: int) -> Tensor:
    """The heads that gates leave open which are trained alone, for pruning.selector_updates: Hard Concrete gates with
    penalty: exact, or top-K gates, as pruning.selector says.

    Encoder and decoders neither move nor drop out, so the seed's noise is that of gates and the order of sentences.
    Gates of the finished run play no part. From then on its weights take no gradients.
    """
    settings, config = finished.run.config.pruning, gates_config(finished.run.config, seed)
    encoder, device = finished.model.requires_grad_(False).encoder, finished.model.device
    # A closed head contributes here what the run that asks lets closed heads contribute, and not what the finished
    # run did.
    set_substitute(encoder, settings.closed, finished.means)
    decoders = dict(finished.model.tasks.items())
    model = MultiTaskModel(encoder, decoders, make_gates(config, encoder)).to(device)  # type: ignore[arg-type]
    # Only the gates are in training mode: they draw noise, while dropout in encoder and decoders stays off.
    gates = cast(Gates, model.eval().gates[SHARED].train())
    gates.noise = torch.Generator(device).manual_seed(seed)
    penalty = GatePenalty(config, model, settings.selector_updates)
    optimizer = torch.optim.Adam([gates.logits], settings.rate)
    generator, cut = np.random.default_rng(seed), list[list[int]]()
    lengths = [finished.run.lengths[row] for row in rows]
    # Batches are made epoch by epoch until there are enough; the last epoch is cut off in the middle.
    while len(cut) < settings.selector_updates:
        cut += batches(lengths, settings.selector_sentences, config.train.batch_tokens, generator)
    for step, places in enumerate(cut[: settings.selector_updates]):
        batch = finished.run.batch(MiniBatch(config.tasks, [rows[place] for place in places]))
        with autocast(device, finished.precision):
            losses = model.losses(batch)
        # The order is that of the training loop: the tasks' backward pass first, because the penalty measures itself
        # in units of the tasks' gradient; then the penalty adds its own; then the optimizer steps.
        torch.stack(list(losses.values())).sum().backward()
        penalty.before_update(step)
        penalty.before_step(losses)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        penalty.after_step()
        # Fixed gates have no gradient any more, so further updates could change nothing.
        if gates.is_fixed():
            break
    return gates.evaluated().detach().cpu()


def gates_config(config: Config, seed: int) -> Config:
    """The configuration of gates that are trained on one half."""
    trained = {"method": config.pruning.selector, "penalty": "exact", "noise": False}
    pruning = config.pruning.model_copy(update=trained)
    return config.model_copy(update={"pruning": pruning, "train": config.train.model_copy(update={"seed": seed})})


_Selector = Callable[[Finished, Sequence[int], int], Tensor]
"""A finished run, rows of training sentences, a seed → mask (L, A) of 0 and 1."""

SELECTORS: dict[str, _Selector] = {  # the first two have no noise: their seed draws among equal heads
    "importance": lambda finished, rows, seed: largest(
        importance(finished.derivatives(rows)), finished.keep, np.random.default_rng(seed)
    ),
    "fisher": lambda finished, rows, seed: fisher_mask(
        finished.derivatives(rows), finished.keep, np.random.default_rng(seed)
    ),
    "gates": _train_gates,
    "topk": _train_gates,
}


def choose(run: Run, folder: RunFolder, precision: torch.dtype) -> Tensor:
    """The heads (L, A) that pruning.method (importance, fisher or stable) picks on a finished run; for stable,
    selection.json is written.

    Raises:
        RunError: a run that cannot be read; the disk is full.
    """
    settings, seed = run.config.pruning, run.config.train.seed
    finished = Finished(run, precision)
    if settings.method != "stable":
        return SELECTORS[settings.method](finished, finished.rows, seed)
    generator = seeded(run.config, 6)
    masks = selections(SELECTORS[settings.selector], finished, finished.rows, settings.halves, generator)
    # π of Meinshausen and Bühlmann: the share of halves in which a head is selected. What a selector picks by chance
    # is seldom picked on most halves.
    frequencies = masks.double().mean(0)
    folder.write_json(
        SELECTION,
        {
            "sentences": len(finished.rows) // 2,
            "expected_false": expected_false(finished.keep, settings.threshold, frequencies.numel()),
            "frequencies": frequencies.tolist(),
            "selected": [mask.flatten().nonzero().flatten().tolist() for mask in masks],
        },
    )
    is_claimed = frequencies >= settings.threshold
    if not is_claimed.any():
        log.warning("no head was selected in %g of the halves, so all heads are closed", settings.threshold)
    return is_claimed.float()


def selections(
    select: _Selector, finished: Finished, rows: Sequence[int], number: int, generator: np.random.Generator
) -> Tensor:
    """Masks that a selector chooses on each half of the sentences, with a seed of its own for each: (H, L, A)."""
    # Halves are drawn before the seeds, so that both are the same whatever selector is asked.
    parts = list(halves(rows, number, generator))
    seeds = generator.integers(2**31, size=number).tolist()
    return torch.stack([select(finished, part, seed) for part, seed in zip(parts, seeds, strict=True)])


def halves(rows: Sequence[int], number: int, generator: np.random.Generator) -> Iterator[list[int]]:
    """So many halves, an even number: random ones, each followed by the other half (Shah and Samworth 2013). Of an odd
    number of sentences each pair leaves one out."""
    # Complementary pairs (Shah and Samworth): the two halves of a pair share no sentence, and the bound on false
    # claims then needs weaker assumptions than independent subsamples do.
    size = len(rows) // 2
    for _ in range(number // 2):
        order = generator.permutation(rows).tolist()
        yield from (order[:size], order[size : 2 * size])


def expected_false(keep: int, threshold: float, heads: int) -> float:
    """At most so many false claims are expected: q² / ((2π − 1) p) (Meinshausen and Bühlmann 2010, theorem 1).

    It holds where false heads are exchangeable, and a selector is no worse than drawing heads at random.

    Args:
        keep: q, heads selected on each half.
        threshold: π, above one half.
        heads: p.
    """
    return keep**2 / ((2 * threshold - 1) * heads)
