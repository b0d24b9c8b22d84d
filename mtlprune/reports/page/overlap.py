"""Overlap of claims on the page: the answer in words, the matrix of correlations, shared heads, stem heads."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mtlprune.analyses.claims.overlap import Overlap, measure
from mtlprune.analyses.claims.show.overlap import answer, listed, sections
from mtlprune.reports.grid import number, probability
from mtlprune.reports.page.gates import ClaimSet
from mtlprune.reports.page.html import Html, element, folded, grid_table, joined, paragraph, scrolling
from mtlprune.reports.page.parts import Part


def part(sets: Sequence[ClaimSet], permutations: int, seed: int) -> Part | None:
    """The part of the page; None where nothing can be compared."""
    measured = [(one.title, measure(one.claims, permutations, seed)) for one in sets if len(one.claimants) > 1]
    if not measured:
        return None
    several = len(measured) > 1
    bodies = [element("h3", measured[0][0][:1].upper() + measured[0][0][1:])] if several else []
    bodies.append(_one(measured[0][1]))
    if several:
        bodies.append(element("h3", "Other ways of pruning"))
        bodies += [folded(title, _one(overlap)) for title, overlap in measured[1:]]
    caveats = [
        f"{title}: {line}" if several else line
        for title, overlap in measured
        for line in (*overlap.notes, *overlap.undefined)
    ]
    title, first = measured[0]
    found = f"{answer(first)}" + (f" (Runs with {title}.)" if several else "")
    return Part("overlap", "Overlap of claims", joined(bodies), tuple(caveats), (found,))


def _one(overlap: Overlap) -> Html:
    made = sections(overlap)
    inner = [paragraph(answer(overlap), class_="answer"), _matrix(overlap)]
    for section in made:
        if section.key == "correlation":
            continue
        whole = joined(grid_table(section, section.title, sortable=True), paragraph(section.caption, class_="note"))
        if section.key == "stem":
            inner += [element("h4", section.title), paragraph(_stem(overlap)), folded("Every stem head", whole)]
        elif section.key == "pairs":
            inner += [element("h4", section.title), whole]
        else:
            inner.append(folded(section.title, whole))
    lists = [paragraph(line) for line in listed(overlap)]
    inner.append(folded("Exclusive and free heads", *lists))
    return joined(inner)


def _stem(overlap: Overlap) -> str:
    """How many stem heads there are beside chance, and their names."""
    row = next(row for row in overlap.claimed_by if row.tasks == overlap.stem_tasks)
    names = ", ".join(head.name for head in overlap.stem)
    more = "" if math.isnan(row.layers.p_more) else f" (p of so many or more {probability(row.layers.p_more)})"
    return (
        f"{row.heads} heads are claimed by {overlap.stem_tasks} tasks or more; {number(row.layers.expected, 1)} are "
        f"expected from layer depth alone{more}. Named layer-head: {names}."
    )


def _matrix(overlap: Overlap) -> Html:
    """The correlations as a table whose cells are shaded, blue below 0 and red above."""
    names = [label.label for label in overlap.labels]
    head = [element("td"), *(element("th", name, scope="col") for name in names)]
    rows = []
    for name, values in zip(names, overlap.correlation, strict=True):
        cells = [element("td", number(value), class_="number shade", style=_shade(value)) for value in values]
        rows.append(element("tr", element("th", name, scope="row"), *cells))
    section = next(one for one in sections(overlap) if one.key == "correlation")
    grid = element(
        "table",
        element("caption", section.title, class_="hidden"),
        element("thead", element("tr", *head)),
        element("tbody", *rows),
        class_="matrix",
    )
    return element(
        "figure", scrolling(section.title, grid), element("figcaption", f"{section.title}. {section.caption}")
    )


def _shade(value: float) -> str | None:
    """Colour and strength; the style sheet mixes them with the page's paper."""
    if math.isnan(value):
        return None
    return f"--k:{min(abs(value), 1):.2f};--hue:var(--{'below' if value < 0 else 'above'})"
