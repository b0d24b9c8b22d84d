"""Sections of further analyses: which files in a folder belong to which, and how their blocks become markup.

A sixth one is a line in SECTIONS and a module with ``section(folder: Path) -> Section``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from importlib import import_module
from pathlib import Path

from mtlprune.files import RunError, read_json, reading
from mtlprune.reports.page.render import Part

SECTIONS: dict[str, tuple[str, str]] = {
    "smoothing": ("smoothing.json", "mtlprune.analyses.smoothing.show.section"),
    "dissection": ("dissection.json", "mtlprune.analyses.dissection.show.section"),
    "syntax": ("syntax.json", "mtlprune.analyses.syntax.show.section"),
    "degeneration": ("degeneration.json", "mtlprune.analyses.degeneration.show.section"),
    "head-table": ("heads.json", "mtlprune.analyses.heads.show.section"),
}
"""Name → the file that an analysis leaves in its folder, and the module that reads the folder; imported when needed."""


def parts(folders: Sequence[Path], data: Collection[str] = ()) -> list[Part]:
    """A part for every analysis found in the folders, in the order of SECTIONS.

    Args:
        data: fingerprints of the corpora of the page's runs; an analysis of another one is called so.

    Raises:
        RunError: a folder without results of any analysis.
    """
    found: list[tuple[str, Path]] = []
    for folder in dict.fromkeys(folders):
        here = [name for name, (file, _) in SECTIONS.items() if (folder / file).is_file()]
        if not here:
            files = ", ".join(file for file, _ in SECTIONS.values())
            raise RunError(
                f"{folder} holds no results of an analysis (none of {files}); name a folder that "
                "`mtlprune analyze ... --out DIR` wrote"
            )
        found += [(name, folder) for name in here]
    names = list(SECTIONS)
    made: list[Part] = []
    for name, folder in sorted(found, key=lambda one: names.index(one[0])):
        with reading(folder / SECTIONS[name][0], RunError, "make it anew"):
            section = import_module(SECTIONS[name][1]).section(folder)
        taken = {part.key for part in made}
        key = next(k for k in (section.key, *(f"{section.key}-{n}" for n in range(2, 1000))) if k not in taken)
        title = section.title if key == section.key else f"{section.title} ({folder})"
        caveats = list(_elsewhere(folder / SECTIONS[name][0], title, data))
        made.append(Part(key, title, {"blocks": section.blocks}, caveats, template="analysis"))
    return made


def _elsewhere(file: Path, title: str, data: Collection[str]) -> Iterator[str]:
    """Says so where an analysis was made of another corpus than those of these fingerprints."""
    found = read_json(file)
    made = found.get("fingerprint")
    if data and made is not None and made not in data:
        yield f"{title}: made of another corpus than the runs were trained on ({found.get('corpus', made[:8])})."
