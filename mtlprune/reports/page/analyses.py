"""Sections of further analyses: which files in a folder belong to which, and how their blocks become markup."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from importlib import import_module
from itertools import groupby
from pathlib import Path

from mtlprune.analyses import ANALYSES
from mtlprune.analyses.analysis import find, read
from mtlprune.files import RunError, read_json, reading
from mtlprune.reports import analyses as shown
from mtlprune.reports.drawing import Drawing
from mtlprune.reports.page.figures import chart, figure
from mtlprune.reports.page.html import Html, element, folded, joined, paragraph, table
from mtlprune.reports.page.parts import Part
from mtlprune.reports.sections import Figure, Paragraph, Rows, Section

SECTIONS: dict[str, tuple[str, str]] = {
    **{name: (f"{name}.json", "") for name in ANALYSES.values()},
    "dissection": ("dissection.json", "mtlprune.analyses.dissection.show.section"),
    "syntax": ("syntax.json", "mtlprune.analyses.syntax.show.section"),
    "degeneration": ("degeneration.json", "mtlprune.analyses.degeneration.show.section"),
    "head-table": ("heads.json", "mtlprune.analyses.heads.show.section"),
}
"""Name → the file that an analysis leaves in its folder, and the module that reads the folder, imported when needed; ""
where a record says it all."""


LONG = 15
"""Tables of an analysis with more rows are folded."""
SMALL = 500
"""Figures of an analysis up to this width may stand side by side."""
Block = Paragraph | Rows | Figure


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
        made.append(Part(key, title, markup(section), tuple(_elsewhere(folder / SECTIONS[name][0], title, data))))
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


def markup(section: Section) -> Html:
    """Its blocks, with every word escaped; small figures that follow one another stand side by side."""
    return joined(_row(small, list(blocks)) for small, blocks in groupby(section.blocks, _is_small))


def _is_small(block: Block) -> bool:
    return isinstance(block, Figure) and isinstance(block.drawing, Drawing) and block.drawing.width <= SMALL


def _row(small: bool, blocks: Sequence[Block]) -> Html:
    made = joined(map(_block, blocks))
    return element("div", made, class_="gallery") if small and len(blocks) > 1 else made


def _block(block: Block) -> Html:
    if isinstance(block, Paragraph):
        return paragraph(block.words)
    if isinstance(block, Figure):
        if isinstance(block.drawing, dict):
            return chart(block.drawing, block.alt, block.caption)
        return figure(block.drawing, block.alt, block.caption)
    numbers = set(block.numbers)
    texts = next((place for place, column in enumerate(block.columns) if column in numbers), len(block.columns))
    whole = table(
        list(block.columns),
        block.rows,
        block.caption or "Table",
        texts=texts,
        sortable=block.sortable,
        right=[column in numbers for column in block.columns],
    )
    body = joined(whole, paragraph(block.caption, class_="note") if block.caption else None)
    if len(block.rows) <= LONG:
        return body
    name = re.split(r"(?<=[.?]) ", block.caption, maxsplit=1)[0].rstrip(".") or "Table"
    return folded(f"{name} ({len(block.rows)} rows)", body)
