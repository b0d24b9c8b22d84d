"""Tables, data sets and configurations with a sentence or a pair a row, whole or mutated; and GUM."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from mtlprune.corpora.formats.rows import parse_row_columns, read_rows
from mtlprune.corpora.gum import names_of
from mtlprune.corpora.store import load_corpus
from mtlprune.runs.folder import RunFolder
from mtlprune.sentence import Sentence, Span

ASKED = "q=words,a=words,fit=fits,stars=rating:number,about=topics:labels"


def test_a_table_of_pairs(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('id,q,fit,a,stars,about\n1,"Who, me?",yes,"Don\'t\nask 3.5",2,b|a\n2,x,,y,,\n')
    first, second = read_rows(tmp_path / "t.csv", parse_row_columns(f"id=id,{ASKED}"))
    assert (first.id, first.words, first.split) == ("1", ("Who", ",", "me", "?", "Don't", "ask", "3.5"), 4)
    assert [first.get(name) for name in ("fits", "rating", "topics")] == ["yes", 2.0, ("a", "b")]
    assert [second.get(name) for name in ("fits", "rating", "topics")] == [None, None, ()]


@pytest.mark.parametrize(
    ("content", "columns", "why"),
    [
        ("text\tx\na b\t1\n \t2\n", "text=words,x=y", "line 3: column text: expected a text, found an empty one"),
        ("text\tx\na b\n", "text=words,x=y", "line 2: expected 2 cells as in the first row, found 1"),
        ("text\tx\na b\tz\n", "text=words,x=y:number", "line 2: column x: expected a number such as 3.5, found 'z'"),
        ("text\tx\na b\tz\n", "text=words,z=y", "line 1: expected the columns text, z, found no z in text, x"),
        ('text,x\n"a b,z\n', "text=words,x=y", "line 2: expected cells of a table"),
        ("text\tx\na\t1\n", "text=words,x=label", "expected the name of a layer"),
        ("text\tx\na\t1\n", "text=words,x=y:tree", "expected the name and the content of each column once"),
        ("text\tx\na\t1\n", "text=words,x=words,y=words", "found 3 columns of words"),
    ],
)
def test_bad_rows_are_named(mtlprune: Callable, tmp_path: Path, content: str, columns: str, why: str) -> None:
    (tmp_path / "t.tsv").write_text(content)
    answer = mtlprune("data", "build", "table", tmp_path / "t.tsv", "--columns", columns, "--out", tmp_path / "c")
    answer.refuses(why)
    assert not (tmp_path / "c").exists()


def test_data_sets_with_a_text_a_row(mtlprune: Callable, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "premise": datasets.Value("string"),
            "hypothesis": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["yes", "no"]),
            "score": datasets.Value("float32"),
            "tags": datasets.Sequence(datasets.Value("string")),
        }
    )
    rows = {"premise": ["A dog .", "B"], "hypothesis": ["A cat", "C d"], "label": [1, -1], "score": [0.5, None]}
    datasets.Dataset.from_dict(rows | {"tags": [["b", "a"], []]}, features=features).save_to_disk(tmp_path / "d")
    columns = "premise=words,hypothesis=words,label=entails,score=fit:number,tags=topics:labels"
    (tmp_path / "s.jsonl").write_text('{"text": "a b", "y": "x"}\n' * 9 + '{"text": "c", "y": "z"}\n')
    words = ("data", "build", tmp_path / "d", "--columns", columns, "--out", tmp_path / "c")
    mtlprune(*words, "--split", "50/50/0").done()
    corpus = load_corpus(tmp_path / "c")
    first, second = sorted((s for split in corpus.splits for s in corpus[split]), key=lambda s: s.words)
    assert (first.words, first.split) == (("A", "dog", ".", "A", "cat"), 3)
    assert (first.get("entails"), first.get("fit")) == ("no", 0.5)
    assert first.get("topics") == ("a", "b") and second.get("topics") == () and second.get("entails") is None
    mtlprune("data", "build", tmp_path / "s.jsonl", "--columns", "text=words,y=kind", "--out", tmp_path / "j").done()
    assert load_corpus(tmp_path / "j").layers["kind"] == "label"


def test_a_configuration_of_machamp_is_read_and_trained(
    mtlprune: Callable, tiny_encoder: Callable, tmp_path: Path
) -> None:
    (tmp_path / "pairs.tsv").write_text("yes\ta dog\ta cat\t0.5\tp|q\n" * 3)
    (tmp_path / "words.tsv").write_text("a\tX\ndog\tY\n\ncat\tY\n")
    paths = {"train_data_path": "pairs.tsv", "dev_data_path": "pairs.tsv"}
    kinds = {"nli": ("classification", 0), "fit": ("regression", 3), "about": ("multiclas", 4)}
    tasks = {name: {"task_type": kind, "column_idx": place} for name, (kind, place) in kinds.items()}
    words = {**dict.fromkeys(paths, "words.tsv"), "word_idx": 0}
    words["tasks"] = {"tag": {"task_type": "seq", "column_idx": 1}}
    config = {"pairs": {**paths, "sent_idxs": [1, 2], "tasks": tasks}, "words": words}
    (tmp_path / "m.json").write_text(json.dumps(config))
    mtlprune("data", "build", "machamp", tmp_path / "m.json", "--out", tmp_path / "c").done()
    corpus = load_corpus(tmp_path / "c")
    assert len(corpus["train"]) == 5 and corpus.layers["nli"] == "label" and corpus.layers["tag"] == "tags"
    first = corpus["train"][0]
    assert (first.split, first.get("nli"), first.get("fit"), first.get("about")) == (2, "yes", 0.5, ("p", "q"))
    settings = [f"data.path={tmp_path / 'c'}", "tasks=nli,tag", "decoders.nli.type=label", "decoders.tag.type=pos"]
    settings += [f"encoder.name={tiny_encoder('bert')}", "train.epochs=1", "train.device=cpu", "train.threads=1"]
    mtlprune("train", "minilm-ewt5", *settings, "--out", tmp_path / "run").done()
    assert set(RunFolder(tmp_path / "run").read_scores("dev")) == {"nli", "tag"}


def gum_row(number: int, word: str, tag: str, entity: str) -> str:
    return "\t".join([str(number), word, "_", tag, tag, "_", "0" if number == 1 else "1", "dep", "_", entity])


def test_names_of_gum_are_mentions_with_a_proper_head(mtlprune: Callable, tmp_path: Path) -> None:
    rows = [
        gum_row(1, "The", "DET", "Entity=(1-person-new-cf1-2-coref"),
        gum_row(2, "king", "NOUN", "_"),
        gum_row(3, "of", "ADP", "_"),
        gum_row(4, "France", "PROPN", "Entity=(2-place-new-cf2-1-sgl)1)"),
        gum_row(5, "Louis", "PROPN", "Entity=(3-person-giv-cf1-1,2-coref"),
        gum_row(6, "XIV", "PROPN", "Entity=(4-place-giv-cf1-1-coref)3)"),
    ]
    sentence = Sentence("s", ("The", "king", "of", "France", "Louis", "XIV"), source="\n".join(rows))
    assert names_of(tmp_path, sentence) == (Span(3, 4, "place"), Span(4, 6, "person"))
    names = {split: f"GUM_{split}_a" for split in ("train", "dev", "test")}
    (tmp_path / "splits.md").write_text("".join(f"## {split}\n\n  * {name}\n" for split, name in names.items()))
    says = "newdoc id = x", "meta::genre = bio", "sent_id = {}-1", "s_prominence = 2", "s_type = decl"
    head = "".join(f"# {line}\n" for line in (*says, "transition = null"))
    (tmp_path / "dep").mkdir()
    for name in names.values():
        (tmp_path / "dep" / f"{name}.conllu").write_text(head.format(name) + "\n".join(rows) + "\n\n")
    mtlprune("data", "build", "gum", tmp_path, "--out", tmp_path / "c").done()
    [one] = load_corpus(tmp_path / "c")["dev"]
    found = [one.get(name) for name in ("genre", "prominence", "sentence_type", "transition")]
    assert found == ["bio", 2.0, "decl", "null"] and len(one.get("ner")) == 2
    (tmp_path / "splits.md").write_text("## train\n")
    mtlprune("data", "build", "gum", tmp_path, "--out", tmp_path / "d").refuses("expected documents under ## train")


FILES = {
    "t.tsv": ("text\tstars\tkind\na good one\t4\tx\nwhat ?\t2.5\ty|z\n", ["text=words,stars=rating:number,kind=kinds"]),
    "p.csv": ('a,b,y\n"one, two",three,no\nx,y,yes\n', ["a=words,b=words,y=same"]),
    "s.jsonl": ('{"text": "a b", "n": 1.5}\n{"text": "c", "n": null}\n', ["text=words,n=rating:number"]),
    "c.conllu": ("# k = v\n# n = 3\n1\ta\t_\tX\t_\t_\t0\troot\t_\t_\n\n# k = w\n1\tb\t_\tX\t_\t_\t0\troot\t_\t_\n", []),
}


@pytest.mark.parametrize("name", FILES)
def test_mutated_files_are_read_or_refused_in_a_sentence(mtlprune: Callable, tmp_path: Path, name: str) -> None:
    """Ten mutations of each file: signs lost, doubled, swapped or replaced. None gives a traceback."""
    content, columns = FILES[name]
    draw = random.Random(name)
    for number in range(10):
        signs = list(content)
        for _ in range(draw.randint(1, 4)):
            place = draw.randrange(len(signs))
            signs[place] = draw.choice(["", signs[place] * 2, "\t", "\n", '"', ",", "\x00", "é", "9", "=", "{", "|"])
        (tmp_path / name).write_text("".join(signs), encoding="utf-8")
        options = ["--columns", *columns] if columns else ["--comment", "k=kind", "--comment", "n=rating:number"]
        out = tmp_path / f"out{number}"
        answer = mtlprune("data", "build", tmp_path / name, *options, "--split", "50/50/0", "--out", out)
        assert answer.code in (0, 2), answer
        assert answer.code == 0 or (answer.err.splitlines()[-1].startswith("mtlprune: ") and not out.exists()), answer
