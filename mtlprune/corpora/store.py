"""Corpora on disk: an Arrow file a split, memory-mapped, with a ``corpus.json`` that says what they are.

corpus.json             name, licence, sources, layers, counts, fingerprint, and the SHA-256 of each split's file
SPLIT-SHA.arrow         its sentences; SHA is the start of that SHA-256
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from pydantic import TypeAdapter, ValidationError
from typing_extensions import NotRequired, TypedDict

from mtlprune.corpora import CorpusError
from mtlprune.corpora.tables import batched, count, fingerprint
from mtlprune.errors import printable
from mtlprune.io.files import (
    RunError,
    file_sha256,
    one_writer,
    read_json,
    reading,
    remove,
    remove_halves,
    replacing,
    sync,
    write_json,
)
from mtlprune.layers import LAYERS, LayerError, check_layer
from mtlprune.sentence import Sentence, check_unique, declared

if TYPE_CHECKING:
    import pyarrow as pa

INFO = "corpus.json"
_FORMAT = {"format": "mtlprune corpus", "version": 2}
_ROWS_AT_ONCE = 2048  # decoded together when a split is iterated over: fast, and small in memory


class _Counts(TypedDict):
    sentences: int
    known: dict[str, int]


class _Info(TypedDict):
    name: str
    licence: str
    sources: dict[str, str]
    fingerprint: str
    splits: dict[str, _Counts]
    files: dict[str, str]
    layers: NotRequired[dict[str, str]]


_SCHEMA = TypeAdapter(_Info)


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
        sources: the files it was built from, each with a checksum.
        left_out: the part of them that is not in it: layers; sentences that could not be read, their number and why.
        overwrite: replace ``out`` if it is a corpus (never any other folder).

    Raises:
        CorpusError: ``out`` exists already, or cannot be written.
        SentenceError: a sentence contradicts itself, or an id occurs twice.
    """
    out = Path(out)
    check_free(out, overwrite)
    for option, text in (("name", name), ("licence", licence)):
        if not text.strip() or printable(text) != text or (option == "name" and "/" in text):
            raise CorpusError(
                f"--{option}: expected one without line breaks and signs that steer a terminal, and a name without /; "
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
        "splits": {split: count(content, layers) for split, content in sentences.items()},
    }
    try:
        with one_writer(out):
            remove_halves(out)
            try:
                files = {split: _write_split(out, split, content, layers) for split, content in sentences.items()}
                write_json(out / INFO, {**info, "files": files})
            finally:
                _remove_unnamed(out)
    except (RunError, OSError) as error:
        with contextlib.suppress(OSError):
            out.rmdir()  # where no corpus was
        raise CorpusError(f"{error}; nothing was left behind") from error
    return load_corpus(out)


def _remove_unnamed(folder: Path) -> None:
    """Remove files that corpus.json does not name: of the corpus before, or of a build that broke off."""
    files = read_info(folder)["files"] if (folder / INFO).is_file() else {}
    named = {_path(folder, *file) for file in files.items()}
    remove(*(path for path in folder.glob("*.arrow") if path not in named))


def _path(folder: Path, split: str, sha256: str) -> Path:
    return folder / f"{split}-{sha256[:8]}.arrow"


def _write_split(folder: Path, split: str, sentences: Sequence[Sentence], layers: Mapping[str, str]) -> str:
    """Write the file of a split, and give its SHA-256. Raises RunError where the disk refuses."""
    import pyarrow as pa

    from mtlprune.corpora.tables import schema, to_table

    whole = folder / f"{split}.arrow"
    with replacing(whole) as beside, pa.ipc.new_file(str(beside), schema(layers)) as rows:
        for block in batched(sentences, _ROWS_AT_ONCE):  # whatever their number, a block of them is in memory
            rows.write_table(to_table(block, layers))
    sha256 = file_sha256(whole)
    whole.rename(_path(folder, split, sha256))
    sync(folder)
    return sha256


def check_free(out: Path, overwrite: bool) -> None:
    """Raise CorpusError if a corpus may not be written to ``out``."""
    if not out.exists() or (out.is_dir() and all(map(_is_leftover, out.iterdir()))):
        return
    if not overwrite:
        raise CorpusError(
            f"{out}: expected a folder yet to be made, found one; name another, or replace it (--overwrite)"
        )
    try:
        read_info(out)
    except CorpusError as error:
        raise CorpusError(f"{out}: only a corpus is ever overwritten, and this is none ({error}); remove it") from error


def _is_leftover(path: Path) -> bool:
    """True of what a build that was killed left of a new corpus."""
    return path.name == ".writing" or re.fullmatch(r"\.?\w+(-[0-9a-f]{8})?\.arrow(\..*\.part)?", path.name) is not None


def read_info(path: Path) -> dict[str, Any]:
    """The description of a corpus, read at once. Raises CorpusError where none lies, or a damaged one."""
    file = path / INFO
    if not file.is_file():
        lacking = f"found no {INFO} in it" if path.is_dir() else "found no such folder"
        raise CorpusError(
            f"{path}: expected a corpus made by 'mtlprune data build', {lacking}; build it or check the path"
        )
    info = read_json(file, CorpusError, "build the corpus anew")
    if not isinstance(info, dict) or {key: info.get(key) for key in _FORMAT} != _FORMAT:
        raise CorpusError(f"{file}: expected {_FORMAT}, found another format; build the corpus anew with this version")
    try:
        _SCHEMA.validate_python(info, strict=True)
        for name, kind in info.get("layers", {}).items():
            check_layer(name, kind)
    except (ValidationError, LayerError):
        raise CorpusError(f"damaged: {file}; build the corpus anew") from None
    return info


def load_corpus(path: Path) -> Corpus:
    """Open a corpus whose files are those that were written; its sentences are memory-mapped, and decoded when they are
    asked for.

    Raises:
        CorpusError: no corpus there, or a damaged or changed one.
    """
    import pyarrow as pa

    from mtlprune.corpora.tables import schema

    path = Path(path)
    info, splits = read_info(path), {}
    layers = {**LAYERS, **info.get("layers", {})}
    for split in info["splits"]:
        file = _path(path, split, info["files"].get(split, ""))
        with reading(file, CorpusError, "build the corpus anew"):
            if file_sha256(file) != info["files"][split]:
                raise CorpusError(f"{file} was changed or damaged since it was written; build the corpus anew")
            table = pa.ipc.open_file(pa.memory_map(str(file))).read_all()
        if table.schema != schema(layers):
            raise CorpusError(f"damaged: {path / INFO}; build the corpus anew")
        splits[split] = StoredSentences(table, layers)
    return Corpus(path, info, splits)


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
        for sentence in check_unique(sentence for split in self._splits.values() for sentence in split):
            sentence.validate()
        if (actual := fingerprint(self._splits)) != self.fingerprint:
            raise CorpusError(
                f"{self.path}: expected sentences with the fingerprint {self.fingerprint[:16]}…, found {actual[:16]}…; "
                "the files were changed, build the corpus anew"
            )
