"""CoNLL-U: words, tags and dependencies (https://universaldependencies.org/format.html), through the conllu library."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from conllu import TokenList
from conllu.exceptions import ParseException
from conllu.parser import parse_id_value, parse_int_value, parse_token_and_metadata

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats import NumberedLine, blocks, malformed, on_lines, read_lines, tree
from mtlprune.layers import Layer
from mtlprune.sentence import Dependencies, Sentence

COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
TAGS = ("upos", "xpos")
_NAMES = "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X"
UNIVERSAL = frozenset(_NAMES.split())
# Export writes this comment over a tree that only fills the columns; the reader then takes dep as unknown.
PLACEHOLDER = ("heads", "placeholder")


def universal(tags: Iterable[str]) -> bool:
    """Whether these are universal tags, which stand in the column UPOS; SYM and X alone could be of another set."""
    return UNIVERSAL.issuperset(found := set(tags)) and not found <= {"SYM", "X"}


# Only these columns become part of a sentence, so only id and head are parsed; the others stay as they stand.
_FIELD_PARSERS: dict[str, Any] = dict.fromkeys(COLUMNS, lambda row, place: row[place]) | {
    "id": lambda row, place: parse_id_value(row[place]),
    "head": lambda row, place: parse_int_value(row[place]),
}

_NUMBERS = {"id": "a number such as 8, 8-9 or 8.1", "head": "the number of the head, 0 for the root,"}


def read_conllu(path: Path, pos: str = "xpos", beside: bool = False) -> Iterator[Sentence]:
    """Read sentences with ``pos`` (from the column ``xpos`` or ``upos``, or a feature such as ``Case``) and ``dep``.

    Words are the rows with plain numbers; multiword ranges and empty nodes are checked and left out. A column that is
    ``_`` for all words of a sentence makes that layer unknown. Sentences without ``# sent_id`` are named after the
    file and their place in it. Words without the feature have the tag ``-``.

    Args:
        beside: keep the other of the two columns as a layer ``upos`` or ``xpos`` of tags.

    Raises:
        CorpusError: with file and line, for any row that is not CoNLL-U and any sentence that contradicts itself.
    """
    if pos not in TAGS and not pos[:1].isupper():
        what = "the tags of CoNLL-U come from the column xpos or upos, or from a feature such as Case"
        raise CorpusError(f"{what}, found {pos!r}; name one of them")
    yield from (sentence for _, sentence in read_blocks(Path(path), read_lines(path), pos, None, beside))


def read_blocks(
    path: Path,
    lines: Iterable[NumberedLine],
    pos: str,
    skip: Callable[[CorpusError], None] | None,
    beside: bool = False,
) -> Iterator[tuple[int, Sentence]]:
    """As :func:`read_conllu`, from lines; each sentence with the number of its first line.

    Args:
        skip: is told of a sentence that cannot be read, which is then left out; None has it raised.
    """
    seen: dict[str, int] = {}
    for count, block in enumerate(blocks(lines), 1):
        try:
            sentence = _read_sentence(path, block, pos, f"{path.stem}-{count}", beside)
            first = block[0].number
            if sentence.id in seen:
                what = f"the sent_id {sentence.id!r} was used at line {seen[sentence.id]} already; ids must be unique"
                raise malformed(path, first, what)
        except CorpusError as error:
            if skip is None:
                raise
            skip(error)
            continue
        seen[sentence.id] = first
        yield first, sentence


def _read_sentence(path: Path, block: list[NumberedLine], pos: str, fallback_id: str, beside: bool) -> Sentence:
    rows = [line for line in block if not line.text.startswith("#")]
    _check_columns(path, rows)
    tokens = _parse(path, block)
    words = [(line, token) for line, token in zip(rows, tokens, strict=True) if isinstance(token["id"], int)]
    if not words:
        raise malformed(path, block[0].number, "expected at least one word in the sentence, found none; remove it")
    _check_ids(path, rows, tokens)
    placeholder = tokens.metadata.get(PLACEHOLDER[0]) == PLACEHOLDER[1]
    further = {column: Layer("tags", _tags(path, words, column)) for column in TAGS if beside and column != pos}
    with on_lines(path, block):
        sentence = Sentence(
            id=tokens.metadata.get("sent_id") or fallback_id,
            words=tuple(token["form"] for _, token in words),
            pos=_tags(path, words, pos) if pos in TAGS else _feature(path, words, pos),
            dep=None if placeholder else _dependencies(path, words),
        )
        return sentence.with_layers(**further).validate()


def _check_columns(path: Path, rows: list[NumberedLine]) -> None:
    for line in rows:
        cells = line.text.split("\t")
        if len(cells) != len(COLUMNS):
            what = f"expected {len(COLUMNS)} columns between tabs, found {len(cells)}; repair the row {line.text!r}"
            raise malformed(path, line.number, what)
        if "" in cells:
            what = f"expected a value or _ in the column {COLUMNS[cells.index('')]}, found nothing; write _ for unknown"
            raise malformed(path, line.number, what)
        if "  " in line.text or line.text != line.text.strip():  # the conllu library would take these for columns
            raise malformed(
                path, line.number, f"expected single blanks inside columns only, found {line.text!r}; correct it"
            )


def _parse(path: Path, block: list[NumberedLine]) -> TokenList:
    try:
        text = "\n".join(line.text for line in block)
        return parse_token_and_metadata(text, fields=COLUMNS, field_parsers=_FIELD_PARSERS)
    except ParseException as error:
        for line in block:  # find the cell that is to blame: the library does not say
            cells = dict(zip(COLUMNS, line.text.split("\t"), strict=False))
            for column, wanted in _NUMBERS.items() if not line.text.startswith("#") else ():
                try:
                    _FIELD_PARSERS[column]([cells[column]], 0)
                except ParseException:
                    what = f"expected {wanted} in the column {column}, found {cells[column]!r}; correct the row"
                    raise malformed(path, line.number, what) from error
        raise malformed(path, block[0].number, f"expected a CoNLL-U sentence, found: {error}") from error


def _check_ids(path: Path, rows: list[NumberedLine], tokens: TokenList) -> None:
    """Words count 1, 2, 3 ...; a range n-m stands before word n and within the sentence; k.i follows word k."""
    words = sum(isinstance(token["id"], int) for token in tokens)
    last, range_end, empty = 0, 0, (0, 0)
    for line, token in zip(rows, tokens, strict=True):
        number = token["id"]
        if isinstance(number, int):
            good = number == last + 1
            last += good
        elif number is None:
            good = False
        elif number[1] == "-":
            good = number[0] == last + 1 and last >= range_end and number[2] <= words
            range_end = number[2]
        else:
            good = number[0] == last and number[2] == (empty[1] if empty[0] == last else 0) + 1
            empty = (number[0], number[2])
        if not good:
            found = line.text.split("\t", 1)[0]
            what = f"expected the id {last + 1} (or a range or empty node that fits there), found {found}; number anew"
            raise malformed(path, line.number, what)


def _tags(path: Path, words: list[tuple[NumberedLine, Any]], column: str) -> tuple[str, ...] | None:
    tags = [token[column] for _, token in words]
    missing = [line for line, token in words if token[column] == "_"]
    if len(missing) == len(words):
        return None
    if missing:
        what = f"expected a tag in the column {column}, found _ beside words that have one; tag all words"
        raise malformed(path, missing[0].number, what)
    return tuple(tags)


def _feature(path: Path, words: list[tuple[NumberedLine, Any]], name: str) -> tuple[str, ...]:
    tags = []
    for line, token in words:
        pairs = [pair.partition("=") for pair in token["feats"].split("|") if pair != "_"]
        if any(not value for _, _, value in pairs):
            raise malformed(path, line.number, f"expected features such as Case=Nom, found {token['feats']!r}")
        tags.append(next((value for key, _, value in pairs if key == name), "-"))
    return tuple(tags)


def _dependencies(path: Path, words: list[tuple[NumberedLine, Any]]) -> Dependencies | None:
    unknown = [line for line, token in words if token["head"] is None and token["deprel"] == "_"]
    if len(unknown) == len(words):
        return None
    for line, token in words:
        head, relation = token["head"], token["deprel"]
        if head is None or relation == "_":
            raise malformed(
                path, line.number, f"expected a head and a relation, found {head} and {relation}; give both"
            )
    with on_lines(path, [line for line, _ in words]):
        return tree([token["head"] for _, token in words], [token["deprel"] for _, token in words])
