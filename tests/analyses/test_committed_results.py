"""Every committed Result can be shown by the package as it is now."""

import json
from pathlib import Path

import pytest

from mtlprune.analyses import ANALYSES

ROOT = Path(__file__).parents[2]
RESULTS = sorted(path for name in ANALYSES for path in ROOT.glob(f"results/**/{name}.json"))


@pytest.mark.slow
@pytest.mark.parametrize("path", RESULTS, ids=lambda path: str(path.relative_to(ROOT).parent))
def test_a_committed_result_can_be_shown(path, mtlprune, tmp_path):
    assert json.loads(path.read_text(encoding="utf-8"))["analysis"] == path.stem
    mtlprune("analyze", "show", path.parent, "--out", tmp_path / "shown").done()
    assert (tmp_path / "shown" / f"{path.stem}.md").is_file()
