"""Sections of further analyses: which files in a folder belong to which, and how their blocks become markup."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from importlib import import_module
from pathlib import Path

from mtlprune.analyses import ANALYSES
from mtlprune.analyses.analysis import find, read
from mtlprune.files import RunError, read_json, reading
from mtlprune.reports import analyses as shown
from mtlprune.reports.page.render import Part
from mtlprune.reports.sections import Section

SECTIONS: dict[str, tuple[str, str]] = {
    **{name: (f"{name}.json", "") for name in ANALYSES.values()},
    "head-table": ("heads.json", "mtlprune.analyses.heads.show.section"),
}
"""Name → the file that an analysis leaves in its folder, and the module that reads the folder, imported when needed; ""
where a record says it all."""


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
            section = _section(name, folder)
        taken = {part.key for part in made}
        key = next(k for k in (section.key, *(f"{section.key}-{n}" for n in range(2, 1000))) if k not in taken)
        title = section.title if key == section.key else f"{section.title} ({folder})"
        caveats = list(_elsewhere(folder / SECTIONS[name][0], title, data))
        made.append(Part(key, title, {"blocks": section.blocks}, caveats, template="analysis"))
    return made


def _section(name: str, folder: Path) -> Section:
    module = SECTIONS[name][1]
    if module:
        made: Section = import_module(module).section(folder)
        return made
    return shown.section(find(name), read(folder, name))


def _elsewhere(file: Path, title: str, data: Collection[str]) -> Iterator[str]:
    """Says so where an analysis was made of another corpus than those of these fingerprints."""
    found = read_json(file)
    made = found.get("fingerprint")
    if data and made is not None and made not in data:
        yield f"{title}: made of another corpus than the runs were trained on ({found.get('corpus', made[:8])})."
