"""Sub-word tokenisation of sentences that are already split into words, with any Hugging Face tokenizer.

Sub-words are called *pieces*. Every word is tokenised separately, so the pieces of each word are known.
"""

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
PROBES = ("of", "the", "in", "was", "he", "two")
"""Words with which the behaviour of a tokenizer is tested. They are frequent in English corpora."""


class EncoderError(MtlpruneError):
    """The error for an encoder that cannot be loaded or does not support an operation."""


@dataclass(frozen=True, eq=False)
class Pieces:
    """A tokenised sentence, or a tokenised pair of texts.

    Attributes:
        ids: (pieces,) int32, the sub-word ids without special tokens.
        counts: (words,) int32, the number of pieces of each word. It is at least 1, except in a pair that was cut.
        split: the number of pieces of the first text of a pair, 0 for a single text.
    """

    ids: NDArray[np.int32]
    counts: NDArray[np.int32]
    split: int = 0

    def cut(self, room: int) -> Pieces:
        """Return a pair with at most ``room`` pieces.

        The last piece of the longer text, or of the second text if both have the same length, is removed again and
        again, as transformers truncates pairs (``longest_first``).
        """
        first, second = self.split, len(self.ids) - self.split
        while first + second > room:
            first, second = (first - 1, second) if first > second else (first, second - 1)
        pieces_kept = np.r_[0:first, self.split : self.split + second]
        word = np.repeat(np.arange(len(self.counts)), self.counts)[pieces_kept]
        counts = np.bincount(word, minlength=len(self.counts)).astype(np.int32)
        return Pieces(self.ids[pieces_kept], counts, first)


class WordPieces:
    """A sub-word tokenizer that tokenises words one by one, each in the form that it has inside running text.

    Args:
        tokenizer: any Hugging Face tokenizer. The decoders of tasks read a special token on each side of a sentence. If
            the tokenizer puts none there, as for most decoder-only models, the first existing token among BOS, CLS,
            EOS and PAD is put before a sentence, and among EOS, SEP, BOS and PAD after it.
        rows: the number of input embeddings of the model. :meth:`tokenize` refuses ids without an embedding.

    Attributes:
        lead: the text before a word with which the tokenizer gives it the ids that it has inside running text, "" or a
            space.
        before, after: the ids of the special tokens before and after a sentence.
        framed: whether the tokenizer itself puts no special token on at least one side.
        between: the ids between the texts of a pair, which are those of a line break for decoder-only models.
        second_type: the token type of the second text of a pair (1 for BERT), or 0 without token types.
        unknown: the id for a word without sub-words, the first existing token among UNK, MASK, PAD and EOS.
        mask: the id that word dropout inserts, the first existing token among MASK, UNK, PAD and EOS.
        forbidden: the ids of special tokens, which are replaced by ``unknown`` in words.

    Raises:
        EncoderError: the tokenizer has no vocabulary or no special tokens.
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
        """Return the id of the first special token of some kinds that exists and has an embedding in the model.

        Raises:
            EncoderError: there is none.
        """
        ids = [getattr(self.tokenizer, f"{kind}_token_id") for kind in kinds]
        if known_ids := [int(piece_id) for piece_id in ids if piece_id is not None and piece_id < self.rows]:
            return known_ids[0]
        raise EncoderError(
            f"the tokenizer of {self.tokenizer.name_or_path!r} has no token of the kinds {', '.join(kinds)}, one of "
            "which is needed where there is no word; use another encoder"
        )

    def _encode(self, texts: Iterable[str], specials: bool = False) -> list[list[int]]:
        # split_special_tokens is set because "[SEP]" in a text is a word and not the special token.
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
        """Return the text, "" or a space, before a single word that gives it the ids that it has in running text.

        Byte-level BPE (RoBERTa, DeBERTa, ModernBERT) needs the space, WordPiece and SentencePiece do not. A test on
        pairs of probe words decides, so no table of families is needed.
        """
        agreement = {}
        for lead in ("", " "):
            agreement[lead] = sum(
                text == head + tail
                for text, head, tail in zip(
                    self._encode(f"{a} {b}" for a in PROBES for b in PROBES),
                    self._encode(a for a in PROBES for _ in PROBES),
                    self._encode(lead + b for _ in PROBES for b in PROBES),
                    strict=True,
                )
            )
        return " " if agreement[" "] > agreement[""] else ""

    def _find_specials(self) -> tuple[list[int], list[int]]:
        """Return the ids of the special tokens before and after a sentence.

        If the tokenizer adds none on one side, one of its special tokens serves there, such as BOS.

        Raises:
            EncoderError: the tokenizer changes words when it adds special tokens.
        """
        text = self.lead + " ".join(PROBES)
        bare, full = self._encode([text])[0], self._encode([text], specials=True)[0]
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
        """Return the ids that the tokenizer puts between two texts, and the token type of the second text."""
        text = self.lead + " ".join(PROBES)
        bare = self._encode([text])[0]
        pair = self.tokenizer(text, text, return_token_type_ids=True)
        ids, size = pair["input_ids"], len(bare)
        starts = [i for i in range(len(ids) - size + 1) if ids[i : i + size] == bare]
        between = ids[starts[0] + size : starts[-1]] if len(starts) == 2 else []
        ends = ids[starts[-1] + size :] if starts else []
        if not between or not ends:  # tokenizers of decoder-only models put nothing between the texts of a pair
            return self._encode(["\n"])[0] or [self._special("sep", "eos", "bos", "pad")], 0
        return between, int(pair.get("token_type_ids", [0] * len(ids))[starts[-1]])

    def tokenize(self, sentences: Sequence[Sequence[str]]) -> list[Pieces]:
        """Tokenise sentences. The ids of each distinct word are cached.

        Raises:
            EncoderError: a sentence has no words, or an id of the tokenizer has no embedding in the model.
        """
        if len(self._cache) > _CACHED_WORDS:
            self._cache.clear()
        cache = self._cache
        new_words = list(dict.fromkeys(word for words in sentences for word in words if word not in cache))
        if new_words:
            self._add_to_cache(new_words)
        tokenised = []
        for place, words in enumerate(sentences):
            if not words:
                raise EncoderError(f"sentence {place} of {len(sentences)} has no words; expected at least one")
            word_pieces = [cache[word] for word in words]
            counts = np.fromiter(map(len, word_pieces), np.int32, len(word_pieces))
            tokenised.append(Pieces(np.fromiter(chain.from_iterable(word_pieces), np.int32, int(counts.sum())), counts))
        return tokenised

    def _add_to_cache(self, words: list[str]) -> None:
        for word, ids in zip(words, self._encode(self.lead + word for word in words), strict=True):
            if ids and max(ids) >= self.rows:
                raise EncoderError(
                    f"the tokenizer gives {word!r} the id {max(ids)}, but the model has only {self.rows} input "
                    "embeddings; the folder mixes the tokenizer of one model with the weights of another"
                )
            # Some SentencePiece vocabularies contain "[SEP]" as a piece, but a word of a text must not act as a special
            # token.
            learned_ids = tuple(self.unknown if piece in self.forbidden else piece for piece in ids)
            self._cache[word] = learned_ids or (self.unknown,)
