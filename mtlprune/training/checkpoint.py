"""Checkpoints: one safetensors file with model weights, optimizer moments and the progress of the training.

A checkpoint holds no state of random generators. Every batch order follows from (seed, epoch), and every dropout mask
follows from (seed, step, tasks). So a resumed run equals an uninterrupted run bit for bit, on the same machine with the
same number of threads.
"""

import datetime
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from mtlprune.errors import out_of_memory
from mtlprune.io.files import RunError, append_line, file_sha256, reading, replacing, write_text
from mtlprune.runs.folder import RunFolder
from mtlprune.training.hardware import peak_memory

_HINT_REMOVE_CHECKPOINT = "remove it to start again"


@dataclass
class Progress:
    """The state of training between two updates."""

    epoch: int = 0
    """Number of finished epochs."""
    update: int = 0
    """Number of finished updates of the current epoch."""
    step: int = 0
    """Number of finished updates of all epochs."""
    best: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Task (or "joint") → "epoch" (the number of the evaluation with its best dev score), "score", and "sha256" of the
    saved weights."""
    balance: dict[str, list[float]] = field(default_factory=dict)
    """The state of the loss balance."""
    penalty: dict[str, dict[str, float]] = field(default_factory=dict)
    """The state of the penalty on the gates."""
    losses: dict[str, list[float]] = field(default_factory=dict)
    """Task → sum and number of its losses since the last evaluation."""
    seconds: float = 0.0
    """Elapsed seconds of training so far."""
    cpu_seconds: float = 0.0
    """Processor seconds of training so far."""
    finished: bool = False
    """Whether the training has reached its end."""
    logs: dict[str, str] = field(default_factory=dict)
    """Name of a log file → its text; empty in the progress that the manifest of a finished run holds."""

    def add_losses(self, task: str, *values: float) -> None:
        """Add the losses of a task in an update to the sums of the training loss."""
        total, number = self.losses.get(task, (0.0, 0))
        self.losses[task] = [total + sum(values), number + len(values)]

    def take_losses(self) -> dict[str, float]:
        """Return the mean loss of each task since the last call, and set the sums to zero."""
        means = {task: total / number for task, (total, number) in self.losses.items()}
        self.losses = {}
        return means

    def log(self, path: Path, record: Mapping[str, Any]) -> None:
        """Append a record to a log file and to its text in this progress.

        Raises RunError if the file cannot be written.
        """
        self.logs[path.name] = self.logs.get(path.name, "") + append_line(path, record)

    def restore_logs(self, *paths: Path) -> None:
        """Rewrite the log files that differ from their text in this progress.

        Raises RunError if a file cannot be written.
        """
        for path in paths:
            text = self.logs.get(path.name, "")
            # Lines that were written after the checkpoint belong to updates that will be repeated, so they would
            # otherwise occur twice.
            if (path.read_bytes() if path.is_file() else b"") != text.encode():
                write_text(path, text)

    def end(self) -> dict[str, Any]:
        """Return the progress as the manifest of a finished run holds it, without the text of the logs."""
        return {key: value for key, value in asdict(self).items() if key != "logs"}


def finished(folder: RunFolder) -> Progress | None:
    """Return the progress of a finished run, or None if the run is not finished or not begun."""
    if not folder.has("config.yaml"):
        return None
    record = folder.read_manifest().get("finished")
    with reading(folder.path / "manifest.json"):
        return Progress(**record) if record else None


def record_finish(folder: RunFolder, progress: Progress) -> None:
    """Write the end time, the peak memory and the progress of a finished run into its manifest."""
    ended = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    folder.write_end(ended=ended, peak_memory=peak_memory(), finished=progress.end())


def seed_step(seed: int, step: int, tasks: Sequence[str] = ()) -> None:
    """Seed the random generators of torch for an update, as a function of (seed, step, tasks) alone.

    Runs of different tasks with the same seed draw different dropout masks and different noise for their gates. Shared
    noise would make their gates similar, as if the tasks claimed the same heads.
    """
    torch.manual_seed(step_seed(seed, step, tasks))


def step_seed(seed: int, step: int, tasks: Sequence[str], *salts: int) -> int:
    """Return a seed below 2^63 for an update, as a function of the arguments. ``salts`` tell purposes apart."""
    # The tasks enter by a checksum, because Python's hash of strings differs between processes.
    salt = zlib.crc32(",".join(tasks).encode())
    state = np.random.SeedSequence([seed, step, salt, 1, *salts]).generate_state(1, np.uint64)
    # A bit is dropped, because torch takes seeds below 2^63.
    return int(state[0] >> np.uint64(1))


def epoch_generator(seed: int, epoch: int) -> np.random.Generator:
    """Return the random generator of an epoch's batch order, as a function of (seed, epoch) alone."""
    return np.random.default_rng(np.random.SeedSequence([seed, epoch, 2]))


def save_weights(path: Path, model: nn.Module) -> str:
    """Write the weights of a model to a file, which is replaced only when the new file is complete.

    Returns the SHA-256 of the file. Raises RunError if the file cannot be written.
    """
    _write(path, {name: tensor.contiguous() for name, tensor in model.state_dict().items()}, {})
    return file_sha256(path)


def save_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    """Write weights, optimizer moments and progress to a file, which is replaced only when the new file is complete.

    Raises RunError if the file cannot be written.
    """
    tensors = {f"model.{name}": tensor.contiguous() for name, tensor in model.state_dict().items()}
    # Moments are stored by the position of their parameter in the optimizer. Positions are the same after a restart,
    # because the optimizer is built from the same model and settings.
    for place, parameter in enumerate(_parameters(optimizer)):
        for name, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{place}.{name}"] = torch.as_tensor(value).contiguous()
    text = json.dumps(asdict(progress))
    _write(path, tensors, {"progress": text, "sha256": _sha256(text, tensors)})


def _sha256(progress: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of the progress and of the names and bytes of tensors; safetensors files have no checksum."""
    digest = hashlib.sha256(progress.encode())
    # Names are sorted, because safetensors does not promise any order of the names in a file.
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Restore model and optimizer to the state in a checkpoint, and return its progress.

    Raises RunError if the file is damaged or does not fit the model.
    """
    parameters = _parameters(optimizer)
    state: dict[int, dict[str, Any]] = {}
    try:
        with reading(path, RunError, _HINT_REMOVE_CHECKPOINT):
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata()
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (safe_open is no dict)
            if metadata["sha256"] != _sha256(metadata["progress"], tensors):
                raise ValueError("a state that was changed or damaged since it was written")
            progress = Progress(**json.loads(metadata["progress"]))
            for name, tensor in tensors.items():
                if name.startswith("optimizer."):
                    _, place, key = name.split(".", 2)
                    state.setdefault(int(place), {})[key] = tensor
        model.load_state_dict({n[len("model.") :]: t for n, t in tensors.items() if n.startswith("model.")})
    except (SafetensorError, RuntimeError) as error:
        if out_of_memory(error):
            raise
        # torch lists missing parameters on several lines, but a message is a single line.
        reason = " ".join(str(error).split())
        raise RunError(f"{path} does not hold this run's state ({reason}); {_HINT_REMOVE_CHECKPOINT}") from error
    for place, values in state.items():
        device = parameters[place].device
        # The step count of a parameter on the CPU stays on the CPU, where Adam reads it. All other state goes to the
        # device of its parameter.
        optimizer.state[parameters[place]] = {
            key: value if key == "step" and device.type == "cpu" else value.to(device) for key, value in values.items()
        }
    return progress


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _write(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    with replacing(path) as staging:
        try:
            save_file({name: tensor.detach() for name, tensor in tensors.items()}, staging, metadata)
        # safetensors raises SafetensorError when the disk is full, where other writers raise OSError.
        except SafetensorError as error:
            raise OSError(str(error)) from error
