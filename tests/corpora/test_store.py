"""The store: round trips, fingerprints, damage, counts."""

import hashlib
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from power_cuts import Recorder, images, lay_out
from random_sentences import spans, trees
from run_folders import change_json

from mtlprune.corpora import CorpusError, tables
from mtlprune.corpora.store import Corpus, load_corpus, save_corpus
from mtlprune.corpora.tables import count, fingerprint, is_projective
from mtlprune.sentence import Dependencies, Predicate, Sentence, SentenceError

FULL = Sentence(
    "full",
    ("Ann", "sings", "\\"),
    pos=("NNP", "VBZ", "NFP"),
    ner=spans((0, 1, "PER")),
    dep=Dependencies((2, 0, 2), ("nsubj", "root", "punct")),
    con=spans((0, 3, "S"), (0, 1, "NP"), (1, 2, "VP")),
    srl=(Predicate(1, "sing.01", spans((0, 1, "ARG0"), (1, 2, "V")), "sing"),),
)
BARE = Sentence("bare", ("a", "b"))
EMPTY = Sentence("empty", ("a",), ner=(), con=(), srl=())
ODD = Sentence("odd", ("a",), srl=(Predicate(0),))
SPLITS = {"train": [FULL, BARE], "dev": [EMPTY, ODD]}


def save(out: Path, splits: dict[str, list[Sentence]] | None = None, **options: bool) -> Corpus:
    return save_corpus(splits or SPLITS, out, name="few", licence="CC0", sources={"a": "0"}, **options)


def test_a_corpus_says_what_it_is(tmp_path: Path) -> None:
    save(tmp_path / "deep" / "c")
    corpus, said = load_corpus(tmp_path / "deep" / "c"), {"name": "few", "licence": "CC0", "sources": {"a": "0"}}
    assert corpus.splits == ("train", "dev")
    assert [list(corpus[split]) for split in corpus.splits] == list(SPLITS.values())
    assert {key: corpus.info[key] for key in said} == said
    assert corpus.info["splits"]["train"]["words"] == 5
    assert corpus.fingerprint == fingerprint(SPLITS)


def test_splits_are_sequences(tmp_path: Path) -> None:
    many = [replace(FULL, id=f"s{k}") for k in range(10)]
    train = save(tmp_path / "c", {"train": many})["train"]
    assert list(train) == many and [train[k] for k in (0, 9, -1, -10)] == [many[k] for k in (0, 9, -1, -10)]
    for part in (slice(2, 5), slice(None, None, -1), slice(8, 1, -3), slice(4, 100)):
        assert train[part] == many[part]
    assert train.find("s7") == many[7] and train.find("s77") is None
    tagged = train.rows([3, 1]).only("pos")
    assert list(tagged) == [Sentence(f"s{k}", FULL.words, pos=FULL.pos) for k in (3, 1)]
    assert list(save(tmp_path / "tagged", {"train": tagged})["train"]) == list(tagged)
    first, second = ([sentence.id for sentence in train.one_half(which)] for which in (1, 2))
    assert sorted(first + second) == [sentence.id for sentence in many] and first == sorted(first)


def test_a_corpus_or_an_empty_folder_is_replaced(tmp_path: Path) -> None:
    save(tmp_path / "c")
    (tmp_path / "empty").mkdir()
    for name in ("c", "empty"):
        save(tmp_path / name, {"train": [BARE]}, overwrite=True)
        assert load_corpus(tmp_path / name).splits == ("train",)
    assert {path.name for path in tmp_path.iterdir()} == {"c", "empty"}


def test_files_that_are_not_of_a_corpus_are_never_removed(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("{}")
    with pytest.raises(CorpusError, match="expected a new or empty folder"):
        save(tmp_path)
    save(tmp_path / "c")
    (tmp_path / "c" / "notes.jsonl").write_text("{}")
    save(tmp_path / "c", {"train": [BARE]}, overwrite=True)
    assert (tmp_path / "train.jsonl").exists() and (tmp_path / "c" / "notes.jsonl").exists()
    assert len(list((tmp_path / "c").glob("*.jsonl"))) == 2  # train and notes


@pytest.mark.parametrize(
    ("splits", "error", "message"),
    [
        ({"train": [FULL], "dev": [FULL]}, SentenceError, "'full' occurs twice"),
        ({"train": [replace(BARE, pos=("A",))]}, SentenceError, "expected one tag per word"),
        ({"train": [BARE], "dev": []}, CorpusError, "expected at least one sentence in 'dev'"),
        ({"../train": [BARE]}, CorpusError, "expected split names of letters"),
    ],
)
def test_what_cannot_be_saved_leaves_nothing(tmp_path, splits, error, message):
    with pytest.raises(error, match=message):
        save(tmp_path / "c", splits)
    assert list(tmp_path.iterdir()) == []


def file_of(folder: Path, split: str = "train") -> Path:
    return next(folder.glob(f"{split}-*.jsonl"))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "no corpus.json": lambda folder: (folder / "corpus.json").unlink(),
    "no JSON": lambda folder: (folder / "corpus.json").write_text("{"),
    "another format": lambda folder: change_json(folder / "corpus.json", format="another"),
    "cut": lambda folder: file_of(folder).write_bytes(file_of(folder).read_bytes()[:200]),
    "a split is gone": lambda folder: file_of(folder, "dev").unlink(),
    "no counts": lambda folder: change_json(folder / "corpus.json", splits={"train": {}}),
    "no dictionary": lambda folder: change_json(folder / "corpus.json", splits=dict.fromkeys(SPLITS)),
    "no layers": lambda folder: change_json(
        folder / "corpus.json", splits={split: {"sentences": len(load_corpus(folder)[split])} for split in SPLITS}
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tmp_path / "c").path


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_noticed_when_a_corpus_is_opened(folder: Path, damage: str) -> None:
    DAMAGE[damage](folder)
    with pytest.raises(CorpusError, match=r"build the corpus (again|with)"):
        load_corpus(folder)


def test_no_flipped_bit_passes_for_the_corpus(folder):
    file, whole = file_of(folder), file_of(folder).read_bytes()
    for bit in random.Random(1).sample(range(8 * len(whole)), 40):
        file.write_bytes(whole[: bit // 8] + bytes([whole[bit // 8] ^ 1 << bit % 8]) + whole[bit // 8 + 1 :])
        with pytest.raises(CorpusError, match="was changed or damaged"):
            load_corpus(folder)


@pytest.mark.parametrize("old", [False, True], ids=["new", "overwritten"])
def test_a_power_cut_or_a_kill_at_any_moment_leaves_the_old_corpus_or_the_new_one(tmp_path: Path, old: bool) -> None:
    """And the build after it removes what was left."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if old:
        save(disk / "c")
    with Recorder(disk) as recorder:
        save(disk / "c", {"train": [BARE]}, overwrite=True)
    marks = set()
    for number, image in enumerate(images(recorder)):
        folder = tmp_path / str(number) / "c"
        lay_out(image, folder.parent)
        marks.add(load_corpus(folder).fingerprint if (folder / "corpus.json").exists() else None)
        if number % 6 == 0:
            save(folder, overwrite=old or (folder / "corpus.json").exists())
            assert [path.name for path in folder.parent.iterdir()] == ["c"]
            names = {"corpus.json", *(file_of(folder, split).name for split in SPLITS)}
            assert {path.name for path in folder.iterdir()} == names
    assert number >= 6
    assert marks == {fingerprint(SPLITS) if old else None, fingerprint({"train": [BARE]})}


@given(st.integers(1, 8).flatmap(trees))
def test_projective_means_that_no_two_arcs_cross(tree: Dependencies) -> None:
    arcs = [(min(head, word), max(head, word)) for word, head in enumerate(tree.heads, 1)]
    crossing = any(a < c < b < d or c < a < d < b for (a, b), (c, d) in combinations(arcs, 2))
    assert is_projective(tree.heads) == (not crossing)


def test_counts() -> None:
    first = Sentence(
        "a",
        ("a", "b", "c", "d"),
        pos=("X", "X", "Y", "Z"),
        ner=spans((0, 1, "PER"), (1, 2, "LOC"), (2, 3, "PER")),
        dep=Dependencies((3, 4, 0, 3), ("r", "r", "root", "q")),
        con=spans((0, 4, "S"), (0, 4, "S")),
        srl=(Predicate(0, None, spans((0, 1, "V"), (1, 2, "C-V"), (2, 3, "A"))), Predicate(1)),
    )
    known = {"pos": 1, "ner": 2, "dep": 1, "con": 1, "srl": 1}
    labels = {"tags": 3, "entities": {"LOC": 1, "PER": 2}, "relations": 3, "non_projective": 1}
    labels |= {"constituents": 2, "constituent_labels": 1, "predicates": 2, "arguments": 1, "roles": 1}
    found = count([first, Sentence("b", ("a",), ner=())])
    assert found == {"sentences": 2, "words": 5, "longest": 4, "known": known, "all_layers": 1, **labels}


@pytest.mark.parametrize(
    "other",
    [
        {"train": [BARE, FULL]},
        {"train": [FULL, BARE, EMPTY], "dev": [ODD]},
        {"train": [FULL, replace(BARE, words=("a", "c"))]},
        {"dev": [replace(EMPTY, ner=None), ODD]},
        *({"dev": [EMPTY, replace(ODD, srl=(Predicate(*one),))]} for one in ((0, "a.01"), (0, None, (), "a"))),
    ],
)
def test_any_difference_changes_the_fingerprint(other: dict[str, list[Sentence]]) -> None:
    assert fingerprint(SPLITS | other) != fingerprint(SPLITS)
    assert fingerprint({"train": SPLITS["train"], "test": SPLITS["dev"]}) != fingerprint(SPLITS)


def test_the_fingerprint_is_the_same_everywhere() -> None:
    """Recorded once, and by hand."""
    assert fingerprint(SPLITS) == "a04e7f54634af1421519272ad61e42b93382c597fbf52a1ce3616783bd88ea12"
    assert fingerprint({}) == hashlib.sha256(b"").hexdigest()
    lines = b'["split", "train"]\n["bare",["a","b"],null,null,null,null,null]\n'
    assert fingerprint({"train": [BARE]}) == hashlib.sha256(lines).hexdigest()


def test_source_digests(tmp_path: Path) -> None:
    for name, text in (("a/x", "1"), ("a/y/z", "2"), ("b/x", "1"), ("b/y/z", "2")):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert tables.source_digest(tmp_path / "a/x") == hashlib.sha256(b"1").hexdigest()
    assert tables.source_digest(tmp_path / "a") == tables.source_digest(tmp_path / "b")
    (tmp_path / "b/x").rename(tmp_path / "b/w")
    assert tables.source_digest(tmp_path / "a") != tables.source_digest(tmp_path / "b")
