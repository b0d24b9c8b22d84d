"""Schemas of what a run writes, for files whose SHA-256 is not known yet: the manifest, and those of a run in training.

All others are checked by their SHA-256, which the manifest of a finished run has. A key that a schema does not name is
left alone.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import NotRequired, TypedDict

from mtlprune.io.files import RunError

Count = Annotated[int, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Best(TypedDict):
    epoch: Annotated[int, Field(ge=1, lt=2**31)]
    score: float
    sha256: NotRequired[str]  # committed records lack it


class _Data(TypedDict):
    fingerprint: str
    name: NotRequired[str | None]


class _Finished(TypedDict):
    step: NotRequired[Count]
    best: NotRequired[dict[str, _Best]]


class _Pruned(TypedDict):
    config: dict[str, Any]
    most_open: Count | None


class _File(TypedDict):
    file: str
    sha256: str


class _Manifest(TypedDict):
    data: _Data
    finished: NotRequired[_Finished]
    pruned: NotRequired[_Pruned]
    remarks: NotRequired[str]
    weights: NotRequired[str]  # "removed" of a finished run that is kept without them
    begun: NotRequired[str]
    begun_from: NotRequired[dict[str, _File]]
    files: NotRequired[dict[str, str]]  # committed records lack it
    packages: NotRequired[dict[str, str]]


class _Metrics(TypedDict):
    epoch: Count
    step: Count
    loss: dict[str, float]
    dev: dict[str, dict[str, float]]
    joint: float
    train_loss: NotRequired[dict[str, float]]


class GateLine(TypedDict):
    """One line of gates.jsonl: by gate set how many heads are open and expected to be, and gates, (L, A)."""

    epoch: Count
    step: Count
    open: dict[str, Count]
    expected: dict[str, float]
    gates: dict[str, Annotated[list[list[Share]], Field(min_length=1)]]


BEST: TypeAdapter[Any] = TypeAdapter(dict[str, _Best])
MANIFEST: TypeAdapter[Any] = TypeAdapter(_Manifest)
METRICS: TypeAdapter[Any] = TypeAdapter(_Metrics)
GATES: TypeAdapter[Any] = TypeAdapter(GateLine)
BASELINES: TypeAdapter[Any] = TypeAdapter(dict[str, dict[str, dict[str, float | None]]])


def damaged(location: Path | str) -> RunError:
    """The error of a file that only a run writes, and that is not as it was written."""
    return RunError(f"damaged: {location}; restore the file, or train the run again with another --out")


def check(schema: TypeAdapter[Any], value: Any, location: Path | str) -> None:
    """Raise RunError, naming ``location`` a value stands, unless it is of a schema."""
    try:
        schema.validate_python(value, strict=True)
    except ValidationError:
        raise damaged(location) from None


def check_config(tree: Mapping[str, Any], location: Path | str) -> None:
    """Raise RunError unless a configuration names its data and tasks, or the corpora of a pretraining."""
    data = tree.get("data")
    if not isinstance(data, Mapping) or not ("corpora" in data or isinstance(tree.get("tasks"), list)):
        raise damaged(location)
