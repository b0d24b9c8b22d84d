"""Build OntoNotes 5 from a licensed folder of CoNLL-2012 files with words, and add dependencies to its sentences."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats import Tell, files_below
from mtlprune.corpora.formats.brackets import BRACKETS, format_tree
from mtlprune.corpora.formats.conll2012 import Document, read_documents, with_unknown
from mtlprune.corpora.formats.conllu import read_conllu
from mtlprune.sentence import Sentence

_SPLITS = {"train": ("train",), "dev": ("development", "dev"), "test": ("test",)}
"""Name of a split → names of its folder in the release."""
_LANGUAGES = ("arabic", "chinese")  # other languages in the same release


def build_ontonotes5(
    folder: Path, dep: Path | None = None, tell: Tell = lambda line: None
) -> dict[str, list[Sentence]]:
    """Read OntoNotes 5 with POS, CON, NER and SRL, and with DEP if ``dep`` is given.

    A layer that nobody annotated in a document is *unknown*, not empty. A document has NER (SRL) if any word of it has
    NER (SRL), or if a file ``DOCUMENT.name`` (``DOCUMENT.prop``) with the original annotation exists next to its CoNLL
    file or anywhere below ``folder`` under the document's name. Files below ``arabic`` and ``chinese`` do not count,
    because the names of documents recur there. If there is no ``.name`` (``.prop``) file at all, a document whose
    column is empty throughout therefore lacks the layer.

    Args:
        folder: contains, at any depth and through links, folders train, development (or dev) and test with
            ``*gold_conll`` files (if a folder has none: all ``*_conll`` files except ``*parse_conll``), which are read
            in the order of their paths. These files are left out with a message: files with ``auto`` in their name
            (automatic annotation), files below ``arabic`` or ``chinese``, and files in no folder of a split.
        dep: dependencies that were converted before, in CoNLL-X or CoNLL-U: one file with train, dev and test in this
            order, or a folder with one file per split (``train``, ``dev``/``development``, ``test`` in its name). Or
            the jar of the Stanford Parser (He and Choi used version 3.3.0), which is run with Java on the trees.
        tell: receives what was left out, and the counts of each split.

    Returns:
        the splits train, dev and test.

    Raises:
        CorpusError: files or a split are missing, a part of a document occurs twice, a file is malformed, the
            dependencies do not belong to the sentences, or the converter cannot be run.
    """
    if not folder.is_dir():
        raise CorpusError(f"{folder}: expected a folder of CoNLL-2012 files, found none")
    all_files = list(files_below(folder))
    files = _files(folder, all_files, tell)
    english = [path for path in all_files if not _foreign(path, folder)]
    annotated = {layer: _annotations(folder, english, end) for layer, end in (("ner", ".name"), ("srl", ".prop"))}
    first_paths: dict[str, Path] = {}
    splits = {}
    for split, paths in files.items():
        documents = [document for path in paths for document in read_documents(path)]
        splits[split] = list(_sentences(split, documents, annotated, first_paths, tell))
    if dep is None:
        return splits
    if dep.suffix != ".jar":
        return _read_converted(splits, dep)
    with tempfile.TemporaryDirectory(prefix="mtlprune-") as scratch:
        output = _convert(dep, [sentence for split in splits.values() for sentence in split], Path(scratch))
        return _read_converted(splits, output)


def _foreign(path: Path, folder: Path) -> bool:
    """Return True if a file is below the folder of another language."""
    return any(part in _LANGUAGES for part in path.relative_to(folder).parts[:-1])


def _files(folder: Path, all_files: list[Path], tell: Tell) -> dict[str, list[Path]]:
    """Return the annotated files of each split, sorted by path. Raises CorpusError if a split has none."""
    names = {name: split for split, folders in _SPLITS.items() for name in folders}
    splits: dict[str, list[Path]] = {split: [] for split in _SPLITS}
    foreign = outside_count = 0
    conll = sorted((path for path in all_files if path.name.endswith("_conll")), key=lambda path: path.parts)
    manual = [path for path in conll if "auto" not in path.name]
    for path in _gold(manual):
        above = path.relative_to(folder).parts[:-1]
        split = next((names[part] for part in above if part in names), None)
        if _foreign(path, folder):
            foreign += 1
        elif split is None:
            outside_count += 1
        else:
            splits[split].append(path)
    if foreign or outside_count or len(manual) < len(conll):
        tell(
            f"{folder}: {len(conll) - len(manual)} automatic files, {foreign} in other languages and "
            f"{outside_count} outside of split folders were left out"
        )
    missing = [split for split, paths in splits.items() if not paths]
    if missing:
        skeletons = " The words of *_skel files are withheld, so run skeleton2conll on these files first."
        automatic = " Files with auto in their name have no gold annotation and do not count."
        raise CorpusError(
            f"{folder}: expected *_conll files in folders train, development and test below it, found none for "
            f"{', '.join(missing)}."
            + (skeletons if any(path.name.endswith("_skel") for path in all_files) else "")
            + (automatic if len(manual) < len(conll) else "")
        )
    return splits


def _gold(paths: list[Path]) -> list[Path]:
    """Return the gold files of each folder, or if it has none, all files except those of a parser."""
    with_gold = {path.parent for path in paths if path.name.endswith("gold_conll")}
    return [
        path
        for path in paths
        if path.name.endswith("gold_conll") or (path.parent not in with_gold and not path.name.endswith("parse_conll"))
    ]


def _annotations(folder: Path, files: list[Path], suffix: str) -> set[str]:
    """Return all names by which a document can refer to an annotation file with this suffix.

    These are the whole path of the file, and its path below ``folder`` with any number of leading folders removed, both
    without the suffix.
    """
    names: set[str] = set()
    for path in (path for path in files if path.suffix == suffix):
        parts = path.relative_to(folder).with_suffix("").parts
        names.update("/".join(parts[begin:]) for begin in range(len(parts)))
        names.add(str(path.with_suffix("")))
    return names


def _sentences(
    split: str,
    documents: Iterable[Document],
    annotated: dict[str, set[str]],
    first_paths: dict[str, Path],
    tell: Tell,
) -> Iterator[Sentence]:
    """Yield the sentences of one split, in which layers are unknown if their document lacks the annotation.

    Args:
        annotated: layer → names of the documents with an annotation file.
        first_paths: id of a sentence → its file, over all splits; updated here to find repeated documents.

    Raises:
        CorpusError: a sentence was already read from another file.
    """
    counts = dict.fromkeys(("documents", "without ner", "without srl", "nested entities", "unparsed sentences"), 0)
    for document in documents:
        document_names = {document.name, str(document.path.with_suffix(""))}
        is_annotated = {
            layer: document.has(layer) or bool(document_names & names) for layer, names in annotated.items()
        }
        counts["documents"] += 1
        counts["without ner"] += not is_annotated["ner"]
        counts["without srl"] += not is_annotated["srl"]
        counts["nested entities"] += document.nested
        counts["unparsed sentences"] += document.unparsed
        for sentence in with_unknown(document, ner=is_annotated["ner"], srl=is_annotated["srl"]):
            if sentence.id in first_paths:
                raise CorpusError(
                    f"{document.path}, line {document.line}: the sentence {sentence.id} of this document was already "
                    f"read from {first_paths[sentence.id]}; "
                    "expected one release (v4 or v12) and each document in one split"
                )
            first_paths[sentence.id] = document.path
            yield sentence
    tell(f"OntoNotes 5 {split}: {', '.join(f'{count} {name}' for name, count in counts.items())}")


# -- Stanford dependencies, converted before (CoNLL-X or CoNLL-U) or by Stanford's jar. He and Choi used the Stanford
# Parser 3.3.0 with basic dependencies, punctuation and CoNLL-X. --


_MAIN_CLASS = "edu.stanford.nlp.trees.EnglishGrammaticalStructure"
_OPTIONS = ("-basic", "-keepPunct", "-conllx", "-treeFile")
_Splits = dict[str, list[Sentence]]
# Tools spell these words differently (with an escaped slash, or bracket codes). Both spellings are compared as the
# right-hand side.
_EQUIVALENT = {"/.": ".", "/?": "?", **BRACKETS}


def _read_converted(splits: _Splits, dep: Path) -> _Splits:
    """Return the splits with dependencies from converted files.

    Args:
        dep: one file with all splits in order, or a folder with one file per split.

    Raises:
        CorpusError: a file is missing, ambiguous or malformed, or has other sentences or words.
    """
    if not dep.is_dir():
        sentences = _with_dependencies([sentence for split in splits.values() for sentence in split], dep)
        result, begin = {}, 0
        for split, old in splits.items():
            result[split] = sentences[begin : begin + len(old)]
            begin += len(old)
        return result
    return {split: _with_dependencies(old, _file_of(dep, _SPLITS[split])) for split, old in splits.items()}


def _file_of(folder: Path, words: Sequence[str]) -> Path:
    """Return the only file in a folder whose name contains one of these words.

    Raises:
        CorpusError: there is none, or several.
    """
    candidates = [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and set(re.split(r"[^a-z]+", path.name.lower())) & set(words)
    ]
    if len(candidates) != 1:
        raise CorpusError(
            f"{folder}: expected one file with {' or '.join(words)} in its name, found "
            + (", ".join(path.name for path in candidates) or "none")
        )
    return candidates[0]


def _with_dependencies(sentences: Sequence[Sentence], path: Path) -> list[Sentence]:
    """Return ``sentences`` with the dependencies of a CoNLL-X or CoNLL-U file, matched in order.

    The words are compared, after escaped slashes, escaped asterisks and bracket codes are resolved. If the number of
    sentences in the file equals the number of sentences with a constituent tree, but not the number of all sentences,
    dependencies of the sentences without a tree stay unknown. Raises CorpusError at the first sentence that does not
    match, or if the numbers of sentences differ.
    """
    converted = list(read_conllu(path))
    parsed = [sentence for sentence in sentences if sentence.con is not None]
    target_sentences = parsed if len(converted) == len(parsed) else list(sentences)
    for index, (old, new) in enumerate(zip(target_sentences, converted, strict=False), 1):
        pairs = zip_longest(map(_comparable, old.words), map(_comparable, new.words))
        if mismatches := [
            f"{expected_word!r}, found {found_word!r}"
            for expected_word, found_word in pairs
            if expected_word != found_word
        ]:
            problem = f"expected the words of sentence {old.id}, and there {mismatches[0]}"
            raise CorpusError(f"{path}, sentence {index}: {problem}; convert the same files")
    if len(converted) != len(target_sentences):
        raise CorpusError(
            f"{path}: expected {len(sentences)} sentences ({len(parsed)} with trees), found {len(converted)}; "
            "convert the same files, in the order of their paths"
        )
    by_id = {old.id: old.with_layers(dep=new.dep) for old, new in zip(target_sentences, converted, strict=True)}
    return [by_id.get(sentence.id, sentence) for sentence in sentences]


def _comparable(word: str) -> str:
    return _EQUIVALENT.get(word, word).replace("\\/", "/").replace("\\*", "*")


def _convert(jar: Path, sentences: Sequence[Sentence], folder: Path) -> Path:
    """Write the trees to a file, run Stanford's converter, and return the file with its output.

    Raises CorpusError if Java or the jar is missing, or Java fails.
    """
    if not jar.is_file():
        raise CorpusError(f"{jar}: expected the Stanford parser's jar, found no such file")
    if (java := shutil.which("java")) is None:
        raise CorpusError("expected the command java to run the Stanford converter, found none; install a Java runtime")
    trees, output = folder / "trees", folder / f"output of {jar.name}"
    with trees.open("w", encoding="utf-8") as file:
        file.writelines(format_tree(sentence) + "\n" for sentence in sentences if sentence.con is not None)
    # Without these two options, Java writes in the default encoding of the platform.
    encoding = ("-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8")
    # Later releases of CoreNLP need other jars from the same folder, so the class path contains the whole folder.
    libraries = os.pathsep.join((str(jar), str(jar.parent / "*")))
    command = [java, *encoding, "-cp", libraries, _MAIN_CLASS, *_OPTIONS, str(trees)]
    with output.open("wb") as file:
        run = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.PIPE, check=False)
    if run.returncode != 0:
        messages = run.stderr.decode("utf-8", "replace").strip().splitlines()
        raise CorpusError(
            f"{jar}: the converter ended with exit code {run.returncode}"
            + (f" ({messages[0]})" if messages else "")
            + f"; expected the Stanford parser's jar (3.3.0), which has the class {_MAIN_CLASS}"
        )
    return output
