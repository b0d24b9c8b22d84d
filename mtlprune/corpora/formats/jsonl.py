"""Sentences as JSON, one object a line: what `mtlprune predict` and `evaluate` write, and users may write themselves.

    {"id": "s1", "words": ["a", "b"], "pos": ["X", "Y"], "chunk": {"kind": "spans", "value": [[0, 2, "NP"]]}}

A pair of texts says where its second one begins ("split": the number of words of the first). A layer that is unknown is
left out. Layers other than the five stand with their kind.
"""

from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from sys import intern
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import NotRequired, TypedDict

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats import Skip, check_text, on_lines, read_lines, skipping
from mtlprune.io.files import parse_json_line, reading
from mtlprune.io.strict import in_words
from mtlprune.layers import KINDS, LAYERS, Layer, check_layer, kind_of
from mtlprune.sentence import Sentence

KEYS = ("id", "words", "split")
EXAMPLE = 'a sentence is a line such as {"id": "s1", "words": ["a", "b"], "pos": ["X", "Y"]}'

Place = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
Spans = list[tuple[Place, Place, str]]


class _Sentence(TypedDict):
    id: str
    words: list[str]
    split: NotRequired[Place]


class _Tree(TypedDict):
    heads: list[Place]
    relations: list[str]


class _Predicate(TypedDict):
    index: Place
    roleset: str | None
    arguments: Spans
    lemma: str | None


_SENTENCE = TypeAdapter(_Sentence)
_VALUES: dict[str, TypeAdapter[Any]] = {
    "tags": TypeAdapter(list[str]),
    "spans": TypeAdapter(Spans),
    "tree": TypeAdapter(_Tree),
    "brackets": TypeAdapter(Spans),
    "frames": TypeAdapter(list[_Predicate]),
    "label": TypeAdapter(str),
    "number": TypeAdapter(Annotated[float, Field(strict=True, allow_inf_nan=False)]),
    "labels": TypeAdapter(list[str]),
}
"""Values of layers, by kind."""


def to_json(sentence: Sentence) -> dict[str, Any]:
    """A sentence as plain JSON."""
    tree: dict[str, Any] = {"id": sentence.id, "words": list(sentence.words)}
    if sentence.split is not None:
        tree["split"] = sentence.split
    for name, kind in sentence.kinds().items():
        value = KINDS[kind_of(kind)].to_json(sentence.get(name))
        tree[name] = value if name in LAYERS else {"kind": kind, "value": value}
    return tree


def from_json(tree: Mapping[str, Any]) -> Sentence:
    """The reverse of to_json."""
    layers = {name: Layer(kind, KINDS[kind_of(kind)].from_json(value)) for name, kind, value in _layers_of(tree)}
    return Sentence(tree["id"], tuple(map(intern, tree["words"])), split=tree.get("split")).with_layers(**layers)


def _layers_of(tree: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Name, kind and value of every layer in the JSON of a sentence."""
    for name, value in tree.items():
        if name in LAYERS:
            yield name, LAYERS[name], value
        elif isinstance(value, Mapping) and value.keys() == {"kind", "value"}:
            yield name, value["kind"], value["value"]


def check_sentence(tree: Mapping[str, Any]) -> None:
    """Raise ValueError where JSON is no sentence, or its layers contradict its words or themselves."""
    _check(_SENTENCE, tree)
    for name, declared, value in _layers_of(tree):
        try:
            check_layer(name, declared)
            kind = KINDS[kind_of(declared)]
            _check(_VALUES[kind_of(declared)], value)
        except ValueError as error:
            raise ValueError(f"in {name}: {error}") from None
        for contradiction in kind.problems(kind.from_json(value), len(tree["words"])):
            raise ValueError(f"in {name}: {contradiction}")


def _check(schema: TypeAdapter[Any], value: Any) -> None:
    """Raise ValueError, which says where what was expected and found, unless a value is of a schema."""
    try:
        schema.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        key_path = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            raise ValueError(f"nothing called {key_path}") from None
        text = in_words(first["input"])
        text = text if len(text) < 60 else f"{text[:57]}..."
        raise ValueError(f"{text} as {key_path or 'all there is'} ({first['msg']})") from None


def as_sentence(tree: Any, name: str) -> dict[str, Any]:
    """A JSON object that others may have written as one of ours: with an id that is text, ``name`` if it has none, and
    ``tokens`` as words. Raises ValueError: it is no object, or has no words."""
    if not isinstance(tree, dict):
        raise ValueError(f"expected an object with words, found {in_words(tree)[:60]}")
    tree = {("words" if key == "tokens" and "words" not in tree else key): value for key, value in tree.items()}
    if "words" not in tree and "text" in tree:
        raise ValueError("expected words, found text with spans that count characters; give the words")
    number = type(tree.get("id")) is int
    return {**tree, "id": str(tree["id"]) if number else tree.get("id", name)}


def read_jsonl(
    path: Path, tell: Callable[[str], None], skip: Skip | None = None, unread_layers: Container[str] = ()
) -> Iterator[Sentence]:
    """Sentences of a file that others may have written: with a BOM, empty lines, a last line without an end, and
    sentences that contradict themselves. ``tell`` is given the keys that are no layers; ``skip`` and
    ``unread_layers``: as in
    ``read_columns``. Raises CorpusError: with file and line."""
    ignored: dict[str, None] = {}
    for line in read_lines(path, skip):
        if not line.text.strip():
            continue
        location = f"{path}, line {line.number}"
        with skipping(skip), reading(location, CorpusError, EXAMPLE):
            check_text(path, [line])
            tree = as_sentence(parse_json_line(line.text, location, CorpusError), f"{path.stem}-{line.number}")
            tree = {key: value for key, value in tree.items() if key in KEYS or key not in unread_layers}
            check_sentence(tree)
            with on_lines(path, [line]):
                sentence = from_json(tree).validate()
            ignored |= dict.fromkeys(tree.keys() - {*KEYS} - {name for name, _, _ in _layers_of(tree)})
            yield sentence
    if ignored:
        example = '"chunk": {"kind": "spans", "value": [[0, 2, "NP"]]}'
        tell(f"{path}: {', '.join(sorted(ignored))} were left out; a layer with another name is written as {example}")
