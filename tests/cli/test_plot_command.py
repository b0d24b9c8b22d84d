"""mtlprune probe --plot: what it writes, what it says, and what it refuses before it writes anything."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from PIL import Image
from probe_results import write_probes

LABELS = {"ner": ("PERSON", "ORG", "LAW"), "dep": ("det", "nsubj", "acl:relcl", "root", "csubj")}
ENCODERS = (("pretrained", 0), ("DEP", 1), ("DEP", 2), ("MTL-5", 1))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_probes(tmp_path_factory.mktemp("probes") / "p", ENCODERS, LABELS, (3, 4))


def test_it_draws_and_tabulates_everything_and_lists_it(mtlprune, results, tmp_path):
    out = tmp_path / "deep" / "plots"
    answer = mtlprune("probe", "--plot", results, "--out", out, "--against", "paper", "--scale", 1)
    assert answer.code == 0, answer.err
    listed = json.loads((out / "plots.json").read_text())
    names = {name for picture in listed["pictures"] for name in picture["files"]}
    assert {f"{stem}.png" for stem in ("layers-ner", "layers-dep", "differences-dep", "heads-dep-pretrained")} <= names
    assert "maps/dep-pretrained-03-acl_relcl.svg" in names and "maps/dep-pretrained-05-root.png" in names
    assert "differences-ner.png" not in names and "No STL run is among the results of NER" in answer.out
    written = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert written == names | {"plots.json", "tables.md", "tables.tex"}
    for name in names:
        if name.endswith(".svg"):
            ElementTree.parse(out / name)
        else:
            with Image.open(out / name) as picture:
                picture.verify()
    assert listed["mode"] == "sound" and f"{len(names)} pictures" in answer.out
    page = (out / "tables.md").read_text()
    assert "DEP: beside He and Choi (2021), BERT" in page and "pretrained, paper†" in page and "**" in page
    assert r"\begin{tabular}" in (out / "tables.tex").read_text()


def test_mistakes_are_sentences_and_nothing_is_written(mtlprune, results, tmp_path):
    sound = write_probes(tmp_path / "sound", ENCODERS[:1], {"ner": ("ORG",)}, (3, 4), ("sound",))
    file, out = tmp_path / "file", tmp_path / "out"
    file.write_text("keep me")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").touch()
    for arguments, said in [
        ((tmp_path / "nowhere", "--out", out), "probes.json is missing"),
        ((tmp_path / "run", "--out", out), "run is a run; name the folder of its results, that `mtlprune probe` made"),
        ((sound, "--out", out, "--mode", "as-released"), "no results of the mode as-released (there: sound)"),
        ((results, "--out", out, "--against", "folklore"), "--against: expected paper"),
        ((results, "--out", out, "--maps", "MTL-9"), "--maps: found 'MTL-9'; expected all, none"),
        ((results, sound, "--out", out), "hold different results of pretrained"),
    ]:
        answer = mtlprune("probe", "--plot", *arguments)
        answer.refuses(said)
        assert not out.exists() and file.read_text() == "keep me" and not answer.out
