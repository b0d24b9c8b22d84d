"""Maps of heads: exact colours at cells' centres, the same places in PNG and SVG, any size, and who is shown where."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mtlprune.analyses.claims.claimants import group
from mtlprune.analyses.claims.show.maps import claim_figures, claim_films, comparable, encoder_line, left_out
from mtlprune.claimed_heads import Claim
from mtlprune.reports.canvas_png import gif, paint
from mtlprune.reports.canvas_svg import svg
from mtlprune.reports.drawing import Text, printable
from mtlprune.reports.maps import HeadMap, MapError, colours_mean, difference_map, grey_map, layout, seeds_map
from mtlprune.reports.palettes import (
    BLACK,
    NEGATIVE,
    PALETTES,
    POSITIVE,
    WHITE,
    corners,
    diverging,
    ink,
    mixed,
    opacity,
)

SIZES = [(6, 12), (40, 32), (1, 1)]
SVG = "{http://www.w3.org/2000/svg}"


def gates(layers: int, heads: int, seed: int = 0) -> np.ndarray:
    """Gates as training leaves them: many exactly 0 or 1, some between."""
    return np.clip(np.random.default_rng(seed).normal(0.5, 0.8, (layers, heads)), 0, 1)


def maps(layers: int, heads: int) -> dict[str, HeadMap]:
    z = [gates(layers, heads, seed) for seed in range(3)]
    return {
        "rgb": seeds_map("POS", dict(zip("123", z, strict=True)), "rgb"),
        "colourblind": seeds_map("POS", dict(zip("123", z, strict=True)), "colourblind"),
        "grey": grey_map("POS", "Gate", z[0]),
        "difference": difference_map("POS", "DEP", z[0] - z[1]),
    }


def cells(document: str) -> dict[tuple[int, int], tuple[float, float, tuple[int, ...]]]:
    """(layer, head), counted from 1 → centre and colour, as the SVG has them."""
    found = {}
    for box in ElementTree.fromstring(document).iter(f"{SVG}rect"):
        title = box.find(f"{SVG}title")
        if title is not None:
            place = re.match(r"layer (\d+), head (\d+): ", title.text or "")
            assert place
            x, y, width, height = (float(box.attrib[key]) for key in ("x", "y", "width", "height"))
            assert width == height  # square
            colour = tuple(bytes.fromhex(box.attrib["fill"].removeprefix("#")))
            found[int(place[1]), int(place[2])] = x + width / 2, y + height / 2, colour
    return found


# -- colours ---------------------------------------------------------------------------------------------------------


def test_known_gates_have_these_colours() -> None:
    known = [np.array([[1, 0, 0, 0.25, 0.5]]), np.array([[1, 0, 1, 0.25, 0]]), np.array([[1, 0, 1, 0.25, 1]])]
    shown = seeds_map("POS", dict(zip("123", known, strict=True)), "rgb")
    expected = [(0, 0, 0), (255, 255, 255), (255, 0, 0), (191, 191, 191), (128, 255, 0)]
    assert [tuple(colour) for colour in shown.colours[0].tolist()] == expected
    grey = grey_map("POS", "Gate", np.array([[0, 0.2, 1]]))
    assert grey.colours[0].tolist() == [[255] * 3, [204] * 3, [0] * 3]
    difference = difference_map("POS", "DEP", np.array([[-1, -0.5, 0, 0.5, 1]]))
    assert [tuple(colour) for colour in difference.colours[0].tolist()] == [
        NEGATIVE,
        tuple(round((255 + end) / 2) for end in NEGATIVE),
        WHITE,
        tuple(round((255 + end) / 2) for end in POSITIVE),
        POSITIVE,
    ]


@given(st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_rgb_channels_are_one_minus_the_gates(z: list[float]) -> None:
    colour = mixed([[[value]] for value in z], corners(3, "rgb"))[0, 0]
    assert np.abs(colour - 255 * (1 - np.array(z))).max() <= 0.5 + 1e-8


@pytest.mark.parametrize("palette", PALETTES)
def test_two_seeds_keep_black_for_both_and_white_for_none(palette: str) -> None:
    cube = corners(2, palette)
    assert (
        tuple(cube[1, 1]) == BLACK and tuple(cube[0, 0]) == WHITE and len({tuple(c) for c in cube.reshape(4, 3)}) == 4
    )
    if palette == "rgb":
        assert cube[0, 1].tolist() == [255, 0, 127.5]


@given(st.tuples(*[st.integers(0, 255)] * 3))
def test_numbers_are_legible_on_every_colour(background: tuple[int, int, int]) -> None:
    luminance = linear(np.array(background)) @ (0.2126, 0.7152, 0.0722)
    contrast = 1.05 / (luminance + 0.05) if ink(background) == WHITE else (luminance + 0.05) / 0.05
    assert contrast >= 4


def linear(colour: np.ndarray) -> np.ndarray:
    c = colour / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def cielab(rgb: np.ndarray) -> np.ndarray:
    """Linear sRGB (..., 3) → CIELAB under D65."""
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
    xyz = rgb @ np.array(to_xyz).T / (0.95047, 1, 1.08883)
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.stack([116 * f[..., 1] - 16, 500 * (f[..., 0] - f[..., 1]), 200 * (f[..., 1] - f[..., 2])], -1)


# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB
EYES = {
    "trichromat": np.eye(3),
    "protanope": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranope": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
    ),
    "tritanope": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]]
    ),
}


def nearest(palette: str, eye: str) -> float:
    """How far the two most similar of the eight colours are apart."""
    seen = cielab(np.clip(linear(corners(3, palette).reshape(8, 3)) @ EYES[eye].T, 0, 1))
    return min(float(np.linalg.norm(one - other)) for one, other in combinations(seen, 2))


@pytest.mark.parametrize("eye", EYES)
def test_colour_blind_readers_tell_all_subsets_of_seeds_apart(eye: str) -> None:
    assert nearest("colourblind", eye) > 29
    if eye == "protanope":
        assert nearest("rgb", eye) < 10  # the reason for the other palette


def test_more_seeds_are_darker_for_colour_blind_readers() -> None:
    cube = corners(3, "colourblind")
    lightness = {used: cielab(linear(cube[used]))[0] for used in product((0, 1), repeat=3)}
    for one, other in combinations(lightness, 2):
        if sum(one) != sum(other):
            assert (lightness[one] > lightness[other]) == (sum(one) < sum(other))


def test_ends_of_the_difference_are_equally_dark() -> None:
    blue, red = (cielab(linear(np.array(end)))[0] for end in (NEGATIVE, POSITIVE))
    assert abs(blue - red) < 5


# -- pictures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layers", "heads"), SIZES)
@pytest.mark.parametrize("kind", ["rgb", "colourblind", "grey", "difference"])
def test_png_and_svg_show_the_same_colours_at_the_same_places(kind: str, layers: int, heads: int) -> None:
    shown = maps(layers, heads)[kind]
    drawing = layout(shown)
    found = cells(svg(drawing))
    assert set(found) == set(product(range(1, layers + 1), range(1, heads + 1)))
    picture = paint(drawing, 2)
    assert picture.size == (2 * drawing.width, 2 * drawing.height)
    for (layer, head), (x, y, colour) in found.items():
        expected = tuple(shown.colours[layer - 1, head - 1].tolist())
        assert colour == expected == picture.getpixel((int(2 * x), int(2 * y)))
    rows = [found[layer, 1][1] for layer in range(1, layers + 1)]
    columns = [found[1, head][0] for head in range(1, heads + 1)]
    assert rows == sorted(rows) and columns == sorted(columns)  # layer 1 at the top, head 1 on the left
    ticks = {(text.words, text.x) for text in drawing.shapes if isinstance(text, Text) and text.anchor == "middle"}
    assert {(str(head), x) for head, x in enumerate(columns, 1)} <= ticks


def test_tooltips_tell_layer_head_and_numbers() -> None:
    z = np.array([[0.0, 0.82], [1, 0.5]])
    document = svg(layout(grey_map("POS", "Gate", z)))
    assert "<title>layer 1, head 2: 0.82</title>" in document
    document = svg(layout(seeds_map("POS", {"1": z, "7": z.T}, "rgb")))
    assert "<title>layer 1, head 2: seed 1 0.82, seed 7 1.00</title>" in document
    assert "<title>layer 2, head 1: +1.00</title>" in svg(layout(difference_map("POS", "DEP", z)))


def test_svg_escapes_what_labels_may_hold() -> None:
    label = "<b>&\"é\x07'"
    root = ElementTree.fromstring(svg(layout(grey_map(label, label, gates(1, 1), [label]))))
    assert root.findtext(f"{SVG}title") == "<b>&\"é?'"
    assert printable(label) == "<b>&\"??'"  # the PNG's typeface has no é


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda: grey_map("x", "Gate", [[0.5, 1.5]]), "numbers from 0 to 1, found 1.5"),
        (lambda: grey_map("x", "Gate", [[float("nan")]]), "found nan"),
        (lambda: grey_map("x", "Gate", [0.5]), "shape (layers, heads)"),
        (lambda: grey_map("x", "Gate", np.empty((0, 4))), "shape (0, 4)"),
        (lambda: difference_map("x", "y", [[-1.5]]), "from -1 to 1"),
        (lambda: seeds_map("x", {"1": [[1]]}, "rgb"), "two or three of them, found 1"),
        (lambda: seeds_map("x", {str(k): [[1]] for k in range(4)}, "rgb"), "found 4"),
        (lambda: seeds_map("x", {"1": [[1]], "2": [[1, 0]]}, "rgb"), "equally many"),
        (lambda: seeds_map("x", {"1": [[1]], "2": [[1]]}, "neon"), "rgb or colourblind, found 'neon'"),
    ],
)
def test_what_is_no_map_is_refused_in_words(draw, said: str) -> None:
    with pytest.raises(MapError, match=re.escape(said)):
        draw()


# -- of claims -------------------------------------------------------------------------------------------------------


def claim(label: str, seed: int, z: np.ndarray, history: list[tuple[int, np.ndarray]] | None = None) -> Claim:
    return Claim(f"runs/{label}-{seed}", label, seed, "minilm", z, history or [(10, z)])


def made(claims: list[Claim], palette: str = "rgb") -> dict[str, HeadMap]:
    return {figure.name: figure.shown for figure in claim_figures(group(claims), palette)}


def test_seeds_come_in_order_and_the_grey_map_holds_all_tasks() -> None:
    z = {
        (label, seed): gates(2, 3, 10 * place + seed)
        for place, label in enumerate(("POS", "SRL"))
        for seed in (3, 1, 2)
    }
    shown = made([claim(label, seed, values) for (label, seed), values in z.items()])
    assert list(shown["rgb-POS"].numbers) == ["1", "2", "3"]
    assert np.array_equal(shown["rgb-POS"].colours[..., 1], np.rint(255 * (1 - z["POS", 2])))
    assert np.allclose(shown["grey-POS"].numbers[""], sum(z["POS", seed] for seed in (1, 2, 3)) / 3)
    assert np.allclose(shown["grey-all-tasks"].numbers[""], sum(z.values()) / 6)  # the original drew the last task only
    assert np.array_equal(shown["grey-all-tasks"].colours, opacity(shown["grey-all-tasks"].numbers[""]))
    difference = shown["grey-POS"].numbers[""] - shown["grey-SRL"].numbers[""]
    assert np.array_equal(shown["difference-POS-SRL"].colours, diverging(difference))
    assert np.array_equal(shown["run-SRL-seed3"].numbers[""], z["SRL", 3])


def test_tasks_weigh_equally_and_the_picture_says_so() -> None:
    shown = made(
        [claim("POS", 1, np.ones((1, 1))), claim("POS", 2, np.ones((1, 1))), claim("DEP", 1, np.zeros((1, 1)))]
    )
    assert shown["grey-all-tasks"].numbers[""].item() == 0.5
    assert "POS (2 seeds) and DEP (1 seed); each task weighs the same" in shown["grey-all-tasks"].subtitle


def test_joint_runs_are_not_among_the_tasks() -> None:
    one = np.ones((1, 1))
    shown = made([claim("POS", 1, one), claim("DEP", 1, one), claim("MTL-5", 1, 0 * one), claim("POS+DEP", 1, 0 * one)])
    assert shown["grey-all-tasks"].numbers[""].item() == 1
    assert shown["grey-MTL-5"].numbers[""].item() == 0
    assert shown["difference-POS-MTL-5"].numbers[""].item() == 1
    assert "grey-all-tasks" not in made([claim("POS", 1, one), claim("MTL-5", 1, one)])


@pytest.mark.parametrize(
    ("one", "other", "drawn"),
    [
        ("POS", "DEP", True),
        ("POS", "MTL-5", True),
        ("POS+DEP", "MTL-5", True),
        ("POS", "MTL-5:POS", True),
        ("POS", "MTL-5:DEP", False),
        ("MTL-5:POS", "MTL-5:DEP", True),
        ("MTL-5:POS", "MTL-2:POS", False),
    ],
)
def test_which_differences_are_drawn(one: str, other: str, drawn: bool) -> None:
    assert comparable(one, other) is comparable(other, one) is drawn


def test_file_names_suit_every_system() -> None:
    names = made([claim(label, 1, np.ones((1, 1))) for label in ("MTL-5:POS", "MTL-5:DEP", "POS+DEP", "a/b é")])
    assert all(re.fullmatch(r"[A-Za-z0-9+._-]+", name) for name in names) and "run-MTL-5_POS-seed1" in names


def test_too_few_and_too_many_seeds_are_said() -> None:
    many = [claim("POS", seed, gates(1, 2, seed)) for seed in (1, 2, 3, 4, 5)]
    assert list(made(many)["rgb-POS"].numbers) == ["1", "2", "3"]
    assert "it has no colour left for 4 and 5" in left_out(group(many))[0]
    assert not any(name.startswith("rgb") for name in made(many[:1]))
    assert "one seed only" in left_out(group(many[:1]))[0]


def test_a_film_has_a_frame_an_evaluation_even_where_nothing_changes() -> None:
    z = [gates(3, 4, 1), gates(3, 4, 1), gates(3, 4, 2), np.zeros((3, 4))]
    (film,) = claim_films(group([claim("POS", 1, z[-1], list(zip((5, 10, 10, 1_234_567), z, strict=True)))]))
    drawings = film.drawings()
    assert len({(drawing.width, drawing.height) for drawing in drawings}) == 1
    places = [{key: centre[:2] for key, centre in cells(svg(drawing)).items()} for drawing in drawings]
    assert all(place == places[0] for place in places)
    with Image.open(io.BytesIO(gif(drawings, 1))) as picture:
        assert picture.n_frames == len(z) and picture.info["loop"] == 0
        for number, values in enumerate(z):
            picture.seek(number)
            frame = picture.convert("RGB")
            for (layer, head), (x, y) in places[0].items():
                assert frame.getpixel((int(x), int(y))) == tuple(opacity(values)[layer - 1, head - 1].tolist())
    assert [frame.subtitle[-1] for frame in film.frames][-1] == "Step 1,234,567, evaluation 4 of 4: 0 of 12 heads open"


def test_a_local_encoder_is_named_without_its_path() -> None:
    one = Claim("r", "POS", 1, "/home/me/models/tiny-bert, random weights", np.ones((2, 1)), [])
    assert encoder_line(one) == "tiny-bert, random weights, 2 layers of 1 head"
    assert encoder_line(claim("POS", 1, np.ones((1, 2)))) == "minilm, 1 layer of 2 heads"


def test_the_caption_says_what_is_drawn() -> None:
    """Pure red: closed by the first, kept by the others; black: kept by all; white: closed in all."""
    first, second, third = np.array([[0, 1, 0, 1]]), np.array([[1, 1, 0, 0]]), np.array([[1, 1, 0, 1]])
    shown = seeds_map("x", {"4": first, "7": second, "9": third}, "rgb")
    assert shown.colours[0].tolist() == [[255, 0, 0], [0, 0, 0], [255, 255, 255], [0, 255, 0]]
    assert colours_mean(("4", "7", "9"), "rgb") == (
        "A channel is 255 · (1 − z), z the gate: red of seed 4, green of seed 7, blue of seed 9. So pure red is a head "
        "that seed 4 closed and the others kept; black is kept by all, white closed in all."
    )
    fractional = seeds_map("x", {"1": [[0.2]], "2": [[0.6]], "3": [[1.0]]}, "rgb").colours[0, 0]
    assert fractional.tolist() == [204, 102, 0]
    two = seeds_map("x", {"1": [[0.0]], "2": [[1.0]]}, "rgb").colours[0, 0]
    assert two[0] == 255 and two[1] == 0 and 127 <= two[2] <= 128
    assert "blue of their mean. So pink is a head that seed 1 closed" in colours_mean(("1", "2"), "rgb")
