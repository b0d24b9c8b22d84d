"""Stanford dependencies for sentences with trees: converted beforehand (CoNLL-X or CoNLL-U), or by Stanford's own jar.

The original converts its trees with the Stanford Parser 3.3.0: basic dependencies, punctuation kept, CoNLL-X.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats.brackets import format_tree
from mtlprune.corpora.formats.conllu import read_conllu
from mtlprune.corpora.formats.lines import blocks, malformed, read_lines
from mtlprune.corpora.formats.ptb import BRACKETS
from mtlprune.sentence import Sentence

MAIN_CLASS = "edu.stanford.nlp.trees.EnglishGrammaticalStructure"
OPTIONS = ("-basic", "-keepPunct", "-conllx", "-treeFile")
Splits = dict[str, list[Sentence]]
# words that tools write in two ways, in the one we compare: slashes escaped or doubled, brackets as codes
_SAME = {"/.": ".", "/?": "?", **BRACKETS}


def read_converted(splits: Splits, dep: Path, names: Mapping[str, Sequence[str]]) -> Splits:
    """Give the sentences of all splits the dependencies of a file or folder converted beforehand.

    Args:
        splits: sentences, in the order in which they were converted.
        dep: one file with all splits one after the other, or a folder with one file a split.
        names: split to the words one of which the name of its file holds.

    Raises:
        CorpusError: a file missing or there twice, malformed, of another number of sentences, or of other words.
    """
    if not dep.is_dir():
        sentences = with_dependencies([sentence for split in splits.values() for sentence in split], dep)
        result, begin = {}, 0
        for split, old in splits.items():
            result[split] = sentences[begin : begin + len(old)]
            begin += len(old)
        return result
    return {split: with_dependencies(old, _file_of(dep, names[split])) for split, old in splits.items()}


def _file_of(folder: Path, words: Sequence[str]) -> Path:
    found = [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and set(re.split(r"[^a-z]+", path.name.lower())) & set(words)
    ]
    if len(found) != 1:
        raise CorpusError(
            f"{folder}: expected one file with {' or '.join(words)} in its name, found "
            + (", ".join(path.name for path in found) or "none")
        )
    return found[0]


def with_dependencies(sentences: Sequence[Sentence], path: Path) -> list[Sentence]:
    """Give ``sentences`` the dependencies in the CoNLL-X or CoNLL-U file ``path``, matched in order.

    Words are compared (escaped slashes and bracket codes count as what they stand for). If the file holds as many
    sentences as have trees, and not as many as there are, the sentences without trees keep unknown dependencies.

    Raises:
        CorpusError: with file and line of the first sentence that does not fit.
    """
    converted = list(read_conllu(path))
    starts = [[line for line in block if not line.text.startswith("#")] for block in blocks(read_lines(path))]
    parsed = [sentence for sentence in sentences if sentence.con is not None]
    wanted = parsed if len(converted) == len(parsed) else list(sentences)
    given: dict[str, Sentence] = {}
    for old, new, rows in zip(wanted, converted, starts, strict=False):
        _check_words(path, old, new, [line.number for line in rows if re.match(r"\d+\t", line.text)])
        given[old.id] = old.with_layers(dep=new.dep)
    if len(converted) != len(wanted):
        raise CorpusError(
            f"{path}: expected {len(sentences)} sentences ({len(parsed)} with trees), found {len(converted)}; "
            "was it converted from the same files, in the order of their paths?"
        )
    return [given.get(sentence.id, sentence) for sentence in sentences]


def _check_words(path: Path, old: Sentence, new: Sentence, lines: Sequence[int]) -> None:
    for expected, found, line in zip(old.words, new.words, lines, strict=False):
        if _comparable(expected) != _comparable(found):
            raise malformed(path, line, f"expected the word {expected!r} of sentence {old.id}, found {found!r}")
    if len(old) != len(new):
        raise malformed(
            path, lines[0], f"expected the {len(old)} words of sentence {old.id} from here on, found {len(new)}"
        )


def _comparable(word: str) -> str:
    return _SAME.get(word, word).replace("\\/", "/").replace("\\*", "*")


def convert_splits(splits: Splits, jar: Path) -> Splits:
    """Give every sentence with a tree the dependencies that ``jar`` makes of it; one run of Java a split.

    Raises:
        CorpusError: no Java, no jar, Java failed, or its output does not fit the sentences.
    """
    if not jar.is_file():
        raise CorpusError(f"{jar}: expected the Stanford parser's jar, found no such file")
    java = shutil.which("java")
    if java is None:
        raise CorpusError("expected the command java to run the Stanford converter, found none; install a Java runtime")
    result = {}
    with tempfile.TemporaryDirectory(prefix="mtlprune-") as folder:
        for split, sentences in splits.items():
            output = _convert(java, jar, sentences, Path(folder) / split)
            try:
                result[split] = with_dependencies(sentences, output)
            except CorpusError as error:
                raise CorpusError(f"the output of {jar} for {split} does not fit: {error}") from None
    return result


def _convert(java: str, jar: Path, sentences: Sequence[Sentence], stem: Path) -> Path:
    """Write the trees, run the converter, return the file it wrote."""
    trees, output = stem.with_suffix(".trees"), stem.with_suffix(".conllx")
    with trees.open("w", encoding="utf-8") as file:
        file.writelines(format_tree(sentence) + "\n" for sentence in sentences if sentence.con is not None)
    # without these two Java writes in the platform's own encoding
    encoding = ("-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8")
    libraries = os.pathsep.join((str(jar), str(jar.parent / "*")))  # later releases need jars that lie beside theirs
    command = [java, *encoding, "-cp", libraries, MAIN_CLASS, *OPTIONS, str(trees)]
    with output.open("wb") as file:
        run = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.PIPE, check=False)
    if run.returncode != 0:
        told = run.stderr.decode("utf-8", "replace").strip().splitlines()
        raise CorpusError(
            f"{jar}: the converter ended with exit code {run.returncode}"
            + (f" ({told[0]})" if told else "")
            + f"; expected the Stanford parser's jar (3.3.0), which has the class {MAIN_CLASS}"
        )
    return output
