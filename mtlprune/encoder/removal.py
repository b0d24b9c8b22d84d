"""Heads really removed: smaller weights, and the output of the model whose closed heads are gated with 0.

    heads = remove_heads(model, gates)                  # in place
    model.save_pretrained(folder)
    heads.write(folder)                                 # heads.json: which are left, in their first numbering

    from mtlprune.encoder.removal import load_pruned    # from_pretrained alone refuses the shapes
    model = load_pruned(folder)

Letters for shapes: L layers, A heads a layer before any was removed, n heads a layer keeps, d values a head has, S
layers that share one module (1 except in ALBERT).
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
from mtlprune.encoder.gates import OPEN
from mtlprune.encoder.heads import check_kept
from mtlprune.encoder.pieces import EncoderError
from mtlprune.encoder.sources import fill, load_config, load_transformer, read_weights
from mtlprune.io.files import read_json, reading, write_text

FILE = "heads.json"
FORMAT = 1
SAVED = "copy it again from where the model was saved"


@dataclass(frozen=True)
class KeptHeads:
    """The heads of a model from which some were removed.

    Attributes:
        family: the model type, as transformers names it.
        heads: A, heads a layer had before any was removed.
        kept: for each layer the original numbers of the heads it still has, rising, as they lie there.
        groups: for each layer how many heads share a key and a value now; empty where none did.
        layer_gates: the model carries gates that could not be folded into weights, because layers share them (ALBERT).
    """

    family: str
    heads: int
    kept: tuple[tuple[int, ...], ...]
    groups: tuple[int, ...] = ()
    layer_gates: bool = False

    @property
    def count(self) -> int:
        """Heads kept, over all layers."""
        return sum(map(len, self.kept))

    def write(self, folder: str | Path) -> None:
        """Put the file into a folder that holds the model."""
        write_text(Path(folder) / FILE, json.dumps({"format": FORMAT, **asdict(self)}) + "\n")

    @classmethod
    def read(cls, folder: str | Path) -> "KeptHeads":
        """The file of a folder. Raises EncoderError where there is none, or it is damaged."""
        path = Path(folder) / FILE
        if not path.exists():
            raise EncoderError(
                f"{path} is missing: expected a folder with a model from which heads were removed; a model that has "
                "all its heads is loaded with transformers alone"
            )
        with reading(path, EncoderError, SAVED):
            record = read_json(path, EncoderError, SAVED)
            if (version := record.pop("format")) != FORMAT:
                raise ValueError(f"the format {version}")
            heads = cls(**record)
            return replace(heads, kept=tuple(map(tuple, heads.kept)), groups=tuple(heads.groups))

    @classmethod
    def find(cls, folder: str | Path) -> "KeptHeads | None":
        """The file of a folder, or None where no such folder has one. Raises EncoderError where it is damaged."""
        return cls.read(folder) if (Path(folder) / FILE).is_file() else None


WEIGHTS = "model.safetensors"
GATED = "model.gated.safetensors"
"""Weights beside which the model carries gates: a name under which transformers alone find none."""
_HeadNumbers = tuple[tuple[int, ...], ...]


@torch.no_grad()
def remove_heads(
    transformer: PreTrainedModel,
    gates: Tensor,
    kept_heads: Sequence[Sequence[int]] | None = None,
    groups: Sequence[int] | None = None,
) -> KeptHeads:
    """Cut closed heads out of a model and fold the gates of the others into the attention output projection, in place.

    A head is closed when its gate is at most ``OPEN``. The model then computes what it computed under
    ``HeadHooks(transformer, kept_heads).gated(gates)`` with closed gates at exactly 0. A layer may lose all its heads;
    it keeps its feed-forward block. Where layers share a module (ALBERT), a head goes when it is closed in all of them,
    and gates that differ between them stay in the model, in a buffer ``layer_gates``. Where heads share a key and a
    value (grouped-query attention), these go with the last of their heads; heads that stay go on sharing where each
    group of the layer keeps equally many, and get copies where not.

    Parameters cut are new objects, so make optimizers anew; and make ``HeadHooks`` anew, with ``kept`` of the result.

    Args:
        transformer: a model of a family in ``FAMILIES``, with or without something on top of its base model.
        gates: (L, A) in [0, 1], in original numbering.
        kept_heads: those that an earlier removal left; all if not given.
        groups: for each layer how many heads share a key and a value afterwards; as few copies as can be if not given.

    Returns:
        The heads that are left.

    Raises:
        EncoderError: the family is unknown, gates or ``kept_heads`` do not fit, or a layer mixes its heads (talking
            heads). The model is untouched.
    """
    family = family_of(transformer)
    attentions, outputs = (by_layer(transformer, path) for path in (family.attention, family.output))
    heads = transformer.config.num_attention_heads
    all_heads = tuple(range(heads))
    current_heads = tuple(map(tuple, kept_heads)) if kept_heads is not None else (all_heads,) * len(outputs)
    # Everything that can be refused is refused before the first weight changes, so that an error leaves the model as
    # it was.
    gates = _effective(gates, (len(outputs), heads)).to(outputs[0].weight.device)
    # A map of another model would name heads that lie elsewhere, and the rows of wrong heads would be cut.
    check_kept(current_heads, heads, getattr(attentions[0], family.width), outputs)
    # Module → the layers that use it: one each in most families, all of them for ALBERT, where cutting for one layer
    # cuts for all.
    sharing = {output: [layer for layer, module in enumerate(outputs) if module is output] for output in outputs}
    left = _left(gates, current_heads, [sharing[output] for output in outputs])
    _refuse_mixed(family, attentions, current_heads, left)
    by_module = {
        output: torch.stack([gates[layer, list(left[layer])] for layer in layers])  # (S, n)
        for output, layers in sharing.items()
    }
    # A gate can be folded into the weight only if all layers that share the weight have the same gate for the head.
    # Otherwise the factors travel with the model, in a buffer of the projection, and are applied call by call.
    gates_differ = any(hasattr(output, "layer_gates") or bool((g != g[0]).any()) for output, g in by_module.items())
    for output, (first, *_) in sharing.items():
        if left[first] != current_heads[first]:
            # Positions and not numbers: after an earlier removal head 7 may lie third.
            places = [current_heads[first].index(head) for head in left[first]]
            group_heads = still_shared(places, family.sharing(attentions[first])) if groups is None else groups[first]
            _pick_parts(family, attentions[first], places, group_heads, left[first])
            _cut(family, attentions[first], output, places, len(current_heads[first]), group_heads)
        if not left[first]:
            _empty(transformer, family, attentions[first])
        elif gates_differ:
            _gate_by_layer(transformer, output, by_module[output])
        else:
            # The projection is linear in each head's output, so multiplying the head's d columns by its gate is the
            # same as multiplying its output. The bias stays, because it belongs to no head.
            matrix(output).mul_(_gate_columns(by_module[output][0], output))
    shared = tuple(map(family.sharing, attentions)) if family.grouping else ()
    return KeptHeads(transformer.config.model_type, heads, left, shared, gates_differ)


def _effective(gates: Tensor, shape: tuple[int, int]) -> Tensor:
    """Gates with closed ones at 0. Raises EncoderError where they do not fit."""
    if tuple(gates.shape) != shape:
        raise EncoderError(f"expected gates of shape (layers, heads) = {shape}, found {tuple(gates.shape)}")
    in_range = (gates >= 0) & (gates <= 1)
    if not in_range.all():
        raise EncoderError(f"expected gates from 0 to 1, found {gates[~in_range][0]:g}")
    # Gates a little above 0 count as closed everywhere else (`OPEN`), so they must be exactly 0 here too; else the
    # pruned model would differ from the one that was scored.
    return gates.detach() * (gates > OPEN)


def _left(gates: Tensor, current_heads: _HeadNumbers, sharing: list[list[int]]) -> _HeadNumbers:
    """The heads of each layer that stay: those open in any layer that shares its module."""
    open_ = [set(row.nonzero().flatten().tolist()) for row in gates]
    needed_heads = [set().union(*(open_[layer] for layer in layers)) for layers in sharing]
    return tuple(
        tuple(head for head in have if head in want) for have, want in zip(current_heads, needed_heads, strict=True)
    )


def _refuse_mixed(family: Family, attentions: list[nn.Module], current_heads: _HeadNumbers, left: _HeadNumbers) -> None:
    for layer, attention in enumerate(attentions):
        mixer = next((name for name in family.mixers if getattr(attention, name, None) is not None), None)
        if mixer is not None and left[layer] != current_heads[layer]:
            raise EncoderError(
                f"no head can be removed from layer {layer}: its {mixer} mixes the heads with each other (talking_head "
                "in config.json); expected gates above 0 everywhere, or a model without it"
            )


def _cut(family: Family, attention: nn.Module, output: Any, places: list[int], head_count: int, group: int) -> None:
    """Leave only the heads at these places, of which ``group`` share a key and a value; modules stay, with what is
    attached to them."""
    width = getattr(attention, family.width)
    # Some families normalise queries and keys over all heads of a layer. Closed heads then still take part in the
    # mean square that the others are divided by, so these two projections stay whole, and only the normed result is
    # indexed.
    full_parts = family.qkv[:2] if any(family.norms) else ()
    for name, rows in family.keep(places, head_count, width, family.sharing(attention), group).items():
        part = getattr(attention, name, None)  # an option of the config may leave it out
        if isinstance(part, PROJECTIONS) and name not in full_parts:
            cut(part, rows)
        elif isinstance(part, nn.Parameter):
            setattr(attention, name, selected_parameter(part, rows, 0))
    # The output projection is cut by its inputs (columns), the others by their outputs (rows).
    cut(output, family.columns(places, width), inputs=True)
    if hasattr(output, "layer_gates"):
        output.layer_gates = output.layer_gates[:, places]
    counts = {family.count: len(places), family.total: len(places) * width, family.grouping: group}
    for name, value in counts.items():
        if name and hasattr(attention, name):
            setattr(attention, name, value)


def _gate_columns(gates: Tensor, output: Any) -> Tensor:
    """(..., n) to (..., n · d), in the dtype of the projection."""
    # One factor for each of a head's d columns, which lie next to each other.
    return gates.repeat_interleave(matrix(output).shape[1] // gates.shape[-1], -1).to(output.weight)


# Parts that stay whole, of which a layer with fewer heads picks its own.


def _pick_parts(family: Family, attention: Any, places: list[int], group: int, left: tuple[int, ...]) -> None:
    """Let a layer use its own part of a bias of the scores, and of what is normalised over all heads; before heads are
    cut out of it.

    Args:
        places: of the heads that stay, in the present numbering.
        group: how many of them share a key and a value afterwards.
        left: the same heads in original numbering.
    """
    device = next(attention.parameters()).device
    if family.bias in _OWN_BIAS:
        # A second removal finds the hook already there and only replaces the list of heads, so that it is not applied
        # twice.
        if not hasattr(attention, "kept_heads"):
            attention.register_forward_pre_hook(_OWN_BIAS[family.bias], with_kwargs=True)
            if family.bias == "passed":
                attention.register_forward_hook(_whole_bias)
        attention.register_buffer("kept_heads", torch.tensor(left, device=device).long(), persistent=False)
    width, old = getattr(attention, family.width), family.sharing(attention)
    rows = family.keep(places, len(places), width, old, group)
    outputs = {name: rows[part] for part, name in zip(family.qkv, family.norms, strict=False) if name}
    if family.bias == "own":
        outputs["relative_attention_bias"] = torch.tensor(places).long()
    for name, positions in outputs.items():
        module, positions = attention.get_submodule(name), positions.to(device)
        if hasattr(module, "kept_outputs"):
            # After an earlier removal the module still computes all rows of the original, so new positions are
            # translated through those that were left.
            positions = module.kept_outputs[positions]
        else:
            module.register_forward_hook(_own_outputs)
        module.register_buffer("kept_outputs", positions, persistent=False)


def _own_outputs(module: Any, args: Any, states: Tensor) -> Tensor:
    return states.index_select(-1, module.kept_outputs)


def _given_bias(attention: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    hidden, mask, bias, *positional = args  # bias: (1, A, T, T)
    return (hidden, mask, bias.index_select(1, attention.kept_heads), *positional), options


def _passed_bias(attention: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The first layer makes the bias for all, so it is kept whole for those that follow."""
    hidden, bias = args[0] if args else options["hidden_states"], options.get("position_bias")
    full_bias = attention.compute_bias(*[hidden.shape[1]] * 2, device=hidden.device) if bias is None else bias
    attention.whole_bias = full_bias
    return args, options | {"position_bias": full_bias.index_select(1, attention.kept_heads)}


def _whole_bias(attention: Any, args: Any, result: tuple[Any, ...]) -> tuple[Any, ...]:
    bias = attention.__dict__.pop("whole_bias")
    return (result[0], bias, result[-1])


_OWN_BIAS: dict[str, Any] = {"given": _given_bias, "passed": _passed_bias}


class HeadlessAttention(nn.Module):
    """An attention module that has no head left: gives what its output projection makes of nothing at all.

    Attention of width 0 runs in most families, but cannot be exported to ONNX. Transformers collect the attentions of a
    pass from modules of the family's class, so it is still one of these, and its entry stands in the layer's place.

    Attributes:
        results: how many things the attention module gives.
        parts: names of what follows the heads within the module, "" where the family has none.
        of_model: the config of the model, which says whether attentions are to be had at all.
    """

    parts: tuple[str, ...]
    results: int
    of_model: PreTrainedConfig

    def forward(self, hidden_states: Tensor, *args: Any, **options: Any) -> tuple[Tensor | None, ...]:
        # An empty input, (B, T, 0): a linear layer without inputs gives its bias at every slot, which is exactly what
        # attention with all heads closed gives.
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
    """Make a module whose heads are all cut one without heads; it keeps its parameters, empty by now, and its hooks."""
    if isinstance(attention, HeadlessAttention):
        return
    # The class of the live object is changed instead of replacing the module, because hooks, names in the state dict,
    # and references of other code to this module stay valid so.
    attention.__class__ = type(f"Headless{type(attention).__name__}", (HeadlessAttention, type(attention)), {})
    output_path = family.output.removeprefix(family.attention + ".")
    attention.parts = (output_path, family.after, family.norm) if output_path != family.output else ()
    attention.results = family.results
    attention.of_model = transformer.config


def _gate_by_layer(transformer: PreTrainedModel, output: Any, gates: Tensor) -> None:
    """Gates (S, n) that a module shared by S layers carries along."""
    if hasattr(output, "layer_gates"):
        output.layer_gates = output.layer_gates * gates
        return
    output.register_buffer("layer_gates", gates.to(output.weight))
    output.register_forward_pre_hook(_gated_by_call)
    transformer.base_model.register_forward_pre_hook(_restart)


def _gated_by_call(output: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    gates = output.layer_gates[output.calls % len(output.layer_gates)]
    output.calls += 1
    return (args[0] * _gate_columns(gates, output).to(args[0]), *args[1:])


def _restart(model: nn.Module, args: Any) -> None:
    for module in model.modules():
        if hasattr(module, "layer_gates"):
            setattr(module, "calls", 0)  # noqa: B010 (types know of tensors and modules only)


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
        folder: with config.json, model.safetensors and heads.json.
        attention: ``sdpa`` (``eager`` where the family lacks it), ``eager``, or another transformers name.
        random: leave the weights at random; the file is not read.
        attention_direction: which words a word of a decoder-only model sees; as it was saved, if not given.
        seed: of random weights; None draws from torch's global generator.

    Raises:
        EncoderError: a file is missing or damaged, or the head map does not fit the model.
    """
    heads = KeptHeads.read(folder)
    config = load_config(str(folder), attention=attention_direction)
    model = load_transformer(
        str(folder), config, random=True, seed=seed if random else 0, attention=attention
    )  # its size is as before; what is cut now is filled below
    shape(model, heads, folder)
    if not random:
        _fill(model, Path(folder) / (GATED if heads.layer_gates else WEIGHTS))
    return model.eval()


def save_pruned(model: PreTrainedModel, heads: KeptHeads, folder: Path) -> None:
    """Write config, weights and head map of a model from which heads were removed."""
    model.save_pretrained(folder, save_original_format=False)  # by the names that `_fill` looks for
    heads.write(folder)
    if heads.layer_gates:
        (folder / WEIGHTS).rename(folder / GATED)


def shape(model: PreTrainedModel, heads: KeptHeads, folder: str | Path) -> None:
    """Give a whole model the shapes of a pruned one. Raises EncoderError where it cannot have them."""
    with reading(Path(folder) / FILE, EncoderError, SAVED):
        gates = torch.zeros(model.config.num_hidden_layers, model.config.num_attention_heads)
        for layer, row in enumerate(heads.kept):
            gates[layer, list(row)] = 1
        left = remove_heads(model, gates, groups=heads.groups or None)
        if (left.family, left.heads, left.kept) != (heads.family, heads.heads, heads.kept):
            raise ValueError("heads that the model in the folder does not have")
    if heads.layer_gates:
        outputs = by_layer(model, family_of(model).output)
        for output in dict.fromkeys(outputs):
            n = len(heads.kept[outputs.index(output)])
            if n:
                _gate_by_layer(model, output, torch.ones(outputs.count(output), n))


def _fill(model: PreTrainedModel, file: Path) -> None:
    remedy = "copy all three again from where the model was saved"
    tensors = {name: value for name, value in model.state_dict().items() if _of_pooler(name)}  # as they are
    stored = read_weights(file, EncoderError, remedy)
    tensors |= {name: value for name, value in stored.items() if not _of_pooler(name)}
    problem = f"the weights of the model that config.json and {FILE} beside it describe"
    fill(model, tensors, EncoderError, f"{file} does not hold {problem}; {remedy}")


def _of_pooler(name: str) -> bool:
    return "pooler" in name.split(".")
