"""What the files of a run folder look like: checked where they are read, so that whoever uses them can rely on it.

A key that a form does not name is left alone: releases to come, and other tools, may add some.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import NotRequired, TypedDict

from mtlprune.blocks import BLOCKS
from mtlprune.files import in_words

_form = with_config(ConfigDict(strict=True, allow_inf_nan=False))
Whole = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=-1e30, lt=1e30)]
Percent = Annotated[float, Field(strict=True, ge=-1e-9, le=100 + 1e-9)]
Text = Annotated[str, Field(strict=True)]
Texts = Annotated[list[Text], Field(strict=True)]


@_form
class _Best(TypedDict):
    epoch: Annotated[int, Field(strict=True, ge=1, lt=2**31)]
    score: Number
    sha256: NotRequired[Text]


@_form
class _Standing(TypedDict):
    """Where training stands (training.checkpoint.Progress); older runs lack what came later."""

    epoch: NotRequired[Whole]
    update: NotRequired[Whole]
    step: NotRequired[Whole]
    best: NotRequired[dict[Text, _Best]]
    balance: NotRequired[dict[Text, list[Number]]]
    penalty: NotRequired[dict[Text, dict[Text, Number]]]
    losses: NotRequired[dict[Text, list[Number]]]
    log_size: NotRequired[Whole]
    gates_size: NotRequired[Whole]
    uas_size: NotRequired[Whole]
    seconds: NotRequired[Annotated[Number, Field(ge=0)]]
    finished: NotRequired[Annotated[bool, Field(strict=True)]]
    logs: NotRequired[dict[Text, Text]]


@_form
class _Data(TypedDict):
    fingerprint: Text
    name: NotRequired[Text | None]


@_form
class _Pruned(TypedDict):
    config: dict[Text, Any]
    most_open: Whole | None


@_form
class _Manifest(TypedDict):
    data: _Data
    finished: NotRequired[_Standing]
    pruned: NotRequired[_Pruned]
    begun: NotRequired[Text]
    packages: NotRequired[dict[Text, Text]]


@_form
class _Metrics(TypedDict):
    epoch: Whole
    step: NotRequired[Whole]
    loss: NotRequired[dict[Text, Number]]
    dev: NotRequired[dict[Text, dict[Text, Number]]]
    joint: NotRequired[Number]


Share = Annotated[float, Field(strict=True, ge=0, le=1)]


@_form
class _Gates(TypedDict):
    epoch: Whole
    step: Whole
    open: dict[Text, Whole]
    expected: dict[Text, Number]
    gates: dict[Text, Annotated[list[list[Share]], Field(min_length=1)]]


@_form
class _CountsForm(TypedDict):
    ids: Texts
    counts: dict[Text, dict[Text, list[Whole | None]]]


Place = tuple[Whole, Whole, Text]


@_form
class _Dependencies(TypedDict):
    heads: list[Whole]
    relations: Texts


@_form
class _Predicate(TypedDict):
    index: Whole
    roleset: Text | None
    arguments: list[Annotated[Place, Field(strict=False)]]
    lemma: Text | None


@_form
class _Sentence(TypedDict):
    id: Text
    words: Texts
    pos: NotRequired[Texts]
    ner: NotRequired[list[Annotated[Place, Field(strict=False)]]]
    dep: NotRequired[_Dependencies]
    con: NotRequired[list[Annotated[Place, Field(strict=False)]]]
    srl: NotRequired[list[_Predicate]]


Filled = Field(min_length=1)
STANDING: TypeAdapter[Any] = TypeAdapter(_Standing)
MANIFEST: TypeAdapter[Any] = TypeAdapter(_Manifest)
BEST: TypeAdapter[Any] = TypeAdapter(dict[Text, _Best])
VOCABULARIES: TypeAdapter[Any] = TypeAdapter(dict[Text, Annotated[dict[Text, Texts], Filled]])
METRICS: TypeAdapter[Any] = TypeAdapter(_Metrics)
GATES: TypeAdapter[Any] = TypeAdapter(_Gates)
SCORES: TypeAdapter[Any] = TypeAdapter(Annotated[dict[Text, Annotated[dict[Text, Percent], Filled]], Filled])
COUNTS: TypeAdapter[Any] = TypeAdapter(_CountsForm)
SENTENCE: TypeAdapter[Any] = TypeAdapter(_Sentence)


def check(form: TypeAdapter[Any], value: Any) -> None:
    """Raises ValueError, which says where what was expected and found, unless a value is of a form."""
    try:
        form.validate_python(value)
    except ValidationError as error:
        raise ValueError(described(error)) from None


def described(error: ValidationError) -> str:
    """The first thing that is wrong, in words."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"nothing called {where}"
    found = in_words(first["input"])
    return f"{found if len(found) < 60 else found[:57] + '...'} as {where or 'all there is'} ({first['msg']})"


def check_counts(value: Mapping[str, Any]) -> None:
    """Every column of counts has a row a sentence. Raises ValueError."""
    check(COUNTS, value)
    for task, columns in value["counts"].items():
        for name, rows in columns.items():
            if len(rows) != len(value["ids"]):
                raise ValueError(f"{len(rows)} {name} of {task} for {len(value['ids'])} sentences")


def check_sentence(tree: Mapping[str, Any]) -> None:
    """A sentence as JSON, with a tag and a head a word, and spans within its words. Raises ValueError."""
    check(SENTENCE, tree)
    words, dep = len(tree["words"]), tree.get("dep")
    rows = [tree["pos"]] if "pos" in tree else []
    rows += [dep["heads"], dep["relations"]] if dep else []
    ends = [end for name in ("ner", "con") for _, end, _ in tree.get(name, ())]
    ends += [end for one in tree.get("srl", ()) for end in (one["index"] + 1, *(end for _, end, _ in one["arguments"]))]
    if any(len(row) != words for row in rows) or any(end > words for end in ends):
        raise ValueError(f"layers that do not fit {words} words")


def check_config(tree: Mapping[str, Any]) -> None:
    """Of a run (or a pretraining, which names several corpora): every block there is, is one. Raises ValueError."""
    data = tree.get("data")
    if not isinstance(data, Mapping):
        raise ValueError(f"{in_words(data)} as data")
    blocks = {} if "corpora" in data else BLOCKS
    for name, kind in blocks.items():
        try:
            kind.model_validate(tree.get(name, {}))
        except ValidationError as error:
            raise ValueError(f"in {name}: {described(error)}") from None
    if blocks:
        check(_TASKS, tree.get("tasks"))
    check(_PLAIN, tree)


_TASKS: TypeAdapter[Sequence[str]] = TypeAdapter(Annotated[list[Text], Field(strict=True, min_length=1)])


@_form
class _Plain(TypedDict):
    name: NotRequired[Text]
    decoders: NotRequired[dict[Text, dict[Text, Any]]]
    encoder: NotRequired[dict[Text, Any]]
    model: NotRequired[dict[Text, Any]]
    train: NotRequired[dict[Text, Any]]
    syntax: NotRequired[dict[Text, Any]]


_PLAIN: TypeAdapter[Any] = TypeAdapter(_Plain)
