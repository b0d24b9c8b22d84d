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

_CACHED_WORDS = 1_000_000
PROBES = ("of", "the", "in", "was", "he", "two")  # frequent in any corpus with Latin letters


class EncoderError(MtlpruneError):
    """An encoder cannot be had or cannot do what is asked; the message says what was found and what to do."""


@dataclass(frozen=True, eq=False)
class Pieces:
    """One tokenised sentence.

    Attributes:
        ids: (pieces,) int32, sub-word ids without special tokens.
        counts: (words,) int32, how many pieces each word has, at least 1 (of a pair that was cut perhaps 0).
        split: of a pair, how many pieces its first text has; 0 of one text.
    """

    ids: NDArray[np.int32]
    counts: NDArray[np.int32]
    split: int = 0

    def cut(self, room: int) -> Pieces:
        """A pair of at most so many pieces: the last piece of the longer text goes, again and again, as transformers
        cut pairs (``longest_first``); of equal ones that of the second text."""
        first, second = self.split, len(self.ids) - self.split
        while first + second > room:
            first, second = (first - 1, second) if first > second else (first, second - 1)
        pieces_kept = np.r_[0:first, self.split : self.split + second]
        word = np.repeat(np.arange(len(self.counts)), self.counts)[pieces_kept]
        counts = np.bincount(word, minlength=len(self.counts)).astype(np.int32)
        return Pieces(self.ids[pieces_kept], counts, first)


class WordPieces:
    """A sub-word tokenizer asked one word at a time, each word in the form it has inside running text.

    Args:
        tokenizer: any Hugging Face tokenizer. Where it puts no special token before or after a sentence, as those of
            decoder-only models do, the first one it has of BOS, CLS, EOS, PAD stands before it, and of EOS, SEP, BOS,
            PAD after it: decoders of tasks read one on each side.
        rows: how many input embeddings the model has; ids beyond are refused.

    Attributes:
        before, after: ids around a sentence.
        framed: whether some of these are not the tokenizer's own.
        between: ids between the texts of a pair: the tokenizer's own, of decoder-only models those of a line break.
        second_type: the token type of the second text of a pair, as BERT has it; 0 where there are no types.
        unknown: stands for a word that yields no sub-word; the first there is of UNK, MASK, PAD, EOS.
        mask: of word dropout; the first there is of MASK, UNK, PAD, EOS.

    Raises:
        EncoderError: no vocabulary, or no special tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, rows: int) -> None:
        self.tokenizer = tokenizer
        self.rows = rows
        special = {i for i in tokenizer.all_special_ids if i is not None}
        if not set(tokenizer.get_vocab().values()) - special:
            raise EncoderError(
                f"the tokenizer {type(tokenizer).__name__} of {tokenizer.name_or_path!r} has no vocabulary apart from "
                "its special tokens; its files (tokenizer.json or vocab.txt ...) are probably missing from the folder"
            )
        self.lead = self._find_lead()
        self.before, self.after = self._find_specials()
        self.between, self.second_type = self._find_pair()
        self.unknown = self._special("unk", "mask", "pad", "eos")
        self.mask = self._special("mask", "unk", "pad", "eos")
        self.forbidden = special - {self.unknown}
        self._cache: dict[str, tuple[int, ...]] = {}

    def _special(self, *kinds: str) -> int:
        """The id of the first special token there is of some kinds and of which the model has an embedding."""
        ids = [getattr(self.tokenizer, f"{kind}_token_id") for kind in kinds]
        if known_ids := [int(piece_id) for piece_id in ids if piece_id is not None and piece_id < self.rows]:
            return known_ids[0]
        raise EncoderError(
            f"the tokenizer of {self.tokenizer.name_or_path!r} has no token of the kinds {', '.join(kinds)}, one of "
            "which is needed where there is no word; use another encoder"
        )

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
        self.framed = not before or not after
        return before or [self._special("bos", "cls", "eos", "pad")], after or [
            self._special("eos", "sep", "bos", "pad")
        ]

    def _find_pair(self) -> tuple[list[int], int]:
        """The ids that the tokenizer puts between two texts, and the token type of the second one."""
        text = self.lead + " ".join(PROBES)
        bare = self._ask([text])[0]
        pair = self.tokenizer(text, text, return_token_type_ids=True)
        ids, size = pair["input_ids"], len(bare)
        places = [i for i in range(len(ids) - size + 1) if ids[i : i + size] == bare]
        between = ids[places[0] + size : places[-1]] if len(places) == 2 else []
        ends = ids[places[-1] + size :] if places else []
        if not between or not ends:  # decoder-only models have no form of pairs
            return self._ask(["\n"])[0] or [self._special("sep", "eos", "bos", "pad")], 0
        return between, int(pair.get("token_type_ids", [0] * len(ids))[places[-1]])

    def tokenize(self, sentences: Sequence[Sequence[str]]) -> list[Pieces]:
        """Tokenise sentences; each distinct word is tokenised once for ever.

        Raises:
            EncoderError: a sentence without words, or a tokenizer whose ids exceed the model's embeddings.
        """
        if len(self._cache) > _CACHED_WORDS:
            self._cache.clear()
        cache = self._cache
        new_words = list(dict.fromkeys(word for words in sentences for word in words if word not in cache))
        if new_words:
            self._learn(new_words)
        tokenised = []
        for place, words in enumerate(sentences):
            if not words:
                raise EncoderError(f"sentence {place} of {len(sentences)} has no words; expected at least one")
            word_pieces = [cache[word] for word in words]
            counts = np.fromiter(map(len, word_pieces), np.int32, len(word_pieces))
            tokenised.append(Pieces(np.fromiter(chain.from_iterable(word_pieces), np.int32, int(counts.sum())), counts))
        return tokenised

    def _learn(self, words: list[str]) -> None:
        for word, ids in zip(words, self._ask(self.lead + word for word in words), strict=True):
            if ids and max(ids) >= self.rows:
                raise EncoderError(
                    f"the tokenizer gives {word!r} the id {max(ids)}, but the model has only {self.rows} input "
                    "embeddings; the folder mixes the tokenizer of one model with the weights of another"
                )
            # SentencePiece vocabularies hold "[SEP]" as a piece; a word of a text must not act as a special token
            learned_ids = tuple(self.unknown if piece in self.forbidden else piece for piece in ids)
            self._cache[word] = learned_ids or (self.unknown,)
