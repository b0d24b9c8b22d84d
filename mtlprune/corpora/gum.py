"""Build GUM and GENTLE: English of 24 genres with tags, trees, names and four layers of whole sentences.

layer          kind     source
pos, xpos      tags     the columns UPOS and XPOS
dep            tree     the columns HEAD and DEPREL
ner            spans    mentions ``Entity=`` in MISC whose head is a proper noun; of nested names the outermost
sentence_type  label    the comment s_type (11 labels, such as decl and wh)
prominence     number   the comment s_prominence, from 1
transition     label    the comment transition, from centering theory (7 labels including null)
genre          label    the comment meta::genre of the document

Source: Amir Zeldes (2017), The GUM corpus: creating multilayer resources in the classroom.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mtlprune.corpora import CorpusError
from mtlprune.corpora.build import Splits
from mtlprune.corpora.formats import Tell, files_below, malformed, read_lines
from mtlprune.corpora.formats.brackets import outermost
from mtlprune.corpora.formats.conllu import keys_of, parse_comments, read_conllu
from mtlprune.corpora.tables import source_digest
from mtlprune.sentence import Sentence, Span

LICENCE = "CC BY 4.0; texts by source, some CC BY-NC-SA"
_COMMENTS = ("s_type=sentence_type", "s_prominence=prominence:number", "transition=transition", "meta::genre=genre")
_SPLITS = "splits.md"
_PROPER = "PROPN"
_PART = re.compile(r"\(([^()]+)(\)?)|([^()]+)\)")


def build_gum(folder: Path, tell: Tell) -> tuple[Splits, dict[str, str]]:
    """Return the sentences of each official split, and the SHA-256 of each file.

    Args:
        folder: contains ``splits.md``, and a file DOCUMENT.conllu for each document at any depth, as in the folder
            ``dep`` of GUM's repository. Documents without a file, such as those from Reddit, are left out.
        tell: receives the number of documents that were left out.

    Raises:
        CorpusError: ``splits.md`` is missing, a split has no files, or a file is malformed.
    """
    documents = {path.stem: path for path in files_below(folder) if path.suffix == ".conllu"}
    splits: dict[str, list[Sentence]] = {}
    digests: dict[str, str] = {}
    missing_documents: list[str] = []
    for split, names in _official_splits(folder / _SPLITS).items():
        splits[split] = []
        for name in names:
            if name not in documents:
                missing_documents.append(name)
                continue
            digests[documents[name].relative_to(folder).as_posix()] = source_digest(documents[name])
            sentences = read_conllu(documents[name], "upos", True, comments=parse_comments(_COMMENTS))
            splits[split] += [sentence.with_layers(ner=names_of(documents[name], sentence)) for sentence in sentences]
        if not splits[split]:
            raise CorpusError(
                f"{folder}: expected files of {split} such as {names[0]}.conllu, found none; unpack the files of GUM"
            )
    if missing_documents:
        tell(
            f"{folder}: left out {len(missing_documents)} documents of {_SPLITS} that have no file, such as "
            f"{missing_documents[0]}"
        )
    return dict(splits), digests


def _official_splits(path: Path) -> dict[str, list[str]]:
    """Return the names of the documents of each split. Raises CorpusError if train, dev or test has none."""
    splits: dict[str, list[str]] = {}
    names: list[str] | None = None
    for _, text in read_lines(path):
        if heading := re.fullmatch(r"##[ \t]*(\w+)[ \t]*", text):
            names = splits.setdefault(heading[1], [])
        elif names is not None and (item := re.fullmatch(r"[ \t]*[*-][ \t]+(\w+)[ \t]*", text)):
            names.append(item[1])
    if not {"train", "dev", "test"} <= {split for split, documents in splits.items() if documents}:
        raise CorpusError(
            f"{path}: expected documents under ## train, ## dev and ## test, found others; use the file of GUM"
        )
    return splits


class _Mention(NamedTuple):
    """A mention whose opening bracket was read.

    Attributes:
        group: the id that the closing bracket repeats.
        start: the index of its first word.
        type: its entity type.
        head: the positions of the head's words, counted from 1 within the mention.
    """

    group: str
    start: int
    type: str
    head: tuple[int, ...]


def names_of(path: Path, sentence: Sentence) -> tuple[Span, ...]:
    """Return the named entities of a sentence from GUM, that is, mentions whose head contains a proper noun.

    Of nested names the outermost is kept. Raises CorpusError if a mention closes that was never opened.
    """
    rows = [row for line in sentence.source.split("\n") if (row := line.split("\t"))[0].isdecimal()]
    spans_found: list[Span] = []
    open_mentions: list[_Mention] = []
    for index, row in enumerate(rows):
        for mention in _closed(keys_of(row[9]).get("Entity", ""), index, open_mentions):
            if mention is None:
                problem = f"sentence {sentence.id}, word {index + 1}: expected mentions that open before they close"
                raise malformed(path, 1, f"{problem}, found {row[9][:60]}; correct the file", "sentence")
            head = [row[3] for number in mention.head for row in rows[mention.start + number - 1 : index + 1][:1]]
            if _PROPER in head:
                spans_found.append(Span(mention.start, index + 1, mention.type))
    return outermost(sorted(spans_found, key=lambda span: (span.start, -span.end)))


def _closed(entity: str, index: int, open_mentions: list[_Mention]) -> Iterator[_Mention | None]:
    """Yield the mentions that close at word ``index``, or None for one that was never opened.

    Args:
        entity: the value of ``Entity=`` at the word.
        open_mentions: the mentions that are open; updated here.
    """
    for opening, closes, closing in _PART.findall(entity):
        if opening:
            group, type_, *fields = opening.split("-")
            head = next((field for field in fields if re.fullmatch(r"\d+(,\d+)*", field)), "1")
            open_mentions.append(_Mention(group, index, type_, tuple(map(int, head.split(",")))))
        if closes or closing:
            group = closing or open_mentions[-1].group
            mention = next((candidate for candidate in reversed(open_mentions) if candidate.group == group), None)
            if mention is not None:
                open_mentions.remove(mention)
            yield mention
