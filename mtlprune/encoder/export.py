"""An encoder as plain transformers load it: gates in the weights, every head in its place, a linear layer on top.

Letters for shapes: L layers, A heads a layer before any was removed, H the hidden size, K labels.
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

HEADS = ("classifier", "score")
"""The linear layer of a model for token classification beside its base model, where there is nothing else."""


_BLANK = "Texts have to begin with a blank, as every word in a text does. "
_SPECIAL_TOKENS_NOTE = "Each text is enclosed by the special tokens {before} and {after}. "


def text_tokenizer(encoder: Encoder, folder: Path) -> tuple[PreTrainedTokenizerBase, str]:
    """A tokenizer that reads words apart by blanks as the encoder does, the first one too, between the same special
    tokens.

    Byte-level BPE (RoBERTa, ModernBERT) gives a word another form at the start of a text, unless it is set to put a
    blank there; decoder-only models have no special tokens around a text.

    Args:
        folder: where its own tokenizer lies.

    Returns:
        The tokenizer, and what its users have to do, in sentences; empty where it does all.
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
    return encoder.tokenizer, (_BLANK if pieces.lead else "") + note


@torch.no_grad()
def fold_gates(transformer: PreTrainedModel, gates: Tensor, kept_heads: Sequence[Sequence[int]]) -> None:
    """Multiply the input columns of every attention output projection by their heads' gates, in place.

    The model then computes what it computed under ``HeadHooks(transformer, kept).gated(gates)``; a gate of 0 leaves
    columns of zeros.

    Args:
        gates: (L, A) in [0, 1], in original numbering.
        kept_heads: for each layer the heads it has.

    Raises:
        EncoderError: layers that share a module (ALBERT) have different gates. The model is untouched.
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
    for output, row in dict(zip(outputs, rows, strict=True)).items():
        if len(row):
            matrix(output).mul_(row.repeat_interleave(matrix(output).shape[1] // len(row)).to(output.weight))


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
    restored = load_transformer("", config, random=True, seed=0, attention=config._attn_implementation)
    places = HeadHooks(restored)
    shapes = {name: value.shape for name, value in restored.state_dict().items()}
    unchanged_tensors = {
        name: value for name, value in transformer.state_dict().items() if shapes.get(name) == value.shape
    }
    restored.load_state_dict(unchanged_tensors, strict=False)
    parts = [by_layer(model, path) for model in (restored, transformer) for path in (family.attention, family.output)]
    for layer, (attention, output, small, small_output) in enumerate(zip(*parts, strict=True)):
        row, left = heads.kept[layer], family.sharing(small)
        for name, rows in family.keep(row, heads.heads, places.width, places.groups[layer], left).items():
            _fill(getattr(attention, name, None), getattr(small, name, None), rows)
        matrix(output).zero_()
        matrix(output).index_copy_(1, family.columns(row, places.width), matrix(small_output))
    return restored.eval()


def _fill(part: Any, small: Any, places: Tensor) -> None:
    """Put rows of what was cut, a projection or a parameter, to where they were; either may lack it.

    Raises:
        EncoderError: heads that shared a row no longer have the same one.
    """
    if part is None or small is None:  # an option of the config, or a layer without heads
        return
    pairs = (
        [(matrix(part), matrix(small)), (part.bias, small.bias)] if isinstance(part, PROJECTIONS) else [(part, small)]
    )
    for full_tensor, rows in pairs:
        if full_tensor is None or full_tensor.shape == rows.shape:  # it was never cut
            continue
        full_tensor.index_copy_(0, places, rows)
        if not torch.equal(full_tensor[places], rows):
            raise EncoderError(
                "heads that shared a key and a value have had copies of them since some were removed, and these were "
                "trained apart, so heads cannot be put back as closed ones; export with --remove"
            )


@torch.no_grad()
def with_classifier(transformer: PreTrainedModel, scores: nn.Linear, labels: Sequence[str]) -> PreTrainedModel:
    """A model for token classification: the transformer, and a linear layer on its last hidden states.

    Args:
        scores: H to K.
        labels: of the K rows.

    Raises:
        EncoderError: transformers has no such model of this family, or it is more than a linear layer.
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
    # Not strict, because one of the two models may have a pooler that the other lacks; it takes no part in
    # classification.
    model.base_model.load_state_dict(transformer.state_dict(), strict=False)
    base = {id(weight) for weight in model.base_model.parameters()}
    head_parameters = {name for name, weight in model.named_parameters() if id(weight) not in base}
    head = next((name for name in HEADS if head_parameters == {f"{name}.weight", f"{name}.bias"}), None)
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
"""The hidden and the last layer of a model for sequence classification, which reads the first token."""
SCALE = 2.0**-20


@torch.no_grad()
def with_sequence_classifier(
    transformer: PreTrainedModel, scores: nn.Linear, labels: Sequence[str], problem: Any
) -> PreTrainedModel:
    """A model for sequence classification that computes a linear layer on the state of the first token.

    Between the state and the scores of transformers stands a hidden layer with an activation f. It gets every score s
    twice, as +s and as −s: f(s) − f(−s) is s for ReLU and GELU, and nearly 2 s for tanh where s is small, so scores are
    scaled by a power of two, which costs no digit, and scaled back by the last layer.

    Args:
        scores: H to K.
        labels: of the K rows.
        problem: ``problem_type`` of the config.

    Raises:
        EncoderError: transformers has no such model of this family, or one that computes something else, or the hidden
            layer has no room for 2 K scores.
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
    hidden.bias[:2] = torch.tensor([SCALE, -SCALE])
    last.weight[0, :2] = torch.tensor([1 / SCALE, -1 / SCALE])
    slope = float(model(input_ids=torch.zeros(1, 4, dtype=torch.long)).logits[0, 0])  # 2 for tanh, else 1
    hidden.weight[: 2 * count] = SCALE * torch.cat([scores.weight, -scores.weight])
    hidden.bias[: 2 * count] = SCALE * torch.cat([scores.bias, -scores.bias])
    places = torch.arange(count)
    last.weight.zero_()
    last.weight[places, places] = 1 / (SCALE * slope)
    last.weight[places, places + count] = -1 / (SCALE * slope)
    return model


# Model cards print the code below as it stands here; with plain transformers and torch it needs nothing else.


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
    """The label of each word, and its probability. They are those of the word's first sub-word: no other was trained.

    Words are tokenized one by one, after ``lead``; special tokens stand ``before`` and ``after`` all. Where there is no
    ``room`` for so many sub-words, the model sees windows that overlap by half.
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
    """The scores of a text, or of a pair of texts, each given as words; ``second`` is empty where there is one text.

    Words are tokenized one by one, after ``lead``; special tokens stand ``before``, ``between`` and ``after``. Of texts
    with more sub-words than there is ``room`` for, the end of the longer one is cut.
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
    """Spans of words, (first, one after the last, label), from tags B-LABEL, I-LABEL and O."""
    spans: list[tuple[int, int, str]] = []
    for place, tag in enumerate(tags):
        mark, _, label = tag.partition("-")
        if mark == "I" and spans and spans[-1][1:] == (place, label):
            spans[-1] = (spans[-1][0], place + 1, label)
        elif mark != "O":
            spans.append((place, place + 1, label))
    return spans
