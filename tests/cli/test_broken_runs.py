"""Whatever is wrong with a file of a run, or hostile in names: one sentence, and nothing that steers or marks up."""

import contextlib
import json
import os
import random
import re
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from report_runs import gold_sentences, write_study_run
from run_folders import change_config, change_json
from safetensors.torch import load_file, save_file

from mtlprune.cli.show import majority_of
from mtlprune.config.config import load_config
from mtlprune.corpora.store import save_corpus
from mtlprune.errors import printable_lines
from mtlprune.io.files import SUMS, RunError, verify_sums, write_sums
from mtlprune.runs.folder import RESULTS, RunFolder
from mtlprune.runs.study import MAJORITY
from mtlprune.training.loop import train


class Place(NamedTuple):
    """Runs to break: one that is finished, one that a checkpoint resumes; and how it was begun."""

    finished: Path
    stopped: Path
    begin: tuple[str, ...]


@pytest.fixture(scope="module")
def place(lab: Any, mtlprune: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Place:
    root = tmp_path_factory.mktemp("broken")
    begin = (str(lab.config), "tasks=pos,dep", "pruning=gates", "pruning.rate=0.1", "train.epochs=2")
    mtlprune("train", *begin, "--out", root / "finished").done()
    updates = iter(range(100))
    train(load_config(begin[0], begin[1:]), RunFolder(root / "stopped"), stop=lambda: next(updates) == 3)
    assert (root / "stopped" / "checkpoint.safetensors").is_file()
    return Place(root / "finished", root / "stopped", begin)


TEXTS = (
    *("config.yaml", "manifest.json", "best.json", "vocabulary.json", "metrics.jsonl", "gates.jsonl"),
    *("scores/dev.json", "counts/dev.json", "predictions/dev.jsonl", "encoder/config.json"),
    *("encoder/tokenizer.json", "encoder/tokenizer_config.json"),
)


class Pipe(bytes):
    """The content of a file in whose place a pipe is put, of which no end ever comes."""


WHOLE: dict[str, Callable[[bytes], bytes]] = {
    "bytes": lambda content: b"\xff" + content,
    "deep": lambda content: b"[" * 100_000 + b"\n",
    "half": lambda content: content[: len(content) // 2],
    "list": lambda content: b"[]\n",
    "pipe": Pipe,
    "surrogate": lambda content: b'{"a": "\\ud800"}\n',
}


@contextlib.contextmanager
def in_seconds(seconds: int) -> Iterator[None]:
    """End what hangs, as reading a pipe does into which nobody writes."""

    def hangs(*_: Any) -> None:
        raise TimeoutError(f"still waiting after {seconds} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Broken:
    """A copy of a run with one file changed, on which every command that reads a run folder can be run."""

    def __init__(self, source: Path, begin: tuple[str, ...], corpus: Path, root: Path, call: Callable[..., Any]):
        run, out, words = self.run, self.out, _ = root / "run", root / "out", root / "words.txt"
        self.whole, self.call = source, call
        shutil.copytree(source, run)
        words.write_text("The cat saw the dog .\n")
        self.commands: dict[str, tuple[Any, ...]] = {
            "table": ("table", run, "--split", "dev"),
            "claims": ("claims", run, "--permutations", 10, "--out", out / "claims", "--format", "svg"),
            "report": ("report", run, "--out", out / "page.html", "--resamples", 10),
            "evaluate": ("evaluate", run, "--split", "dev"),
            "predict": ("predict", run, words),
            "remove": ("export", run, "--remove", "--out", out / "pruned"),
            "train": ("train", *begin, "--out", run),
            "probes": ("analyze", "probes", run, "--corpus", corpus, "--out", out / "probe"),
            "head": ("analyze", "head", run, "layer=1", "head=1", "--sentences", 1),
            "pack": ("runs", "pack", run, "--out", out / "study"),
            "export": ("export", run, "--out", out / "export"),
        }

    def check(self, file: str, content: bytes | None, command: str, what: str, names: str) -> int:
        if content is None:
            (self.run / file).unlink()
        elif isinstance(content, Pipe):
            (self.run / file).unlink()
            os.mkfifo(self.run / file)
        else:
            (self.run / file).write_bytes(content)
        case = f"{command} with {file}: {what}"
        try:
            with in_seconds(120):
                answer = self.call(*self.commands[command])
        except BaseException as error:
            raise AssertionError(f"{case}: a traceback ({type(error).__name__}: {error})") from error
        finally:
            shutil.rmtree(self.run)
            shutil.copytree(self.whole, self.run)
            shutil.rmtree(self.out, ignore_errors=True)
        assert answer.code in (0, 2, 3), f"{case}: code {answer.code}"
        if answer.code:
            assert answer.err.startswith("mtlprune: ") and answer.err.count("\n") == 1, f"{case}: {answer.err}"
            assert answer.names(names), f"{case}: {answer.err}"
        return int(answer.code)


@pytest.fixture
def broken(place: Place, lab: Any, mtlprune: Callable[..., Any], tmp_path: Path) -> Broken:
    return Broken(place.finished, place.begin, lab.corpus, tmp_path, mtlprune)


@pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_files_that_are_broken_as_a_whole(broken, every):
    """Each file before each command, each way on each file and before each command; or one in ``every`` of these."""
    ways = [*WHOLE, "missing"]
    assert gcd(len(ways), len(broken.commands)) == 1
    for number, (file, command) in list(enumerate(product(TEXTS, broken.commands)))[::every]:
        path, what = broken.whole / file, ways[number % len(ways)]
        if (file, what) != ("config.yaml", "missing"):  # then it is no run
            names = str(broken.run) if what == "missing" else path.name
            broken.check(file, None if what == "missing" else WHOLE[what](path.read_bytes()), command, what, names)


def digits_changed(content: bytes) -> bytes:
    return content.translate(bytes.maketrans(b"12345678", b"23456789"))


EVIDENCE: dict[str, Callable[[bytes], bytes]] = {
    "config.yaml": lambda content: content.replace(b"seed: 1", b"seed: 2"),
    "vocabulary.json": lambda content: content.replace(b"N", b"M"),
    **dict.fromkeys(
        ("best.json", "metrics.jsonl", "gates.jsonl", "scores/dev.json", "counts/dev.json"), digits_changed
    ),
    "predictions/dev.jsonl": lambda content: content.replace(b'"pos": ["', b'"pos": ["X'),
}
"""Changes after which a file is as valid as before, but no longer what the run found."""
READERS = {"scores/dev.json": ("table", "pack", "export", "report")}
READERS |= {"counts/dev.json": ("pack",), "predictions/dev.jsonl": ("pack",)}


@pytest.mark.parametrize("file", EVIDENCE)
def test_what_a_finished_run_found_cannot_be_changed_or_lost(file, broken):
    """Whatever reads it refuses, and names it; results are written anew, as a run of them anew."""
    content = EVIDENCE[file]((broken.run / file).read_bytes())
    assert content != (broken.run / file).read_bytes()
    for command in READERS.get(file, tuple(broken.commands)):
        names = file.rpartition("/")[2] if command != "train" else str(broken.run)
        assert broken.check(file, content, command, "changed", names) == 2, command
        if file != "config.yaml":  # without which it is no run
            assert broken.check(file, None, command, "missing", file) == 2, command


def test_a_later_evaluation_has_its_checksum_and_strange_scores_have_none(broken):
    evaluate = ("evaluate", broken.run, "--split", "test")
    broken.call(*evaluate).done()
    known = RunFolder(broken.run).read_manifest()["files"]
    assert {f"{kind}/test.{form}" for kind, form in RESULTS.items()} < known.keys()
    table = ("table", broken.run, "--resamples", 0)
    broken.call(*table).done()
    path = broken.run / "scores/test.json"
    path.write_bytes(EVIDENCE["scores/dev.json"](path.read_bytes()))
    broken.call(*table).refuses("scores/test.json was changed or damaged")
    broken.call(*evaluate).done()
    before = broken.call(*table).done()
    (broken.run / "scores/test.best-pos.json").write_bytes(path.read_bytes())
    broken.call(*table, "--split", "test.best-pos").refuses("scores/test.best-pos.json does not belong to this run")
    assert broken.call(*table) == before


TENSORS: dict[str, Callable[[bytes], bytes] | None] = {
    "half": WHOLE["half"],
    "pipe": Pipe,
    "pointer": lambda _: b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n",
    "changed": lambda content: content[: (k := len(content) // 2)] + bytes([content[k] ^ 1]) + content[k + 1 :],
    "missing": None,
}


@pytest.mark.parametrize("what", TENSORS)
@pytest.mark.parametrize(
    ("file", "command"), [("checkpoint", "train"), ("weights/*", "evaluate"), ("weights/*", "remove")]
)
def test_tensors_that_are_none(file, command, what, place, lab, mtlprune, tmp_path):
    source = place.stopped if command == "train" else place.finished
    broken, change = Broken(source, place.begin, lab.corpus, tmp_path, mtlprune), TENSORS[what]
    (path,) = broken.run.glob(f"{file}.safetensors")
    content, name = path.read_bytes(), str(path.relative_to(broken.run))
    expected = 0 if (file, what) == ("checkpoint", "missing") else 2  # then it begins anew
    assert broken.check(name, change and change(content), command, what, path.name) == expected
    assert broken.check(name, content, command, "whole", "") == 0


OUTSIDE = ("../secret", "encoder/../../secret", "SECRET", "", ".", "nul\0")


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_list_of_files_of_a_stranger_leads_nowhere_else(name, broken, lab, mtlprune):
    """Nothing outside of the folder is read, which a pipe without an end shows, nor is its SHA-256 printed."""
    secret = broken.run.parent / "secret"
    secret.mkdir()
    os.mkfifo(secret / "config.yaml")
    name = str(secret / "config.yaml") if name == "SECRET" else name.replace("secret", "secret/config.yaml")

    def refused(list_of: str, *command: object) -> None:
        with in_seconds(60):
            answer = mtlprune(*command)
        answer.refuses(list_of)
        assert repr(name)[1:-1] in answer.err.replace("\\\\", "\\")

    manifest = RunFolder(broken.run).read_manifest()
    change_json(broken.run / "manifest.json", files=manifest["files"] | {name: "0" * 64})
    refused("manifest.json names", "evaluate", broken.run, "--split", "dev")

    encoder = shutil.copytree(broken.whole / "encoder", broken.run.parent / "theirs")
    (encoder / SUMS).write_text(f"{'0' * 64}  {name}\n")
    refused(f"{SUMS} names", "train", *broken.commands["train"][1:-2], f"encoder.name={encoder}", "--dry-run")

    sweep = broken.run.parent / "sweep"
    sweep.mkdir()
    index = {"name": "x", "file": "x.yaml", "cells": {"a": {"folder": name, "digest": "0", "needs": []}}}
    (sweep / "sweep.json").write_text(json.dumps({"format": "mtlprune sweep", "version": 1, **index}))
    refused("sweep.json names", "table", sweep, "--split", "dev")

    packed = broken.run.parent / "packed"
    mtlprune("runs", "pack", broken.whole, "--out", packed).done()
    tree = json.loads((packed / "study.json").read_text())
    for key in ({"cells": {"a": name}}, {"sha256": name}):
        (packed / "study.json").write_text(json.dumps(tree | key))
        refused("study.json names", "table", packed, "--split", "dev")

    corpus = shutil.copytree(lab.corpus, broken.run.parent / "corpus")
    change_json(corpus / "corpus.json", files=json.loads((corpus / "corpus.json").read_text())["files"] | {"dev": name})
    mtlprune("data", "check", corpus).refuses("corpus.json is damaged (the file of split 'dev')")


def test_gates_that_are_not_those_of_the_weights(broken):
    """Also where the manifest does not know their file: of a run that is not finished, or as somebody left it out."""
    (broken.run / "gates.jsonl").write_bytes(digits_changed((broken.run / "gates.jsonl").read_bytes()))
    run = RunFolder(broken.run)
    manifest = run.read_manifest()
    del manifest["files"]["gates.jsonl"]
    run.write_json("manifest.json", manifest)
    for command in ("claims", "report", "evaluate"):
        broken.call(*broken.commands[command]).refuses("gates.jsonl: the manifest of the finished run does not name it")
    del manifest["files"]
    run.write_json("manifest.json", manifest)
    for command in ("evaluate", "predict", "export"):
        broken.call(*broken.commands[command]).refuses("are not those of the weights")


def test_an_export_can_be_checked_and_its_card_is_its_reader_s(broken):
    out = broken.out / "export"
    broken.call(*broken.commands["export"]).done()
    asked = ("train", *broken.commands["train"][1:-2], f"encoder.name={out}", "--dry-run")
    (out / "README.md").write_text("mine")
    broken.call(*asked).done()
    verify_sums(out, "")
    (out / "config.json").write_text((out / "config.json").read_text() + " ")
    broken.call(*asked).refuses("config.json was changed or damaged")


@pytest.mark.parametrize("key", ["sentences", "words", "tags"])
def test_the_counts_of_a_corpus_are_those_of_its_sentences(key, lab, mtlprune, tmp_path):
    corpus = shutil.copytree(lab.corpus, tmp_path / "corpus")
    info = json.loads((corpus / "corpus.json").read_text())
    info["splits"]["dev"][key] += 1
    (corpus / "corpus.json").write_text(json.dumps(info))
    mtlprune("data", "check", corpus).refuses("corpus.json: expected ")


def test_a_study_that_names_another_table_blames_itself(broken):
    broken.call(*broken.commands["pack"]).done()
    path = broken.out / "study" / "study.json"
    known = json.loads(path.read_text())["sha256"]
    for sha256 in (known[:-1] + "x", "x" + known[1:]):
        change_json(path, sha256=sha256)
        broken.call("table", path.parent, "--split", "dev").refuses("study.json was changed or damaged")


def test_a_limit_of_file_sizes_leaves_nothing_half(broken):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        answer = broken.call(*broken.commands["remove"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    answer.refuses(str(broken.out / "pruned"))
    assert "File too large" in answer.err and not list(broken.out.iterdir())


def test_an_encoder_that_is_not_the_one_we_wrote_or_none(place, tiny_encoder, mtlprune, tmp_path):
    folder = shutil.copytree(tiny_encoder("bert"), tmp_path / "encoder")
    path, sums = folder / "model.safetensors", folder / SUMS
    asked = ("train", *place.begin, f"encoder.name={folder}", "--dry-run")
    write_sums(folder)
    mtlprune(*asked).done()
    tensors = {name: torch.full_like(tensor, torch.inf) for name, tensor in load_file(path).items()}
    save_file(tensors, path, {"format": "pt"})
    mtlprune(*asked).refuses(str(path))
    sums.write_text("no sum\n")
    mtlprune(*asked).refuses(f"{sums}, line 1")
    sums.unlink()
    mtlprune(*asked).refuses("not finite")
    change_json(folder / "config.json", num_hidden_layers=0)
    mtlprune(*asked).refuses("one layer or more")


CHANGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    lambda content, draw: content[: draw.randrange(len(content) + 1)],
    lambda content, draw: _flipped(content, draw.randrange(max(1, len(content))), 1 << draw.randrange(8)),
    lambda content, draw: content.replace(draw.choice((b"1", b'"', b":", b"a")), draw.choice((b"", b"../", b"[")), 1),
    lambda content, draw: content[: (k := draw.randrange(len(content) + 1))] + draw.randbytes(4) + content[k:],
    lambda content, draw: _renamed(content, draw),
    lambda content, draw: Pipe(content),
)


def _flipped(content: bytes, place: int, bit: int) -> bytes:
    return content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :] if content else b"\0"


def _renamed(content: bytes, draw: random.Random) -> bytes:
    """A name in a list of files, or any other text in quotes, leads elsewhere."""
    names = re.findall(rb'"([^"\n]+)"', content)
    return content.replace(draw.choice(names or [b" "]), draw.choice((b"/dev/zero", b"../secret", b"..", b"")), 1)


@pytest.mark.slow
def test_500_changes_of_own_files_and_foreign_names(broken, lab, mtlprune, tmp_path):
    """No traceback, no hang, nothing read outside; the changes are drawn with a fixed seed."""
    draw, opened = random.Random(52), []
    secret = (broken.run.parent / "secret").resolve()
    secret.mkdir()
    for name in ("config.yaml", "secret"):
        os.mkfifo(secret / name)  # who opens it hangs, and is ended
    packed, corpus = tmp_path / "packed", shutil.copytree(lab.corpus, tmp_path / "corpus")
    mtlprune("runs", "pack", broken.whole, "--out", packed).done()
    table = ("table", packed, "--split", "dev")
    others = {
        packed / "study.json": table,
        next(packed.glob("*.parquet")): table,
        corpus / "corpus.json": ("data", "check", corpus),
        next(corpus.glob("dev-*")): ("data", "show", corpus, "dev:1"),
    }
    cheap = ("table", "claims", "evaluate", "predict", "pack", "train")
    for number in range(500):
        change = draw.choice(CHANGES)
        if number % 5:
            file, command = draw.choice(TEXTS), draw.choice(cheap)
            content = change((broken.whole / file).read_bytes(), draw)
            opened.append(broken.check(file, content, command, f"change {number}", ""))
            continue
        path = draw.choice([*others])
        whole = path.read_bytes()
        path.unlink()
        content = change(whole, draw)
        os.mkfifo(path) if isinstance(content, Pipe) else path.write_bytes(content)
        with in_seconds(120):
            answer = mtlprune(*others[path])
        assert answer.code in (0, 2) and "Traceback" not in answer.err, (path, number, answer)
        opened.append(answer.code)
        path.unlink()
        path.write_bytes(whole)
    assert len(opened) == 500 and opened.count(2) > 250


RED, TAG, BAR = "\x1b[31mred", "<script>alert(1)</script>", "a|b"
NAME = f"{RED}|<script>x\n{{}}"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Path]:
    root = tmp_path_factory.mktemp("hostile")
    layers = {"pos": (RED, TAG, BAR, "\x9b1m", "\x07"), "words": (RED, TAG, BAR, "\x9b1m", ".")}
    gold = [replace(sentence, **layers).validate() for sentence in gold_sentences(12)]
    splits = {"train": gold[:8], "dev": gold[8:10], "test": gold[10:]}
    save_corpus(splits, root / "corpus", name="hostile", licence="none", sources={})
    runs = []
    for tasks, pruned in product((("pos",), ("dep",), ("pos", "dep")), (False, True)):
        path = root / NAME.format(f"{'-'.join(tasks)}-{pruned}")
        run = write_study_run(path, tasks, 1, pruned, 0.8, gold)
        runs.append(change_config(run, name=f"<script>x|{'-'.join(tasks)}-{pruned}").path)
    return runs, root / "corpus"


COMMANDS = {
    "table": ("table", "ALL"),
    "latex": ("table", "ALL", "--format", "latex", "--out", "OUT/table.tex"),
    "csv": ("table", "ALL", "--format", "csv", "--out", "OUT/table.csv"),
    "claims": ("claims", "GATED", "--permutations", 10, "--format", "svg", "--out", "OUT/claims"),
    "report": ("report", "ALL", "--resamples", 10, "--title", "TAG", "--out", "OUT/page.html"),
    "show": ("data", "show", "CORPUS", "dev:1"),
    "check": ("data", "check", "CORPUS"),
    "mistake": ("evaluate", "NONE", "--split", "dev"),
}


@pytest.mark.parametrize("content", ["[]", '{"a": 1}', '{"a": {"test": {"pos": "x"}}}', "{"])
def test_majority_baselines_of_another_shape_are_refused(content: str, study: tuple[list[Path], Path], tmp_path: Path):
    run = RunFolder(shutil.copytree(study[0][0], tmp_path / "run"))
    (tmp_path / MAJORITY).write_text(content)
    with pytest.raises(RunError, match=re.escape(str(tmp_path / MAJORITY))):
        majority_of(run, "test")


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_steers_or_marks_up(command, study, mtlprune, tmp_path):
    runs, corpus = study
    out = tmp_path / NAME.format("out")
    several = {"ALL": runs, "GATED": [run for run in runs if "True" in run.name]}
    places = {"OUT": str(out), "CORPUS": str(corpus), "NONE": str(out / "none"), "TAG": TAG}
    words: list[Any] = []
    for word in map(str, COMMANDS[command]):
        for name, meant in places.items():
            word = word.replace(name, meant)
        words += several.get(word, [word])  # type: ignore[call-overload]
    answer = mtlprune(*words)
    assert answer.code == (2 if command == "mistake" else 0), answer.err
    files = [path for path in out.rglob("*") if path.is_file() and path.suffix not in (".png", ".parquet")]
    texts = {path: path.read_text(encoding="utf-8") for path in files} | {"out": answer.out, "err": answer.err}
    assert len(texts) > 2 or answer.out or answer.err
    for name, text in texts.items():
        plain = text.replace("\t", "")
        assert plain == printable_lines(plain), f"{name}: {text[:300]!r}"
        if isinstance(name, Path) and name.suffix in (".md", ".html", ".svg"):
            assert TAG not in text and "<script>x" not in text, name
