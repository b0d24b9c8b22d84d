"""Corpora that presets and experiments name: how each is built, and how large its training split is."""

from pathlib import Path
from typing import NamedTuple


class KnownCorpus(NamedTuple):
    """A corpus as it is known before it is built.

    Attributes:
        source: where its files come from.
        build: the command that builds it, but for ``--out``.
        sentences: of its training split.
        pieces: sub-words of its training split by BERT's tokenizer, about.
    """

    source: str
    build: str
    sentences: int
    pieces: int


KNOWN = {
    "ontonotes5": KnownCorpus(
        "LDC2013T19", "python data_scripts/ontonotes5.py FOLDER --converter JAR", 75_187, 1_600_000
    ),
    "ewt5": KnownCorpus("from the network", "python data_scripts/ewt5.py", 12_544, 233_000),
}
"""Usual name of the folder → corpus."""


def how_to_build(path: Path) -> str:
    """A sentence part that names the source of a corpus that is missing at ``path``, and the command that builds it."""
    if (known := KNOWN.get(path.name)) is None:
        return f"{path}; build it by `mtlprune data build ... --out {path}`"
    return f"{path} ({known.source}); build it by `{known.build} --out {path}`"
