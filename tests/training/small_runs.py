"""What tests of runs begin with: a prepared run, one update of it, a trained run, one that is stopped."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from interrupted import outcome
from torch import Tensor

from mtlprune.config.config import build_config
from mtlprune.corpora.store import Corpus, load_corpus, save_corpus
from mtlprune.errors import MtlpruneError
from mtlprune.runs.folder import RunFolder
from mtlprune.sentence import Sentence
from mtlprune.training.checkpoint import Progress
from mtlprune.training.loop import Trainer, train
from mtlprune.training.mixing import MiniBatch
from mtlprune.training.optimisation import make_optimizer
from mtlprune.training.run import Run
from mtlprune.training.setup import prepare

Settings = Callable[..., dict[str, Any]]
"""What makes the settings of a run, of its tasks, joined by commas, and settings of ``train``."""


def corpus_of(settings: dict[str, Any]) -> Corpus:
    return load_corpus(Path(settings["data"]["path"]))


def prepared(settings: dict[str, Any], folder: Path) -> Run:
    return prepare(build_config(settings), RunFolder(folder), corpus_of(settings))


def check_refused(settings: dict[str, Any], folder: Path, words: str) -> None:
    """Assert that a run of these settings is refused in these words before anything of it is written."""
    with pytest.raises(MtlpruneError, match=words):
        prepared(settings, folder / "run")
    assert not (folder / "run").exists()


def trained(settings: dict[str, Any], path: Path) -> RunFolder:
    folder = RunFolder(path)
    assert train(build_config(settings), folder).finished
    return folder


def train_until(step: int, settings: dict[str, Any], folder: RunFolder) -> None:
    """The first so many updates; then a checkpoint is written."""
    steps = [0]
    watch, stop = (lambda event: steps.append(event.progress.step)), (lambda: steps[-1] == step)
    progress = train(build_config(settings), folder, watch=watch, stop=stop)
    assert progress.step == step and not progress.finished


def check_resumes(
    settings: dict[str, Any], step: int, folder: Path, expected: dict[str, Any] | None = None, **changed: Any
) -> None:
    """Assert that a run that is stopped after so many updates, and goes on with ``changed`` blocks, ends as one that is
    not, bit for bit; ``expected``: what that one leaves, where it is known."""
    expected = expected or outcome(trained(settings, folder / "whole").path)
    broken = RunFolder(folder / "broken")
    train_until(step, settings, broken)
    assert outcome(trained(settings | changed, broken.path).path) == expected


def with_sentences(
    settings: dict[str, Any], folder: Path, change: Callable[[list[Sentence]], list[Sentence]]
) -> dict[str, Any]:
    old = corpus_of(settings)
    splits = {split: change(list(old[split])) for split in old.splits}
    save_corpus(splits, folder, name="changed", licence="Apache-2.0", sources={})
    return {**settings, "data": {"path": str(folder)}}


def trainer(settings: dict[str, Any], folder: Path) -> Trainer:
    """Ready for its first update, without noise and dropout."""
    run = prepared(settings, folder)
    made = Trainer(run, RunFolder(folder), make_optimizer(run.model, run.config), Progress())
    made.model.eval()
    return made


def gradients(made: Trainer, *mini_batches: MiniBatch) -> dict[str, Tensor]:
    seen: dict[str, Tensor] = {}

    def look(*_: Any) -> None:
        seen.update({n: p.grad.clone() for n, p in made.model.named_parameters() if p.grad is not None})

    handle = made.optimizer.register_step_pre_hook(look)
    made.update(list(mini_batches))
    handle.remove()
    return seen


def assert_alike(one: dict[str, Tensor], other: dict[str, Tensor], share: float = 1e-5, rtol: float = 1e-4) -> None:
    """Assert that all tensors are equal, to a share of the largest value and of their own."""
    assert one.keys() == other.keys()
    largest = max(float(value.abs().max()) for value in other.values())
    for name, value in other.items():
        torch.testing.assert_close(
            one[name], value, rtol=rtol, atol=share * largest, msg=lambda words, name=name: f"{name}: {words}"
        )
