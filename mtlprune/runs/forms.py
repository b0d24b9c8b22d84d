"""Schemas by which the small files of a run folder are checked when they are read.

Schemas are needed for files without a known SHA-256: the manifest itself, and the files of a run that is still being
trained. The manifest of a finished run holds the SHA-256 of all other files. Keys that a schema does not name are
allowed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import NotRequired, TypedDict

from mtlprune.io.files import RunError

_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Share = Annotated[float, Field(ge=0, le=1)]


class _Best(TypedDict):
    epoch: Annotated[int, Field(ge=1, lt=2**31)]
    score: float
    sha256: NotRequired[str]  # missing in the records that are committed in results/


class _Data(TypedDict):
    fingerprint: str
    name: NotRequired[str | None]


class _Finished(TypedDict):
    step: NotRequired[_Count]
    best: NotRequired[dict[str, _Best]]


class _Pruned(TypedDict):
    config: dict[str, Any]
    most_open: _Count | None


class _File(TypedDict):
    file: str
    sha256: str


class _Manifest(TypedDict):
    data: _Data
    finished: NotRequired[_Finished]
    pruned: NotRequired[_Pruned]
    remarks: NotRequired[str]
    weights: NotRequired[str]  # "removed" if the finished run was kept without weights
    begun: NotRequired[str]
    begun_from: NotRequired[dict[str, _File]]
    files: NotRequired[dict[str, str]]  # name → SHA-256; missing in the records that are committed in results/
    packages: NotRequired[dict[str, str]]


class _Metrics(TypedDict):
    epoch: _Count
    step: _Count
    loss: dict[str, float]
    dev: dict[str, dict[str, float]]
    joint: float
    train_loss: NotRequired[dict[str, float]]


class GateLine(TypedDict):
    """One line of gates.jsonl: for each gate set, the number of open heads, the expected number, and gates (L, A)."""

    epoch: _Count
    step: _Count
    open: dict[str, _Count]
    expected: dict[str, float]
    gates: dict[str, Annotated[list[list[_Share]], Field(min_length=1)]]


BEST: TypeAdapter[Any] = TypeAdapter(dict[str, _Best])
MANIFEST: TypeAdapter[Any] = TypeAdapter(_Manifest)
METRICS: TypeAdapter[Any] = TypeAdapter(_Metrics)
GATES: TypeAdapter[Any] = TypeAdapter(GateLine)
BASELINES: TypeAdapter[Any] = TypeAdapter(dict[str, dict[str, dict[str, float | None]]])


def damaged(location: Path | str) -> RunError:
    """Return the error for a file of a run that was changed or damaged after the run wrote it."""
    return RunError(f"damaged: {location}; restore the file, or train the run again with another --out")


def check(schema: TypeAdapter[Any], value: Any, location: Path | str) -> None:
    """Raise RunError, which names ``location``, unless ``value`` conforms to ``schema``."""
    try:
        schema.validate_python(value, strict=True)
    except ValidationError:
        raise damaged(location) from None


def check_config(tree: Mapping[str, Any], location: Path | str) -> None:
    """Raise RunError unless a configuration names its data and tasks, or the corpora of a pretraining run."""
    data = tree.get("data")
    if not isinstance(data, Mapping) or not ("corpora" in data or isinstance(tree.get("tasks"), list)):
        raise damaged(location)
