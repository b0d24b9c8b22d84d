"""Names of what is probed: runs that differ in more than their seed never share one."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from mtlprune.analyses.reading import ProbeError, find_sources, variant
from mtlprune.runs import RunFolder


@pytest.fixture
def labels_of(tmp_path: Path) -> Any:
    """Labels of runs with these settings."""

    def labels(*settings: dict[str, Any]) -> list[str]:
        names = []
        for number, setting in enumerate(settings):
            folder = RunFolder(tmp_path / f"{len(list(tmp_path.iterdir()))}-{number}")
            folder.path.mkdir()
            tree = {"data": {"path": "corpus"}, "encoder": {"name": "minilm"}, "tasks": ["pos"], **setting}
            removed = tree.pop("removed", False)
            folder.config_path.write_text(yaml.safe_dump(tree))
            if removed:
                folder.encoder_path.mkdir()
                (folder.encoder_path / "heads.json").write_text("{}")
            names.append(str(folder.path))
        return [source.label for source in find_sources(names)]

    return labels


GATED = {"pruning": {"method": "gates"}}
FIVE = {"tasks": ["pos", "ner", "dep", "con", "srl"]}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([{}, {"train": {"seed": 2}}], ["POS", "POS"]),
        ([GATED, {**GATED, "train": {"seed": 2}}], ["POS", "POS"]),
        ([{}, GATED], ["POS", "POS (gates)"]),
        ([{"tasks": ["dep"]}, GATED], ["DEP", "POS (gates)"]),  # no comparison takes one for the other
        ([{}, {**GATED, "train": {"seed": 2}}], ["POS", "POS (gates)"]),  # no seeds of one thing
        ([{}, GATED, {**GATED, "removed": True}], ["POS", "POS (gates)", "POS (gates, heads removed)"]),
        (
            [GATED, {"pruning": {"method": "gates"}, "train": {"start": "x", "freeze": "decoders"}}],
            ["POS (gates)", "POS (static gates)"],
        ),
        (
            [FIVE, {**FIVE, "train": {"mixing": "sampled"}}, {}, {"encoder": {"name": "minilm", "fusion": "gate"}}],
            ["MTL-5", "MTL-5 (sampled)", "POS", "POS (fusion gate)"],
        ),
        ([{"name": "a"}, {"name": "b"}, {"tasks": ["dep"]}], ["POS (a)", "POS (b)", "DEP"]),
        ([{"tasks": ["pos", "dep"]}, {"tasks": ["pos", "dep"], **GATED}], ["POS+DEP", "POS+DEP (gates)"]),
    ],
)
def test_what_differs_has_another_label(labels_of, settings, expected):
    assert labels_of(*settings) == expected


def test_the_same_twice_is_refused(labels_of):
    with pytest.raises(ProbeError, match="are both POS, seed 1, so their results could not be told apart"):
        labels_of({}, {})


def test_the_kind_of_a_run_is_read_off_its_label():
    labels = ["POS", "POS (gates)", "MTL-5 (gates):POS", "MTL-5 (sampled)", "MTL-5 (gates, sampled)", "pretrained"]
    assert [variant(label) for label in labels] == ["", "gates", "gates", "", "gates", ""]
