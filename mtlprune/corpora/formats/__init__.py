"""Readers of raw corpora, with one file per format; this file has their common parts.

The common parts read text as numbered lines and blocks, so that every error can name the line. They split rows of
tables into cells, and check dependency trees.
"""

import contextlib
import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from mtlprune.corpora import CorpusError
from mtlprune.errors import MtlpruneError
from mtlprune.io.files import refuse_stand_in
from mtlprune.layers import Dependencies, find_cycle
from mtlprune.sentence import SentenceError

Tell = Callable[[str], None]
"""A function that reports a line of text to the user."""
Skip = Callable[[MtlpruneError], None]
"""A callback that receives the error of an unreadable sentence. The reader then continues with the next sentence."""
BLANKS = " \t"
"""The characters that separate columns. Any other space, such as a no-break space, is part of a word."""
SEPARATORS = {"\t": "tabs", ",": "commas", ";": "semicolons", " ": "blanks"}
"""Separator of the cells of a table → its name in messages; a blank means blanks and tabs."""
_CELL = re.compile(r"[^ \t]+")
_WORD_COLUMN = re.compile(r"words?|tokens?|forms?|text", re.I)
_LABEL_COLUMN = re.compile(
    r"(\w+[-_ ])?(pos|[ux]pos|tags?|labels?|ner|entit(y|ies)|ne[-_]\w[-\w]*|chunks?|iob2?|bio)", re.I
)


class NumberedLine(NamedTuple):
    """A line without its line break, and its number, counted from 1."""

    number: int
    text: str


def malformed(source: str | Path, line: int, problem: str, unit: str = "line") -> CorpusError:
    """Return the error that readers raise, with the message ``SOURCE, line N: PROBLEM``."""
    return CorpusError(f"{source}, {unit} {line}: {problem}")


class UnreadableSentence(CorpusError):
    """Raised if one sentence or tree cannot be read. With a callback ``skip``, the other sentences are read."""


@contextlib.contextmanager
def skipping(skip: Skip | None) -> Iterator[None]:
    """Pass an error in the ``with`` block, which reads one sentence, to ``skip``.

    If ``skip`` is None, raise the error as UnreadableSentence.
    """
    try:
        yield
    except MtlpruneError as error:
        if skip is None:
            raise UnreadableSentence(str(error)) from error
        skip(error)


def cells_of(text: str) -> list[str]:
    """Return the cells of a line whose columns are separated by blanks and tabs."""
    return _CELL.findall(text)


def separator_of(path: Path, rows: Iterable[str]) -> str:
    """Return the separator of the cells of a table.

    It is a tab if most rows contain a tab; a comma or semicolon if every row contains one, and the file is called .csv
    or contains no blank; and otherwise a blank, which means blanks and tabs.
    """
    size, signs = 0, Counter[str]()
    for size, text in enumerate(rows, 1):  # noqa: B007 (size is used after the loop)
        signs.update(sign for sign in SEPARATORS if sign in text)
    if 2 * signs["\t"] > size:
        return "\t"
    comma = size > 0 and (path.suffix.lower() == ".csv" or not signs[" "])
    return next((sign for sign in ",;" if comma and signs[sign] == size), " ")


def split_row(text: str, separator: str) -> list[str]:
    """Return the cells of a row. Quotes around cells are removed only if commas or semicolons separate the cells."""
    if separator == " ":
        return cells_of(text)
    cells = text.split(separator)
    if separator != "\t":
        # A row with faulty quotes keeps the cells of the plain split; their number is usually wrong and then reported.
        with contextlib.suppress(csv.Error):
            cells = next(csv.reader([text], delimiter=separator))
    return [cell.strip(" ") for cell in cells]


def join_row(cells: Iterable[str], separator: str) -> str:
    """Return the row that ``split_row`` splits into these cells."""
    if separator not in ",;":
        return separator.join(cells)
    row = io.StringIO()
    csv.writer(row, delimiter=separator, lineterminator="").writerow(cells)
    return row.getvalue()


def index_of_words(row: Sequence[str]) -> int | None:
    """Return the index of the words in a row that names the columns, such as ``token pos ner``; None for other rows."""
    index = next((index for index, cell in enumerate(row) if _WORD_COLUMN.fullmatch(cell)), len(row))
    return index if any(map(_LABEL_COLUMN.fullmatch, row[index + 1 :])) else None


def words_of(text: str) -> tuple[str, ...]:
    """Return the words of running text, which are separated by blanks and tabs. Other white space is not a word."""
    return tuple(word for word in cells_of(text) if word.strip())


def whole_number(text: str) -> int | None:
    """Return the number that a text of one to nine ASCII digits represents; None for any other text."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


class WordError(CorpusError):
    """An error in one word of a sentence.

    Args:
        index: the index of the word, from 0.
        problem: what is wrong with it.
    """

    def __init__(self, index: int, problem: str) -> None:
        super().__init__(f"word {index}: {problem}")
        self.index = index
        self.problem = problem


def checked_tree(heads: Sequence[int], relations: Sequence[str]) -> Dependencies:
    """Return checked dependencies, from the 1-based head of each word (0 for a root) and its relation.

    Raises WordError at a word without a relation, with a head outside of the sentence, or in a cycle.
    """
    if "_" in relations:
        problem = "expected a relation, found _ (unknown) and words that have a head; give all words a head"
        raise WordError(relations.index("_"), problem)
    if wrong := [index for index, head in enumerate(heads) if not 0 <= head <= len(heads)]:
        problem = f"expected a head from 0 to {len(heads)}, found {heads[wrong[0]]}; correct the row"
        raise WordError(wrong[0], problem)
    if cycle := find_cycle(heads):
        circle = " → ".join(map(str, [*cycle, cycle[0]]))
        raise WordError(
            cycle[0] - 1, f"the heads form a circle: {circle}; give one of these words another head (0 for the root)"
        )
    return Dependencies(tuple(heads), tuple(relations))


@contextlib.contextmanager
def on_lines(
    source: str | Path, rows: Sequence[tuple[int, Any]], column: str = "", unit: str = "line"
) -> Iterator[None]:
    """Convert errors of a sentence or word in the ``with`` block to errors that name the line.

    Args:
        rows: the rows of the words; the number of the line is the first item of each row.
        column: the text before errors of words, such as ``column head``.
        unit: what the numbers count.
    """
    try:
        yield
    except WordError as error:
        problem = f"{column}: {error}" if column else error.problem
        raise malformed(source, rows[error.index][0], problem, unit) from error
    except SentenceError as error:
        raise malformed(source, rows[0][0], str(error), unit) from error


def read_lines(path: Path, skip: Skip | None = None) -> Iterator[NumberedLine]:
    """Yield the lines of a UTF-8 file, which may contain a byte order mark and CRLF, and need not end in a line break.

    Args:
        skip: if given, lines that are not UTF-8 are yielded too, so that :func:`check_text` raises the error for their
            sentence alone.

    Raises:
        CorpusError: the file is missing, unreadable, not UTF-8, a pipe or device, or only a pointer of Git LFS.
    """
    number, raw = 0, b"\n"
    try:
        refuse_stand_in(Path(path), CorpusError)
        with Path(path).open("rb") as stream:
            for number, raw in enumerate(stream, 1):
                yield decode_line(raw, number, path, skip)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise CorpusError(f"{path}: expected a readable file, found: {reason}; check the path") from error
    # A file that ends in a line break yields one more, empty line. It ends the last block, which need not be followed
    # by a blank line.
    if raw.endswith(b"\n"):
        yield NumberedLine(number + 1, "")


def decode_lines(data: bytes, source: str | Path) -> Iterator[NumberedLine]:
    """Yield the lines of bytes that were read elsewhere, such as from an archive; errors name ``source``."""
    for number, raw in enumerate(data.split(b"\n"), 1):
        yield decode_line(raw, number, source)


def decode_line(raw: bytes, number: int, source: str | Path, skip: Skip | None = None) -> NumberedLine:
    """Return a line without its line break, and the first line without a byte order mark.

    Raises CorpusError if it is not UTF-8, unless ``skip`` is given. Faulty bytes then become surrogates, which
    :func:`check_text` finds.
    """
    raw = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
    line = NumberedLine(number, raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "surrogateescape"))
    if skip is None:
        check_text(source, [line])
    return line


def check_text(source: str | Path, lines: Iterable[NumberedLine]) -> None:
    """Raise UnreadableSentence if a line was not UTF-8 in its file."""
    for line in lines:
        raw = line.text.encode("utf-8", "surrogateescape")
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            problem = f"expected UTF-8 text, found byte {error.start} = 0x{raw[error.start]:02x}; convert the file"
            raise UnreadableSentence(str(malformed(source, line.number, problem))) from error


def blocks(
    lines: Iterable[NumberedLine], skip: Skip | None = None, numbered: bool = False
) -> Iterator[list[NumberedLine]]:
    """Yield the runs of lines between blank lines.

    Args:
        skip: if given, comments that begin a sentence also begin a block, so that a missing blank line spoils only one
            sentence. Comments begin a sentence if they contain ``# sent_id``, or, in ``numbered`` files, if the next
            row has the number 1.
        numbered: whether rows begin with the number of their word.
    """
    for blank, run in groupby(lines, lambda line: not line.text.strip(BLANKS)):
        block = list(run)
        if not blank:
            yield from [block] if skip is None else _cut_at_comments(block, numbered)


def _cut_at_comments(block: list[NumberedLine], numbered: bool) -> Iterator[list[NumberedLine]]:
    """Yield the parts of a block that begin with the comments of a sentence."""
    comments = [line.text.startswith("#") for line in block]
    begin = 0
    for index in range(1, len(block)):
        if comments[index] and not comments[index - 1]:
            row = next((k for k in range(index, len(block)) if not comments[k]), len(block))
            first = numbered and any(re.match(r"1(-[0-9]+)?[ \t]", line.text) for line in block[row : row + 1])
            if first or sentence_id(block[index:row]):
                yield block[begin:index]
                begin = index
    yield block[begin:]


def sentence_id(block: Iterable[NumberedLine]) -> str | None:
    """Return the id in the comment ``# sent_id = ID`` of a block, or None if there is none."""
    matches = (re.fullmatch(r"#[ \t]*sent_id[ \t]*=[ \t]*([^ \t].*?)[ \t]*", line.text) for line in block)
    return next((match[1] for match in matches if match), None)


def files_below(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield all files below a folder and below linked folders, except for links back to a folder above.

    Raises CorpusError if a folder cannot be read.
    """
    above = (*above, folder.resolve())
    try:
        entries = list(folder.iterdir())
    except OSError as error:
        raise CorpusError(
            f"{folder}: expected a folder that can be read, found: {error.strerror}; check its permissions"
        ) from error
    for path in entries:
        if not path.is_dir():
            yield path
        elif path.resolve() not in above:
            yield from files_below(path, above)
