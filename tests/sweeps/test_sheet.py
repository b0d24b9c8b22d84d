"""The file of a sweep: which cells it has, and a sentence for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtlprune.sweeps.specification import SweepError, is_specification, read_specification

GRID = """
base: quickstart
grid:
  regime: {none: {}, gates: {pruning: {method: gates}}}
  tasks: [pos, [dep, con]]
  seed: [1, 2]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def names(folder: Path, text: str) -> list[str]:
    return [recipe.name for recipe in read_specification(written(folder, text)).recipes()]


def test_cells_are_all_combinations_in_the_order_of_the_file(tmp_path: Path) -> None:
    tasks = ("pos", "dep-con")
    expected = [f"{regime}-{task}-{seed}" for regime in ("none", "gates") for task in tasks for seed in (1, 2)]
    assert names(tmp_path, GRID) == expected


def test_seeds_share_a_title_and_short_names_of_axes_are_settings(tmp_path: Path) -> None:
    text = "base: quickstart\ngrid: {encoder: [org/one, two], seed: [3], train.epochs: [7]}\n"
    first, second = read_specification(written(tmp_path, text)).recipes()
    assert (first.name, first.title, second.title) == ("one-3-7", "one-7", "two-7")
    assert first.layers[1:] == ({"encoder": {"name": "org/one"}}, {"train": {"seed": 3}}, {"train": {"epochs": 7}})


def test_only_makes_what_meets_one_rule_and_exclude_drops(tmp_path: Path) -> None:
    only = "only: [{regime: none}, {regime: gates, tasks: [pos], seed: [1, 2]}]\n"
    assert names(tmp_path, GRID + only) == [
        *("none-pos-1", "none-pos-2", "none-dep-con-1", "none-dep-con-2"),
        *("gates-pos-1", "gates-pos-2"),
    ]
    left = names(tmp_path, GRID + only + "exclude: {seed: 2}\n")
    assert left == ["none-pos-1", "none-dep-con-1", "gates-pos-1"]


def test_further_cells_come_by_name_with_the_settings_of_all(tmp_path: Path) -> None:
    text = (
        "base: quickstart\nsettings: {train: {epochs: 9}}\ncells: {control: {encoder: {random: true}}, plain: null}\n"
    )
    control, plain = read_specification(written(tmp_path, text)).recipes()
    assert (control.name, plain.name, plain.title) == ("control", "plain", "")
    assert control.layers == ({"train": {"epochs": 9}}, {"encoder": {"random": True}})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base: quickstart\ngird: {}\n", "unknown key gird (did you mean 'grid'?)"),
        ("grid: {seed: [1]}\n", "base: expected a preset or a configuration file, found None"),
        ("base: quickstart\n", "expected a grid or cells, found neither"),
        (
            "base: quickstart\ngrid: {seed: 1}\n",
            "grid.seed: expected names with settings, or a list",
        ),
        ("base: quickstart\ngrid: {a: {no: {}}}\n", "YAML reads a name there as False; write it in quotes"),
        ("base: quickstart\ngrid: {a: {x: 3}}\n", "grid.a.x: expected settings such as"),
        ("base: quickstart\ngrid: {encoder: [a/b, c/b]}\n", "two values would both be called b"),
        (GRID + "only: [{regim: none}]\n", "only: there is no axis regim (did you mean 'regime'?)"),
        (GRID + "exclude: {regime: gate}\n", "exclude: axis regime has no value gate (did you mean 'gates'?)"),
        (GRID + "exclude: {seed: [1, 2]}\n", "only and exclude leave no cell"),
        ("- 1\n", "expected keys and values, found ["),
    ],
)
def test_a_mistake_is_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(SweepError) as caught:
        read_specification(path)
    assert str(caught.value).startswith(f"{path}: ") and said in str(caught.value)


def test_a_configuration_is_no_sweep(tmp_path: Path) -> None:
    assert is_specification(written(tmp_path, GRID))
    assert not is_specification(written(tmp_path, "data: {path: x}\n"))
    assert not is_specification(tmp_path)
    with pytest.raises(SweepError, match="no such file"):
        read_specification(tmp_path / "none.yaml")
