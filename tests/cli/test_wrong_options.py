"""A wrong value of one option, on the command line or in a file: exit code 2, one sentence, nothing written."""

import shutil
from pathlib import Path

import pytest

from mtlprune.files import SUMS, write_sums

ALIASES = "[&a [x, x, x, x, x, x, x, x], &b [*a, *a, *a, *a, *a, *a, *a, *a], " + ", ".join(
    f"&{new} [{', '.join([f'*{old}'] * 8)}]" for old, new in zip("bcdef", "cdefg", strict=True)
)
OVERRIDES = [
    *("train.device=nowhere", "train.device=cuda:99", "train.threads=0", "train.threads=1e30", "train.threads=true"),
    *("train.threads=1:30", "train.threads=1.5", "train.threads=!!float x", "train.epochs=100000000"),
    *("train.epochs=2001-99-99", "train.epochs=!!timestamp 2001-99-99", "train.epochs=!!bool perhaps"),
    *(f"train.epochs={'9' * 5000}", f"train.epochs=-{'9' * 5000}", "train.epochs=.nan", f"train.seed={10**30}"),
    *("train.encoder_rate=true", "train.encoder_rate=!!binary x", "train.checkpoint_minutes=.nan", "max_steps=3"),
    *("train=3", "train=[]", "train.epochs=", "tasks=[3]", "tasks={}", "name=", "pruning.rate=1:30", "data.train=''"),
    *('name="\\ud800"', 'encoder.name="\\ud800"', 'data.path="\\ud800"', 'data.path="\\0"', 'encoder.name="\\0"'),
    *(f"train.weights={ALIASES}]", "name=&a [*a]", "name=[" + "[" * 3000, "name={a: 1, a: 2}", "=3", "train.epochs"),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, to which anything that is written would go."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return tmp_path / "empty"


def refused(answer, place: Path) -> str:
    assert answer.code == 2, answer
    assert answer.err.startswith("mtlprune: ") and answer.err.count("\n") == 1, answer.err
    assert "Traceback" not in answer.err and len(answer.err) < 1500, answer.err
    assert not list(place.iterdir()), list(place.rglob("*"))
    return answer.err


@pytest.mark.parametrize("override", OVERRIDES, ids=lambda text: text[:40])
def test_a_wrong_override_is_named_and_nothing_is_written(mtlprune, lab, place, override):
    error = refused(mtlprune("train", lab.config, override, "--out", place / "run"), place)
    key, sign, _ = override.partition("=")
    assert not sign or key in error or key in ("data.path", "data.train", "encoder.name")  # what they name is named
    assert not error.startswith(f"mtlprune: {lab.config}"), error  # the file has no part in it


COMMANDS = [
    ("data", "build", "grammar", "--train", "1000000000000"),
    ("data", "build", "grammar", "--train", "-1"),
    ("data", "build", "grammar", "--train", "9" * 5000),
    ("data", "build", "grammar", "--train", "0", "--dev", "0", "--test", "0"),
    ("data", "build", "grammar", "--seed", "-1"),
    ("data", "build", "ewt5", "--sources", "nowhere"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command)[:50])
def test_sizes_of_a_corpus(mtlprune, place, command):
    answer = mtlprune(*command, "--out", place / "corpus")
    assert answer.code == 2 and "Traceback" not in answer.err and not list(place.iterdir()), answer


def test_an_encoder_that_we_wrote_is_the_one_we_wrote(mtlprune, lab, place, tmp_path, tiny_encoder):
    folder = shutil.copytree(tiny_encoder("bert"), tmp_path / "encoder")
    write_sums(folder)
    asked = "check", lab.config, f"encoder.name={folder}"
    assert mtlprune(*asked).code == 0
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1  # a bit of a weight
    path.write_bytes(content)
    assert str(path) in refused(mtlprune(*asked), place)
    (folder / SUMS).write_text("no sum\n")
    assert f"{folder / SUMS}, line 1" in refused(mtlprune(*asked), place)
    (folder / SUMS).unlink()
    assert mtlprune(*asked).code == 0
