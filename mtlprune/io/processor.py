"""Whether the processor of this machine computes faster in bf16 than in fp32."""

import functools
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")


@functools.cache
def fast_in_bf16() -> bool:
    """Return whether matrix products on this processor are faster in bf16 than in fp32, as far as its maker and its
    instructions in /proc/cpuinfo tell. Without this file (outside Linux), the answer is False."""
    info = _CPU_INFO.read_text(encoding="utf-8", errors="replace") if _CPU_INFO.is_file() else ""
    # AVX-512's instructions for bf16 are about twice as fast as fp32 on an AMD EPYC and about half as fast on an Intel
    # Xeon without AMX (results/speed/README.md, "Numbers below 1e-38, and bf16 without AMX").
    return "amx_bf16" in info or ("avx512_bf16" in info and "AuthenticAMD" in info)
