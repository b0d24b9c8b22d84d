"""A wrong value of one option, on the command line or in a file: exit code 2, one sentence, nothing written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mtlprune.files import SUMS, write_sums

ALIASES = "[&a [x, x, x, x, x, x, x, x], &b [*a, *a, *a, *a, *a, *a, *a, *a], " + ", ".join(
    f"&{new} [{', '.join([f'*{old}'] * 8)}]" for old, new in zip("bcdef", "cdefg", strict=True)
)
OVERRIDES = [
    *("train.device=meta", "train.device=nowhere", "train.device=cuda:99", "train.device=3"),
    *("train.threads=0", "train.threads=-1", "train.threads=1e30", "train.threads=100000000", "train.threads=true"),
    *("train.threads=1:30", "train.threads=1.5", "train.threads=!!int x", "train.threads=!!float x"),
    *("train.epochs=0", "train.epochs=true", "train.epochs=1:30", "train.epochs=1e30", "train.epochs=100000000"),
    *("train.epochs=2001-99-99", "train.epochs=!!timestamp 2001-99-99", "train.epochs=!!bool perhaps"),
    *(f"train.epochs={'9' * 5000}", f"train.epochs=-{'9' * 5000}", "train.epochs=.nan", "train.epochs=.inf"),
    *("train.seed=-1", f"train.seed={10**30}", "train.seed=true", "train.batch_sentences=0", "train.batch_tokens=0"),
    *("train.encoder_rate=.nan", "train.encoder_rate=true", "train.encoder_rate=-1", "train.encoder_rate=!!binary x"),
    *("train.checkpoint_minutes=.nan", "train.checkpoint_minutes=-1", "train.max_steps=3", "max_steps=3"),
    *("train=3", "train=[]", "train.epochs=", "tasks=[]", "tasks=[3]", "tasks=pos,pos", "tasks={}", "name=", "name=a/b"),
    *('name="\\ud800"', 'encoder.name="\\ud800"', 'data.path="\\ud800"', 'data.path="\\0"', 'encoder.name="\\0"'),
    *("decoders.con.span_size=0", "decoders.con.span_size=true", f"decoders.dep.arc_size={10**30}"),
    *(f"train.weights={ALIASES}]", "name=&a [*a]", "name=[" + "[" * 3000, "name={a: 1, a: 2}", "=3", "train.epochs"),
    *("pruning=gates pruning.keep=true".split()[1], "pruning.rate=1:30", "encoder.name=''", "data.train=''"),
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
    assert sign == "" or key == "" or key in error
    assert not error.startswith(f"mtlprune: {lab.config}"), error  # the file has no part in it
