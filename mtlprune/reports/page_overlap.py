"""Overlap of claims on the page: the answer in words, the matrix of correlations, shared heads, stem heads."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mtlprune.analyses.overlap import Overlap, measure
from mtlprune.reports.grid import number
from mtlprune.reports.overlap import Section, answer, listed, sections
from mtlprune.reports.page_gates import ClaimSet
from mtlprune.reports.page_html import Html, element, folded, grid_table, joined, paragraph, scrolling
from mtlprune.reports.page_parts import Part

_OPEN = ("pairs", "stem")
"""Tables that are not folded."""


def part(sets: Sequence[ClaimSet], permutations: int, seed: int) -> Part | None:
    """The part of the page; None where nothing can be compared."""
    measured = [(one.title, measure(one.claims, permutations, seed)) for one in sets if len(one.claimants) > 1]
    if not measured:
        return None
    several = len(measured) > 1
    bodies = [
        _one(title, overlap, opened=place == 0, several=several) for place, (title, overlap) in enumerate(measured)
    ]
    caveats = [
        f"{title}: {line}" if several else line
        for title, overlap in measured
        for line in (*overlap.notes, *overlap.undefined)
    ]
    title, first = measured[0]
    found = f"{answer(first)}" + (f" (Of {title}; the other sets stand below.)" if several else "")
    return Part("overlap", "Overlap of claims", joined(bodies), tuple(caveats), (found,))


def _one(title: str, overlap: Overlap, opened: bool, several: bool) -> Html:
    made = sections(overlap)
    inner = [paragraph(answer(overlap), class_="answer"), _matrix(overlap)]
    for section in made:
        if section.key == "correlation":
            continue
        whole = joined(grid_table(section.grid, section.title), paragraph(section.legend, class_="note"))
        if section.key in _OPEN:
            inner += [element("h4", section.title), whole]
        else:
            inner.append(folded(section.title, whole))
    lists = [paragraph(line) for line in listed(overlap)]
    inner.append(folded("Exclusive and free heads", *lists))
    return folded(title, *inner, opened=opened) if several else joined(inner)


def _matrix(overlap: Overlap) -> Html:
    """The correlations as a table whose cells are shaded, blue below 0 and red above."""
    names = [label.label for label in overlap.labels]
    head = [element("td"), *(element("th", name, scope="col") for name in names)]
    rows = []
    for name, values in zip(names, overlap.correlation, strict=True):
        cells = [element("td", number(value), class_="number shade", style=_shade(value)) for value in values]
        rows.append(element("tr", element("th", name, scope="row"), *cells))
    section: Section = next(one for one in sections(overlap) if one.key == "correlation")
    grid = element(
        "table",
        element("caption", section.title, class_="hidden"),
        element("thead", element("tr", *head)),
        element("tbody", *rows),
        class_="matrix",
    )
    return element(
        "figure", scrolling(section.title, grid), element("figcaption", f"{section.title}. {section.legend}")
    )


def _shade(value: float) -> str | None:
    """Colour and strength; the style sheet mixes them with the page's paper."""
    if math.isnan(value):
        return None
    return f"--k:{min(abs(value), 1):.2f};--hue:var(--{'below' if value < 0 else 'above'})"
