"""Removal of closed heads from the weights of a model, whose output stays the same as under gates.

    heads = remove_heads(model, gates)                  # in place
    model.save_pretrained(folder)
    heads.write(folder)                                 # heads.json: the remaining heads, in the original numbering

    from mtlprune.encoder.removal import load_pruned    # from_pretrained would refuse the shapes of the weights
    model = load_pruned(folder)

Letters for shapes: L layers, A heads in a layer before any was removed, n heads that a layer keeps, d values in the
output of a head, S layers that share a module (1 except for ALBERT).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from mtlprune.encoder.families import (
    PROJECTIONS,
    Attention,
    Family,
    by_layer,
    cut,
    family_of,
    matrix,
    selected_parameter,
    still_shared,
)
from mtlprune.encoder.heads import check_kept
from mtlprune.encoder.pieces import EncoderError
from mtlprune.encoder.sources import fill, load_config, load_transformer, read_weights
from mtlprune.evaluation.head_masks import OPEN_ABOVE
from mtlprune.io.files import read_json, reading, write_text

_FILE = "heads.json"
_FORMAT = 1
_SAVED = "copy it again from where the model was saved"


@dataclass(frozen=True)
class KeptHeads:
    """The remaining heads of a model from which heads were removed, the content of heads.json.

    Attributes:
        family: the model type in transformers.
        heads: A, the number of heads in a layer before any was removed.
        kept: for each layer the original numbers of its remaining heads, ascending, which is also their order in the
            weights.
        groups: for each layer the number of heads that share a key and a value now. Empty for families without
            grouped-query attention.
        layer_gates: whether the model holds gates that cannot be folded into weights, because layers with different
            gates share their weights (ALBERT).
    """

    family: str
    heads: int
    kept: tuple[tuple[int, ...], ...]
    groups: tuple[int, ...] = ()
    layer_gates: bool = False

    @property
    def count(self) -> int:
        """The number of remaining heads in all layers."""
        return sum(map(len, self.kept))

    def write(self, folder: str | Path) -> None:
        """Write heads.json into the folder of the model."""
        write_text(Path(folder) / _FILE, json.dumps({"format": _FORMAT, **asdict(self)}) + "\n")

    @classmethod
    def read(cls, folder: str | Path) -> "KeptHeads":
        """Read heads.json of a folder. Raises EncoderError if the file is missing or damaged."""
        path = Path(folder) / _FILE
        if not path.exists():
            raise EncoderError(
                f"{path} is missing: expected a folder with a model from which heads were removed; a model that has "
                "all its heads is loaded with transformers alone"
            )
        with reading(path, EncoderError, _SAVED):
            record = read_json(path, EncoderError, _SAVED)
            if (version := record.pop("format")) != _FORMAT:
                raise ValueError(f"the format {version}")
            heads = cls(**record)
            return replace(heads, kept=tuple(map(tuple, heads.kept)), groups=tuple(heads.groups))

    @classmethod
    def find(cls, folder: str | Path) -> "KeptHeads | None":
        """Read heads.json of a folder, or return None if there is none. Raises EncoderError if it is damaged."""
        return cls.read(folder) if (Path(folder) / _FILE).is_file() else None


WEIGHTS = "model.safetensors"
GATED = "model.gated.safetensors"
"""The file of weights if the model also holds gates. Plain transformers, which would ignore the gates, does not find
weights under this name."""
_HeadNumbers = tuple[tuple[int, ...], ...]


@torch.no_grad()
def remove_heads(
    transformer: PreTrainedModel,
    gates: Tensor,
    kept_heads: Sequence[Sequence[int]] | None = None,
    groups: Sequence[int] | None = None,
) -> KeptHeads:
    """Remove closed heads from a model and fold the gates of open heads into its weights, in place.

    A head is closed if its gate does not exceed ``OPEN_ABOVE``. Afterwards the model computes the same function as
    under ``HeadHooks(transformer, kept_heads).gated(gates)`` with closed gates at exactly 0. A layer may lose all its
    heads, and then keeps its feed-forward part.

    If layers share a module (ALBERT), a head is removed only if it is closed in all these layers, and gates that differ
    between them stay in the model, in a buffer ``layer_gates``. If heads share a key and a value (grouped-query
    attention), these are removed together with the last of the heads. The remaining heads go on sharing if all
    remaining groups of the layer keep the same number of heads. Otherwise every head gets a copy.

    Reduced parameters are new objects. Therefore optimizers, and ``HeadHooks`` with ``kept`` of the result, must be
    created again.

    Args:
        transformer: a model of a family in ``FAMILIES``, with or without further layers on its base model.
        gates: (L, A) in [0, 1], in the original numbering.
        kept_heads: the heads that an earlier removal left, by default all heads.
        groups: for each layer the number of heads that share a key and a value afterwards. By default, as few copies as
            possible are made.

    Returns:
        The remaining heads.

    Raises:
        EncoderError: the family is unknown, ``gates`` or ``kept_heads`` do not fit the model, or a layer mixes its
            heads (talking heads). The model is unchanged.
    """
    family = family_of(transformer)
    attentions, outputs = (by_layer(transformer, path) for path in (family.attention, family.output))
    heads = transformer.config.num_attention_heads
    all_heads = tuple(range(heads))
    current_heads = tuple(map(tuple, kept_heads)) if kept_heads is not None else (all_heads,) * len(outputs)
    # All checks come before the first weight changes, so that an error leaves the model unchanged.
    gates = _effective(gates, (len(outputs), heads)).to(outputs[0].weight.device)
    # With the head map of another model, the rows of wrong heads would be removed.
    check_kept(current_heads, heads, getattr(attentions[0], family.width), outputs)
    # The layers that use each module: one layer in most families, but several layers for ALBERT, where removing a head
    # from one of these layers removes it from all of them.
    sharing = {output: [layer for layer, module in enumerate(outputs) if module is output] for output in outputs}
    remaining = _remaining_heads(gates, current_heads, [sharing[output] for output in outputs])
    _refuse_mixed(family, attentions, current_heads, remaining)
    by_module = {
        output: torch.stack([gates[layer, list(remaining[layer])] for layer in layers])  # (S, n)
        for output, layers in sharing.items()
    }
    # A gate can be folded into the weights only if all layers that share the weights have the same gate for the head.
    # Otherwise a buffer of the projection holds the gates, and a hook applies them in each call.
    gates_differ = any(hasattr(output, "layer_gates") or bool((g != g[0]).any()) for output, g in by_module.items())
    for output, (first, *_) in sharing.items():
        if remaining[first] != current_heads[first]:
            # Positions in the current layer differ from the original numbers after an earlier removal.
            positions = [current_heads[first].index(head) for head in remaining[first]]
            group = still_shared(positions, family.sharing(attentions[first])) if groups is None else groups[first]
            _pick_parts(family, attentions[first], positions, group, remaining[first])
            _cut(family, attentions[first], output, positions, len(current_heads[first]), group)
        if not remaining[first]:
            _empty(transformer, family, attentions[first])
        elif gates_differ:
            _gate_by_layer(transformer, output, by_module[output])
        else:
            # The projection is linear, so multiplying the d columns of a head by its gate is the same as multiplying
            # its output. The bias stays, because it belongs to no head.
            matrix(output).mul_(_gate_columns(by_module[output][0], output))
    shared = tuple(map(family.sharing, attentions)) if family.grouping else ()
    return KeptHeads(transformer.config.model_type, heads, remaining, shared, gates_differ)


def _effective(gates: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return the gates with closed ones set to 0. Raises EncoderError if their shape or range is wrong."""
    if tuple(gates.shape) != shape:
        raise EncoderError(f"expected gates of shape (layers, heads) = {shape}, found {tuple(gates.shape)}")
    in_range = (gates >= 0) & (gates <= 1)
    if not in_range.all():
        raise EncoderError(f"expected gates from 0 to 1, found {gates[~in_range][0]:g}")
    # Gates up to `OPEN_ABOVE` count as closed in the whole package. They are set to exactly 0, so that the pruned model
    # equals the model that was evaluated.
    return gates.detach() * (gates > OPEN_ABOVE)


def _remaining_heads(gates: Tensor, current_heads: _HeadNumbers, sharing: list[list[int]]) -> _HeadNumbers:
    """Return the remaining heads of each layer, which are open in at least one layer that shares its module.

    Args:
        gates: (L, A), 0 for closed heads.
        current_heads: the heads of each layer now.
        sharing: for each layer all layers that share its module.
    """
    open_heads = [set(row.nonzero().flatten().tolist()) for row in gates]
    needed_heads = [set().union(*(open_heads[layer] for layer in layers)) for layers in sharing]
    return tuple(
        tuple(head for head in current if head in needed)
        for current, needed in zip(current_heads, needed_heads, strict=True)
    )


def _refuse_mixed(
    family: Family, attentions: list[nn.Module], current_heads: _HeadNumbers, remaining: _HeadNumbers
) -> None:
    """Raise EncoderError if a layer that mixes its heads with each other would lose heads."""
    for layer, attention in enumerate(attentions):
        mixer = next((name for name in family.mixers if getattr(attention, name, None) is not None), None)
        if mixer is not None and remaining[layer] != current_heads[layer]:
            raise EncoderError(
                f"no head can be removed from layer {layer}: its {mixer} mixes the heads with each other (talking_head "
                "in config.json); expected gates above 0 everywhere, or a model without it"
            )


def _cut(family: Family, attention: nn.Module, output: Any, positions: list[int], head_count: int, group: int) -> None:
    """Reduce the weights of a layer's attention to some of its heads. Modules stay the same objects with their hooks.

    Args:
        family: the row of the model type.
        attention: the attention module.
        output: the attention output projection.
        positions: the positions of the remaining heads in the current layer.
        head_count: the number of heads in the current layer.
        group: the number of heads that share a key and a value afterwards.
    """
    width = getattr(attention, family.width)
    # Some families normalise queries and keys over all heads of a layer. Closed heads still contribute to the mean
    # square by which all heads are divided. Therefore these two projections stay whole, and only the result of the
    # norm is indexed.
    full_parts = family.qkv[:2] if any(family.norms) else ()
    for name, rows in family.keep(positions, head_count, width, family.sharing(attention), group).items():
        part = getattr(attention, name, None)  # None if an option of the config leaves it out
        if isinstance(part, PROJECTIONS) and name not in full_parts:
            cut(part, rows)
        elif isinstance(part, nn.Parameter):
            setattr(attention, name, selected_parameter(part, rows, 0))
    # The output projection loses inputs (columns), the other projections lose outputs (rows).
    cut(output, family.columns(positions, width), inputs=True)
    if hasattr(output, "layer_gates"):
        output.layer_gates = output.layer_gates[:, positions]
    counts = {family.count: len(positions), family.total: len(positions) * width, family.grouping: group}
    for name, value in counts.items():
        if name and hasattr(attention, name):
            setattr(attention, name, value)


def _gate_columns(gates: Tensor, output: Any) -> Tensor:
    """Repeat each gate for the d consecutive columns of its head: (..., n) → (..., n · d)."""
    return gates.repeat_interleave(matrix(output).shape[1] // gates.shape[-1], -1).to(output.weight)


def _pick_parts(family: Family, attention: Any, positions: list[int], group: int, remaining: tuple[int, ...]) -> None:
    """Add hooks that select the remaining heads from tensors that are still computed for all heads.

    These tensors are the bias of the attention scores and the results of norms over all heads. Must be called before
    the weights of the layer are reduced.

    Args:
        family: the row of the model type.
        attention: the attention module.
        positions: the positions of the remaining heads in the current layer.
        group: the number of heads that share a key and a value afterwards.
        remaining: the original numbers of the remaining heads.
    """
    device = next(attention.parameters()).device
    if family.bias in _BIAS_HOOKS:
        # In a second removal the hook exists already, and only the list of heads is replaced.
        if not hasattr(attention, "kept_heads"):
            attention.register_forward_pre_hook(_BIAS_HOOKS[family.bias], with_kwargs=True)
            if family.bias == "passed":
                attention.register_forward_hook(_whole_bias)
        attention.register_buffer("kept_heads", torch.tensor(remaining, device=device).long(), persistent=False)
    width, old = getattr(attention, family.width), family.sharing(attention)
    rows = family.keep(positions, len(positions), width, old, group)
    outputs = {name: rows[part] for part, name in zip(family.qkv, family.norms, strict=False) if name}
    if family.bias == "own":
        outputs["relative_attention_bias"] = torch.tensor(positions).long()
    for name, indices in outputs.items():
        module, indices = attention.get_submodule(name), indices.to(device)
        if hasattr(module, "kept_outputs"):
            # After an earlier removal the module still computes all rows of the original model, so the new indices are
            # mapped through the rows that were kept then.
            indices = module.kept_outputs[indices]
        else:
            module.register_forward_hook(_kept_outputs)
        module.register_buffer("kept_outputs", indices, persistent=False)


def _kept_outputs(module: Any, args: Any, states: Tensor) -> Tensor:
    """Forward hook that selects the columns of the remaining heads."""
    return states.index_select(-1, module.kept_outputs)


def _given_bias(attention: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Forward pre-hook that selects the remaining heads from a bias given as the third argument."""
    hidden, mask, bias, *positional = args  # bias: (1, A, T, T)
    return (hidden, mask, bias.index_select(1, attention.kept_heads), *positional), options


def _passed_bias(attention: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Forward pre-hook that selects the remaining heads from a bias passed on from layer to layer.

    The first layer computes the bias for all layers, so the whole bias is stored for `_whole_bias`.
    """
    hidden, bias = args[0] if args else options["hidden_states"], options.get("position_bias")
    full_bias = attention.compute_bias(*[hidden.shape[1]] * 2, device=hidden.device) if bias is None else bias
    attention.whole_bias = full_bias
    return args, options | {"position_bias": full_bias.index_select(1, attention.kept_heads)}


def _whole_bias(attention: Any, args: Any, result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Forward hook that returns the whole bias to the next layer, which may keep other heads."""
    bias = attention.__dict__.pop("whole_bias")
    return (result[0], bias, result[-1])


_BIAS_HOOKS: dict[str, Any] = {"given": _given_bias, "passed": _passed_bias}


class _HeadlessAttention(nn.Module):
    """An attention module without heads, which returns the output of its output projection for an empty input.

    Attention of width 0 runs in most families, but cannot be exported to ONNX. Transformers collects the attention
    weights of a pass from all modules of the family's attention class. Therefore the class of the module is a subclass
    of both classes, and the module returns empty attention weights.

    Attributes:
        results: the number of values that the attention module of the family returns.
        parts: the names of the output projection, the dropout and the norm within the attention module ("" for a
            missing part). Empty if the output projection is outside the attention module.
        of_model: the config of the model, which says whether attention weights are returned.
    """

    parts: tuple[str, ...]
    results: int
    of_model: PreTrainedConfig

    def forward(self, hidden_states: Tensor, *args: Any, **options: Any) -> tuple[Tensor | None, ...]:
        # A linear layer with an empty input (B, T, 0) returns its bias at every slot, exactly as attention with all
        # heads closed does.
        states = hidden_states.new_empty(*hidden_states.shape[:-1], 0)
        if self.parts:
            output, after, norm = self.parts
            states = self.get_submodule(output)(states)
            states = self.get_submodule(after)(states) if after else states
            states = self.get_submodule(norm)(hidden_states + states) if norm else states
        rows, length = hidden_states.shape[:2]
        eager = self.of_model._attn_implementation == "eager"
        maps = hidden_states.new_empty(rows, 0, length, length) if eager else None
        return states, *[None] * (self.results - 2), maps


def _empty(transformer: PreTrainedModel, family: Family, attention: Any) -> None:
    """Turn an attention module that lost all its heads into a `_HeadlessAttention`, which keeps its hooks."""
    if isinstance(attention, _HeadlessAttention):
        return
    # The class of the object is changed instead of replacing the module, so that hooks, names in the state dict and
    # references to the module stay valid.
    attention.__class__ = type(f"Headless{type(attention).__name__}", (_HeadlessAttention, type(attention)), {})
    output_path = family.output.removeprefix(family.attention + ".")
    attention.parts = (output_path, family.after, family.norm) if output_path != family.output else ()
    attention.results = family.results
    attention.of_model = transformer.config


def _gate_by_layer(transformer: PreTrainedModel, output: Any, gates: Tensor) -> None:
    """Store the gates (S, n) of S layers in the output projection that they share, and apply them by hooks."""
    if hasattr(output, "layer_gates"):
        output.layer_gates = output.layer_gates * gates
        return
    output.register_buffer("layer_gates", gates.to(output.weight))
    output.register_forward_pre_hook(_gated_by_call)
    transformer.base_model.register_forward_pre_hook(_restart)


def _gated_by_call(output: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Forward pre-hook that applies the gates of the k-th layer in the k-th call of a pass."""
    gates = output.layer_gates[output.calls % len(output.layer_gates)]
    output.calls += 1
    return (args[0] * _gate_columns(gates, output).to(args[0]), *args[1:])


def _restart(model: nn.Module, args: Any) -> None:
    """Forward pre-hook of the base model that resets the count of calls at the start of a pass."""
    for module in model.modules():
        if hasattr(module, "layer_gates"):
            setattr(module, "calls", 0)  # noqa: B010 (the type stubs allow only tensors and modules as attributes)


def load_pruned(
    folder: str | Path,
    *,
    attention: str = "sdpa",
    random: bool = False,
    seed: int | None = None,
    attention_direction: Attention | None = None,
) -> PreTrainedModel:
    """Load a base model from which heads were removed, in evaluation mode and without a pooler.

    Args:
        folder: a folder with config.json, the weights and heads.json.
        attention: the attention implementation, ``sdpa`` (``eager`` for families without it), ``eager``, or another
            name in transformers.
        random: whether the weights are random instead of being read.
        seed: the random seed of random weights. None draws from torch's global generator.
        attention_direction: causal or full attention for a decoder-only model, by default as the model was saved.

    Raises:
        EncoderError: a file is missing or damaged, or the head map does not fit the model.
        RunError: mtlprune wrote the folder, and a file in it was changed.
    """
    heads = KeptHeads.read(folder)
    config = load_config(str(folder), attention=attention_direction)
    # The model is built in its original size, then reduced, and then filled with the stored weights.
    model = load_transformer(str(folder), config, random=True, seed=seed if random else 0, attention=attention)
    _reduce(model, heads, folder)
    if not random:
        _fill(model, Path(folder) / (GATED if heads.layer_gates else WEIGHTS))
    return model.eval()


def save_pruned(model: PreTrainedModel, heads: KeptHeads, folder: Path) -> None:
    """Write the config, the weights and heads.json of a model from which heads were removed."""
    model.save_pretrained(folder, save_original_format=False)  # under the names of weights that `_fill` expects
    heads.write(folder)
    if heads.layer_gates:
        (folder / WEIGHTS).rename(folder / GATED)


def _reduce(model: PreTrainedModel, heads: KeptHeads, folder: str | Path) -> None:
    """Reduce a model of original size, in place, to the heads of a pruned model.

    Args:
        model: the model of original size.
        heads: the remaining heads.
        folder: the folder of the pruned model, for messages.

    Raises:
        EncoderError: the heads do not fit the model.
    """
    with reading(Path(folder) / _FILE, EncoderError, _SAVED):
        gates = torch.zeros(model.config.num_hidden_layers, model.config.num_attention_heads)
        for layer, row in enumerate(heads.kept):
            gates[layer, list(row)] = 1
        remaining = remove_heads(model, gates, groups=heads.groups or None)
        if (remaining.family, remaining.heads, remaining.kept) != (heads.family, heads.heads, heads.kept):
            raise ValueError("heads that the model in the folder does not have")
    if heads.layer_gates:
        outputs = by_layer(model, family_of(model).output)
        for output in dict.fromkeys(outputs):
            n = len(heads.kept[outputs.index(output)])
            if n:
                _gate_by_layer(model, output, torch.ones(outputs.count(output), n))


def _fill(model: PreTrainedModel, file: Path) -> None:
    """Load the weights of a file into a model, except those of a pooler, which stay as they are."""
    remedy = "copy all three again from where the model was saved"
    tensors = {name: value for name, value in model.state_dict().items() if _of_pooler(name)}
    stored = read_weights(file, EncoderError, remedy)
    tensors |= {name: value for name, value in stored.items() if not _of_pooler(name)}
    problem = f"the weights of the model that config.json and {_FILE} beside it describe"
    fill(model, tensors, EncoderError, f"{file} does not hold {problem}; {remedy}")


def _of_pooler(name: str) -> bool:
    return "pooler" in name.split(".")
