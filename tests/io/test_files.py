"""Files are read strictly, and what is wrong with one is a sentence that names it."""

import math

import numpy as np
import pytest

from mtlprune.io.files import RunError, append_line, from_here, read_json, read_json_lines, read_yaml, write_json
from mtlprune.io.strict import parse_json, parse_yaml

BAD_JSON = {
    "bytes": (b"\xff", "expected UTF-8 text, found byte 0xff in line 1"),
    "no-json": (b'{\n"a": }', "line 2: not readable as JSON"),
    "deep": (b"[" * 100_000, "nested too deeply"),
    "huge": (b"9" * 5000, "a number of thousands of digits"),
    "nan": (b'{"a": NaN}', "NaN, which is not a number"),
    "infinite": (b"1e999", "too large"),
    "twice": (b'{"c": [{"a": 1, "b": 2, "a": 1}]}', "'a' occurs twice"),
    "half": (b'"\\ud800"', "half a character"),
}
BAD_YAML = {
    "bytes": (b"a: \xff", "expected UTF-8 text"),
    "twice": (b"a: 1\na: 2", "line 2: a occurs twice"),
    "tagged": (b"a: 1\nb:\n  c: !!int x", "invalid literal for int.*'x'"),
    "huge": (b"a: " + b"9" * 5000, "thousands of digits"),
    "deep": (b"[" * 2000, "not readable as YAML"),
}


def read_lines(path):
    return list(read_json_lines(path))


CASES = [
    *(pytest.param(read_json, *case, id=f"json-{name}") for name, case in BAD_JSON.items()),
    *(pytest.param(read_yaml, *case, id=f"yaml-{name}") for name, case in BAD_YAML.items()),
    *(pytest.param(read_lines, b"{}\n" + case[0] + b"\n", "", id=f"lines-{name}") for name, case in BAD_JSON.items()),
]


@pytest.mark.parametrize(("read", "content", "message"), CASES)
def test_a_bad_file_is_named(read, content, message, tmp_path):
    path = tmp_path / "f"
    path.write_bytes(content)
    with pytest.raises(RunError, match=f"{path}(?s:.*){message}"):
        read(path)


def test_yaml_means_what_people_mean():
    assert parse_yaml("c: 1_000\ne: yes\nf: 0x10") == {"c": 1000, "e": True, "f": 16}


def test_only_paths_below_the_working_directory_are_seen_from_there(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    elsewhere = ("run", "../run", str(tmp_path), str(tmp_path / "here2/run"), "/")
    assert [from_here(path) for path in elsewhere] == list(elsewhere)
    assert [from_here(str(tmp_path / path)) for path in ("here", "here/a/run")] == [".", "a/run"]


def test_what_is_written_is_read_again_and_numbers_that_are_none_are_null(tmp_path):
    path = tmp_path / "numbers.json"
    grid = np.array([[0.125, math.nan], [math.inf, 3]])
    rows = {"grid": [[0.125, None], [None, 3]], "row": [0.5, 2, True, None]}
    others = {"[": {"words": "a [\n1 ]", "none": []}}
    write_json(path, {"grid": grid, "row": (np.float32(0.5), np.int64(2), True, None)} | others)
    assert read_json(path) == rows | others
    line = append_line(tmp_path / "log.jsonl", {"loss": math.nan, "grid": grid})
    assert parse_json(line) == {"loss": None, "grid": rows["grid"]}
