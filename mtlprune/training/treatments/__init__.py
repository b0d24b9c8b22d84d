"""Treatments of multi-task training, by their names in the settings ``treatment`` of a configuration.

To add a treatment, write a subclass of `Treatment` whose attribute ``Options`` defines its settings. Add it to
`_BUILT_IN`, or name it in an entry point of the group ``mtlprune.treatments`` of an installed package.
docs/methods/treatments.md lists the treatments that can be combined.
"""

from typing import Any

import torch

from mtlprune.config.blocks import ADDED_TREATMENTS
from mtlprune.config.config import Config, ConfigError
from mtlprune.encoder.heads import head_mask
from mtlprune.evaluation.head_masks import head_names
from mtlprune.model import MultiTaskModel
from mtlprune.runs.folder import RunFolder
from mtlprune.training.callbacks import Callback
from mtlprune.training.heads import Sets, choose
from mtlprune.training.run import NewRun, Run
from mtlprune.training.treatments.allocation import Clone, Dispatch, Project, Protect
from mtlprune.training.treatments.base import HeadGradients, Treatment, TreatmentContext
from mtlprune.training.treatments.distil import Distil
from mtlprune.training.treatments.merge import Merge

_BUILT_IN: dict[str, type[Treatment[Any]]] = {
    "distil": Distil,
    "dispatch": Dispatch,
    "clone": Clone,
    "protect": Protect,
    "project": Project,
    "merge": Merge,
}


def find(name: str) -> type[Treatment[Any]]:
    """Return the class of a treatment by its name."""
    kind: type[Treatment[Any]] = _BUILT_IN[name] if name in _BUILT_IN else ADDED_TREATMENTS[name]
    return kind


def attach_treatments(run: NewRun) -> None:
    """Check the treatments of a run, choose their heads, and add their parameters to the model.

    ``model.treated`` records the heads of each treatment. A resumed run takes them from its folder.

    Raises ConfigError, EncoderError or RunError if a treatment cannot be applied.
    """
    config, model = run.config, run.model
    recorded = run.folder.treated() if run.folder is not None and run.folder.has("config.yaml") else None
    for name, options in config.treatment.chosen_treatments.items():
        kind, entry = find(name), {}
        if kind.factors is not Treatment.factors:
            _check_gradients(name, config)
        if (heads_config := kind.heads_of(options)) is not None:
            kind.check_model(model)
            if recorded is None:
                key = f"treatment.{name}.heads"
                sets = {"heads": choose(heads_config, config, model, kind.one_set, key)}
                if heads_config.like is not None:
                    sets["like"] = choose(heads_config.like, config, model, kind.one_set, f"{key}.like")
                entry = {
                    purpose: {task: head_names(mask.numpy()) for task, mask in masks.items()}
                    for purpose, masks in sets.items()
                }
            else:
                entry = recorded[name]
        kind.check(run, options)
        model.treated[name] = entry
        kind.shape(model, _chosen_heads(model, name), options)


def _check_gradients(name: str, config: Config) -> None:
    """Raise ConfigError if a treatment with `Treatment.factors` is combined with settings that exclude it."""
    joint, projects = config.train.mixing == "joint", name != "project" and config.treatment.project is not None
    for is_set, setting in (
        ("encoder" in config.train.freeze, "train.freeze: encoder"),
        (joint and config.encoder.checkpointing is True, "encoder.checkpointing"),
        (config.syntax.strength != 0, "syntax"),
        (projects, "treatment.project"),
    ):
        if is_set:
            raise ConfigError(f"treatment.{name} cannot be combined with {setting}; leave one of the two out")


def _chosen_heads(model: MultiTaskModel, name: str) -> Sets:
    """Return the mask (L, A) of a treatment's heads for each task (or "shared"), as the model records them."""
    if "heads" not in model.treated[name]:
        return {}
    size = model.encoder.head_hooks.layers, model.encoder.head_hooks.heads
    return {task: head_mask(heads, *size) for task, heads in model.treated[name]["heads"].items()}


def begin_treatments(run: Run, folder: RunFolder, precision: torch.dtype) -> None:
    """Call `Treatment.begin` of each treatment of a run, once before its first update."""
    for name, options in run.config.treatment.chosen_treatments.items():
        find(name).begin(options, run, folder, precision)


def treatment_callbacks(run: Run, folder: RunFolder, total: int) -> list[Callback]:
    """Return the callbacks of the treatments of a run.

    If treatments weight the gradients of heads, the callback that does so for all of them comes first.

    Args:
        total: the number of updates of the run.
    """
    treatments = [
        find(name)(TreatmentContext(options, run, folder, total, _chosen_heads(run.model, name)))
        for name, options in run.config.treatment.chosen_treatments.items()
    ]
    gradient_treatments = [treatment for treatment in treatments if type(treatment).factors is not Treatment.factors]
    return [*([HeadGradients(run.model, gradient_treatments)] if gradient_treatments else []), *treatments]


__all__ = ["Treatment", "TreatmentContext", "attach_treatments", "begin_treatments", "treatment_callbacks"]
