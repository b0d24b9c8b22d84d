"""One base for everything a user can mend, or has to know: a sentence and the exit code of the process."""

import errno
import os
import re


class MtlpruneError(ValueError):
    """A fault that is said in one sentence; the command line prints it without a traceback."""

    exit_code = 2
    """2: the user can mend it; 3: a run broke."""
    spoken_by: int | None = None
    """Of several processes of a run, so many, the first ones, say it; None: each one that meets it."""


def launched() -> tuple[int, int, int]:
    """Which of the processes that torchrun (or another launcher) started for a run this one is: its rank, how many they
    are, and its rank on its machine; (0, 1, 0) where none did.

    Raises:
        MtlpruneError: environment variables that contradict each other, or do not say where the others are.
    """
    numbers = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "MASTER_PORT": 0}
    how = "torchrun sets it: begin the run by torchrun, or unset RANK and WORLD_SIZE to train with one process"
    for name in numbers.keys() & os.environ.keys():
        if not re.fullmatch("[0-9]{1,9}", os.environ[name]):
            raise MtlpruneError(f"{name}: expected a whole number, found {os.environ[name]!r}; {how}")
        numbers[name] = int(os.environ[name])
    rank, size = numbers["RANK"], numbers["WORLD_SIZE"]
    if rank >= size:
        raise MtlpruneError(f"RANK: expected a number below WORLD_SIZE, which is {size}, found {rank}; {how}")
    needed = ("RANK", "MASTER_ADDR", "MASTER_PORT") if size > 1 else ()
    if missing := next((name for name in needed if not os.environ.get(name)), ""):
        raise MtlpruneError(f"{missing}: expected one, as WORLD_SIZE is {size}, found none; {how}")
    return rank, size, numbers["LOCAL_RANK"] if "LOCAL_RANK" in os.environ else rank


def out_of_memory(error: BaseException) -> bool:
    """Return True if memory ran out, of the machine or of a GPU; torch says so by a RuntimeError."""
    kind = any(cls.__name__ == "OutOfMemoryError" for cls in type(error).__mro__)
    refused = system_refusal(error)
    by_number = refused is not None and refused.errno == errno.ENOMEM
    by_words = any(
        words in str(error) for words in ("can't allocate memory", "failed to map segment from shared object")
    )
    return isinstance(error, MemoryError) or kind or by_number or by_words


_IN_WORDS = {"can't start new thread": errno.EAGAIN, "oneshot canceled": errno.EMFILE}
"""What Python says of a thread that the system refuses, and vl-convert of one that ended for want of file handles."""


def system_refusal(error: BaseException) -> OSError | None:
    """What the operating system refused, where an error or its stated cause says so, be it by words alone: libraries in
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


def printable(text: str) -> str:
    """Text with characters that steer a terminal written out: names and labels come from files of others."""
    return "".join(
        character if character.isprintable() or character == "\u00a0" else character.encode("unicode_escape").decode()
        for character in text
    )


def printable_lines(text: str) -> str:
    """The same of a text of several lines."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))
