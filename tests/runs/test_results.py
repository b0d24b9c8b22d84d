"""Results: what is written is read back, what is damaged is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from run_folders import change_json

import mtlprune
from mtlprune.io.files import RunError
from mtlprune.runs import results
from mtlprune.runs.results import Result, ResultError, head_rows, read_result, write_result

GRIDS = {
    ("pretrained", 0): {"gate": np.ones((2, 3)), "mixing": np.array([[1 / 3, 2, 3], [4, np.nan, 6]])},
    ("POS", 1): {"gate": np.eye(2, 3), "mixing": np.arange(6.0).reshape(2, 3)},
    ("POS", 2): {"gate": np.ones((2, 3)), "mixing": -np.arange(6.0).reshape(2, 3)},
}


def result() -> Result:
    size = {"layers": 2, "heads": 3}
    encoders = [
        {"encoder": label, "run": f"{label}-{seed}", "seed": seed, **size, "open": int(grids["gate"].sum())}
        for (label, seed), grids in GRIDS.items()
    ]
    frames = [head_rows(grids).assign(encoder=e, seed=seed) for (e, seed), grids in reversed(GRIDS.items())]
    return Result("made-up", {"encoders": encoders, "notes": []}, {"heads": pd.concat(frames, ignore_index=True)})


@pytest.mark.parametrize(("rows", "holds"), [(0, "made-up-heads.parquet"), (1_000, "made-up.json")])
def test_what_is_written_is_read_back_with_six_digits(
    rows: int, holds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the table is a part of the JSON."""
    monkeypatch.setattr(results, "EMBEDDED_ROWS", rows)
    write_result(tmp_path, result())
    found = read_result(tmp_path / "made-up.json")
    assert found.names == ["pretrained", "POS, seed 1, 2 of 6 heads", "POS, seed 2"]
    for one, grids in zip(found.about["encoders"], GRIDS.values(), strict=True):
        for measure, grid in found.grids(one).items():
            np.testing.assert_allclose(grid, grids[measure], rtol=1e-5)
    wide = found.wide("heads")
    assert list(wide["name"].unique()) == found.names and wide["mixing"][0] == 0.333333
    first = (tmp_path / holds).read_bytes()
    write_result(tmp_path, result())
    assert (tmp_path / holds).read_bytes() == first and len(list(tmp_path.iterdir())) == (1 if rows else 2)


def test_a_table_in_the_json_keeps_types_and_missing_values(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"task": ["pos", None], "n": [1, 2], "value": [0.1, np.nan], "best": [True, False]}
    frame = pd.DataFrame({**columns, "label": [None, None]})
    write_result(tmp_path, Result("made-up", result().about, {"wide": frame, "empty": frame[:0]}))
    found = read_result(tmp_path / "made-up.json").frames
    pd.testing.assert_frame_equal(found["wide"], frame, check_dtype=False)
    assert [str(found["wide"][name].dtype) for name in ("n", "value", "best")] == ["int64", "float64", "bool"]
    assert list(found["empty"].columns) == list(frame.columns)
    infinite = pd.DataFrame({"task": ["pos"], "x": [-np.inf], "layer": pd.array([None], "Int64")})
    write_result(tmp_path, Result("made-up", result().about, {"wide": infinite}))
    assert [path.name for path in tmp_path.iterdir()] == ["made-up.json"]  # JSON has no infinity
    assert read_result(tmp_path / "made-up.json").frames["wide"]["x"][0] == -np.inf


def test_tables_of_an_earlier_writing_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "EMBEDDED_ROWS", 0)
    held = result()
    write_result(tmp_path, Result("made-up", held.about, {**held.frames, "more": held.frames["heads"]}))
    (tmp_path / "other-heads.parquet").write_bytes(b"of another analysis")
    write_result(tmp_path, held)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"made-up.json", "made-up-heads.parquet", "other-heads.parquet"}


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"layer": [1], "measure": ["m"], "value": [1.0], "colour": ["red"]}),
        pd.DataFrame({"layer": [1, 1], "measure": ["m", "m"], "value": [1.0, 2.0]}),
    ],
)
def test_untidy_frames_are_refused(frame: pd.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="frame untidy"):
        write_result(tmp_path, Result("made-up", {"encoders": [], "notes": []}, {"untidy": frame}))
    assert not (tmp_path / "made-up.json").exists()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "made-up-heads.parquet").write_bytes(b"PAR1"), "changed or damaged"),
        (lambda folder: (folder / "made-up-heads.parquet").unlink(), "is missing"),
        (lambda folder: change_json(folder / "made-up.json", format=2), "expected format 1, found 2"),
        (lambda folder: change_json(folder / "made-up.json", frames={"heads": {}}), "no 'sha256'"),
        (lambda folder: (folder / "made-up.json").write_text("{"), "not readable as JSON"),
    ],
)
def test_what_is_damaged_is_refused(damage: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "EMBEDDED_ROWS", 0)
    write_result(tmp_path, result())
    damage(tmp_path)
    with pytest.raises(RunError, match=said):
        read_result(tmp_path / "made-up.json")


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="holds no result of probes, gradients"):
        mtlprune.read_results(tmp_path)


def test_a_run_that_is_several_encoders_is_called_by_its_label_where_a_frame_is_of_it_as_a_whole() -> None:
    pairs = [("MTL-2", 1), ("MTL-2", 2), ("NER", 1), ("POS", 1)]
    rows = pd.DataFrame([{"encoder": label, "seed": seed, "measure": "x", "value": 1.0} for label, seed in pairs])
    found = Result("made-up", result().about, {**result().frames, "decoders": rows})
    named = found.dashed(found.wide("decoders"))
    assert list(named["name"]) == ["POS, seed 1, 2 of 6 heads", "MTL-2, seed 1", "MTL-2, seed 2", "NER"]
    assert list(named["closed"]) == [True, False, False, False]
    assert list(found.with_names("heads")["name"].cat.categories) == found.names
