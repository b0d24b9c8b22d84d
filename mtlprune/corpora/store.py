"""Corpora on disk: a sentence a line as JSON, a file a split, with a ``corpus.json`` that says what they are.

corpus.json             name, licence, sources, layers, counts, fingerprint, and the SHA-256 of each split's file
SPLIT-SHA.jsonl         its sentences; SHA is the start of that SHA-256
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
_AT_ONCE = 2048  # sentences decoded together when a split is iterated over


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
    """Validate and write a corpus; at every moment ``out`` is the old corpus or the new one, also after a power cut.

    Args:
        sources: the files it was built from, each with a checksum.
        left_out: the part of them that is not in it: layers; sentences that could not be read, their number and why.
        overwrite: replace ``out`` if it is a corpus (never any other folder).

    Raises:
        CorpusError: ``out`` exists already, or cannot be written.
        SentenceError: a sentence contradicts itself, or an id occurs twice.
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
    """Write the file of every split, and corpus.json last, which names them; then remove all other files."""
    try:
        with files.one_writer(out):
            files.remove_halves(out)
            try:
                digests = {split: _write_split(out, split, content) for split, content in sentences.items()}
                files.write_json(out / INFO, {**info, "files": digests})
            finally:
                _remove_unnamed(out)
    except (files.RunError, OSError) as error:
        with contextlib.suppress(OSError):
            out.rmdir()  # where no corpus was
        raise CorpusError(f"{error}; nothing was written") from error


def _remove_unnamed(folder: Path) -> None:
    """Remove files that corpus.json does not name: of the corpus before, or of a build that broke off."""
    digests = read_info(folder)["files"] if (folder / INFO).is_file() else {}
    listed_files = {_path(folder, *file) for file in digests.items()}
    files.remove(*(path for path in folder.glob("*.jsonl") if path not in listed_files))


def _path(folder: Path, split: str, digest: str) -> Path:
    return folder / f"{split}-{digest[:8]}.jsonl"


def _write_split(folder: Path, split: str, sentences: Iterable[Sentence]) -> str:
    """Write the file of a split, and give its SHA-256. Raises RunError where the disk refuses."""
    trees = ({**to_json(s), **({"source": s.source} if s.source else {})} for s in sentences)
    # Separate lines, because a joined text would hold the split once more.
    lines = [json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" for tree in trees]
    hashed = sha256()
    for line in lines:
        hashed.update(line)
    digest = hashed.hexdigest()
    with files.replacing(_path(folder, split, digest)) as staging, staging.open("wb") as stream:
        stream.writelines(lines)
    return digest


def check_free(out: Path, overwrite: bool) -> None:
    """Raise CorpusError if a corpus may not be written to ``out``."""
    left = (".writing", ".jsonl", ".part")  # of a build that was killed
    if not out.exists() or (out.is_dir() and all(path.name.endswith(left) for path in out.iterdir())):
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


SCRIPTS = {
    "ewt5": "python data_scripts/ewt5.py",
    "ontonotes5": "python data_scripts/ontonotes5.py FOLDER --converter JAR",
}
"""Name of the folder of a corpus in our presets → the script of the repository that builds it."""


def how_to_build(path: Path) -> str:
    """The command that builds a corpus, as it can be pasted."""
    script = SCRIPTS.get(path.name)
    return command("data", "build", "FILES", "--out", path) if script is None else f"{script} --out {quote(str(path))}"


def read_info(path: Path) -> dict[str, Any]:
    """The description of a corpus, read at once. Raises CorpusError where none lies, or a damaged one."""
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
    for split, digest in info["files"].items():  # they make the name of a file
        if not re.fullmatch(r"\w+", split) or not re.fullmatch("[0-9a-f]{64}", str(digest)):
            raise CorpusError(f"{file} is damaged (the file of split {split!r}); build the corpus again")
    return info


def load_corpus(path: Path) -> "Corpus":
    """Open a corpus whose files are those that were written; its sentences are decoded when they are asked for. Raises
    CorpusError: no corpus there, or a damaged or changed one."""
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
    """One split. Each access decodes anew: keep ``list(split)`` where sentences are read often (12,544 take 1 s)."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, place: Any) -> Any:
        """A sentence by its place, a list of them by a slice."""
        if not isinstance(place, slice):
            return _decode(self._lines[place])
        with collector_paused():
            return [_decode(line) for line in self._lines[place]]

    def __iter__(self) -> Iterator[Sentence]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self[start : start + _AT_ONCE]

    def first(self, number: int | None) -> "StoredSentences":
        """The first so many; all, if not given."""
        return StoredSentences(self._lines[:number])

    def one_half(self, half_number: int | None) -> "StoredSentences":
        """The first or second of two random halves, in the same order, always the same; all, if not given."""
        if half_number is None:
            return self
        import numpy as np

        places = np.random.default_rng(0).permutation(len(self))[half_number - 1 :: 2]
        return StoredSentences([self._lines[place] for place in np.sort(places)])

    def find(self, sentence_id: str) -> Sentence | None:
        """The sentence with this id, or None."""
        return next((sentence for sentence in self if sentence.id == sentence_id), None)


def _decode(line: bytes) -> Sentence:
    tree = json.loads(line)
    sentence = from_json(tree)
    return replace(sentence, source=tree["source"]) if "source" in tree else sentence


class Corpus:
    """Splits by name, and what is known of the whole.

    Attributes:
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
        """SHA-256 of the sentences, as stored when the corpus was written."""
        return self.info["fingerprint"]

    def __getitem__(self, split: str) -> StoredSentences:
        if split not in self._splits:
            raise CorpusError(f"{self.path}: expected one of the splits {', '.join(self.splits)}, found {split!r}")
        return self._splits[split]
