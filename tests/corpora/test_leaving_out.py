"""Files that cannot be corrected: sentences left out and counted, layers that are not read, in every format."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conll2012_files import document

from mtlprune.corpora import CorpusError
from mtlprune.corpora.build import LeftOut, read_files
from mtlprune.corpora.formats import UnreadableSentence
from mtlprune.corpora.formats.brackets import read_ptb
from mtlprune.corpora.formats.columns import parse_columns, read_columns
from mtlprune.corpora.formats.conll2012 import read_conll2012
from mtlprune.corpora.formats.conllu import read_conllu
from mtlprune.corpora.formats.jsonl import read_jsonl
from mtlprune.sentence import Sentence

Reader = Callable[..., Iterator[Sentence]]


def conllu(*words: str, head: str = "0") -> str:
    rows = (f"{k}\t{word}\t_\tX\tY\t_\t{head if k == 1 else 1}\tdep\t_\t_\n" for k, word in enumerate(words, 1))
    return "".join(rows) + "\n"


def columns(*words: str, tag: str = "B-X") -> str:
    return "".join(f"{word}\t{tag}\n" for word in words) + "\n"


def tree(*words: str, end: str = ")") -> str:
    return f"( (S {' '.join(f'(X {word})' for word in words)}\n  (. .){end})\n"


def line(*words: str, **layers: Any) -> str:
    return json.dumps({"id": words[0], "words": words, "pos": ["X"] * len(words), **layers}) + "\n"


def part(*words: str, last: str = "*))") -> str:
    bits = ["(TOP(S*", *["*"] * len(words)]
    rows = (f"{word} X {bit} - - *" for word, bit in zip(words, bits, strict=False))
    text = document("d", (*rows, f". . {last} - - *"))
    return text.replace("part 000", f"part {next(PARTS):03}")


PARTS = iter(range(1000))
COLUMNS = partial(read_columns, columns=parse_columns("word,ner"))
BAD = "bad\udcff"
CASES: list[tuple[str, Reader, str, str]] = [
    ("conllu: a circle", read_conllu, conllu("a", "b") + "{}" + conllu("c", "d"), conllu("x", "y", head="2")),
    ("conllu: 5,000 digits", read_conllu, conllu("a") + "{}" + conllu("c"), conllu("x", head="9" * 5000)),
    ("conllu: no UTF-8", read_conllu, conllu("a") + "{}" + conllu("c"), BAD + conllu("x")),
    ("columns: no UTF-8", COLUMNS, columns("a") + "{}" + columns("c"), BAD + "\tO\n\n"),
    ("trees: no UTF-8", read_ptb, tree("a") + "{}" + tree("c"), f"( (X {BAD}))\n"),
    ("json: no UTF-8", partial(read_jsonl, tell=print), line("a") + "{}" + line("c"), BAD + "\n"),
    ("conll2012: no UTF-8", read_conll2012, part("a") + "{}" + part("c"), part(BAD)),
    ("conllu: no empty line", read_conllu, conllu("a") + "{}" + conllu("c"), "1\tx\n# sent_id = 2\n"),
    ("conllu: a comment", read_conllu, conllu("a") + "{}" + conllu("c"), "1\tx\n# text = c\n"),
    ("columns: a word without its tag", COLUMNS, columns("a", "b") + "{}" + columns("c"), "x\tO\ny\n\n"),
    ("columns: an empty first column", COLUMNS, columns("a", "b") + "{}" + columns("c"), "x\tO\n\tO\n\n"),
    ("columns: an address", COLUMNS, "{}" + columns("a") + columns("c"), "https://a.b/c\n\n"),
    ("columns: no tag", COLUMNS, columns("a", "b") + "{}" + columns("c"), columns("x", tag="Q-X")),
    ("trees: one ) too many", read_ptb, tree("a", "b") + "{}" + tree("c"), tree("x", end="))")),
    ("trees: one ) too few", read_ptb, tree("a", "b") + "{}" + tree("c"), tree("x", end="")),
    ("trees: text", read_ptb, tree("a", "b") + "{}" + tree("c"), "( (S (X x)))\ntext\n"),
    ("json: no JSON", partial(read_jsonl, tell=print), line("a", "b") + "{}" + line("c"), "{no\n"),
    ("json: no layer", partial(read_jsonl, tell=print), line("a") + "{}" + line("c"), line("x", ner=[[0, 9, "X"]])),
    ("conll2012: brackets", read_conll2012, part("a", "b") + "{}" + part("c"), part("x", "y", last="*")),
    ("conll2012: text", read_conll2012, part("a", "b") + "{}" + part("c"), "text\nmore text\n\n"),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "around", "bad"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_what_cannot_be_read_is_left_out_alone(tmp_path: Path, reader: Reader, around: str, bad: str) -> None:
    path = tmp_path / "few.txt"

    def written(middle: str) -> Path:
        path.write_text(around.replace("{}", middle), encoding="utf-8", errors="surrogateescape")
        return path

    good = list(reader(written("")))
    told: list[Exception] = []
    assert [s.words for s in reader(written(bad), skip=told.append)] == [s.words for s in good]
    assert len(told) == 1 and all(str(error).startswith(f"{path}, line ") for error in told), told
    with pytest.raises(UnreadableSentence) as error:
        list(reader(path))
    assert str(error.value).startswith(f"{path}")


def test_they_are_counted_and_refused_where_they_are_too_many(tmp_path: Path) -> None:
    path = tmp_path / "few.txt"
    path.write_text(columns("a") * 88 + "alone\n\n" * 12)

    def read(most: float | None) -> dict[str, Any]:
        left = LeftOut(max_percent=most)
        return read_files([], {"train": [str(path)]}, partial(COLUMNS, skip=left.skip), print, left)[1]["left_out"]

    with pytest.raises(UnreadableSentence, match="line 177: expected 2 columns"):
        read(None)
    for most in (0, 11.9, float("nan")):
        with pytest.raises(CorpusError, match=rf"at most {most} % .*, found 12 of 100 sentences \(12.0 %\).* line 177"):
            read(most)
    account = read(12)
    assert (account["sentences"], account["of"]) == (12, 100)
    places = [reason.partition(": ")[0] for reason in account["first"]]
    assert places == [f"{path}, line {number}" for number in range(177, 197, 2)]


@pytest.mark.parametrize("spoilt", [("b))", "b)"), ("b))", "b)))"), ("(X b)", "(X)")])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_inner_nodes_in_the_first_column_are_not_taken_for_trees(tmp_path: Path, spoilt: Any, place: int) -> None:
    trees = ["(TOP\n(S\n(NP (X a))\n(VP (X b) (X b))))\n"] * 3
    trees[place] = trees[place].replace(*spoilt)
    path = tmp_path / "few.txt"
    path.write_text("".join(trees))
    told: list[Exception] = []
    assert [s.words for s in read_ptb(path, skip=told.append)] == [("a", "b", "b")] * 2 and len(told) == 1
