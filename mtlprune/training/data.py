"""The data of a run: sentences are read from the corpus, checked, tokenised and converted into targets."""

from collections.abc import Sequence
from typing import Any

from mtlprune.config.config import Config, ConfigError
from mtlprune.corpora.store import Corpus
from mtlprune.io.reuse import reuse_or_make
from mtlprune.model import MultiTaskModel
from mtlprune.sentence import Sentence
from mtlprune.training.run import Run


def read_splits(config: Config, corpus: Corpus) -> tuple[list[Sentence], list[Sentence]]:
    """Return the training sentences and the dev sentences that a configuration selects from a corpus.

    Raises ConfigError if a split does not exist, or if no sentence of a split has the layer of a task.
    """
    for name in (config.data.train, config.data.dev):
        if name not in corpus.splits:
            raise ConfigError(f"{config.data.path}: expected a split {name!r}, found {', '.join(corpus.splits)}")
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


def _decoded(corpus: Corpus, split: str, first: int | None, half_number: int | None = None) -> list[Sentence]:
    key = corpus.info["files"][split], first, half_number  # the SHA-256 of the split's file, and the selected sentences
    return reuse_or_make(f"sentences of {split}", key, lambda: list(corpus[split].first(first).one_half(half_number)))


def load_data(config: Config, model: MultiTaskModel, train: Sequence[Sentence], dev: list[Sentence]) -> Run:
    """Tokenise the training sentences, make the targets of all tasks, and return them as a run.

    Both are done once, before the first epoch.
    """
    pieces = model.encoder.tokenize_sentences(train)
    lengths = [len(row.ids) + model.encoder.frame.size for row in pieces]
    targets: dict[str, list[Any]] = {}
    is_annotated: dict[str, list[bool]] = {}
    for name in config.tasks:
        task: Any = model.tasks[name]
        is_annotated[name] = [task.is_annotated(sentence) for sentence in train]
        pairs = zip(train, is_annotated[name], strict=True)
        targets[name] = [task.target(sentence) if has else None for sentence, has in pairs]
    trees = [sentence.dep for sentence in train] if config.syntax.strength else []
    return Run(config, model, pieces, targets, lengths, is_annotated, dev, trees)
