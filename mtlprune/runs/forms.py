"""What the files of a run folder look like: checked where they are read, so that whoever uses them can rely on it.

A key that a form does not name is left alone: releases to come, and other tools, may add some.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import NotRequired, TypedDict

from mtlprune.config.blocks import BLOCKS
from mtlprune.io.strict import in_words
from mtlprune.layers import KINDS, LAYERS, check_layer, kind_of

Whole = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=-1e30, lt=1e30)]
Percent = Annotated[float, Field(strict=True, ge=-1e-9, le=100 + 1e-9)]
Text = Annotated[str, Field(strict=True)]
Texts = Annotated[list[Text], Field(strict=True)]


class _Best(TypedDict):
    epoch: Annotated[int, Field(strict=True, ge=1, lt=2**31)]
    score: Number
    sha256: NotRequired[Text]


class _Standing(TypedDict):
    """Where training stands (training.checkpoint.Progress); older runs lack what came later."""

    epoch: NotRequired[Whole]
    update: NotRequired[Whole]
    step: NotRequired[Whole]
    best: NotRequired[dict[Text, _Best]]
    balance: NotRequired[dict[Text, list[Number]]]
    penalty: NotRequired[dict[Text, dict[Text, Number]]]
    scale: NotRequired[dict[Text, Number]]
    losses: NotRequired[dict[Text, list[Number]]]
    log_size: NotRequired[Whole]
    gates_size: NotRequired[Whole]
    uas_size: NotRequired[Whole]
    seconds: NotRequired[Annotated[Number, Field(ge=0)]]
    finished: NotRequired[Annotated[bool, Field(strict=True)]]
    logs: NotRequired[dict[Text, Text]]


class _Data(TypedDict):
    fingerprint: Text
    name: NotRequired[Text | None]


class _Pruned(TypedDict):
    config: dict[Text, Any]
    most_open: Whole | None


class _Manifest(TypedDict):
    data: _Data
    finished: NotRequired[_Standing]
    pruned: NotRequired[_Pruned]
    begun: NotRequired[Text]
    files: NotRequired[dict[Text, Text]]
    packages: NotRequired[dict[Text, Text]]


class _Metrics(TypedDict):
    epoch: Whole
    step: NotRequired[Whole]
    loss: NotRequired[dict[Text, Number]]
    dev: NotRequired[dict[Text, dict[Text, Number]]]
    joint: NotRequired[Number]


Share = Annotated[float, Field(strict=True, ge=0, le=1)]


class _Gates(TypedDict):
    epoch: Whole
    step: Whole
    open: dict[Text, Whole]
    expected: dict[Text, Number]
    gates: dict[Text, Annotated[list[list[Share]], Field(min_length=1)]]


class _Selection(TypedDict):
    sentences: Whole
    expected_false: Number
    frequencies: Annotated[list[list[Share]], Field(min_length=1)]
    selected: Annotated[list[list[Whole]], Field(min_length=1)]


class _CountsForm(TypedDict):
    ids: Texts
    counts: dict[Text, dict[Text, list[Whole | None]]]


Place = tuple[Whole, Whole, Text]


class _Dependencies(TypedDict):
    heads: list[Whole]
    relations: Texts


class _Predicate(TypedDict):
    index: Whole
    roleset: Text | None
    arguments: list[Place]
    lemma: Text | None


class _Sentence(TypedDict):
    id: Text
    words: Texts


Filled = Field(min_length=1)
STANDING: TypeAdapter[Any] = TypeAdapter(_Standing)
MANIFEST: TypeAdapter[Any] = TypeAdapter(_Manifest)
BEST: TypeAdapter[Any] = TypeAdapter(dict[Text, _Best])
VOCABULARIES: TypeAdapter[Any] = TypeAdapter(dict[Text, Annotated[dict[Text, Texts], Filled]])
METRICS: TypeAdapter[Any] = TypeAdapter(_Metrics)
GATES: TypeAdapter[Any] = TypeAdapter(_Gates)
SELECTION: TypeAdapter[Any] = TypeAdapter(_Selection)
TREATED: TypeAdapter[Any] = TypeAdapter(
    dict[Text, dict[Text, dict[Text, list[Annotated[str, Field(strict=True, pattern=r"^[1-9]\d*-[1-9]\d*$")]]]]]
)
SCORES: TypeAdapter[Any] = TypeAdapter(Annotated[dict[Text, Annotated[dict[Text, Percent], Filled]], Filled])
COUNTS: TypeAdapter[Any] = TypeAdapter(_CountsForm)
SENTENCE: TypeAdapter[Any] = TypeAdapter(_Sentence)
_SPANS: TypeAdapter[Any] = TypeAdapter(list[Place])
LAYER: dict[str, TypeAdapter[Any]] = {
    "tags": TypeAdapter(Texts),
    "spans": _SPANS,
    "tree": TypeAdapter(_Dependencies),
    "brackets": _SPANS,
    "frames": TypeAdapter(list[_Predicate]),
}
"""Values of layers as JSON, by kind."""


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
    """A sentence as JSON, with layers that do not contradict its words or themselves. Raises ValueError."""
    check(SENTENCE, tree)
    for name, kind, value in layers_of(tree):
        try:
            check_layer(name, kind)
            check(LAYER[kind_of(kind)], value)
        except ValueError as error:
            raise ValueError(f"in {name}: {error}") from None
        known = KINDS[kind_of(kind)]
        for what in known.wrong(known.from_json(value), len(tree["words"])):
            raise ValueError(f"in {name}: {what}")


def layers_of(tree: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Name, kind and value of every layer in the JSON of a sentence."""
    for name, value in tree.items():
        if name in LAYERS:
            yield name, LAYERS[name], value
        elif isinstance(value, Mapping) and value.keys() == {"kind", "value"}:
            yield name, value["kind"], value["value"]


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


class _Plain(TypedDict):
    name: NotRequired[Text]
    decoders: NotRequired[dict[Text, dict[Text, Any]]]
    encoder: NotRequired[dict[Text, Any]]
    model: NotRequired[dict[Text, Any]]
    train: NotRequired[dict[Text, Any]]
    syntax: NotRequired[dict[Text, Any]]


_PLAIN: TypeAdapter[Any] = TypeAdapter(_Plain)
