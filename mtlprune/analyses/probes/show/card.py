"""One head in words, tables and lines: what it knows best, which tasks claim it, what it attends to.

card = HeadCard("minilm", 3, 7, rows, claimed(claims, 3, 7), examples, notes)
text(card), html(card), card.figure()

Letters: S places of a sentence: [CLS], its words, [SEP].
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from jinja2 import Template
from numpy.typing import NDArray

from mtlprune.errors import printable_lines
from mtlprune.figures.charts import ABOVE, INK, RULE, SOFT, Spec, data, figure, panels, svg
from mtlprune.runs.claims import Claim, ClaimError

SHOWN = 10
"""Labels that a card names."""
LEAST, THICKEST = 0.05, 5.0
"""Weights below the one are not drawn; the other is the width of a line of weight 1."""
Known = Mapping[str, Any]
"""A row of ``known`` in reading.py: one label that a head tells."""


@dataclass(frozen=True, eq=False)
class Example:
    """A sentence and what one head does in it."""

    places: tuple[str, ...]
    """S: the words between the names of the special tokens."""
    weights: NDArray[np.float64]
    """(S, S): rows attend, columns are attended to; rows sum to 1."""
    sought: frozenset[tuple[int, int]] = frozenset()
    """Pairs of places that the task connects, in either direction: drawn in blue."""
    caption: str = ""

    def strongest(self) -> list[tuple[int, int, float]]:
        """For each word the word it attends to most, and how much."""
        pairs = []
        for place in range(1, len(self.places) - 1):
            target = 1 + int(np.argmax(self.weights[place, 1:-1]))
            pairs.append((place, target, float(self.weights[place, target])))
        return pairs

    def seeks(self, place: int, target: int) -> bool:
        """Whether the task connects the two."""
        return (place, target) in self.sought or (target, place) in self.sought

    def lines(self) -> pd.DataFrame:
        """What is drawn: a row for each word that attends and place attended to, the faintest first, and those to
        special tokens, where attention rests, before all others."""
        rows = []
        for (place, target), weight in np.ndenumerate(self.weights):
            if weight < LEAST or place in (0, len(self.places) - 1):
                continue
            rests = target in (0, len(self.places) - 1)
            words = f"{self.places[place]} attends to {self.places[target]}: {weight:.2f}"
            colour = ABOVE if self.seeks(place, target) else RULE if rests else INK
            shade = 0.25 + 0.75 * min(weight / 0.6, 1.0)
            wide = 0.5 + (THICKEST - 0.5) * weight
            rows.append((not rests, weight, place + 0.5, target + 0.5, wide, colour, shade, words))
        names = ["words", "weight", "from", "to", "wide", "colour", "shade", "told"]
        return pd.DataFrame(rows, columns=names).sort_values(["words", "weight", "from", "to"], ignore_index=True)

    def chart(self) -> alt.LayerChart | alt.FacetChart:
        """Lines from the attending words, on the left, to those attended to."""
        size = len(self.places)
        upright = alt.Y("from:Q", scale=alt.Scale(domain=[size, 0]), axis=None)
        ends = {"x": alt.value(0), "x2": alt.value(110)}
        drawn = (
            alt.Chart(data(self.lines()), title=self.caption, width=110, height=18 * size)
            .mark_rule()
            .encode(
                y=upright,
                y2="to:Q",
                color=alt.Color("colour:N", scale=None),
                opacity=alt.Opacity("shade:Q", scale=None),
                strokeWidth=alt.StrokeWidth("wide:Q", scale=None),
                tooltip=alt.Tooltip("told:N", title="weight"),
                **ends,
            )
        )
        inks = [SOFT if place in (0, size - 1) else INK for place in range(size)]
        table = pd.DataFrame({"from": np.arange(size) + 0.5, "word": self.places, "ink": inks})
        words = alt.Chart(data(table)).encode(upright, alt.Text("word:N"), alt.Color("ink:N", scale=None))
        return alt.layer(
            drawn,
            words.mark_text(align="right", dx=-6).encode(x=alt.value(0)),
            words.mark_text(align="left", dx=6).encode(x=alt.value(110)),
        )


@dataclass(frozen=True)
class Claimed:
    """How one label's runs use the head."""

    label: str
    open: int
    seeds: int
    mean: float


@dataclass(frozen=True, eq=False)
class HeadCard:
    """Everything shown of a head."""

    subject: str
    layer: int
    head: int
    known: Sequence[Known]
    claimed: Sequence[Claimed]
    examples: Sequence[Example]
    notes: Sequence[str]

    @property
    def title(self) -> str:
        return f"Layer {self.layer}, head {self.head} of {self.subject}"

    def figure(self) -> Spec:
        """The sentences, with attention as lines."""
        best = ", ".join(
            f"{row['task'].upper()} {row['label']} {row['test']:.1f} %"
            + ("" if math.isnan(row["gain"]) else f" ({_gain(row)})")
            for row in self.known[:4]
        )
        lines = [f"Knows best: {best}."] if self.known else []
        lines += [f"Claimed by: {_claims(self.claimed)}."] if self.claimed else []
        lines.append(
            "Lines run from the attending word (left) to the one attended to; thickness is weight, below 0.05 none."
            + (" Blue: pairs that the label connects." if any(example.sought for example in self.examples) else "")
        )
        widest = max((len(word) for example in self.examples for word in example.places), default=0)
        nothing = alt.Chart(data(pd.DataFrame({"x": [0]}))).mark_rule()
        charts = [example.chart() for example in self.examples] or [nothing]
        return figure(panels(charts, max(1, 900 // (14 * widest + 170)), 36), self.title, [*lines, *self.notes])


def claimed(claims: Iterable[Claim], layer: int, head: int) -> list[Claimed]:
    """By label of the runs: mean gate, and in how many seeds the head is open.

    Raises:
        ClaimError: the runs' encoder has no such head.
    """
    groups: dict[str, list[Claim]] = {}
    for claim in claims:
        layers, heads = claim.gates.shape
        if layer > layers or head > heads:
            raise ClaimError(
                f"{claim.run} has {layers} layers of {heads} heads, so there is no head {head} in layer {layer}"
            )
        groups.setdefault(claim.label, []).append(claim)
    return [
        Claimed(
            label,
            sum(bool(claim.open[layer - 1, head - 1]) for claim in group),
            len(group),
            float(np.mean([claim.gates[layer - 1, head - 1] for claim in group])),
        )
        for label, group in groups.items()
    ]


def _claims(rows: Sequence[Claimed]) -> str:
    users = [f"{row.label} ({row.open} of {row.seeds} seeds, mean gate {row.mean:.2f})" for row in rows if row.open]
    return ", ".join(users) or f"none of {', '.join(row.label for row in rows)}"


def text(card: HeadCard) -> str:
    """The card for a terminal."""
    parts = [card.title, *card.notes]
    if card.known:
        parts += ["", "knows best (accuracy on test; gain over the best control; rank among heads):"]
        width = max(len(row["label"]) for row in card.known[:SHOWN])
        parts += [
            f"  {row['task'].upper()}  {row['label']:{width}}  {row['test']:5.1f} %  {_gain(row):>6}  "
            f"rank {row['rank']} of {row['there']}, {row['items']} items{_marks(row)}"
            for row in card.known[:SHOWN]
        ]
    if card.claimed:
        parts += ["", f"claimed by: {_claims(card.claimed)}"]
    for example in card.examples:
        parts += ["", example.caption or " ".join(example.places[1:-1])]
        width = max(map(len, example.places[1:-1]))
        for place, target, weight in example.strongest():
            rest = example.weights[place, 0] + example.weights[place, -1]
            ends = f"{example.places[place]:>{width}} → {example.places[target]:{width}}"
            mark = "*" if example.seeks(place, target) else " "
            bar = f"{'█' * round(10 * weight):10}"
            parts.append(f"  {ends} {mark} {weight:.2f} {bar}  special tokens {rest:.2f}")
    if any(example.sought for example in card.examples):
        parts += ["", "* a pair that the label connects"]
    return "\n".join(parts) + "\n"


def _gain(row: Known) -> str:
    return "–" if math.isnan(row["gain"]) else f"{row['gain']:+.1f}"


def _marks(row: Known) -> str:
    """What a reader must know of the row. Root is no arc: it counts where attention rests, at [CLS]."""
    rests = ", attention resting at [CLS]" if row["apart"] else ""
    return rests + (", chosen" if row["best"] else "") + (", few items" if row["few"] else "")


def html(card: HeadCard) -> str:
    """The card as one page without anything from elsewhere."""
    known = []
    for row in card.known:
        place, marks = f"{row['rank']} of {row['there']}", _marks(row).removeprefix(", ")
        numbers = f"{row['test']:.1f}", _gain(row), place, row["items"], marks
        known.append((row["task"].upper(), row["label"], *numbers))
    claimed = [[row.label, f"{row.open} of {row.seeds}", f"{row.mean:.2f}"] for row in card.claimed]
    source = (files(__package__) / "card.html").read_text(encoding="utf-8")
    page = Template(source, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    drawing = svg(card.figure()) if card.examples else ""
    return printable_lines(page.render(card=card, known=known, claimed=claimed, drawing=drawing))
