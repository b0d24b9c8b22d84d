"""Charts and maps of gates: colours, what is not known, widths of paper, who is shown where; pictures by pillow."""

import io
import re

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from run_folders import claim, write_run

from mtlprune.figures import charts, maps
from mtlprune.figures.pictures import EDGE, FRAME_MS, LAST_FRAME_MS, SIDE, bare, gif
from mtlprune.runs.claims import Claim, group, load_claims
from mtlprune.runs.results import head_rows

NAMES = ["first", "second <b>"]


def frame(parts: list[pd.DataFrame]) -> pd.DataFrame:
    rows = pd.concat([part.assign(name=name) for name, part in zip(NAMES, parts, strict=True)], ignore_index=True)
    return rows.assign(name=pd.Categorical(rows["name"], NAMES))


CELL = f"h{charts.CELL}v{charts.CELL}h-{charts.CELL}Z"
GRIDS = np.array([[0.0, 1.0, np.nan], [-1.0, 0.5, 1e9]]), np.zeros((2, 3))
MAPS = frame([head_rows({"value": grid}) for grid in GRIDS])


def test_a_map_has_a_cell_a_head_and_names_stay_words():
    text = charts.svg(charts.figure(charts.head_map(MAPS, "value", limit=1.0, diverging=True), "A map"))
    assert text.count(CELL) == 12
    assert "second &lt;b&gt;" in text and "<b>" not in text
    rows = pd.DataFrame({"x": ["a", "b"] * 2, "y": ["if", "if", "c", "c"], "value": [1.0, -2.0, np.nan, 0.0]})
    rows["words"] = ["one", "two", "", "none"]
    text = charts.svg(charts.figure(charts.cells(rows, "x", "y", (-2, 2), size=(15, 15)), "title"))
    assert text.count(f'fill="{charts.PALE}"') == 1 and ">one<" in text  # what is not known


def curves(rows: int = 7) -> pd.DataFrame:
    return frame([pd.DataFrame({"layer": range(rows), "value": np.arange(rows) * 0.1})] * 2)


def test_a_paper_gets_its_width_its_size_of_words_or_a_refusal():
    width, three = 16.0, [charts.lines(curves(), "layer", "value", title=str(k)) for k in range(3)]
    spec = charts.figure(charts.panels(three, 3), "Three", ["Words."])
    text = charts.svg(spec, charts.Style(width, 8, title=False))
    found = re.search(r'<svg [^>]*width="([\d.]+)"[^>]*viewBox="0 0 ([\d.]+)', text)
    assert float(found[1]) == pytest.approx(width * charts.POINT, abs=0.1)
    (drawn,) = {*re.findall(r'font-size="([0-9.]+)px"[^>]*>value<', text)}
    assert float(drawn) * float(found[1]) / float(found[2]) == pytest.approx(8, rel=0.25)
    assert "Three" not in text and "Three" in charts.svg(spec)
    assert charts.render(spec, "pdf", charts.Style(width, 8)).startswith(b"%PDF")
    with pytest.raises(charts.ChartError, match=r"--width 1.5: with words of 8 points"):
        charts.render(spec, "pdf", charts.Style(1.5, 8))


def test_a_forest_shows_a_dozen_and_lines_have_no_limit_of_rows():
    rows = [charts.Interval(f"row {k}", k, k - 1, k + 1, True, f"{k} told") for k in range(30)]
    rows[1] = charts.Interval("row 1", 1, np.nan, np.nan, False, "1 told")
    spec = charts.figure(charts.forest(rows, x_title="points"))
    assert {"is_significant", "low"} <= {*re.findall(r"datum\.(\w+)", str(spec))} <= {*charts.Interval._fields}
    text = charts.svg(spec)
    assert re.findall(r">(row \d+)<", text) == [f"row {k}" for k in range(charts.MAX_FOREST_ROWS)]
    text = charts.svg(charts.figure(charts.lines(curves(3000), "layer", "value"), "Many"))
    assert len(re.findall(r'd="M[0-9.]+,0A', text)) >= 6000


def test_the_axis_of_a_forest_has_negative_numbers_only_for_negative_values():
    for low in (0, -3):
        rows = [charts.Interval(f"row {k}", 8 * k, 8 * k + low, 8 * k + 5, True, f"{k} told") for k in range(3)]
        text = charts.svg(charts.figure(charts.forest(rows, x_title="heads")))
        assert bool(re.findall(r">−\d+<", text)) == (low < 0)


def test_known_gates_have_these_colours():
    known = [np.array([[1, 0, 0, 0.25, 0.5]]), np.array([[1, 0, 1, 0.25, 0]]), np.array([[1, 0, 1, 0.25, 1]])]
    expected = [(0, 0, 0), (255, 255, 255), (255, 0, 0), (191, 191, 191), (128, 255, 0)]
    assert [tuple(colour) for colour in maps.mixed(known, maps.corners(3, "rgb"))[0].tolist()] == expected
    assert maps.opacity(np.array([[0, 0.2, 1]]))[0].tolist() == [[255] * 3, [204] * 3, [0] * 3]
    half = [tuple(round((255 + end) / 2) for end in ends) for ends in (maps.NEGATIVE, maps.POSITIVE)]
    found = maps.diverging(np.array([-1, -0.5, 0, 0.5, 1])).tolist()
    assert list(map(tuple, found)) == [maps.NEGATIVE, half[0], maps.WHITE, half[1], maps.POSITIVE]
    shown = maps.GateMap("run", "name", ("run",), "POS", ("<b>&",), "Gate", {"gate": known[0]})
    assert "&lt;b&gt;&amp;" in charts.svg(shown.spec())


def test_readers_without_colour_vision_tell_all_subsets_of_seeds_apart():
    """WCAG's contrast of relative luminances."""
    colours = maps.corners(3, "colourblind").reshape(8, 3) / 255
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    luminances = np.sort(linear @ (0.2126, 0.7152, 0.0722)) + 0.05
    assert (luminances[1:] / luminances[:-1] > 1.2).all()


def made(claims: list[Claim], palette: str = "rgb") -> dict[str, maps.GateMap]:
    return {one.name: one for one in maps.claim_maps(group(claims), palette)}


def test_joint_runs_are_no_tasks_and_too_few_or_many_seeds_are_said():
    one = np.ones((1, 1))
    shown = made([claim("POS", 1, one), claim("DEP", 1, one), claim("MTL-5", 1, 0 * one), claim("POS+DEP", 1, 0 * one)])
    assert shown["grey-all-tasks"].numbers["gate"].item() == 1
    assert shown["grey-MTL-5"].numbers["gate"].item() == 0
    assert shown["difference-POS-MTL-5"].numbers["gate"].item() == 1
    assert "grey-all-tasks" not in made([claim("POS", 1, one), claim("MTL-5", 1, one)])
    many = [claim("POS", seed, one) for seed in (1, 2, 3, 4, 5)]
    assert list(made(many)["rgb-POS"].numbers) == ["seed 1", "seed 2", "seed 3"]
    assert "there is no colour left for 4 and 5" in maps.left_out(group(many))[0]
    assert "rgb-POS" not in made(many[:1]) and "only one seed" in maps.left_out(group(many[:1]))[0]


def centres(picture: Image.Image, layers: int, heads: int) -> np.ndarray:
    pixels = np.asarray(picture.convert("RGB"))
    rows, columns = (EDGE + SIDE // 2 + SIDE * np.arange(number) for number in (layers, heads))
    return pixels[np.ix_(rows, columns)]


def test_seeds_are_channels():
    """Seed 1 in red, 2 in green, 3 in blue, each 255 · (1 − z), as in Figure 1a of He and Choi (2021)."""
    gates = np.random.default_rng(0).random((3, 3, 5))
    drawn = centres(bare(maps.mixed(list(gates), maps.corners(3, "rgb"))), 3, 5)
    assert np.abs(drawn - 255 * (1 - np.moveaxis(gates, 0, -1))).max() <= 1


@pytest.fixture
def trained(tmp_path):
    """The claim of a run of three evaluations."""
    [found] = load_claims([write_run(tmp_path / "pos", ["pos"], np.eye(3, 4), seed=1).path])
    return found


def test_a_gif_has_a_frame_an_evaluation(trained):
    film = Image.open(io.BytesIO(gif(trained)))
    assert film.n_frames == len({gates.tobytes() + bytes([step]) for step, gates in trained.history}) == 3
    for number, (_, gates) in enumerate(trained.history):
        film.seek(number)
        assert film.info["duration"] == (FRAME_MS if number < 2 else LAST_FRAME_MS)
        assert np.abs(centres(film, 3, 4)[..., 0] - 255.0 * (1 - gates)).max() <= 4  # 64 greys


def test_small_multiples_are_spread_over_the_evaluations(trained):
    history = [(step, np.full((3, 4), step / 40)) for step in range(1, 41)]
    object.__setattr__(trained, "history", history)
    numbers = maps.training_map(trained).numbers
    assert len(numbers) == 12
    first, *_, last = numbers
    assert first.startswith("update 1:") and last == "update 40: 12 of 12 open"


def test_the_command_writes_and_lists_them(mtlprune, trained, tmp_path):
    mtlprune("claims", trained.run, "--animate").refuses(
        "--animate draws maps into a folder, and none is named; give --out DIR"
    )
    out = tmp_path / "out"
    mtlprune("claims", trained.run, "--animate", "--bare", "--format", "png", "--permutations", 9, "--out", out).done()
    names = {path.name for path in (out / "maps").iterdir()}
    assert {"training-POS-seed1.gif", "training-POS-seed1.png", "bare-grey-POS.png"} <= names
    assert all(name in (out / "maps" / "maps.json").read_text() for name in names - {"maps.json"})
