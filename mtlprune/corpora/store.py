"""Store corpora on disk, and load them again.

The folder of a corpus contains:

corpus.json             name, licence, sources, layers, counts, fingerprint, and the SHA-256 of each split's file
SPLIT-SHA.jsonl         the sentences of a split, one JSON object per line; SHA is the start of the file's SHA-256
"""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from shlex import quote
from typing import Any

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
    sentences = {k: content if isinstance(content, Sequence) else list(content) for k, content in splits.items()}
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
    files.remove(*(path for path in folder.glob("*.jsonl") if path not in listed_files))


def _path(folder: Path, split: str, digest: str) -> Path:
    return folder / f"{split}-{digest[:8]}.jsonl"


def _write_split(folder: Path, split: str, sentences: Iterable[Sentence]) -> str:
    """Write the file of a split, and return its SHA-256. Raises RunError if the file cannot be written."""
    trees = ({**to_json(s), **({"source": s.source} if s.source else {})} for s in sentences)
    # The lines stay separate, because one joined text would hold the whole split in memory a second time.
    lines = [json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" for tree in trees]
    hashed = sha256()
    for line in lines:
        hashed.update(line)
    digest = hashed.hexdigest()
    with files.replacing(_path(folder, split, digest)) as staging, staging.open("wb") as stream:
        stream.writelines(lines)
    return digest


def check_free(out: Path, overwrite: bool) -> None:
    """Raise CorpusError if a corpus may not be written to ``out``.

    It may be written to a new or empty folder, to one with only the remains of an interrupted build, and with
    ``overwrite`` to an existing corpus.
    """
    leftovers = (".writing", ".jsonl", ".part")  # endings of the files that an interrupted build leaves
    if not out.exists() or (out.is_dir() and all(path.name.endswith(leftovers) for path in out.iterdir())):
        return
    if not overwrite:
        problem = "one; name another, or replace it (--overwrite)" if out.is_dir() else "a file; name another"
        raise CorpusError(f"{out}: expected a folder yet to be made, found {problem}")
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
    if not info.keys() >= _KEYS or info["files"].keys() != info["splits"].keys():
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
        with files.reading(file, CorpusError, "build the corpus again"):
            content = file.read_bytes()
        if sha256(content).hexdigest() != digest:
            raise CorpusError(f"{file} was changed or damaged since it was written; build the corpus again")
        splits[split] = StoredSentences(content.split(b"\n")[:-1])
        if (stated_count := info["splits"][split].get("sentences")) != len(splits[split]):
            problem = f"expected the {len(splits[split])} sentences that {split} has, found {stated_count}"
            raise CorpusError(f"{path / INFO}: {problem}; build the corpus again")
    return Corpus(path, info, splits)


class StoredSentences(Sequence[Sentence]):
    """The sentences of one split, as a sequence that decodes JSON at each access.

    Keep ``list(split)`` where sentences are read several times (decoding the 12,544 sentences of EWT's train split
    takes one second).
    """

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: Any) -> Any:
        """Return the sentence at an index, or the list of sentences in a slice."""
        if not isinstance(index, slice):
            return _decode(self._lines[index])
        with collector_paused():
            return [_decode(line) for line in self._lines[index]]

    def __iter__(self) -> Iterator[Sentence]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self[start : start + _AT_ONCE]

    def first(self, number: int | None) -> "StoredSentences":
        """Return the first ``number`` sentences, or all sentences if ``number`` is None."""
        return StoredSentences(self._lines[:number])

    def one_half(self, half_number: int | None) -> "StoredSentences":
        """Return one of two random halves (1 or 2) in corpus order, or all sentences if ``half_number`` is None.

        The halves are the same in every call.
        """
        if half_number is None:
            return self
        import numpy as np

        indices = np.random.default_rng(0).permutation(len(self))[half_number - 1 :: 2]
        return StoredSentences([self._lines[index] for index in np.sort(indices)])

    def find(self, sentence_id: str) -> Sentence | None:
        """Return the sentence with this id, or None if there is none."""
        return next((sentence for sentence in self if sentence.id == sentence_id), None)


def _decode(line: bytes) -> Sentence:
    tree = json.loads(line)
    sentence = from_json(tree)
    return replace(sentence, source=tree["source"]) if "source" in tree else sentence


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
            raise CorpusError(f"{self.path}: expected one of the splits {', '.join(self.splits)}, found {split!r}")
        return self._splits[split]
