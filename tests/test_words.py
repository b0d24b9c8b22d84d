"""Words that were replaced do not come back; what else a word means is in ALLOWED.

Write instead: price → penalty; lens → analysis; verb → command; sheet → sweep specification; crew → workers; team →
process group; pressure → gate penalty; archive → study; surgery → head removal; kin → compatible; claimant → run group;
twins → duplicates; film → animation; heads by chance → random heads; goes on with → resumes; shut → closed; known
failure → limitations.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [
    path
    for pattern in ("mtlprune/**/*.py", "mtlprune/**/*.html", "docs/**/*.md", "README.md", "experiments/*.md")
    for path in sorted(ROOT.glob(pattern))
]
WORDS = {word: rf"\b{word}s?\b" for word in ("verb", "sheet", "crew", "team", "pressure", "archive", "claimant")}
WORDS |= {word: rf"\b{word}s?\b" for word in ("film", "heads by chance", "goes on with", "shut", "known failure")}
WORDS |= {"price": r"\bpric(e|es|ed)\b", "lens": r"\blens(es)?\b"}
WORDS |= {"surgery": r"\bsurgery\b", "kin": r"(\b|_)kin\b", "twins": r"\btwins?\b"}
"""Word → the expression that finds it, in any case of letters."""

ALLOWED = {
    "price": ("corpora/grammar/", "price/"),
    "verb": (
        "corpora/",
        "docs/reference/grammar.md",
        "docs/reference/scores.md",
        "docs/methods/tasks.md",
    ),  # the part of speech
    "sheet": ("reports/page/",),  # style sheets
    "team": ("corpora/grammar/", "ndif-team"),  # an address
    "archive": ("corpora/", "data_scripts/", "Archive with a DOI"),  # of files; of a publication
    "lens": ("transformer-lens",),  # a package
}
"""Word → parts of paths, or of lines, where it means something else."""


@pytest.mark.parametrize("word", WORDS)
def test_a_word_that_was_replaced_does_not_come_back(word: str) -> None:
    allowed = ALLOWED.get(word, ())
    lines = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in FILES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(WORDS[word], line, re.IGNORECASE)
        if not any(part in f"{path.relative_to(ROOT)} {line}" for part in allowed)
    ]
    assert not lines, "\n".join(lines)
