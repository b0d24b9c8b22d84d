"""The base class of the package's errors, system failures recognised in library errors, and text safe for a terminal.

A user's mistake is reported as one sentence, with the exit code of the process. Every package uses this file.
"""

import errno
import os
import re
import shlex
import sys


class MtlpruneError(ValueError):
    """An error that one sentence explains to the user; the command line prints the sentence without a traceback."""

    exit_code = 2
    """The exit code of the process: 2 for a mistake that the user can correct, 3 for a run that failed."""


_OUT_OF_MEMORY = (
    "can't allocate memory",
    "failed to map segment from shared object",
    "could not create a primitive",
    "error return without exception set",
)
"""Phrases by which torch, the dynamic loader, oneDNN and Python's import report that memory ran out."""


def refuse_launcher() -> None:
    """Raise MtlpruneError if a launcher such as torchrun started several processes, each of which would train."""
    if (processes := os.environ.get("WORLD_SIZE", "1")) != "1":
        advice = "mtlprune trains in one process; `mtlprune sweep --jobs` trains several runs at once"
        raise MtlpruneError(f"WORLD_SIZE: expected 1, found {processes!r}: {advice}")


def out_of_memory(error: BaseException) -> bool:
    """Return True if an error means that the machine or a GPU ran out of memory.

    Torch and other libraries may report this by an error of another class, such as RuntimeError. Therefore the text of
    the error is also searched.
    """
    kind = any(cls.__name__ == "OutOfMemoryError" for cls in type(error).__mro__)
    refused = system_refusal(error)
    by_number = refused is not None and refused.errno == errno.ENOMEM
    by_words = any(words in str(error) for words in _OUT_OF_MEMORY)
    return isinstance(error, MemoryError) or kind or by_number or by_words


def memory_left() -> bool:
    """Return False if not even 16 MiB of memory can be allocated."""
    try:
        bytearray(1 << 24)
    except MemoryError:
        return False
    return True


def load_blas() -> None:
    """Load the OpenBLAS libraries of NumPy and SciPy early if the address space is limited (ulimit -v).

    OpenBLAS maps a buffer for each thread when it is loaded and when it computes its first product. If no memory is
    left for a buffer, OpenBLAS tries again for ever. Therefore this function maps all buffers before anything else
    takes memory.

    Raises:
        MtlpruneError: the limit is too low for the buffers.
    """
    import resource  # imported here because Windows, which the command line refuses with a message, lacks this module

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY or "scipy.linalg" in sys.modules:
        return
    # OpenBLAS starts as many threads as these variables request, or one for each processor.
    settings = (os.environ.get(name, "") for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"))
    threads = next((int(value) for value in settings if value.isdigit()), os.cpu_count() or 1)
    if limit < (least := 400 + 64 * threads) << 20:
        problem = f"expected at least {least} MB of address space for {plural(threads, 'thread')}"
        problem += f", found {limit >> 20} MB"
        raise MtlpruneError(f"{problem}; raise the limit (ulimit -v), or set OPENBLAS_NUM_THREADS=1")
    import numpy as np
    from scipy.linalg.blas import dgemm

    square = np.ones((64, 64))
    dgemm(1.0, square, square @ square)


_ERRNO_OF_TEXT = {"can't start new thread": errno.EAGAIN, "oneshot canceled": errno.EMFILE}
"""Error numbers for texts without a number: Python reports a refused thread, and vl-convert a thread that ended because
the process has no file handles left."""


_NUMBER = re.compile(r"(?:\(os error |\bOs \{ code: |: [\w /]+ \()(\d{1,3})\b")
"""The error number of the system in the text of an error. It is compiled early, because no memory may be left later."""


def system_refusal(error: BaseException) -> OSError | None:
    """Return the error of the operating system that an error or its explicit cause reports, or None.

    Libraries in Rust (safetensors, tokenizers, vl-convert) and torch raise errors of other classes and give the error
    number of the system only in the text, so the text is searched.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error
    text = str(error)
    numbers = map(int, _NUMBER.findall(text))
    refusals = [
        number for number in numbers if "os error" in text or "Os {" in text or f"{os.strerror(number)} (" in text
    ]
    refusals += [number for words, number in _ERRNO_OF_TEXT.items() if words in text]
    if refusals:
        return OSError(refusals[0], os.strerror(refusals[0]))
    return system_refusal(error.__cause__) if error.__cause__ is not None else None


def command(*words: object) -> str:
    """Return an mtlprune command line, quoted so that it can be pasted into a shell."""
    return shlex.join(["mtlprune", *map(str, words)])


def plural(number: float, noun: str) -> str:
    """Return a whole number with its noun, such as ``1 run`` or ``2 runs``."""
    return f"{number:,.0f} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Return the text with all unprintable characters escaped, except no-break spaces.

    Names and labels come from files of other people, in which control characters could manipulate a terminal.
    """
    return "".join(
        character if character.isprintable() or character == "\u00a0" else character.encode("unicode_escape").decode()
        for character in text
    )


def printable_lines(text: str) -> str:
    """Escape unprintable characters as `printable` does, but keep the line breaks of a text."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))
