"""mtlprune head: one head, with what it knows, who claims it, and its attention in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtlprune.cli.console import say

if TYPE_CHECKING:
    import torch

    from mtlprune.analyses.probes.show.card import Example, HeadCard, Known
    from mtlprune.analyses.reading import Subject
    from mtlprune.results import Result
    from mtlprune.sentence import Sentence

ENDINGS = (".html", ".svg", ".png")
SHORTEST, LONGEST = 8, 14
"""Words of the sentences that are looked at: short enough to be drawn, long enough to show something."""
CANDIDATES = 500
BEST_OF = 5
"""A head shows what it knows where it is among so many best ones."""
SPECIAL = ("[start]", "[end]")


def head(
    encoder: Annotated[
        str, typer.Argument(metavar="RUN_OR_ENCODER", help="A run folder, or an encoder by name.", show_default=False)
    ],
    layer: Annotated[int, typer.Argument(help="From 1.", show_default=False)],
    head: Annotated[int, typer.Argument(help="From 1, in the encoder's original numbering.", show_default=False)],
    probes: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="What mtlprune probe wrote: what the head knows.", show_default=False),
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Sentences come from here; else the run's corpus.", show_default=False),
    ] = None,
    claims: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN", help="A run with gates: does it claim the head? Repeatable.", show_default=False),
    ] = None,
    gates_of: Annotated[
        str | None,
        typer.Option(metavar="TASK", help="Of a run with a gate set a task: whose gates to apply.", show_default=False),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(metavar="WORDS", help="A sentence of your own, words apart by blanks.", show_default=False),
    ] = None,
    sentences: Annotated[int, typer.Option(min=1, max=24, help="How many sentences.")] = 4,
    split: Annotated[str, typer.Option(help="Of the corpus.")] = "dev",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also a page (.html) or a picture (.svg, .png).", show_default=False),
    ] = None,
) -> None:
    """Show one head: what it knows best, which tasks claim it, and example sentences with its attention drawn.

    One table of all heads instead: mtlprune heads RUN...
    """
    _check_places(layer, head)
    _check_out(out)
    results, claimed_by = _results(probes), _claimed(claims or [], layer, head)
    candidates, seen_in = _candidates(encoder, corpus, text, split)

    from mtlprune.analyses.probes.show.card import HeadCard
    from mtlprune.analyses.probes.show.card import text as as_text

    subject = _subject(encoder, gates_of)
    number = _number(subject, layer, head)
    rows, notes = _known(results, subject, layer, head)
    kinds = results.about["kinds"] if results is not None else {}
    label = next((row for row in rows if _drawable(row, kinds[row["task"]])), None)
    sought = [_sought(sentence, label, kinds) for sentence in candidates]
    examples, how = _examples(subject, layer, number, candidates, sought, label, sentences, text is not None)
    notes += [note] if (note := f"{how} {seen_in}".strip()) else []
    name = subject.name if subject.label == "pretrained" else f"{subject.name} ({subject.label}, seed {subject.seed})"
    card = HeadCard(name, layer, head, rows, claimed_by, examples, notes)
    say(as_text(card), nl=False)
    if out is not None:
        _write(card, out)
        say(f"\nwritten: {out}")


def _drawable(row: Known, kind: str) -> bool:
    """Whether a label that the head tells well is seen in its attention; root is not, being found at [CLS]."""
    from mtlprune.analyses.probes import ATTENTION

    attended = kind in ATTENTION and not row["apart"]
    return attended and row["gain"] > 0 and not row["few"] and row["rank"] <= BEST_OF


def _subject(name: str, gates_of: str | None) -> Subject:
    """What is named; of a run with a gate set a task, with the gates of one. Raises RunError where unclear."""
    from mtlprune.analyses.reading import find_sources
    from mtlprune.files import RunError

    found = {subject.label.rpartition(":")[2].lower(): subject for subject in find_sources([name])[0].open()}
    alone = len(found) == 1
    if gates_of is None and alone:
        return next(iter(found.values()))
    if alone:
        raise RunError(f"--gates-of {gates_of}: {name} has no gate set of its own for each task; leave it out")
    if gates_of not in found:
        wrong = f"found {gates_of!r}" if gates_of is not None else "found none"
        raise RunError(f"{name} has a gate set for each task; expected --gates-of {' or '.join(found)}, {wrong}")
    return found[gates_of]


def _check_places(layer: int, head: int) -> None:
    from mtlprune.files import RunError

    if layer < 1 or head < 1:
        raise RunError(f"layers and heads are counted from 1; found layer {layer}, head {head}")


def _check_out(out: Path | None) -> None:
    from mtlprune.files import RunError

    if out is None:
        return
    if out.suffix.lower() not in ENDINGS:
        raise RunError(f"--out: expected a file {', '.join(ENDINGS)}, found {out.name!r}")
    file = next((place for place in out.parents if place.exists() and not place.is_dir()), None)
    if out.is_dir() or file is not None:
        raise RunError(f"--out: {out} is a folder; name a file" if out.is_dir() else f"--out: {file} is a file")


def _results(probes: Path | None) -> Result | None:
    from mtlprune.analyses.probes.show.reading import read_probes

    return read_probes([probes]) if probes is not None else None


def _claimed(runs: Sequence[Path], layer: int, head: int) -> list:
    from mtlprune.analyses.probes.show.card import claimed
    from mtlprune.claimed_heads import load_claims

    return claimed(load_claims(runs), layer, head) if runs else []


def _candidates(encoder: str, corpus: Path | None, text: str | None, split: str) -> tuple[list[Sentence], str]:
    """Sentences to choose from, and where they come from in words."""
    from mtlprune.files import RunError
    from mtlprune.runs import RunFolder
    from mtlprune.sentence import Sentence

    if text is not None:
        words = tuple(text.split())
        if not words:
            raise RunError("--text: expected words apart by blanks, found none")
        return [Sentence("text", words).validate()], ""
    place = corpus
    if place is None and (Path(encoder) / "config.yaml").is_file():
        place = Path(RunFolder.with_weights(encoder).read_config().get("data", {}).get("path", ""))
    if place is None:
        return [], "No sentences: name a corpus (--corpus) or give one (--text)."

    from mtlprune.corpora.store import load_corpus

    stored = load_corpus(place)
    fit = (sentence for sentence in stored[split] if SHORTEST <= len(sentence) <= LONGEST)
    different = {sentence.words: sentence for sentence, _ in zip(fit, range(CANDIDATES), strict=False)}
    found = list(different.values())
    where = f"{place.name}, {split}, {SHORTEST} to {LONGEST} words"
    return found, f"(of {len(found)} sentences: {where})." if found else f"No sentence: {where}."


def _number(subject: Subject, layer: int, head: int) -> int:
    """Where the head lies among those its layer still has. Raises RunError for one that is not there."""
    from mtlprune.files import RunError

    places = subject.encoder.places
    if layer > places.layers or head > places.heads:
        raise RunError(
            f"{subject.name} has {places.layers} layers of {places.heads} heads, so there is no head {head} in layer "
            f"{layer}"
        )
    kept = places.kept[layer - 1]
    if head - 1 not in kept:
        left = ", ".join(str(number + 1) for number in kept) or "none"
        raise RunError(f"head {head} of layer {layer} was removed from {subject.name}; left in this layer: {left}")
    return kept.index(head - 1)


def _known(results: Result | None, subject: Subject, layer: int, head: int) -> tuple[list[Known], list[str]]:
    """What the head knows, and what a reader should know of that."""
    from mtlprune.analyses.probes.show.reading import known, modes, shape
    from mtlprune.files import RunError

    if results is None:
        return [], []
    (folder, *_), (layers, heads) = results.about["folders"], shape(results)
    if (layers, heads) != (subject.encoder.places.layers, subject.encoder.places.heads):
        raise RunError(
            f"{folder} holds results of {layers} × {heads} heads, but {subject.name} has "
            f"{subject.encoder.places.layers} × {subject.encoder.places.heads}; probe this encoder"
        )
    each = {(one["encoder"], one["seed"]): one["run"] for one in results.about["encoders"]}
    probed = each.get((subject.label, subject.seed))
    if probed is None:
        there = ", ".join(f"{encoder} (seed {seed})" for encoder, seed in each)
        raise RunError(f"{folder} holds no results of {subject.label}, seed {subject.seed} (there: {there}); probe it")
    mode = modes(results)[0]
    notes = [f"Probes: {folder}, {mode}."]
    if Path(probed).resolve() != Path(subject.name).resolve():
        notes.append(f"Probed was {probed}; is it the same as {subject.name}?")
    rows = known(results, mode, subject.label, subject.seed)
    return rows[(rows["layer"] == layer) & (rows["head"] == head)].to_dict("records"), notes


def _examples(
    subject: Subject,
    layer: int,
    number: int,
    candidates: Sequence[Sentence],
    sought: Sequence[set[tuple[int, int]]],
    label: Known | None,
    wanted: int,
    own: bool,
) -> tuple[list[Example], str]:
    """The head's attention in sentences that have most of what it knows; else in those where it is most decided."""
    import numpy as np

    from mtlprune.analyses.probes.show.card import Example

    if any(sought) and not own:  # by what is in the sentence, never by whether the head finds it
        order = sorted(range(len(candidates)), key=lambda k: (-len(sought[k]) / len(candidates[k]), k))
        chosen = [k for k in order[:wanted] if sought[k]]
        assert label is not None
        how = f"Sentences: those with most {label['task'].upper()} {label['label']} by length, found or not"
    else:
        chosen = list(range(len(candidates)))
        how = "" if own or not candidates else "Sentences: those where the head is most decided"
    weights = dict(zip(chosen, _attention(subject, layer, number, [candidates[k] for k in chosen]), strict=True))
    if how.endswith("decided"):
        decided = {k: float(np.mean(weight[1:-1, 1:-1].max(-1))) for k, weight in weights.items()}
        chosen = sorted(chosen, key=lambda k: (-decided[k], k))[:wanted]
    examples = [
        Example(
            (SPECIAL[0], *candidates[k].words, SPECIAL[1]),
            weights[k],
            frozenset(sought[k]),
            "" if own else candidates[k].id,
        )
        for k in chosen
    ]
    return examples, how


def _sought(sentence: Sentence, label: Known | None, kinds: Mapping[str, str]) -> set[tuple[int, int]]:
    """Pairs of places that the label connects; word i has place i + 1."""
    layer = sentence.get(label["task"]) if label is not None else None
    if label is None or layer is None:
        return set()
    if kinds[label["task"]] == "tree":
        pairs = enumerate(zip(*layer, strict=True), 1)
        return {(dependent, head) for dependent, (head, relation) in pairs if relation == label["label"]}
    return {
        (word + 1, predicate.index + 1)
        for predicate in layer
        for span in predicate.arguments
        if span.label == label["label"]
        for word in range(span.start, span.end)
    }


def _attention(subject: Subject, layer: int, number: int, sentences: Sequence[Sentence]) -> Iterator:
    """(S, S) of each sentence, in order: start token, words, end token."""
    from mtlprune.encoder.observe import observe

    encoder = subject.encoder
    pieces = encoder.tokenize_all([sentence.words for sentence in sentences])
    for start in range(0, len(pieces), 32):
        batch = encoder.collate(pieces[start : start + 32])
        seen = observe(encoder, batch, subject.gates, {"attention"})
        yield from _own_places(seen.word_attention(layer - 1)[:, number], batch.sizes)


def _own_places(weights: torch.Tensor, sizes: Sequence[int]) -> Iterator:
    for row, words in zip(weights, sizes, strict=True):
        yield row[: words + 2, : words + 2].double().numpy()


def _write(card: HeadCard, out: Path) -> None:
    from mtlprune.analyses.probes.show.card import html
    from mtlprune.files import write_bytes
    from mtlprune.reports.charts import render

    kind = out.suffix.lower()[1:]
    write_bytes(out, html(card).encode() if kind == "html" else render(card.figure(), kind))
