"""Build corpora from users' files, with splits and unique ids, and merge several corpora into one."""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats import Skip, Tell, files_below, whole_number
from mtlprune.corpora.store import StoredSentences, spooled
from mtlprune.corpora.tables import LABELS, source_digest
from mtlprune.errors import MtlpruneError, plural
from mtlprune.layers import OF_SENTENCES, Layer, in_order, kind_of
from mtlprune.sentence import Sentence, declared

Splits = dict[str, Sequence[Sentence]]
"""Name of a split → its sentences."""
SHARES = "80/10/10"
"""Default percentages of train, dev and test in a random split."""


class _UnreadLayers:
    """The names of layers that readers must skip, for use as ``name in unread_layers``.

    ``requested`` collects every name that a reader has looked up, that is, every layer that the files could have.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names, self.requested = tuple(dict.fromkeys(names)), set[str]()

    def __contains__(self, name: object) -> bool:
        self.requested.add(str(name))
        return name in self.names


class LeftOut:
    """Records which layers and sentences are left out of a corpus, and why.

    Args:
        layers: names of the layers to leave out.
        max_percent: the share of the sentences that may be left out, in percent. If None, the first sentence that
            cannot be read raises its error.

    Attributes:
        skip: the callback for readers that receives the error of an unreadable sentence, or None.
        count: the number of sentences that were left out.
        reasons: the first ten errors.
    """

    REASONS = 10

    def __init__(self, layers: Iterable[str] = (), max_percent: float | None = None) -> None:
        self.unread_layers, self.max_percent = _UnreadLayers(layers), max_percent
        self.skip: Skip | None = None if max_percent is None else self._skip
        self.count, self.reasons = 0, list[str]()

    def _skip(self, error: MtlpruneError) -> None:
        self.count += 1
        if self.count <= self.REASONS:
            self.reasons.append(str(error))

    def account(self, read: int, tell: Tell) -> dict[str, Any]:
        """Report the sentences that were left out, and return the entry ``left_out`` of ``corpus.json``.

        Args:
            read: the number of sentences that were read.
            tell: receives the lines of the report.

        Raises:
            CorpusError: too many sentences are left out, or no reader looked up one of the layers to leave out.
        """
        if wrong := [name for name in self.unread_layers.names if name not in self.unread_layers.requested]:
            layers_read = ", ".join(in_order(self.unread_layers.requested)) or "none"
            raise CorpusError(
                f"--leave-out: expected layers that are read ({layers_read}), found {wrong[0]!r}; correct it"
            )
        record: dict[str, Any] = {"layers": list(self.unread_layers.names)} if self.unread_layers.names else {}
        if self.count:
            total = read + self.count
            share = f"{self.count} of {plural(total, 'sentence')} ({100 * self.count / total:.1f} %)"
            tell(f"{share} cannot be read and were left out:")
            for line in self.reasons:
                tell(f"  {line}")
            if self.count > self.REASONS:
                tell(f"  and {self.count - self.REASONS} more")
            if self.max_percent is None or not 100 * self.count <= self.max_percent * total:  # NaN allows none
                problem = f"expected at most {self.max_percent:g} % of the sentences to be left out, found {share}"
                raise CorpusError(
                    f"{problem}, such as: {self.reasons[0]}; correct the files, or allow more (--skip-bad)"
                )
            record |= {"sentences": self.count, "of": total, "first": self.reasons}
        return record


def read_files(
    unsplit_paths: Sequence[str],
    paths_by_split: Mapping[str, Sequence[str]],
    read: Callable[[Path], Iterable[Sentence]],
    tell: Tell,
    left_out: LeftOut | None = None,
    shares: str = SHARES,
    seed: int = 1,
) -> tuple[Splits, dict[str, Any]]:
    """Read the files of a corpus with ``read``, and split them at random unless each split has its own files.

    Args:
        unsplit_paths: paths, folders or patterns of files that are split at random.
        paths_by_split: name of a split → paths, folders or patterns of its files. Give either these or
            ``unsplit_paths``.
        read: the reader of one file.
        tell: receives what was left out or renamed.
        left_out: collects unreadable sentences.
        shares: percentages of a random split.
        seed: the seed of a random split.

    Returns:
        the sentences of each split with unique ids, and the entries ``sources`` (the SHA-256 of each file, and how a
        random split was made) and ``left_out`` of ``corpus.json``.

    Raises:
        CorpusError: files are missing, a split is empty, a layer has two kinds, the shares are not percentages, or
            :meth:`LeftOut.account` raises it. Errors of ``read`` are not caught.
    """
    paths_by_split = {split: names for split, names in paths_by_split.items() if names}
    if unsplit_paths and paths_by_split:
        raise CorpusError(
            f"expected either files that are split at random or files of each split, found {unsplit_paths[0]} together "
            f"with --{next(iter(paths_by_split))}; put patterns into quotes (--train 'data/*.conllu'), or repeat the "
            "option"
        )
    if not unsplit_paths and not paths_by_split:
        raise CorpusError(
            "expected files, found none; name files with --train, --dev and --test, or one file that is split at random"
        )
    paths = {split: expand_paths(names) for split, names in (paths_by_split or {"all": unsplit_paths}).items()}
    if unsplit_paths:
        _percents(shares)
    kinds: dict[str, tuple[str, Path]] = {}

    def sentences_of(path: Path) -> Iterator[Sentence]:
        for sentence in read(path):
            for layer, (kind, _) in sentence.further:
                first_kind, first = kinds.setdefault(layer, (kind, path))
                if kind != first_kind:
                    problem = f"expected {layer} to be of the kind {first_kind}, as it is in {first}, found {kind}"
                    raise CorpusError(
                        f"{path}, sentence {sentence.id!r}: {problem}; give the layer one kind in all files"
                    )
            yield sentence

    splits = {split: spooled(s for path in group for s in sentences_of(path)) for split, group in paths.items()}
    account = left_out.account(sum(map(len, splits.values())), tell) if left_out else {}
    for split, sentences in splits.items():
        if not sentences:
            raise CorpusError(f"{', '.join(map(str, paths[split]))}: expected sentences, found none; check the file")
    digests = {str(path): source_digest(path) for group in paths.values() for path in group}
    if unsplit_paths:
        splits = split_at_random(splits["all"], shares, seed, ", ".join(unsplit_paths))
        digests["split"] = f"{shares}, seed {seed}"
    return with_unique_ids(splits, tell), {"sources": digests, "left_out": account}


def expand_paths(names: Sequence[str]) -> list[Path]:
    """Return the files that paths, folders and patterns name, sorted within each name, without repetitions.

    Folders are searched at any depth; their files whose names begin with a dot are left out. Raises CorpusError if a
    name matches no file.
    """
    expanded: dict[Path, None] = {}
    for name in names:
        path = Path(name)
        root = Path(path.anchor)
        files_inside: Iterable[Path] = ()
        if name and path.is_dir():
            files_inside = (file for file in files_below(path) if not file.name.startswith("."))
        elif name:
            files_inside = [path] if path.is_file() else root.glob(str(path.relative_to(root)))
        try:
            files = sorted(file for file in files_inside if file.is_file())
        # Before Python 3.13, `**` within a name is refused by glob with a ValueError.
        except ValueError as error:
            raise CorpusError(f"{name}: expected a pattern, found: {error}") from error
        if not files:
            raise CorpusError(f"{name}: expected a file, a folder of files or a pattern, found none; check the path")
        expanded.update(dict.fromkeys(files))
    return list(expanded)


_SPLIT = re.compile(
    r"(?<![a-z])(?:(?P<train>train(ing)?)|(?P<dev>dev(el)?|val(id(ation)?)?|testa)|(?P<test>test(ing|b)?))(?![a-z])"
)


def files_by_split(names: Sequence[str]) -> tuple[dict[str, list[str]], list[Path]]:
    """Assign files to splits by the names of the files and of their folders, such as ``de_gsd-ud-dev.conllu``.

    Returns:
        name of the split → its files, and the files that were left out because of another suffix, such as a README.
        Both are empty if fewer than two splits are found.

    Raises:
        CorpusError: a name matches no file, or at least two splits are found, but a file with the same suffix as their
            files belongs to no split.
    """
    splits: dict[str, list[Path]] = {"train": [], "dev": [], "test": [], "": []}
    for name in names:
        for path in expand_paths([name]):
            components = path.relative_to(name).parts if Path(name).is_dir() else (path.name,)
            marks = (_SPLIT.search(part.lower()) for part in reversed(components))
            splits[next((str(mark.lastgroup) for mark in marks if mark), "")].append(path)
    # Only files with one suffix are read. It is .conllu if a file that belongs to a split has this suffix, and
    # otherwise the most frequent suffix of the files that belong to a split.
    forms = Counter(_form(path) for split, paths in splits.items() for path in paths if split)
    form = ".conllu" if ".conllu" in forms else next((form for form, _ in forms.most_common(1)), "")
    by_name = {
        split: paths_of_split
        for split, paths in splits.items()
        if (paths_of_split := [str(p) for p in paths if _form(p) == form])
    }
    unsure = by_name.pop("", [])
    if len(by_name) < 2:
        return {}, []
    if unsure:
        problem = f"expected the name of a split in the name of each file, as in {next(iter(by_name.values()))[0]}"
        raise CorpusError(f"{problem}, found {unsure[0]}; name the files of each split (--train, --dev, --test)")
    return by_name, [path for paths in splits.values() for path in paths if _form(path) != form]


def _form(path: Path) -> str:
    """Return the suffix of a path, or nothing if the suffix is the name of a split, as in ``eng.train``."""
    return "" if _SPLIT.search(path.suffix.lower()) else path.suffix


def _percents(shares: str) -> list[int]:
    """Return the percentages of train, dev and test in text such as ``80/10/10``. Raises CorpusError."""
    percent = [whole_number(part) for part in shares.split("/")]
    if len(percent) != 3 or None in percent or sum(numbers := [part or 0 for part in percent]) != 100:
        raise CorpusError(
            f"--split: expected percentages of train, dev and test such as {SHARES}, found {shares[:60]!r}"
        )
    return numbers


def split_at_random(sentences: Sequence[Sentence], shares: str, seed: int, source: str = "--split") -> Splits:
    """Split sentences at random into train, dev and test, which keep the original order of their sentences.

    Args:
        shares: percentages such as ``80/10/10``; a split with 0 % is left out.
        source: the name of the sentences in an error.

    Raises:
        CorpusError: ``shares`` are not percentages, or a split would be empty.
    """
    percent = _percents(shares)
    ends = [round(len(sentences) * sum(percent[: k + 1]) / 100) for k in range(3)]
    order = list(range(len(sentences)))
    random.Random(seed).shuffle(order)
    splits: Splits = {}
    for split, share, begin, end in zip(("train", "dev", "test"), percent, [0, *ends], ends, strict=False):
        if share and begin == end:
            problem = f"expected enough sentences for {share} % of {split}, found {plural(len(sentences), 'sentence')}"
            raise CorpusError(f"{source}: {problem}; give more sentences, or other shares (--split)")
        if share:
            rows = sorted(order[begin:end])
            if isinstance(sentences, StoredSentences):
                splits[split] = sentences.rows(rows)
            else:
                splits[split] = [sentences[row] for row in rows]
    return splits


def with_unique_ids(splits: Mapping[str, Sequence[Sentence]], tell: Tell) -> Splits:
    """Return the splits with unique ids: ``~2`` is added to the second sentence with the same id, and so on."""
    names = [sentence.id for sentences in splits.values() for sentence in sentences]
    distinct, ids_used = set(names), Counter[str]()
    if len(distinct) == len(names):
        return dict(splits)
    tell(
        f"{plural(len(names) - len(distinct), 'sentence')} had the id of an earlier sentence and got another id, such "
        "as ID~2"
    )

    def renamed(sentence: Sentence) -> Sentence:
        name = sentence.id
        ids_used[sentence.id] += 1
        while ids_used[sentence.id] > 1 and (name := f"{sentence.id}~{ids_used[sentence.id]}") in distinct:
            ids_used[sentence.id] += 1
        distinct.add(name)
        return replace(sentence, id=name)

    return {split: spooled(map(renamed, sentences)) for split, sentences in splits.items()}


def find_oddities(splits: Mapping[str, Iterable[Sentence]]) -> list[str]:
    """Return warnings about oddities of a corpus. None of them prevents reading or training.

    Warnings concern sentences of train that recur in other splits, trees with several roots, control characters, tags
    that look like spans, spans of the type O, labels that are missing in train, and layers that some splits lack.
    """
    # The set holds hashes of 64 bits instead of words, which would fill the memory for a large corpus. A collision
    # would only add one sentence to a warning.
    trained = {hash(sentence.words) for sentence in splits.get("train", ())}
    warnings, layers, labelled = [], defaultdict[str, set[str]](set), set[str]()
    tags, types = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    labels: dict[str, dict[str, set[str | None]]] = defaultdict(lambda: defaultdict(set))
    for split, sentences in splits.items():
        oddities: dict[str, list[str]] = defaultdict(list)
        size = 0
        for size, sentence in enumerate(sentences, 1):  # noqa: B007 (size is used after the loop)
            layers[split].update(sentence.kinds())
            labelled.update(layer for layer in sentence.kinds() if split == "train" and sentence.get(layer) != ())
            for layer, kind in sentence.kinds().items():
                if kind_of(kind) == "tags":
                    tags[layer].update(sentence.get(layer))
                elif kind_of(kind) == "spans":
                    types[layer].update(span.label for span in sentence.get(layer))
                elif kind in OF_SENTENCES:
                    labels[layer][split].update(LABELS[kind](sentence.get(layer)))
            trees = [sentence.get(layer) for layer, kind in sentence.kinds().items() if kind == "tree"]
            if split != "train" and hash(sentence.words) in trained:
                oddities["have the same words as a sentence of train"].append(sentence.id)
            if any(tree.heads.count(0) > 1 for tree in trees):
                oddities["have several roots, but a predicted tree has one root"].append(sentence.id)
            if re.search(r"[\x00-\x1f\x7f-\x9f]", " ".join(sentence.words)):
                oddities["have control characters in words, which some encoders drop"].append(sentence.id)
        warnings += [
            f"warning: {len(ids)} of {size} sentences of {split} {problem}; the first is {ids[0]}"
            for problem, ids in oddities.items()
        ]
    for layer, names in tags.items():
        if 2 * sum(tag[:2] in ("B-", "I-") for tag in names) >= len(names):
            suggestion = "name the column ner, or NAME:spans, if these are entities"
            warnings.append(f"warning: {layer} has tags of spans, such as {min(names)}; {suggestion}")
    for layer in (layer for layer, names in types.items() if "O" in names):
        warnings.append(f"warning: {layer} has spans of the type O, from tags such as B-O; write O outside of spans")
    for layer in sorted(layers["train"] - labelled):
        warnings.append(
            f"warning: train has no label of {layer}, so nothing can be predicted; check the column of this layer"
        )
    for layer, labels_by_split in labels.items():
        trained_labels = labels_by_split.get("train", set())
        for split, labels_of_split in labels_by_split.items():
            if trained_labels and (new_labels := sorted(map(str, labels_of_split - trained_labels))):
                warnings.append(
                    f"warning: {split} has labels of {layer} that train never has: {', '.join(new_labels[:5])}"
                )
    all_layers = set[str]().union(*layers.values())
    for split, layers_of_split in layers.items():
        if missing_layers := all_layers - layers_of_split:
            warnings.append(f"warning: {split} lacks {', '.join(sorted(missing_layers))}, which another split has")
    return warnings


def merge(corpora: Mapping[str, Mapping[str, Sequence[Sentence]]], tell: Tell) -> tuple[Splits, list[str]]:
    """Join the layers of sentences with the same words, split by split, and append all other sentences.

    The k-th sentence with given words is joined with the k-th sentence with these words in the same split of the
    earlier corpora. If both have a layer, the annotation of the earlier corpus is kept.

    Args:
        corpora: name of a corpus → its splits, in the order of merging.
        tell: receives counts and warnings.

    Returns:
        the sentences of each split, and the layers whose tag sets differ: most labels of one corpus do not occur in
        another corpus.

    Raises:
        CorpusError: a layer has different kinds in two corpora.
    """
    result: dict[str, list[Sentence]] = {}
    kinds: dict[str, tuple[str, str]] = {}
    labels: _Labels = defaultdict(lambda: defaultdict(Counter))
    for name, splits in corpora.items():
        joined = appended = differing = 0
        differing_layers: set[str] = set()
        for split, sentences in splits.items():
            sentences = list(sentences)
            for layer, kind in declared(sentences).items():
                first, first_kind = kinds.setdefault(layer, (name, kind))
                if kind != first_kind:
                    problem = f"expected the layer {layer} to be of the kind {first_kind} as in {first}, found {kind}"
                    raise CorpusError(f"{name}: {problem}; build the corpus again with another name for this layer")
            result_sentences = result.setdefault(split, [])
            before = len(result_sentences)
            for index, sentence in _positions_to_join(result_sentences, sentences):
                result_sentences[index], changed_layers, added = _joined(result_sentences[index], sentence)
                differing += bool(changed_layers)
                differing_layers |= changed_layers
                for layer, (kind, value) in added.items():
                    labels[layer][name].update(filter(None, LABELS[kind_of(kind)](value)))
            appended += len(result_sentences) - before
            joined += len(sentences) - (len(result_sentences) - before)
        layers = ", ".join(sorted(differing_layers))
        differ = (
            f"; in {differing} of the joined sentences {layers} differs from the earlier corpus, whose annotation is "
            "kept"
            if differing
            else ""
        )
        tell(f"{name}: {plural(appended, 'sentence')} appended, {joined} joined{differ}")
    mixed = _layers_with_other_labels(labels, tell)
    return with_unique_ids(result, tell), mixed


_Labels = defaultdict[str, dict[str, Counter[str]]]
"""Layer → corpus → the frequencies of its labels."""


def _positions_to_join(
    result_sentences: list[Sentence], sentences: Iterable[Sentence]
) -> Iterator[tuple[int, Sentence]]:
    """Yield each sentence with the index in ``result_sentences`` of the sentence that it joins.

    If no sentence with the same words is left to join, a sentence with these words and without layers is appended.
    """
    indices: dict[tuple[tuple[str, ...], int | None], list[int]] = defaultdict(list)
    # Indices are listed backwards, so that pop() returns the first sentence that is left.
    for index in range(len(result_sentences) - 1, -1, -1):
        indices[result_sentences[index].words, result_sentences[index].split].append(index)
    for sentence in sentences:
        if same_text := indices[sentence.words, sentence.split]:
            yield same_text.pop(), sentence
        else:
            result_sentences.append(sentence.bare())
            yield len(result_sentences) - 1, sentence


def _joined(old: Sentence, sentence: Sentence) -> tuple[Sentence, set[str], dict[str, Layer]]:
    """Join two sentences with the same words.

    Returns:
        the old sentence with the layers that it lacked, the names of layers that differ in both, and the added layers.
    """
    new = {layer: Layer(kind, sentence.get(layer)) for layer, kind in sentence.kinds().items()}
    changed_layers = {x for x in new if old.kind(x) is not None and old.get(x) != new[x].value}
    added = {layer: layer_value for layer, layer_value in new.items() if old.kind(layer) is None}
    return replace(old.with_layers(**added), source=old.source or sentence.source), changed_layers, added


def _layers_with_other_labels(labels: _Labels, tell: Tell) -> list[str]:
    """Return the layers whose tag sets differ between corpora, with a warning for each pair of corpora."""
    mixed = []
    for layer, by_corpus in labels.items():
        for (first_corpus, first_counts), (second_corpus, second_counts) in combinations(by_corpus.items(), 2):
            if (
                first_counts
                and second_counts
                and (_mostly_new(first_counts, second_counts) or _mostly_new(second_counts, first_counts))
            ):
                examples = [
                    "such as " + ", ".join(label for label, _ in counts.most_common(3))
                    for counts in (first_counts, second_counts)
                ]
                problem = (
                    f"the layer {layer} has other labels in {first_corpus} ({examples[0]}) than in "
                    f"{second_corpus} ({examples[1]})"
                )
                tell(f"warning: {problem}; build one of them under another name, such as {layer}2, to train on both")
                mixed.append(layer)
    return mixed


def _mostly_new(counts: Counter[str], other_counts: Counter[str]) -> bool:
    """Return True if most labels of one corpus, weighted by frequency, do not occur in the other corpus."""
    return 2 * sum(times for label, times in counts.items() if label not in other_counts) > counts.total()
