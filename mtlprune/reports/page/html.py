"""HTML from plain words: everything that is not Html already is escaped, so that no corpus can write into the page."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from mtlprune.reports.grid import Grid, Strong

NAME, SHORT, LONG = 20, 12, 32
"""In tables names of rows and words of so many signs or fewer stay on one line; long ones get room for some a line."""
_ALONE = frozenset({"meta", "br", "input", "hr"})


class Html(str):
    """Text that is markup already; only ``element`` and ``joined`` make it."""


def escaped(words: str) -> str:
    """Words as they stand between tags and in attributes; signs that HTML cannot hold become �."""
    plain = words.encode("utf-8", "replace").decode("utf-8")
    return html.escape("".join(c if c.isprintable() or c in "\n\t" else "�" for c in plain), quote=True)


def joined(*children: Any) -> Html:
    """Children one after the other: Html as it is, None left out, iterables unfolded, all else escaped."""
    return Html("".join(_pieces(children)))


def _pieces(children: Iterable[Any]) -> Iterable[str]:
    for child in children:
        if isinstance(child, Html):
            yield child
        elif child is None:
            continue
        elif isinstance(child, str):
            yield escaped(child)
        elif isinstance(child, Iterable):
            yield from _pieces(child)
        else:
            yield escaped(str(child))


def element(name: str, *children: Any, **attributes: Any) -> Html:
    """One element. ``class_`` is class, underscores dashes; None and False leave an attribute out, True bares it."""
    head = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        shown = key.rstrip("_").replace("_", "-")
        head.append(shown if value is True else f'{shown}="{escaped(str(value))}"')
    begin = f"<{' '.join(head)}>"
    return Html(begin if name in _ALONE else f"{begin}{joined(*children)}</{name}>")


def paragraph(*children: Any, **attributes: Any) -> Html:
    """A paragraph."""
    return element("p", *children, **attributes)


def folded(summary: str, *children: Any, opened: bool = False) -> Html:
    """What stands behind a triangle until it is opened; works without scripts."""
    return element("details", element("summary", summary), *children, open=opened)


def island(key: str | None, tree: Any) -> Html:
    """Data for the script: JSON in which nothing can end the element."""
    text = json.dumps(tree, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return element("script", Html(text), type="application/json", id=key)


def plain(value: Any) -> Any:
    """A tree without what JSON lacks: NaN becomes null."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def scrolling(name: str, *children: Any) -> Html:
    """Room that scrolls sideways where the window is narrow; reached by Tab, since arrows scroll it then."""
    return element("div", *children, class_="scroll", tabindex="0", role="region", aria_label=name)


def table(
    columns: Sequence[Any],
    rows: Iterable[Sequence[Any]],
    name: str,
    *,
    texts: int = 1,
    sortable: bool = False,
    right: Sequence[bool] | None = None,
) -> Html:
    """A table in a room that scrolls. The first ``texts`` columns are words, the others numbers.

    Args:
        name: the caption for those who hear the page.
        right: instead of ``texts``, for each column whether it holds numbers.
    """
    sides = ["number" if side else None for side in right or [place >= texts for place in range(len(columns))]]

    def cell(value: Any, place: int) -> Html:
        inner = element("strong", value) if isinstance(value, Strong) and value else value
        if place == 0:
            return element("th", inner, scope="row", class_=sides[place] or _breaks(value, NAME))
        return element("td", inner, class_=sides[place] or _breaks(value, SHORT))

    head = [element("th", column, scope="col", class_=side) for column, side in zip(columns, sides, strict=True)]
    body = [element("tr", *(cell(value, place) for place, value in enumerate(row))) for row in rows]
    parts = [element("caption", name, class_="hidden"), element("thead", element("tr", *head)), element("tbody", *body)]
    return scrolling(name, element("table", *parts, class_="sortable" if sortable else None))


def _breaks(value: Any, short: int) -> str | None:
    """The class that says how the words of a cell may be broken."""
    if isinstance(value, Html):
        return None
    length = len(str(value))
    return "unbroken" if 0 < length <= short else "long" if length > LONG else None


def grid_table(grid: Grid, name: str, *, sortable: bool = False) -> Html:
    """A table of reports/grid.py."""
    return table(list(grid.header), grid.rows, name, texts=grid.texts, sortable=sortable)
