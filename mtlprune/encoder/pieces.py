"""Words to sub-words: any Hugging Face tokenizer, asked one word at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mtlprune.errors import MtlpruneError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CACHED_WORDS = 1_000_000
PROBES = ("of", "the", "in", "was", "he", "two")  # frequent in any corpus with Latin letters


class EncoderError(MtlpruneError):
    """An encoder cannot be had or cannot do what is asked; the message says what was found and what to do."""


@dataclass(frozen=True, eq=False)
class Pieces:
    """One tokenised sentence.

    Attributes:
        ids: (pieces,) int32, sub-word ids without special tokens.
        counts: (words,) int32, how many pieces each word has, at least 1.
    """

    ids: NDArray[np.int32]
    counts: NDArray[np.int32]


class WordPieces:
    """A sub-word tokenizer asked one word at a time, each word in the form it has inside running text.

    Args:
        tokenizer: any Hugging Face tokenizer that puts special tokens around a sentence.
        rows: how many input embeddings the model has; ids beyond are refused.

    Raises:
        EncoderError: no vocabulary, or no special token before or after the sentence.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, rows: int) -> None:
        self.tokenizer = tokenizer
        self.rows = rows
        special = {i for i in tokenizer.all_special_ids if i is not None}
        if not set(tokenizer.get_vocab().values()) - special:
            raise EncoderError(
                f"the tokenizer {type(tokenizer).__name__} of {tokenizer.name_or_path!r} has no vocabulary beside its "
                "special tokens; its files (tokenizer.json or vocab.txt ...) are probably missing from the folder"
            )
        self.lead = self._find_lead()
        self.before, self.after = self._find_specials()
        unknown = tokenizer.unk_token_id if tokenizer.unk_token_id is not None else tokenizer.mask_token_id
        mask = tokenizer.mask_token_id if tokenizer.mask_token_id is not None else tokenizer.unk_token_id
        if unknown is None or mask is None:
            raise EncoderError(
                f"the tokenizer of {tokenizer.name_or_path!r} has neither an unknown nor a mask token; words that "
                "yield no sub-word could not be represented; use another encoder"
            )
        self.unknown, self.mask = int(unknown), int(mask)
        self.forbidden = special - {self.unknown}
        self._cache: dict[str, tuple[int, ...]] = {}

    def _ask(self, texts: Iterable[str], specials: bool = False) -> list[list[int]]:
        # split_special_tokens: the word "[SEP]" in a text is a word, not the special token
        return self.tokenizer(
            list(texts),
            add_special_tokens=specials,
            padding=False,
            truncation=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            split_special_tokens=True,
            verbose=False,
        )["input_ids"]

    def _find_lead(self) -> str:
        """Nothing or a blank: the text before a lone word with which it gets the ids that it has in running text.

        Found by asking the tokenizer rather than by a table of families: byte-level BPE (RoBERTa, DeBERTa, ModernBERT)
        needs the blank, WordPiece and SentencePiece do not.
        """
        agreement = {}
        for lead in ("", " "):
            agreement[lead] = sum(
                text == head + tail
                for text, head, tail in zip(
                    self._ask(f"{a} {b}" for a in PROBES for b in PROBES),
                    self._ask(a for a in PROBES for _ in PROBES),
                    self._ask(lead + b for _ in PROBES for b in PROBES),
                    strict=True,
                )
            )
        return " " if agreement[" "] > agreement[""] else ""

    def _find_specials(self) -> tuple[list[int], list[int]]:
        """The ids the tokenizer puts before and after a sentence."""
        text = self.lead + " ".join(PROBES)
        bare, full = self._ask([text])[0], self._ask([text], specials=True)[0]
        start = next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), None)
        if not bare or start is None:
            raise EncoderError(
                f"the tokenizer of {self.tokenizer.name_or_path!r} alters words when adding special tokens"
            )
        before, after = full[:start], full[start + len(bare) :]
        if not before or not after:
            raise EncoderError(
                f"the tokenizer of {self.tokenizer.name_or_path!r} puts {len(before)} special tokens before a sentence "
                f"and {len(after)} after it; the decoders need at least one on each side (as [CLS] and [SEP]), so use "
                "an encoder of the BERT kind"
            )
        return before, after

    def tokenize(self, sentences: Sequence[Sequence[str]]) -> list[Pieces]:
        """Tokenise sentences; each distinct word is tokenised once for ever.

        Raises:
            EncoderError: a sentence without words, or a tokenizer whose ids exceed the model's embeddings.
        """
        if len(self._cache) > CACHED_WORDS:
            self._cache.clear()
        cache = self._cache
        unseen = list(dict.fromkeys(word for words in sentences for word in words if word not in cache))
        if unseen:
            self._learn(unseen)
        tokenised = []
        for place, words in enumerate(sentences):
            if not words:
                raise EncoderError(f"sentence {place} of {len(sentences)} has no words; expected at least one")
            own = [cache[word] for word in words]
            counts = np.fromiter(map(len, own), np.int32, len(own))
            tokenised.append(Pieces(np.fromiter(chain.from_iterable(own), np.int32, int(counts.sum())), counts))
        return tokenised

    def _learn(self, words: list[str]) -> None:
        for word, ids in zip(words, self._ask(self.lead + word for word in words), strict=True):
            if ids and max(ids) >= self.rows:
                raise EncoderError(
                    f"the tokenizer gives {word!r} the id {max(ids)}, but the model has only {self.rows} input "
                    "embeddings; the folder mixes the tokenizer of one model with the weights of another"
                )
            # SentencePiece vocabularies hold "[SEP]" as a piece; a word of a text must not act as a special token
            kept = tuple(self.unknown if piece in self.forbidden else piece for piece in ids)
            self._cache[word] = kept or (self.unknown,)
