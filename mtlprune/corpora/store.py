"""Corpora on disk: Hugging Face ``datasets`` folders, memory-mapped, with a ``corpus.json`` that says what they are."""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from mtlprune.corpora import CorpusError
from mtlprune.corpora.counts import count
from mtlprune.corpora.fingerprint import fingerprint
from mtlprune.corpora.fingerprint import source_digest as source_digest  # part of this module too
from mtlprune.files import read_json
from mtlprune.sentence import Sentence, SentenceError, check_unique

if TYPE_CHECKING:
    import pyarrow as pa

INFO = "corpus.json"
_FORMAT = {"format": "mtlprune corpus", "version": 1}
_ROWS_AT_ONCE = 2048  # decoded together when a split is iterated over: fast, and small in memory


def save_corpus(
    splits: Mapping[str, Iterable[Sentence]],
    out: Path,
    *,
    name: str,
    licence: str,
    sources: Mapping[str, str],
    overwrite: bool = False,
) -> Corpus:
    """Validate and write a corpus; it is written beside ``out`` and renamed, so ``out`` is whole or not there.

    Args:
        splits: sentences by name of split, such as train, dev, test.
        out: the folder to make.
        name: of the corpus.
        licence: under which it may be shared.
        sources: what it was built from, each with a checksum.
        overwrite: replace ``out`` if it is a corpus (never any other folder).

    Raises:
        CorpusError: ``out`` is there already, or cannot be written.
        SentenceError: a sentence contradicts itself, or an id occurs twice.
    """
    out = Path(out)
    check_free(out, overwrite)
    sentences = {split: list(content) for split, content in splits.items()}
    for split, content in sentences.items():
        if not re.fullmatch(r"\w+", split):
            raise CorpusError(f"expected split names of letters, digits and _, found {split!r}; rename the split")
        if not content:
            raise CorpusError(f"{out}: expected at least one sentence in {split!r}, found none; leave the split out")
    for sentence in check_unique(sentence for content in sentences.values() for sentence in content):
        sentence.validate()
    mark = fingerprint(sentences)
    info = {
        **_FORMAT,
        "name": name,
        "licence": licence,
        "sources": dict(sources),
        "fingerprint": mark,
        "splits": {split: asdict(count(content)) for split, content in sentences.items()},
    }
    beside = out.parent / f".{out.name}.{uuid.uuid4().hex[:8]}.partial"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _write_tables(sentences, beside, mark)
        (beside / INFO).write_text(json.dumps(info, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        _put_in_place(beside, out)
    except OSError as error:
        what = error.strerror or str(error)
        raise CorpusError(f"{out}: expected to write a corpus, found: {what}; nothing was left behind") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return load_corpus(out)


def check_free(out: Path, overwrite: bool) -> None:
    """Raise CorpusError if a corpus may not be written to ``out``."""
    if not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir())):
        return
    if not overwrite:
        raise CorpusError(
            f"{out}: expected a folder yet to be made, found one; name another, or replace it (--overwrite)"
        )
    try:
        _read_info(out)
    except CorpusError as error:
        raise CorpusError(f"{out}: only a corpus is ever overwritten, and this is none ({error}); remove it") from error


def _write_tables(sentences: Mapping[str, list[Sentence]], folder: Path, mark: str) -> None:
    import datasets

    from mtlprune.corpora.tables import to_table

    hidden = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        parts = {}
        for split, content in sentences.items():
            # with a fingerprint given, datasets need not hash the table by pickling it
            table = datasets.table.InMemoryTable(to_table(content))
            parts[split] = datasets.Dataset(table, fingerprint=f"{mark[:12]}{split}")
        datasets.DatasetDict(parts).save_to_disk(folder)
    finally:
        if not hidden:
            datasets.enable_progress_bars()


def _put_in_place(beside: Path, out: Path) -> None:
    """Rename ``beside`` to ``out``; an old corpus there is moved away first and put back if that fails."""
    if not out.exists():
        beside.rename(out)
        return
    old = beside.with_suffix(".old")
    out.rename(old)
    try:
        beside.rename(out)
    except OSError:
        old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _read_info(path: Path) -> dict[str, Any]:
    file = path / INFO
    if not file.is_file():
        what = f"found no {INFO} in it" if path.is_dir() else "found no such folder"
        raise CorpusError(
            f"{path}: expected a corpus made by 'mtlprune data build', {what}; build it or check the path"
        )
    info = read_json(file, CorpusError, "build the corpus anew")
    if not isinstance(info, dict) or {key: info.get(key) for key in _FORMAT} != _FORMAT:
        raise CorpusError(f"{file}: expected {_FORMAT}, found another format; build the corpus anew with this version")
    if not {"name", "licence", "sources", "fingerprint", "splits"} <= info.keys():
        raise CorpusError(f"{file}: expected name, licence, sources, fingerprint and splits; build the corpus anew")
    splits = info["splits"]
    counted = isinstance(splits, dict) and all(
        isinstance(counts, dict) and {"sentences", "known"} <= counts.keys() for counts in splits.values()
    )
    if not splits or not counted:
        raise CorpusError(f"{file}: expected the counts of one split or more; build the corpus anew")
    return info


def check_there(path: Path) -> None:
    """Raise CorpusError where no corpus lies; only its description is read, which takes no time."""
    _read_info(Path(path))


def load_corpus(path: Path) -> Corpus:
    """Open a corpus; its sentences are memory-mapped and decoded when they are asked for.

    Raises:
        CorpusError: no corpus there, or a damaged one.
    """
    import datasets
    import pyarrow as pa

    from mtlprune.corpora.tables import SCHEMA

    path = Path(path)
    info = _read_info(path)
    try:
        stored = datasets.load_from_disk(str(path), keep_in_memory=False)
        tables = {split: stored[split].data.table for split in info["splits"]}
        for table in tables.values():
            table.validate(full=True)  # quick (0.03 s for EWT5), and reading damaged offsets would crash the process
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        raise CorpusError(f"{path}: expected a whole corpus, found: {error}; build it anew") from error
    for split, table in tables.items():
        if [(field.name, field.type) for field in table.schema] != [(field.name, field.type) for field in SCHEMA]:
            raise CorpusError(f"{path}: expected the columns of a corpus in {split!r}, found others; build it anew")
        expected = info["splits"][split]["sentences"]
        if table.num_rows != expected:
            found = f"found {table.num_rows}"
            raise CorpusError(f"{path}: expected {expected} sentences in {split!r}, {found}; build it anew")
    return Corpus(path, info, {split: StoredSentences(table) for split, table in tables.items()})


class StoredSentences(Sequence[Sentence]):
    """One split. Each access decodes anew: keep ``list(split)`` where sentences are read often (12,544 take 1 s)."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __len__(self) -> int:
        return self._table.num_rows

    @overload
    def __getitem__(self, place: int) -> Sentence: ...

    @overload
    def __getitem__(self, place: slice) -> list[Sentence]: ...

    def __getitem__(self, place: int | slice) -> Sentence | list[Sentence]:
        from mtlprune.corpora.tables import from_table

        if isinstance(place, slice):
            places = range(len(self))[place]
            if not places:
                return []
            low = min(places[0], places[-1])
            content = from_table(self._table.slice(low, max(places[0], places[-1]) + 1 - low))
            return [content[k - low] for k in places]
        return from_table(self._table.slice(range(len(self))[place], 1))[0]

    def __iter__(self) -> Iterator[Sentence]:
        for start in range(0, len(self), _ROWS_AT_ONCE):
            yield from self[start : start + _ROWS_AT_ONCE]

    def ids(self) -> list[str]:
        """The ids of all sentences in order."""
        return self._table.column("id").to_pylist()

    def find(self, sentence_id: str) -> Sentence | None:
        """The sentence with this id, or None."""
        import pyarrow.compute as pc

        place = pc.index(self._table.column("id"), sentence_id).as_py()
        return None if place < 0 else self[place]


class Corpus:
    """Splits by name, and what is known of the whole.

    Attributes:
        path: its folder.
        info: name, licence, sources (with checksums), fingerprint, and the counts of each split.
    """

    def __init__(self, path: Path, info: dict[str, Any], splits: dict[str, StoredSentences]) -> None:
        self.path = path
        self.info = info
        self._splits = splits

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self._splits)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the sentences, as stored when the corpus was written; :meth:`verify` computes it anew."""
        return self.info["fingerprint"]

    def __getitem__(self, split: str) -> StoredSentences:
        if split not in self._splits:
            raise CorpusError(f"{self.path}: expected one of the splits {', '.join(self.splits)}, found {split!r}")
        return self._splits[split]

    def verify(self) -> None:
        """Read and validate everything.

        Raises:
            CorpusError: the sentences are not those that were written.
            SentenceError: a sentence contradicts itself, or an id occurs twice.
        """
        try:
            for sentence in check_unique(sentence for split in self._splits.values() for sentence in split):
                sentence.validate()
        except SentenceError:
            raise
        except (TypeError, ValueError) as error:  # nulls where no null can be, or text that is not UTF-8
            raise CorpusError(f"{self.path}: expected a whole corpus, found: {error}; build it anew") from error
        found = fingerprint(self._splits)
        if found != self.fingerprint:
            raise CorpusError(
                f"{self.path}: expected sentences with the fingerprint {self.fingerprint[:16]}…, found {found[:16]}…; "
                "the files were changed, build the corpus anew"
            )
