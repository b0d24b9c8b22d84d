"""Compute checksums of corpora and of their source files, and count what the sentences of a corpus contain."""

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

_T = TypeVar("_T")


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause Python's garbage collector within the ``with`` block.

    The collector's search for reference cycles costs 5 % of the time of an evaluation, a third of the planning of a
    large sweep, and most of the time of decoding many sentences. All of these make many small objects without cycles.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# -- Checksums of sentences and of source files ------------------------------------------------------------------------


def fingerprint(splits: Mapping[str, Iterable[Sentence]]) -> str:
    """Return the SHA-256 over the names of the splits and all their sentences in order.

    Name, licence and sources of the corpus do not change it.
    """
    digest = hashlib.sha256()
    for name in sorted(splits):
        digest.update(json.dumps(["split", name]).encode() + b"\n")
        for sentence in splits[name]:
            digest.update(json.dumps(_content(sentence), ensure_ascii=True, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


def _content(sentence: Sentence) -> list[Any]:
    """Return id, words, standard layers, other layers with their kinds, and the split of a pair, as JSON values."""
    five = (_plain(kind, sentence.get(name)) for name, kind in LAYERS.items())
    further_layers = ([name, layer.kind, _plain(layer.kind, layer.value)] for name, layer in sentence.further)
    pair = [] if sentence.split is None else [["split", sentence.split]]
    return [sentence.id, sentence.words, *five, *further_layers, *pair]


def _plain(kind: str, value: Any) -> Any:
    """Return the value of a layer as JSON values.

    Predicates become explicit lists, so that the hash does not change if the class Predicate gets a new field or
    another order of fields.
    """
    if value is None or kind_of(kind) != "frames":
        return value
    return [[p.index, p.roleset, p.lemma, p.arguments] for p in value]


def source_digest(path: Path) -> str:
    """Return the SHA-256 of a file or folder.

    The checksum of a folder covers the relative names and checksums of all files in it. Links are followed.
    """
    path = Path(path)
    if path.is_file():
        return file_sha256(path)
    files = sorted((file.relative_to(path).as_posix(), file) for file in files_below(path) if file.is_file())
    listing = "".join(f"{source_digest(file)}  {name}\n" for name, file in files)
    return hashlib.sha256(listing.encode()).hexdigest()


# -- Counts ------------------------------------------------------------------------------------------------------------


def count(sentences: Iterable[Sentence], layers: Mapping[str, str] = LAYERS) -> dict[str, Any]:
    """Count sentences, words and labels of one split, as stored in ``corpus.json``.

    Args:
        layers: the layers of the corpus and their kinds.

    Returns:
        numbers of sentences and words, the length of the longest sentence, the number of sentences with each layer
        (``known``) and with all five standard layers (``all_layers``), and counts of labels that depend on the kind of
        the layer (for tags, relations, constituents and roles also the number of distinct labels). Arguments exclude V
        and C-V. Counts of layers other than the five are under ``further``.
    """
    size = words = longest = complete = 0
    layer_counts = Counter[str]()
    labels = {name: Counter[str | None]() for name in layers}
    for size, sentence in enumerate(sentences, 1):  # noqa: B007 (size is used after the loop)
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
"""Kind of a layer → the function that lists the labels of a value.

The list also contains None (not a label) once for a tree that is not projective, and once for each predicate.
"""


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
    """Return True if no two arcs of a dependency tree cross.

    The arc from the root counts as well: the root is position 0, to the left of the first word.
    """
    # Arcs are intervals. If they are sorted by their left end, longer arcs first, they nest exactly if no arc ends
    # beyond the innermost arc that is still open.
    arcs = sorted((min(head, word), -max(head, word)) for word, head in enumerate(heads, 1))
    still_open: list[int] = []
    for left, minus_right in arcs:
        while still_open and still_open[-1] <= left:
            still_open.pop()
        if still_open and -minus_right > still_open[-1]:
            return False
        still_open.append(-minus_right)
    return True


def batched(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Yield lists of ``size`` items; the last list may be shorter."""
    left = iter(items)
    while batch := list(islice(left, size)):
        yield batch
