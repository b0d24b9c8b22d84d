"""Collect what is known about one head of a run or encoder: probed labels, claims, and attention in short sentences.

Letters for shapes: S positions of a sentence, which are the start token, its words and the end token.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.harness.ablation import ablation_costs
from mtlprune.analyses.harness.reading import Source, Subject, entry, find_sources, remarks
from mtlprune.analyses.probes import ATTENTION
from mtlprune.analyses.probes.reading import modes, probe_table, read_probes, shape
from mtlprune.corpora.formats import words_of
from mtlprune.corpora.store import load_corpus
from mtlprune.encoder.observe import observe
from mtlprune.runs.claims import group, load_claims
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.runs.results import Result
from mtlprune.sentence import Sentence

_MIN_WORDS, _MAX_WORDS = 8, 14
"""Least and largest number of words of the sentences that are shown."""
_CANDIDATES, _DEFAULT_SENTENCES = 500, 4
"""Number of sentences from which those shown are chosen, and default number of sentences that are shown."""
_BEST_OF = 5
"""Sentences are chosen for a label only if the head is among this many best heads of the label."""
Pairs = frozenset[tuple[int, int]]
"""Pairs of positions that a task connects; word i (from 0) has the position i + 1."""


def measure(request: Request) -> Result:
    """Collect everything known about the head. ``frames.yaml`` declares the frames.

    Raises:
        RunError: the run, encoder, head or task does not exist, if results of probes are of another encoder, or if
            there is nothing to show.
    """
    options = request.options
    if len(request.names) != 1:
        raise RunError(f"analyze head: expected one run or encoder, found {len(request.names)}")
    [name] = request.names
    [source] = find_sources([name])
    candidates, seen_in = _candidates(name, request)
    subject = _subject(source, options.gates_of)
    head_index = _index_in_layer(subject, options.layer, options.head)
    rows, kinds, notes = _probe_rows(options.probes, subject, options.layer, options.head)
    notes += remarks(subject)
    label = _label(rows, kinds)
    sought_pairs = [_pairs_sought(sentence, label, kinds) for sentence in candidates]
    ranked = sorted(range(len(candidates)), key=lambda k: -len(sought_pairs[k]) / len(candidates[k]))
    order = ranked[: request.sentences or _DEFAULT_SENTENCES]
    if options.text is None:
        preference = (
            f"those with most {label['task'].upper()} {label['label']}" if label and any(sought_pairs) else "the first"
        )
        notes.append(f"The sentences are {preference} {seen_in}" if candidates else seen_in)
    attention = [
        {"sentence": candidates[k].id, **row}
        for k, row in _attention(subject, options.layer, head_index, order, candidates, sought_pairs)
    ]
    claim_rows = _claim_rows(request.claims, options.layer, options.head)
    about = {
        "layer": options.layer,
        "head": options.head,
        "settings": options.model_dump(mode="json"),
        "of": entry(subject, source.kind),
        "encoders": [],
        "notes": notes,
    }
    frames = {"known": rows, "claimed": pd.DataFrame(claim_rows), "attention": pd.DataFrame(attention)}
    if options.closed is not None:
        costs = ablation_costs(name, options.closed, request, (options.layer - 1, options.head - 1))
        closing = [{"task": task, "open": loss, "closed": loss + float(rise)} for task, (loss, rise) in costs.items()]
        frames["closing"] = pd.DataFrame(closing)
    if not any(map(len, frames.values())):
        head = f"head {options.layer}-{options.head}"
        raise RunError(
            f"analyze head: there is nothing to show of {head}. {seen_in} Otherwise give probes=DIR or --claims RUN."
        )
    return Result("head", about, {name: frame for name, frame in frames.items() if len(frame)})


def _subject(source: Source, gates_of: str | None) -> Subject:
    """Load the run or encoder, with the gates or clones of the task ``gates_of`` if each task has its own.

    Raises:
        RunError: if ``gates_of`` is missing, unknown or not needed.
    """
    subjects = {subject.label.rpartition(":")[2].lower(): subject for subject in source.open()}
    if gates_of is None and len(subjects) == 1:
        return next(iter(subjects.values()))
    if gates_of not in subjects or len(subjects) == 1:
        option_hint = (
            f"gates_of={' or '.join(subjects)}" if len(subjects) > 1 else "no gates_of, because all tasks share gates"
        )
        raise RunError(f"{source.name}: expected {option_hint}, found {gates_of or 'none'}")
    return subjects[gates_of]


def _candidates(name: str, request: Request) -> tuple[list[Sentence], str]:
    """Return the sentences to choose from, and a description of their source in words.

    Raises:
        RunError: the option ``text`` has no words.
    """
    text, corpus = request.options.text, None if request.corpus == Path() else request.corpus
    if text is not None:
        if not (words := words_of(text)):
            raise RunError("text: expected words with spaces between them, found none")
        return [Sentence("text", words).validate()], ""
    if corpus is None and (Path(name) / "config.yaml").is_file():
        corpus = RunFolder.with_weights(name).corpus_path()
    if corpus is None:
        return [], "No sentences: name a corpus (--corpus DIR) or give one (text='...')."
    fit = (sentence for sentence in load_corpus(corpus)[request.split] if _MIN_WORDS <= len(sentence) <= _MAX_WORDS)
    candidates = list({sentence.words: sentence for sentence in islice(fit, _CANDIDATES)}.values())
    where = f"{corpus.name}, {request.split}, {_MIN_WORDS} to {_MAX_WORDS} words"
    return candidates, f"(of {len(candidates)}: {where})." if candidates else f"No sentence: {where}."


def _index_in_layer(subject: Subject, layer: int, head: int) -> int:
    """Return the index (from 0) of a head among the heads that are left in its layer.

    Args:
        layer, head: layer and head, counted from 1, in the encoder's original numbering.

    Raises:
        RunError: the encoder has no such head, or if the head was removed.
    """
    head_hooks = subject.encoder.head_hooks
    if layer > head_hooks.layers or head > head_hooks.heads:
        raise RunError(
            f"{subject.name} has {head_hooks.layers} layers of {head_hooks.heads} heads, so there is no head {head} in "
            f"layer {layer}"
        )
    kept_heads = head_hooks.kept_heads[layer - 1]
    if head - 1 not in kept_heads:
        left = ", ".join(str(number + 1) for number in kept_heads) or "none"
        raise RunError(f"head {head} of layer {layer} was removed from {subject.name}; left in this layer: {left}")
    return kept_heads.index(head - 1)


def _probe_rows(
    folder: Path | None, subject: Subject, layer: int, head: int
) -> tuple[pd.DataFrame, Mapping[str, str], list[str]]:
    """Read the results of probes in a folder.

    Returns:
        The rows of the head (one for each label), the kind of each layer of annotation, and notes. All are empty
        without a folder.

    Raises:
        RunError: the folder has no results of this encoder, or results for another number of layers or heads.
    """
    if folder is None:
        return pd.DataFrame(), {}, []
    results, head_hooks = read_probes([folder]), subject.encoder.head_hooks
    if (size := shape(results)) != (head_hooks.layers, head_hooks.heads):
        raise RunError(
            f"{folder}: expected results of {head_hooks.layers} × {head_hooks.heads} heads, which {subject.name} has, "
            f"found {size[0]} × {size[1]} heads; probe this encoder"
        )
    run_of_encoder = {(entry["encoder"], entry["seed"]): entry["run"] for entry in results.about["encoders"]}
    probed = run_of_encoder.get((subject.label, subject.seed))
    if probed is None:
        examples = ", ".join(f"{encoder} (seed {seed})" for encoder, seed in run_of_encoder)
        raise RunError(
            f"{folder} holds no results of {subject.label}, seed {subject.seed} (there: {examples}); probe it"
        )
    mode = modes(results)[0]
    notes = [f"Probes: {folder}, {mode}."]
    if Path(probed).resolve() != Path(subject.name).resolve():
        notes.append(f"The probes are of {probed}; check that it is the same encoder as {subject.name}.")
    rows = probe_table(results, mode, subject.label, subject.seed)
    return rows[(rows["layer"] == layer) & (rows["head"] == head)], results.about["kinds"], notes


def _label(rows: pd.DataFrame, kinds: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return the row of the best label that the head's attention identifies beyond the controls, or None.

    The head must be among the _BEST_OF best heads of the label. Labels with few test items are excluded, and the
    relation root, because it is read from attention to [CLS].
    """
    attended = (row for row in rows.to_dict("records") if kinds[row["task"]] in ATTENTION)
    reliable_rows = (row for row in attended if not row["apart"] and not row["few"])
    return next((row for row in reliable_rows if row["gain"] > 0 and row["rank"] <= _BEST_OF), None)


def _pairs_sought(sentence: Sentence, label: Mapping[str, Any] | None, kinds: Mapping[str, str]) -> Pairs:
    """Return the pairs of positions that a label connects in a sentence: dependents and heads, or words of arguments
    and their predicates."""
    layer: Any = None if label is None else sentence.get(label["task"])
    if label is None or layer is None:
        return frozenset()
    if kinds[label["task"]] == "tree":
        ends = enumerate(zip(*layer, strict=True), 1)
        return frozenset((dependent, head) for dependent, (head, relation) in ends if relation == label["label"])
    return frozenset(
        (word + 1, predicate.index + 1)
        for predicate in layer
        for span in predicate.arguments
        if span.label == label["label"]
        for word in range(span.start, span.end)
    )


def _attention(
    subject: Subject,
    layer: int,
    head_index: int,
    order: Sequence[int],
    sentences: Sequence[Sentence],
    sought_pairs: list[Pairs],
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield, for each word of each sentence in ``order``, the index of the sentence and a row with the word to which
    this word attends most."""
    if not order:
        return
    encoder = subject.encoder
    batch = encoder.collate(encoder.tokenize_sentences([sentences[k] for k in order]))
    attention = observe(encoder, batch, subject.gates, {"attention"}).word_attention(layer - 1)[:, head_index]
    for k, matrix in zip(order, attention, strict=True):
        words = sentences[k].words
        weights = matrix[: len(words) + 2, : len(words) + 2].double().numpy()  # (S, S)
        for row in range(1, len(words) + 1):
            target = 1 + int(np.argmax(weights[row, 1:-1]))
            connected = (row, target) in sought_pairs[k] or (target, row) in sought_pairs[k]
            special = float(weights[row, 0] + weights[row, -1])
            shown_pair = {"word": words[row - 1], "target": words[target - 1], "weight": float(weights[row, target])}
            yield k, {**shown_pair, "special": special, "sought": connected}


def _claim_rows(runs: Sequence[Path], layer: int, head: int) -> list[dict[str, Any]]:
    """Return a row for each label of the runs: the number of seeds in which the head is open, and its mean gate.

    Raises:
        RunError: the encoder of the runs has no such head.
    """
    rows = []
    for run_group in group(load_claims(runs)) if runs else ():
        layers, heads = run_group.mean.shape
        if layer > layers or head > heads:
            raise RunError(
                f"{run_group.claims[0].run} has {layers} layers of {heads} heads, so there is no head {head} in "
                f"layer {layer}"
            )
        index = layer - 1, head - 1
        rows.append(
            {
                "encoder": run_group.label,
                "open": int(run_group.times[index]),
                "seeds": len(run_group.claims),
                "mean": run_group.mean[index],
            }
        )
    return rows
