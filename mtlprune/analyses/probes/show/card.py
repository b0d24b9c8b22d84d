"""One head in words and tables: what it knows best, which tasks claim it, what it attends to.

card = HeadCard("minilm", 3, 7, known(results, key, 3, 7), claimed(claims, 3, 7), examples, notes)
text(card), html(card)
"""

from __future__ import annotations

import html as markup
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mtlprune.analyses.probes.show.attention import Example, attention_drawing
from mtlprune.analyses.probes.show.results import ROOT, Key, ProbeResults
from mtlprune.claimed_heads import Claim, ClaimError
from mtlprune.errors import printable_lines
from mtlprune.reports.canvas_svg import svg
from mtlprune.reports.drawing import Drawing

SHOWN = 10
"""Labels that a card names."""


@dataclass(frozen=True)
class Known:
    """One label that a head tells."""

    task: str
    label: str
    items: int
    few: bool
    accuracy: float
    gain: float
    """Over the label's best control; NaN where none was probed."""
    rank: int
    """Among all heads, 1 is the best."""
    heads: int
    chosen: bool
    """Whether this head was chosen for the label."""


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

    def drawing(self) -> Drawing:
        """The sentences, with attention as lines."""
        lines = [f"Knows best: {_listed(self.known[:4])}."] if self.known else []
        lines += [f"Claimed by: {_claims(self.claimed)}."] if self.claimed else []
        lines.append(
            "Lines run from the attending word (left) to the one attended to; thickness is weight, below 0.05 none."
            + (" Blue: pairs that the label connects." if any(example.sought for example in self.examples) else "")
        )
        return attention_drawing(self.title, [*lines, *self.notes], self.examples)


def known(found: ProbeResults, encoder: str, seed: int, mode: str, layer: int, head: int) -> list[Known]:
    """All labels that have a number for this head: those it beats every control on first, then by its rank."""
    rows = []
    for task in found.tasks(mode):
        for label, result in found.labels.get(Key(encoder, seed, mode, task), {}).items():
            mine = float(result.heads[layer - 1, head - 1])
            if math.isnan(mine):
                continue
            rank = 1 + int((np.nan_to_num(result.heads, nan=-1.0) > mine).sum())
            chosen = (result.layer, result.head) == (layer, head)
            there = int((~np.isnan(result.heads)).sum())
            few, gain = result.few, mine - result.control
            rows.append(Known(task, label, result.items, few, mine, gain, rank, there, chosen))
    return sorted(rows, key=_speciality)


def _speciality(row: Known) -> tuple[bool, bool, bool, int, float, str, str]:
    beyond = row.gain > 0
    gain = -row.gain if beyond else 0.0
    return row.few, not beyond, not row.chosen, row.rank, gain, row.task, row.label


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


def _named(row: Known) -> str:
    gain = "" if math.isnan(row.gain) else f" ({row.gain:+.1f})"
    return f"{row.task.upper()} {row.label} {row.accuracy:.1f} %{gain}"


def _listed(rows: Sequence[Known]) -> str:
    return ", ".join(map(_named, rows))


def _claims(rows: Sequence[Claimed]) -> str:
    users = [f"{row.label} ({row.open} of {row.seeds} seeds, mean gate {row.mean:.2f})" for row in rows if row.open]
    return ", ".join(users) or f"none of {', '.join(row.label for row in rows)}"


def text(card: HeadCard) -> str:
    """The card for a terminal."""
    parts = [card.title, *card.notes]
    if card.known:
        parts += ["", "knows best (accuracy on test; gain over the best control; rank among heads):"]
        width = max(len(row.label) for row in card.known[:SHOWN])
        parts += [f"  {row.task.upper()}  {row.label:{width}}  {_numbers(row)}" for row in card.known[:SHOWN]]
    if card.claimed:
        parts += ["", f"claimed by: {_claims(card.claimed)}"]
    for example in card.examples:
        parts += ["", example.caption or " ".join(example.places[1:-1])]
        parts += _strongest(example)
    if any(example.sought for example in card.examples):
        parts += ["", "* a pair that the label connects"]
    return "\n".join(parts) + "\n"


def _strongest(example: Example) -> list[str]:
    """A line a word: the word it attends to most, and what special tokens get."""
    width = max(map(len, example.places[1:-1]))
    lines = []
    for place, target, weight in example.strongest():
        mark = "*" if example.seeks(place, target) else " "
        rest = example.weights[place, 0] + example.weights[place, -1]
        ends = f"{example.places[place]:>{width}} → {example.places[target]:{width}}"
        lines.append(f"  {ends} {mark} {weight:.2f} {'█' * round(10 * weight):10}  special tokens {rest:.2f}")
    return lines


def _numbers(row: Known) -> str:
    gain = "     –" if math.isnan(row.gain) else f"{row.gain:+6.1f}"
    return f"{row.accuracy:5.1f} %  {gain}  rank {row.rank} of {row.heads}, {row.items} items{_marks(row)}"


def _marks(row: Known) -> str:
    """What a reader must know of the row. Root is no arc: it counts where attention rests, at [CLS]."""
    rests = ", attention resting at [CLS]" if (row.task, row.label) == ROOT else ""
    return rests + (", chosen" if row.chosen else "") + (", few items" if row.few else "")


def html(card: HeadCard) -> str:
    """The card as one page without anything from elsewhere."""
    known_rows = [
        [
            row.task.upper(),
            row.label,
            f"{row.accuracy:.1f}",
            "–" if math.isnan(row.gain) else f"{row.gain:+.1f}",
            f"{row.rank} of {row.heads}",
            str(row.items),
            _marks(row).removeprefix(", "),
        ]
        for row in card.known
    ]
    claim_rows = [[row.label, f"{row.open} of {row.seeds}", f"{row.mean:.2f}"] for row in card.claimed]
    parts = [f"<h1>{markup.escape(card.title)}</h1>", *(f"<p>{markup.escape(note)}</p>" for note in card.notes)]
    if card.examples:
        parts.append(svg(card.drawing()))
    if claim_rows:
        parts += ["<h2>Who claims it</h2>", _table(["runs", "open in seeds", "mean gate"], claim_rows)]
    if known_rows:
        header = ["task", "label", "accuracy (%)", "over the best control", "rank", "items", ""]
        parts += ["<h2>What it knows</h2>", _table(header, known_rows)]
    return printable_lines(_PAGE.format(title=markup.escape(card.title), body="\n".join(parts)))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{markup.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return "\n".join(["<table>", line(header, "th"), *(line(row, "td") for row in rows), "</table>"])


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 15px/1.45 Helvetica, Arial, sans-serif; color: #1c1c1e; max-width: 60em;
  margin: 2em auto; padding: 0 1em }}
h1 {{ font-size: 1.4em; font-weight: normal }} h2 {{ font-size: 1.1em; font-weight: normal; margin-top: 2em }}
svg {{ max-width: 100%; height: auto }}
table {{ border-collapse: collapse }}
th, td {{ padding: .2em .9em .2em 0; text-align: left; border-bottom: 1px solid #dedee2 }}
th {{ font-weight: normal; color: #626268 }}
</style>
</head>
<body>
{body}
</body>
</html>
"""
