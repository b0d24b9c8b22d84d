"""What README.md promises is true: its commands run, its paths exist, its Python works, its licence notes hold.

Every line of its code blocks is accounted for:

- lines that install (``pip install``): run by .ci/run, word for word, in a fresh environment; compared here. The tests
  they end in are this session and .ci/run's; ``mtlprune quickstart`` is run in full by .ci/run, in small by tests/cli.
- ``mtlprune ...`` and ``echo ...``: run here, in order, in an empty folder, with a small generated corpus in the place
  of the real ones and a tiny encoder in that of MiniLM or BERT.
- ``python data_scripts/...``: their options are parsed here; the scripts run in tests/test_data_scripts.py.
- Python: run here on the run that those commands trained.
- ``. .venv/bin/activate``: the commands after it name no environment.
"""

import configparser
import json
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtlprune.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CI = (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
SHELL = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines() if line]
INSTALLS = [line for line in SHELL if "pip install" in line]
SCRIPTS = [line for line in SHELL if line.startswith("python data_scripts/")]
ACTIVATE = ". .venv/bin/activate"
COMMANDS = [line for line in SHELL if line.startswith(("mtlprune ", "echo "))]


def test_every_line_is_accounted_for() -> None:
    assert {kind for kind, _ in BLOCKS} == {"sh", "python", "bibtex", "text"}
    assert sorted(SHELL) == sorted([*INSTALLS, ACTIVATE, *SCRIPTS, *COMMANDS])
    assert len(INSTALLS) == 2 and SHELL[:2] == [INSTALLS[0], ACTIVATE]


def test_it_is_short() -> None:
    """At most 110 lines and 950 words; what has no letter or digit, and the target of a link, is no word."""
    words = [word for word in re.sub(r"\]\(.*?\)", "]", README).split() if re.search(r"\w", word)]
    assert len(README.splitlines()) <= 110 and len(words) <= 950, (len(README.splitlines()), len(words))


def test_the_installs_stand_in_ci_word_for_word() -> None:
    assert f"{INSTALLS[0]} || exit 1" in CI and INSTALLS[0].endswith(" && .venv/bin/mtlprune quickstart")
    install, _, tests = INSTALLS[1].rpartition(" && ")
    assert f"{install} || exit 1" in CI
    everything = tests.removesuffix(' -m "not slow"')
    assert everything != tests
    assert any(line.startswith(f"{everything} ") and " -m " not in line.removeprefix(everything) for line in CI)


def test_the_torch_named_is_the_newest_allowed() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    bound = re.search(r"^torch>=[\d.]+,<=([\d.]+)$", setup["options"]["install_requires"], re.MULTILINE)
    assert bound is not None
    assert re.findall(r"pip install torch==([\d.]+)", README) == [bound[1]]
    for name in (".github/CONTRIBUTING.md", ".github/workflows/release.yml", ".devcontainer/Dockerfile"):
        assert set(re.findall(r"torch==([\d.]+)", (ROOT / name).read_text(encoding="utf-8"))) == {bound[1]}, name


def test_the_workflow_of_pages_installs_the_extra_docs() -> None:
    """It installs no torch, and so not the package; its requirements are those of setup.cfg all the same."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    workflow = (ROOT / ".github/workflows/docs.yml").read_text(encoding="utf-8")
    assert re.findall(r'pip install "(.*)"', workflow) == setup["options.extras_require"]["docs"].split()


@pytest.mark.parametrize("line", SCRIPTS)
def test_data_scripts_know_the_options(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, script, *arguments = shlex.split(line)
    monkeypatch.syspath_prepend(ROOT / "data_scripts")  # as Python does for a script that it runs
    options = runpy.run_path(str(ROOT / script))["_parse"](arguments)
    assert options.out == Path("data") / Path(script).stem


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Callable[[str], Path]) -> Path:
    """The folder in which the README's commands were run."""
    from mtlprune.corpora.export import format_conllu
    from mtlprune.corpora.grammar import build_grammar
    from mtlprune.corpora.store import save_corpus

    folder = tmp_path_factory.mktemp("readme")
    for name in ("ewt5", "ontonotes5"):
        splits = build_grammar(train=12, dev=4, test=4, seed=1)
        save_corpus(splits, folder / "data" / name, name="grammar", licence="Apache-2.0", sources={})
    for split, sentences in splits.items():
        lines = "\n\n".join(format_conllu(sentence, in_upos=True) for sentence in sentences)
        (folder / f"{split}.conllu").write_text(f"{lines}\n\n", encoding="utf-8")
    (folder / "results").symlink_to(ROOT / "results")
    stand_ins = [f"encoder.name={tiny_encoder('bert')}", "train.epochs=1", "train.threads=1", "train.device=cpu"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in COMMANDS:
            run(line, stand_ins, patch)
    return folder


def run(line: str, stand_ins: list[str], patch: pytest.MonkeyPatch) -> None:
    """Run a line as a shell would; trainings get the stand-ins as their last settings."""
    if line.startswith("echo "):
        subprocess.run(line, shell=True, check=True)
        return
    arguments = shlex.split(line)
    if "pruning.keep=36" in arguments:  # the tiny encoder has not so many heads
        stand_ins = [*stand_ins, "pruning.keep=2"]
    patch.setattr(sys, "argv", [*arguments, *(stand_ins if arguments[1] in ("train", "compare") else [])])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0, line


@pytest.mark.slow
def test_commands_leave_what_the_readme_says(place: Path) -> None:
    assert {path.name for path in (place / "runs/mtl-5/scores").iterdir()} == {"dev.json", "test.json"}
    for path in ("claims/maps/maps.json", "claims/claims.md", "pruned/manifest.json"):
        assert (place / path).is_file(), path
    assert (place / "mine/report.html").is_file() and (place / "mine/table.md").is_file()


@pytest.mark.slow
def test_python_runs(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    [code] = [text for kind, text in BLOCKS if kind == "python"]
    monkeypatch.chdir(place)
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert " ".join(re.findall(r"\('(\S+)', ", printed)[:9]) == "The lawyer who met Jordan lives in Paris ."


@pytest.mark.slow
def test_python_of_the_card_of_runs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = (ROOT / "docs/reference/runs.md").read_text(encoding="utf-8")
    [code] = re.findall(r"^```python\n(.*?)^```$", card, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(place)
    head, *lines = code.strip().split("\n\n")
    scope: dict[str, Any] = {}
    exec(compile(head, "runs.md", "exec"), scope)
    run, *shown = "\n\n".join(lines).splitlines()
    exec(run, scope)
    las, arcs, sentences = (eval(line, scope) for line in shown)
    assert 0 <= las <= 100 and las == json.loads((place / "runs/mtl-5/scores/dev.json").read_text())["dep"]["las"]
    sentences = list(sentences)
    assert len(arcs) == len(sentences) > 0
    assert all(len(one.dep.heads) == len(one) >= right for one, right in zip(sentences, arcs, strict=True))


@pytest.mark.slow
def test_gpl_packages_are_never_imported() -> None:
    code = (
        "import importlib, pkgutil, sys, mtlprune\n"
        "for module in pkgutil.walk_packages(mtlprune.__path__, 'mtlprune.'):\n"
        "    importlib.import_module(module.name)\n"
        "import torch\n"
        "from mtlprune.tasks.inference import mst\n"
        "chain = torch.tensor([[[0, 0, 0, 0], [0, 0, 9, 1], [0, 9, 0, 1], [9, 1, 1, 0]]]).float()\n"
        "mst(chain, torch.tensor([3]), projective=True)\n"  # a cycle, so that supar's Eisner decodes
        "assert 'supar' in sys.modules\n"
        "print(sorted({'stanza', 'udtools', 'udapi'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
