"""mtlprune analyze syntax and breaks: files, figures, notes, the section; what is refused in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

from mtlprune.analyses.syntax.show.section import section
from mtlprune.corpora.store import load_corpus, save_corpus
from mtlprune.encoder.arcs import uas_of
from mtlprune.encoder.model import Encoder
from mtlprune.reports.sections import Figure, Rows
from mtlprune.runs import RunError

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def masked(tiny_encoder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny masked language model."""
    folder = tmp_path_factory.mktemp("masked")
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(tiny_encoder("bert"))).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_encoder("bert")).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def blimp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blimp")
    for name in ("a", "b"):
        entry = {"UID": name, "linguistics_term": f"t-{name}", "field": "syntax"}
        pairs = [entry | {"sentence_good": f"the dog {k}", "sentence_bad": f"a cat cat {k}"} for k in range(5)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return folder


@pytest.fixture(scope="module")
def result(
    mtlprune: Call, lab: Any, trained: Path, masked: Path, blimp: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("syntax") / "out"
    given = ["--corpus", lab.corpus, "--split", "train", "--blimp", blimp, "--pairs", 3, "--out", out]
    answer = mtlprune("analyze", "syntax", masked, trained, *given)
    assert answer.code == 0, answer.err
    return out, answer.out


def test_numbers_are_those_of_the_functions(result: tuple[Path, str], masked: Path, lab: Any) -> None:
    tree = json.loads((result[0] / "syntax.json").read_text())
    assert [one["encoder"] for one in tree["encoders"]] == ["pretrained", "MTL-5"]
    counts = uas_of(Encoder.load(str(masked), attention="eager"), list(load_corpus(lab.corpus)["train"]))
    one, listed = tree["encoders"][0], counts.listed()
    assert tree["tokens"] == counts.size() and [e["relation"] for e in tree["offset"]["relations"]] == listed
    single = counts.single()
    assert one["uas_single"]["value"] == pytest.approx(single.value, abs=1e-3)
    assert one["uas_single"]["held_out"] == pytest.approx(single.held_out, abs=1e-3)
    assert (one["uas_single"]["layer"], one["uas_single"]["head"]) == (single.layer + 1, single.head + 1)
    assert np.allclose(one["heads"]["uas"], counts.by_head(), atol=1e-3)
    assert np.array(one["heads"]["twonn"]).shape == (2, 4) and one["uas_like_first"] == 1
    table = pq.read_table(result[0] / "syntax.parquet").to_pydict()
    rows = [k for k in range(len(table["run"])) if table["run"][k] == str(masked)]
    assert len(rows) == len(counts.relations) * 2 * 8
    assert sum(table["hits_1"][k] + table["hits_2"][k] for k in rows) == counts.hits.sum()


def test_words_figures_and_notes(result: tuple[Path, str]) -> None:
    out, printed = result
    text = (out / "syntax.md").read_text()
    assert text.strip() in printed and "best offset" in text and "UAS_single" in text
    assert "MTL-5: no BLiMP" in text and "is a run, which keeps its encoder without a head" in text
    assert "| overall" in text and "pretrained, word-l2r" in text
    for name in ("relations", "heads-pretrained", "heads-mtl-5"):
        assert (out / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert (out / f"{name}.svg").read_text().startswith("<")


def test_the_section_of_the_page(result: tuple[Path, str], tmp_path: Path) -> None:
    made = section(result[0])
    tables = [block for block in made.blocks if isinstance(block, Rows)]
    figures = [block for block in made.blocks if isinstance(block, Figure)]
    assert made.key == "syntax" and len(tables) == 3 and len(figures) == 3
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)
    assert all(set(table.numbers) <= set(table.columns) for table in tables)
    with pytest.raises(RunError, match=r"syntax\.json is missing; `mtlprune analyze syntax"):
        section(tmp_path)
    (tmp_path / "syntax.json").write_text("{}")
    with pytest.raises(RunError, match="expected encoders, offset in it; run `mtlprune analyze syntax` again"):
        section(tmp_path)


@pytest.mark.parametrize("what", ["blimp", "split", "trees", "file"])
def test_mistakes_are_one_sentence_and_nothing_is_written(
    what: str, mtlprune: Call, lab: Any, tiny_encoder: Callable[[str], Path], blimp: Path, tmp_path: Path
) -> None:
    out, corpus, more = tmp_path / "out", lab.corpus, []
    if what == "blimp":
        more, words = ["--blimp", blimp], "none of these can judge minimal pairs"
    elif what == "split":
        more, words = ["--split", "x"], "expected a split of"
    elif what == "trees":
        bare = {name: [s.bare() for s in load_corpus(lab.corpus)[name]] for name in ("train", "dev", "test")}
        corpus, words = tmp_path / "bare", "sentences has one; give a corpus with the layer dep"
        save_corpus(bare, corpus, name="bare", licence="Apache-2.0", sources={})
    else:
        out.write_text("")
        words = "is a file"
    answer = mtlprune("analyze", "syntax", tiny_encoder("bert"), "--corpus", corpus, "--out", out, *more)
    assert answer.code == 2 and words in answer.err and answer.err.count("\n") == 1
    assert not out.is_dir()


def test_breaks_of_a_log(mtlprune: Call, tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text("".join(json.dumps({"step": t, "loss": 9 - max(0, t - 4)}) + "\n" for t in range(9)))
    answer = mtlprune("analyze", "breaks", log, "--out", tmp_path / "out")
    assert answer.code == 0 and answer.out == (tmp_path / "out" / "breaks.md").read_text()
    assert json.loads((tmp_path / "out" / "breaks.json").read_text())["curves"][0]["break"] == 4
    log.write_text('{"step": 1, "loss": 2}\n{"step": 2, "loss": 1}\n')
    answer = mtlprune("analyze", "breaks", log)
    assert answer.code == 2 and "at least 3 points" in answer.err and answer.err.count("\n") == 1
