"""Pseudo-log-likelihoods of sentences under masked language models, and judgements of minimal pairs by them.

    lm = MaskedLanguageModel.load("runs/pretrained/step-1000")
    pseudo_log_likelihoods(lm, ["The cat sleeps.", "The cat sleep."])
    judge(lm, read_blimp(Path("data/blimp"))).overall

PLL(x) = Σ_t log P(x_t | x with position t masked) (Salazar et al. 2020).

Letters for shapes: R rows, one for each sub-word of a sentence, L slots in a row, V the size of the vocabulary.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase

from mtlprune.corpora.blimp import Paradigm
from mtlprune.encoder.observe import evaluating
from mtlprune.encoder.pieces import EncoderError
from mtlprune.encoder.sources import load_config, load_tokenizer, locate, positions, quiet

SLOTS = 4096
"""The largest number of slots (R · L) in a batch."""


def load_masked(name: str, **how: Any) -> tuple[Any, list[str]]:
    """Load a masked language model from a folder or the hub, in float32.

    Args:
        name: the folder or hub name.
        how: further arguments of ``from_pretrained``.

    Returns:
        The model, and the names of the weights that its checkpoint lacks.

    Raises:
        EncoderError: no masked language model can be loaded under this name.
    """
    config = load_config(name)
    how |= {"output_loading_info": True, "dtype": torch.float32, "trust_remote_code": False}
    try:
        with quiet():
            model, report = AutoModelForMaskedLM.from_pretrained(locate(name), config=config, **how)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise EncoderError(f"{name!r} cannot be loaded as a masked language model: {reason}") from error
    return model, sorted(report["missing_keys"])


@dataclass(frozen=True, eq=False)
class MaskedLanguageModel:
    """A model that predicts masked sub-words.

    Attributes:
        model: any ...ForMaskedLM model of transformers.
        tokenizer: its fast tokenizer, which has a mask token.
        limit: the number of tokens, including special tokens, that the model can read at once.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    limit: int

    @classmethod
    def load(cls, name: str) -> "MaskedLanguageModel":
        """Load a model from a folder or the hub, in evaluation mode and float32.

        Raises:
            EncoderError: the model does not exist, or has no head that predicts masked sub-words.
        """
        if (Path(name) / "config.yaml").is_file() and not (Path(name) / "config.json").is_file():
            raise EncoderError(
                f"{name} is a run, which keeps its encoder without a head that predicts masked words, so it cannot "
                "predict masked words; give the folder of a masked language model"
            )
        tokenizer = load_tokenizer(name)
        model, missing = load_masked(name)
        if missing:
            raise EncoderError(
                f"{name!r} is an encoder without a head that predicts masked words (its checkpoint lacks "
                f"{missing[0]}), so it cannot predict masked words; give the folder of a masked language model"
            )
        return cls.of(model.eval(), tokenizer)

    @classmethod
    def of(cls, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> "MaskedLanguageModel":
        """Wrap a loaded model, such as one in training. Raises EncoderError if the tokenizer has no mask token."""
        if tokenizer.mask_token_id is None:
            raise EncoderError(
                "pseudo-likelihoods mask pieces of words, but the tokenizer of the model has no mask token"
            )
        return cls(model, tokenizer, positions(model, tokenizer))


def masked_language_models(names: Sequence[str], purpose: str) -> tuple[dict[str, MaskedLanguageModel], dict[str, str]]:
    """Load the masked language models among several encoders.

    Args:
        names: the folders or hub names of the encoders.
        purpose: the beginning of the error message, which says what is impossible without a masked language model.

    Returns:
        The models by name, and for each other name the reason why it is not a masked language model.

    Raises:
        EncoderError: none of the encoders is a masked language model.
    """
    models: dict[str, MaskedLanguageModel] = {}
    refusals: dict[str, str] = {}
    for name in names:
        try:
            models[name] = MaskedLanguageModel.load(name)
        except EncoderError as error:
            refusals[name] = str(error)
    if refusals and not models:
        raise EncoderError(f"{purpose}: {next(iter(refusals.values()))}")
    return models, refusals


def check_lengths(lm: MaskedLanguageModel, paradigms: Sequence[Paradigm]) -> None:
    """Raise EncoderError if a sentence of the minimal pairs is longer than the model's limit."""
    if texts := [text for paradigm in paradigms for pair in paradigm.pairs for text in pair]:
        _tokenize(lm, texts)


class _Text(NamedTuple):
    """A tokenised text: its ids with special tokens, and a mask that is True except at special tokens."""

    ids: NDArray[np.int64]
    plain: NDArray[np.bool_]


def pseudo_log_likelihoods(lm: MaskedLanguageModel, texts: Sequence[str]) -> NDArray[np.float64]:
    """Compute the pseudo-log-likelihood of each of N raw texts, in evaluation mode: (N,) in nats.

    Equal texts get equal numbers to the last bit. The mode of the model is restored.

    Raises:
        EncoderError: a text is longer than the model's limit.
    """
    distinct = list(dict.fromkeys(texts))
    tokenized = _tokenize(lm, distinct)
    sums_of_texts = dict.fromkeys(distinct, 0.0)
    with evaluating(lm.model):
        for rows in _batches([len(text.ids) for text in tokenized]):
            sums = _score_batch(lm, [tokenized[row] for row in rows])
            sums_of_texts.update(zip((distinct[row] for row in rows), sums.tolist(), strict=True))
    return np.array([sums_of_texts[text] for text in texts])


def _tokenize(lm: MaskedLanguageModel, texts: Sequence[str]) -> list[_Text]:
    """Tokenise texts, and raise EncoderError if one of them is longer than the model's limit."""
    encoded = lm.tokenizer(list(texts), add_special_tokens=True, return_special_tokens_mask=True)
    pieces = []
    for text, ids, special in zip(texts, encoded["input_ids"], encoded["special_tokens_mask"], strict=True):
        if len(ids) > lm.limit:
            raise EncoderError(f"the text {text[:60]!r} has {len(ids)} tokens, and the model sees {lm.limit} at once")
        pieces.append(_Text(np.array(ids, np.int64), ~np.array(special, bool)))
    return pieces


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield batches of texts of similar length within `SLOTS`. A text of m tokens makes nearly m rows of width m."""
    rows: list[int] = []
    used, width = 0, 0
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        if rows and (used + lengths[row]) * width > SLOTS:
            yield rows
            rows, used = [], 0
        width = max(width, lengths[row]) if rows else lengths[row]
        rows.append(row)
        used += lengths[row]
    if rows:
        yield rows


def _score_batch(lm: MaskedLanguageModel, texts: Sequence[_Text]) -> NDArray[np.float64]:
    """Compute the pseudo-log-likelihood of each text of a batch, with a row for each of its sub-words."""
    width = max(len(text.ids) for text in texts)
    padding = lm.tokenizer.pad_token_id or 0
    ids = np.stack([np.pad(text.ids, (0, width - len(text.ids)), constant_values=padding) for text in texts])
    plain = np.stack([np.pad(text.plain, (0, width - len(text.plain))) for text in texts])
    lengths = np.array([len(text.ids) for text in texts])
    text_of_row, target = np.nonzero(plain)  # (R,) each: the text of a row, and the position that the row masks
    column = np.arange(width)
    masked_ids = np.where(column == target[:, None], lm.tokenizer.mask_token_id, ids[text_of_row])  # (R, L)
    mask = (column < lengths[text_of_row, None]).astype(np.int64)  # (R, L), 0 for padding
    slots = np.arange(len(target)) * width + target
    arrays = (masked_ids, mask, slots, ids[text_of_row, target])
    input_ids, attention_mask, slots_on_device, gold = (torch.from_numpy(array).to(lm.model.device) for array in arrays)
    with head_at(lm.model, slots_on_device, input_ids.shape):
        logits = cast(Tensor, lm.model(input_ids=input_ids, attention_mask=attention_mask).logits)
    logits = logits.flatten(0, 1)[slots_on_device] if logits.ndim == 3 else logits  # (R, V)
    scores = logits.float().log_softmax(-1).gather(1, gold[:, None])[:, 0]
    sums = np.zeros(len(texts))
    np.add.at(sums, text_of_row, scores.double().cpu().numpy())
    return sums


@contextmanager
def head_at(model: PreTrainedModel, slots: Tensor, shape: torch.Size) -> Iterator[None]:
    """Enter a context in which the prediction head, the largest part of a small model, runs only on some slots.

    Args:
        model: the masked language model.
        slots: the slots (row · width + column).
        shape: the shape (rows, width) of the batch.
    """

    def pick(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        fits = args and isinstance(args[0], Tensor) and args[0].shape[:2] == shape
        return (args[0].flatten(0, 1)[slots], *args[1:]) if fits else args

    head = next((child for child in model.children() if child is not model.base_model), None)
    with nullcontext() if head is None else head.register_forward_pre_hook(pick):
        yield


@dataclass(frozen=True)
class Judgements:
    """The percentages of minimal pairs in which a model prefers the acceptable sentence.

    Attributes:
        paradigms: the percentage in each paradigm, by name.
        phenomena: the unweighted mean over the paradigms of each phenomenon, by name.
        overall: the unweighted mean over all paradigms.
        pairs: the number of pairs.
    """

    paradigms: dict[str, float]
    phenomena: dict[str, float]
    overall: float
    pairs: int


def judge(lm: MaskedLanguageModel, paradigms: Sequence[Paradigm]) -> Judgements:
    """Judge minimal pairs: a pair is right if PLL(good) > PLL(bad), and a tie is wrong.

    Raises:
        EncoderError: a sentence is longer than the model's limit.
    """
    texts = [text for paradigm in paradigms for pair in paradigm.pairs for text in pair]
    scores = pseudo_log_likelihoods(lm, texts).reshape(-1, 2)
    right = np.split(scores[:, 0] > scores[:, 1], np.cumsum([len(p.pairs) for p in paradigms])[:-1])
    accuracies = {paradigm.name: 100 * float(part.mean()) for paradigm, part in zip(paradigms, right, strict=True)}
    groups: dict[str, list[float]] = {}
    for paradigm in paradigms:
        groups.setdefault(paradigm.phenomenon, []).append(accuracies[paradigm.name])
    phenomena = {name: float(np.mean(values)) for name, values in sorted(groups.items())}
    return Judgements(accuracies, phenomena, float(np.mean(list(accuracies.values()))), len(scores))
