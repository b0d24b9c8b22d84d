"""Evaluation of a model: predictions for sentences, counts per sentence, scores, and the results in a run folder."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mtlprune.config.config import Config
from mtlprune.config.decoders import DECODERS
from mtlprune.corpora.store import Corpus, load_corpus
from mtlprune.corpora.tables import collector_paused
from mtlprune.evaluation import scores
from mtlprune.layers import kind_of
from mtlprune.model import MultiTaskModel
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.sentence import Sentence
from mtlprune.tasks import decoder_class
from mtlprune.training import hardware

log = logging.getLogger(__name__)


@dataclass
class Evaluation:
    """The predictions of a model for some sentences, with their counts and scores."""

    predictions: list[Sentence]
    counts: dict[str, list[dict[str, int] | None]]
    """Task → the counts of each sentence; None for a sentence without the layer of the task."""
    scores: dict[str, dict[str, float]]
    """Task → name of a score → its value."""
    names: dict[str, str]
    """Task → the name of its main score."""

    def main(self) -> dict[str, float]:
        """Return the main score in percent of each task that could be scored."""
        return {task: values[self.names[task]] for task, values in self.scores.items()}

    def joint(self) -> float:
        """Return the unweighted mean of the main scores of the tasks."""
        values = list(self.main().values())
        return sum(values) / len(values)


def evaluate(model: MultiTaskModel, sentences: Sequence[Sentence], precision: torch.dtype) -> Evaluation:
    """Predict all tasks of a model for sentences, and score the predictions against the layers of the sentences.

    A sentence without the layer of a task is left out of the scores of the task. A task whose layer no sentence has
    gets no score.

    Args:
        precision: dtype of the forward passes.
    """
    decoders = {name: task.options.model_dump() for name, task in model.tasks.items()}  # type: ignore[union-attr, operator]
    with collector_paused():
        predictions = list(model.annotate(sentences, precision))
        counts: dict[str, list[dict[str, int] | None]] = {}
        table: dict[str, dict[str, Any]] = {}
        for task in decoders:
            rows = [scores.count(task, gold, predicted) for gold, predicted in zip(sentences, predictions, strict=True)]
            counted_rows = [row for row in rows if row is not None]
            if counted_rows:
                value_scores = scores.scores_of_values(task, sentences, predictions)
                counts[task], table[task] = rows, scores.score(kind_of(task, decoders), counted_rows) | value_scores
    names = {task: scores.main_score(task, decoders) for task in table}
    return Evaluation(predictions, counts, table, names)


def evaluate_run(
    folder: RunFolder, split: str, *, best: str | None = None, data: Path | None = None, device: str | None = None
) -> tuple[Evaluation, list[Sentence], str]:
    """Evaluate the weights of a run on a split, and write the results into the folder of the run.

    Results of the weights with the best dev score of a task are named SPLIT.best-TASK, and results on another corpus
    are named SPLIT.on-NAME-FINGERPRINT, so that no result overwrites another.

    Args:
        best: the task whose best weights are evaluated; None evaluates the weights with the best joint score.
        data: the folder of a corpus, if not the corpus of the run.
        device: the device of the model, if not the device in the configuration.

    Returns:
        The evaluation, the gold sentences, and the name of the results.

    Raises:
        RunError: no sentence can be scored; the run knows no label of a layer of ``data``; or without ``data``, the
            corpus of the run has changed.
    """
    config = folder.config
    corpus = load_corpus(data or folder.corpus_path())
    name = _result_name(folder, corpus, split, best, data is not None)
    gold = list(corpus[split])
    if data is not None:
        _check_labels(config, folder, gold, f"{corpus.path}, split {split}")
    target_device = hardware.choose_device(device or config.train.device)
    hardware.configure_process(config.train.threads)
    best_weights = folder.read_best()
    model = MultiTaskModel.load(folder.path, task=best, device=target_device)
    result = evaluate(model, gold, hardware.dtype(config.train.precision))
    if not result.scores:
        raise RunError(
            f"{corpus.path}, split {split}: no sentence has a layer of {', '.join(config.tasks)}, so nothing can be "
            "scored"
        )
    if not folder.write_results(
        name, result.scores, [s.id for s in gold], result.counts, result.predictions, best_weights
    ):
        log.warning(
            "%s: training replaced its best weights in the meantime, so the new weights are evaluated", folder.path
        )
        return evaluate_run(folder, split, best=best, data=data, device=device)
    return result, gold, name


def _check_labels(config: Config, folder: RunFolder, gold: Sequence[Sentence], location: str) -> None:
    """Warn if the training data of a run has fewer than half of the labels that a layer of the gold sentences has.

    Raises RunError if it has none of the labels. The gold sentences then use another tag set, which would otherwise
    look like a low score.
    """
    vocabularies = folder.read_vocabularies()
    for task in config.tasks:
        # A layer of numbers has no labels, and its vocabulary is the scale of the training numbers.
        if DECODERS[config.decoder(task)].kind == "number":
            continue
        for kind, names in decoder_class(config.decoder(task)).collect(gold, task).items():
            labels = set(names) - {"O", ""}
            unknown = sorted(labels - set(vocabularies[task].get(kind, ())))
            known_count = len(labels) - len(unknown)
            examples = f"such as {', '.join(unknown[:3])}"
            if labels and not known_count:
                problem = f"none of the {len(labels)} {kind} of {task} is known to {folder.path}, {examples}"
                raise RunError(
                    f"{location}: {problem}; build it with the tags of the run's corpus, or --leave-out {task}"
                )
            if 2 * known_count < len(labels):
                log.warning(
                    "%s: %d of %d %s of %s are known, and none is %s",
                    location,
                    known_count,
                    len(labels),
                    kind,
                    task,
                    examples,
                )


def _result_name(folder: RunFolder, corpus: Corpus, split: str, best: str | None, other_corpus: bool) -> str:
    fingerprint = folder.read_manifest()["data"]["fingerprint"]
    name = split if best is None else f"{split}.best-{best}"
    if corpus.fingerprint == fingerprint:
        return name
    if not other_corpus:
        raise RunError(
            f"{corpus.path} has the fingerprint {corpus.fingerprint[:16]}…, but {folder.path} was trained on "
            f"{fingerprint[:16]}…; restore that corpus, or name it with --corpus"
        )
    return f"{name}.on-{corpus.info['name']}-{corpus.fingerprint[:8]}"
