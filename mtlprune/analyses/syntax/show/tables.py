"""Syntactic attention as tables and words, from syntax.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mtlprune.files import read_made
from mtlprune.reports.grid import Grid, markdown_document, number, probability
from mtlprune.reports.sections import Rows

SUMMARY = "syntax.json"


def read_tree(folder: Path) -> dict[str, Any]:
    """What ``mtlprune analyze syntax`` wrote.

    Raises:
        RunError: no such file, or one that is not readable.
    """
    return read_made(folder / SUMMARY, "mtlprune analyze syntax", ("encoders", "offset"))


def names(tree: Mapping[str, Any]) -> list[str]:
    """How encoders are called in tables: by label, with the seed where a label has several."""
    labels = [one["encoder"] for one in tree["encoders"]]
    return [
        f"{one['encoder']} {one['seed']}" if labels.count(one["encoder"]) > 1 else one["encoder"]
        for one in tree["encoders"]
    ]


def tables(tree: Mapping[str, Any]) -> Iterator[Rows]:
    """All tables, in the order in which they are read."""
    yield overview(tree)
    yield relations(tree)
    for made in (gates(tree), phenomena(tree)):
        if made is not None:
            yield made


def overview(tree: Mapping[str, Any]) -> Rows:
    """One row an encoder, the offsets last."""
    columns = (
        *("encoder", "heads", "UAS_single", "held out", "its head", "UAS_best", "held out ", "weight_best"),
        *("like first", "TwoNN [CLS]", "TwoNN mean"),
    )
    rows = []
    for name, one in zip(names(tree), tree["encoders"], strict=True):
        single, best = one["uas_single"], one["uas_best"]
        rows.append(
            [
                name,
                str(one["heads_there"]),
                *(_one(single["value"]), _one(single["held_out"]), _head(single)),
                *(_one(best["value"]), _one(best["held_out"])),
                _one(one["weight_best"]["value"]),
                _two(one["uas_like_first"]),
                *(_one(one["twonn"][which]["likelihood"]) for which in ("cls", "mean")),
            ]
        )
    single, best = tree["offset"]["single"], tree["offset"]["best"]
    rows.append(
        [
            *("best offset", "", _one(single["value"]), _one(single["held_out"]), f"{single['offset']:+d}"),
            *(_one(best["value"]), _one(best["held_out"]), "", "", "", ""),
        ]
    )
    caption = (
        "Percent of words whose gold head is found by one head for all words (UAS_single; roots and punctuation count) "
        "and by the best head of each relation (UAS_best). Held out: chosen on one half of the sentences, scored on "
        "the other. weight_best: attention on gold arcs. Like first: Spearman of the heads' UAS with the first row's. "
        "TwoNN: dimension of sentence vectors."
    )
    return Rows(columns, rows, caption, tuple(c for c in columns if c not in ("encoder", "its head")))


def relations(tree: Mapping[str, Any]) -> Rows:
    """Held-out UAS of the best head of each relation; in brackets the head that all sentences choose."""
    called = names(tree)
    rows = []
    for place, base in enumerate(tree["offset"]["relations"]):
        found = [one["relations"][place]["uas"] for one in tree["encoders"]]
        rows.append(
            [
                base["relation"],
                str(base["tokens"]),
                f"{_one(base['held_out'])} ({base['offset']:+d})",
                *(f"{_one(best['held_out'])} ({_head(best)})" for best in found),
            ]
        )
    columns = ("relation", "words", "offset", *called)
    caption = (
        f"Held-out UAS of the best head a relation (of at least {tree['least']} words), beside the best offset. In "
        "brackets layer.head; > dependent attends to head, < head attends to dependent."
    )
    return Rows(columns, rows, caption, columns[1:])


def gates(tree: Mapping[str, Any]) -> Rows | None:
    """Whether gates follow the UAS that the first encoder's heads have; None where no encoder has gates."""
    rows = []
    for name, one in zip(names(tree), tree["encoders"], strict=True):
        found = one["gates_by_uas_of_first"]
        if found is not None:
            p = "–" if found["p"] is None else probability(found["p"])
            rows.append([name, str(found["heads"]), _two(found["value"]), p])
    if not rows:
        return None
    caption = (
        f"Spearman within layers between the UAS of a head in {names(tree)[0]} and its gate; p by permuting heads "
        "within layers, two-sided, not corrected."
    )
    return Rows(("encoder", "heads", "Spearman", "p"), rows, caption, ("heads", "Spearman", "p"))


def phenomena(tree: Mapping[str, Any]) -> Rows | None:
    """BLiMP by phenomenon; None where no encoder could be asked."""
    judged = [
        (f"{name}, {variant}", found[variant])
        for name, found in zip(names(tree), (one["blimp"] for one in tree["encoders"]), strict=True)
        if isinstance(found, dict)
        for variant in found
    ]
    if not judged:
        return None
    rows = [["overall", *(_one(found["overall"]) for _, found in judged)]]
    for phenomenon in judged[0][1]["phenomena"]:
        rows.append([phenomenon, *(_one(found["phenomena"][phenomenon]) for _, found in judged)])
    columns = ("phenomenon", *(name for name, _ in judged))
    caption = f"Percent of {judged[0][1]['pairs']:,} minimal pairs decided rightly; means over paradigms; chance is 50."
    return Rows(columns, rows, caption, columns[1:])


def notes(tree: Mapping[str, Any]) -> list[str]:
    """What could not be had, in sentences."""
    found = []
    for name, one in zip(names(tree), tree["encoders"], strict=True):
        if isinstance(one["blimp"], str):
            found.append(f"{name}: no BLiMP: {one['blimp']}.")
        for which, value in (("[CLS]", one["twonn"]["cls"]), ("mean", one["twonn"]["mean"])):
            if value["likelihood"] is None:
                found.append(f"{name}: no TwoNN of {which} vectors: {value['why']}.")
    if tree["too_long"]:
        found.append(f"{tree['too_long']} sentences are longer than what an encoder sees at once and were left out.")
    return found


def setting(tree: Mapping[str, Any]) -> str:
    """One line: what was read."""
    return f"{tree['corpus']}, {tree['split']}, {tree['sentences']:,} sentences, {tree['tokens']:,} words"


@markdown_document
def markdown(tree: Mapping[str, Any]) -> str:
    """All tables and notes."""
    parts = [f"# Syntactic attention: {setting(tree)}\n"]
    for rows in tables(tree):
        parts.append(f"{rows.caption}\n\n{_grid(rows.columns, rows.rows)}")
    parts += [f"Note: {note}\n" for note in notes(tree)]
    return "\n".join(parts)


def _grid(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return Grid(columns, rows).markdown()


def _head(best: Mapping[str, Any]) -> str:
    if best["layer"] is None:
        return "–"
    return f"{best['layer']}.{best['head']}{'>' if best['direction'] == 'dep->head' else '<'}"


def _one(value: float | None) -> str:
    return "–" if value is None else number(value, 1)


def _two(value: float | None) -> str:
    return "–" if value is None else number(value, 2)
