"""Sentences as JSON Lines: the format of stored corpora and of predictions, which users may also write themselves.

{"id": "s1", "words": ["a", "b"], "pos": ["X", "Y"], "chunk": {"kind": "spans", "value": [[0, 2, "NP"]]}}

In a pair of texts, "split" is the number of words of the first text. Unknown layers are left out. Layers other than the
five standard layers are written with their kind.
"""

from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from sys import intern
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import NotRequired, TypedDict

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats import Skip, Tell, check_text, on_lines, read_lines, skipping
from mtlprune.io.files import parse_json_line, reading
from mtlprune.io.strict import in_words
from mtlprune.layers import KINDS, LAYERS, Layer, check_layer, kind_of
from mtlprune.sentence import Sentence

KEYS = ("id", "words", "split")
EXAMPLE = 'a sentence is a line such as {"id": "s1", "words": ["a", "b"], "pos": ["X", "Y"]}'

_Index = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
_Spans = list[tuple[_Index, _Index, str]]


class _Sentence(TypedDict):
    id: str
    words: list[str]
    split: NotRequired[_Index]


class _Tree(TypedDict):
    heads: list[_Index]
    relations: list[str]


class _Predicate(TypedDict):
    index: _Index
    roleset: str | None
    arguments: _Spans
    lemma: str | None


_SENTENCE = TypeAdapter(_Sentence)
_VALUES: dict[str, TypeAdapter[Any]] = {
    "tags": TypeAdapter(list[str]),
    "spans": TypeAdapter(_Spans),
    "tree": TypeAdapter(_Tree),
    "brackets": TypeAdapter(_Spans),
    "frames": TypeAdapter(list[_Predicate]),
    "label": TypeAdapter(str),
    "number": TypeAdapter(Annotated[float, Field(strict=True, allow_inf_nan=False)]),
    "labels": TypeAdapter(list[str]),
}
"""Kind of a layer → the schema of its value in JSON."""


def to_json(sentence: Sentence) -> dict[str, Any]:
    """Return a sentence as a JSON object."""
    tree: dict[str, Any] = {"id": sentence.id, "words": list(sentence.words)}
    if sentence.split is not None:
        tree["split"] = sentence.split
    for name, kind in sentence.kinds().items():
        value = KINDS[kind_of(kind)].to_json(sentence.get(name))
        tree[name] = value if name in LAYERS else {"kind": kind, "value": value}
    return tree


def from_json(tree: Mapping[str, Any]) -> Sentence:
    """Return the sentence of a JSON object, which must be valid. This function is the inverse of :func:`to_json`."""
    layers = {name: Layer(kind, KINDS[kind_of(kind)].from_json(value)) for name, kind, value in _layers_of(tree)}
    return Sentence(tree["id"], tuple(map(intern, tree["words"])), split=tree.get("split")).with_layers(**layers)


def _layers_of(tree: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield the name, kind and value of every layer in the JSON object of a sentence."""
    for name, value in tree.items():
        if name in LAYERS:
            yield name, LAYERS[name], value
        elif isinstance(value, Mapping) and value.keys() == {"kind", "value"}:
            yield name, value["kind"], value["value"]


def check_sentence(tree: Mapping[str, Any]) -> None:
    """Raise ValueError if a JSON object is not a sentence, or its layers are invalid."""
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
    """Raise ValueError, with the place and the reason, if a value does not match a schema."""
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
    """Return a JSON object, as others may have written it, with the keys of our format.

    A missing id becomes ``name``, an id that is a number becomes text, and the key ``tokens`` becomes ``words``. Raises
    ValueError if the value is not an object, or has text instead of words.
    """
    if not isinstance(tree, dict):
        raise ValueError(f"expected an object with words, found {in_words(tree)[:60]}")
    tree = {("words" if key == "tokens" and "words" not in tree else key): value for key, value in tree.items()}
    if "words" not in tree and "text" in tree:
        raise ValueError("expected words, found text with spans that count characters; give the words")
    number = type(tree.get("id")) is int
    return {**tree, "id": str(tree["id"]) if number else tree.get("id", name)}


def read_jsonl(
    path: Path, tell: Tell, skip: Skip | None = None, unread_layers: Container[str] = ()
) -> Iterator[Sentence]:
    """Read sentences from a file that others may have written.

    The file may contain a byte order mark, empty lines and a last line without a line break. Sentences are checked.

    Args:
        tell: receives the names of keys that are not layers.
        skip, unread_layers: as in ``read_columns``.

    Raises:
        CorpusError: a sentence is malformed or its annotation inconsistent; the message names the line.
    """
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
