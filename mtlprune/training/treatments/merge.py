"""Merge finished single-task runs into the encoder with which a run begins; its training then refits the decoders.

θ_0 is the encoder before any training, θ_t the encoder of the run of task t, τ_t = θ_t − θ_0, and T the number of
tasks. The rules are:

    fisher      Σ_t F_h^t θ_h^t / Σ_t F_h^t for the weights of head h, and the mean of θ_t for all other weights;
                F_h^t = E_x[(∂L_t(x) / ∂ξ_h)²], where ξ_h is a factor of the head's output
    arithmetic  θ_0 + scale Σ_t τ_t; with scale 1/T this is the mean of θ_t (Ilharco et al. 2023)
    ties        θ_0 + scale times a mean of changes (Yadav et al. 2023): each τ_t keeps only its share ``keep`` of
                entries with the largest |τ_t|; then each entry is averaged over the τ_t with the same sign as Σ_t τ_t
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mtlprune.config.blocks import MergeConfig
from mtlprune.config.config import ConfigError
from mtlprune.model import MultiTaskModel
from mtlprune.runs.folder import RunFolder
from mtlprune.training.head_gradients import derivatives, head_parameters
from mtlprune.training.heads import check_own_weights
from mtlprune.training.run import NewRun, Run
from mtlprune.training.start import check_compatible, check_same_labels
from mtlprune.training.treatments.base import Treatment

_BATCH = 32
_Weights = Mapping[str, Tensor]


def arithmetic(base: _Weights, tuned: Sequence[_Weights], scale: float | None) -> dict[str, Tensor]:
    """Return θ_0 + scale Σ_t τ_t; the default of ``scale`` is 1/T."""
    factor = 1 / len(tuned) if scale is None else scale
    return {name: start + factor * sum(weights[name] - start for weights in tuned) for name, start in base.items()}


def ties(base: _Weights, tuned: Sequence[_Weights], scale: float | None, keep: float) -> dict[str, Tensor]:
    """Return the weights merged by the rule ties; the default of ``scale`` is 1.

    The share ``keep`` refers to all weights of the encoder together, not to each parameter.
    """
    changes = torch.stack(
        [torch.cat([(weights[name] - start).flatten() for name, start in base.items()]) for weights in tuned]
    )
    count = max(1, round(keep * changes.shape[1]))
    threshold = changes.abs().kthvalue(changes.shape[1] - count + 1, dim=1, keepdim=True).values
    trimmed = changes.where(changes.abs() >= threshold, 0.0)
    agreeing = (trimmed.sign() == trimmed.sum(0).sign()) & (trimmed != 0)
    merged = trimmed.where(agreeing, 0.0).sum(0) / agreeing.sum(0).clamp(min=1)
    parts = merged.split([start.numel() for start in base.values()])
    factor = 1.0 if scale is None else scale
    return {name: start + factor * part.view_as(start) for (name, start), part in zip(base.items(), parts, strict=True)}


class Merge(Treatment[MergeConfig]):
    """Treatment that initialises the encoder by merging finished runs.

    With the default ``scale``, merging equal runs returns their encoder (with the rule ties, if ``keep`` is 1).
    """

    Options = MergeConfig

    @classmethod
    def check(cls, run: NewRun, options: MergeConfig) -> None:
        if options.method == "fisher":
            check_own_weights(run.model.encoder)
        for task, path in options.sources.items() if not run.resumes else ():
            key = f"treatment.merge.sources.{task}"
            single_task_config = run.config.model_copy(update={"tasks": (task,)})
            source = check_compatible(single_task_config, path, key, run.folder)
            if source.has("gates.jsonl"):
                raise ConfigError(
                    f"{key}: expected a run with all heads open, found {path}, which was pruned in training"
                )
            check_same_labels({task: run.vocabularies[task]}, source, key)

    @classmethod
    def begin(cls, options: MergeConfig, run: Run, folder: RunFolder, precision: torch.dtype) -> None:
        model, device = run.model, str(run.model.device)
        weights = model.encoder.named_parameters()
        # Clones, and the constants of this run's closed heads, have no counterpart in the single-task runs.
        prefixes = ("clones.", "head_constants")
        base = {name: value.detach().clone() for name, value in weights if not name.startswith(prefixes)}
        tuned, importance = [], []
        for task in run.config.tasks:
            source = MultiTaskModel.load(options.sources[task], device=device)
            tuned.append({name: dict(source.encoder.named_parameters())[name].detach() for name in base})
            model.tasks[task].load_state_dict(source.tasks[task].state_dict())
            if options.method == "fisher":
                importance.append(_fisher(run, source, task, options.sentences, precision))
        if options.method == "ties":
            merged = ties(base, tuned, options.scale, options.keep)
        else:
            merged = arithmetic(base, tuned, options.scale)
        with torch.no_grad():
            for name, parameter in model.encoder.named_parameters():
                if name in merged:
                    parameter.copy_(merged[name])
            if options.method == "fisher":
                _weigh_heads(model, tuned, torch.stack(importance))


def _fisher(run: Run, model: MultiTaskModel, task: str, sentences: int, precision: torch.dtype) -> Tensor:
    """Compute E[(∂L / ∂ξ_h)²], (L, A), over the first ``sentences`` training sentences with the layer of the task."""
    rows = [row for row, has in enumerate(run.is_annotated[task]) if has][:sentences]
    total = torch.zeros(model.encoder.head_hooks.layers, model.encoder.head_hooks.heads)
    for start in range(0, len(rows), _BATCH):
        batch_rows = rows[start : start + _BATCH]
        targets = {task: [run.targets[task][row] for row in batch_rows]}
        total += derivatives(model, [run.pieces[row] for row in batch_rows], targets, precision).square().sum(0)
    return total / max(1, len(rows))


def _weigh_heads(model: MultiTaskModel, tuned: Sequence[_Weights], importance: Tensor) -> None:
    """Replace the weights of heads in a merged model by means that are weighted by F.

    A head with F = 0 for all tasks keeps the unweighted mean.

    Args:
        tuned: the encoder weights of the run of each task.
        importance: F, (T, L, A).
    """
    total = importance.sum(0)
    shares = torch.where(total > 0, importance / total.where(total > 0, 1.0), 1 / len(importance))
    parameter_names = {id(parameter): name for name, parameter in model.encoder.named_parameters()}
    for part in head_parameters(model.encoder):
        merged = torch.stack(
            [
                weights[parameter_names[id(part.parameter)]] * part.broadcast_to_rows(share[part.layer])
                for weights, share in zip(tuned, shares, strict=True)
            ]
        ).sum(0)
        part.parameter.copy_(merged.where(part.is_owned(), part.parameter))
