"""Checksums of sentences and of what they are built from, and what they hold, in numbers."""

import contextlib
import gc
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from mtlprune.corpora.formats import files_below
from mtlprune.io.files import file_sha256
from mtlprune.layers import LAYERS, kind_of
from mtlprune.sentence import NOT_ARGUMENTS, Sentence

T = TypeVar("T")


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Python's search for cycles costs a twentieth of an evaluation, a third of planning a large sweep, and most of
    decoding many sentences: of many small objects, none in a cycle."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# -- Checksums of what a corpus holds and of what it was built from --


def fingerprint(splits: Mapping[str, Iterable[Sentence]]) -> str:
    """SHA-256 of the names of the splits and all their sentences in order; nothing else goes into it."""
    digest = hashlib.sha256()
    for name in sorted(splits):
        digest.update(json.dumps(["split", name]).encode() + b"\n")
        for sentence in splits[name]:
            digest.update(json.dumps(_content(sentence), ensure_ascii=True, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


def _content(sentence: Sentence) -> list[Any]:
    """The five layers, then others by name, each with its kind."""
    five = (_plain(kind, sentence.get(name)) for name, kind in LAYERS.items())
    further_layers = ([name, layer.kind, _plain(layer.kind, layer.value)] for name, layer in sentence.further)
    pair = [] if sentence.split is None else [["split", sentence.split]]
    return [sentence.id, sentence.words, *five, *further_layers, *pair]


def _plain(kind: str, value: Any) -> Any:
    """Predicates spelled out: the hash must not change when the class gets a new field or another order of them."""
    if value is None or kind_of(kind) != "frames":
        return value
    return [[p.index, p.roleset, p.lemma, p.arguments] for p in value]


def source_digest(path: Path) -> str:
    """SHA-256 of a file; of a folder, the SHA-256 over the relative names and digests of all files in it (links
    followed)."""
    path = Path(path)
    if path.is_file():
        return file_sha256(path)
    files = sorted((file.relative_to(path).as_posix(), file) for file in files_below(path) if file.is_file())
    listing = "".join(f"{source_digest(file)}  {name}\n" for name, file in files)
    return hashlib.sha256(listing.encode()).hexdigest()


# -- what a corpus holds, in numbers -----------------------------------------------------------------------------------


def count(sentences: Iterable[Sentence], layers: Mapping[str, str] = LAYERS) -> dict[str, Any]:
    """Counts over the sentences of one split, as corpus.json has them. ``layers``: those of the corpus, and their
    kinds.

    Of tags, relations, constituents and roles the numbers of distinct labels; arguments leave V and C-V out; layers of
    other names stand under ``further``.
    """
    size = words = longest = complete = 0
    layer_counts = Counter[str]()
    labels = {name: Counter[str | None]() for name in layers}
    for size, sentence in enumerate(sentences, 1):  # noqa: B007 (it is counted)
        names = sentence.layers()
        words += len(sentence)
        longest = max(longest, len(sentence))
        complete += LAYERS.keys() <= set(names)
        layer_counts.update(names)
        for name in names:
            labels[name].update(LABELS[kind_of(layers[name])](sentence.get(name)))
    counts: dict[str, Any] = {
        "sentences": size,
        "words": words,
        "longest": longest,
        "known": {name: layer_counts[name] for name in layers},
    }
    counts["all_layers"] = complete
    numbers = {name: _NUMBERS[kind_of(kind)](labels[name]) for name, kind in layers.items()}
    for name in LAYERS:
        counts |= numbers.pop(name)
    return counts | ({"further": numbers} if numbers else {})


LABELS: dict[str, Callable[[Any], Iterable[str | None]]] = {
    "tags": tuple,
    "spans": lambda spans: [span.label for span in spans],
    "tree": lambda tree: [*tree.relations, *([] if is_projective(tree.heads) else [None])],
    "brackets": lambda spans: [span.label for span in spans],
    "frames": lambda frames: [*(span.label for p in frames for span in p.arguments), *[None] * len(frames)],
    "label": lambda label: (label,),
    "number": lambda number: (),
    "labels": tuple,
}
"""The labels of a value, by kind; None, which is no label, for each tree that is not projective and each predicate."""


def _frames(labels: Counter[str | None]) -> dict[str, Any]:
    roles = {label: number for label, number in labels.items() if label is not None and label not in NOT_ARGUMENTS}
    return {"predicates": labels[None], "arguments": sum(roles.values()), "roles": len(roles)}


_NUMBERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "tags": lambda labels: {"tags": len(labels)},
    "spans": lambda labels: {"entities": dict(sorted(labels.items()))},
    "tree": lambda labels: {"relations": len(labels.keys() - {None}), "non_projective": labels[None]},
    "brackets": lambda labels: {"constituents": labels.total(), "constituent_labels": len(labels)},
    "frames": _frames,
    "label": lambda labels: {"labels": dict(sorted(labels.items()))},
    "number": lambda labels: {},
    "labels": lambda labels: {"labels": dict(sorted(labels.items()))},
}


def is_projective(heads: Sequence[int]) -> bool:
    """True where no two arcs cross, the arc from the root (0, left of the first word) included.

    Arcs are intervals; sorted by their left end and longer ones first, they nest exactly if none ends beyond the
    innermost one that is still open.
    """
    arcs = sorted((min(head, word), -max(head, word)) for word, head in enumerate(heads, 1))
    still_open: list[int] = []
    for left, minus_right in arcs:
        while still_open and still_open[-1] <= left:
            still_open.pop()
        if still_open and -minus_right > still_open[-1]:
            return False
        still_open.append(-minus_right)
    return True


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of ``size`` items, the last one of what is left."""
    left = iter(items)
    while batch := list(islice(left, size)):
        yield batch
