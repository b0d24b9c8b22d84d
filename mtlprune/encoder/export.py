"""An encoder as plain transformers load it: gates in the weights, every head in its place.

Letters for shapes: L layers, A heads a layer before any was removed.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from mtlprune.encoder.heads import HeadHooks, by_layer, family_of
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.pieces import PROBES, EncoderError
from mtlprune.encoder.removal import KeptHeads
from mtlprune.encoder.sources import load_transformer, quiet


def text_tokenizer(encoder: Encoder, folder: Path) -> tuple[PreTrainedTokenizerBase, bool]:
    """A tokenizer that reads words apart by blanks as the encoder does, the first one too.

    Byte-level BPE (RoBERTa, ModernBERT) gives a word another form at the start of a text, unless it is told to put a
    blank there.

    Args:
        folder: where its own tokenizer lies.

    Returns:
        The tokenizer, and whether it does; if not, texts have to begin with a blank.
    """
    if not encoder.word_pieces.lead:
        return encoder.tokenizer, True
    with quiet():
        tokenizer = AutoTokenizer.from_pretrained(folder, add_prefix_space=True, trust_remote_code=False)
    if isinstance(tokenizer.backend_tokenizer.pre_tokenizer, ByteLevel):
        tokenizer.backend_tokenizer.pre_tokenizer.add_prefix_space = True
    wanted = [*encoder.frame.before, *encoder.tokenize(PROBES).ids.tolist(), *encoder.frame.after]
    fits = tokenizer(" ".join(PROBES))["input_ids"] == wanted
    return (tokenizer, True) if fits else (encoder.tokenizer, False)


@torch.no_grad()
def fold_gates(transformer: PreTrainedModel, gates: Tensor, kept: Sequence[Sequence[int]]) -> None:
    """Multiply the input columns of every attention output projection by their heads' gates, in place.

    The model then computes what it computed under ``HeadHooks(transformer, kept).gated(gates)``; a gate of 0 leaves
    columns of zeros.

    Args:
        gates: (L, A) in [0, 1], in original numbering.
        kept: for each layer the heads it has.

    Raises:
        EncoderError: layers that share a module (ALBERT) have different gates. The model is untouched.
    """
    outputs = by_layer(transformer, family_of(transformer).output)
    rows = [row[list(heads)] for row, heads in zip(gates.detach(), kept, strict=True)]
    for layer, output in enumerate(outputs):
        first = outputs.index(output)
        if not torch.equal(rows[layer], rows[first]):
            raise EncoderError(
                f"layers {first + 1} and {layer + 1} share their weights, but their gates differ, so gates cannot be "
                "folded into weights; expected equal gates in such layers, or export with --remove"
            )
    for output, row in dict(zip(outputs, rows, strict=True)).items():
        if len(row):
            output.weight.mul_(row.repeat_interleave(output.in_features // len(row)).to(output.weight))


@torch.no_grad()
def with_all_heads(transformer: PreTrainedModel, heads: KeptHeads) -> PreTrainedModel:
    """A new model of the shapes that its config says: removed heads are back, and closed.

    Args:
        transformer: from which heads were removed.
        heads: which are left.

    Raises:
        EncoderError: the model carries gates that its weights cannot hold (ALBERT).
    """
    if heads.layer_gates:
        raise EncoderError(
            "layers that share their weights have different gates, so heads cannot be put back as closed ones; export "
            "with --remove"
        )
    config, family = transformer.config, family_of(transformer)
    whole = load_transformer("", config, random=True, seed=0, attention=config._attn_implementation)
    places = HeadHooks(whole)
    shapes = {name: value.shape for name, value in whole.state_dict().items()}
    same = {name: value for name, value in transformer.state_dict().items() if shapes.get(name) == value.shape}
    whole.load_state_dict(same, strict=False)
    parts = [by_layer(model, path) for model in (whole, transformer) for path in (family.attention, family.output)]
    for row, attention, output, cut, cut_output in zip(heads.kept, *parts, strict=True):
        for name, rows in family.keep(row, heads.heads, places.width, places.group).items():
            _fill(getattr(attention, name, None), getattr(cut, name, None), rows)
        output.weight.zero_()
        output.weight.index_copy_(1, family.columns(row, places.width), cut_output.weight)
    return whole.eval()


def _fill(part: Any, cut: Any, places: Tensor) -> None:
    """Put rows of what was cut, a linear layer or a parameter, to where they were; either may lack it."""
    if part is None or cut is None:  # an option of the config, or a layer without heads
        return
    pairs = [(part.weight, cut.weight), (part.bias, cut.bias)] if isinstance(part, nn.Linear) else [(part, cut)]
    for whole, rows in pairs:
        if whole is not None:
            whole.index_copy_(0, places, rows)
