"""Score a run on a split, and keep the results in its folder."""

from __future__ import annotations

import logging
from pathlib import Path

from mtlprune.config.config import build_config
from mtlprune.corpora.store import Corpus, load_corpus
from mtlprune.model import MultiTaskModel
from mtlprune.runs import RunError, RunFolder
from mtlprune.sentence import Sentence
from mtlprune.training import hardware, setup
from mtlprune.training.evaluation import Evaluation, evaluate

log = logging.getLogger(__name__)


def evaluate_run(
    folder: RunFolder,
    split: str,
    *,
    best: str | None = None,
    data: Path | None = None,
    device: str | None = None,
) -> tuple[Evaluation, list[Sentence], str]:
    """Evaluate and write the results into the run folder.

    Results of a task's own best weights are called SPLIT.best-TASK, those on other data SPLIT.on-NAME-FINGERPRINT, so
    that no result takes the place of another.

    Returns:
        the evaluation, the gold sentences, and what the results are called.
    """
    config = build_config(folder.read_config(), str(folder.config_path))
    corpus = load_corpus(data or Path(config.data.path))
    name = _name(folder, corpus, split, best, data is not None)
    gold = list(corpus[split])
    wanted = hardware.choose_device(device or config.train.device)
    setup.settle(config.train)
    kept = folder.read_best()
    model = MultiTaskModel.load(folder.path, task=best, device=wanted)
    result = evaluate(model, gold, hardware.dtype(config.train.precision))
    if not result.scores:
        raise RunError(
            f"{corpus.path}, split {split}: no sentence has a layer of {', '.join(config.tasks)}, so there is nothing "
            "to score"
        )
    if not folder.write_results(name, result.scores, [s.id for s in gold], result.counts, result.predictions, kept):
        log.warning("%s: training replaced its best weights meanwhile; the new ones are evaluated", folder.path)
        return evaluate_run(folder, split, best=best, data=data, device=device)
    return result, gold, name


def _name(folder: RunFolder, corpus: Corpus, split: str, best: str | None, other: bool) -> str:
    fingerprint = folder.read_manifest()["data"]["fingerprint"]
    name = split if best is None else f"{split}.best-{best}"
    if corpus.fingerprint == fingerprint:
        return name
    if not other:
        raise RunError(
            f"{corpus.path} has the fingerprint {corpus.fingerprint[:16]}…, but {folder.path} was trained on "
            f"{fingerprint[:16]}…; bring that data back, or name the corpus with --data"
        )
    return f"{name}.on-{corpus.info['name']}-{corpus.fingerprint[:8]}"
