"""Read BLiMP: minimal pairs of an acceptable and an unacceptable sentence (Warstadt et al. 2020).

``analyze syntax`` and the pretraining setting ``watch.pairs`` use these pairs. Example:

for paradigm in read_blimp(Path("data/blimp")):
    paradigm.name, paradigm.phenomenon, paradigm.pairs[0].good
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats import read_lines
from mtlprune.io.files import parse_json_line

SUFFIX = ".jsonl"
_MERGED = {"s-selection": "argument_structure"}
"""Phenomenon in the files → phenomenon in the paper.

The paper has twelve phenomena; the files name a thirteenth, which the tables of the paper count as part of another.
"""


class MinimalPair(NamedTuple):
    """Two sentences as text: speakers accept the first, and reject the second."""

    good: str
    bad: str


@dataclass(frozen=True)
class Paradigm:
    """Pairs made from one template; ``phenomenon`` is one of the twelve phenomena of the paper."""

    name: str
    phenomenon: str
    pairs: tuple[MinimalPair, ...]


def read_blimp(folder: Path, pairs: int | None = None) -> list[Paradigm]:
    """Read all paradigms in a folder, sorted by file name.

    Args:
        folder: contains one file ``*.jsonl`` per paradigm, or a folder ``data`` with these files.
        pairs: how many pairs to read per paradigm, from the start of the file; None for all.

    Raises:
        CorpusError: the folder has no such file, a line is not a minimal pair, or a file is empty or has pairs of
            several paradigms.
    """
    inner = folder / "data"
    data_folder = inner if inner.is_dir() else folder
    files = sorted(data_folder.glob(f"*{SUFFIX}"))
    if not files:
        raise CorpusError(
            f"{folder}: expected the files of BLiMP (*{SUFFIX}, one for each paradigm), found none; make the folder "
            "with "
            "python data_scripts/blimp.py --out data/blimp"
        )
    return [_read(path, pairs) for path in files]


def _read(path: Path, limit: int | None) -> Paradigm:
    pairs: list[MinimalPair] = []
    paradigm: tuple[str, str] | None = None
    for number, line in read_lines(path):
        if not line.strip() or (limit is not None and len(pairs) == limit):
            continue
        entry = _entry(line, f"{path}, line {number}")
        line_paradigm = entry["UID"], _MERGED.get(entry["linguistics_term"], entry["linguistics_term"])
        if paradigm is not None and line_paradigm != paradigm:
            raise CorpusError(
                f"{path}, line {number}: expected the paradigm {paradigm[0]} as before, found {line_paradigm[0]}"
            )
        paradigm = line_paradigm
        pairs.append(MinimalPair(entry["sentence_good"], entry["sentence_bad"]))
    if paradigm is None:
        raise CorpusError(f"{path}: expected minimal pairs, found none; download the corpus again")
    return Paradigm(*paradigm, tuple(pairs))


def _entry(line: str, location: str) -> dict[str, Any]:
    entry = parse_json_line(line, location, CorpusError)
    for key in ("sentence_good", "sentence_bad", "UID", "linguistics_term"):
        if not isinstance(entry, dict) or not isinstance(entry.get(key), str) or not entry[key].strip():
            raise CorpusError(f"{location}: expected a pair with {key}, found none; name a file of BLiMP")
    return entry
