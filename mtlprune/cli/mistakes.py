"""Which exceptions are users' mistakes: one sentence and an exit code instead of a traceback."""

from __future__ import annotations

import sys

from mtlprune.cli.console import rank

MISTAKE, BROKEN = 2, 3

# Looked up among the modules that are loaded: an error of a module that is not cannot have been raised, so saying
# what went wrong never loads torch.
_KNOWN = (
    ("mtlprune.sentence", "SentenceError", MISTAKE),
    ("mtlprune.corpora", "CorpusError", MISTAKE),
    ("mtlprune.files", "RunError", MISTAKE),
    ("mtlprune.config", "ConfigError", MISTAKE),
    ("mtlprune.encoder.pieces", "EncoderError", MISTAKE),
    ("mtlprune.training.loop", "TrainingError", BROKEN),
    ("mtlprune.training.parallel", "TeamError", BROKEN),
)

ADVICE: dict[type[OSError], str] = {
    PermissionError: "; this user may not read or write there: name another place, or change its rights",
    FileNotFoundError: "; check the path",
    FileExistsError: " and is no folder; name another place",
    NotADirectoryError: "; a part of the path is a file: name another place",
    IsADirectoryError: "; a file was expected: name one",
}


def exit_code(error: BaseException) -> int | None:
    """2 for what the user can mend, 3 for a training that broke, None for a defect of ours."""
    for module, name, code in _KNOWN:
        known = getattr(sys.modules.get(module), name, None)
        if known is not None and isinstance(error, known):
            return code
    return MISTAKE if isinstance(error, OSError) else None


def is_spoken(error: BaseException) -> bool:
    """Whether this process is to say it: what fails in all processes of a run is said once."""
    return rank() < getattr(error, "spoken_by", rank() + 1)


def sentence(error: BaseException) -> str:
    """The error as one line."""
    if isinstance(error, OSError) and error.strerror:
        advice = ADVICE.get(type(error), "")
        return f"{error.filename or 'a file'}: {error.strerror}{advice}"
    return " ".join(str(error).splitlines())
