"""OntoNotes 5 as its licence holders have it: a folder of CoNLL-2012 files with words, dependencies from elsewhere."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats import files_below
from mtlprune.corpora.formats.brackets import BRACKETS, format_tree
from mtlprune.corpora.formats.conll2012 import Document, read_documents, with_unknown
from mtlprune.corpora.formats.conllu import read_conllu
from mtlprune.sentence import Sentence

SPLITS = {"train": ("train",), "dev": ("development", "dev"), "test": ("test",)}  # our name: names of the folder
_LANGUAGES = ("arabic", "chinese")  # the same release holds them beside English


def build_ontonotes5(
    folder: Path, dep: Path | None = None, tell: Callable[[str], None] = lambda line: None
) -> dict[str, list[Sentence]]:
    """Read OntoNotes 5 with POS, CON, NER and SRL, and DEP where ``dep`` gives it.

    Args:
        folder: below it, at any depth and through links, folders train, development (or dev) and test with
            ``*gold_conll`` files (where a folder has none: any ``*_conll`` but ``*parse_conll``), read in the order of
            their paths. Files with ``auto`` in their name, which no annotator made, files below ``arabic`` or
            ``chinese`` and files in no split folder are left out, with a message.
        dep: dependencies converted beforehand, CoNLL-X or CoNLL-U: one file with train, dev and test one after the
            other, or a folder with one file a split (``train``, ``dev``/``development``, ``test`` in its name); or
            Stanford's parser (``*.jar``; the original used 3.3.0), run with Java over the trees.
        tell: is given what was left out and the counts of each split, a line each.

    A document without a layer gives *unknown*, not empty. It has NER (SRL) if a file ``DOCUMENT.name``
    (``DOCUMENT.prop``), the original annotation, lies beside its file or anywhere below ``folder`` under the document's
    name, or if anything is marked; those below ``arabic`` and ``chinese``, where documents of the same names lie, do
    not count. Where no ``.name`` (``.prop``) file is left, the columns decide alone: a document whose column is empty
    throughout has no such layer.

    Returns:
        ``train``, ``dev`` and ``test`` to their sentences.

    Raises:
        CorpusError: no files, a split missing, a document part twice, a malformed file, dependencies that do not fit.
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
    return any(part in _LANGUAGES for part in path.relative_to(folder).parts[:-1])


def _files(folder: Path, all_files: list[Path], tell: Callable[[str], None]) -> dict[str, list[Path]]:
    """The files of each split, in the order of their paths."""
    names = {name: split for split, folders in SPLITS.items() for name in folders}
    splits: dict[str, list[Path]] = {split: [] for split in SPLITS}
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
    """The gold files of each folder; where it has none, all but those of a parser."""
    with_gold = {path.parent for path in paths if path.name.endswith("gold_conll")}
    return [
        path
        for path in paths
        if path.name.endswith("gold_conll") or (path.parent not in with_gold and not path.name.endswith("parse_conll"))
    ]


def _annotations(folder: Path, files: list[Path], suffix: str) -> set[str]:
    """Every way to name an annotation file from below ``folder``: its last part, its last two parts, and so on."""
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
    tell: Callable[[str], None],
) -> Iterator[Sentence]:
    """The sentences of one split, layers unknown where a document lacks them; ``first_paths`` grows by their ids."""
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


# -- Stanford dependencies: converted beforehand (CoNLL-X or CoNLL-U), or by Stanford's own jar. The original takes the
# Stanford Parser 3.3.0: basic dependencies, punctuation kept, CoNLL-X --


_MAIN_CLASS = "edu.stanford.nlp.trees.EnglishGrammaticalStructure"
OPTIONS = ("-basic", "-keepPunct", "-conllx", "-treeFile")
Splits = dict[str, list[Sentence]]
# words that tools write in two ways, in the one we compare: slashes escaped or doubled, brackets as codes
_EQUIVALENT = {"/.": ".", "/?": "?", **BRACKETS}


def _read_converted(splits: Splits, dep: Path) -> Splits:
    """Give the sentences of all splits the dependencies of a file or folder converted beforehand. ``dep``: one file
    with all splits one after the other, or a folder with one file a split. Raises CorpusError: a file missing or there
    twice, malformed, of another number of sentences, or of other words."""
    if not dep.is_dir():
        sentences = _with_dependencies([sentence for split in splits.values() for sentence in split], dep)
        result, begin = {}, 0
        for split, old in splits.items():
            result[split] = sentences[begin : begin + len(old)]
            begin += len(old)
        return result
    return {split: _with_dependencies(old, _file_of(dep, SPLITS[split])) for split, old in splits.items()}


def _file_of(folder: Path, words: Sequence[str]) -> Path:
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
    """Give ``sentences`` the dependencies in the CoNLL-X or CoNLL-U file ``path``, matched in order. Raises
    CorpusError: with the first sentence that does not fit.

    Words are compared (escaped slashes and bracket codes count as what they stand for). If the file holds as many
    sentences as have trees, and not as many as there are, the sentences without trees keep unknown dependencies.
    """
    converted = list(read_conllu(path))
    parsed = [sentence for sentence in sentences if sentence.con is not None]
    target_sentences = parsed if len(converted) == len(parsed) else list(sentences)
    for place, (old, new) in enumerate(zip(target_sentences, converted, strict=False), 1):
        pairs = zip_longest(map(_comparable, old.words), map(_comparable, new.words))
        if mismatches := [
            f"{expected_word!r}, found {found_word!r}"
            for expected_word, found_word in pairs
            if expected_word != found_word
        ]:
            problem = f"expected the words of sentence {old.id}, and there {mismatches[0]}"
            raise CorpusError(f"{path}, sentence {place}: {problem}; convert the same files")
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
    """Write the trees, run the converter, return the file it wrote. Raises CorpusError: no Java, no jar, or Java
    failed."""
    if not jar.is_file():
        raise CorpusError(f"{jar}: expected the Stanford parser's jar, found no such file")
    if (java := shutil.which("java")) is None:
        raise CorpusError("expected the command java to run the Stanford converter, found none; install a Java runtime")
    trees, output = folder / "trees", folder / f"output of {jar.name}"
    with trees.open("w", encoding="utf-8") as file:
        file.writelines(format_tree(sentence) + "\n" for sentence in sentences if sentence.con is not None)
    # without these two Java writes in the platform's own encoding
    encoding = ("-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8")
    # Later releases of CoreNLP need jars that lie beside the one that is named, so the whole folder joins the class
    # path.
    libraries = os.pathsep.join((str(jar), str(jar.parent / "*")))
    command = [java, *encoding, "-cp", libraries, _MAIN_CLASS, *OPTIONS, str(trees)]
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
