"""Store corpora on disk, and load them again.

The folder of a corpus contains:

corpus.json             name, licence, sources, layers, counts, fingerprint, and the SHA-256 of each split's file
SPLIT-SHA.jsonl         the sentences of a split, one JSON object per line; SHA is the start of the file's SHA-256
"""

import contextlib
import json
import os
import re
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from shlex import quote
from typing import Any, BinaryIO

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats.jsonl import from_json, to_json
from mtlprune.corpora.tables import collector_paused, count, fingerprint
from mtlprune.errors import command, printable
from mtlprune.io import files
from mtlprune.layers import LAYERS
from mtlprune.sentence import Sentence, check_unique, declared

INFO = "corpus.json"
_FORMAT = {"format": "mtlprune corpus", "version": 3}
_AT_ONCE = 2048  # sentences that are decoded together during iteration over a split
IN_MEMORY = 80_000
"""Largest number of sentences of a split that are held in memory as objects while a corpus is built or trained on. A
sentence with five layers takes about 7 KB. Larger splits are decoded anew at each access. The training split of
OntoNotes 5 has 75,187 sentences."""

_KEYS = {"name", "licence", "sources", "fingerprint", "splits", "files"}


def save_corpus(
    splits: Mapping[str, Iterable[Sentence]],
    out: Path,
    *,
    name: str,
    licence: str,
    sources: Mapping[str, str],
    left_out: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> "Corpus":
    """Validate and write a corpus, and return it as loaded from disk.

    At every moment ``out`` holds either the old corpus or the new one, even after a power failure.

    Args:
        splits: name of the split → its sentences.
        sources: files from which the corpus was built → SHA-256, or another description.
        left_out: what was left out of the files, for ``corpus.json``: the names of layers, and the number of sentences
            that could not be read, with reasons.
        overwrite: replace ``out`` if it is a corpus; other folders are never replaced.

    Raises:
        CorpusError: ``out`` exists already, or cannot be written; or the name, the licence or a split is not permitted.
        SentenceError: the annotation of a sentence is inconsistent, or two sentences have the same id.
    """
    out = Path(out)
    check_free(out, overwrite)
    _check_words(name, licence)
    sentences = {split: spooled(content) for split, content in splits.items()}
    _check_splits(sentences, out)
    all_sentences = check_unique(sentence for content in sentences.values() for sentence in content)
    layers = declared(sentence.validate() for sentence in all_sentences)
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
    _write(out, info, sentences)
    return load_corpus(out)


def _check_words(name: str, licence: str) -> None:
    for option, text in (("name", name), ("licence", licence)):
        if not text.strip() or printable(text) != text or (option == "name" and "/" in text):
            raise CorpusError(
                f"--{option}: expected text without line breaks and control characters, and a name without /, found "
                f"{text!r}"
            )


def _check_splits(sentences: Mapping[str, Sequence[Sentence]], out: Path) -> None:
    for split, content in sentences.items():
        if not re.fullmatch(r"\w+", split):
            raise CorpusError(f"expected split names of letters, digits and _, found {split!r}; rename the split")
        if not content:
            raise CorpusError(f"{out}: expected at least one sentence in {split!r}, found none; leave the split out")


def _write(out: Path, info: Mapping[str, Any], sentences: Mapping[str, Sequence[Sentence]]) -> None:
    """Write the file of every split, then ``corpus.json`` with the names of these files, and remove all other files.

    Raises:
        CorpusError: a file cannot be written.
    """
    try:
        with files.one_writer(out):
            files.remove_temporary_paths(out)
            try:
                digests = {split: _write_split(out, split, content) for split, content in sentences.items()}
                files.write_json(out / INFO, {**info, "files": digests})
            finally:
                _remove_unnamed(out)
    except (files.RunError, OSError) as error:
        with contextlib.suppress(OSError):
            out.rmdir()  # succeeds only if the folder is empty, that is, if there was no corpus before
        raise CorpusError(f"{error}; nothing was written") from error


def _remove_unnamed(folder: Path) -> None:
    """Remove sentence files that ``corpus.json`` does not name, left from an older corpus or an interrupted build."""
    digests = read_info(folder)["files"] if (folder / INFO).is_file() else {}
    listed_files = {_path(folder, *file) for file in digests.items()}
    files.remove(*(path for path in _split_files(folder) if path not in listed_files))


def _split_files(folder: Path) -> list[Path]:
    """Return the files in a folder that have the names of sentence files; other files belong to the user."""
    return [path for path in folder.glob("*.jsonl") if re.fullmatch(r"\w+-[0-9a-f]{8}\.jsonl", path.name)]


def _path(folder: Path, split: str, digest: str) -> Path:
    return folder / f"{split}-{digest[:8]}.jsonl"


def _write_split(folder: Path, split: str, sentences: Sequence[Sentence]) -> str:
    """Write the file of a split, and return its SHA-256. Raises RunError if the file cannot be written."""
    lines = sentences.lines() if isinstance(sentences, StoredSentences) else list(map(_encode, sentences))
    hashed = sha256()
    for line in lines:
        hashed.update(line)
    digest = hashed.hexdigest()
    with files.replacing(_path(folder, split, digest)) as staging, staging.open("wb") as stream:
        stream.writelines(sentences.lines() if isinstance(sentences, StoredSentences) else lines)
    return digest


def _encode(sentence: Sentence) -> bytes:
    """Return the line of a sentence in the file of its split."""
    tree = {**to_json(sentence), **({"source": sentence.source} if sentence.source else {})}
    return json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def check_free(out: Path, overwrite: bool) -> None:
    """Raise CorpusError if a corpus may not be written to ``out``.

    It may be written to a new or empty folder, to one with only the remains of an interrupted build, and with
    ``overwrite`` to an existing corpus.
    """
    if not out.exists():
        return
    if out.is_dir():
        remains = {out / ".writing", *files.temporary_paths(out), *_split_files(out)}
        if remains.issuperset(out.iterdir()):
            return
    if not overwrite:
        problem = "a file; name a new folder"
        if out.is_dir():
            problem = "a folder with files; name a new folder, or replace the corpus in this one (--overwrite)"
        raise CorpusError(f"{out}: expected a new or empty folder, found {problem}")
    try:
        read_info(out)
    except CorpusError as error:
        raise CorpusError(
            f"{out}: expected a corpus, because only corpora are overwritten, found none ({error}); remove the folder"
        ) from error


_SCRIPTS = {
    "ewt5": "python data_scripts/ewt5.py",
    "ontonotes5": "python data_scripts/ontonotes5.py FOLDER --converter JAR",
}
"""Folder name of a corpus in the presets → the script in this repository that builds the corpus."""


def how_to_build(path: Path) -> str:
    """Return the shell command that builds the corpus at ``path``."""
    script = _SCRIPTS.get(path.name)
    return command("data", "build", "FILES", "--out", path) if script is None else f"{script} --out {quote(str(path))}"


def read_info(path: Path) -> dict[str, Any]:
    """Return the checked content of ``corpus.json``. Raises CorpusError if the corpus is missing or damaged."""
    file = path / INFO
    if not file.is_file():
        finding = f"found {f'no {INFO} in it' if path.is_dir() else 'a file' if path.exists() else 'no such folder'}"
        raise CorpusError(
            f"{path}: expected a corpus made by 'mtlprune data build', {finding}; check the path, or build the corpus "
            f"with {how_to_build(path)}"
        )
    info = files.read_json(file, CorpusError, "build the corpus again")
    if not isinstance(info, dict) or {key: info.get(key) for key in _FORMAT} != _FORMAT:
        raise CorpusError(f"{file}: expected {_FORMAT}, found another format; build the corpus again with this version")
    if (
        not info.keys() >= _KEYS
        or info["files"].keys() != info["splits"].keys()
        or not all(
            isinstance(counts, dict) and isinstance(counts.get("known"), dict) for counts in info["splits"].values()
        )
    ):
        raise CorpusError(f"{file} is damaged; build the corpus again")
    for split, digest in info["files"].items():  # checked because the name of a file is made from them
        if not re.fullmatch(r"\w+", split) or not re.fullmatch("[0-9a-f]{64}", str(digest)):
            raise CorpusError(f"{file} is damaged (the file of split {split!r}); build the corpus again")
    return info


def load_corpus(path: Path) -> "Corpus":
    """Open a corpus, after checking that its files are unchanged since they were written.

    Sentences are decoded only when they are accessed. Raises CorpusError if the corpus is missing, damaged or changed.
    """
    path = Path(path)
    info, splits = read_info(path), {}
    for split, digest in info["files"].items():
        file = _path(path, split, digest)
        with files.reading(file, CorpusError, "build the corpus again"), file.open("rb") as stream:
            splits[split], digest_of_file = _stored(stream)
        if digest_of_file != digest:
            raise CorpusError(f"{file} was changed or damaged since it was written; build the corpus again")
        if (stated_count := info["splits"][split].get("sentences")) != len(splits[split]):
            problem = f"expected the {len(splits[split])} sentences that {split} has, found {stated_count}"
            raise CorpusError(f"{path / INFO}: {problem}; build the corpus again")
    return Corpus(path, info, splits)


class _OpenFile:
    """A file that stays open for reading as long as this object exists."""

    def __init__(self, file: BinaryIO) -> None:
        self._descriptor = os.dup(file.fileno())

    def read(self, begin: int, size: int) -> bytes:
        """Return bytes of the file. Threads and forked processes may call this at the same time, because `pread` uses
        no common position."""
        return os.pread(self._descriptor, size, begin)

    def __del__(self) -> None:
        os.close(self._descriptor)


def _stored(file: BinaryIO) -> tuple["StoredSentences", str]:
    """Return the sentences of an open file, and the SHA-256 of the file."""
    hashed, begins, sizes, begin = sha256(), array("q"), array("q"), 0
    for line in file:
        hashed.update(line)
        begins.append(begin)
        sizes.append(len(line))
        begin += len(line)
    return StoredSentences(_OpenFile(file), begins, sizes), hashed.hexdigest()


def spooled(sentences: Iterable[Sentence]) -> Sequence[Sentence]:
    """Return sentences as a sequence: in a temporary file if they are more than `IN_MEMORY`, otherwise in memory.

    Raises CorpusError if the temporary file cannot be written.
    """
    if isinstance(sentences, Sequence):
        return sentences
    remaining = iter(sentences)
    first = list(islice(remaining, IN_MEMORY + 1))
    if len(first) <= IN_MEMORY:
        return first
    lines = map(_encode, chain(first, remaining))
    try:
        with tempfile.TemporaryFile() as file:
            file.writelines(lines)
            file.seek(0)
            return _stored(file)[0]
    except OSError as error:
        raise CorpusError(
            f"{tempfile.gettempdir()}: a temporary file could not be written ({error.strerror or error}); free disk "
            "space there, or name another folder in the environment variable TMPDIR"
        ) from error


class StoredSentences(Sequence[Sentence]):
    """The sentences of one split, as a sequence that reads and decodes a line of JSON at each access.

    Keep ``list(split)`` where sentences are read several times (decoding the 12,544 sentences of EWT's train split
    takes one second). The object holds only the place of each line, 16 bytes.

    Args:
        file: the file of the split.
        begins, sizes: the first byte of each line, and the number of its bytes.
        layer: the only layer that is decoded, if not all are.
    """

    def __init__(self, file: _OpenFile, begins: Sequence[int], sizes: Sequence[int], layer: str | None = None) -> None:
        self._file, self._begins, self._sizes, self._layer = file, begins, sizes, layer

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, index: Any) -> Any:
        """Return the sentence at an index, or the list of sentences in a slice."""
        if not isinstance(index, slice):
            return self._decode(index)
        with collector_paused():
            return [self._decode(row) for row in range(*index.indices(len(self)))]

    def __iter__(self) -> Iterator[Sentence]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self[start : start + _AT_ONCE]

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the sentences, which are not decoded if they are written as they are."""
        return map(self._file.read, self._begins, self._sizes) if self._layer is None else map(_encode, self)

    def _decode(self, row: int) -> Sentence:
        tree = json.loads(self._file.read(self._begins[row], self._sizes[row]))
        if self._layer is not None:
            tree = {key: tree[key] for key in ("id", "words", "split", self._layer) if key in tree}
        sentence = from_json(tree)
        return replace(sentence, source=tree["source"]) if "source" in tree else sentence

    def rows(self, numbers: Iterable[int]) -> "StoredSentences":
        """Return the sentences with these numbers, in this order."""
        numbers = list(numbers)
        begins, sizes = (array("q", map(column.__getitem__, numbers)) for column in (self._begins, self._sizes))
        return StoredSentences(self._file, begins, sizes, self._layer)

    def only(self, layer: str) -> "StoredSentences":
        """Return the sentences with this layer only, which takes less time to decode."""
        return StoredSentences(self._file, self._begins, self._sizes, layer)

    def first(self, number: int | None) -> "StoredSentences":
        """Return the first ``number`` sentences, or all sentences if ``number`` is None."""
        return self if number is None else self.rows(range(min(number, len(self))))

    def one_half(self, half_number: int | None) -> "StoredSentences":
        """Return one of two random halves (1 or 2) in corpus order, or all sentences if ``half_number`` is None.

        The halves are the same in every call.
        """
        if half_number is None:
            return self
        import numpy as np

        indices = np.random.default_rng(0).permutation(len(self))[half_number - 1 :: 2]
        return self.rows(np.sort(indices).tolist())

    def find(self, sentence_id: str) -> Sentence | None:
        """Return the sentence with this id, or None if there is none."""
        return next((sentence for sentence in self if sentence.id == sentence_id), None)


class Corpus:
    """A stored corpus: its splits, and the description in ``corpus.json``.

    Attributes:
        path: the folder of the corpus.
        info: name, licence, sources with checksums, fingerprint, and the counts of each split.
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
        """The names of the layers and their kinds: the five standard layers first, then other layers by name."""
        return {**LAYERS, **self.info.get("layers", {})}

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the sentences, as computed when the corpus was written."""
        return self.info["fingerprint"]

    def __getitem__(self, split: str) -> StoredSentences:
        """Return the sentences of a split. Raises CorpusError if there is no such split."""
        if split not in self._splits:
            raise CorpusError(
                f"{self.path}: expected one of the splits {', '.join(self.splits)}, found {split!r}; correct the name"
            )
        return self._splits[split]
