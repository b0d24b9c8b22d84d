"""The official scoring programs: where they are found, what they say of files that mtlprune writes, and once said.

The programs are no part of the project. They are looked for in the folder that MTLPRUNE_SCORERS names, or in
shared/scorers beside the checkout: evalb.c and new.prm, srl-eval.pl, conlleval.pl and conll18_ud_eval.py.

    python tests/official_scorers.py        # runs all four, and writes tests/official_scorers.json

The figures are recorded with the SHA-256 of the files they are of, so that neither can change without the other.
"""

import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mtlprune.corpora.export import write_scorer_files
from mtlprune.sentence import Sentence

HERE = Path(__file__).parent
SCORERS = Path(os.environ.get("MTLPRUNE_SCORERS") or HERE.parents[1] / "shared/scorers")
RECORDED = HERE / "official_scorers.json"
Figures = dict[str, Any]


def evalb(folder: Path, work: Path) -> Figures:
    program = work / "evalb"
    if not program.exists():
        _run("gcc", "-w", "-O1", "-o", program, SCORERS / "evalb.c")
    files = folder / "con.gold", folder / "con.pred"
    summary = _run(program, "-p", SCORERS / "new.prm", "-e", "100000", *files).split("=== Summary ===")[1]
    names = ("Number of Error sentence", "Bracketing Recall", "Bracketing Precision", "Bracketing FMeasure")
    return {name: float(re.findall(rf"{name}\s*=\s*([\d.]+)", summary)[0]) for name in names}


def srl_eval(folder: Path, work: Path) -> Figures:
    report = _run("perl", SCORERS / "srl-eval.pl", folder / "srl.gold", folder / "srl.pred")
    [overall] = re.findall(r"Overall\s+(\d+)\s+(\d+)\s+(\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)", report)
    names = ("correct", "excess", "missed", "precision", "recall", "f1")
    return {name: float(value) for name, value in zip(names, overall, strict=True)}


def conlleval(folder: Path, work: Path) -> Figures:
    report = _run("perl", SCORERS / "conlleval.pl", input=(folder / "ner.conlleval").read_text(encoding="utf-8"))
    counts = re.findall(r"with (\d+) phrases; found: (\d+) phrases; correct: (\d+)", report)[0]
    scores = re.findall(r"precision:\s*([\d.]+)%; recall:\s*([\d.]+)%; FB1:\s*([\d.]+)", report)[0]
    names = ("gold", "predicted", "correct", "precision", "recall", "f1")
    return {name: float(value) for name, value in zip(names, (*counts, *scores), strict=True)}


def ud_eval(folder: Path, work: Path) -> Figures:
    found = {}
    for layer, names in (("pos", ("XPOS",)), ("dep", ("UAS", "LAS"))):
        program = SCORERS / "conll18_ud_eval.py"
        table = _run(sys.executable, program, "-v", folder / f"{layer}.gold", folder / f"{layer}.pred")
        rows = [re.split(r"[\s|]+", line) for line in table.splitlines()]
        found.update({row[0]: float(row[3]) for row in rows if row[0] in names})
    return found


PROGRAMS: dict[str, tuple[str, tuple[str, ...], Callable[[Path, Path], Figures]]] = {
    "evalb": ("gcc", ("con.gold", "con.pred"), evalb),
    "srl-eval": ("perl", ("srl.gold", "srl.pred"), srl_eval),
    "conlleval": ("perl", ("ner.conlleval",), conlleval),
    "conll18_ud_eval": ("python", ("pos.gold", "pos.pred", "dep.gold", "dep.pred"), ud_eval),
}
"""What runs each program, the files it reads, and how it is asked."""
SOURCES = {
    "evalb": "evalb.c", "srl-eval": "srl-eval.pl", "conlleval": "conlleval.pl", "conll18_ud_eval": "conll18_ud_eval.py"
}  # fmt: skip


def missing(name: str) -> str:
    """Why a program cannot be asked here; empty where it can."""
    if not (SCORERS / SOURCES[name]).is_file():
        return f"no {SOURCES[name]} in {SCORERS}; set MTLPRUNE_SCORERS to a folder that holds it"
    tool = PROGRAMS[name][0]
    return "" if tool == "python" or shutil.which(tool) else f"there is no {tool} here"


def write_pairs(pairs: Sequence[tuple[Sentence, Sentence]], folder: Path) -> None:
    """The files of all programs, by the package's own writer."""
    gold, predicted = zip(*pairs, strict=True)
    write_scorer_files(gold, predicted, folder)


def digest(name: str, folder: Path) -> str:
    """SHA-256 over the files that a program reads."""
    return hashlib.sha256(b"\0".join((folder / file).read_bytes() for file in PROGRAMS[name][1])).hexdigest()


def recorded() -> Mapping[str, Mapping[str, Any]]:
    return json.loads(RECORDED.read_text(encoding="utf-8"))


def _run(*command: Any, input: str | None = None) -> str:
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True, input=input)
    return done.stdout


if __name__ == "__main__":
    from test_scores import random_pairs

    with tempfile.TemporaryDirectory() as place:
        write_pairs(random_pairs(random.Random(17)), Path(place) / "files")
        said = {
            name: {"files": digest(name, Path(place) / "files"), "figures": ask(Path(place) / "files", Path(place))}
            for name, (_, _, ask) in PROGRAMS.items()
        }
    RECORDED.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    print(RECORDED.read_text(encoding="utf-8"))
