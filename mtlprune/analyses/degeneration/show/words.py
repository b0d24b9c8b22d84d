"""Degeneration in sentences: where the numbers come from, what they say, the whole of ``degeneration.md``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mtlprune.analyses.degeneration.show.reading import names
from mtlprune.analyses.degeneration.show.tables import tables
from mtlprune.reports.grid import markdown_document

LEVEL = 0.05


@markdown_document
def markdown(content: Mapping[str, Any]) -> str:
    """The whole of ``degeneration.md``."""
    lines = ["# Degeneration\n", setting(content) + "\n", *(f"- {line}" for line in answers(content)), ""]
    parts = ["\n".join(lines), *(table.part() for table in tables(content))]
    if content["notes"]:
        parts.append("## Notes\n\n" + "".join(f"- {note}\n" for note in content["notes"]))
    runs = zip(names(content), content["encoders"], strict=True)
    parts.append("## Encoders\n\n" + "".join(f"- {name}: {encoder['run']}\n" for name, encoder in runs))
    return "\n".join(parts)


def setting(content: Mapping[str, Any]) -> str:
    """Where the numbers come from."""
    return (
        f"{content['sentences']} sentences of {content['split']} of {content['corpus']} "
        f"({content['fingerprint'][:8]}), {content['too_long']} too long and left out; seed {content['seed']}. Rows: "
        f"{content['rows']}. Angles, partitions and margins are of a sample of up to {content['settings']['rows']} "
        "rows, the same words for every encoder; all else of all rows."
    )


def answers(content: Mapping[str, Any]) -> list[str]:
    """What the numbers say, in sentences."""
    found = []
    for name, encoder in zip(names(content), content["encoders"], strict=True):
        words = f"{name}: R of token embeddings {encoder['embeddings']['mean_cosine']:.3f}"
        if encoder["hidden"]:
            first, last = encoder["hidden"][0], encoder["hidden"][-1]
            words += (
                f"; of words {first['mean_cosine']:.3f} (embeddings) → {last['mean_cosine']:.3f} (last layer), "
                f"IsoScore {first['isoscore']:.3f} → {last['isoscore']:.3f}"
            )
        if encoder["cone"]:
            terms = encoder["cone"]["terms"][-1]
            most = max("ihfc", key=lambda term: terms[term])
            words += f"; most of the last layer's mean comes from {_TERMS[most]} ({terms[most]:.2f} of it)"
        found.append(f"{words}.")
    return [*found, *_rare(content), *_lost(content), _claims(content)]


_TERMS = {"i": "the input", "h": "the heads", "f": "the feed-forward parts", "c": "the correction"}


def _rare(content: Mapping[str, Any]) -> list[str]:
    known = [d["slope"] for d in content["decoders"] if not math.isnan(d["slope"]["p"])]
    if not known:
        return []
    sure = sum(slope["p"] < LEVEL and slope["spearman"] < 0 for slope in known)
    middle = sorted(slope["spearman"] for slope in known)[len(known) // 2]
    return [
        f"Rare labels: in {sure} of {len(known)} decoders the rows of rarer labels lie nearer to the mean row ("
        f"Spearman of cosine and frequency below 0, p < {LEVEL}; median {middle:.2f})."
    ]


def _lost(content: Mapping[str, Any]) -> list[str]:
    tests = [test for pair in content["pairs"] for test in pair["tests"] if not math.isnan(test["p"])]
    if not tests:
        return ["No joint run was named beside a single-task run of the same seed, so F1 lost is set against nothing."]
    sure = [test for test in tests if test["q"] < LEVEL]
    return [
        f"F1 lost in joint training against how labels' rows moved: {len(sure)} of {len(tests)} correlations have "
        f"q < {LEVEL}; {sum(test['p'] < LEVEL for test in tests)} have p < {LEVEL}, {LEVEL * len(tests):.1f} would by "
        "chance."
    ]


def _claims(content: Mapping[str, Any]) -> str:
    if content["claims"] is None:
        return "No runs with gates were named (--claims), so heads are not compared by how many tasks claim them."
    tests = [test for test in content["claims"]["tests"] if not math.isnan(test["p"])]
    sure = [test for test in tests if test["q"] < LEVEL]
    sizes = ", ".join(f"{size} {name}" for name, size in content["claims"]["groups"].items())
    return (
        f"Heads by claims of {', '.join(content['claims']['tasks'])}: {sizes}. Of {len(tests)} comparisons of isotropy "
        f"within layers {len(sure)} have q < {LEVEL} ({sum(test['p'] < LEVEL for test in tests)} have p < {LEVEL}, "
        f"{LEVEL * len(tests):.0f} would by chance)."
    )
