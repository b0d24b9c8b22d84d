"""Which exceptions are users' mistakes: one sentence and an exit code instead of a traceback."""

from __future__ import annotations

from mtlprune.cli.console import rank
from mtlprune.errors import MtlpruneError, out_of_memory, printable

MISTAKE = 2

ADVICE: dict[type[OSError], str] = {
    PermissionError: "; this user may not read or write there: name another place, or change its rights",
    FileNotFoundError: "; check the path",
    FileExistsError: " and is no folder; name another place",
    NotADirectoryError: "; a part of the path is a file: name another place",
    IsADirectoryError: "; a file was expected: name one",
}


def exit_code(error: BaseException) -> int | None:
    """2 for what the user can mend, 3 for a training that broke, None for a defect of ours."""
    if isinstance(error, MtlpruneError):
        return error.exit_code
    return MISTAKE if isinstance(error, OSError) or out_of_memory(error) else None


def is_spoken(error: BaseException) -> bool:
    """Whether this process is to say it: what fails in all processes of a run is said once."""
    spoken_by = getattr(error, "spoken_by", None)
    return spoken_by is None or rank() < spoken_by


def sentence(error: BaseException) -> str:
    """The error as one line, safe to print."""
    if out_of_memory(error):
        text = "memory ran out; make batches smaller (train.batch_tokens), free some, or take another machine"
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.filename or 'a file'}: {error.strerror}{ADVICE.get(type(error), '')}"
    else:
        text = " ".join(str(error).splitlines())
    return printable(text)
