"""From a run to a folder that plain transformers load: what is asked for, the weights, and their check."""

import contextlib
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForTokenClassification, PreTrainedModel

from mtlprune.config.config import Config, build_config
from mtlprune.encoder.export import fold_gates, text_tokenizer, with_all_heads, with_classifier
from mtlprune.encoder.gates import OPEN, Gates
from mtlprune.encoder.head_map import KeptHeads
from mtlprune.encoder.mean_ablation import fold_means
from mtlprune.encoder.model import input_embeddings
from mtlprune.encoder.removal import load_pruned, remove_heads, save_pruned
from mtlprune.encoder.sources import quiet
from mtlprune.model import SHARED, MultiTaskModel
from mtlprune.runs import RunError, RunFolder
from mtlprune.tasks.base import Task
from mtlprune.training.pruning.head_removal import TOLERANCE

ROWS, SLOTS = 4, 32
"""Of random sub-words on which both models are compared, one window each."""


@dataclass
class ExportRequest:
    """What is asked for, checked as far as can be without the weights.

    Attributes:
        run: the run.
        config: its settings.
        gate_set: whose gates go into the weights: "shared", a task, or None where it has none.
        head: the task whose linear layer goes along.
        remove: closed heads are cut out, not set to zero.
        licence: of the whole, an identifier of the hub.
    """

    run: RunFolder
    config: Config
    gate_set: str | None
    head: str | None
    remove: bool
    licence: str | None


@dataclass
class Exported:
    """What came of it.

    Attributes:
        gates: (L, A) float32; None where the run has none.
        heads: what is left, where heads were removed, now or by `mtlprune prune`; else None.
        whole: whether all heads are in the weights, removed ones as closed ones.
        difference: between states before and after, relative to the largest number in them.
        limit: sub-words that the model sees at once.
        reads_texts: whether the tokenizer splits the first word of a text as the run does, or needs a blank before it.
        pooler: whether transformers add one of random weights, if they are not told otherwise.
    """

    gates: Tensor | None
    heads: KeptHeads | None
    whole: bool
    difference: float
    limit: int | None
    reads_texts: bool
    pooler: bool


def request(run: str | Path, task: str | None, head: str | None, remove: bool, licence: str | None) -> ExportRequest:
    """Check what is asked for. Nothing is written.

    Raises:
        RunError: no run, an encoder that plain transformers cannot compute, a task or a head that it has not.
    """
    folder = RunFolder.with_weights(run)
    config = build_config(folder.read_config(), str(folder.config_path))
    part, pruning, path = config.encoder, config.pruning, folder.path
    if not part.context:
        raise RunError(f"{path} has an encoder without context (encoder.context: false): there is nothing to export")
    if part.fusion != "none":
        raise RunError(
            f"{path} joins all layers into word vectors (encoder.fusion: {part.fusion}), which no model of plain "
            "transformers does; expected fusion: none"
        )
    if head is not None:
        _check_head(config, path, head, remove)
    if pruning.method == "none" or pruning.sets == "shared":
        if task is not None:
            there = "no gates" if pruning.method == "none" else "one gate set that all tasks share"
            raise RunError(f"{path} has {there}; leave --task out")
        return ExportRequest(folder, config, None if pruning.method == "none" else SHARED, head, remove, licence)
    if task is None and head is None:
        raise RunError(
            f"{path} has a gate set for each task, and weights hold one; expected --task with one of "
            f"{', '.join(config.tasks)}"
        )
    if task is not None and (task not in config.tasks or head not in (None, task)):
        expected = head or f"one of {', '.join(config.tasks)}"
        raise RunError(f"{path} has gates for each task; expected --task {expected}, found {task}")
    return ExportRequest(folder, config, task or head, head, remove, licence)


def _check_head(config: Config, path: Path, head: str, remove: bool) -> None:
    if head not in config.tasks:
        raise RunError(f"{path} has no task {head!r} for --head; it has {', '.join(config.tasks)}")
    if config.decoder(head).linear is Task.linear:
        raise RunError(
            f"--head: the decoder of {head} is more than a linear layer on each word; expected a task of tags (type "
            "pos), or one of spans (type bio)"
        )
    if remove:
        raise RunError("--head needs a model that transformers load by themselves, so it cannot go with --remove")
    if config.encoder.pooling != "first":
        raise RunError(
            f"--head: {path} reads words as the mean of their sub-words, but transformers label each sub-word by "
            "itself; expected a run with encoder.pooling: first"
        )


def export(asked: ExportRequest, folder: Path) -> Exported:
    """Fill a folder, read it back with plain transformers, and compare.

    Raises:
        RunError: what was read back does not compute what the run computes.
        EncoderError: gates that no weights can hold, heads that cannot be removed.
    """
    model = MultiTaskModel.load(asked.run.path)
    encoder, transformer = model.encoder, cast(PreTrainedModel, model.encoder.transformer)
    gates = None
    if asked.gate_set is not None:
        gates = cast(Gates, model.gates[asked.gate_set]).evaluated().detach()
        gates = gates * (gates > OPEN) if asked.remove else gates
    task: Any = model.tasks[asked.head] if asked.head is not None else None
    linear = task.linear() if task is not None else None
    with encoder.gated(gates) if gates is not None else contextlib.nullcontext():
        before = states(transformer, encoder.limit, linear and linear[0])
    if gates is not None:
        fold_means(encoder, gates)
    heads = _removed(asked, model, gates) if asked.remove else encoder.head_map
    if not asked.remove:
        if gates is not None:
            fold_gates(transformer, gates, encoder.places.kept)
        if heads is not None:
            transformer = with_all_heads(transformer, heads)
    whole = transformer if linear is None else with_classifier(transformer, *linear)
    vars(transformer).pop("save_pretrained", None)  # its gates are in the weights now
    with quiet():
        tokenizer, reads_texts = text_tokenizer(encoder, asked.run.encoder_path)
        tokenizer.save_pretrained(folder)
        if heads is not None and asked.remove:
            save_pruned(whole, heads, folder)
        else:
            whole.save_pretrained(folder)
        after = states(_read_back(folder, asked), encoder.limit, None)
    difference = float((before - after).abs().max() / before.abs().max())
    if not difference <= TOLERANCE:
        raise RunError(
            f"{asked.run.path}: what transformers read back differs by {difference:.1e} of the largest number, "
            f"expected at most {TOLERANCE:.0e}; nothing is written. This is a defect: please report it with the "
            "encoder's name"
        )
    pooler = "add_pooling_layer" in inspect.signature(type(transformer).__init__).parameters
    return Exported(gates, heads, not asked.remove, difference, encoder.limit, reads_texts, pooler)


def _removed(asked: ExportRequest, model: MultiTaskModel, gates: Tensor | None) -> KeptHeads:
    encoder = model.encoder
    if gates is None and encoder.head_map is None:
        raise RunError(f"--remove: {asked.run.path} has no gates, so no head of it is closed; leave --remove out")
    everything = torch.ones(encoder.places.layers, encoder.places.heads) if gates is None else gates
    return remove_heads(cast(PreTrainedModel, encoder.transformer), everything, encoder.places.kept)


@torch.no_grad()
def states(model: nn.Module, limit: int | None, scores: nn.Linear | None) -> Tensor:
    """Last hidden states, (ROWS, T, H), of random sub-words, the same at every call; or their labels' scores."""
    vocabulary = input_embeddings(cast(PreTrainedModel, model)).num_embeddings
    drawn = torch.randint(vocabulary, (ROWS, min(limit or SLOTS, SLOTS)), generator=torch.Generator().manual_seed(0))
    output = model(input_ids=drawn, attention_mask=torch.ones_like(drawn))
    if "logits" in output:
        return output.logits
    hidden = output.last_hidden_state
    return hidden if scores is None else scores(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])


def _read_back(folder: Path, asked: ExportRequest) -> PreTrainedModel:
    """As a reader of the model card does."""
    if asked.remove:
        return load_pruned(folder)
    kind = AutoModelForTokenClassification if asked.head else AutoModel
    return kind.from_pretrained(folder, trust_remote_code=False).eval()


def account(found: Exported) -> str:
    """What became of the gates, in a sentence."""
    if found.heads is not None:
        others = "; closed ones are columns of zeros in the attention output projections" if found.whole else ""
        of = len(found.heads.kept) * found.heads.heads
        return f"{found.heads.count} of {of} heads are left, gates are folded into the weights{others}."
    if found.gates is None:
        return "The run has no gates: every head is as it was trained."
    closed, folded = (int(some.sum()) for some in (found.gates == 0, (found.gates > 0) & (found.gates < 1)))
    return (
        f"Gates are folded into the attention output projections: {closed} of {found.gates.numel()} heads are closed "
        f"(their columns are 0), {folded} are scaled down."
    )
