"""Other runs on which a run depends, such as the run from whose weights it starts: checks, labels and weights."""

import logging
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from mtlprune.config.config import Config, ConfigError
from mtlprune.config.decoders import DECODERS
from mtlprune.corpora.store import StoredSentences
from mtlprune.encoder.removal import GATED, WEIGHTS
from mtlprune.io.files import RunError, file_sha256, reading
from mtlprune.model import MultiTaskModel
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.groups import same_encoder
from mtlprune.sentence import Sentence
from mtlprune.tasks import decoder_class

log = logging.getLogger(__name__)

_MAX_LABELS_LISTED = 5
"""The largest number of unknown labels that an error message names."""
_EQUAL_SETTINGS = ("name", "random", "context", "attention", "pooling", "fusion", "fusion_layers")
"""Settings of the encoder that must be the same in both runs, because a decoder depends on them."""


def check_finished(path: str, key: str, own_folder: RunFolder | None) -> RunFolder:
    """Return the folder of another run, and raise ConfigError if its training is not finished.

    Training would change the files that this run reads from it.

    Args:
        path: the folder of the other run.
        key: the setting that names the other run, for error messages.
        own_folder: the folder of this run, which must be another folder.
    """
    folder = RunFolder(path)
    if own_folder is not None and own_folder.path.resolve() == folder.path.resolve():
        raise ConfigError(f"{key}: expected another run than the one to be trained, found its own folder {path}")
    if not folder.has("config.yaml"):
        raise ConfigError(
            f"{key}: expected the folder of a finished run, found {path}, which has no config.yaml; check the path"
        )
    if not folder.is_finished():
        raise ConfigError(
            f"{key}: expected a finished run, found {path}, which has not finished training; repeat its command to "
            "continue it"
        )
    return folder


def check_compatible(config: Config, path: str, key: str, own_folder: RunFolder | None) -> RunFolder:
    """Return the folder of another finished run whose encoder and decoders fit a configuration.

    The arguments are those of `check_finished`.

    Raises:
        ConfigError: the run is not finished, its encoder, tasks or decoders do not fit, it has clones of heads, or the
            file of its best weights is missing.
        RunError: the run is kept without its weights.
    """
    folder = check_finished(path, key, own_folder)
    folder.check_weights_kept()
    other_config = folder.config
    for name in _EQUAL_SETTINGS:
        own_value, other_value = getattr(config.encoder, name), getattr(other_config.encoder, name)
        if own_value != other_value and not (name == "name" and same_encoder(own_value, other_value)):
            raise ConfigError(f"{key}: expected a run with encoder.{name} {own_value}, found {other_value} in {path}")
    for task in config.tasks:
        if task not in other_config.tasks:
            raise ConfigError(
                f"{key}: expected a run with the task {task}, found only {', '.join(other_config.tasks)} in {path}"
            )
        own_value, other_value = (getattr(settings.decoders, task).model_dump() for settings in (config, other_config))
        differences = [
            f"{name} {other_value.get(name)} there, {own_value.get(name)} here"
            for name in dict.fromkeys((*own_value, *other_value))
            if own_value.get(name) != other_value.get(name)
        ]
        if differences:
            raise ConfigError(f"{key}: the decoder of {task} has other settings in {path}: {'; '.join(differences)}")
    if other_config.treatment.clone is not None:
        raise ConfigError(f"{key}: expected a run without clones of heads, found clones in {path}")
    weights = _best_weights(folder)
    if not weights.is_file():
        raise ConfigError(f"{key}: the weights of {path} are missing ({weights}); train that run again")
    return folder


def collect_labels(config: Config, train: Sequence[Sentence]) -> dict[str, dict[str, list[str]]]:
    """Collect each task's vocabularies from the training sentences: lists of labels by kind of label.

    A task without any label causes a warning.
    """
    vocabularies = {
        task: decoder_class(config.decoder(task)).collect(
            train.only(task) if isinstance(train, StoredSentences) else train, task
        )
        for task in config.tasks
    }
    for task, kinds in vocabularies.items():
        if not {label for labels in kinds.values() for label in labels} - {"O", ""}:
            log.warning(
                "%s: no label in the training sentences, so nothing can be predicted; check the column of this layer",
                task,
            )
    return vocabularies


def read_labels(
    config: Config, train: Sequence[Sentence], own_folder: RunFolder | None
) -> dict[str, dict[str, list[str]]]:
    """Read the vocabularies of the run from which the training starts (``train.start``).

    Raises ConfigError if that run does not fit, or if its vocabularies lack a label of the training sentences.
    """
    start = config.train.start
    assert start is not None
    known_labels = check_compatible(config, start, "train.start", own_folder).read_vocabularies()
    for task, kinds in collect_labels(config, train).items():
        for kind, labels in kinds.items():
            unknown = [label for label in labels if label not in set(known_labels[task].get(kind, ()))]
            # The vocabulary of a layer of numbers is the scale of the training numbers, which need not be the same.
            if unknown and DECODERS[config.decoder(task)].kind != "number":
                remaining_count = len(unknown) - _MAX_LABELS_LISTED
                remaining = f" and {remaining_count} more" if remaining_count > 0 else ""
                raise ConfigError(
                    f"train.start: {config.data.path} has {kind} of {task} that {start} never learnt: "
                    f"{', '.join(unknown[:_MAX_LABELS_LISTED])}{remaining}; start from a run on the same data"
                )
    return {task: known_labels[task] for task in config.tasks}


def check_same_labels(vocabularies: Mapping[str, Any], other_folder: RunFolder, key: str) -> None:
    """Raise ConfigError if another run has other labels, or another order of labels, so that its loss is undefined."""
    other_vocabularies = other_folder.read_vocabularies()
    for task, kinds in vocabularies.items():
        if other_vocabularies.get(task) != kinds:
            raise ConfigError(
                f"{key}: the labels of {task} in {other_folder.path} are not those of the training sentences; "
                "give a run on the same data"
            )


def origins(config: Config) -> dict[str, dict[str, str]]:
    """Return "file" (the path) and "sha256" of each file of another run or encoder that a run reads, by setting.

    Raises RunError if another run is damaged.
    """
    runs = {"train.start": config.train.start, "pruning.importance_of": config.pruning.importance_of}
    runs |= {f"treatment.{setting}": path for setting, path in config.treatment.runs.items()}
    files = {key: _best_weights(RunFolder(path)) for key, path in runs.items() if path is not None}
    if config.pruning.layers_like is not None:
        like = RunFolder(config.pruning.layers_like)  # may be a packed run of a study, which holds the text but no file
        files["pruning.layers_like"] = like.gates_path
        gates = like.read_text("gates.jsonl", "pruning.layers_like names it")
    encoder_files = [path for name in (WEIGHTS, GATED) if (path := Path(config.encoder.name) / name).is_file()]
    if config.train.start is None and not config.encoder.random and encoder_files:
        files["encoder.name"] = encoder_files[0]
    records = {}
    for key, path in files.items():
        with reading(path, RunError, f"{key} names it"):
            digest = sha256(gates.encode()).hexdigest() if key == "pruning.layers_like" else file_sha256(path)
            records[key] = {"file": str(path), "sha256": digest}
    return records


def _best_weights(folder: RunFolder) -> Path:
    return folder.weights_path(folder.read_best()["joint"]["epoch"])


def start_from(path: str, model: MultiTaskModel) -> None:
    """Load the encoder and decoders of a finished run into a model, from the evaluation with the best joint score.

    Gates keep their initial values.
    """
    source = MultiTaskModel.load(path)
    constants = model.encoder.head_constants  # the constants of this run's closed heads, which are not yet measured
    extra_tensors = {} if constants is None else {"head_constants": constants}
    extra_tensors |= {name: value for name, value in model.encoder.state_dict().items() if name.startswith("clones.")}
    source.encoder.head_constants = None
    model.encoder.load_state_dict(source.encoder.state_dict() | extra_tensors)
    for name, task in model.tasks.items():
        task.load_state_dict(source.tasks[name].state_dict())
