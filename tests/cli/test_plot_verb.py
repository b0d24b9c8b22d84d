"""mtlprune plot probes: what it writes, what it says, and what it refuses before it writes anything."""

from __future__ import annotations

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


def test_it_draws_and_tabulates_everything_and_lists_it(mtlprune, results: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "plots"
    answer = mtlprune("plot", "probes", results, "--out", out, "--against", "paper", "--scale", 1)
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


def test_options_change_what_is_drawn_and_a_second_call_changes_nothing(
    mtlprune, results: Path, tmp_path: Path
) -> None:
    def drawn(*options: object) -> dict[str, bytes]:
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        answer = mtlprune("plot", "probes", results, "--out", out, "--maps", "none", "--scale", 1, *options)
        assert answer.code == 0, answer.err
        return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*.*")}

    plain, raw, released = drawn(), drawn("--raw"), drawn("--mode", "as-released")
    assert drawn() == plain
    assert raw["layers-dep.svg"] != plain["layers-dep.svg"] and b"best control (points)" not in raw["layers-dep.svg"]
    assert raw["tables.md"] == plain["tables.md"] and b"mode as-released" in released["tables.md"]
    assert released["differences-dep.png"] != plain["differences-dep.png"]
    assert not any(name.startswith("maps") for name in plain)
    assert b"STL-DEP" in drawn("--others")["tables.md"] and b"STL-DEP" not in plain["tables.md"]
    chosen = drawn("--maps", "STL,MTL-5", "--format", "svg")
    assert {"heads-dep-STL.svg", "heads-ner-MTL-5.svg"} <= chosen.keys() and "heads-dep-pretrained.svg" not in chosen


def test_mistakes_are_sentences_and_nothing_is_written(mtlprune, results: Path, tmp_path: Path) -> None:
    sound = write_probes(tmp_path / "sound", ENCODERS[:1], {"ner": ("ORG",)}, (3, 4), ("sound",))
    file, out = tmp_path / "file", tmp_path / "out"
    file.write_text("keep me")
    for arguments, said in [
        ((tmp_path / "nowhere", "--out", out), "holds no probe results"),
        ((file, "--out", out), "is a file"),
        ((sound, "--out", out, "--mode", "as-released"), "no results of the mode as-released (there: sound)"),
        ((results, "--out", out, "--mode", "loud"), "--mode: expected sound or as-released, found 'loud'"),
        ((results, "--out", out, "--against", "folklore"), "--against: expected paper"),
        ((results, "--out", out, "--maps", "MTL-9"), "--maps: found 'MTL-9'; expected all, none"),
        ((results, "--out", out, "--format", "gif"), "--format: expected some of png, svg, pdf"),
        ((results, "--out", out, "--scale", 0), "--scale: expected a number from 1 to 8"),
        ((results, "--out", file / "below"), "name a folder that can be made"),
        ((results, sound, "--out", out), "hold different results of pretrained"),
    ]:
        answer = mtlprune("plot", "probes", *arguments)
        assert answer.code == 2 and said in answer.err and answer.err.count("\n") == 1, (said, answer.err)
        assert not out.exists() and file.read_text() == "keep me" and not answer.out
