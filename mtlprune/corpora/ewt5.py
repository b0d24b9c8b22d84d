"""Build EWT5: the English Web Treebank with five layers from Universal Dependencies, Universal NER and PropBank.

Words, tags (XPOS) and dependencies come from UD_English-EWT r2.16. Named entities come from UNER_English-EWT, which
uses the words of an earlier release; they are aligned by characters within each document. Constituent trees and roles
come from propbank-release. The trees of a document belong to its sentences in order. ``ewt_exceptions.tsv`` lists the
sentences for which trees, or tokens and words, do not correspond one to one. All three sources and the joined corpus
have the licence CC BY-SA 4.0.

A *skeleton* is a file or sentence of PropBank that contains trees and roles, but no words.
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
_SPLITS = ("train", "dev", "test")
UD = "UniversalDependencies/UD_English-EWT/r2.16"
UNER = "UniversalNER/UNER_English-EWT/8ed072de2fd24022cc62458997fe96a8fe191ea4"
PROPBANK_COMMIT = "4abade0b53ce4a181e1d98b3518101c1a44d395a"
# The early UNER files label the last word of the first sentence of each document B-O. This artefact of the annotation
# tool hides 38 words of entities. The early files also have a fourth entity type (OTH), which the release drops.
_NO_ENTITIES = frozenset({"O", "OTH"})
# Document → number of skeleton sentences at its end whose words are not in UD.
_EXTRA_TREES = {"email-enronsent26_02": 1}


class _Exception(NamedTuple):
    """The index of the skeleton that belongs to a sentence, and the groups of tokens that are not one word each."""

    skeleton: int
    groups: "tuple[Group, ...]"


def build_ewt5(sources: Path) -> dict[str, list[Sentence]]:
    """Join the three sources into sentences with five layers.

    In 28 sentences of dev and 15 of test, trees and roles are unknown, because PropBank lacks their documents.

    Args:
        sources: a folder with ``ud/en_ewt-ud-{train,dev,test}.conllu``, ``uner/en_ewt-ud-{train,dev,test}.iob2`` and
            PropBank's ``data/google/ewt`` (directly or in ``propbank/``).

    Returns:
        the splits train, dev and test with their sentences in the order of UD.

    Raises:
        CorpusError: a file is missing or malformed, or the releases of the sources do not fit together.
    """
    sources = Path(sources)
    files = ewt5_files(sources)
    skeletons = read_skeletons(files["propbank"])
    exceptions = _read_exceptions()
    corpus = {}
    for split in _SPLITS:
        sentences = list(read_conllu(files[f"ud {split}"]))
        annotated = _read_entities(files[f"uner {split}"])
        sentences = list(_join_entities(sentences, _documents(annotated), files[f"uner {split}"]))
        corpus[split] = list(_join_skeletons(sentences, skeletons, exceptions))
    for _ in check_unique(sentence for split in corpus.values() for sentence in split):
        pass
    return corpus


def ewt5_files(sources: Path) -> dict[str, Path]:
    """Return every file or folder that :func:`build_ewt5` reads, under names such as ``ud train`` and ``propbank``.

    Raises CorpusError if one is missing, with its name and the address of its download.
    """
    sources = Path(sources)
    files = {}
    for split in _SPLITS:
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
    """Return the sentences of each document. Ids have the form DOCUMENT-NUMBER."""
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
            # PropBank lacks this document, so trees and roles of the sentence are unknown (not empty).
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
    """Yield each sentence with its skeleton and the mapping from tokens to words.

    Both are None if PropBank lacks the document of the sentence.

    Raises:
        CorpusError: the skeletons of a document do not correspond to its sentences.
    """
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
    """Return the exceptions, by sentence id: sentences whose skeleton tokens and words do not correspond one to one."""
    text = resources.files("mtlprune.corpora").joinpath("ewt_exceptions.tsv").read_text(encoding="utf-8")
    exceptions = {}
    for row in list(csv.reader(text.splitlines(), delimiter="\t"))[1:]:
        groups = []
        for group in row[3].split(" "):
            tokens, words = (tuple(int(index) for index in side.split(",")) for side in group.split(":"))
            groups.append(Group(tokens, words))
        exceptions[row[1]] = _Exception(int(row[2]), tuple(groups))
    return exceptions


# -- Moving layers between two tokenisations of the same text, by characters or by listed groups of tokens -------------


def move_entities(annotated: Sequence[Sentence], target: Sequence[Sentence]) -> list[tuple[Span, ...]]:
    """Return the entities of ``annotated``, mapped onto the words of ``target`` by their characters.

    Both arguments are the same document. Their boundaries of words and of sentences may differ, and white space
    does not count. An entity covers every word of ``target`` that contains one of its characters.

    Returns:
        the entities of each target sentence.

    Raises:
        CorpusError: the characters of the two texts differ, an entity crosses a sentence boundary of ``target``, or
            two entities share a word.
    """
    _check_same_text(annotated, target)
    offsets = [0, *accumulate(len(_squeeze(word)) for sentence in annotated for word in sentence.words)]
    ends = list(accumulate(len(_squeeze(word)) for sentence in target for word in sentence.words))
    first_words = [0, *accumulate(len(sentence) for sentence in target)]
    moved_spans: list[list[Span]] = [[] for _ in target]
    before = 0
    for sentence in annotated:
        for start, end, label in sentence.ner or ():
            # Words are numbered throughout the document. Word w covers the characters from ends[w - 1] to ends[w] - 1.
            first = bisect_right(ends, offsets[before + start])
            last = bisect_left(ends, offsets[before + end])
            number = bisect_right(first_words, first) - 1
            if last >= first_words[number + 1]:
                location = f"{label} {start}–{end} of sentence {sentence.id!r}"
                raise CorpusError(
                    f"{location}: expected an entity within one sentence of the target, found it across two"
                )
            moved_spans[number].append(Span(first - first_words[number], last + 1 - first_words[number], label))
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
    start = next(k for k, (a, b) in enumerate(zip_longest(source_text, target_text)) if a != b)
    raise CorpusError(
        f"the document that begins with sentence {target[0].id!r}: expected the same characters in both sources, found "
        f"{source_text[start : start + 20]!r} against {target_text[start : start + 20]!r} at character {start}; use "
        "versions of the sources that belong together"
    )


class Group(NamedTuple):
    """Tokens of one tokenisation that together are the given words of another tokenisation; indices count from 0."""

    tokens: tuple[int, ...]
    words: tuple[int, ...]


class Regrouping:
    """A mapping of trees and roles from ``n_tokens`` tokens onto ``n_words`` words of the same sentence.

    Tokens and words outside the groups correspond one to one, in order. If all words are in groups, the remaining
    tokens belong to another sentence; brackets then lose these tokens, and predicates among them are dropped.

    Raises:
        CorpusError: a group refers to a token or word outside the sentence, or the numbers of tokens and words outside
            the groups differ.
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
        # Trees use _leaves: token → the words that replace it. Roles use _covers: token → the words that it is part of.
        self._leaves: list[tuple[int, ...]] = [()] * n_tokens
        self._covers: list[tuple[int, ...]] = [()] * n_tokens
        for token, word in zip(tokens, words, strict=False):
            self._leaves[token] = self._covers[token] = (word,)
        for group in groups:
            # If the treebank splits a word into several tokens, its first token represents the whole word in the tree,
            # and the other tokens are dropped.
            self._leaves[group.tokens[0]] = group.words
            for token in group.tokens:
                self._covers[token] = group.words

    def constituents(self, spans: Sequence[Span]) -> tuple[Span, ...]:
        """Convert brackets over tokens to brackets over words, and leave out those that cover no word."""
        moved_spans = (_move(span, self._leaves) for span in spans)
        return tuple(span for span in moved_spans if span is not None)

    def predicates(self, predicates: Sequence[Predicate]) -> tuple[Predicate, ...]:
        """Return predicates at words, with arguments extended to whole words.

        A predicate whose token corresponds to several words is at the first of these words.
        """
        moved_predicates = []
        for predicate in predicates:
            words = self._covers[predicate.index]
            if words:
                moved_spans = (_move(span, self._covers) for span in predicate.arguments)
                arguments = tuple(span for span in moved_spans if span is not None)
                moved_predicates.append(predicate._replace(index=words[0], arguments=arguments))
        return tuple(moved_predicates)


def _move(span: Span, onto: Sequence[tuple[int, ...]]) -> Span | None:
    """Return a span whose tokens are replaced by words, or None if no word is left."""
    words = [word for token in range(span.start, span.end) for word in onto[token]]
    return Span(min(words), max(words) + 1, span.label) if words else None
