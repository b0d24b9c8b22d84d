"""A small vocabulary of word pieces, learnt from a corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import BertTokenizer, PreTrainedTokenizerBase

from mtlprune.sentence import Sentence

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def learn_pieces(sentences: Iterable[Sentence], size: int) -> PreTrainedTokenizerBase:
    """An uncased BERT tokenizer whose word pieces are learnt from these words.

    Words are given in sorted order, each as often as it occurs, so that the order of sentences means nothing.

    Args:
        size: pieces at most, special tokens included; letters that occur have pieces whatever it is.
    """
    words = Counter(word for sentence in sentences for word in sentence.words)
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    letters = sorted({letter for word in words for letter in made.normalizer.normalize_str(word)} - {" "})
    # numbered beforehand: the trainer would number them in the order of a hash table, and break ties by number
    fixed = [*SPECIALS, *letters, *(f"##{letter}" for letter in letters)]
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=fixed, show_progress=False)
    made.train_from_iterator(_repeated(sorted(words.items())), trainer)
    return BertTokenizer(vocab=made.get_vocab(), do_lower_case=True)


def _repeated(counted: Sequence[tuple[str, int]]) -> Iterator[str]:
    for word, number in counted:
        for _ in range(number):
            yield word
