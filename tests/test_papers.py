"""docs/papers.yaml: each command of a row can be run, each result is there, and no row goes without a word.

Commands are resolved as a dry run would, on a small corpus in the place of those that a reader builds.
"""

import re
import runpy
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from command_line import parsed
from tiny import make_lab

from mtlprune.analyses.analysis import find
from mtlprune.cli import analyze
from mtlprune.config import tree_of
from mtlprune.config.config import load_config
from mtlprune.pretraining.config import load_pretraining
from mtlprune.sweeps.cells import resolve
from mtlprune.sweeps.specification import read_specification

ROOT = Path(__file__).parents[1]
PAPERS = yaml.safe_load((ROOT / "docs" / "papers.yaml").read_text(encoding="utf-8"))
ROWS = {row["id"]: row for paper in PAPERS for row in paper["rows"]}
several = runpy.run_path(str(ROOT / "docs" / "generate.py"))["several"]
COMMANDS = [(name, command) for name, row in ROWS.items() for command in several(row.get("command"))]

IDS = re.findall(
    r"\S+",
    """
    stem-scores stem-scores-ontonotes stem-sampling stem-pruning stem-lambda stem-speed stem-map-rgb stem-map-grey
    stem-process stem-correlation stem-maps-second-encoder stem-probe-tables stem-probe-published stem-probe-layers
    stem-probe-differences stem-probe-distant stem-sets-per-task stem-random-encoder stem-remedies
    smooth-cosine smooth-bound smooth-corpora smooth-graph smooth-sharing smooth-fusion smooth-fused smooth-weights
    dissect-sum dissect-importance dissect-correlations dissect-linearity dissect-masked-words dissect-senses
    dissect-ner dissect-agreement
    drops-curves drops-capability drops-penalty drops-release drops-uas drops-blimp drops-twonn drops-glue
    cone-projection cone-spectrum cone-static cone-frequency cone-never cone-direction cone-cosreg cone-translation
""",
)
"""Every row that there has ever been. Add the id of a new row; never take one away, even where its row is gone."""


def gone(changelog: str) -> str:
    """What the changelog says under *Gone from a source paper*, of all versions."""
    pattern = r"^\*\*Gone from a source paper\*\*\n(.*?)(?=^\*\*|^## |\Z)"
    parts = re.findall(pattern, changelog, re.MULTILINE | re.DOTALL)
    return "\n".join(parts)


def test_no_row_goes_without_a_word() -> None:
    named = gone((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert len(ROWS) == sum(len(paper["rows"]) for paper in PAPERS), "two rows have the same id"
    assert set(ROWS) <= set(IDS), "add new rows to IDS"
    without = [name for name in IDS if name not in ROWS and f"`{name}`" not in named]
    assert not without, f"name the rows that went under *Gone from a source paper*: {', '.join(without)}"
    assert gone("**Gone from a source paper**\n\n- `a`: why\n\n**Gone**\n\n- `b`\n").strip() == "- `a`: why"


@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_a_command_and_a_result_or_says_why_not(name: str) -> None:
    row = ROWS[name]
    assert set(row) <= {"id", "what", "command", "page", "result", "differs", "missing"}
    if "missing" in row:
        assert not {"command", "result", "differs"} & set(row) and row["missing"]
        return
    assert {"command", "page", "differs"} <= set(row)
    for path in several(row.get("result")):
        assert path.startswith("results/") and (ROOT / path).exists(), path
    assert "result" in row or re.search(r"^We did not run|commit no result", row["differs"]), "say why no result exists"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Callable[[str], Path]) -> Path:
    folder = tmp_path_factory.mktemp("papers")
    make_lab(folder, tiny_encoder("bert"), (24, 8, 8))
    return folder / "corpus"


def committed(words: list[str]) -> Iterator[str]:
    """Paths of a command that lead into the repository; those below runs/ and data/ are made by a reader."""
    for word in words:
        path = word.partition("=")[2] if re.match("[a-z_]+=", word) else word
        if path.startswith(("results/", "experiments/")):
            yield path.partition(":")[0]


def dry_run(command: str, corpus: Path, folder: Path) -> None:
    """Resolve a command as far as it goes without the corpora and runs that it names. Raises what is wrong with it."""
    program, kind, *words = shlex.split(command)
    assert program == "mtlprune"
    given = parsed([kind, *words])
    for path in committed(words):
        assert (ROOT / path).exists(), path
    if kind == "train":
        overrides = given["overrides"] or []
        data = tree_of(given["config"], overrides)["data"]
        (load_pretraining if "corpora" in data else load_config)(given["config"], overrides)
    elif kind == "sweep":
        for path in [word for word in words if word.endswith(".yaml")]:
            assert resolve(read_specification(Path(path)), folder / "sweep", [f"data.path={corpus}"]).cells
    elif kind == "analyze" and given["name"] != "show":
        analysis = find(given["name"])
        settings = [word for word in given["words"] if analyze.SETTING.match(word)]
        analyze._options(analysis, settings)
        options = {name for name in ("corpus", "split", "sentences", "claims") if given[name]}
        assert options <= set(analyze.options_taken(analysis)), options


@pytest.mark.parametrize(("row", "command"), COMMANDS, ids=[f"{row}-{n}" for n, (row, _) in enumerate(COMMANDS)])
def test_every_command_of_a_row_can_be_run(
    row: str, command: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    dry_run(command, corpus, tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        "mtlprune train pruning-minilm-ewt5 encoder.fusion=none encoder.fusion_layers=1 --out runs/x",
        "mtlprune train experiments/syntax/base.yaml watch.nothing=1 --out runs/x",
        "mtlprune sweep experiments/no-such.yaml",
        "mtlprune analyze smoothing minilm nothing=1 --corpus data/ewt5",
        "mtlprune analyze no-such minilm --corpus data/ewt5",
        "mtlprune table results/no-such/records --out x.md",
        "mtlprune claims runs/x --no-such-option",
        "mtlprune no-such runs/x",
    ],
)
def test_a_command_that_cannot_be_run_is_found(
    command: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(Exception, match=r".") as caught:
        dry_run(command, corpus, tmp_path)
    assert not isinstance(caught.value, AttributeError | NameError | TypeError)
