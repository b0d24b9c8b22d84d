"""The sentences of a run: read, checked, tokenised, and made into targets."""

from collections.abc import Callable, Sequence
from typing import Any

from mtlprune.config.config import Config, ConfigError
from mtlprune.corpora.store import Corpus
from mtlprune.corpora.tables import Spool, arrays_from_bytes, arrays_to_bytes, batched
from mtlprune.encoder.pieces import Pieces
from mtlprune.model import MultiTaskModel
from mtlprune.sentence import Dependencies, Sentence
from mtlprune.training.run import Run

MOST_IN_MEMORY = 100_000
"""Training sentences; the sub-words and targets of more lie in a temporary file, made once as those of fewer are."""


def read_splits(config: Config, corpus: Corpus) -> tuple[Sequence[Sentence], list[Sentence]]:
    """Training sentences (very many stay on the disk) and those of dev; every task must be known in both."""
    for name in (config.data.train, config.data.dev):
        if name not in corpus.splits:
            raise ConfigError(f"{config.data.path} has no split {name!r}; it has {', '.join(corpus.splits)}")
    stored = corpus[config.data.train].first(config.data.train_sentences).half(config.data.half)
    train = stored if len(stored) > MOST_IN_MEMORY else list(stored)
    dev = list(corpus[config.data.dev].first(config.data.dev_sentences))
    splits: list[tuple[str, Sequence[Sentence]]] = [(config.data.train, train), (config.data.dev, dev)]
    for name, sentences in splits:
        missing = [task for task in config.tasks if all(sentence.get(task) is None for sentence in sentences)]
        if missing:
            several = f"layers {', '.join(missing)}" if len(missing) > 1 else f"layer {missing[0]}"
            left = ",".join(task for task in config.tasks if task not in missing)
            advice = f"train without (tasks={left}), " if left else "take other tasks, "
            raise ConfigError(
                f"{config.data.path}, split {name}: no sentence has the {several}; {advice}or build a corpus that has "
                f"{'them' if len(missing) > 1 else 'it'}"
            )
    return train, dev


def load_data(config: Config, model: MultiTaskModel, train: Sequence[Sentence], dev: list[Sentence]) -> Run:
    """Tokenise and make targets, once."""

    many = len(train) > MOST_IN_MEMORY

    def rows(encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> Any:
        return Spool(encode, decode) if many else []

    pieces = rows(lambda row: arrays_to_bytes(vars(row)), lambda data: Pieces(**arrays_from_bytes(data) or {}))
    targets = {name: rows(arrays_to_bytes, arrays_from_bytes) for name in config.tasks}
    known: dict[str, list[bool]] = {name: [] for name in config.tasks}
    lengths, trees = list[int](), list[Dependencies | None]()
    for some in batched(train, MOST_IN_MEMORY // 10):
        for row in model.encoder.tokenize_all([sentence.words for sentence in some]):
            pieces.append(row)
            lengths.append(len(row.ids) + model.encoder.frame.size)
        for name in config.tasks:
            task: Any = model.tasks[name]
            for sentence in some:
                known[name].append(task.known(sentence))
                targets[name].append(task.target(sentence) if known[name][-1] else None)
        trees += [sentence.dep for sentence in some] if config.syntax.strength else []
    return Run(config, model, pieces, targets, lengths, known, dev, trees)
