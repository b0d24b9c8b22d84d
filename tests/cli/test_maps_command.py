"""mtlprune maps: what it writes for run folders with gates, and what it refuses before it writes anything."""

import io
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gated_runs import write_run, write_selection
from PIL import Image

from mtlprune.claimed_heads import load_claims
from mtlprune.reports.page.gates import ClaimSet, part
from mtlprune.runs import RunFolder

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write a run folder with gates, three evaluations, the second of which is best."""

    def run(tasks: str, seed: int, encoder: str = "minilm", own: bool = False) -> Path:
        names, random = tasks.split("+"), np.random.default_rng(seed + len(tasks))
        sets = {name: random.uniform(0, 1, (3, 4)).round(3) for name in (names if own else ["shared"])}
        return write_run(tmp_path / f"{tasks}-{seed}-{encoder}", names, sets, seed=seed, encoder=encoder).path

    return run


def gates(folder: Path, line: int = 1) -> list[list[float]]:
    return json.loads((folder / "gates.jsonl").read_text().splitlines()[line])["gates"]["shared"]


def test_it_draws_runs_seeds_means_tasks_differences_and_films(mtlprune, make, tmp_path):
    runs = [make(task, seed) for task in ("pos", "dep") for seed in (1, 2, 3)] + [make("pos+ner+dep", 1)]
    out = tmp_path / "deep" / "maps"
    answer = mtlprune("maps", *runs, "--out", out, "--animate", "--scale", 1)
    assert answer.code == 0, answer.err
    stems = {f"run-{task}-seed{seed}" for task in ("POS", "DEP") for seed in (1, 2, 3)} | {"run-MTL-3-seed1"}
    stems |= {"colourblind-POS", "colourblind-DEP", "grey-POS", "grey-DEP", "grey-MTL-3", "grey-all-tasks"}
    stems |= {"difference-POS-DEP", "difference-POS-MTL-3", "difference-DEP-MTL-3"}
    animations = {f"training-{stem.removeprefix('run-')}.gif" for stem in stems if stem.startswith("run-")}
    written = {path.name for path in out.iterdir()}
    assert written == {f"{stem}.{ending}" for stem in stems for ending in ("png", "svg")} | animations | {"maps.json"}
    assert "MTL-3 has one seed only" in answer.out and f"{2 * len(stems) + len(animations)} pictures" in answer.out
    for stem in stems:
        ElementTree.parse(out / f"{stem}.svg")
        with Image.open(out / f"{stem}.png") as picture:
            picture.verify()
    with Image.open(out / "training-POS-seed1.gif") as animation:
        assert animation.n_frames == 3


def test_the_list_holds_the_numbers_drawn(mtlprune, make, tmp_path):
    runs = [make("pos", seed) for seed in (3, 1)] + [make("dep", 1)]
    assert mtlprune("maps", *runs, "--out", tmp_path / "m", "--format", "svg", "--animate").code == 0
    contents = json.loads((tmp_path / "m" / "maps.json").read_text())
    assert (contents["encoder"], contents["layers"], contents["heads"]) == ("minilm", 3, 4)
    assert contents["palette"] == "colourblind"
    assert any("one seed only" in note for note in contents["notes"])
    entries = {entry["files"][0]: entry for entry in contents["maps"]}
    assert {name for entry in contents["maps"] for name in entry["files"]} | {"maps.json"} == {
        path.name for path in (tmp_path / "m").iterdir()
    }
    assert entries["run-POS-seed3.svg"]["numbers"] == {"run": gates(runs[0])}  # of the best epoch, not the last
    assert entries["colourblind-POS.svg"]["numbers"] == {"seed 1": gates(runs[1]), "seed 3": gates(runs[0])}
    mean = (np.array(gates(runs[0])) + gates(runs[1])) / 2
    assert np.allclose(entries["grey-POS.svg"]["numbers"]["mean"], mean)
    assert np.allclose(entries["grey-all-tasks.svg"]["numbers"]["tasks"], (mean + gates(runs[2])) / 2)
    assert np.allclose(entries["difference-POS-DEP.svg"]["numbers"]["difference"], mean - gates(runs[2]))
    assert entries["grey-POS.svg"]["runs"] == [str(runs[1]), str(runs[0])]
    animation = entries["training-DEP-seed1.gif"]
    assert animation["steps"] == [10, 20, 30] and animation["numbers"] == [gates(runs[2], line) for line in range(3)]


def test_a_gate_set_a_task_has_maps_of_its_own(mtlprune, make, tmp_path):
    runs = [make("pos+ner+dep", 1, own=True), make("pos", 1)]
    assert mtlprune("maps", *runs, "--out", tmp_path / "m", "--format", "png").code == 0
    names = {path.stem for path in (tmp_path / "m").glob("*.png")}
    assert {"run-MTL-3_POS-seed1", "difference-POS-MTL-3_POS", "difference-MTL-3_POS-MTL-3_NER"} <= names
    assert "difference-POS-MTL-3_NER" not in names


def test_frequencies_over_halves_have_a_map_and_a_place_on_the_page(mtlprune, make, tmp_path):
    runs = [make("pos", 1), make("pos", 2)]
    shares = [[0.0, 0.1, 0.9, 1.0]] * 3
    write_selection(RunFolder(runs[1]), shares)
    assert mtlprune("maps", *runs, "--out", tmp_path / "m", "--format", "svg").code == 0
    entries = {entry["files"][0]: entry for entry in json.loads((tmp_path / "m" / "maps.json").read_text())["maps"]}
    assert entries["frequency-POS-seed2.svg"]["numbers"] == {"frequency": shares}
    assert "frequency-POS-seed1.svg" not in entries
    parts = [part([ClaimSet("", tuple(load_claims(some)))], []) for some in (runs, runs[:1])]
    assert [len(one.holds["sets"][0][1]) for one in parts if one] == [2, 1]


@pytest.mark.slow
def test_values_palettes_and_formats_change_the_pictures(mtlprune, make, tmp_path):
    runs = [make("pos", seed) for seed in (1, 2, 3)]

    def drawn(*options: object) -> dict[str, bytes]:
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        assert mtlprune("maps", *runs, "--out", out, *options).code == 0
        return {path.name: path.read_bytes() for path in out.iterdir()}

    usual, values = drawn("--format", "svg"), drawn("--format", "svg", "--values")
    numbers = [re.search(rb">\.\d\d<", made["run-POS-seed1.svg"]) for made in (usual, values)]
    assert numbers[0] is None and numbers[1] is not None
    rgb = drawn("--palette", "rgb", "--format", "plain,pdf", "--width", 8, "--no-title")
    assert "colourblind-POS.png" not in rgb and rgb["rgb-POS.pdf"].startswith(b"%PDF")
    with Image.open(io.BytesIO(rgb["rgb-POS-plain.png"])) as picture:
        red = np.array(picture)[8::16, 8::16, 0]
    assert np.allclose(red, np.rint(255 * (1 - np.array(gates(runs[0])))))


def test_mistakes_are_sentences_and_nothing_is_written(mtlprune, make, tmp_path):
    pos, other = make("pos", 1), make("pos", 2, encoder="other")
    bare, file, out = make("dep", 1), tmp_path / "file", tmp_path / "out"
    (bare / "gates.jsonl").unlink()
    file.write_text("keep me")
    for arguments, said in [
        ((bare, "--out", out), "run without gates"),
        ((pos, other, "--out", out), "different encoders"),
        ((pos, "--out", file), "is a file"),
        ((pos, "--out", file / "below"), "cannot be written"),
        ((pos, "--out", out, "--format", "gif"), "--format: expected some of png, svg, pdf, plain, found 'gif'"),
    ]:
        answer = mtlprune("maps", *arguments)
        answer.refuses(said)
        assert not out.exists() and file.read_text() == "keep me" and not answer.out
