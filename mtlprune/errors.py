"""One base for everything a user can mend, or has to know: a sentence and the exit code of the process."""

import errno
import os
import re
import shlex
import sys


class MtlpruneError(ValueError):
    """A fault that is said in one sentence; the command line prints it without a traceback."""

    exit_code = 2
    """2: the user can mend it; 3: a run broke."""


_OUT_OF_MEMORY = (
    "can't allocate memory",
    "failed to map segment from shared object",
    "could not create a primitive",
    "error return without exception set",
)
"""What torch, the loader of libraries, oneDNN and Python's import say of it."""


def refuse_launcher() -> None:
    """Raise MtlpruneError where a launcher such as torchrun started several processes, each of which would train."""
    if (processes := os.environ.get("WORLD_SIZE", "1")) != "1":
        advice = "mtlprune trains in one process; `mtlprune sweep --jobs` trains several runs at once"
        raise MtlpruneError(f"WORLD_SIZE: expected 1, found {processes!r}: {advice}")


def out_of_memory(error: BaseException) -> bool:
    """Return True if memory ran out, of the machine or of a GPU; torch says so by a RuntimeError."""
    kind = any(cls.__name__ == "OutOfMemoryError" for cls in type(error).__mro__)
    refused = system_refusal(error)
    by_number = refused is not None and refused.errno == errno.ENOMEM
    by_words = any(words in str(error) for words in _OUT_OF_MEMORY)
    return isinstance(error, MemoryError) or kind or by_number or by_words


def memory_left() -> bool:
    """False where hardly any memory can be had."""
    try:
        bytearray(1 << 24)
    except MemoryError:
        return False
    return True


def load_blas() -> None:
    """Load OpenBLAS, of which NumPy and SciPy hold one each, where the address space is limited (ulimit -v).

    OpenBLAS maps a buffer for each thread when it is loaded and when it computes its first product, and it tries for
    ever where none can be had. Therefore all are mapped before anything else takes memory. Raises MtlpruneError: the
    limit is too low for them.
    """
    import resource  # Windows has no such module, and main refuses it in a sentence of its own

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY or "scipy.linalg" in sys.modules:
        return
    # OpenBLAS takes as many threads as it is told to, or one for each processor.
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


_IN_WORDS = {"can't start new thread": errno.EAGAIN, "oneshot canceled": errno.EMFILE}
"""What Python says of a thread that the system refuses, and vl-convert of one that ended for want of file handles."""


def system_refusal(error: BaseException) -> OSError | None:
    """The refusal of the operating system that an error or its stated cause tells of, if only in words: libraries in
    Rust (safetensors, tokenizers, vl-convert) and torch give its number in their text."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    text = str(error)
    numbers = map(int, re.findall(r"(?:\(os error |\bOs \{ code: |: [\w /]+ \()(\d{1,3})\b", text))
    refusals = [
        number for number in numbers if "os error" in text or "Os {" in text or f"{os.strerror(number)} (" in text
    ]
    refusals += [number for words, number in _IN_WORDS.items() if words in text]
    if refusals:
        return OSError(refusals[0], os.strerror(refusals[0]))
    return system_refusal(error.__cause__) if error.__cause__ is not None else None


def command(*words: object) -> str:
    """Return a command of ours as it can be pasted into a shell."""
    return shlex.join(["mtlprune", *map(str, words)])


def plural(number: float, noun: str) -> str:
    """A whole number and its noun: 1 run, 2 runs."""
    return f"{number:,.0f} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Text with characters that steer a terminal written out: names and labels come from files of others."""
    return "".join(
        character if character.isprintable() or character == "\u00a0" else character.encode("unicode_escape").decode()
        for character in text
    )


def printable_lines(text: str) -> str:
    """The same of a text of several lines."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))
