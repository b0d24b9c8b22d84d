"""Build MASC: 62 documents of thirteen genres with tags, trees, roles and names, from MASC 1 and PropBank.

Words are the leaves of MASC's Penn trees. Tags, constituents and roles come from propbank-release; the k-th tree of a
document has the same index in both sources. Names are ranges of characters in MASC's text files. The text is aligned
with the leaves, because these spell case, quotes and brackets differently. ``masc_documents.tsv`` lists the genre and
the split of each document.
"""

import csv
import hashlib
import re
import string
import tarfile
import xml.etree.ElementTree as ET
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from mtlprune.corpora import CorpusError
from mtlprune.corpora.ewt5 import Group, Regrouping
from mtlprune.corpora.formats import Tell, blocks, decode_lines, files_below
from mtlprune.corpora.formats.brackets import EMPTY, outermost, unescaped
from mtlprune.corpora.formats.propbank import parse_skeleton
from mtlprune.sentence import Sentence, Span

LICENCE = "CC BY-SA 4.0"
MASC_COMMIT = "7a718b01af317f7ed8e330b0edd8db30c162da24"
_KINDS = {"Person": "PER", "Organization": "ORG", "Location": "LOC", "Date": "DATE"}
"""MASC's kinds of names → our labels. If two kinds cover the same words, the kind that comes first here is kept."""
_MAX_MISALIGNED_SHARE = 0.1
"""Largest accepted share of the names of a document that do not coincide with words.

If the share is larger, we assume that the character offsets refer to another version of the text, and NER is unknown in
the whole document.
"""
_SUFFIX = re.compile(r"-UTF16|\.ascii-1-NEW|-NE\.xml$|\.mrg(\.txt)?$|\.txt$|\.gold_skel$")
_BRACKET_OR_LEAF = re.compile(r"\(([^\s()]+)\s+([^\s()]+)\s*\)|[()]")
_ENDS = ("/", "-/", "/-")  # leaves at the end of units of speech
_TRACE = re.compile(r"\*[A-Z]+\*(-[0-9]+)?")
_PIECE = re.compile(r"[a-z]+|[0-9]+|\S")
_FOLDED = str.maketrans(string.ascii_uppercase + "“”‘’–—", string.ascii_lowercase + "\"\"''--")


class MascDocument(NamedTuple):
    """A document of MASC with its genre and its split."""

    genre: str
    name: str
    split: str


class Name(NamedTuple):
    """A name over the characters from ``start`` to ``end - 1`` of a text, with MASC's ``kind``."""

    start: int
    end: int
    kind: str


_Files = Mapping[tuple[str, str], tuple[str, bytes]]
"""(the folder above the file or ``skeleton``, the name of the document) → the path of the file, and its content."""


def documents() -> list[MascDocument]:
    """Return the documents in the order of the corpus."""
    text = resources.files("mtlprune.corpora").joinpath("masc_documents.tsv").read_text(encoding="utf-8")
    return [MascDocument(*row) for row in list(csv.reader(text.splitlines(), delimiter="\t"))[1:]]


def build_masc(sources: Path, tell: Tell) -> tuple[dict[str, list[Sentence]], dict[str, str], dict[str, Any]]:
    """Join the sources into sentences with POS, CON, SRL and NER.

    Leaves that are not words of the text (turns, paragraphs) are dropped, and so are trees that contain only such
    leaves. Of nested names the outermost is kept. A name that does not begin and end at word boundaries of one sentence
    is reported, and NER is unknown in every sentence to which the name could belong. In a document with more than 10 %
    of such names, NER is unknown in all sentences. CON and SRL are unknown in a sentence whose rows in PropBank are
    malformed.

    Args:
        sources: a folder with the files of MASC 1 and PropBank, or with tar archives of these files, at any depth.
        tell: receives one line for each document with names that cannot be aligned, one for each sentence with unknown
            CON and SRL, and a summary.

    Returns:
        the splits train, dev and test; the sources with one checksum; and the entry ``left_out`` of ``corpus.json``.

    Raises:
        CorpusError: a file is missing or malformed, or the trees of the two sources do not fit together.
    """
    files = _read_files(Path(sources))
    splits: dict[str, list[Sentence]] = {"train": [], "dev": [], "test": []}
    total, entity_count, unaligned = 0, 0, dict[str, list[str]]()
    for document in documents():
        sentences = list(_sentences(document, files, tell))
        text = _file(files, "txtfiles", document.name)
        names = sorted(_names(files, document.name))
        ner, wrong = align_names(sentences, _decoded(*text), names)
        total, entity_count = total + len(names), entity_count + sum(len(spans or ()) for spans in ner)
        if wrong:
            unaligned[document.name] = wrong
            examples = f"{', '.join(wrong[:3])}{', …' if len(wrong) > 3 else ''}"
            unknown = f"NER is unknown in {ner.count(None)} of {len(ner)} sentences"
            tell(f"{document.name}: {len(wrong)} of {len(names)} names are not whole words ({examples}); {unknown}")
        splits[document.split] += [s.with_layers(ner=spans) for s, spans in zip(sentences, ner, strict=True)]
    number = sum(map(len, unaligned.values()))
    elsewhere_count = total - entity_count - number
    tell(
        f"NER has {entity_count} of {total} names: {number} are not whole words, and {elsewhere_count} lie in other "
        "names or where NER is unknown"
    )
    left_out = {"names": total - entity_count, "of": total, "unaligned": unaligned}
    digest = hashlib.sha256()
    for (layer, name), (_, data) in sorted(files.items()):
        digest.update(f"{layer}/{name} {hashlib.sha256(data).hexdigest()}\n".encode())
    return splits, {f"{len(files)} files of MASC 1 and PropBank": digest.hexdigest()}, left_out


# -- Files -------------------------------------------------------------------------------------------------------------


def _read_files(sources: Path) -> _Files:
    """Return the files of all documents.

    Raises CorpusError if ``sources`` is not a folder, or two different files have the same role and document.
    """
    if not sources.is_dir():
        raise CorpusError(f"{sources}: expected a folder with the files of MASC 1 and PropBank, found none")
    document_names = {document.name for document in documents()}
    files: dict[tuple[str, str], tuple[str, bytes]] = {}
    for location, path, read in _members(sources):
        name = _SUFFIX.sub("", path.name)
        if name in document_names or (name := _SUFFIX.sub("", name)) in document_names:
            key = "skeleton" if path.suffix == ".gold_skel" else path.parent.name, name
            data = read()
            if key in files and files[key][1] != data:
                raise CorpusError(
                    f"{location}: expected each file once, found another at {files[key][0]}; remove one of the two"
                )
            files[key] = location, data
    return files


def _members(sources: Path) -> Iterator[tuple[str, Path, Callable[[], bytes]]]:
    """Yield the location (for messages), the path and a reader of every file below a folder and in its tar archives.

    Raises:
        CorpusError: an archive cannot be read.
    """
    for file in sorted(files_below(sources)):
        if ".tar" not in file.suffixes and file.suffix != ".tgz":
            yield str(file), file, file.read_bytes
            continue
        try:
            with tarfile.open(file) as archive:
                for member in archive:
                    if member.isreg() and (stream := archive.extractfile(member)) is not None:
                        yield f"{file}: {member.name}", Path(member.name), stream.read
        except (tarfile.TarError, EOFError, OSError) as error:
            raise CorpusError(f"{file}: expected a readable tar archive, found: {error}; download it again") from error


def _file(files: _Files, layer: str, name: str) -> tuple[str, bytes]:
    if (layer, name) not in files:
        source = (
            "propbank/propbank-release" if layer == "skeleton" else f"oanc/masc, commit {MASC_COMMIT[:7]}, folder 1"
        )
        raise CorpusError(f"expected a file {layer}/{name} in --sources, found none; download it from {source}")
    return files[layer, name]


def _decoded(location: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{location}: expected UTF-8 text, found other content at byte {error.start}; download it again"
        ) from None


# -- Sentences ---------------------------------------------------------------------------------------------------------


def _sentences(document: MascDocument, files: _Files, tell: Tell) -> Iterator[Sentence]:
    """Yield the sentences of a document with tags, constituents and roles.

    The id is GENRE/DOCUMENT/NUMBER, where NUMBER is the index of the tree, from 0.

    Raises:
        CorpusError: the trees of the two sources do not correspond.
    """
    location, data = _file(files, "Penn_Treebank", document.name)
    trees = [leaves for leaves in _leaves_of(_decoded(location, data), location) if leaves]
    source, data = _file(files, "skeleton", document.name)
    skeletons = list(blocks(decode_lines(data, source)))
    if len(trees) != len(skeletons):
        raise CorpusError(f"{location}: expected {len(skeletons)} trees, as {source} has, found {len(trees)}")
    for number, (leaves, rows) in enumerate(zip(trees, skeletons, strict=True)):
        words = [(tag, unescaped(word)) for tag, word in leaves if not _is_mark(tag, word)]
        if not words:
            continue
        name = f"{document.genre}/{document.name}/{number}"
        sentence = Sentence(name, tuple(word for _, word in words), pos=tuple(tag for tag, _ in words))
        try:
            skeleton = parse_skeleton(rows, source, number)
        except CorpusError as error:
            tell(f"{name}: CON and SRL are unknown: {error}")
        else:
            if (tags := tuple(tag for tag, _ in leaves)) != skeleton.pos:
                problem = f"expected the tags of {source}, line {skeleton.line}, found {' '.join(tags)}"
                raise CorpusError(
                    f"{location}, tree {number}: {problem}; use releases of the sources that belong together"
                )
            marks = [Group((token,), ()) for token, leaf in enumerate(leaves) if _is_mark(*leaf)]
            onto = Regrouping(len(leaves), len(words), marks)
            layers = {"con": onto.constituents(skeleton.con), "srl": onto.predicates(skeleton.srl)}
            sentence = sentence.with_layers(**layers)
        yield sentence.validate()


def _leaves_of(text: str, location: str) -> Iterator[list[tuple[str, str]]]:
    """Yield the tags and words of the leaves of each tree, without empty elements.

    The nodes above the leaves are not checked, because one file has a node without a label.

    Raises:
        CorpusError: the brackets are not balanced.
    """
    depth, leaves = 0, list[tuple[str, str]]()
    for match in _BRACKET_OR_LEAF.finditer(text):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if match[1] and match[1] != EMPTY:
            leaves.append((match[1], match[2]))
        if depth < 0:
            line = text.count("\n", 0, match.start()) + 1
            raise CorpusError(f"{location}, line {line}: there is an extra ) before it; balance the brackets")
        if depth == 0:
            yield leaves
            leaves = []
    if depth:
        raise CorpusError(f"{location}: expected {depth} more ) at its end; get the whole file")


def _is_mark(tag: str, word: str) -> bool:
    """Return True for leaves that are not words of the text: turns, paragraphs, ends of spoken units, and traces."""
    return tag in ("CODE", "SU") or (tag == "." and word in _ENDS) or _TRACE.fullmatch(word) is not None


# -- Names -------------------------------------------------------------------------------------------------------------


def _names(files: _Files, document: str) -> Iterator[Name]:
    """Yield the names of a document. Raises CorpusError if the document has no file of names, or a malformed one.

    A document need not have a file for every kind of name.
    """
    annotation_files = ((f"ne-{kind.lower()}", document) for kind in _KINDS)
    sources = [files[file_key] for file_key in annotation_files if file_key in files]
    if not sources:
        _file(files, "ne-person", document)
    for location, data in sources:
        try:
            elements = list(ET.fromstring(data).iter("{http://www.xces.org/schema/2003}struct"))
            names = [Name(int(x.attrib["from"]), int(x.attrib["to"]), x.attrib["type"]) for x in elements]
        except (ET.ParseError, KeyError, ValueError) as error:
            raise CorpusError(
                f"{location}: expected names with from, to and type, found: {error}; download it again"
            ) from None
        if unexpected_kinds := {name.kind for name in names} - set(_KINDS):
            raise CorpusError(f"{location}: expected names of {', '.join(_KINDS)}, found {min(unexpected_kinds)}")
        yield from names


def align_names(
    sentences: Sequence[Sentence], text: str, names: Sequence[Name]
) -> tuple[list[tuple[Span, ...] | None], list[str]]:
    """Map names from characters onto words.

    Returns:
        the spans of each sentence (None if NER is unknown there), and descriptions of the names that do not coincide
        with words of one sentence.
    """
    sentence_numbers = [number for number, sentence in enumerate(sentences) for _ in sentence.words]
    first_words = {number: word for word, number in reversed(list(enumerate(sentence_numbers)))}
    spans = _locate_words([word for sentence in sentences for word in sentence.words], text)
    begins = {span[0]: word for word, span in enumerate(spans) if span}
    ends = {span[1]: word for word, span in enumerate(spans) if span}
    aligned_words = [word for word, span in enumerate(spans) if span]
    starts, stops = [span[0] for span in spans if span], [span[1] for span in spans if span]
    spans_by_sentence: list[list[Span]] = [[] for _ in sentences]
    unknown, misaligned = set[int](), list[str]()
    for name in names:
        start, end = _without_blanks(text, name)
        first, last = begins.get(start), ends.get(end)
        if (
            first is not None
            and last is not None
            and first <= last
            and sentence_numbers[first] == sentence_numbers[last]
        ):
            offset = first_words[sentence_numbers[first]]
            spans_by_sentence[sentence_numbers[first]].append(
                Span(first - offset, last + 1 - offset, _KINDS[name.kind])
            )
            continue
        misaligned.append(f"{name.kind} {name.start}–{name.end} {text[name.start : name.end]!r}")
        # The name could belong to any sentence from the last aligned word that starts at or before the name to the
        # first aligned word that ends at or after the name.
        before, after = bisect_right(starts, start) - 1, bisect_left(stops, end)
        low = sentence_numbers[aligned_words[before]] if before >= 0 else 0
        high = sentence_numbers[aligned_words[after]] if after < len(aligned_words) else len(sentences) - 1
        unknown.update(range(low, high + 1))
    if len(misaligned) > _MAX_MISALIGNED_SHARE * len(names):
        unknown.update(range(len(sentences)))
    order = list(_KINDS.values())
    for sentence_spans in spans_by_sentence:
        sentence_spans.sort(key=lambda span: (span.start, -span.end, order.index(span.label)))
    return [
        None if number in unknown else outermost(sentence_spans)
        for number, sentence_spans in enumerate(spans_by_sentence)
    ], misaligned


def _without_blanks(text: str, name: Name) -> tuple[int, int]:
    content = text[name.start : name.end]
    return name.start + len(content) - len(content.lstrip()), name.end - len(content) + len(content.rstrip())


def _locate_words(words: Sequence[str], text: str) -> list[tuple[int, int] | None]:
    """Return the start and the exclusive end, in characters, of each word in the text; None for a word not found."""
    # Words and text are compared as sequences of pieces (letters, digits, or one other character), with the same
    # spelling of case, quotes and dashes. A word is found if all of its pieces are matched.
    pieces = [(number, piece) for number, word in enumerate(words) for piece in _PIECE.findall(word.translate(_FOLDED))]
    text_pieces = list(_PIECE.finditer(text.translate(_FOLDED)))
    missing = Counter(number for number, _ in pieces)
    spans = dict[int, tuple[int, int]]()
    matcher = SequenceMatcher(None, [piece for _, piece in pieces], [match[0] for match in text_pieces])
    for block in matcher.get_matching_blocks():
        for k in range(block.size):
            number, match = pieces[block.a + k][0], text_pieces[block.b + k]
            spans[number] = spans.get(number, match.span())[0], match.end()
            missing[number] -= 1
    return [None if missing[number] else spans[number] for number in range(len(words))]
