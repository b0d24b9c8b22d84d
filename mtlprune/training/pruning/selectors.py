"""Selectors, which choose heads of a finished run, and stable selection, which repeats a selector on halves of data.

A selector is a function ``select(finished, rows, seed)`` → mask (L, A). It chooses heads of a finished run on the
training sentences with the indices ``rows``; ``seed`` is for noise and ties. `SELECTORS` lists all selectors.

Letters for shapes: S sentences, L layers, A heads of a layer before any removal, d size of a head's output, H halves of
the data.
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
"""The largest number of sentences in a batch for which derivatives are computed."""
_ROUNDING = 1e-12
"""Gains below this share of the trace of a layer's Fisher matrix are ignored, so that the exchange of heads ends."""


class Finished:
    """The argument of selectors: a finished run (``pruning.importance_of``), with training sentences of another run.

    The other run is the run that is about to train, whose settings ask for the selection.

    Args:
        run: the run that is about to train.
        precision: dtype of the forward passes.

    Attributes:
        model: the model of the finished run, in evaluation mode.
        means: the mean outputs of its heads, (L, A, d), with ``pruning.closed: mean`` or ``optimal``; else None.
        keep: the number of heads that a selector has to choose.
        rows: indices of the training sentences for the selection, at most ``pruning.importance_sentences``. They are
            drawn with the training seed from the sentences that have the layer of a task.

    Raises:
        RunError: the finished run cannot be read.
    """

    def __init__(self, run: Run, precision: torch.dtype) -> None:
        settings = run.config.pruning
        self.run, self.precision, self.keep = run, precision, cast(int, settings.keep)
        self.model = MultiTaskModel.load(cast(str, settings.importance_of), device=str(run.model.device))
        self.means = measure_means(self.model.encoder, run.pieces) if settings.closed in CONSTANT else None
        # Sentences without the layer of a task are left out, because they have no loss and thus no derivatives.
        annotated_rows = [row for row in range(len(run.pieces)) if any(has[row] for has in run.is_annotated.values())]
        count = min(settings.importance_sentences, len(annotated_rows))
        # The last number of the seed stands for the purpose of the generator, so that these draws are independent of
        # the noise of gates and of the order of batches.
        self._generator = np.random.default_rng(np.random.SeedSequence([run.config.train.seed, 5]))
        self.rows = [
            annotated_rows[place] for place in self._generator.permutation(len(annotated_rows))[:count].tolist()
        ]

    @cached_property
    def _slopes(self) -> Tensor:
        """Derivatives of all training sentences, (number of sentences, L, A), with 0 for sentences outside ``rows``."""
        hooks = self.model.encoder.head_hooks
        # The tensor has an entry for each training sentence, so that every half of the data can index it directly. It
        # is small: 2,000 sentences with 72 heads need half a megabyte.
        slopes = torch.zeros(len(self.run.pieces), hooks.layers, hooks.heads)
        lengths = [self.run.lengths[row] for row in self.rows]
        for batch in batches(lengths, BATCH, 4096, self._generator, shuffle=False):
            batch_rows = [self.rows[place] for place in batch]
            slopes[batch_rows] = sentence_derivatives(
                self.run, self.model, batch_rows, self.precision, self.substitutes
            )
        return slopes

    def substitutes(self, batch: EncoderBatch) -> Substitutes | None:
        """Return what heads contribute to a batch when the run that is about to train closes them; None for nothing."""
        if self.run.config.pruning.closed != "resample":
            return self.means
        return self.model.encoder.outputs_elsewhere(batch, donors(batch, self.run.config.train.seed))

    def derivatives(self, rows: Sequence[int]) -> Tensor:
        """Return ∂L(x) / ∂ξ of sentences among ``rows``, (len(rows), L, A) float32 on the CPU.

        The first call computes the derivatives of all sentences; see `sentence_derivatives`.
        """
        return self._slopes[list(rows)]


def sentence_derivatives(
    run: Run, model: MultiTaskModel, rows: list[int], precision: torch.dtype, substitute: Substitute | None = None
) -> Tensor:
    """Compute `derivatives` for training sentences of a run and its tasks, (len(rows), L, A).

    Args:
        model: a model in evaluation mode, with the vocabularies of the run.
    """
    targets = {
        name: [run.targets[name][row] if run.is_annotated[name][row] else None for row in rows]
        for name in run.config.tasks
    }
    return derivatives(model, [run.pieces[row] for row in rows], targets, precision, substitute)


def importance(slopes: Tensor) -> Tensor:
    """Compute the importance of each head, E_x |∂L(x) / ∂ξ_h|, (S, L, A) → (L, A).

    Source: Michel, Levy and Neubig (2019), equation 5. As there, the importances of each layer are divided by their l2
    norm.
    """
    sums = slopes.abs().sum(0)
    # Without the division, whole layers would be chosen, because the size of derivatives depends on depth. The clamp is
    # for layers in which all derivatives are 0.
    return sums / sums.norm(dim=1, keepdim=True).clamp(min=1e-30)


def fisher_mask(slopes: Tensor, keep: int, generator: np.random.Generator) -> Tensor:
    """Select ``keep`` heads by Fisher information (Kwon et al. 2022, sections 4.2 and 4.3).

    Heads that are not selected are those whose closing raises the loss least, according to the second-order expansion
    of the loss at ξ = 1. Its curvature is the empirical Fisher matrix F = Σ_x ∂L(x) ∂L(x)ᵀ. First the heads with the
    largest F_hh are selected. Then `refine_by_swaps` exchanges heads within each layer by the layer's block of F.

    Args:
        slopes: ∂L(x) / ∂ξ, (S, L, A).
        generator: random generator that breaks ties between heads.

    Returns:
        The mask, (L, A) of 0 and 1, float32.
    """
    slopes = slopes.double()
    # The diagonal of F is the sum of squared derivatives over sentences. It determines how many heads of each layer
    # are selected; the block of the layer determines which.
    mask = largest(slopes.square().sum(0), keep, generator)
    return torch.stack([refine_by_swaps(heads, g.T @ g) for heads, g in zip(mask, slopes.unbind(1), strict=True)])


def refine_by_swaps(mask: Tensor, information: Tensor) -> Tensor:
    """Exchange open and closed heads of a layer until no exchange of two heads lowers Σ F_gh over closed heads g and h.

    In a round, every open head is closed for a trial, from the least to the most important head. Then the closed head
    whose opening leaves the smallest sum is opened. Kwon et al. (2022) make a single round in their code; here, rounds
    are repeated until a round changes nothing.

    Args:
        mask: (A,) of 0 and 1.
        information: F, (A, A) float64.

    Returns:
        The new mask, (A,), with the same number of open heads.
    """
    importances = information.diagonal()
    # A mask has no entry of −1, so no head is closed in `before`, and a first round follows if any head is closed.
    closed, before = mask == 0, mask == -1
    while not torch.equal(closed, before):
        before = closed.clone()
        for head in importances.argsort(stable=True).tolist():
            if closed[head]:
                continue
            closed[head] = True
            # Opening a closed head g changes the sum over pairs of closed heads by F_gg − 2 Σ_h F_gh, where h runs over
            # the closed heads including g and the trial head. The smallest value determines the head to open.
            change = (importances - 2 * information @ closed.double()).where(closed, torch.inf)
            best = int(change.argmin())
            # The trial head is opened again unless another head is better by more than a rounding error. So every
            # exchange lowers the sum, and the loop must end.
            closed[best if change[best] < change[head] - _ROUNDING * importances.sum() else head] = False
    return (~closed).to(mask)


def _train_gates(finished: Finished, rows: Sequence[int], seed: int) -> Tensor:
    """Train new gates on a frozen finished run, and return the mask (L, A) of open heads.

    The gates are Hard Concrete gates with ``penalty: exact`` or top-K gates, according to ``pruning.selector``. They
    are trained for ``pruning.selector_updates`` updates. Encoder and decoders are frozen and have no dropout, so the
    seed affects only the noise of the gates and the order of sentences. Gates of the finished run are ignored. As a
    side effect, the weights of the finished run no longer require gradients.
    """
    settings, config = finished.run.config.pruning, gates_config(finished.run.config, seed)
    encoder, device = finished.model.requires_grad_(False).encoder, finished.model.device
    # What closed heads contribute depends on the settings of the run that is about to train, not of the finished run.
    set_substitute(encoder, settings.closed, finished.means)
    decoders = dict(finished.model.tasks.items())
    model = MultiTaskModel(encoder, decoders, make_gates(config, encoder)).to(device)  # type: ignore[arg-type]
    # Only the gates are in training mode, so that they draw noise, but encoder and decoders have no dropout.
    gates = cast(Gates, model.eval().gates[SHARED].train())
    gates.noise = torch.Generator(device).manual_seed(seed)
    penalty = GatePenalty(config, model, settings.selector_updates)
    optimizer = torch.optim.Adam([gates.logits], settings.rate)
    generator, batches_of_places = np.random.default_rng(seed), list[list[int]]()
    lengths = [finished.run.lengths[row] for row in rows]
    # Batches are made epoch by epoch until there are enough; the rest of the last epoch is not used.
    while len(batches_of_places) < settings.selector_updates:
        batches_of_places += batches(lengths, settings.selector_sentences, config.train.batch_tokens, generator)
    for step, batch_places in enumerate(batches_of_places[: settings.selector_updates]):
        batch = finished.run.batch(MiniBatch(config.tasks, [rows[place] for place in batch_places]))
        with autocast(device, finished.precision):
            losses = model.losses(batch)
        # The order is that of the training loop. The backward pass of the tasks comes first, because the penalty is
        # scaled by the gradient of the tasks.
        torch.stack(list(losses.values())).sum().backward()
        penalty.before_update(step)
        penalty.before_step(losses)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        penalty.after_step()
        # Fixed gates have no gradient, so further updates would change nothing.
        if gates.is_fixed():
            break
    return gates.evaluated().detach().cpu()


def gates_config(config: Config, seed: int) -> Config:
    """Return the configuration with which the selectors gates and topk train gates on a half of the data."""
    trained = {"method": config.pruning.selector, "penalty": "exact", "noise": False}
    pruning = config.pruning.model_copy(update=trained)
    return config.model_copy(update={"pruning": pruning, "train": config.train.model_copy(update={"seed": seed})})


_Selector = Callable[[Finished, Sequence[int], int], Tensor]
"""A function of a finished run, indices of training sentences and a seed that returns a mask, (L, A) of 0 and 1."""

# Importance and Fisher information have no noise, so their seed only breaks ties.
SELECTORS: dict[str, _Selector] = {
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
    """Return the mask (L, A) of the heads that ``pruning.method`` (importance, fisher or stable) chooses.

    With ``stable``, selection.json is written into the run folder.

    Raises:
        RunError: the finished run cannot be read, or selection.json cannot be written.
    """
    settings, seed = run.config.pruning, run.config.train.seed
    finished = Finished(run, precision)
    if settings.method != "stable":
        return SELECTORS[settings.method](finished, finished.rows, seed)
    generator = seeded(run.config, 6)
    masks = selections(SELECTORS[settings.selector], finished, finished.rows, settings.halves, generator)
    # The frequency of a head is π of Meinshausen and Bühlmann, the share of halves on which the head is selected. A
    # head that is selected by chance is rarely selected on most halves.
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
    """Apply a selector to ``number`` random halves of the sentences, with a different seed for each half.

    Returns the masks, (H, L, A).
    """
    # All halves and seeds are drawn before the selector is called, so that they do not depend on the selector.
    parts = list(halves(rows, number, generator))
    seeds = generator.integers(2**31, size=number).tolist()
    return torch.stack([select(finished, part, seed) for part, seed in zip(parts, seeds, strict=True)])


def halves(rows: Sequence[int], number: int, generator: np.random.Generator) -> Iterator[list[int]]:
    """Draw complementary pairs of halves of the sentences (Shah and Samworth 2013), ``number`` (even) halves in total.

    If the number of sentences is odd, each pair leaves a sentence out.
    """
    # The two halves of a pair share no sentence. The bound on false selections then needs weaker assumptions than with
    # independent subsamples.
    size = len(rows) // 2
    for _ in range(number // 2):
        order = generator.permutation(rows).tolist()
        yield from (order[:size], order[size : 2 * size])


def expected_false(keep: int, threshold: float, heads: int) -> float:
    """Return an upper bound on the expected number of falsely selected heads, q² / ((2π − 1) p).

    The bound (Meinshausen and Bühlmann 2010, theorem 1) holds if the heads that should not be selected are
    exchangeable, and if the selector is not worse than a random choice of heads.

    Args:
        keep: q, the number of heads selected on each half.
        threshold: π, the share of halves on which a head must be selected, above one half.
        heads: p, the number of heads.
    """
    return keep**2 / ((2 * threshold - 1) * heads)
