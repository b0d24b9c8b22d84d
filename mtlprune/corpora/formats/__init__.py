"""Readers of raw corpora, a file each; here text by lines and blocks, with the line numbers that every error names."""

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

Skip = Callable[[MtlpruneError], None]
"""Gets the error of a sentence that cannot be read; the sentence is then left out."""
BLANKS = " \t"
"""The characters that separate columns. A word may hold any other space, such as a no-break space."""
SEPARATORS = {"\t": "tabs", ",": "commas", ";": "semicolons", " ": "blanks"}
_CELL = re.compile(r"[^ \t]+")
_OF_WORDS = re.compile(r"words?|tokens?|forms?|text", re.I)
_OF_LABELS = re.compile(
    r"(\w+[-_ ])?(pos|[ux]pos|tags?|labels?|ner|entit(y|ies)|ne[-_]\w[-\w]*|chunks?|iob2?|bio)", re.I
)


class NumberedLine(NamedTuple):
    """One line without its line break, and its number counted from 1."""

    number: int
    text: str


def malformed(source: str | Path, line: int, problem: str, unit: str = "line") -> CorpusError:
    """The error every reader raises: ``FILE, line N: what``."""
    return CorpusError(f"{source}, {unit} {line}: {problem}")


class UnreadableSentence(CorpusError):
    """One sentence or tree cannot be read; with ``skip``, which gets the error, the others are read."""


@contextlib.contextmanager
def skipping(skip: Skip | None) -> Iterator[None]:
    """Tell ``skip`` of an error in the body, which reads one sentence; None raises it as UnreadableSentence."""
    try:
        yield
    except MtlpruneError as error:
        if skip is None:
            raise UnreadableSentence(str(error)) from error
        skip(error)


def cells_of(text: str) -> list[str]:
    """The columns of a line between blanks and tabs."""
    return _CELL.findall(text)


def separator_of(path: Path, rows: Iterable[str]) -> str:
    """What stands between the columns of a table: tabs where most rows have one; commas or semicolons where every row
    has one and the file is called .csv or has no blanks; else blanks."""
    size, signs = 0, Counter[str]()
    for size, text in enumerate(rows, 1):  # noqa: B007 (counted)
        signs.update(sign for sign in SEPARATORS if sign in text)
    if 2 * signs["\t"] > size:
        return "\t"
    comma = size > 0 and (path.suffix.lower() == ".csv" or not signs[" "])
    return next((sign for sign in ",;" if comma and signs[sign] == size), " ")


def split_row(text: str, separator: str) -> list[str]:
    """The cells of a row. Quotes around a cell count in tables with commas or semicolons alone."""
    if separator == " ":
        return cells_of(text)
    cells = text.split(separator)
    if separator != "\t":
        with contextlib.suppress(csv.Error):  # what cannot be read so has another number of cells
            cells = next(csv.reader([text], delimiter=separator))
    return [cell.strip(" ") for cell in cells]


def join_row(cells: Iterable[str], separator: str) -> str:
    """Return the row that ``split_row`` reads these cells from."""
    if separator not in ",;":
        return separator.join(cells)
    row = io.StringIO()
    csv.writer(row, delimiter=separator, lineterminator="").writerow(cells)
    return row.getvalue()


def place_of_words(row: Sequence[str]) -> int | None:
    """The place of the words in a row that names the columns, as ``token pos ner`` does; None for any other row."""
    place = next((place for place, cell in enumerate(row) if _OF_WORDS.fullmatch(cell)), len(row))
    return place if any(map(_OF_LABELS.fullmatch, row[place + 1 :])) else None


def words_of(text: str) -> tuple[str, ...]:
    """Running text split at blanks and tabs, as all files are; what other space stands alone is no word."""
    return tuple(word for word in cells_of(text) if word.strip())


def whole_number(text: str) -> int | None:
    """The number that one to nine of the digits 0 to 9 write; None for any other text."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


class WordError(CorpusError):
    """A mistake at the word ``place`` of a sentence, counted from 0."""

    def __init__(self, place: int, problem: str) -> None:
        super().__init__(f"word {place}: {problem}")
        self.place = place
        self.problem = problem


def tree(heads: Sequence[int], relations: Sequence[str]) -> Dependencies:
    """Dependencies whose words all lead to a root. Raises WordError at a word that does not, or has no relation."""
    if "_" in relations:
        problem = "expected a relation, found _ (unknown) and words that have a head; give all words a head"
        raise WordError(relations.index("_"), problem)
    if wrong := [place for place, head in enumerate(heads) if not 0 <= head <= len(heads)]:
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
    """Turn what is wrong with a sentence, or at one of its words, into an error that names the line. ``rows``: of the
    words, each with the number of its line first."""
    try:
        yield
    except WordError as error:
        problem = f"{column}: {error}" if column else error.problem
        raise malformed(source, rows[error.place][0], problem, unit) from error
    except SentenceError as error:
        raise malformed(source, rows[0][0], str(error), unit) from error


def read_lines(path: Path, skip: Skip | None = None) -> Iterator[NumberedLine]:
    """The lines of a UTF-8 file, with or without BOM, CRLF and a last newline. ``skip``: where given, a line that is
    not UTF-8 is passed on, for :func:`check_text` to refuse with its sentence. Raises CorpusError: the file is missing,
    unreadable or not UTF-8."""
    number, raw = 0, b"\n"
    try:
        refuse_stand_in(Path(path), CorpusError)
        with Path(path).open("rb") as stream:
            for number, raw in enumerate(stream, 1):
                yield decode_line(raw, number, path, skip)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise CorpusError(f"{path}: expected a readable file, found: {reason}; check the path") from error
    # A file that ends in a line break yields one more, empty line, by which a last block without a blank line behind
    # it is closed.
    if raw.endswith(b"\n"):
        yield NumberedLine(number + 1, "")


def decode_lines(data: bytes, source: str | Path) -> Iterator[NumberedLine]:
    """The lines of bytes that were read elsewhere, as from :func:`read_lines`; ``source`` names them in errors."""
    for number, raw in enumerate(data.split(b"\n"), 1):
        yield decode_line(raw, number, source)


def decode_line(raw: bytes, number: int, source: str | Path, skip: Skip | None = None) -> NumberedLine:
    """One line, with or without its end; the first one may begin with a BOM. Raises CorpusError, but for ``skip``."""
    raw = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
    line = NumberedLine(number, raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "surrogateescape"))
    if skip is None:
        check_text(source, [line])
    return line


def check_text(source: str | Path, lines: Iterable[NumberedLine]) -> None:
    """Raise UnreadableSentence at a line that was not UTF-8 in its file."""
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
    """Runs of lines between blank lines. ``skip``: where given, a block also ends where comments within it begin
    another sentence: ``# sent_id`` is among them, or the row after them has the number 1 in a file whose rows are
    ``numbered``."""
    for blank, run in groupby(lines, lambda line: not line.text.strip(BLANKS)):
        block = list(run)
        if not blank:
            yield from [block] if skip is None else _cut_at_comments(block, numbered)


def _cut_at_comments(block: list[NumberedLine], numbered: bool) -> Iterator[list[NumberedLine]]:
    comments = [line.text.startswith("#") for line in block]
    begin = 0
    for place in range(1, len(block)):
        if comments[place] and not comments[place - 1]:
            row = next((k for k in range(place, len(block)) if not comments[k]), len(block))
            first = numbered and any(re.match(r"1(-[0-9]+)?[ \t]", line.text) for line in block[row : row + 1])
            if first or sentence_id(block[place:row]):
                yield block[begin:place]
                begin = place
    yield block[begin:]


def sentence_id(block: Iterable[NumberedLine]) -> str | None:
    """The id in the comment ``# sent_id = ...`` of a block; None without one."""
    matches = (re.fullmatch(r"#[ \t]*sent_id[ \t]*=[ \t]*([^ \t].*?)[ \t]*", line.text) for line in block)
    return next((match[1] for match in matches if match), None)


def files_below(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """All files below a folder, those of linked folders too; a link back to a folder above it is not followed. Raises
    CorpusError: a folder cannot be read."""
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
