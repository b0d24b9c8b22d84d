"""Detect the format of a file from its first lines, and the contents of its columns, where no option gives them."""

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats import BLANKS, files_below, index_of_words, read_lines, separator_of, split_row
from mtlprune.io.files import parse_json_line

_ROWS = 300
"""How many lines at the start of a file are inspected."""
_NUMBER = re.compile(r"[0-9]+([-.][0-9]+)?")
_STAR = re.compile(r"(\([^()*\s]+)+\*\)*")


def guess_format(path: Path) -> str:
    """Return the format of a file or folder: conllu, columns, brackets, propbank, jsonl, hf or merge.

    Here hf is a Hugging Face data set (also an empty folder), and merge is a corpus that was built before. In other
    folders, a Parquet file or else the first file by name decides. Raises CorpusError if a file or folder cannot be
    read.
    """
    if path.is_dir():
        names = {file.name: file for file in sorted(files_below(path)) if not file.name.startswith(".")}
        if (path / "corpus.json").is_file():
            return "merge"
        if {"dataset_dict.json", "state.json"} & names.keys() or not names:
            return "hf"
        return guess_format(next((file for file in names.values() if file.suffix == ".parquet"), min(names.values())))
    if path.suffix in (".parquet", ".json", ".conllu"):
        return "conllu" if path.suffix == ".conllu" else "hf"
    lines = _beginning(path)
    first = lines[0] if lines else ""
    if first.startswith("{") or path.suffix in (".jsonl", ".ndjson"):
        tree = parse_json_line(first or "[]", f"{path}, line 1", CorpusError)
        return "jsonl" if not isinstance(tree, dict) or _is_sentence(tree) else "hf"
    # A file of trees begins with a bracket and closes at least one bracket per line on average. Otherwise the first
    # bracket is a word of the text.
    if first.lstrip().startswith("(") and "".join(lines).count(")") >= len(lines):
        return "brackets"
    if first.startswith("#begin document"):
        return "propbank"
    rows, tabs = _rows(path, lines), any("\t" in line for line in lines)
    if any(re.match(r"#\s*global\.columns", line) for line in lines):
        return "conllu"
    if rows and tabs and all(len(row) >= 10 and _NUMBER.fullmatch(row[0]) for row in rows[:10]):
        return "conllu"
    return "propbank" if any(_STAR.fullmatch(cell) for row in rows for cell in row) else "columns"


def _is_sentence(tree: Mapping[str, Any]) -> bool:
    """Return True if a JSON object is a sentence in our format, or text without annotation.

    A row of a data set contains lists of labels under names that our format does not use.
    """
    texts = {
        key for key, cells in tree.items() if isinstance(cells, list) and isinstance(next(iter(cells), []), str | int)
    }
    return bool({"words", "tokens", "text"} & tree.keys()) and texts <= {"words", "tokens", "pos"}


def guess_columns(path: Path) -> str:
    """Return the contents of the columns of a file in the notation of ``--columns``, such as word,pos,_,ner.

    The words are in the first column, or in the second if the first contains numbers; a header may also name their
    column. Of the columns after the words, ner is the last one that contains O, and pos is the first one if it contains
    no O and has fewer different cells than the words. Raises CorpusError if there are no sentences, or neither ner nor
    pos is found.
    """
    rows = _rows(path, _beginning(path))
    word_place = index_of_words(rows[0]) if rows else None
    rows = rows if word_place is None else rows[1:]
    if not rows:
        raise CorpusError(f"{path}: expected sentences, found none; check the file")
    width = min(map(len, rows), default=0)
    columns: list[tuple[str, ...]] = list(zip(*(row[:width] for row in rows), strict=True))
    word = int(width > 1 and all(map(_NUMBER.fullmatch, columns[0]))) if word_place is None else word_place
    names = ["_"] * width
    spans = [index for index in range(word + 1, width) if "O" in columns[index]]
    if spans:
        names[spans[-1]] = "ner"
    if word + 1 < width and word + 1 not in spans and len({*columns[word + 1]}) < len({*columns[word]}):
        names[word + 1] = "pos"
    if not {"pos", "ner"} & {*names}:
        raise CorpusError(
            f"{path}: expected columns whose contents are known, found others; name them, such as --columns "
            "word,pos,_,ner for a file with one word per line, or text=words,label=topic for a table with one sentence "
            "per row"
        )
    names[word] = "word"
    return ",".join([*names, *["..."] * any(len(row) > width for row in rows)])


def _beginning(path: Path) -> list[str]:
    """Return the first lines that are not blank, at most :data:`_ROWS`."""
    return list(islice((line.text for line in read_lines(path, lambda error: None) if line.text.strip(BLANKS)), _ROWS))


def _rows(path: Path, lines: Sequence[str]) -> list[list[str]]:
    """Return the cells of all lines except comments and -DOCSTART- lines."""
    rows = [line for line in lines if not line.startswith(("#", "-DOCSTART-"))]
    separator = separator_of(path, rows)
    return [split_row(line, separator) for line in rows]
