"""The precision, device and threads of a run, decided once, and how much memory its process took."""

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

_Decided = TypeVar("_Decided", bound=Any)
"""A configuration of a training or a pretraining."""


def choose_device(device: str) -> str:
    """auto → cuda where there is a GPU, else cpu. Raises RunError for a device that is not there."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        # Some devices, such as meta, exist but compute nothing; a sum shows whether this one does.
        (torch.ones(1, device=device) + 1).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"the device {device} (train.device, --device) cannot be used here: {reason}") from None
    return device


def _choose_precision(precision: str, device: str) -> str:
    """auto → bf16 where it is faster than fp32, else fp32."""
    if precision != "auto":
        return precision
    if device.startswith("cuda"):
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return "bf16" if device == "cpu" and fast_in_bf16() else "fp32"


def _most_threads() -> int:
    """Four times this machine's cores: more never help, and very many crash the process."""
    return 4 * (os.cpu_count() or 1)


def _choose_threads(threads: int | None) -> int:
    """The threads wanted, or as many as cores this process may use. Raises RunError: many more than there are cores."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if threads is not None and threads > _most_threads():
        raise RunError(
            f"train.threads: expected at most {_most_threads()}, four times this machine's cores, found {threads}"
        )
    return threads or available


def dtype(precision: str) -> torch.dtype:
    """bf16 or fp32 as a torch dtype."""
    return {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]


def configure_process(threads: int | None) -> None:
    """Set this process's threads, and make every operation give the same result each time."""
    # Numbers below 1e-38 become 0. Training NER alone produces so many of them that an Intel core, which is slow with
    # them, needs four times as long. New threads take the setting over, so it comes before these are made.
    torch.set_flush_denormal(True)
    torch.set_num_threads(min(threads or 1, _most_threads()))  # a run may be from a larger machine
    # Without this setting matrix products on GPUs may differ between two runs of the same program.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # slow, and we never read uninitialised memory


_FIRST_SEED = torch.initial_seed()
"""Seed of torch's generators in a new process."""


@contextmanager
def like_new_process() -> Iterator[None]:
    """Within it, what an earlier run of the same process left behind changes nothing: random numbers and warnings
    begin as in a new process, and the peak of memory is counted anew. Threads, precision and hooks belong to a run
    (`configure_process`, autocast and the model's modules), so nothing is left of them."""
    torch.manual_seed(_FIRST_SEED)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    peak = Path("/proc/self/clear_refs")
    if peak.exists():
        peak.write_text("5", encoding="utf-8")  # sets VmHWM, which `peak_memory` reads, to what is held now
    try:
        with warnings.catch_warnings():
            yield
    finally:
        gc.collect()  # models are held by cycles
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def resolve_auto(config: _Decided, folder: RunFolder | None = None) -> _Decided:
    """Replace auto by what this machine offers, or by what the folder's run began with. Raises RunError: a device that
    is not here; MtlpruneError: a launcher started several processes."""
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
    """The peak memory of this process so far, in bytes: of a GPU, if that is the device, else main memory."""
    if device is not None and device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    # On Linux ru_maxrss begins with what the parent held when it started this process, so the peak is read from /proc
    # instead.
    if status.exists():
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource  # not on Windows, where the rest of this module can be imported

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
