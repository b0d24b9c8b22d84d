"""A resumable state in one safetensors file: weights, optimizer moments, and where training stands.

Nothing random is stored: every batch order follows from (seed, epoch) and every dropout mask from (seed, step, tasks),
so a run that continues from here equals one that was never stopped, bit for bit (same machine, same number of threads).
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
    """Epochs finished."""
    update: int = 0
    """Updates done within the present epoch."""
    step: int = 0
    """Updates done in all."""
    best: dict[str, dict[str, Any]] = field(default_factory=dict)
    """joint and each task → {"epoch", "score"} of its best dev score, and the "sha256" of its weights."""
    balance: dict[str, list[float]] = field(default_factory=dict)
    """The state of the loss balance."""
    penalty: dict[str, dict[str, float]] = field(default_factory=dict)
    """The state of the penalty on the gates."""
    losses: dict[str, list[float]] = field(default_factory=dict)
    """Task → sum and number of its losses since the last evaluation."""
    seconds: float = 0.0
    """Time spent training so far."""
    cpu_seconds: float = 0.0
    """Processor time of that."""
    finished: bool = False
    logs: dict[str, str] = field(default_factory=dict)
    """Log → its lines; empty where a finished run is noted."""

    def add_losses(self, task: str, *values: float) -> None:
        """Count losses of an update."""
        total, number = self.losses.get(task, (0.0, 0))
        self.losses[task] = [total + sum(values), number + len(values)]

    def take_losses(self) -> dict[str, float]:
        """Task → mean of its losses since they were last taken."""
        means = {task: total / number for task, (total, number) in self.losses.items()}
        self.losses = {}
        return means

    def log(self, path: Path, record: Mapping[str, Any]) -> None:
        """Add a line to a log, and remember it. Raises RunError when the disk refuses."""
        self.logs[path.name] = self.logs.get(path.name, "") + append_line(path, record)

    def restore_logs(self, *paths: Path) -> None:
        """Bring logs to this state: later lines are forgotten, lost or changed ones written anew. Raises RunError when
        the disk refuses."""
        for path in paths:
            text = self.logs.get(path.name, "")
            # The checkpoint holds the text of the logs. Lines that were written after it belong to updates that will
            # be done again, and would otherwise stand there twice.
            if (path.read_bytes() if path.is_file() else b"") != text.encode():
                write_text(path, text)

    def end(self) -> dict[str, Any]:
        """The state of a finished run in its manifest: all but the lines of its logs."""
        return {key: value for key, value in asdict(self).items() if key != "logs"}


def finished(folder: RunFolder) -> Progress | None:
    """The last state of a finished run; None where it is still to be begun or to go on."""
    if not folder.has("config.yaml"):
        return None
    record = folder.read_manifest().get("finished")
    with reading(folder.path / "manifest.json"):
        return Progress(**record) if record else None


def record_finish(folder: RunFolder, progress: Progress) -> None:
    """Write into the manifest how a run ended."""
    ended = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    folder.write_end(ended=ended, peak_memory=peak_memory(), finished=progress.end())


def seed_step(seed: int, step: int, tasks: Sequence[str] = ()) -> None:
    """Set torch's generators for one update, as a function of (seed, step, tasks) alone.

    Runs of different tasks with the same seed draw different dropout and different noise for their gates: shared noise
    would make their gates alike, and look as if the tasks claimed the same heads.
    """
    torch.manual_seed(step_seed(seed, step, tasks))


def step_seed(seed: int, step: int, tasks: Sequence[str], *salts: int) -> int:
    """A seed of one update: a function of its arguments."""
    # Python's own hash of strings differs from process to process, so the tasks enter by a checksum that is the same
    # everywhere.
    salt = zlib.crc32(",".join(tasks).encode())
    state = np.random.SeedSequence([seed, step, salt, 1, *salts]).generate_state(1, np.uint64)
    # torch takes seeds below 2^63, hence one bit less.
    return int(state[0] >> np.uint64(1))


def epoch_generator(seed: int, epoch: int) -> np.random.Generator:
    """The generator of an epoch's batch order, as a function of (seed, epoch) alone."""
    return np.random.default_rng(np.random.SeedSequence([seed, epoch, 2]))


def save_weights(path: Path, model: nn.Module) -> str:
    """Write a model's weights, beside first, then in place; their SHA-256. Raises RunError when the disk refuses."""
    _write(path, {name: tensor.contiguous() for name, tensor in model.state_dict().items()}, {})
    return file_sha256(path)


def save_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    """Write weights, moments and progress as one file, beside first, then in place. Raises RunError."""
    tensors = {f"model.{name}": tensor.contiguous() for name, tensor in model.state_dict().items()}
    # Moments are stored by the position of their parameter in the optimizer. Positions are the same after a restart,
    # because the optimizer is made anew from the same model and settings.
    for place, parameter in enumerate(_parameters(optimizer)):
        for name, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{place}.{name}"] = torch.as_tensor(value).contiguous()
    text = json.dumps(asdict(progress))
    _write(path, tensors, {"progress": text, "sha256": _sha256(text, tensors)})


def _sha256(progress: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """The SHA-256 of progress, and of names and bytes of tensors; safetensors has no check of its own."""
    digest = hashlib.sha256(progress.encode())
    # In sorted order, because safetensors gives no promise about the order of names in a file.
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Bring model and optimizer to the stored state. Raises RunError where the file does not fit them."""
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
        # torch lists what is missing on several lines; a message has one.
        reason = " ".join(str(error).split())
        raise RunError(f"{path} does not hold this run's state ({reason}); {_HINT_REMOVE_CHECKPOINT}") from error
    for place, values in state.items():
        device = parameters[place].device
        # The count of steps stays on the CPU for parameters on the CPU, where Adam reads it; everything else follows
        # its parameter's device.
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
