"""CoNLL-U: words, tags and dependencies (https://universaldependencies.org/format.html)."""

import re
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats import (
    NumberedLine,
    Skip,
    blocks,
    check_text,
    malformed,
    on_lines,
    read_lines,
    sentence_id,
    skipping,
    tree,
)
from mtlprune.layers import Layer
from mtlprune.sentence import Dependencies, Sentence

COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
TAGS = ("upos", "xpos")
_NAMES = "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X"
UNIVERSAL = frozenset(_NAMES.split())
# Export writes this comment over a tree that only fills the columns; the reader then takes dep as unknown.
_PLACEHOLDER = re.compile(r"#\s*heads\s*=\s*placeholder\s*")
_NUMBER = "[1-9][0-9]{0,8}"
_NUMBERS = {
    "id": (rf"{_NUMBER}(-{_NUMBER})?|(0|{_NUMBER})\.{_NUMBER}", "a number such as 8, 8-9 or 8.1"),
    "head": (rf"_|0|{_NUMBER}", "the number of the head, 0 for the root,"),
}
Row = tuple[NumberedLine, dict[str, str]]
"""A line, and its cells by column."""


def universal(tags: Iterable[str]) -> bool:
    """Whether these are universal tags, which stand in the column UPOS; SYM and X alone could be of another set."""
    return UNIVERSAL.issuperset(found := set(tags)) and not found <= {"SYM", "X"}


def read_conllu(
    path: Path, pos: str = "xpos", beside: bool = False, skip: Skip | None = None, unread: Container[str] = ()
) -> Iterator[Sentence]:
    """Read sentences with ``pos`` (from the column ``xpos`` or ``upos``, or a feature such as ``Case``) and ``dep``.

    Words are the rows with plain numbers; multiword ranges and empty nodes are checked and left out. A column that is
    ``_`` for all words of a sentence makes that layer unknown. Sentences without ``# sent_id`` are named after the
    file and their place in it. Words without the feature have the tag ``-``.

    Args:
        beside: keep the other of the two columns as a layer ``upos`` or ``xpos`` of tags.
        skip: is told of a sentence that cannot be read, which is then left out; None has it raised.
        unread: layers to leave out.

    Raises:
        CorpusError: with file and line, for any row that is not CoNLL-U and any sentence that contradicts itself.
    """
    if pos not in TAGS and not pos[:1].isupper():
        what = "the tags of CoNLL-U come from the column xpos or upos, or from a feature such as Case"
        raise CorpusError(f"{what}, found {pos!r}; name one of them")
    yield from (sentence for _, sentence in read_blocks(Path(path), read_lines(path, skip), pos, skip, beside, unread))


def read_blocks(
    path: Path,
    lines: Iterable[NumberedLine],
    pos: str,
    skip: Skip | None,
    beside: bool = False,
    unread: Container[str] = (),
) -> Iterator[tuple[int, Sentence]]:
    """As :func:`read_conllu`, from lines; each sentence with the number of its first line."""
    seen: dict[str, int] = {}
    for count, block in enumerate(blocks(lines, skip, numbered=True), 1):
        with skipping(skip):
            check_text(path, block)
            sentence = _read_sentence(path, block, pos, f"{path.stem}-{count}", beside, unread)
            first = block[0].number
            if sentence.id in seen:
                what = f"the sent_id {sentence.id!r} was used at line {seen[sentence.id]} already; ids must be unique"
                raise malformed(path, first, what)
            seen[sentence.id] = first
            yield first, sentence


def _read_sentence(
    path: Path, block: list[NumberedLine], pos: str, fallback_id: str, beside: bool, unread: Container[str]
) -> Sentence:
    rows = [(line, _cells(path, line)) for line in block if not line.text.startswith("#")]
    words = [(line, token) for line, token in rows if token["id"].isdecimal()]
    if not words:
        raise malformed(path, block[0].number, "expected at least one word in the sentence, found none; remove it")
    _check_ids(path, rows, len(words))
    no_tree = "dep" in unread or any(_PLACEHOLDER.fullmatch(line.text) for line in block)
    beside_pos = [column for column in TAGS if beside and column != pos and column not in unread]
    further = {column: Layer("tags", _tags(path, words, column)) for column in beside_pos}
    tags: tuple[str, ...] | None = None
    if "pos" not in unread:
        tags = _tags(path, words, pos) if pos in TAGS else _feature(path, words, pos)
    with on_lines(path, block):
        sentence = Sentence(
            id=sentence_id(block) or fallback_id,
            words=tuple(token["form"] for _, token in words),
            pos=tags,
            dep=None if no_tree else _dependencies(path, words),
        )
        return sentence.with_layers(**further).validate()


def _cells(path: Path, line: NumberedLine) -> dict[str, str]:
    cells = line.text.split("\t")
    if len(cells) != len(COLUMNS):
        what = f"expected {len(COLUMNS)} columns between tabs, found {len(cells)}; repair the row {line.text!r}"
        raise malformed(path, line.number, what)
    if "" in cells:
        column = COLUMNS[cells.index("")]
        wanted, remedy = ("a value", "give it") if column in ("id", "form") else ("a value or _", "write _ for unknown")
        raise malformed(path, line.number, f"expected {wanted} in the column {column}, found nothing; {remedy}")
    if "  " in line.text or line.text != line.text.strip():
        raise malformed(
            path, line.number, f"expected single blanks inside columns only, found {line.text!r}; correct it"
        )
    token = dict(zip(COLUMNS, cells, strict=True))
    for column, (form, wanted) in _NUMBERS.items():
        if not re.fullmatch(form, token[column]):
            what = f"expected {wanted} in the column {column}, found {token[column]!r}; correct the row"
            raise malformed(path, line.number, what)
    return token


def _check_ids(path: Path, rows: list[Row], words: int) -> None:
    """Words count 1, 2, 3 ...; a range n-m stands before word n and within the sentence; k.i follows word k."""
    last, range_end, empty = 0, 0, (0, 0)
    for line, token in rows:
        number, mark, other = re.fullmatch(r"(\d+)([-.]?)(\d*)", token["id"]).groups()  # type: ignore[union-attr]
        first, second = int(number), int(other or 0)
        if not mark:
            good = first == last + 1
            last += good
        elif mark == "-":
            good = first == last + 1 and last >= range_end and second <= words
            range_end = second
        else:
            good = first == last and second == (empty[1] if empty[0] == last else 0) + 1
            empty = first, second
        if not good:
            fits = f"the id {last + 1} (or a range or empty node that fits there)"
            remedy = "put an empty line between sentences" if first == 1 and last else "number anew"
            raise malformed(path, line.number, f"expected {fits}, found {token['id']}; {remedy}")


def _tags(path: Path, words: list[Row], column: str) -> tuple[str, ...] | None:
    tags = [token[column] for _, token in words]
    missing = [line for line, token in words if token[column] == "_"]
    if len(missing) == len(words):
        return None
    if missing:
        what = f"expected a tag in the column {column}, found _ beside words that have one; tag all words"
        raise malformed(path, missing[0].number, what)
    return tuple(tags)


def _feature(path: Path, words: list[Row], name: str) -> tuple[str, ...]:
    tags = []
    for line, token in words:
        pairs = [pair.partition("=") for pair in token["feats"].split("|") if pair != "_"]
        if any(not value for _, _, value in pairs):
            raise malformed(path, line.number, f"expected features such as Case=Nom, found {token['feats']!r}")
        tags.append(next((value for key, _, value in pairs if key == name), "-"))
    return tuple(tags)


def _dependencies(path: Path, words: list[Row]) -> Dependencies | None:
    if all(token["head"] == token["deprel"] == "_" for _, token in words):
        return None
    for line, token in words:
        if "_" in (token["head"], token["deprel"]):
            found = f"{token['head']} and {token['deprel']}"
            raise malformed(path, line.number, f"expected a head and a relation, found {found}; give both")
    with on_lines(path, [line for line, _ in words]):
        return tree([int(token["head"]) for _, token in words], [token["deprel"] for _, token in words])
