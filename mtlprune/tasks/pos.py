"""Part-of-speech tagging: one linear layer, as in He and Choi (2021); facts in docs/tasks.md."""

from collections import Counter
from collections.abc import Iterable, Sequence

from mtlprune.sentence import Sentence
from mtlprune.tasks.base import WordLabels, vocabulary


class POS(WordLabels):
    """A layer of tags, as it is."""

    name, kind = "pos", "tags"

    @classmethod
    def collect(cls, sentences: Iterable[Sentence], layer: str = name) -> dict[str, list[str]]:
        return {"tags": vocabulary(Counter(tag for s in sentences for tag in s.get(layer) or ()))}

    def words(self, sentence: Sentence) -> Sequence[str]:
        tags: Sequence[str] = sentence.get(self.layer)
        return tags
