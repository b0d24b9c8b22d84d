"""The device, precision and threads of a run, which are chosen once, and the peak memory of its process."""

import gc
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

from mtlprune.errors import refuse_launcher
from mtlprune.io.processor import fast_in_bf16
from mtlprune.runs.folder import RunError, RunFolder

_Config = TypeVar("_Config", bound=Any)
"""The type of a configuration of a training or a pretraining."""


def choose_device(device: str) -> str:
    """Return the device, with "auto" replaced by "cuda" if there is a GPU, else by "cpu".

    Raises RunError if the device cannot be used on this machine.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        # A sum shows whether the device computes, because some devices, such as meta, exist but compute nothing.
        (torch.ones(1, device=device) + 1).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"the device {device} (train.device, --device) cannot be used here: {reason}") from None
    return device


def _choose_precision(precision: str, device: str) -> str:
    """Return the precision, with "auto" replaced by "bf16" if the device computes faster in bf16, else by "fp32"."""
    if precision != "auto":
        return precision
    if device.startswith("cuda"):
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return "bf16" if device == "cpu" and fast_in_bf16() else "fp32"


def _max_threads() -> int:
    """Return four times the number of cores; more threads never help, and far too many crash the process."""
    return 4 * (os.cpu_count() or 1)


def _choose_threads(threads: int | None) -> int:
    """Return the number of threads, by default the number of cores that this process may use.

    Raises RunError if there are more than four times as many threads as cores.
    """
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if threads is not None and threads > _max_threads():
        raise RunError(
            f"train.threads: expected at most {_max_threads()}, four times this machine's cores, found {threads}"
        )
    return threads or available


def dtype(precision: str) -> torch.dtype:
    """Return the torch dtype of a precision, "bf16" or "fp32"."""
    return {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]


def configure_process(threads: int | None) -> None:
    """Set the number of threads of this process, and make its computations deterministic and its denormals zero."""
    # Numbers below 1e-38 become 0. Single-task training of NER produces so many of these denormals that Intel cores,
    # which are slow with them, need four times as long. New threads inherit the setting, so it comes before the number
    # of threads.
    torch.set_flush_denormal(True)
    torch.set_num_threads(min(threads or 1, _max_threads()))  # the number may come from a run on a larger machine
    # Without this setting, matrix products on GPUs can differ between two runs of the same program.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # slow, and we never read uninitialised memory


_FIRST_SEED = torch.initial_seed()
"""The seed of torch's random generator in this process before any training."""


@contextmanager
def like_new_process() -> Iterator[None]:
    """Shield the context from what an earlier run in the same process left behind.

    Random numbers and warnings begin as in a new process, and the peak of memory is reset. Threads, precision and hooks
    need no reset, because every run sets them (`configure_process`, autocast, the modules of its model).
    """
    torch.manual_seed(_FIRST_SEED)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    peak = Path("/proc/self/clear_refs")
    if peak.exists():
        peak.write_text("5", encoding="utf-8")  # resets VmHWM, which `peak_memory` reads, to the current memory
    try:
        with warnings.catch_warnings():
            yield
    finally:
        gc.collect()  # models contain reference cycles
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def resolve_auto(config: _Config, folder: RunFolder | None = None) -> _Config:
    """Replace "auto" in device, precision and threads by values for this machine, or by those of the run in ``folder``.

    Raises:
        RunError: the device cannot be used on this machine, or there are too many threads.
        MtlpruneError: a launcher such as torchrun started several processes.
    """
    refuse_launcher()
    settings = config.train
    if folder is not None and folder.has("config.yaml"):
        begun_settings = folder.read_config().get("train", {})
        fixed = {
            key: begun_settings.get(key)
            for key, open_value in (("device", "auto"), ("precision", "auto"), ("threads", None))
            if getattr(settings, key) == open_value
        }
        choose_device(fixed.get("device", settings.device))
        _choose_threads(settings.threads)
    else:
        device = choose_device(settings.device)
        fixed = {
            "device": device,
            "precision": _choose_precision(settings.precision, device),
            "threads": _choose_threads(settings.threads),
        }
    return config.model_copy(update={"train": settings.model_copy(update=fixed)})


def peak_memory(device: torch.device | None = None) -> int:
    """Return the peak memory of this process so far in bytes: GPU memory if ``device`` is a GPU, else main memory."""
    if device is not None and device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    # The peak is read from /proc, because on Linux ru_maxrss begins with the memory of the parent process.
    if status.exists():
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource  # not on Windows, where the rest of this module can be imported

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
