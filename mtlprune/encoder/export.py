"""Conversion of an encoder into a model that plain transformers can load, for ``mtlprune export``.

Gates are folded into the weights, removed heads are put back as heads without effect, and a linear layer can be added
as a classifier. The last functions of this file are printed in model cards, as code for users of the exported model.

Letters for shapes: L layers, A heads in a layer before any was removed, H the hidden size, K labels.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from mtlprune.encoder.families import PROJECTIONS, by_layer, family_of, matrix
from mtlprune.encoder.heads import HeadHooks
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.pieces import PROBES, EncoderError
from mtlprune.encoder.removal import KeptHeads
from mtlprune.encoder.sources import load_transformer, quiet

_HEADS = ("classifier", "score")
"""The names that transformers gives to the linear layer of a token classification model."""


_BLANK_NOTE = "Texts have to begin with a blank, as every word in a text does. "
_SPECIAL_TOKENS_NOTE = "Each text is enclosed by the special tokens {before} and {after}. "


def text_tokenizer(encoder: Encoder, folder: Path) -> tuple[PreTrainedTokenizerBase, str]:
    """Return a tokenizer that gives words separated by blanks the same ids as the encoder does in mtlprune.

    Two settings of a tokenizer may have to change. Byte-level BPE (RoBERTa, ModernBERT) tokenises the first word of a
    text differently, unless the tokenizer adds a space there. Tokenizers of decoder-only models put no special tokens
    around a text.

    Args:
        encoder: the encoder.
        folder: the folder with the encoder's original tokenizer.

    Returns:
        The tokenizer, and instructions for its users where the settings do not suffice, as sentences. If the settings
        suffice, the instructions are empty.
    """
    pieces, frame = encoder.word_pieces, encoder.frame
    if not pieces.lead and not pieces.framed:
        return encoder.tokenizer, ""
    with quiet():
        blank = {"add_prefix_space": True} if pieces.lead else {}
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **blank)
    backend = tokenizer.backend_tokenizer
    if pieces.lead and isinstance(backend.pre_tokenizer, ByteLevel):
        backend.pre_tokenizer.add_prefix_space = True
    before, after = (tokenizer.convert_ids_to_tokens(list(ids)) for ids in (frame.before, frame.after))
    if pieces.framed:
        ids = zip([*before, *after], [*frame.before, *frame.after], strict=True)
        backend.post_processor = TemplateProcessing(single=[*before, "$A", *after], special_tokens=list(ids))
    expected_ids = [*frame.before, *encoder.tokenize(PROBES).ids.tolist(), *frame.after]
    if tokenizer(" ".join(PROBES))["input_ids"] == expected_ids:
        return tokenizer, ""
    note = _SPECIAL_TOKENS_NOTE.format(before=" ".join(before), after=" ".join(after)) if pieces.framed else ""
    return encoder.tokenizer, (_BLANK_NOTE if pieces.lead else "") + note


@torch.no_grad()
def fold_gates(transformer: PreTrainedModel, gates: Tensor, kept_heads: Sequence[Sequence[int]]) -> None:
    """Multiply the input columns of every attention output projection by the gates of their heads, in place.

    The model then computes the same function as under ``HeadHooks(transformer, kept_heads).gated(gates)``. The columns
    of a head with gate 0 become 0.

    Args:
        transformer: the model.
        gates: (L, A) in [0, 1], in the original numbering of heads.
        kept_heads: for each layer the original numbers of its remaining heads.

    Raises:
        EncoderError: layers that share a module (ALBERT) have different gates. The model is unchanged.
    """
    outputs = by_layer(transformer, family_of(transformer).output)
    rows = [row[list(heads)] for row, heads in zip(gates.detach(), kept_heads, strict=True)]
    for layer, output in enumerate(outputs):
        first = outputs.index(output)
        if not torch.equal(rows[layer], rows[first]):
            raise EncoderError(
                f"layers {first + 1} and {layer + 1} share their weights, but their gates differ, so gates cannot be "
                "folded into weights; expected equal gates in such layers, or export with --remove"
            )
    for output, row in dict(zip(outputs, rows, strict=True)).items():  # each module once, although layers may share it
        if len(row):
            matrix(output).mul_(row.repeat_interleave(matrix(output).shape[1] // len(row)).to(output.weight))


@torch.no_grad()
def with_all_heads(transformer: PreTrainedModel, heads: KeptHeads) -> PreTrainedModel:
    """Return a new model of the size in its config, in which removed heads exist again but have no effect.

    The output columns of these heads are 0.

    Args:
        transformer: the model from which heads were removed.
        heads: the remaining heads.

    Raises:
        EncoderError: the model has gates that cannot be folded into its weights (ALBERT), or heads that shared a key
            and a value have different copies of it now.
    """
    if heads.layer_gates:
        raise EncoderError(
            "layers that share their weights have different gates, so heads cannot be put back as closed ones; export "
            "with --remove"
        )
    config, family = transformer.config, family_of(transformer)
    restored = load_transformer("", config, random=True, seed=0, attention=config._attn_implementation)
    hooks = HeadHooks(restored)
    # Tensors whose shapes did not change are copied as a whole. The rows of reduced tensors are copied to their
    # original positions. The rows of removed heads stay random, without effect, because their output columns are 0.
    shapes = {name: value.shape for name, value in restored.state_dict().items()}
    unchanged_tensors = {
        name: value for name, value in transformer.state_dict().items() if shapes.get(name) == value.shape
    }
    restored.load_state_dict(unchanged_tensors, strict=False)
    parts = [by_layer(model, path) for model in (restored, transformer) for path in (family.attention, family.output)]
    for layer, (attention, output, small, small_output) in enumerate(zip(*parts, strict=True)):
        row, new_group = heads.kept[layer], family.sharing(small)
        for name, rows in family.keep(row, heads.heads, hooks.width, hooks.groups[layer], new_group).items():
            _fill(getattr(attention, name, None), getattr(small, name, None), rows)
        matrix(output).zero_()
        matrix(output).index_copy_(1, family.columns(row, hooks.width), matrix(small_output))
    return restored.eval()


def _fill(part: Any, small: Any, positions: Tensor) -> None:
    """Copy the rows of a reduced projection or parameter back to their original positions.

    Args:
        part: the projection or parameter of original size, or None.
        small: the reduced projection or parameter, or None.
        positions: the original position of each row of ``small``.

    Raises:
        EncoderError: heads that shared a row have different copies of it now.
    """
    if part is None or small is None:  # an option of the config leaves it out, or the layer lost all its heads
        return
    pairs = (
        [(matrix(part), matrix(small)), (part.bias, small.bias)] if isinstance(part, PROJECTIONS) else [(part, small)]
    )
    for full_tensor, rows in pairs:
        if full_tensor is None or full_tensor.shape == rows.shape:  # no rows were removed
            continue
        # A position occurs several times if heads that shared a row have copies of it. Then one of the copies is
        # written, and the comparison fails if another copy differs from it.
        full_tensor.index_copy_(0, positions, rows)
        if not torch.equal(full_tensor[positions], rows):
            raise EncoderError(
                "heads that shared a key and a value have had copies of them since some were removed, and these were "
                "trained apart, so heads cannot be put back as closed ones; export with --remove"
            )


@torch.no_grad()
def with_classifier(transformer: PreTrainedModel, scores: nn.Linear, labels: Sequence[str]) -> PreTrainedModel:
    """Return a token classification model of transformers, with a linear layer on the last hidden states.

    Args:
        transformer: the encoder.
        scores: the linear layer, from H to K values.
        labels: the names of the K labels.

    Raises:
        EncoderError: transformers has no token classification model of this family, or its classifier is more than a
            linear layer.
    """
    config = copy.deepcopy(transformer.config)
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: place for place, label in enumerate(labels)}
    options = {"attn_implementation": transformer.config._attn_implementation, "dtype": torch.float32}
    try:
        with quiet():
            model = AutoModelForTokenClassification.from_config(config, **options)
    except ValueError as error:
        raise EncoderError(f"transformers has no token classification for {config.model_type!r}: {error}") from error
    # Loading is not strict, because one of the two models may have a pooler that the other lacks. Token classification
    # does not use the pooler.
    model.base_model.load_state_dict(transformer.state_dict(), strict=False)
    base = {id(weight) for weight in model.base_model.parameters()}
    head_parameters = {name for name, weight in model.named_parameters() if id(weight) not in base}
    head = next((name for name in _HEADS if head_parameters == {f"{name}.weight", f"{name}.bias"}), None)
    if head is None:
        raise EncoderError(
            f"the token classification of {config.model_type!r} in transformers is not one linear layer on the last "
            f"hidden states (it has {', '.join(sorted(head_parameters))}), so --head is not possible; export the "
            "encoder without it"
        )
    model.get_submodule(head).weight.copy_(scores.weight)
    model.get_submodule(head).bias.copy_(scores.bias)
    return model.eval()


_HIDDEN_AND_LAST = (
    ("{base}.pooler.dense", "classifier"),  # BERT
    ("{base}.pooler", "classifier"),  # ALBERT
    ("classifier.dense", "classifier.out_proj"),  # RoBERTa, ELECTRA, MPNet
    ("pre_classifier", "classifier"),  # DistilBERT
    ("pooler.dense", "classifier"),  # DeBERTa
)
"""The paths of the hidden and the last layer of sequence classification models, which read the first token."""
_SCALE = 2.0**-20
"""The factor that makes scores so small that tanh is nearly linear. A power of two loses no digits."""


@torch.no_grad()
def with_sequence_classifier(
    transformer: PreTrainedModel, scores: nn.Linear, labels: Sequence[str], problem: Any
) -> PreTrainedModel:
    """Return a sequence classification model of transformers that computes a linear layer on the first token's state.

    The models of transformers have a hidden layer with an activation f between this state and the scores. To cancel the
    activation, the hidden layer computes every score s twice, as +s and as −s. The difference f(s) − f(−s) is s for
    ReLU and GELU, and nearly 2 s for tanh if s is small. Therefore the hidden layer scales all scores down by
    ``_SCALE``, and the last layer scales their differences up again.

    Args:
        transformer: the encoder.
        scores: the linear layer, from H to K values.
        labels: the names of the K labels.
        problem: the ``problem_type`` of the config.

    Raises:
        EncoderError: transformers has no sequence classification model of this family, the model has other layers, or
            the hidden layer is too small for 2 K scores.
    """
    config = copy.deepcopy(transformer.config)
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: place for place, label in enumerate(labels)}
    config.problem_type = problem
    options = {"attn_implementation": transformer.config._attn_implementation, "dtype": torch.float32}
    try:
        with quiet():
            model = AutoModelForSequenceClassification.from_config(config, **options).eval()
    except ValueError as error:
        raise EncoderError(f"transformers has no sequence classification for {config.model_type!r}: {error}") from error
    model.base_model.load_state_dict(transformer.state_dict(), strict=False)
    modules = dict(model.named_modules())
    pairs = [[modules.get(n.format(base=model.base_model_prefix)) for n in names] for names in _HIDDEN_AND_LAST]
    hidden, last = next(
        ([a, b] for a, b in pairs if isinstance(a, nn.Linear) and isinstance(b, nn.Linear)), (None, None)
    )
    count = scores.out_features
    if not isinstance(hidden, nn.Linear) or not isinstance(last, nn.Linear) or 2 * count > hidden.out_features:
        raise EncoderError(
            f"the sequence classification of {config.model_type!r} in transformers is no hidden layer, with room for "
            f"{2 * count} scores, and a linear layer on the first token, so --head is not possible; export the encoder "
            "without it"
        )
    for layer in (hidden, last):
        layer.weight.zero_()
        layer.bias.zero_()
    hidden.bias[:2] = torch.tensor([_SCALE, -_SCALE])
    last.weight[0, :2] = torch.tensor([1 / _SCALE, -1 / _SCALE])
    # A forward pass with a constant score of 1 measures the slope of f(s) − f(−s): 2 for tanh, 1 for ReLU and GELU.
    slope = float(model(input_ids=torch.zeros(1, 4, dtype=torch.long)).logits[0, 0])
    hidden.weight[: 2 * count] = _SCALE * torch.cat([scores.weight, -scores.weight])
    hidden.bias[: 2 * count] = _SCALE * torch.cat([scores.bias, -scores.bias])
    index = torch.arange(count)
    last.weight.zero_()
    last.weight[index, index] = 1 / (_SCALE * slope)
    last.weight[index, index + count] = -1 / (_SCALE * slope)
    return model


# Model cards print the source of the functions below. Therefore these functions use only torch and transformers.


@torch.no_grad()
def label_words(
    words: list[str],
    tokenizer: Any,
    model: Any,
    lead: str,
    before: list[int],
    after: list[int],
    unknown: int,
    room: int,
) -> list[tuple[str, float]]:
    """Return the label of each word with its probability, read at the first sub-word of the word, as in training.

    Words are tokenized one by one, with ``lead`` in front of each. The special tokens ``before`` and ``after`` enclose
    the sentence. If it has more sub-words than ``room``, the model reads windows that overlap by half.
    """
    special = set(tokenizer.all_special_ids) - {unknown}
    texts = [lead + word for word in words]
    ids: list[int] = []
    firsts: list[int] = []
    for pieces in tokenizer(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]:
        firsts.append(len(ids))
        ids += [unknown if piece in special else piece for piece in pieces] or [unknown]
    half_room = room // 2
    starts = range(0, max(1, len(ids) - room + half_room), half_room)
    rows = [torch.tensor([before + ids[start : start + room] + after]) for start in starts]
    scores = [model(input_ids=row).logits[0, len(before) :].softmax(-1) for row in rows]
    window = [min(max(0, first - half_room // 2) // half_room, len(starts) - 1) for first in firsts]
    best = [scores[w][first - starts[w]].max(-1) for w, first in zip(window, firsts, strict=True)]
    return [(model.config.id2label[int(label)], float(score)) for score, label in best]


@torch.no_grad()
def score_text(
    first: list[str],
    second: list[str],
    tokenizer: Any,
    model: Any,
    lead: str,
    before: list[int],
    between: list[int],
    after: list[int],
    unknown: int,
    second_type: int,
    room: int,
) -> torch.Tensor:
    """Return the scores of a text, or of a pair of texts, given as lists of words. For one text, ``second`` is empty.

    Words are tokenized one by one, with ``lead`` in front of each. The special tokens ``before``, ``between`` and
    ``after`` enclose the texts. If there are more sub-words than ``room``, the longer text is cut at its end.
    """
    special = set(tokenizer.all_special_ids) - {unknown}
    texts: list[list[int]] = []
    for words in (first, second):
        ids: list[int] = []
        for word in words:
            pieces = tokenizer(lead + word, add_special_tokens=False, split_special_tokens=True)["input_ids"]
            ids += [unknown if piece in special else piece for piece in pieces] or [unknown]
        texts.append(ids)
    middle = between if second else []
    while len(texts[0]) + len(texts[1]) > room - len(middle):
        texts[0 if len(texts[0]) > len(texts[1]) else 1].pop()
    head = [*before, *texts[0], *middle]
    tail = [*texts[1], *after]
    types = [0] * len(head) + [second_type] * len(tail)
    more = {"token_type_ids": torch.tensor([types])} if second and second_type else {}
    scores: torch.Tensor = model(input_ids=torch.tensor([head + tail]), **more).logits[0]
    return scores


def join_tags(tags: list[str]) -> list[tuple[int, int, str]]:
    """Return the spans (first word, word after the last, label) that the tags B-LABEL, I-LABEL and O describe."""
    spans: list[tuple[int, int, str]] = []
    for place, tag in enumerate(tags):
        mark, _, label = tag.partition("-")
        if mark == "I" and spans and spans[-1][1:] == (place, label):
            spans[-1] = (spans[-1][0], place + 1, label)
        elif mark != "O":
            spans.append((place, place + 1, label))
    return spans
