"""The data of a run: sentences are read from the corpus, checked, tokenised and converted into targets."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar, cast

from mtlprune.config.config import Config, ConfigError
from mtlprune.corpora.store import IN_MEMORY, Corpus
from mtlprune.corpora.tables import batched
from mtlprune.encoder.pieces import Pieces
from mtlprune.io.reuse import reuse_or_make
from mtlprune.model import MultiTaskModel
from mtlprune.sentence import Sentence
from mtlprune.tasks.base import Target, Task
from mtlprune.training.run import Run

_Value = TypeVar("_Value")
_AT_ONCE = 2048  # sentences that are tokenised or converted together if a split is not held in memory


def read_splits(config: Config, corpus: Corpus) -> tuple[Sequence[Sentence], Sequence[Sentence]]:
    """Return the training sentences and the dev sentences that a configuration selects from a corpus.

    Up to `IN_MEMORY` sentences of a split are returned as a list, and more of them as stored sentences, which are
    decoded at each access.

    Raises ConfigError if a split does not exist, or if no sentence of a split has the layer of a task.
    """
    for key, name in (("train", config.data.train), ("dev", config.data.dev)):
        if name not in corpus.splits:
            problem = f"expected a split {name!r}, found {', '.join(corpus.splits)}"
            raise ConfigError(f"{config.data.path}: {problem}; correct data.{key}")
    train = _decoded(corpus, config.data.train, config.data.train_sentences, config.data.half)
    dev = _decoded(corpus, config.data.dev, config.data.dev_sentences)
    splits = [(config.data.train, train), (config.data.dev, dev)]
    for name, sentences in splits:
        missing = [task for task in config.tasks if all(sentence.get(task) is None for sentence in sentences)]
        if missing:
            missing_layers = f"layers {', '.join(missing)}" if len(missing) > 1 else f"layer {missing[0]}"
            remaining = ",".join(task for task in config.tasks if task not in missing)
            advice = f"train without (tasks={remaining}), " if remaining else "choose other tasks, "
            raise ConfigError(
                f"{config.data.path}, split {name}: no sentence has the {missing_layers}; {advice}or build a corpus "
                f"that has {'them' if len(missing) > 1 else 'it'}"
            )
    return train, dev


def _decoded(corpus: Corpus, split: str, first: int | None, half_number: int | None = None) -> Sequence[Sentence]:
    stored = corpus[split].first(first).one_half(half_number)
    if len(stored) > IN_MEMORY:
        return stored
    key = corpus.info["files"][split], first, half_number  # the SHA-256 of the split's file, and the selected sentences
    return reuse_or_make(f"sentences of {split}", key, lambda: list(stored))


def portions(sentences: Sequence[Sentence]) -> Iterator[Sequence[Sentence]]:
    """Yield a split that is held in memory as a whole, and another split in portions that fit into memory."""
    return batched(sentences, max(1, len(sentences)) if isinstance(sentences, list) else _AT_ONCE)


def load_data(config: Config, model: MultiTaskModel, train: Sequence[Sentence], dev: Sequence[Sentence]) -> Run:
    """Tokenise the training sentences, make the targets of all tasks, and return them as a run.

    Both are done once, before the first epoch, if ``train`` is a list. For a split that is not held in memory they are
    done for each batch, and only the lengths of its sentences and their layers are kept.
    """
    encoder, tasks = model.encoder, {name: cast(Task, model.tasks[name]) for name in config.tasks}
    is_in_memory, pieces_in_memory, lengths = isinstance(train, list), list[Pieces](), list[int]()
    is_annotated: dict[str, list[bool]] = {name: [] for name in tasks}
    for sentences in portions(train):
        pieces = encoder.tokenize_sentences(sentences)
        lengths += [len(row.ids) + encoder.frame.size for row in pieces]
        pieces_in_memory += pieces if is_in_memory else []
        for name, task in tasks.items():
            is_annotated[name] += map(task.is_annotated, sentences)
    # The pieces and the targets of a batch are computed one after the other from the same sentences.
    sentence_at = lru_cache(_AT_ONCE)(train.__getitem__)

    def computed(make: Callable[[Sequence[Sentence]], list[_Value]]) -> Sequence[_Value]:
        return make(train) if is_in_memory else _Computed(train, sentence_at, make)

    targets = {name: computed(partial(_targets, task)) for name, task in tasks.items()}
    trees = computed(lambda sentences: [sentence.dep for sentence in sentences]) if config.syntax.strength else []
    all_pieces = pieces_in_memory if is_in_memory else computed(encoder.tokenize_sentences)
    return Run(config, model, all_pieces, targets, lengths, is_annotated, dev, trees)


def _targets(task: Task, sentences: Sequence[Sentence]) -> list[Target | None]:
    return [task.target(sentence) if task.is_annotated(sentence) else None for sentence in sentences]


class _Computed(Sequence[_Value]):
    """Values that are computed from sentences at each access.

    Args:
        sentences: the sentences from which the values are computed, one value from each.
        sentence_at: function that returns the sentence with a number.
        make: function that computes the values of some sentences.
    """

    def __init__(
        self,
        sentences: Sequence[Sentence],
        sentence_at: Callable[[int], Sentence],
        make: Callable[[Sequence[Sentence]], list[_Value]],
    ) -> None:
        self.sentences, self.sentence_at, self.make = sentences, sentence_at, make

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, index: Any) -> Any:
        """Return the value at an index, or the list of values in a slice."""
        return self.make(self.sentences[index]) if isinstance(index, slice) else self.make([self.sentence_at(index)])[0]

    def __iter__(self) -> Iterator[_Value]:
        for sentences in portions(self.sentences):
            yield from self.make(sentences)
