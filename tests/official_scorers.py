"""The official scoring programs: where they are found, what they say of files that mtlprune writes, and once said.

The programs are no part of the project. They are looked for in the folder that MTLPRUNE_SCORERS names, or in
shared/scorers beside the checkout: evalb.c and new.prm, srl-eval.pl, conlleval.pl and conll18_ud_eval.py.

    python tests/official_scorers.py        # runs all four, and writes tests/official_scorers.json

The figures are recorded with the SHA-256 of the files they are of, so that neither can change without the other.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
SCORERS = Path(os.environ.get("MTLPRUNE_SCORERS") or HERE.parents[1] / "shared/scorers")
RECORDED = HERE / "official_scorers.json"
Figures = dict[str, float]


def evalb(folder: Path, work: Path) -> Figures:
    program = work / "evalb"
    if not program.exists():
        _run("gcc", "-w", "-O1", "-o", program, SCORERS / "evalb.c")
    files = folder / "con.gold", folder / "con.pred"
    summary = _run(program, "-p", SCORERS / "new.prm", "-e", "100000", *files).split("=== Summary ===")[1]
    found = dict(re.findall(r"(Error sentence|Recall|Precision|FMeasure)\s*=\s*([\d.]+)", summary.split("-- len")[0]))
    assert int(found.pop("Error sentence")) == 0
    return {name: float(value) for name, value in found.items()}


def srl_eval(folder: Path, work: Path) -> Figures:
    report = _run("perl", SCORERS / "srl-eval.pl", folder / "srl.gold", folder / "srl.pred")
    correct, excess, missed, *scores = map(float, re.findall(r"Overall(.*)", report)[0].split())
    return _figures(correct, correct + missed, correct + excess, *scores)


def conlleval(folder: Path, work: Path) -> Figures:
    report = _run("perl", SCORERS / "conlleval.pl", input=(folder / "ner.conlleval").read_text(encoding="utf-8"))
    gold, predicted, correct = re.findall(r"with (\d+) phrases; found: (\d+) phrases; correct: (\d+)", report)[0]
    scores = re.findall(r"precision:\s*([\d.]+)%; recall:\s*([\d.]+)%; FB1:\s*([\d.]+)", report)[0]
    return _figures(correct, gold, predicted, *scores)


def ud_eval(folder: Path, work: Path) -> Figures:
    found = {}
    for layer, names in (("pos", ("XPOS",)), ("dep", ("UAS", "LAS"))):
        program = SCORERS / "conll18_ud_eval.py"
        table = _run(sys.executable, program, "-v", folder / f"{layer}.gold", folder / f"{layer}.pred")
        rows = [re.split(r"[\s|]+", line) for line in table.splitlines()]
        found.update({row[0]: float(row[3]) for row in rows if row[0] in names})
    return found


class Program(NamedTuple):
    """An official program, what runs it, the files it reads, and how it is asked."""

    source: str
    tool: str
    files: tuple[str, ...]
    ask: Callable[[Path, Path], Figures]


PROGRAMS = {
    "evalb": Program("evalb.c", "gcc", ("con.gold", "con.pred"), evalb),
    "srl-eval": Program("srl-eval.pl", "perl", ("srl.gold", "srl.pred"), srl_eval),
    "conlleval": Program("conlleval.pl", "perl", ("ner.conlleval",), conlleval),
    "conll18_ud_eval": Program(
        "conll18_ud_eval.py", sys.executable, ("pos.gold", "pos.pred", "dep.gold", "dep.pred"), ud_eval
    ),
}


def missing(name: str) -> str:
    """Why a program cannot be asked here; empty where it can."""
    source, tool, *_ = PROGRAMS[name]
    if not (SCORERS / source).is_file():
        return f"no {source} in {SCORERS}; set MTLPRUNE_SCORERS to a folder that holds it"
    return "" if shutil.which(tool) else f"there is no {tool} here"


def digest(name: str, folder: Path) -> str:
    return hashlib.sha256(b"\0".join((folder / file).read_bytes() for file in PROGRAMS[name].files)).hexdigest()


def recorded() -> Mapping[str, Mapping[str, Any]]:
    return json.loads(RECORDED.read_text(encoding="utf-8"))


def _figures(*values: Any) -> Figures:
    return dict(zip(("correct", "gold", "predicted", "precision", "recall", "f1"), map(float, values), strict=True))


def _run(*command: Any, input: str | None = None) -> str:
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True, input=input)
    return done.stdout


if __name__ == "__main__":
    from test_scores import random_pairs

    from mtlprune.corpora.export import write_scorer_files

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "files"
        write_scorer_files(*zip(*random_pairs(), strict=True), folder)
        asked = {name: (digest(name, folder), program.ask(folder, Path(place))) for name, program in PROGRAMS.items()}
        said = {name: {"files": files, "figures": figures} for name, (files, figures) in asked.items()}
    RECORDED.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    print(RECORDED.read_text(encoding="utf-8"))
