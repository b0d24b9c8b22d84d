"""Corpora of anyone's files: which files, which split, ids that differ; and several corpora as one."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats import files_below
from mtlprune.corpora.spool import spooled
from mtlprune.corpora.tables import source_digest
from mtlprune.layers import Layer
from mtlprune.sentence import Sentence, declared

Splits = dict[str, Sequence[Sentence]]
Tell = Callable[[str], None]
SHARES = "80/10/10"


class Files(NamedTuple):
    """Which files, as a user names them: paths, folders or patterns.

    Attributes:
        together: to be split by chance.
        apart: split → its own.
        shares: of train, dev and test, in percent.
        seed: of the split.
    """

    together: Sequence[str] = ()
    apart: Mapping[str, Sequence[str]] = {}
    shares: str = SHARES
    seed: int = 1


def read_files(files: Files, read: Callable[[Path], Iterable[Sentence]], tell: Tell) -> tuple[Splits, dict[str, str]]:
    """Read every file with ``read``.

    Returns:
        the sentences of each split, with ids that differ, and the SHA-256 of each file.

    Raises:
        CorpusError: no files, or none of a split; what ``read`` raises.
    """
    apart = {split: names for split, names in files.apart.items() if names}
    if files.together and apart:
        raise CorpusError(
            f"expected either files that are split by chance or files of each split, found {files.together[0]} beside "
            f"--{next(iter(apart))}; put patterns into quotes (--train 'data/*.conllu'), or repeat the option"
        )
    if not files.together and not apart:
        raise CorpusError("expected files, found none; name them with --train, --dev and --test, or one to be split")
    paths = {split: expand(names) for split, names in (apart or {"all": files.together}).items()}
    splits: Splits = {split: spooled(s for path in found for s in read(path)) for split, found in paths.items()}
    for split, sentences in splits.items():
        if not sentences:
            raise CorpusError(f"{', '.join(map(str, paths[split]))}: expected sentences, found none; check the file")
    digests = {str(path): source_digest(path) for found in paths.values() for path in found}
    if files.together:
        splits = cut(splits["all"], files.shares, files.seed)
        digests["split"] = f"{files.shares}, seed {files.seed}"
    return with_own_ids(splits, tell), digests


def expand(names: Sequence[str]) -> list[Path]:
    """The files that paths, folders and patterns stand for, sorted within each. Raises CorpusError where none does."""
    found: dict[Path, None] = {}
    for name in names:
        path = Path(name)
        root = Path(path.anchor)
        inside: Iterable[Path] = ()
        if name and path.is_dir():
            inside = (file for file in files_below(path) if not file.name.startswith("."))
        elif name:
            inside = [path] if path.is_file() else root.glob(str(path.relative_to(root)))
        files = sorted(file for file in inside if file.is_file())
        if not files:
            raise CorpusError(f"{name}: expected a file, a folder of files or a pattern, found none; check the path")
        found.update(dict.fromkeys(files))
    return list(found)


def cut(sentences: Sequence[Sentence], shares: str, seed: int) -> Splits:
    """Split sentences by chance into train, dev and test, each in its first order. Raises CorpusError."""
    if not re.fullmatch(r"\d+/\d+/\d+", shares) or sum(percent := [int(p) for p in shares.split("/")]) != 100:
        raise CorpusError(f"--split: expected percents of train, dev and test such as {SHARES}, found {shares!r}")
    ends = [round(len(sentences) * sum(percent[: k + 1]) / 100) for k in range(3)]
    order = list(range(len(sentences)))
    random.Random(seed).shuffle(order)
    splits: Splits = {}
    for split, share, begin, end in zip(("train", "dev", "test"), percent, [0, *ends], ends, strict=False):
        if share and begin == end:
            raise CorpusError(f"--split: {len(sentences)} sentences are too few for {share} % of {split}; take more")
        if share:
            own = set(order[begin:end])
            splits[split] = spooled(sentence for place, sentence in enumerate(sentences) if place in own)
    return splits


def with_own_ids(splits: Mapping[str, Sequence[Sentence]], tell: Tell) -> Splits:
    """The second sentence of an id gets ``~2`` at its end, and so on."""
    taken = Counter[str]()
    known = {sentence.id for sentences in splits.values() for sentence in sentences}
    if double := sum(map(len, splits.values())) - len(known):
        tell(f"{double} sentences had the id of an earlier one and have got another, such as ID~2")

    def renamed(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
        for sentence in sentences:
            taken[sentence.id] += 1
            name = sentence.id
            while taken[sentence.id] > 1 and (name := f"{sentence.id}~{taken[sentence.id]}") in known:
                taken[sentence.id] += 1
            known.add(name)
            yield replace(sentence, id=name)

    return {split: spooled(renamed(sentences)) if double else sentences for split, sentences in splits.items()}


def merge(corpora: Mapping[str, Mapping[str, Sequence[Sentence]]], tell: Tell) -> Splits:
    """Join the layers of sentences with equal words, split by split, and append the others.

    The k-th sentence of some words in a split joins the k-th sentence of these words in the same split of what came
    before. Of a layer that both know, the first corpus's stays.

    Args:
        corpora: name → its splits, in order.

    Raises:
        CorpusError: a layer is of two kinds.
    """
    result: dict[str, list[Sentence]] = {}
    kinds: dict[str, tuple[str, str]] = {}
    for name, splits in corpora.items():
        joined = appended = other = 0
        for split, sentences in splits.items():
            sentences = list(sentences)
            for layer, kind in declared(sentences).items():
                first, known = kinds.setdefault(layer, (name, kind))
                if kind != known:
                    what = f"expected the layer {layer} to be of the kind {known} as in {first}, found {kind}"
                    raise CorpusError(f"{name}: {what}; build it under another name")
            here = result.setdefault(split, [])
            places: dict[tuple[str, ...], list[int]] = defaultdict(list)
            for place in range(len(here) - 1, -1, -1):
                places[here[place].words].append(place)
            for sentence in sentences:
                if not places[sentence.words]:
                    here.append(sentence)
                    appended += 1
                    continue
                old = here[place := places[sentence.words].pop()]
                new = {layer: Layer(kind, sentence.get(layer)) for layer, kind in sentence.kinds().items()}
                other += any(old.kind(layer) is not None and old.get(layer) != new[layer].value for layer in new)
                here[place] = old.with_layers(**{layer: new[layer] for layer in new if old.kind(layer) is None})
                joined += 1
        differ = f"; {other} of those have another value of a layer of what came before, which stays" if other else ""
        tell(f"{name}: {appended} sentences appended, {joined} joined{differ}")
    trained = {sentence.words for sentence in result.get("train", ())}
    for split in (split for split in result if split != "train"):
        if same := sum(sentence.words in trained for sentence in result[split]):
            tell(f"warning: {same} of {len(result[split])} sentences of {split} have the words of one of train")
    return with_own_ids(result, tell)
