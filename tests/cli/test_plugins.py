"""A decoder and an analysis in somebody's own package: they appear by its entry points alone, and change nothing."""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mtlprune as library
from mtlprune.analyses import ANALYSES
from mtlprune.config.config import digest, load_config
from mtlprune.config.decoders import DECODERS
from mtlprune.layers import LAYERS
from mtlprune.model import MultiTaskModel
from mtlprune.runs.folder import RunFolder
from mtlprune.tasks import decoder_class

DOCS = Path(__file__).parents[2] / "docs/guides"
ENTRY_POINTS = """[mtlprune.tasks]
deep = theirs.deep:Deep
pos = theirs.deep:Deep
broken = theirs.nowhere:Nothing

[mtlprune.analyses]
entropy = theirs.entropy
lost = theirs.lost
"""


def forget() -> None:
    for registry in (DECODERS, ANALYSES):
        vars(registry).pop("added", None)
        registry._read.clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "theirs"]:
        del sys.modules[name]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The code of the two pages, as a package of its own: files and metadata, as pip would lay them out."""
    for page, mine, theirs in (
        ("adding_a_task.md", "mtlprune/tasks/deep.py", "theirs/deep.py"),
        ("adding_an_analysis.md", "mtlprune/analyses/entropy/", "theirs/entropy/"),
    ):
        text = (DOCS / page).read_text(encoding="utf-8")
        for name, code in re.findall(rf"^```(?:python|yaml) ({mine}\S*)\n(.*?)^```$", text, re.M | re.S):
            path = tmp_path / name.replace(mine, theirs)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(code.replace("mtlprune.analyses.entropy", "theirs.entropy"), encoding="utf-8")
    (tmp_path / "theirs/__init__.py").touch()
    metadata = tmp_path / "theirs-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    before = digest(load_config("minilm-ewt5", ["data.path=x"])), list(DECODERS)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    forget()
    try:
        assert digest(load_config("minilm-ewt5", ["data.path=x"])) == before[0]
        assert list(DECODERS) == [*before[1], "broken", "deep"]
        yield tmp_path
    finally:
        monkeypatch.undo()
        forget()


def test_a_decoder_appears_and_trains(mtlprune, lab, installed):
    assert load_config(lab.config).tasks == tuple(LAYERS)
    assert decoder_class("pos").__module__ == "mtlprune.tasks.linear"  # ours stays, whatever is installed
    out, words = installed / "run", ("train", lab.config, "tasks=ner", "decoders.ner.type=deep", "--out")
    mtlprune(*words, out).refuses("broken = theirs.nowhere:Nothing")
    (installed / "theirs/nowhere.py").write_text("from theirs.deep import Deep\n\n\nclass Nothing(Deep):\n    pass\n")
    expected = "expected a subclass of mtlprune.tasks.base.Task with the name 'broken'"
    assert expected in mtlprune(*words, out).err
    with (installed / "theirs/nowhere.py").open("a") as file:
        file.write("    name = 'broken'\n")
    sys.modules.pop("theirs.nowhere")
    assert "decoders.ner.type: expected ner or bio, found 'deep'" in mtlprune(*words, out).err and not out.exists()
    mtlprune("train", lab.config, "tasks=pos", "decoders.pos.type=deep", "train.epochs=1", "--out", out).done()
    assert type(MultiTaskModel.load(out).tasks["pos"]).__module__ == "theirs.deep"
    assert RunFolder(out).read_predictions("dev")[0].pos


@pytest.mark.parametrize("leave", ["sys.exit()", "sys.exit(0)", "raise GeneratorExit", "raise ValueError(3)"])
def test_what_a_plugin_does_when_it_is_imported_ends_no_command_without_a_word(leave, mtlprune, lab, installed):
    words = ("train", lab.config, "tasks=ner", "decoders.ner.type=deep", "--out", installed / "run")
    (installed / "theirs/nowhere.py").write_text(f"import sys\n\n{leave}\n")
    mtlprune(*words).refuses("broken = theirs.nowhere:Nothing")
    (installed / "theirs/lost.py").write_text(f"import sys\n\n{leave}\n")
    mtlprune("analyze", "lost", lab.config, "--out", installed / "found").refuses("lost = theirs.lost")


def test_an_analysis_appears_and_runs(mtlprune, lab, installed, tiny_encoder):
    out = installed / "found"
    of = (tiny_encoder("bert"), "--corpus", lab.corpus, "--out", out)
    mtlprune("analyze", "entropy", *of).done()
    assert list(library.read_results(out)) == ["entropy"]
    mtlprune("analyze", "lost", *of).refuses("lost = theirs.lost (mtlprune.analyses) of the package theirs")
