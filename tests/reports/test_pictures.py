"""Pictures by pillow: every cell has its colour in its place, a GIF has a frame an evaluation."""

import io

import numpy as np
import pytest
from PIL import Image
from run_folders import write_run

from mtlprune.figures.maps import corners, mixed, training_map
from mtlprune.figures.pictures import EDGE, FRAME_MS, LAST_FRAME_MS, SIDE, bare, gif
from mtlprune.runs.claims import load_claims


def centres(picture: Image.Image, layers: int, heads: int) -> np.ndarray:
    pixels = np.asarray(picture.convert("RGB"))
    rows, columns = (EDGE + SIDE // 2 + SIDE * np.arange(number) for number in (layers, heads))
    return pixels[np.ix_(rows, columns)]


def test_seeds_are_channels():
    """Seed 1 in red, 2 in green, 3 in blue, each 255 · (1 − z), as in Figure 1a of He and Choi (2021)."""
    gates = np.random.default_rng(0).random((3, 3, 5))
    drawn = centres(bare(mixed(list(gates), corners(3, "rgb"))), 3, 5)
    assert np.abs(drawn - 255 * (1 - np.moveaxis(gates, 0, -1))).max() <= 1


@pytest.fixture
def claim(tmp_path):
    (claim,) = load_claims([write_run(tmp_path / "pos", ["pos"], np.eye(3, 4), seed=1).path])
    return claim


def test_a_gif_has_a_frame_an_evaluation(claim):
    film = Image.open(io.BytesIO(gif(claim)))
    assert film.n_frames == len({gates.tobytes() + bytes([step]) for step, gates in claim.history}) == 3
    for number, (_, gates) in enumerate(claim.history):
        film.seek(number)
        assert film.info["duration"] == (FRAME_MS if number < 2 else LAST_FRAME_MS)
        assert np.abs(centres(film, 3, 4)[..., 0] - 255.0 * (1 - gates)).max() <= 4  # 64 greys


def test_small_multiples_are_spread_over_the_evaluations(claim):
    history = [(step, np.full((3, 4), step / 40)) for step in range(1, 41)]
    object.__setattr__(claim, "history", history)
    numbers = training_map(claim).numbers
    assert len(numbers) == 12
    first, *_, last = numbers
    assert first.startswith("update 1:") and last == "update 40: 12 of 12 open"


def test_the_command_writes_and_lists_them(mtlprune, claim, tmp_path):
    mtlprune("claims", claim.run, "--animate").refuses("--animate draws maps into a folder; name it with --out DIR")
    out = tmp_path / "out"
    mtlprune("claims", claim.run, "--animate", "--bare", "--format", "png", "--permutations", 9, "--out", out).done()
    names = {path.name for path in (out / "maps").iterdir()}
    assert {"training-POS-seed1.gif", "training-POS-seed1.png", "bare-grey-POS.png"} <= names
    assert all(name in (out / "maps" / "maps.json").read_text() for name in names - {"maps.json"})
