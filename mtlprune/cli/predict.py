"""`mtlprune predict`: annotates sentences of a file or of standard input with all tasks of a run."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal, TextIO

import typer

from mtlprune.cli.console import Device, console
from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats import Skip, decode_line, index_of_words, malformed, separator_of, split_row, words_of
from mtlprune.errors import MtlpruneError, plural, printable
from mtlprune.io.files import RunError, parse_json_line, reading
from mtlprune.layers import OF_SENTENCES, kind_of
from mtlprune.sentence import Sentence, SentenceError

if TYPE_CHECKING:
    from mtlprune.corpora.machamp import ColumnFile
    from mtlprune.runs.folder import RunFolder

_PLUS = (".conllup", ".cupt")
_FORMS = {**dict.fromkeys((".conllu", ".conll", *_PLUS), "conllu"), ".jsonl": "jsonl", ".ndjson": "jsonl"}
_FORMS |= {".txt": "text", "": "text"}
_WRITTEN = _FORMS | {".tsv": "tsv"}
"""Suffix of a file → its format. _FORMS lists the formats that can be read, and _WRITTEN those that can be written."""
_LOOKS = {
    "conllu": re.compile(r"#\s*(sent_id|global\.columns|newdoc id)\s*=|[1-9][0-9]*(-[0-9]+)?(\t[^\t]+){7}"),
    "jsonl": re.compile(r"\s*(\{\s*(\"|$)|\[\s*(\{|$))"),
    "trees": re.compile(r"\s*\(\s*(\(|[A-Z][-A-Z0-9]* *\()"),
    "CoNLL-2012": re.compile(r"#begin document|-DOCSTART-"),
    "markup": re.compile(r"\s*<([?!]|/?[A-Za-z][^<>]*>\s*$)"),
}
"""Format → pattern of the beginning of a file, by which files that are no plain text are recognised."""
_TAG = re.compile(r"O|[BIELSUM][-_]\S+|[A-Z]{2,5}\$?|\W+|_")
"""Matches typical tags. If all lines have such a tag at the same position, the file has columns and no plain text."""
_BEGIN = 50
"""Number of lines at the beginning of a file that are checked for another format."""
_TOO_LONG = "gets no constituents, because more than %d words take long; --longest-con N raises this limit"
_Group = list[tuple[int, Sentence]]
"""Sentences that are annotated together, each with the number of its first line."""
SENTENCES, WORDS = 512, 16384
"""Largest numbers of sentences and of words in a group. They limit memory, and let results appear early."""


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    file: Annotated[
        Path,
        typer.Argument(
            help="Text with one sentence per line and spaces or tabs between words, CoNLL-U (.conllu, .conll, "
            ".conllup, .cupt), or JSON Lines (.jsonl). The name - means standard input."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="File to write to instead of the terminal.")] = None,
    format_: Annotated[
        Literal["jsonl", "conllu", "text", "tsv"] | None,
        typer.Option(
            "--format",
            help="Output format (if not given, that of the suffix of --out, text on a terminal, and otherwise jsonl).",
        ),
    ] = None,
    input_: Annotated[
        Literal["jsonl", "conllu", "text"] | None,
        typer.Option("--input", help="Input format (if not given, the suffix of the file decides)."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Columns of the file, named as for `mtlprune data build`. The columns that the run predicts are "
            "replaced.",
            show_default=False,
        ),
    ] = None,
    device: Device = None,
    longest_con: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Length in words of the longest sentence that is parsed into constituents (500, if not given). "
            "The time for constituents grows with the third power of the length, and is about a second for 500 "
            "words.",
        ),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out lines that cannot be read.")] = False,
) -> None:
    """Annotate sentences with every task of a run. Each group of sentences is written as soon as it is annotated.

    In CoNLL-U output only the columns that the run predicts change. With --columns, a file in columns also keeps
    the columns that the run does not predict.
    """
    from mtlprune.runs.folder import RunFolder

    terminal, notes, folder = console(), _Notes(), RunFolder.with_weights(run)
    if out is not None and out.exists() and file.exists() and out.samefile(file):
        raise RunError(f"{out}: expected another file than the one that is read; name it with --out")
    in_place = _column_file(folder, file, columns, bool(format_ or input_ or skip_bad))
    kind = _kind_of_output(out, "columns" if in_place else format_, terminal.is_terminal)
    left_out = _left_out(folder, kind, in_place, notes)
    with contextlib.ExitStack() as files:
        groups = _grouped(_sentences(file, files, in_place, input_, notes, skip_bad))
        first = next(groups, None)
        if first is None:
            raise CorpusError(f"{file}: expected sentences, found none; name a file with sentences")
        annotate = _annotator(folder, file, left_out, device, longest_con, notes)
        write = _writer(out, kind, files, folder, in_place)
        count = _annotate_all(file, itertools.chain([first], groups), annotate, write, notes)
    if notes.skipped:
        notes.bar.print(f"{file}: skipped: {plural(notes.skipped, 'bad line or sentence')}")
    if out is not None:
        terminal.print(f"{out}: {plural(count, 'sentence')}")


class _Notes:
    """Prints warnings to standard error, above the progress bar, and counts skipped sentences."""

    def __init__(self) -> None:
        self.bar, self.skipped = console(stderr=True), 0

    def warn(self, line: str) -> None:
        self.bar.print(printable(line))

    def skip(self, error: MtlpruneError) -> None:
        self.skipped += 1
        self.warn(f"warning: skipped: {error}")


def _sentences(
    file: Path,
    files: contextlib.ExitStack,
    in_place: ColumnFile | None,
    input_: str | None,
    notes: _Notes,
    skip_bad: bool,
) -> Iterator[tuple[int, Sentence]]:
    """Yield the sentences of the file, each with the number of its first line. The file is closed with ``files``."""
    stream = sys.stdin.buffer if str(file) == "-" else files.enter_context(file.open("rb"))
    # Pipes such as `<(zcat x)` can be read. A device such as /dev/zero may have no line ends and never end.
    if (file.is_char_device() and not stream.isatty()) or file.is_block_device():
        raise CorpusError(f"{file}: expected a file or a pipe, found a device; name a file with sentences")
    if in_place:
        return in_place.sentences()
    kind = input_ or _kind_of_file(file)
    return _read_sentences(file, stream, kind, notes.skip if skip_bad else None, notes.warn, input_ is not None)


def _annotate_all(
    file: Path,
    groups: Iterable[_Group],
    annotate: Callable[[_Group], list[Sentence]],
    write: Callable[[list[Sentence]], None],
    notes: _Notes,
) -> int:
    """Annotate and write the groups one after the other, and return the number of sentences.

    Raises:
        CorpusError: a group cannot be annotated; the message names its lines.
    """
    from mtlprune.cli.display import count_steps

    count = 0
    with count_steps(counter="sentences", bar=notes.bar) as (_, advance):
        for group in groups:
            try:
                write(annotate(group))
            except MtlpruneError as error:
                raise CorpusError(f"{file}, lines {group[0][0]} to {group[-1][0]}: {error}") from error
            count += len(group)
            advance(len(group))
    return count


def _kind_of_output(out: Path | None, format_: str | None, on_terminal: bool) -> str:
    """Return the output format: --format, or the format of the file's suffix. Raises RunError for an unknown suffix."""
    suffix = "" if out is None else out.suffix.lower()
    if format_ is None and suffix not in _WRITTEN:
        problem = f"expected a file .jsonl, .conllu, .tsv or .txt, found {suffix}"
        raise RunError(f"{out}: {problem}; rename it, or give --format")
    if out is None or not suffix:
        return format_ or ("text" if out is None and on_terminal else "jsonl")
    return format_ or _WRITTEN[suffix]


def _column_file(folder: RunFolder, file: Path, columns: str | None, other_options: bool) -> ColumnFile | None:
    """Return the file in columns whose columns are replaced, or None without --columns.

    Raises:
        RunError: --columns is combined with options that contradict it (``other_options``).
    """
    from mtlprune.corpora.machamp import ColumnFile

    if columns is None:
        return None
    if other_options:
        raise RunError("--columns already decides what is read and written; leave out --format, --input and --skip-bad")
    return ColumnFile(file, columns, folder.config.tasks)


def _left_out(folder: RunFolder, kind: str, in_place: ColumnFile | None, notes: _Notes) -> list[str]:
    """Return the tasks of the run that the output format cannot represent, and print a note about them.

    Raises:
        RunError: the format can represent none of the tasks.
    """
    from mtlprune.corpora.export import in_comments, in_misc

    decoders = folder.config.decoders.model_dump()
    kinds = {task: kind_of(task, decoders) for task in folder.config.tasks}
    if in_place:
        fitting, place = in_place.layers, "--columns names"
    elif kind == "tsv":
        fitting, place = set(in_comments(kinds)), "a table of sentences has"
    else:
        fitting, place = {"pos", "dep", "upos", "xpos", *in_misc(kinds), *in_comments(kinds)}, "CoNLL-U has"
    left_out = [task for task in kinds if task not in fitting] if in_place or kind in ("conllu", "tsv") else []
    if len(left_out) == len(kinds):
        content = "" if kind == "tsv" else "tags, the tree dep, names or other spans, and "
        problem = f"--format {kind} holds {content}labels of whole sentences"
        raise RunError(f"{problem}, but this run predicts {', '.join(kinds)}; use --format jsonl")
    if left_out:
        notes.warn(
            f"layers left out: {', '.join(left_out)}, because {place} no place for them; --format jsonl keeps them"
        )
    return left_out


def _annotator(
    folder: RunFolder, file: Path, left_out: Iterable[str], device: str | None, longest_con: int | None, notes: _Notes
) -> Callable[[_Group], list[Sentence]]:
    """Load the model of a run, and return a function that annotates a group of sentences with it."""
    from mtlprune.model import MultiTaskModel
    from mtlprune.tasks.con import LONGEST
    from mtlprune.training import hardware

    config = folder.config
    longest = LONGEST if longest_con is None else longest_con
    model = MultiTaskModel.load(folder.path, device=hardware.choose_device(device or config.train.device))
    for task in left_out:
        del model.tasks[task]
    limited = any(task.cubic for task in model.tasks.values())

    def annotate(group: _Group) -> list[Sentence]:
        for number, sentence in group if limited else ():
            if len(sentence) > longest:
                notes.warn(f"warning: {file}, line {number}: a sentence of {len(sentence)} words {_TOO_LONG % longest}")
        sentences = [sentence for _, sentence in group]
        return list(model.annotate(sentences, hardware.dtype(config.train.precision), longest))

    return annotate


def _kind_of_file(file: Path) -> str:
    """Return the format of a file by its suffix, which is text without a suffix. Raises CorpusError for an unknown
    suffix."""
    if file.suffix.lower() not in _FORMS:
        raise CorpusError(
            f"{file}: expected a file .txt, .conllu or .jsonl, found {file.suffix}; `mtlprune data build` reads other "
            "formats and `mtlprune data export` writes CoNLL-U; if the lines of the file are sentences, give --input "
            "text"
        )
    return _FORMS[file.suffix.lower()]


def _writer(
    out: Path | None, kind: str, files: contextlib.ExitStack, folder: RunFolder, in_place: ColumnFile | None
) -> Callable[[list[Sentence]], None]:
    """Return a function that writes annotated sentences to the terminal or to a file.

    The file gets its final name when ``files`` is closed without an error.
    """
    from mtlprune.cli.display import print_sentence
    from mtlprune.cli.terminal import PlainConsole
    from mtlprune.corpora.export import format_conllu
    from mtlprune.corpora.formats.conllu import COLUMNS, are_universal
    from mtlprune.corpora.formats.jsonl import to_json
    from mtlprune.io.files import replacing

    in_upos = are_universal(folder.read_vocabularies().get("pos", {}).get("tags", ()))
    page = console()
    stream: TextIO = sys.stdout
    if out is not None:
        stream = files.enter_context(files.enter_context(replacing(out)).open("w", encoding="utf-8", newline="\n"))
        page = PlainConsole(file=stream, width=120)
        if kind == "conllu" and out.suffix.lower() in _PLUS:
            stream.write(f"# global.columns = {' '.join(COLUMNS).upper()}\n")

    config = folder.config
    decoders = config.decoders.model_dump()
    columns = {task: kind_of(task, decoders) for task in config.tasks} if kind == "tsv" else {}
    columns = {task: of for task, of in columns.items() if of in OF_SENTENCES}
    if columns:
        stream.write("\t".join(["id", "text", *columns]) + "\n")
    if in_place:
        files.callback(in_place.finish, stream)
        return partial(in_place.write, stream=stream)

    def write(sentences: list[Sentence]) -> None:
        for sentence in sentences:
            if kind == "text":
                print_sentence(page, sentence, "predicted")
            elif kind == "conllu":
                stream.write(format_conllu(sentence, in_upos, predicted=True))
            elif kind == "tsv":
                values = (OF_SENTENCES[of].text(sentence.get(task)) for task, of in columns.items())
                stream.write("\t".join([sentence.id, " ".join(sentence.words), *values]) + "\n")
            else:
                stream.write(json.dumps(to_json(sentence), ensure_ascii=False) + "\n")
        stream.flush()

    return write


def _read_sentences(
    file: Path, stream: BinaryIO, kind: str, skip: Skip | None, tell: Callable[[str], None], format_given: bool
) -> Iterator[tuple[int, Sentence]]:
    """Yield sentences with only their words, and the number of their first line. Annotation in the file is ignored.

    Sentences are read lazily.

    Args:
        stream: content of the file.
        kind: "conllu", "jsonl", or "text" with one sentence per line and words between spaces and tabs (empty lines
            are skipped).
        skip: callback for the error of a line that cannot be read, which is then left out. If None, the error is
            raised.
        tell: callback for remarks on how the file is read.
        format_given: the user named the format, so text is not checked for signs of another format.

    Raises:
        CorpusError: a line is not UTF-8, not of this format or not a valid sentence; the message names the line.
    """
    from mtlprune.corpora.formats.conllu import read_blocks

    stdin = str(file) == "-"
    source = Path("standard input") if stdin else file
    if kind == "conllu":
        lines = (decode_line(raw, number, source, skip) for number, raw in enumerate(stream, 1))
        for block in read_blocks(source, lines, skip, tell):
            yield block.first, block.sentence
        return
    begin = list(itertools.islice(stream, _BEGIN))
    if kind == "text" and not format_given:
        _check_text(source, [raw.decode(errors="replace").strip("\ufeff\r\n") for raw in begin])
    for number, raw in enumerate(itertools.chain(begin, stream), 1):
        try:
            text = decode_line(raw, number, source).text
            words, name = words_of(text), f"{'stdin' if stdin else file.stem}-{number}"
            if not words:
                continue
            sentence = Sentence(name, words) if kind == "text" else _from_json(text, name, f"{source}, line {number}")
            yield number, sentence.validate()
        except (CorpusError, SentenceError) as error:
            wrong = malformed(source, number, str(error)) if isinstance(error, SentenceError) else error
            if skip is None:
                raise wrong from None
            skip(wrong)


def _check_text(source: Path, begin: Sequence[str]) -> None:
    """Raise CorpusError if the first lines of a file look like another format, or together like rows of a table."""
    lines = [(number, text) for number, text in enumerate(begin, 1) if words_of(text)]
    number, first = next(iter(lines), (1, ""))
    kind = next((kind for kind, begins in _LOOKS.items() if begins.match(first)), None)
    separator = separator_of(source, [text for _, text in lines])
    rows = [split_row(text, separator) for _, text in lines]
    columns = zip(*(row[1:] for row in rows), strict=False)
    tags = (all(map(_TAG.fullmatch, cells)) and any(cell[0].isalpha() for cell in cells) for cells in columns)
    names_columns = any(index_of_words(split_row(first, sign)) is not None for sign in ",;")
    is_table = len(rows) > 1 and len(set(map(len, rows))) == 1 < len(rows[0]) and (separator != " " or any(tags))
    kind = kind or ("columns" if names_columns or is_table else None)
    if kind is not None:
        way = f"use --input {kind}" if kind in ("conllu", "jsonl") else "`mtlprune data build` reads it"
        way = "name their contents (--columns)" if kind == "columns" else way
        raise CorpusError(
            f"{source}, line {number}: expected text, found what looks like {kind}; {way}, or --input text"
        )


def _from_json(text: str, name: str, location: str) -> Sentence:
    """Return the sentence with id and words of a JSON object. ``name`` is its id if the object has none."""
    from mtlprune.corpora.formats.jsonl import EXAMPLE, KEYS, as_sentence, check_sentence

    with reading(location, CorpusError, EXAMPLE):
        tree = as_sentence(parse_json_line(text, location, CorpusError), name)
        tree = {key: value for key, value in tree.items() if key in KEYS}
        check_sentence(tree)
        return Sentence(tree["id"], tuple(tree["words"]), split=tree.get("split"))


def _grouped(sentences: Iterable[tuple[int, Sentence]]) -> Iterator[_Group]:
    """Yield groups of sentences to annotate together, of at most SENTENCES sentences and WORDS words.

    A sentence with more words is a group of its own.
    """
    group: _Group = []
    words = 0
    for number, sentence in sentences:
        if group and (len(group) >= SENTENCES or words + len(sentence) > WORDS):
            yield group
            group, words = [], 0
        group.append((number, sentence))
        words += len(sentence)
    if group:
        yield group
