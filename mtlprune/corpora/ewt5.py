"""EWT5: the English Web Treebank with five layers, joined from Universal Dependencies, Universal NER and PropBank.

Words, tags (XPOS) and dependencies: UD_English-EWT r2.16. Entities: UNER_English-EWT, on the words of an earlier
release, aligned by characters per document. Trees and roles: propbank-release, whose k-th tree of a document is its
k-th sentence, but for the sentences listed in ``ewt_exceptions.tsv``. All three are CC BY-SA 4.0, and so is the join.
"""

import csv
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import NamedTuple

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats import malformed
from mtlprune.corpora.formats.columns import parse_columns, read_columns
from mtlprune.corpora.formats.conllu import read_conllu
from mtlprune.corpora.formats.propbank import Skeleton, read_skeletons
from mtlprune.sentence import Predicate, Sentence, SentenceError, Span, check_unique

LICENCE = "CC BY-SA 4.0"
SPLITS = ("train", "dev", "test")
UD = "UniversalDependencies/UD_English-EWT/r2.16"
UNER = "UniversalNER/UNER_English-EWT/8ed072de2fd24022cc62458997fe96a8fe191ea4"
PROPBANK_COMMIT = "4abade0b53ce4a181e1d98b3518101c1a44d395a"
# The early UNER files label the last word of each document's first sentence B-O (an artefact of the annotation tool,
# which hides 38 words of entities) and carry a fourth type that the release drops.
_NO_ENTITIES = frozenset({"O", "OTH"})
# Skeleton sentences at the end of a document that have no words in UD.
_EXTRA_TREES = {"email-enronsent26_02": 1}


class _Exception(NamedTuple):
    skeleton: int
    groups: "tuple[Group, ...]"


def build_ewt5(sources: Path) -> dict[str, list[Sentence]]:
    """Join the three sources into sentences with five layers; 43 sentences of dev and test have no trees and roles.

    Args:
        sources: a folder with ``ud/en_ewt-ud-{train,dev,test}.conllu``, ``uner/en_ewt-ud-{train,dev,test}.iob2`` and
            PropBank's ``data/google/ewt`` (in it, or in ``propbank/``).

    Returns:
        train, dev and test, in the order of UD.

    Raises:
        CorpusError: a file is missing or malformed, or the sources do not belong together.
    """
    sources = Path(sources)
    files = ewt5_files(sources)
    skeletons = read_skeletons(files["propbank"])
    exceptions = _read_exceptions()
    corpus = {}
    for split in SPLITS:
        sentences = list(read_conllu(files[f"ud {split}"]))
        annotated = _read_entities(files[f"uner {split}"])
        sentences = list(_join_entities(sentences, _documents(annotated), files[f"uner {split}"]))
        corpus[split] = list(_join_skeletons(sentences, skeletons, exceptions))
    for _ in check_unique(sentence for split in corpus.values() for sentence in split):
        pass
    return corpus


def ewt5_files(sources: Path) -> dict[str, Path]:
    """Every file (or folder) that :func:`build_ewt5` reads, by what it is. Raises CorpusError: one is missing; the
    message names it and where to get it."""
    sources = Path(sources)
    files = {}
    for split in SPLITS:
        for folder, ending, address in (("ud", "conllu", UD), ("uner", "iob2", UNER)):
            name = f"en_ewt-ud-{split}.{ending}"
            path = sources / folder / name
            if not path.is_file():
                url = f"https://raw.githubusercontent.com/{address}/{name}"
                raise CorpusError(f"{path}: expected a file, found none; download it from {url}")
            files[f"{folder} {split}"] = path
    folders = [folder / "data/google/ewt" for folder in (sources / "propbank", sources)]
    propbank = next((folder for folder in folders if folder.is_dir()), None)
    if propbank is None:
        url = f"https://codeload.github.com/propbank/propbank-release/tar.gz/{PROPBANK_COMMIT}"
        raise CorpusError(f"{folders[0]}: expected a folder, found none; download it from {url}")
    return {**files, "propbank": propbank}


def _read_entities(path: Path) -> Iterator[Sentence]:
    for sentence in read_columns(path, parse_columns("_,word,ner,...")):
        yield sentence.with_layers(ner=tuple(span for span in sentence.ner or () if span.label not in _NO_ENTITIES))


def _documents(sentences: Iterable[Sentence]) -> dict[str, list[Sentence]]:
    """Sentences by document, which is their id without the number at its end."""
    documents: dict[str, list[Sentence]] = {}
    for sentence in sentences:
        documents.setdefault(sentence.id.rpartition("-")[0], []).append(sentence)
    return documents


def _join_entities(
    sentences: list[Sentence], annotated: Mapping[str, list[Sentence]], source: Path
) -> Iterator[Sentence]:
    documents = _documents(sentences)
    for name in {**documents, **annotated}:
        if name not in documents or name not in annotated:
            presence = "only in UD" if name in documents else "not in UD"
            raise CorpusError(
                f"{source}: expected the documents of UD, found {name!r} {presence}; use the same split of both"
            )
    for name, document in documents.items():
        entities = move_entities(annotated[name], document)
        for sentence, spans in zip(document, entities, strict=True):
            yield sentence.with_layers(ner=spans)


def _join_skeletons(
    sentences: list[Sentence], skeletons: Mapping[str, list[Skeleton]], exceptions: Mapping[str, _Exception]
) -> Iterator[Sentence]:
    for sentence, skeleton, regrouping in _pair(sentences, skeletons, exceptions):
        if skeleton is None or regrouping is None:
            # Without a skeleton for its document the sentence has no trees and no roles; they stay unknown and do not
            # become empty.
            yield sentence
            continue
        con = regrouping.constituents(skeleton.con)
        srl = regrouping.predicates(skeleton.srl)
        try:
            yield sentence.with_layers(con=con, srl=srl).validate()
        except SentenceError as error:
            raise malformed(skeleton.source, skeleton.line, str(error)) from error


def _pair(
    sentences: list[Sentence], skeletons: Mapping[str, list[Skeleton]], exceptions: Mapping[str, _Exception]
) -> "Iterator[tuple[Sentence, Skeleton | None, Regrouping | None]]":
    """Each sentence with its skeleton and the way onto its words; (sentence, None, None) where there is none."""
    for name, document in _documents(sentences).items():
        trees = skeletons.get(name)
        following = 0
        for sentence in document:
            if trees is None:
                yield sentence, None, None
                continue
            exception = exceptions.get(sentence.id) or _Exception(following, ())
            following = exception.skeleton + 1
            if exception.skeleton >= len(trees):
                actual = f"found only {len(trees)} sentences, and none for {sentence.id!r}"
                raise CorpusError(f"{trees[0].source}: expected a sentence for each of UD, {actual}; take r2.16")
            skeleton = trees[exception.skeleton]
            try:
                yield sentence, skeleton, Regrouping(len(skeleton), len(sentence), exception.groups)
            except CorpusError as error:
                problem = f"the skeleton does not fit sentence {sentence.id!r}: {error}; use r2.16 of UD"
                raise malformed(skeleton.source, skeleton.line, problem) from error
        if trees is not None and following + _EXTRA_TREES.get(name, 0) != len(trees):
            actual = f"found {len(trees)} for {len(document)}"
            raise CorpusError(f"{trees[0].source}: expected a sentence for each of UD, {actual}; use r2.16 of UD")


def _read_exceptions() -> dict[str, _Exception]:
    """The sentences whose tokens and words are not one to one."""
    text = resources.files("mtlprune.corpora").joinpath("ewt_exceptions.tsv").read_text(encoding="utf-8")
    exceptions = {}
    for row in list(csv.reader(text.splitlines(), delimiter="\t"))[1:]:
        groups = []
        for group in row[3].split(" "):
            tokens, words = (tuple(int(place) for place in side.split(",")) for side in group.split(":"))
            groups.append(Group(tokens, words))
        exceptions[row[1]] = _Exception(int(row[2]), tuple(groups))
    return exceptions


# -- Moving layers between two tokenisations of the same text: by characters, or by listed groups of tokens --


def move_entities(annotated: Sequence[Sentence], target: Sequence[Sentence]) -> list[tuple[Span, ...]]:
    """Give the entities of ``annotated`` to the sentences of ``target``, which hold the same characters. Raises
    CorpusError: the characters differ, an entity lies across two sentences, or two entities meet in one word.

    Both are whole documents: sentence boundaries may differ as well as word boundaries. Blanks do not count. An entity
    takes every word that it touches.
    """
    _check_same_text(annotated, target)
    offsets = [0, *accumulate(len(_squeeze(word)) for sentence in annotated for word in sentence.words)]
    ends = list(accumulate(len(_squeeze(word)) for sentence in target for word in sentence.words))
    first_words = [0, *accumulate(len(sentence) for sentence in target)]
    moved_spans: list[list[Span]] = [[] for _ in target]
    before = 0
    for sentence in annotated:
        for start, end, label in sentence.ner or ():
            # words are numbered through the document; word w covers the characters ends[w - 1] to ends[w]
            first = bisect_right(ends, offsets[before + start])
            last = bisect_left(ends, offsets[before + end])
            home = bisect_right(first_words, first) - 1
            if last >= first_words[home + 1]:
                location = f"{label} {start}–{end} of sentence {sentence.id!r}"
                raise CorpusError(
                    f"{location}: expected an entity within one sentence of the target, found it across two"
                )
            moved_spans[home].append(Span(first - first_words[home], last + 1 - first_words[home], label))
        before += len(sentence)
    for spans, sentence in zip(moved_spans, target, strict=True):
        try:
            Sentence(sentence.id, sentence.words, ner=tuple(spans)).validate()
        except SentenceError as error:
            raise CorpusError(f"entities moved to other word boundaries collide: {error}") from error
    return [tuple(spans) for spans in moved_spans]


def _squeeze(word: str) -> str:
    return "".join(word.split())


def _check_same_text(annotated: Sequence[Sentence], target: Sequence[Sentence]) -> None:
    source_text = "".join(_squeeze(word) for sentence in annotated for word in sentence.words)
    target_text = "".join(_squeeze(word) for sentence in target for word in sentence.words)
    if source_text == target_text:
        return
    place = next(k for k, (a, b) in enumerate(zip_longest(source_text, target_text)) if a != b)
    raise CorpusError(
        f"the document that begins with sentence {target[0].id!r}: expected the same characters in both sources, found "
        f"{source_text[place : place + 20]!r} against {target_text[place : place + 20]!r} at character {place}; use "
        "versions of the sources that belong together"
    )


class Group(NamedTuple):
    """Tokens of one tokenisation that are, together, some words of another; places count from 0."""

    tokens: tuple[int, ...]
    words: tuple[int, ...]


class Regrouping:
    """Trees and roles over ``n_tokens`` tokens, moved onto ``n_words`` words. Raises CorpusError: the tokens and words
    left over are not equally many, or a group lies outside the sentence.

    Tokens and words outside the groups pair one to one in order. Where no word is left over, the tokens left over
    belong to another sentence: trees are restricted, predicates among those tokens go.
    """

    def __init__(self, n_tokens: int, n_words: int, groups: Sequence[Group] = ()) -> None:
        in_groups = {token for group in groups for token in group.tokens}
        words_in_groups = {word for group in groups for word in group.words}
        if not (in_groups <= set(range(n_tokens)) and words_in_groups <= set(range(n_words))):
            raise CorpusError(f"a group of tokens lies outside the {n_tokens} tokens and {n_words} words")
        tokens = [token for token in range(n_tokens) if token not in in_groups]
        words = [word for word in range(n_words) if word not in words_in_groups]
        if words and len(tokens) != len(words):
            raise CorpusError(
                f"expected as many tokens as words outside the groups, found {len(tokens)} and {len(words)}"
            )
        # For trees, the words that stand in a token's place; for roles, the words that a token is part of.
        self._leaves: list[tuple[int, ...]] = [()] * n_tokens
        self._covers: list[tuple[int, ...]] = [()] * n_tokens
        for token, word in zip(tokens, words, strict=False):
            self._leaves[token] = self._covers[token] = (word,)
        for group in groups:
            # Where a word was split into several tokens of the treebank, its first leaf stands for the whole word,
            # and the others are left out.
            self._leaves[group.tokens[0]] = group.words
            for token in group.tokens:
                self._covers[token] = group.words

    def constituents(self, spans: Sequence[Span]) -> tuple[Span, ...]:
        """Brackets over words; those left without a word go."""
        moved_spans = (_move(span, self._leaves) for span in spans)
        return tuple(span for span in moved_spans if span is not None)

    def predicates(self, predicates: Sequence[Predicate]) -> tuple[Predicate, ...]:
        """Predicates at words (the first, where a token is several), argument spans grown to whole words."""
        moved_predicates = []
        for predicate in predicates:
            words = self._covers[predicate.index]
            if words:
                moved_spans = (_move(span, self._covers) for span in predicate.arguments)
                arguments = tuple(span for span in moved_spans if span is not None)
                moved_predicates.append(predicate._replace(index=words[0], arguments=arguments))
        return tuple(moved_predicates)


def _move(span: Span, onto: Sequence[tuple[int, ...]]) -> Span | None:
    words = [word for token in range(span.start, span.end) for word in onto[token]]
    return Span(min(words), max(words) + 1, span.label) if words else None
