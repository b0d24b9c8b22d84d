"""mtlprune heads: a table of all heads; mtlprune head: one head, what it knows, who claims it, and its attention."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtlprune.cli.console import Analyses, say
from mtlprune.corpora.store import load_corpus
from mtlprune.io.files import RunError, make_room

if TYPE_CHECKING:
    from mtlprune.analyses.probes.show.card import Known
    from mtlprune.analyses.reading import Subject
    from mtlprune.runs.results import Result
    from mtlprune.sentence import Sentence

SHORTEST, LONGEST = 8, 14
"""Words of the sentences that are looked at: short enough to be read, long enough to show something."""
CANDIDATES = 500
BEST_OF = 5
"""A head shows what it knows where it is among so many best ones."""
SPECIAL = ("[start]", "[end]")


def head(
    encoder: Annotated[str, typer.Argument(metavar="RUN_OR_ENCODER", help="A run folder, or an encoder by name.")],
    layer: Annotated[int, typer.Argument(help="From 1.")],
    head: Annotated[int, typer.Argument(help="From 1, in the encoder's original numbering.")],
    probes: Annotated[Path | None, typer.Option(metavar="DIR", help="What mtlprune probe wrote.")] = None,
    corpus: Annotated[Path | None, typer.Option(metavar="DIR", help="Of sentences (the run's, if not given).")] = None,
    claims: Annotated[list[Path] | None, typer.Option(metavar="RUN", help="Runs with gates. Repeatable.")] = None,
    gates_of: Annotated[
        str | None, typer.Option(metavar="TASK", help="Whose gates or clones, of a run of several.")
    ] = None,
    text: Annotated[str | None, typer.Option(metavar="WORDS", help="A sentence of your own.")] = None,
    sentences: Annotated[int, typer.Option(min=1, max=24, help="How many sentences.")] = 4,
    split: Annotated[str, typer.Option(help="Of the corpus.")] = "dev",
) -> None:
    """Show one head: what it knows best, which tasks claim it, and its attention in example sentences.

    One table of all heads instead: mtlprune heads RUN...
    """
    if layer < 1 or head < 1:
        raise RunError(f"layers and heads are counted from 1; found layer {layer}, head {head}")
    from mtlprune.analyses.probes.show import card
    from mtlprune.analyses.probes.show.reading import read_probes
    from mtlprune.runs.claims import load_claims

    results = read_probes([probes]) if probes is not None else None
    claimed_by = card.claimed(load_claims(claims), layer, head) if claims else []
    candidates, seen_in = _candidates(encoder, corpus, text, split)
    subject = _subject(encoder, gates_of)
    number = _number(subject, layer, head)
    rows, notes = _known(results, subject, layer, head)
    sought, how = _sought(candidates, rows, results)
    order = sorted(range(len(candidates)), key=lambda k: -len(sought[k]) / len(candidates[k]))[:sentences]
    attention = _attention(subject, layer, number, [candidates[k] for k in order])
    examples = []
    for k, weights in zip(order, attention, strict=True):
        words = (SPECIAL[0], *candidates[k].words, SPECIAL[1])
        examples.append(card.Example(words, weights, sought[k], candidates[k].id if text is None else ""))
    if text is None:
        notes.append(f"{how}{seen_in}")
    name = subject.name if subject.label == "pretrained" else f"{subject.name} ({subject.label}, seed {subject.seed})"
    page = card.HeadCard(name, layer, head, rows, claimed_by, examples, notes)
    say(card.text(page), nl=False)


def _subject(name: str, gates_of: str | None) -> Subject:
    """The run or encoder named, with the gates or clones of one task where each has its own. Raises RunError."""
    from mtlprune.analyses.reading import find_sources

    subjects = {subject.label.rpartition(":")[2].lower(): subject for subject in find_sources([name])[0].open()}
    if gates_of is None and len(subjects) == 1:
        return next(iter(subjects.values()))
    if gates_of not in subjects or len(subjects) == 1:
        each = f"--gates-of {' or '.join(subjects)}" if len(subjects) > 1 else "no --gates-of, as all tasks share gates"
        raise RunError(f"{name}: expected {each}, found {gates_of or 'none'}")
    return subjects[gates_of]


def _candidates(encoder: str, corpus: Path | None, text: str | None, split: str) -> tuple[list[Sentence], str]:
    """Sentences to choose from, and where they come from in words."""
    from mtlprune.corpora.formats import words_of
    from mtlprune.runs.folder import RunFolder
    from mtlprune.sentence import Sentence

    if text is not None:
        words = words_of(text)
        if not words:
            raise RunError("--text: expected words apart by blanks, found none")
        return [Sentence("text", words).validate()], ""
    place = corpus
    if place is None and (Path(encoder) / "config.yaml").is_file():
        place = RunFolder.with_weights(encoder).corpus_path()
    if place is None:
        return [], "No sentences: name a corpus (--corpus) or give one (--text)."

    fit = (sentence for sentence in load_corpus(place)[split] if SHORTEST <= len(sentence) <= LONGEST)
    candidates = list({sentence.words: sentence for sentence in islice(fit, CANDIDATES)}.values())
    where = f"{place.name}, {split}, {SHORTEST} to {LONGEST} words"
    return candidates, f"(of {len(candidates)} sentences: {where})." if candidates else f"No sentence: {where}."


def _number(subject: Subject, layer: int, head: int) -> int:
    """Where the head lies among those its layer still has. Raises RunError for one that is not there."""
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
    """The labels that the head finds, and notes about them."""
    from mtlprune.analyses.probes.show.reading import known, modes, shape

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
        others = ", ".join(f"{encoder} (seed {seed})" for encoder, seed in each)
        raise RunError(f"{folder} holds no results of {subject.label}, seed {subject.seed} (there: {others}); probe it")
    mode = modes(results)[0]
    notes = [f"Probes: {folder}, {mode}."]
    if Path(probed).resolve() != Path(subject.name).resolve():
        notes.append(f"Probed was {probed}; is it the same as {subject.name}?")
    rows = known(results, mode, subject.label, subject.seed)
    return rows[(rows["layer"] == layer) & (rows["head"] == head)].to_dict("records"), notes


def _sought(
    sentences: Sequence[Sentence], rows: Sequence[Known], results: Result | None
) -> tuple[list[frozenset[tuple[int, int]]], str]:
    """For each sentence the pairs of places that the head's best label connects, and a description of them; word i has
    place i + 1. Only labels seen in attention count; root is none of them, as it is read at [CLS]."""
    from mtlprune.analyses.probes import ATTENTION

    kinds = results.about["kinds"] if results is not None else {}
    attended = (row for row in rows if kinds[row["task"]] in ATTENTION and not row["apart"] and not row["few"])
    label = next((row for row in attended if row["gain"] > 0 and row["rank"] <= BEST_OF), None)
    sought = []
    for sentence in sentences:
        pairs: set[tuple[int, int]] = set()
        layer: Any = sentence.get(label["task"]) if label is not None else None
        if label is not None and layer is not None and kinds[label["task"]] == "tree":
            ends = enumerate(zip(*layer, strict=True), 1)
            pairs = {(dependent, head) for dependent, (head, relation) in ends if relation == label["label"]}
        elif label is not None and layer is not None:
            pairs = {
                (word + 1, predicate.index + 1)
                for predicate in layer
                for span in predicate.arguments
                if span.label == label["label"]
                for word in range(span.start, span.end)
            }
        sought.append(frozenset(pairs))
    if label is None or not any(sought):
        return sought, "Sentences: the first " if sentences else ""
    most = f"{label['task'].upper()} {label['label']}"
    return sought, f"Sentences: those with most {most} by length, found or not "


def _attention(subject: Subject, layer: int, number: int, sentences: Sequence[Sentence]) -> list:
    """(S, S) of each sentence, in order: start token, words, end token."""
    from mtlprune.encoder.observe import observe

    if not sentences:
        return []
    encoder = subject.encoder
    batch = encoder.collate(encoder.tokenize_all([sentence.words for sentence in sentences]))
    seen = observe(encoder, batch, subject.gates, {"attention"}).word_attention(layer - 1)[:, number]
    return [row[: size + 2, : size + 2].double().numpy() for row, size in zip(seen, batch.sizes, strict=True)]


# -- all heads ---------------------------------------------------------------------------------------------------------


def heads(
    out: Annotated[Path, typer.Option(metavar="DIR", help="For heads.json, heads.csv and heads.md.")],
    runs: Annotated[list[Path] | None, typer.Argument(metavar="RUNS", help="Runs with gates.")] = None,
    probes: Annotated[Path | None, typer.Option(metavar="DIR", help="What mtlprune probe wrote.")] = None,
    analyses: Analyses = None,
    of: Annotated[str, typer.Option(metavar="LABEL", help="Encoder to read in probes and analyses.")] = "pretrained",
    permutations: Annotated[int, typer.Option(min=1, help="Of heads within layers.")] = 9999,
    seed: Annotated[int, typer.Option(min=0, help="Of permutations.")] = 0,
) -> None:
    """Every head in a row: claims, gates, probes, gradients, syntax, smoothing, share, isotropy; and which of these go
    together within layers (Spearman, permutations of heads within layers, corrected).

    Only what is named is joined. One head with its attention instead: mtlprune head RUN LAYER HEAD.
    """
    from mtlprune.analyses.claims.maths import claim_columns
    from mtlprune.reports.heads import SOURCES, HeadTable, correlations, lead, tree, write
    from mtlprune.runs.claims import load_claims

    make_room(out)
    joined = HeadTable()
    if runs:
        joined.add(claim_columns(load_claims(runs)), "the runs with gates")
    if probes is not None:
        joined.read(probes, of, ["probes"])
    named = {"claims": runs, "probes": probes}
    for folder in analyses or ():
        joined.read(folder, of, [name for name in SOURCES if not named.get(name)])
    sources = {"claims": "RUNS", "probes": "--probes"} | {name: "--analyses" for name in SOURCES if name not in named}
    read = {column.source for column in joined.columns}
    absent = [f"{source} ({option})" for source, option in sources.items() if source not in read]
    if absent:
        joined.notes.append(f"Not named, so without columns: {', '.join(absent)}.")
    if not joined.columns:
        raise RunError("heads: nothing to join; name runs with gates, --probes or --analyses")
    tests = correlations(joined.columns, permutations, seed)
    paths = [str(path) for path in (*(runs or []), probes, *(analyses or [])) if path is not None]
    content = tree(joined, tests, {"of": of, "permutations": permutations, "seed": seed, "sources": paths})
    write(out, content)
    say(lead(content))
    say(f"written: {out}")
