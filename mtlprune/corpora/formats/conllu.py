"""Read CoNLL-U and CoNLL-U Plus: words, tags and dependencies (https://universaldependencies.org/format.html)."""

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mtlprune.corpora import CorpusError, formats
from mtlprune.corpora.formats.columns import FileColumn, Notation
from mtlprune.layers import LAYERS, OF_SENTENCES, Layer, LayerError, check_layer
from mtlprune.sentence import Dependencies, Sentence, Span

COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
TAGS = ("upos", "xpos")
_NAMES = "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X"
_UNIVERSAL = frozenset(_NAMES.split())
# Export writes this comment above a tree that only fills the columns. The reader then leaves dep unknown.
PLACEHOLDER = re.compile(r"#\s*heads\s*=\s*placeholder\s*")
_HEADER = re.compile(r"#[ \t]*global\.columns[ \t]*=[ \t]*(.*?)[ \t]*")
_NUMBER = "[1-9][0-9]{0,8}"
_ID = re.compile(rf"{_NUMBER}(-({_NUMBER}))?|(0|{_NUMBER})\.{_NUMBER}")


class Row(NamedTuple):
    """A line with ten columns, and column → cell."""

    line: formats.NumberedLine
    cells: dict[str, str]


class ConlluBlock(NamedTuple):
    """The lines of a sentence: its words, and its rows, whose annotation is not read yet.

    Attributes:
        sentence: the words and the id, with all lines as ``source``.
        rows: all lines except comments.
        first: the number of the first line.
    """

    sentence: Sentence
    rows: list[Row]
    first: int

    def words(self) -> list[Row]:
        """Return the rows of words, without multiword tokens and empty nodes."""
        return [row for row in self.rows if row.cells["id"].isdecimal()]


def are_universal(tags: Iterable[str]) -> bool:
    """Return True if all tags are universal tags, which are written to UPOS.

    SYM and X alone do not count as universal, because other tag sets also contain these two. Without tags, the result
    is False.
    """
    return _UNIVERSAL.issuperset(tagset := set(tags)) and not tagset <= {"SYM", "X"}


def read_conllu(
    path: Path,
    pos: str = "xpos",
    keep_other_tags: bool = False,
    misc: Mapping[str, FileColumn] | None = None,
    comments: Mapping[str, FileColumn] | None = None,
    repair: bool = False,
    tell: formats.Tell = lambda line: None,
    skip: formats.Skip | None = None,
    unread_layers: Container[str] = (),
) -> Iterator[Sentence]:
    """Read sentences with the layers ``pos`` and ``dep``.

    Words are the rows with plain numbers. Multiword tokens and empty nodes are checked, and kept only in the source of
    the sentence. If a column is ``_`` for all words of a sentence, its layer is unknown. Sentences without
    ``# sent_id`` are named after the file and their position in it.

    Args:
        pos: the source of ``pos``: the column ``xpos`` or ``upos``, or a feature such as ``Case``. Words without the
            feature have the tag ``-``.
        keep_other_tags: whether to keep the other column of tags (both columns if ``pos`` is a feature) as a layer
            ``upos`` or ``xpos``, in the sentences where every word has a tag there.
        misc: key in MISC → the layer of tags or spans under this key. The value of a multiword token applies to its
            words. In a layer of spans, words without the key are outside of spans if the key never has the value O in
            the file; otherwise words without the key are unknown.
        comments: key of a comment ``# KEY = VALUE`` → the layer of whole sentences under this key. A value of
            ``meta::KEY`` applies to all sentences up to the next ``# newdoc``. Without a value, or with ``_``, the
            layer is unknown.
        repair: read tags of spans like conlleval: a tag that continues no span opens one.
        tell: receives what was left out or converted.
        skip, unread_layers: as in ``read_columns``.

    Raises:
        CorpusError: a row is not CoNLL-U, or the annotation of a sentence is inconsistent; the message names the line.
            The error is also raised if a key of ``misc`` or ``comments`` occurs nowhere, or if ``keep_other_tags`` is
            True, ``pos`` is not ``upos``, and no word has a tag.
    """
    if pos not in TAGS and not pos[:1].isupper():
        problem = "the tags of CoNLL-U come from the column xpos or upos, or from a feature such as Case"
        raise CorpusError(f"{problem}, found {pos!r}; name one of them")
    path = Path(path)
    misc_layers = _MiscLayers(path, _without_unread(unread_layers, misc), repair)
    comment_layers = _CommentLayers(path, _without_unread(unread_layers, comments))
    other_tags = _OtherTags(path, [c for c in TAGS if keep_other_tags and c != pos and c not in unread_layers])
    tags, trees = "pos" not in unread_layers, "dep" not in unread_layers
    count, tagged = 0, not keep_other_tags or not tags or pos == "upos"
    lines = comment_layers.watch(formats.read_lines(path, skip))
    for count, block in enumerate(read_blocks(path, lines, skip, tell), 1):  # noqa: B007 (used after the loop)
        with formats.skipping(skip):
            words = block.words()
            layers: dict[str, Any] = {"dep": _dependencies(path, block)} if trees else {}
            if tags:
                layers["pos"] = _tags(path, words, pos) if pos in TAGS else _feature(path, words, pos)
                tagged = tagged or bool({*(layers["pos"] or "-")} - {"-"})
            layers |= other_tags.layers(words) | misc_layers.layers(block) | comment_layers.layers(block)
            with formats.on_lines(path, [row.line for row in words]):
                yield block.sentence.with_layers(**layers).validate()
    if not tagged:
        raise CorpusError(
            f"{path}: expected {pos} at some word, found none; give --pos upos, or another column or feature"
        )
    other_tags.tell(tell, count)
    misc_layers.tell(tell)
    comment_layers.check()


def read_blocks(
    path: Path, lines: Iterable[formats.NumberedLine], skip: formats.Skip | None, tell: formats.Tell
) -> Iterator[ConlluBlock]:
    """Yield the words and rows of each sentence. Ids and words are checked, but not the annotation.

    Args:
        skip: receives the error of a sentence that cannot be read, which is then left out. If None, the error is
            raised.
        tell: receives how rows with more or fewer columns than ten are read.
    """
    columns: tuple[str, ...] = COLUMNS
    notes, count = {""}, 0
    for block in formats.blocks(lines, skip, numbered=True):
        with formats.skipping(skip):
            formats.check_text(path, block)
            if (header := _header(path, block)) is not None:
                columns = header
                if len(block) == 1:
                    continue
            count += 1
            block, columns_found = _ten_columns(path, block, columns)
            if columns_found not in notes:
                notes.add(columns_found)
                tell(f"{path}: {columns_found}")
            yield _checked(path, block, f"{path.stem}-{count}")


def _header(path: Path, block: Iterable[formats.NumberedLine]) -> tuple[str, ...] | None:
    """Return the columns that ``# global.columns`` names, or None without this comment.

    The ten standard names are returned in lower case.

    Raises:
        CorpusError: ID or FORM is missing, or a name occurs twice.
    """
    for line in block:
        if match := _HEADER.fullmatch(line.text):
            names = formats.cells_of(match[1])
            columns = tuple(name.lower() if name.lower() in COLUMNS else name for name in names)
            if not {"id", "form"} <= set(columns) or len(set(columns)) < len(columns):
                problem = f"expected ID, FORM and no name twice in global.columns, found {match[1][:80]!r}"
                raise formats.malformed(path, line.number, f"{problem}; correct the line")
            return columns
    return None


def _ten_columns(
    path: Path, block: Sequence[formats.NumberedLine], columns: tuple[str, ...]
) -> tuple[list[formats.NumberedLine], str]:
    """Convert the rows of a block to the ten columns of CoNLL-U. Other named columns become keys of MISC.

    Returns:
        the lines of the block, and a note for the user about the conversion (empty if there was none).
    """
    rows = [line for line in block if not line.text.startswith("#")]
    if columns == COLUMNS:
        # The smallest width counts, because a single row that is longer is an error in this row, and not a format with
        # more columns.
        width = min((line.text.count("\t") + 1 for line in rows), default=0)
        return _without_unnamed(path, block, rows, width) if width > len(COLUMNS) else (list(block), "")
    lines = []
    for line in block:
        if line in rows:
            cells = dict.fromkeys(COLUMNS, "_") | _row_by_names(path, line, columns)
            for name in columns:
                if name not in COLUMNS and (cell := cells.pop(name)) != "_":
                    cells["misc"] = with_key(cells["misc"], name, cell)
            lines.append(line._replace(text="\t".join(cells.values())))
        elif not _HEADER.fullmatch(line.text):
            lines.append(line)
    names = ", ".join(name for name in columns if name not in COLUMNS)
    advice = "--misc COLUMN=LAYER of data build makes a layer of one"
    return lines, names and f"the columns {names} of CoNLL-U Plus are read as keys of MISC; {advice}"


def _without_unnamed(
    path: Path, block: Iterable[formats.NumberedLine], rows: Sequence[formats.NumberedLine], width: int
) -> tuple[list[formats.NumberedLine], str]:
    """Return a block without the cells after MISC, and a note for the user.

    Raises CorpusError if UPOS contains other tags or DEPS contains numbers, as in CoNLL-2009, because the columns are
    then not those of CoNLL-U.
    """
    ten = {line.number: line.text.split("\t")[: len(COLUMNS)] for line in rows}
    universal_tags = {*_UNIVERSAL, "_"}
    if any(cells[3] not in universal_tags or cells[8].isdecimal() for cells in ten.values()):
        problem = f"expected 10 columns between tabs, found {width}, and no line # global.columns = ID FORM ..."
        advice = "write such a line at the top, or read CoNLL-2009 and the like by `mtlprune data build columns`"
        raise formats.malformed(path, rows[0].number, f"{problem}; {advice}")
    note = "columns after the tenth have no name (as in Universal Propositions) and are left out"
    lines = [line._replace(text="\t".join(ten[line.number])) if line.number in ten else line for line in block]
    return lines, note


def _row_by_names(path: Path, line: formats.NumberedLine, columns: Sequence[str]) -> dict[str, str]:
    """Return the cell of a row for each column. Raises CorpusError unless there are as many cells as columns."""
    cells = line.text.split("\t")
    if len(cells) != len(columns):
        problem = f"expected {len(columns)} columns between tabs, found {len(cells)}; repair the row {line.text[:80]!r}"
        raise formats.malformed(path, line.number, problem)
    return dict(zip(columns, cells, strict=True))


def _checked(path: Path, block: Sequence[formats.NumberedLine], name: str) -> ConlluBlock:
    """Return the checked words of a block, with the id ``name`` if no comment contains an id. Raises CorpusError."""
    rows = [Row(line, _row_by_names(path, line, COLUMNS)) for line in block if not line.text.startswith("#")]
    for line, cells in rows:
        for column in ("id", "form"):
            if not cells[column]:
                problem = f"expected a value in the column {column}, found nothing; write a value"
                raise formats.malformed(path, line.number, problem)
        if "  " in cells["form"] or cells["form"] != cells["form"].strip(" "):
            problem = f"expected only single blanks inside words, found {cells['form'][:80]!r}; correct it"
            raise formats.malformed(path, line.number, problem)
    _check_ids(path, rows)
    words = [row for row in rows if row.cells["id"].isdecimal()]
    if not words:
        raise formats.malformed(
            path, block[0].number, "expected at least one word in the sentence, found none; remove the sentence"
        )
    source = "\n".join(line.text for line in block)
    with formats.on_lines(path, [row.line for row in words]):
        forms = tuple(row.cells["form"] for row in words)
        return ConlluBlock(
            Sentence(formats.sentence_id(block) or name, forms, source=source).validate(), rows, block[0].number
        )


def _check_ids(path: Path, rows: Sequence[Row]) -> None:
    """Raise CorpusError unless words count 1, 2, 3 ..., and multiword tokens n-m come between words n-1 and n.

    Empty nodes k.i may be anywhere.
    """
    last, size = 0, sum(row.cells["id"].isdecimal() for row in rows)
    for line, cells in rows:
        match = _ID.fullmatch(cells["id"])
        if match is None:
            problem = f"expected a number such as 8, 8-9 or 8.1 in the column id, found {cells['id'][:20]!r}"
            raise formats.malformed(path, line.number, f"{problem}; correct the row")
        if match[2] and not (cells["id"].startswith(f"{last + 1}-") and last < int(match[2]) <= size):
            problem = f"expected the words of a multiword token, from {last + 1} to {size} at most, found {cells['id']}"
            raise formats.malformed(path, line.number, f"{problem}; number the words again")
        if cells["id"].isdecimal():
            last += 1
            if int(cells["id"]) != last:
                remedy = "put an empty line between sentences" if cells["id"] == "1" else "number anew"
                raise formats.malformed(path, line.number, f"expected the id {last}, found {cells['id']}; {remedy}")


def _untagged(words: Iterable[Row], column: str) -> list[Row]:
    """Return the rows of words without a tag: ``_``, an empty cell, or several words separated by blanks."""
    return [row for row in words if row.cells[column] == "_" or len(row.cells[column].split()) != 1]


def _tags(path: Path, words: Sequence[Row], column: str) -> tuple[str, ...] | None:
    missing = _untagged(words, column)
    if all(row.cells[column] in ("", "_") for row in words):
        return None
    if missing:
        actual = f"found {missing[0].cells[column] or 'nothing'} next to tagged words; tag all words"
        raise formats.malformed(path, missing[0].line.number, f"expected a tag in the column {column}, {actual}")
    return tuple(row.cells[column] for row in words)


def _feature(path: Path, words: Iterable[Row], name: str) -> tuple[str, ...]:
    tags = []
    for line, cells in words:
        pairs = [pair.partition("=") for pair in cells["feats"].split("|") if pair not in ("", "_")]
        if any(not value for _, _, value in pairs):
            raise formats.malformed(path, line.number, f"expected features such as Case=Nom, found {cells['feats']!r}")
        tags.append(next((value for key, _, value in pairs if key == name), "-"))
    return tuple(tags)


def _dependencies(path: Path, block: ConlluBlock) -> Dependencies | None:
    words = block.words()
    pairs = [(row.cells["head"], row.cells["deprel"]) for row in words]
    placeholder = any(map(PLACEHOLDER.fullmatch, block.sentence.source.split("\n")))
    if placeholder or all({*pair} <= {"", "_"} for pair in pairs):
        return None
    for (line, _), (head, relation) in zip(words, pairs, strict=True):
        if {head, relation} & {"", "_"}:
            problem = (
                f"expected a head and a relation, found {head or 'nothing'} and {relation or 'nothing'}; give both"
            )
            raise formats.malformed(path, line.number, problem)
        if formats.whole_number(head) is None:
            problem = f"expected the number of the head (0 for the root) in the column head, found {head[:20]!r}"
            raise formats.malformed(path, line.number, f"{problem}; correct the row")
    with formats.on_lines(path, [row.line for row in words]):
        return formats.checked_tree([int(head) for head, _ in pairs], [relation for _, relation in pairs])


# -- Comments ----------------------------------------------------------------------------------------------------------


class _CommentLayers:
    """Reads layers of whole sentences from comments."""

    DOCUMENT = "meta::"

    def __init__(self, path: Path, columns: Mapping[str, FileColumn]) -> None:
        self._path, self._columns = path, columns
        self._of_document: dict[str, str] = {}
        self._keys_not_met = set(columns)

    def watch(self, lines: Iterable[formats.NumberedLine]) -> Iterator[formats.NumberedLine]:
        """Yield the lines unchanged, and remember the values of comments that apply to the whole document.

        This happens before lines are grouped into sentences. If the first sentence of a document cannot be read, the
        next sentence therefore does not get the values of the previous document.
        """
        for line in lines:
            if line.text.startswith("#"):
                if re.match(r"#[ \t]*newdoc\b", line.text):
                    self._of_document = {}
                for key, value in _comment(line.text).items():
                    if key.startswith(self.DOCUMENT):
                        self._of_document[key] = value
            yield line

    def layers(self, block: ConlluBlock) -> dict[str, Layer]:
        """Return the layers that are known in a sentence, by name."""
        values_now, layers = dict(self._of_document), {}
        for line in block.sentence.source.split("\n") if self._columns else ():
            values_now |= _comment(line)
        for key, column in self._columns.items():
            try:
                value = OF_SENTENCES[column.kind].read(values_now.get(key, "_"))
            except ValueError as error:
                raise formats.malformed(self._path, block.first, f"comment {key}: {error}") from None
            if value is not None:
                layers[column.name] = Layer(column.kind, value)
                self._keys_not_met.discard(key)
        return layers

    def check(self) -> None:
        """Raise CorpusError if no sentence had a value for one of the keys."""
        if missing_keys := [key for key in self._columns if key in self._keys_not_met]:
            problem = f"expected # {missing_keys[0]} = ... at some sentence, found none; check the key"
            raise CorpusError(f"{self._path}: {problem}")


def _comment(line: str) -> dict[str, str]:
    match = re.fullmatch(r"#[ \t]*([^ \t=]+)[ \t]*=[ \t]*(.*?)[ \t]*", line)
    return {match[1]: match[2]} if match else {}


# -- MISC --------------------------------------------------------------------------------------------------------------


def keys_of(misc: str) -> dict[str, str]:
    """Return the values of MISC by key, with the escapes ``\\p`` (for |) and ``\\\\`` (for a backslash) resolved."""
    pairs = (part.partition("=") for part in misc.split("|") if "=" in part)
    return {key: re.sub(r"\\([p\\])", lambda m: m[1].replace("p", "|"), value) for key, _, value in pairs}


def with_key(misc: str, key: str, value: str) -> str:
    """Return MISC with a new value of a key, after all other keys."""
    parts = [part for part in misc.split("|") if part not in ("", "_") and part.partition("=")[0] != key]
    escaped = value.replace("\\", "\\\\").replace("|", "\\p")
    return "|".join([*parts, f"{key}={escaped}"])


def parse_misc(texts: Iterable[str]) -> dict[str, FileColumn]:
    """Return the layer of each key of MISC, from texts such as ``chunk=chunk:spans``. Raises CorpusError."""
    misc = _keys("--misc", texts, ("tags", "spans"), "", "KEY=ner, or KEY=LAYER:spans, KEY=LAYER:tags")
    for key, column in misc.items():
        if column.name in (*TAGS, "pos"):
            problem = "expected a layer of spans or tags other than pos, upos and xpos"
            raise CorpusError(f"--misc {key}={column.name}: {problem}; choose another name")
    return misc


def parse_comments(texts: Iterable[str]) -> dict[str, FileColumn]:
    """Return the layer of each key, from texts such as ``score=rating:number``. Raises CorpusError."""
    return _keys("--comment", texts, tuple(OF_SENTENCES), "label", "KEY=LAYER, or KEY=LAYER:number, KEY=LAYER:labels")


def _keys(option: str, texts: Iterable[str], kinds: Sequence[str], default: str, form: str) -> dict[str, FileColumn]:
    """Return the layer of each key from the values ``KEY=LAYER[:KIND]`` of an option. Raises CorpusError.

    Args:
        kinds: the permitted kinds.
        default: the kind of layers without ``KIND``, except for the five standard layers.
        form: the correct form, for errors.
    """
    columns: dict[str, FileColumn] = {}
    for text in texts:
        key, _, layer = text.rpartition("=")
        name, _, kind = layer.partition(":")
        kind = kind or LAYERS.get(name, default)
        try:
            check_layer(name, kind)
        except LayerError as error:
            raise CorpusError(f"{option} {text}: {error}; write {form}") from None
        if not key or kind not in kinds:
            problem = f"expected a key and a layer of the kind {' or '.join(kinds)}"
            raise CorpusError(f"{option} {text}: {problem}; write {form}")
        if key in columns or name in {column.name for column in columns.values()}:
            raise CorpusError(f"{option} {text}: found the key or the layer twice; name each once")
        columns[key] = FileColumn(name, kind)
    return columns


def _silent(problem: object) -> None:
    """Ignore a message."""


class _Unit(NamedTuple):
    """A unit that MISC annotates: a word, or a multiword token over the words from ``start`` to ``end - 1``.

    ``value`` is the value of the key, or None if the unit lacks the key.
    """

    line: formats.NumberedLine
    start: int
    end: int
    value: str | None


def _units(block: ConlluBlock, key: str) -> list[_Unit]:
    """Return the units of a sentence under a key of MISC.

    A multiword token is a unit if it has the key and none of its words does. Otherwise its words are the units.
    """
    values = {row.cells["id"]: keys_of(row.cells["misc"]).get(key) for row in block.rows}
    units: list[_Unit] = []
    for line, cells in block.rows:
        first, mark, last = cells["id"].partition("-")
        if "." in first or (units and int(first) <= units[-1].end):
            continue
        end = int(last or first)
        if not mark or (
            values[cells["id"]] is not None and not any(values[str(n)] for n in range(int(first), end + 1))
        ):
            units.append(_Unit(line, int(first) - 1, end, values[cells["id"]]))
    return units


def _without_unread(unread_layers: Container[str], columns: Mapping[str, FileColumn] | None) -> dict[str, FileColumn]:
    return {key: column for key, column in (columns or {}).items() if column.name not in unread_layers}


class _OtherTags:
    """Reads layers of tags from UPOS and XPOS, in the sentences where every word has a tag."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._path, self._columns, self._partly = path, columns, Counter[str]()

    def layers(self, words: Sequence[Row]) -> dict[str, Layer]:
        """Return the layers of a sentence by name. A column is left out, and counted, if only some words have a tag."""
        layers = {}
        for column in self._columns:
            if untagged := _untagged(words, column):
                self._partly[column] += len(untagged) < len(words)
            else:
                layers[column] = Layer("tags", tuple(row.cells[column] for row in words))
        return layers

    def tell(self, tell: formats.Tell, sentences: int) -> None:
        """Report in how many sentences tags were left out.

        Args:
            tell: receives the lines of the report.
            sentences: the number of sentences that were read.
        """
        for column in filter(self._partly.get, self._columns):
            tell(
                f"{self._path}: {column}: tags were left out in {self._partly[column]} of {sentences} sentences, in "
                "which some words have none"
            )


class _MiscLayers:
    """Reads layers of tags and spans from MISC. The notation of spans is inferred from the whole file first."""

    def __init__(self, path: Path, misc: Mapping[str, FileColumn], repair: bool) -> None:
        self._path, self._misc = path, misc
        rows: dict[str, list[list[str | None]]] = {key: [] for key in misc}
        for block in read_blocks(path, formats.read_lines(path, _silent), _silent, _silent) if misc else ():
            for key in misc:
                rows[key].append([unit.value for unit in _units(block, key)])
        for key, sentences in rows.items():
            if all(value is None for values in sentences for value in values):
                raise CorpusError(f"{path}: expected {key}=... in MISC at some word, found none; check the key")
        self._absent = {
            key: "O" if column.kind == "spans" and not any("O" in values for values in rows[key]) else "_"
            for key, column in misc.items()
        }
        tags = {misc[key]: [[value or "O" for value in values] for values in rows[key]] for key in misc}
        self._notation = Notation(list(misc.values()), tags.__getitem__, repair)

    def layers(self, block: ConlluBlock) -> dict[str, Any]:
        """Return the layers that are known in a sentence, by name."""
        layers = {}
        for key, column in self._misc.items():
            units = _units(block, key)
            values = [self._absent[key] if unit.value is None else unit.value for unit in units]
            if set(values) == {"_"}:
                continue
            with formats.on_lines(self._path, [unit.line for unit in units], f"MISC, {key}"):
                if "_" in values:
                    problem = f"expected {key}=... in MISC, found none next to words that have it; give it to all words"
                    raise formats.WordError(values.index("_"), problem)
                if column.kind == "tags":
                    pairs = zip(units, values, strict=True)
                    value: Any = tuple(tag for unit, tag in pairs for _ in range(unit.start, unit.end))
                else:
                    spans = self._notation.spans(column.name, values)
                    value = tuple(Span(units[s.start].start, units[s.end - 1].end, s.label) for s in spans)
            layers[column.name] = Layer(column.kind, value)
        return layers

    def tell(self, tell: formats.Tell) -> None:
        """Report which layers were converted."""
        for line in self._notation.converted():
            tell(f"{self._path}: {line}")
