"""Corpora on disk: Hugging Face ``datasets`` folders, memory-mapped, with a ``corpus.json`` that says what they are.

corpus.json     what it is; the folder of its sentences, and the SHA-256 of every file in it
tables-ID/      its sentences; a corpus written before this folder had a name has them beside corpus.json
.verified.json  sizes and times of the files when they were last found to be those that were written
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from mtlprune.corpora import CorpusError
from mtlprune.corpora.tables import batched, count, fingerprint, source_digest
from mtlprune.errors import out_of_memory, printable
from mtlprune.io.files import RunError, file_sha256, make_folder, read_json, reading, sync, sync_tree, write_json
from mtlprune.layers import LAYERS, LayerError, check_layer
from mtlprune.sentence import Sentence, SentenceError, check_unique, declared

if TYPE_CHECKING:
    import pyarrow as pa

INFO = "corpus.json"
VERIFIED = ".verified.json"
_FORMAT = {"format": "mtlprune corpus", "version": 1}
_SPLIT_FILES = ("state.json", "dataset_info.json")  # beside the Arrow files of a split
_ROWS_AT_ONCE = 2048  # decoded together when a split is iterated over: fast, and small in memory


def save_corpus(
    splits: Mapping[str, Iterable[Sentence]],
    out: Path,
    *,
    name: str,
    licence: str,
    sources: Mapping[str, str],
    left_out: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Corpus:
    """Validate and write a corpus; at every moment ``out`` is the old corpus or the new one, also after a power cut.

    Args:
        splits: sentences by name of split, such as train, dev, test.
        out: the folder to make.
        name: of the corpus.
        licence: under which it may be shared.
        sources: what it was built from, each with a checksum.
        left_out: what of them is not in it: layers; sentences that could not be read, their number and why.
        overwrite: replace ``out`` if it is a corpus (never any other folder).

    Raises:
        CorpusError: ``out`` is there already, or cannot be written.
        SentenceError: a sentence contradicts itself, or an id occurs twice.
    """
    out = Path(out)
    check_free(out, overwrite)
    for what, text in (("name", name), ("licence", licence)):
        if not text.strip() or printable(text) != text or (what == "name" and "/" in text):
            raise CorpusError(
                f"--{what}: expected one without line breaks and signs that steer a terminal, and a name without /; "
                f"found {text!r}"
            )
    sentences = {k: content if isinstance(content, Sequence) else list(content) for k, content in splits.items()}
    for split, content in sentences.items():
        if not re.fullmatch(r"\w+", split):
            raise CorpusError(f"expected split names of letters, digits and _, found {split!r}; rename the split")
        if not content:
            raise CorpusError(f"{out}: expected at least one sentence in {split!r}, found none; leave the split out")
    every = check_unique(sentence for content in sentences.values() for sentence in content)
    layers = declared(sentence.validate() for sentence in every)
    info = {
        **_FORMAT,
        "name": name,
        "licence": licence,
        "sources": dict(sources),
        **({"left_out": dict(left_out)} if left_out else {}),
        **({} if layers == LAYERS else {"layers": layers}),
        "fingerprint": fingerprint(sentences),
        "splits": {split: count(content, layers).to_json() for split, content in sentences.items()},
    }
    try:
        make_folder(out.parent)
        _write(sentences, out, info)
    except OSError as error:
        what = error.strerror or str(error)
        raise CorpusError(f"{out}: expected to write a corpus, found: {what}; nothing was left behind") from error
    return load_corpus(out)


def _write(sentences: Mapping[str, Sequence[Sentence]], out: Path, info: dict[str, Any]) -> None:
    """Write a new corpus beside ``out``, or into the corpus that ``out`` is.

    One rename of a folder or of corpus.json makes it the corpus of that name, on every file system: before it, the old
    one is there as it was.
    """
    fresh = not (out / INFO).is_file()
    home = out.parent / f".{out.name}.{uuid.uuid4().hex[:8]}.partial" if fresh else out
    tables = home / f"tables-{uuid.uuid4().hex[:8]}"
    half = home if fresh else tables
    try:
        half.mkdir()
        with _held(half):
            _write_tables(sentences, tables, info["fingerprint"], info.get("layers", LAYERS))
            files = {file.relative_to(home).as_posix(): source_digest(file) for file in _files(tables)}
            sync_tree(half)
            write_json(home / INFO, {**info, "tables": tables.name, "files": files})
            if fresh:
                home.rename(out)
                sync(out.parent)
    except BaseException:
        shutil.rmtree(half, ignore_errors=True)
        raise
    _remove_leftovers(out, tables.name)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Hold a folder while it is written; False where another process does. The kernel gives it back after a kill."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _remove_leftovers(out: Path, tables: str) -> None:
    """Remove what earlier corpora of this name were, and what killed builds left of them."""
    beside = re.compile(rf"\.{re.escape(out.name)}\.[0-9a-f]{{8}}\.(partial|old)")
    old = [path for path in out.parent.iterdir() if beside.fullmatch(path.name)]
    for path in out.iterdir():
        own = all(file.suffix == ".arrow" or file.name in _SPLIT_FILES for file in _files(path))
        if path.is_dir() and path.name != tables and (re.fullmatch("tables-[0-9a-f]{8}", path.name) or own):
            old.append(path)
    for path in old:
        with contextlib.suppress(OSError), _held(path) as free:
            if free:
                shutil.rmtree(path)
    (out / "dataset_dict.json").unlink(missing_ok=True)


def check_free(out: Path, overwrite: bool) -> None:
    """Raise CorpusError if a corpus may not be written to ``out``."""
    if not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir())):
        return
    if not overwrite:
        raise CorpusError(
            f"{out}: expected a folder yet to be made, found one; name another, or replace it (--overwrite)"
        )
    try:
        read_info(out)
    except CorpusError as error:
        raise CorpusError(f"{out}: only a corpus is ever overwritten, and this is none ({error}); remove it") from error


def _write_tables(
    sentences: Mapping[str, Sequence[Sentence]], folder: Path, mark: str, layers: Mapping[str, str]
) -> None:
    import datasets
    import pyarrow as pa

    from mtlprune.corpora.tables import schema, to_table

    folder.mkdir(exist_ok=True)
    hidden = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        parts = {}
        for split, content in sentences.items():
            rows = folder / f"{split}.rows"  # whatever their number, a block of them is in memory
            with pa.OSFile(str(rows), "wb") as file, pa.ipc.new_stream(file, schema(layers)) as stream:
                for block in batched(content, _ROWS_AT_ONCE):
                    stream.write_table(to_table(block, layers))
            # with a fingerprint given, datasets need not hash the table by pickling it
            table = datasets.table.MemoryMappedTable.from_file(str(rows))
            parts[split] = datasets.Dataset(table, fingerprint=f"{mark[:12]}{split}")
        datasets.DatasetDict(parts).save_to_disk(folder)
        for split in parts:
            (folder / f"{split}.rows").unlink()
    finally:
        if not hidden:
            datasets.enable_progress_bars()


def read_info(path: Path) -> dict[str, Any]:
    """The description of a corpus, read at once. Raises CorpusError where none lies, or a damaged one."""
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
    layers = info.get("layers", {})
    if not isinstance(layers, dict):
        raise CorpusError(f"{file}: layers: expected the kind of each layer, found {layers!r}; build the corpus anew")
    try:
        for name, kind in layers.items():
            check_layer(name, kind)
    except LayerError as error:
        raise CorpusError(f"{file}: layers: {error}") from None
    files = info.get("files", {})
    if not isinstance(files, dict) or not all(isinstance(digest, str) for digest in files.values()):
        raise CorpusError(f"{file}: files: expected the SHA-256 of each file; build the corpus anew")
    if "tables" in info and not re.fullmatch("tables-[0-9a-f]{8}", str(info["tables"])):
        raise CorpusError(f"{file}: tables: expected the name of a folder beside it; build the corpus anew")
    return info


def load_corpus(path: Path) -> Corpus:
    """Open a corpus; its sentences are memory-mapped and decoded when they are asked for.

    Its files are those that were written, by their SHA-256; the sentences of a corpus that notes none are, by their
    fingerprint. This is remembered until the size or the time of a file changes.

    Raises:
        CorpusError: no corpus there, or a damaged or changed one.
    """
    import datasets
    import pyarrow as pa

    from mtlprune.corpora.tables import schema

    path = Path(path)
    info = read_info(path)
    known = _is_verified(path, info)
    if not known:
        _verify_files(path, info)
    try:
        stored = datasets.load_from_disk(str(path / info.get("tables", "")), keep_in_memory=False)
        tables = {split: stored[split].data.table for split in info["splits"]}
        for table in tables.values():
            table.validate(full=True)  # quick (0.03 s for EWT5), and reading damaged offsets would crash the process
    except (OSError, MemoryError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        if out_of_memory(error):
            what = "there is not enough free memory to open it; free some, or open it elsewhere"
            raise CorpusError(f"{path}: {what}") from error
        raise CorpusError(f"{path}: expected a whole corpus, found: {error}; build it anew") from error
    layers = {**LAYERS, **info.get("layers", {})}
    columns = [(field.name, field.type) for field in schema(layers)]
    for split, table in tables.items():
        present = [(field.name, field.type) for field in table.schema]
        if present not in (columns, columns[:-1]):  # a corpus written before there were sources has none
            raise CorpusError(f"{path}: expected the columns of a corpus in {split!r}, found others; build it anew")
        expected = info["splits"][split]["sentences"]
        if table.num_rows != expected:
            found = f"found {table.num_rows}"
            raise CorpusError(f"{path}: expected {expected} sentences in {split!r}, {found}; build it anew")
    corpus = Corpus(path, info, {split: StoredSentences(table, layers) for split, table in tables.items()})
    if not known:
        if "files" not in info:
            corpus.verify_fingerprint()
        with contextlib.suppress(RunError):  # in a folder that may not be written it is verified each time
            write_json(path / VERIFIED, _stamps(path, info))
    return corpus


def _verify_files(path: Path, info: Mapping[str, Any]) -> None:
    """Raise CorpusError where a file is not the one that was written."""
    for name, expected in info.get("files", {}).items():
        with reading(path / name, CorpusError, "build the corpus anew"):
            found = file_sha256(path / name)
        if found != expected:
            raise CorpusError(
                f"{path / name}: expected the SHA-256 {expected[:16]}… noted in {INFO}, found {found[:16]}…; the file "
                "was changed or damaged, build the corpus anew"
            )


def _stamps(path: Path, info: Mapping[str, Any]) -> dict[str, Any]:
    """What a corpus is known by without reading it: what it should be; and of each file its size and its times in ns.

    The time of the last change of the entry is one of them: a copy has another, whatever it kept.
    """
    names = info.get("files") or [
        f.relative_to(path).as_posix() for split in info["splits"] for f in _files(path / split)
    ]
    stats = {name: (path / name).stat() for name in sorted(names)}
    times = {name: [found.st_size, found.st_mtime_ns, found.st_ctime_ns] for name, found in stats.items()}
    return {"fingerprint": info["fingerprint"], "sha256": info.get("files", {}), "files": times}


def _is_verified(path: Path, info: Mapping[str, Any]) -> bool:
    try:
        return json.loads((path / VERIFIED).read_text(encoding="utf-8")) == _stamps(path, info)
    except (OSError, ValueError, RecursionError):  # never verified, or a file is gone: then verifying says so
        return False


class StoredSentences(Sequence[Sentence]):
    """One split. Each access decodes anew: keep ``list(split)`` where sentences are read often (12,544 take 1 s)."""

    def __init__(self, table: pa.Table, layers: Mapping[str, str], source: bool = False) -> None:
        self._table = table
        self._layers = layers
        self._source = source

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
            part = self._table.slice(low, max(places[0], places[-1]) + 1 - low)
            content = from_table(part, self._layers, self._source)
            return [content[k - low] for k in places]
        return from_table(self._table.slice(range(len(self))[place], 1), self._layers, self._source)[0]

    def __iter__(self) -> Iterator[Sentence]:
        for start in range(0, len(self), _ROWS_AT_ONCE):
            yield from self[start : start + _ROWS_AT_ONCE]

    def first(self, number: int | None) -> StoredSentences:
        """The first so many; all, if not given."""
        return StoredSentences(self._table.slice(0, number), self._layers)

    def only(self, layer: str) -> StoredSentences:
        """All, knowing this layer alone: decoding the others takes most of the time."""
        return StoredSentences(self._table, {layer: self._layers[layer]})

    def with_source(self) -> StoredSentences:
        """All, with the lines of CoNLL-U that they were read from."""
        return StoredSentences(self._table, self._layers, source=True)

    def half(self, which: int | None) -> StoredSentences:
        """The first or second of two random halves, in the same order, always the same; all, if not given."""
        if which is None:
            return self
        import numpy as np

        places = np.random.default_rng(0).permutation(len(self))[which - 1 :: 2]
        return StoredSentences(self._table.take(np.sort(places)), self._layers)

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
    def layers(self) -> dict[str, str]:
        """The layers that are declared, and their kinds: the five, then others by name."""
        return {**LAYERS, **self.info.get("layers", {})}

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
        self.verify_fingerprint()

    def verify_fingerprint(self) -> None:
        """Read everything. Raises CorpusError where the sentences are not those that were written."""
        try:
            found = fingerprint(self._splits)
        except (TypeError, ValueError) as error:  # as above
            raise CorpusError(f"{self.path}: expected a whole corpus, found: {error}; build it anew") from error
        if found != self.fingerprint:
            raise CorpusError(
                f"{self.path}: expected sentences with the fingerprint {self.fingerprint[:16]}…, found {found[:16]}…; "
                "the files were changed, build the corpus anew"
            )
