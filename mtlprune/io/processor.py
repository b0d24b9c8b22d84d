"""The instructions of this machine's processor for products in bf16."""

import functools
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")


def fast_in_bf16() -> bool:
    """Return whether matrix products on this processor are faster in bf16 than in fp32, as far as its maker and its
    instructions in /proc/cpuinfo tell. Without this file (outside Linux), the answer is False."""
    # AVX-512's instructions for bf16 are about twice as fast as fp32 on an AMD EPYC and about half as fast on an Intel
    # Xeon without AMX (results/speed/README.md, "Numbers below 1e-38, and bf16 without AMX").
    return has_amx() or ("avx512_bf16" in _read(_CPU_INFO) and "AuthenticAMD" in _read(_CPU_INFO))


def has_amx() -> bool:
    """Return whether the processor has Intel's AMX, which computes products of whole tiles in bf16."""
    return "amx_bf16" in _read(_CPU_INFO)


@functools.cache
def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
