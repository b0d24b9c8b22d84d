"""Whether figures can be read: words of 8 pixels or more on a page, and a contrast of 4.5 or more with what is behind
them; what `charts` promises, and every figure of every committed Result."""

import itertools
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import ImageColor

from mtlprune.analyses import ANALYSES
from mtlprune.analyses.analysis import find, read
from mtlprune.figures import charts
from mtlprune.reports.analyses import figures
from mtlprune.reports.pretraining import chart, read_pretrainings

ROOT = Path(__file__).parents[2]
RESULTS = sorted(path for name in ANALYSES for path in ROOT.glob(f"results/**/{name}.json"))
STAGES = ROOT / "results" / "pretraining" / "records"
NUMBER = r"(-?[\d.]+(?:e-?\d+)?)"
MOVED = re.compile(rf"translate\({NUMBER},{NUMBER}\)")
BOX = re.compile(rf"M{NUMBER},{NUMBER}h{NUMBER}v{NUMBER}h-?[\d.]+Z$")


def luminance(colour: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def channels(colour: str) -> list[float]:
    return [channel / 255 for channel in ImageColor.getrgb(colour)[:3]]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def drawn(node: ET.Element, x: float = 0, y: float = 0) -> Iterator[tuple[ET.Element, float, float]]:
    if moved := MOVED.match(node.get("transform", "")):
        x, y = x + float(moved[1]), y + float(moved[2])
    yield node, x, y
    for child in node:
        yield from drawn(child, x, y)


def faults(text: str) -> list[str]:
    """Words of an SVG that are too small on a page, or too like what is behind them."""
    width, _ = charts.drawn_size(text)
    zoom, boxes, found = min(1, charts.PAGE / width), list[tuple[float, float, float, float, str]](), []
    halos = set()
    for node, x, y in drawn(ET.fromstring(text)):
        fill = node.get("fill") or "none"
        if (box := BOX.match(node.get("d", ""))) and fill not in ("none", "transparent") and node.get("opacity") != "0":
            left, top, wide, high = map(float, box.groups())
            boxes.append((x + left, y + top, x + left + wide, y + top + high, fill))
        if not node.tag.endswith("text") or not "".join(node.itertext()).strip():
            continue
        words, size = "".join(node.itertext()), float(node.get("font-size", "11").removesuffix("px"))
        if node.get("stroke") == "#ffffff":  # a white outline of words that are drawn on it next
            halos.add((words, x, y))
            continue
        behind = [box[4] for box in boxes if box[0] <= x <= box[2] and box[1] <= y <= box[3]]
        seen = contrast(fill, behind[-1] if behind and (words, x, y) not in halos else "#ffffff")
        if size * zoom < charts.MIN_FONT_SIZE:
            found.append(f"{words}: {size * zoom:.1f} px")
        if seen < 4.5:
            found.append(f"{words}: contrast {seen:.2f}")
    return found


@pytest.mark.parametrize("low", [0, -1])
def test_numbers_in_cells_stand_out_from_every_colour(low: int) -> None:
    values = [low + (1 - low) * step / 40 for step in range(41)]
    frame = pd.DataFrame({"x": range(41), "y": "row", "value": values, "words": "0.5"})
    text = charts.svg(charts.figure(charts.cells(frame, "x", "y", (low, 1), size=(20, 18))))
    assert text.count(">0.5<") == 41
    assert [fault for fault in faults(text) if "contrast" in fault] == []


def test_panels_stand_side_by_side_only_as_far_as_words_stay_legible() -> None:
    frame = pd.DataFrame({"x": range(8), "y": "row", "value": 0.5, "words": "0.5"})
    wide = [charts.cells(frame, "x", "y", (0, 1), title=f"{place}", size=(40, 18)) for place in range(6)]
    assert faults(charts.svg(charts.figure(charts.panels(wide, 6)))) == []


def test_colours_mean_tasks_and_never_seeds() -> None:
    names = ["POS, seed 1", "POS, seed 2", "NER, seed 1 (gate)", "MTL-5, seed 1", "MTL-5, seed 2", "base"]
    colours = charts.task_colours(names)
    assert [colours[name] for name in names[:3]] == [*[charts.TASK_HUES["pos"]] * 2, charts.TASK_HUES["ner"]]
    assert colours["MTL-5, seed 1"] == colours["MTL-5, seed 2"] != colours["base"]
    assert not {*charts.task_colours(["a", "b", "c", "d", "e", "f", "g"]).values()} & {*charts.TASK_HUES.values()}
    rows = [{"name": name, "layer": layer, "value": 1.0 * layer} for name in names for layer in (1, 2)]
    frame = pd.DataFrame(rows).astype({"name": pd.CategoricalDtype(names, ordered=True)})
    look = charts.colours(frame)
    shapes = dict(zip(names, look["shape"].to_dict()["scale"]["range"], strict=True))
    assert shapes["POS, seed 1"] != shapes["POS, seed 2"]


def seen_by(colour: str, eyes: str) -> np.ndarray:
    """A colour in CIELAB as colour-blind eyes see it (matrices of Machado, Oliveira and Fernandes 2009, severity 1)."""
    linear = np.array([c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels(colour)])
    xyz = [[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]]
    x, y, z = np.array(xyz) @ np.clip(EYES[eyes] @ linear, 0, 1) / (0.9505, 1, 1.0888)
    x, y, z = (np.cbrt(one) if one > 0.008856 else 7.787 * one + 16 / 116 for one in (x, y, z))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


EYES = {
    "none": np.eye(3),
    "protanopia": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "deuteranopia": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "tritanopia": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}
STYLES = (ROOT / "mtlprune/reports/page/assets/page.css").read_text(encoding="utf-8")
LIGHT, DARK = (dict(re.findall(r"--(\w+): (#\w+)", block)) for block in STYLES.split(".light { --")[0].split("@media"))


def test_colours_of_eight_tasks_differ_for_colour_blind_readers() -> None:
    tasks = ["pos", "ner", "dep", "con", "srl", "sentence_type", "prominence", "transition"]
    for one, other in itertools.combinations(charts.task_colours(tasks).values(), 2):
        assert min(np.linalg.norm(seen_by(one, eyes) - seen_by(other, eyes)) for eyes in EYES) > 16, (one, other)


@pytest.mark.parametrize("page", [LIGHT, DARK], ids=["light", "dark"])
def test_marks_and_words_stand_out_from_the_page(page: dict[str, str]) -> None:
    """Marks have a contrast of 3 on the page and on the white of charts; words have 4.5, in commands too."""
    for hue in (*charts.TASK_HUES.values(), *charts.OTHER_HUES):
        assert min(contrast(hue, page["paper"]), contrast(hue, "#ffffff")) >= 3, hue
    for name in ("ink", "soft", "faint", "accent"):
        assert min(contrast(page[name], page["paper"]), contrast(page[name], page["wash"])) >= 4.5, name


def test_the_words_of_a_figure_name_its_series_and_what_is_significant() -> None:
    rows = [charts.Interval("POS", 1, 0.5, 1.5, True, "+1"), charts.Interval("NER", 1, 0.5, 3, False, "+1")]
    words = charts.series_in_words(charts.figure(charts.forest(rows)))
    assert words == " Shown: POS; NER. Significant: POS +1."
    frame = pd.DataFrame({"x": ["DEP", "CON"], "y": "POS", "value": [1.0, -2.0]})
    stars, outlined = pd.Series([False, True]), pd.Series([True, False])
    words = charts.series_in_words(charts.figure(charts.matrix(frame, "x", "y", stars, outlined, "points")))
    assert words == " Shown: points; DEP; CON; POS. Significant: CON POS −2.00*."


@pytest.mark.slow
@pytest.mark.parametrize("path", RESULTS, ids=lambda path: str(path.relative_to(ROOT).parent))
def test_every_figure_of_a_committed_result_can_be_read(path: Path) -> None:
    shown = figures(find(path.stem), read(path.parent, path.stem))
    assert {name: bad for name, one in shown.items() if (bad := faults(charts.svg(one.spec)))} == {}
    assert all("Shown: " in one.alt for one in shown.values())


@pytest.mark.slow
def test_the_curves_of_committed_pretrainings_can_be_read() -> None:
    arms = ["base-1", "sas-plus-1", "sas-minus-1", "released-early-1", "released-during-1", "released-end-1"]
    assert faults(charts.svg(chart(read_pretrainings([STAGES / arm for arm in arms])))) == []
