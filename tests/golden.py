"""Golden outputs: what every command writes, before and after a change that must not move a number.

    python tests/golden.py make OUT [--only PATTERN] [--inputs REFERENCE]
    python tests/golden.py compare REFERENCE OUT [--only PATTERN] [--tolerance 1e-9]

``make`` runs each command of golden_commands.yaml through the command line, with OUT as its working folder and in a
process of its own (forked, so that none leaves anything to the next), on tiny encoders, small corpora, run folders that
helpers of the tests write, and the committed results. Each leaves a folder under OUT: its files, command.txt,
stdout.txt (paths, dates and durations taken out) and stderr.txt (never compared). PATTERN (repeatable, such as
``train-*``) makes some of them; what these read is made too, or copied from REFERENCE, which another commit made.

``compare`` prints one line for each difference, and exits 1 if there is one. JSON, YAML, Parquet and safetensors are
compared by value (NaN and null are the same; rows of Parquet in the order of the columns that hold no floats), other
text by its words and numbers. Of pictures, HTML and Arrow it is only checked that they are there and open. What is
meant to differ stands in golden_changes.yaml, which explains itself.
"""

import argparse
import gc
import json
import math
import os
import re
import shlex
import shutil
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping
from fnmatch import fnmatch
from multiprocessing import get_context
from pathlib import Path
from string import Template
from typing import Any
from xml.etree import ElementTree

import yaml

ROOT = Path(__file__).resolve().parents[1]
# Keys of JSON and YAML that depend on the moment, the machine, the commit, or on bytes rather than values.
VOLATILE = {"begun", "ended", "seconds", "git", "mtlprune", "python", "packages", "platform", "processor"}
VOLATILE |= {"peak_memory", "sha256", "files", "log_size", "gates_size", "uas_size", "_fingerprint", "made_from"}
VOLATILE |= {"cpu_seconds"}
VARYING = {
    r"\b\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:\d\d)?)?": "DATE",
    r"\b\d+(\.\d+)? ?(ms|s|min|h|seconds?|minutes?|hours?)\b": "TIME",
    r"\b\d+ sentences/s\b": "SPEED",
    r"\b\d+:\d\d(:\d\d)? left\b": "TIME left",
    r"\btables-[0-9a-f]{8}\b": "tables",  # a corpus is written beside the one it replaces
}
TOKEN = re.compile(r"[-+−]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|[^\W\d_]+")
SHOWN = 5  # differences of one file
Commands = dict[str, tuple[str, list[str]]]
"""By name: a folder that is copied first (or ""), and the words after ``mtlprune``."""


def read_commands() -> Commands:
    """All of golden_commands.yaml, each behind those whose files it reads."""
    tree = yaml.safe_load(Path(__file__).with_name("golden_commands.yaml").read_text(encoding="utf-8"))
    given: Commands = {}
    for name, text in tree["commands"].items():
        while "$" in text:
            text = Template(text).substitute(tree["words"])
        source, _, words = text.replace("{}", name).rpartition("=>")
        given[name] = source.strip(), shlex.split(words)
    ordered: Commands = {}

    def add(name: str) -> None:
        if name not in ordered:
            for other in sorted(needs(given, name) - {"inputs"}):
                add(other)
            ordered[name] = given[name]

    for name in given:
        add(name)
    return ordered


def needs(commands: Commands, name: str) -> set[str]:
    """The commands whose files this one reads, and ``inputs``."""
    source, words = commands[name]
    heads = {part.partition("/")[0] for word in (source, *words) for part in word.split("=") if "/" in part}
    return {"inputs"} | (heads & commands.keys()) - {name}


def make_inputs(out: Path) -> None:
    """Encoders, run folders, probe results, corpora and settings; copies of what is committed."""
    from conll2012_files import small_corpus
    from counted_runs import write_run as write_counted
    from gated_runs import write_run as write_gated
    from probe_results import write_probes
    from report_runs import gold_sentences, write_study
    from tiny import make_tiny

    from mtlprune.corpora.store import save_corpus

    out.mkdir()
    for family in ("bert", "roberta", "deberta-v2"):
        make_tiny(family, out / family)
    write_study(out / "study")
    save_corpus({"test": gold_sentences()}, out / "gold", name="gold", licence="none", sources={})
    for run in (out / "study").iterdir():  # their gold is that corpus
        fingerprint = json.loads((out / "gold/corpus.json").read_text())["fingerprint"]
        (run / "manifest.json").write_text((run / "manifest.json").read_text().replace("f" * 64, fingerprint))
    for place, (tasks, skill) in enumerate({"pos": 0.9, "ner": 0.7, "srl": 0.6, "pos ner srl": 0.65}.items()):
        for seed in (1, 2, 3):
            skills = dict.fromkeys(tasks.split(), skill)
            write_counted(out / f"counted/{place}-{seed}", skills, seed=seed)
    gates = {"pos": [[0, 1, 0, 0], [0, 0, 0, 0]], "ner": [[1, 1, 0, 0], [1, 0, 1, 0]]}
    gates |= {"dep": [[1, 1, 0, 0.5], [1, 0, 0, 0]], "srl": [[1, 1, 0, 0], [0.7, 0, 1, 0]]}
    for task, rows in gates.items():
        write_gated(out / f"claims/{task}", [task], rows, encoder="inputs/bert")
    labels = {"pos": ("NN", "VB", "DT"), "ner": ("PERSON", "LAW"), "dep": ("det", "nsubj", "root", "csubj")}
    labels |= {"con": ("NP", "VP"), "srl": ("ARG0", "ARGM-TMP")}
    encoders = [(task, seed) for task in ("POS", "DEP", "MTL-5") for seed in (1, 2)]
    write_probes(out / "probes", [("pretrained", 0), *encoders], labels, (3, 4))
    small_corpus(out / "ontonotes")
    (out / "pairs").mkdir()
    for name, bad in (("agreement", "The {} sleep."), ("order", "{} the sleeps.")):
        pairs = [
            {"sentence_good": f"The {noun} sleeps.", "sentence_bad": bad.format(noun), "UID": name, "field": "syntax"}
            for noun in ("dog", "teacher", "river")
        ]
        lines = [json.dumps(pair | {"linguistics_term": name}) + "\n" for pair in pairs]
        (out / f"pairs/{name}.jsonl").write_text("".join(lines))
    parts = {
        name: {
            "ideal_gain": ideal,
            "gain": ideal / 2,
            "reached": 0.5,
            "seconds": {"full": 2e-3, "masked": 2.1e-3, "removed": 1e-3},
        }
        for name, ideal in (("encoder", 0.25), ("attention", 0.5))
    }  # times, which nothing makes twice
    latency = {"device": "a processor", "precision": "fp32", "threads": 1, "torch": "2", "load": 0.5}
    latency |= {"cells": [{"batch": batch, "length": 16, "rounds": 5, **parts} for batch in (1, 8)]}
    (out / "latency.json").write_text(json.dumps(latency))
    (out / "text.txt").write_text("The old dog saw nobody in the park .\nMaria wrote a letter to Ben .\n")
    train = {"epochs": 2, "batch_sentences": 8, "encoder_rate": 1e-3, "decoder_rate": 1e-2}
    same = {"precision": "fp32", "device": "cpu", "threads": 1}
    decoders = {"dep": {"arc_size": 16, "relation_size": 8}, "con": {"span_size": 16, "label_size": 8}}
    tree: dict[str, Any] = {"name": "tiny", "data": {"path": "data-build-grammar/corpus"}, "decoders": decoders}
    tree |= {"encoder": {"name": "inputs/bert"}, "train": train | same}
    _write_yaml(out / "tiny.yaml", tree)
    _write_yaml(out / "sweep.yaml", {"base": "tiny.yaml", "grid": {"tasks": ["pos", "dep"], "seed": [1, 2]}})
    model = {"vocabulary": 200, "layers": 2, "heads": 2, "hidden": 16, "positions": 64}
    steps = {"steps": 12, "batch_sentences": 16, "rate": 0.01, **same}
    watch = {"points": 4, "first": 2, "blimp": "inputs/pairs", "blimp_pairs": 3}
    data = {"corpora": ["data-build-grammar/corpus"]}
    _write_yaml(out / "pretrain.yaml", {"name": "small", "data": data, "model": model, "train": steps, "watch": watch})
    shutil.copytree(ROOT / "tests/first_release", out / "first_release")
    shutil.copytree(ROOT / "experiments", out / "experiments")
    shutil.copytree(ROOT / "results", out / "results")


def _write_yaml(path: Path, tree: Mapping[str, Any]) -> None:
    path.write_text(yaml.safe_dump(dict(tree)))


def make(out: Path, only: list[str], inputs: Path | None) -> None:
    """Run the commands; exits 1 in the end if one failed."""
    import importlib
    import pkgutil

    import mtlprune

    commands = read_commands()
    chosen = matching(commands, only)
    made = dict.fromkeys(chosen) if inputs else dict.fromkeys(commands if not only else _with_needs(commands, chosen))
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "TERM": "dumb"}
    if out.exists():
        sys.exit(f"{out} is there already; remove it or name another folder")
    out.mkdir(parents=True)
    wanted = {other for name in made for other in needs(commands, name)}
    for name in sorted(wanted - made.keys()) if inputs else ():
        if not (inputs / name).is_dir():
            sys.exit(f"--inputs: {inputs} holds no {name}; make it there, or all here without --inputs")
        shutil.copytree(inputs / name, out / name)
    for module in pkgutil.walk_packages(mtlprune.__path__, "mtlprune."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)  # once, not in each process
    gc.freeze()  # else each process copies what it only looks at
    well = inputs is not None or _forked("inputs", lambda: make_inputs(out / "inputs"))
    for name in commands if well else ():
        if name in made:
            begun = time.monotonic()
            source, words = commands[name]
            well &= _forked(name, lambda: run(out.resolve(), name, source, words))  # noqa: B023
            print(f"{name}: {time.monotonic() - begun:.1f} s", flush=True)
    sys.exit(0 if well else 1)


def _forked(name: str, work: Callable[[], None]) -> bool:
    process = get_context("fork").Process(target=work)
    process.start()
    process.join()
    if process.exitcode:
        print(f"{name} ended with {process.exitcode}; see its command.txt and stderr.txt", flush=True)
    return process.exitcode == 0


def run(out: Path, name: str, source: str, words: list[str]) -> None:
    """One command, in this process, which it ends."""
    from mtlprune.cli import main

    os.chdir(out)
    folder = Path(name)
    folder.mkdir()
    if source:
        shutil.copytree(source, folder / "run")
    given: list[str] = []
    for word in words:
        given += sorted(map(str, Path().glob(word))) if "*" in word and ":" not in word else [word]
    (folder / "command.txt").write_text(shlex.join(["mtlprune", *words]) + "\n")
    sys.argv = ["mtlprune", *given]
    for stream, file in ((1, "stdout.txt"), (2, "stderr.txt")):
        os.dup2(os.open(folder / file, os.O_WRONLY | os.O_CREAT), stream)
    try:
        main()
    finally:
        sys.stdout.flush()
        (folder / "stdout.txt").write_text(normal((folder / "stdout.txt").read_text(), out))


def normal(text: str, root: Path) -> str:
    """Without the folder in which it was made, dates, durations and names by chance."""
    text = text.replace(f"{root}/", "").replace(str(root), ".")
    for pattern, name in VARYING.items():
        text = re.sub(pattern, name, text)
    return text


def matching(commands: Collection[str], only: list[str]) -> set[str]:
    """The commands that are meant; a pattern that means none is a mistake."""
    for pattern in only:
        if not any(fnmatch(name, pattern) for name in commands):
            sys.exit(f"--only: no command is called {pattern!r}; the names are those of golden_commands.yaml")
    return {name for name in commands if not only or any(fnmatch(name, pattern) for pattern in only)}


def _with_needs(commands: Commands, chosen: set[str]) -> set[str]:
    more = {other for name in chosen for other in needs(commands, name)} - {"inputs"}
    return chosen if more <= chosen else _with_needs(commands, chosen | more)


class Changes:
    """What golden_changes.yaml allows; names are NAME/FILE, and patterns of them."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        self.parts = {
            key: tree.get(key) or {} for key in ("renamed", "gone", "new", "scattered", "rounded", "monte_carlo")
        }
        if unknown := tree.keys() - self.parts.keys():
            sys.exit(f"golden_changes.yaml: no such part: {', '.join(sorted(unknown))}")

    def of(self, part: str, name: str) -> Any:
        """What the part says of a file, or None."""
        return next((value for pattern, value in self.parts[part].items() if fnmatch(name, pattern)), None)


def compare(old: Path, new: Path, only: list[str], tolerance: float, changes: Changes) -> list[str]:
    """One line for each difference, a few for each file."""
    folders = {path.name for root in (old, new) for path in root.iterdir() if path.is_dir()} - {"inputs"}
    chosen = matching(folders, only)
    before, after = _files(old, chosen), _files(new, chosen)
    found, expected = [], set()
    for name, path in before.items():
        to = changes.of("renamed", name) or name
        if changes.of("gone", name) is not None:
            continue
        moving = changes.of("monte_carlo", name) or {"keys": [], "error": 0.0}
        if targets := changes.of("scattered", name):
            files = [new / name.split("/")[0] / target for target in targets]
            pool = sorted(number for file in files if file.is_file() for _, number in numbers(load(file, new)))
            allowed = max(tolerance, changes.of("rounded", name) or 0)
            lines = []
            for place, number in numbers(load(path, old)):
                free = ("." not in place or place.rpartition(".")[2] in moving["keys"]) and abs(number) <= 1
                if not _near(pool, number, max(allowed, moving["error"] if free else 0)):
                    lines.append(f"{place} {number:g} is nowhere in {', '.join(targets)}")
        elif to in after:
            expected.add(to)
            lines = list(differences(load(path, old), load(after[to], new), tolerance, moving))
        else:
            lines = [f"is not there, as {to}"]
        found += [f"{name}: {line}" for line in lines[:SHOWN]]
        found += [f"{name}: and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    more = [name for name in after if name not in before.keys() | expected and changes.of("new", name) is None]
    return found + [f"{name}: is new" for name in more]


def _files(root: Path, folders: set[str]) -> dict[str, Path]:
    paths = sorted(path for folder in folders for path in (root / folder).rglob("*") if path.is_file())
    shown = [path for path in paths if path.name != "stderr.txt" and path.name[0] != "."]
    return {normal(str(path.relative_to(root)), root): path for path in shown}


def load(path: Path, root: Path) -> Any:
    """Values of a file as trees of dictionaries and lists, words and numbers of text; None of a picture that opens.

    Args:
        root: of all golden outputs; its name is taken out of text.
    """
    kind = path.suffix
    if kind == ".parquet":
        import pyarrow.parquet as pq
        import pyarrow.types as types

        table = pq.read_table(path)
        keys = [field.name for field in table.schema if not types.is_floating(field.type)]
        return sorted(table.to_pylist(), key=lambda row: [str(row[key]) for key in keys])
    if kind == ".safetensors":
        from safetensors.numpy import load_file

        return {name: values.astype(float).ravel().tolist() for name, values in load_file(path).items()}
    if kind in (".png", ".gif"):
        from PIL import Image

        with Image.open(path) as picture:
            picture.verify()
        return None
    if kind == ".svg":
        ElementTree.parse(path)
    if kind in (".svg", ".pdf", ".html", ".arrow"):
        return path.stat().st_size > 0
    text = normal(path.read_text(encoding="utf-8"), root.resolve())
    if kind == ".json":
        return json.loads(text)
    if kind == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    if kind == ".yaml":
        return yaml.safe_load(text)
    return [_number(token) for token in TOKEN.findall(text)]


def _number(token: str) -> str | float:
    try:
        return float(token.replace("−", "-"))
    except ValueError:
        return token


def differences(
    old: Any, new: Any, tolerance: float, moving: Mapping[str, Any], place: str = "", key: str = ""
) -> Iterator[str]:
    """What differs in two trees, by where it is.

    Args:
        tolerance: of floats, as a share of those above 1.
        moving: ``keys`` of p-values and the Monte-Carlo ``error`` in which they may differ (in text, which has no keys,
            any number from 0 to 1 may).
    """
    old, new = (None if isinstance(x, float) and math.isnan(x) else x for x in (old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted((old.keys() | new.keys()) - VOLATILE, key=str):
            at = f"{place}.{name}" if place else str(name)
            if name not in old or name not in new:
                yield f"{at} is {'new' if name in new else 'not there'}"
            else:
                yield from differences(old[name], new[name], tolerance, moving, at, name)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{place} has {len(new)} entries instead of {len(old)}"
        for number, (x, y) in enumerate(zip(old, new, strict=False)):
            at = f"{place}[{number}]"
            if number and isinstance(old[number - 1], str):  # where in a text it is
                at += f" after {old[number - 1]!r}"
            yield from differences(x, y, tolerance, moving, at, key)
    elif _is_number(old) and _is_number(new):
        free = (not key or key in moving["keys"]) and 0 <= old <= 1 and 0 <= new <= 1
        if abs(old - new) > max(tolerance * max(1, abs(old)), moving["error"] if free else 0):
            yield f"{place} is {new!r} instead of {old!r}"
    elif old != new or isinstance(old, bool) != isinstance(new, bool):
        yield f"{place} is {new!r} instead of {old!r}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def numbers(tree: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a tree, with where it is."""
    if isinstance(tree, dict):
        for key in tree.keys() - VOLATILE:
            yield from numbers(tree[key], f"{place}.{key}")
    elif isinstance(tree, list):
        for number, entry in enumerate(tree):
            yield from numbers(entry, f"{place}[{number}]")
    elif _is_number(tree) and not math.isnan(tree):
        yield place, tree


def _near(pool: list[float], number: float, tolerance: float) -> bool:
    """Whether a sorted list holds it."""
    allowed = tolerance * max(1, abs(number))
    at = bisect_left(pool, number - allowed)
    return at < len(pool) and pool[at] <= number + allowed


def main() -> None:
    """The command line above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    makes, compares = commands.add_parser("make"), commands.add_parser("compare")
    makes.add_argument("out", type=Path)
    makes.add_argument("--inputs", type=Path, help="golden outputs to copy what is read from")
    compares.add_argument("old", type=Path)
    compares.add_argument("new", type=Path)
    compares.add_argument("--tolerance", type=float, default=1e-9)
    for one in (makes, compares):
        one.add_argument("--only", action="append", default=[], metavar="PATTERN")
    given = parser.parse_args()
    if given.command == "make":
        make(given.out, given.only, given.inputs)
        return
    changes = Changes(yaml.safe_load(Path(__file__).with_name("golden_changes.yaml").read_text(encoding="utf-8")) or {})
    found = compare(given.old, given.new, given.only, given.tolerance, changes)
    print("\n".join(found) or "no difference")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
