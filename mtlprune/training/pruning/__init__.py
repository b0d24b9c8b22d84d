"""The gates of a run: checks of the settings ``pruning``, masks of fixed heads, and the lines of gates.jsonl."""

import math
from typing import cast

import numpy as np
import torch
from torch import Tensor

from mtlprune.config import nearest
from mtlprune.config.blocks import HeadsConfig
from mtlprune.config.config import Config, ConfigError
from mtlprune.encoder.gates import first_logits
from mtlprune.encoder.interventions import measure_means
from mtlprune.evaluation.head_masks import OPEN_ABOVE, Mask, nested_heads, random_heads
from mtlprune.model import SHARED, MultiTaskModel
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.forms import GateLine
from mtlprune.training.heads import choose as named_heads
from mtlprune.training.pruning.gate_penalty import claim_like, make_penalty, seeded
from mtlprune.training.pruning.selectors import SELECTORS, choose, expected_false, gates_config
from mtlprune.training.run import NewRun, Run, gate_sets
from mtlprune.training.start import check_compatible, check_finished, check_same_labels


def record(model: MultiTaskModel, epoch: int, step: int) -> GateLine:
    """Return a line of gates.jsonl: evaluated gates, number of open heads and expected number, for every gate set."""
    sets = gate_sets(model)
    return {
        "epoch": epoch,
        "step": step,
        "open": {name: gates.open_count() for name, gates in sets.items()},
        "expected": {name: round(float(gates.expected_open().detach()), 4) for name, gates in sets.items()},
        "gates": {
            name: [[float(f"{value:.6g}") for value in row] for row in gates.evaluated().detach().cpu().tolist()]
            # Rounding to six significant digits keeps small gates above 0, because 0 means closed.
            for name, gates in sets.items()
        },
    }


def check_pruning(run: NewRun) -> None:
    """Raise ConfigError if the settings of ``pruning`` do not fit the heads of the encoder.

    Examples are a larger ``keep`` than the number of heads, and an encoder from which heads were removed.
    """
    config, model, settings = run.config, run.model, run.config.pruning
    if settings.method == "none":
        return
    hooks = model.encoder.head_hooks
    if model.encoder.head_map is not None:
        raise ConfigError(
            f"pruning.method: {settings.method}: expected an encoder with all its heads, found one whose heads were "
            f"removed ({model.encoder.head_map.count} "
            f"of {hooks.layers * hooks.heads} are left), and gates need all heads; give pruning=none, or the encoder "
            "before the removal"
        )
    heads = hooks.layers * hooks.heads
    if settings.keep is not None and settings.keep > heads:
        raise ConfigError(
            f"pruning.keep: expected at most the encoder's {heads} heads ({hooks.layers} layers × {hooks.heads}), "
            f"found {settings.keep}"
        )
    if settings.moves:
        make_penalty(config, model, 1)
    if settings.method == "stable":
        _check_stable(run, heads)


def _check_stable(run: NewRun, heads: int) -> None:
    """Raise ConfigError if ``pruning.method: stable`` cannot select heads reliably.

    This is the case if half of the selected heads or more may be false, if the gates of a selector cannot settle or
    move less than the distance between their initial values, or if there are fewer than two sentences. An unknown
    selector is refused too.
    """
    settings = run.config.pruning
    if settings.selector not in SELECTORS:
        hint = nearest(settings.selector, SELECTORS)
        raise ConfigError(
            f"pruning.selector: expected one of {', '.join(SELECTORS)}, found {settings.selector!r}{hint}"
        )
    keep, threshold = cast(int, settings.keep), settings.threshold
    bound = expected_false(keep, threshold, heads)
    if bound >= keep / 2:
        max_heads = math.ceil((2 * threshold - 1) * heads / 2) - 1
        remedy = f"keep 1 to {max_heads} heads, or raise the threshold" if max_heads > 0 else "raise the threshold"
        raise ConfigError(
            f"pruning.keep: if each half of the data selects {keep} of {heads} heads and pruning.threshold is "
            f"{threshold:g}, up to {bound:.1f} claims are expected to be false, which is half of {keep} or "
            f"more; {remedy}"
        )
    if settings.selector == "gates":
        make_penalty(gates_config(run.config, 0), run.model, settings.selector_updates)
    hooks = run.model.encoder.head_hooks
    first = first_logits(hooks.layers, hooks.heads, settings.init).numpy()
    # This is the distance that the logit of a gate has to move before the gate can overtake another gate, or close.
    distance = max(float(np.ptp(first)), float(first.max()))
    if settings.selector in ("gates", "topk") and settings.rate * settings.selector_updates < distance:
        raise ConfigError(
            f"pruning.rate: expected at least {distance / settings.selector_updates:.2g} for init: {settings.init} and "
            f"{settings.selector_updates} selector_updates, found {settings.rate:g}, with which logits move less than "
            "the distance between their starting values, so that chance chooses the heads; raise the rate, or leave "
            "out init and rate"
        )
    annotated_count = sum(any(sentence.get(task) is not None for task in run.config.tasks) for sentence in run.train)
    if min(annotated_count, settings.importance_sentences) < 2:
        raise ConfigError("pruning.method: stable: expected two training sentences or more to halve, found fewer")


def check_rankings(run: NewRun) -> None:
    """Raise ConfigError if the runs or heads that ``pruning`` names cannot determine the open heads.

    A resumed run is not checked, because its heads are already chosen.
    """
    settings = run.config.pruning
    if run.resumes:
        return
    if settings.importance_of is not None:
        source = check_compatible(run.config, settings.importance_of, "pruning.importance_of", run.folder)
        check_same_labels(run.vocabularies, source, "pruning.importance_of")
        gates_of_other = source.best_gates()[1] if source.has("gates.jsonl") else {}
        open_heads = [int((gates > OPEN_ABOVE).sum()) for gates in gates_of_other.values()]
        if open_heads and settings.keep is not None and min(open_heads) < settings.keep:
            raise ConfigError(
                f"pruning.importance_of: expected a run with {settings.keep} open heads or more, found "
                f"{min(open_heads)} in {settings.importance_of}, whose closed heads have no importance by which they "
                "could be ranked"
            )
    if settings.method == "given":
        _given_masks(run.config, run.model)
    if settings.layers_like is not None:
        check_finished(settings.layers_like, "pruning.layers_like", run.folder)
        _layer_counts(run.config, run.model)


def fix_heads(run: Run, folder: RunFolder, precision: torch.dtype) -> None:
    """Set, before the first update, what closed heads contribute and which heads are open.

    The contribution (``pruning.closed``: mean or optimal) is measured for all methods. Heads are chosen only for
    methods that do not learn gates. Their gates are fixed for the whole run, or with ``pruning.noise`` only after the
    share ``pruning.settle`` of the updates.

    Raises:
        RunError: another run cannot be read, or a file cannot be written.
    """
    settings, means = run.config.pruning, run.model.encoder.head_constants
    if means is not None:
        with torch.no_grad():
            means.copy_(measure_means(run.model.encoder, run.pieces))
    if settings.method == "none" or settings.learns:
        return
    if settings.method == "given":
        masks = _given_masks(run.config, run.model)
    elif settings.method == "random":
        masks = {SHARED: torch.from_numpy(drawn_heads(run.config, run.model)).float()}
    else:
        masks = {SHARED: choose(run, folder, precision)}
    for name, gates in gate_sets(run.model).items():
        if settings.noise:
            gates.mask.copy_(masks[name])
        else:
            gates.fix(masks[name])


def _given_masks(config: Config, model: MultiTaskModel) -> dict[str, Tensor]:
    """Return the mask (L, A), float32, of the heads that ``pruning.heads`` opens in each gate set.

    Raises ConfigError or ResultError if the settings do not fit the tasks, the encoder or the claims.
    """
    settings, shared = cast(HeadsConfig, config.pruning.heads), config.pruning.sets == "shared"
    return {name: mask.float() for name, mask in named_heads(settings, config, model, shared, "pruning.heads").items()}


def drawn_heads(config: Config, model: MultiTaskModel) -> Mask:
    """Draw the heads that ``pruning.method: random`` leaves open, (L, A). Raises the errors of `_layer_counts`."""
    counts, heads, draw = _layer_counts(config, model), model.encoder.head_hooks.heads, config.pruning.draw
    return random_heads(counts, heads, seeded(config, 4)) if draw is None else nested_heads(counts, heads, draw)


def _layer_counts(config: Config, model: MultiTaskModel) -> list[int]:
    """Return how many heads of each layer a random mask opens.

    Raises ConfigError or ClaimError if the run ``pruning.layers_like`` has no gates that fit (see `claim_like`).
    """
    if config.pruning.layers_like is None:
        keep, layers = cast(int, config.pruning.keep), model.encoder.head_hooks.layers
        # Heads are spread evenly; if `keep` is no multiple of the number of layers, lower layers get one head more.
        return [keep // layers + (layer < keep % layers) for layer in range(layers)]
    return claim_like(config, model).open.sum(1).tolist()
