"""What the page is made of: parts with an anchor, a title, markup, data for the script, and what limits them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mtlprune.reports.page.html import Html


@dataclass(frozen=True)
class Part:
    """One part of the page."""

    key: str
    """Its anchor: lower-case letters and dashes."""
    title: str
    body: Html
    caveats: tuple[str, ...] = ()
    """What a reader must know before believing it, in sentences."""
    found: tuple[str, ...] = ()
    """What it says, in a sentence or two, for the top of the page."""
    data: dict[str, Any] = field(default_factory=dict)
    """For the script."""
