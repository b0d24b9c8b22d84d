"""mtlprune quickstart on a tiny encoder: the table, the files, and going on."""

from __future__ import annotations

from tiny import HEADS, LAYERS

from mtlprune.claimed_heads import load_claims
from mtlprune.corpora.store import load_corpus
from mtlprune.runs import RunFolder

TASKS = ["con", "dep", "ner", "pos", "srl"]
RUNS = [*(f"gates-{task}" for task in TASKS), "mtl-5", "no-encoder", *(f"stl-{task}" for task in TASKS)]


def test_from_nothing_to_a_table(mtlprune, tiny_encoder, tmp_path):
    out = tmp_path / "quick 1"
    settings = [f"encoder.name={tiny_encoder('bert')}", "train.epochs=1", "train.precision=fp32"]
    command = ["quickstart", *settings, "--out", out, "--train", 16, "--dev", 4, "--test", 6]
    first = mtlprune(*command).done()
    table = (out / "table.md").read_text()
    assert table in first.out
    assert "p (Holm)" in table
    page = (out / "report.html").read_text(encoding="utf-8")
    assert (out / "report.html").resolve().as_uri() in first.out
    assert "majority" in page and "Labels lost and gained" in page
    for section in ("Gate maps", "Overlap of claims", "Gradients on heads", "What heads know"):
        assert f">{section}</h2>" in page
    first = page.partition('id="in-short"')[2].partition("</section>")[0]
    assert "<svg" in first and "beside STL" in first and "by all 5 tasks" in first and "What to do next" in first
    for claim in load_claims(sorted((out / "runs").glob("gates-*"))):
        assert claim.open.sum() == HEADS * LAYERS // 2
    header, _, *rows = table.splitlines()[:7]
    titles = [cell.strip() for cell in header.split("|")[1:-1]]
    assert titles == ["task", "majority", "no encoder", "STL", "MTL-5", "Δ"]
    for row in rows:
        assert all(cell.strip() not in ("", "–") for cell in row.split("|")[1:-1])
    assert sorted(path.name for path in (out / "runs").iterdir()) == RUNS
    assert len(load_corpus(out / "corpus")["test"]) == 6

    (out / "table.md").unlink()
    (out / "report.html").unlink()
    (out / "runs/stl-srl/scores/test.json").unlink()  # as if it had been stopped before that evaluation
    before = {name: RunFolder(out / "runs" / name).read_json("manifest.json") for name in RUNS}
    second = mtlprune(*command).done()
    assert f"{len(RUNS)} cells, {len(RUNS) - 1} done already" in second.out and "stl-srl: started" in second.out
    assert (out / "table.md").read_text() == table
    assert (out / "report.html").read_text(encoding="utf-8") == page
    assert before == {name: RunFolder(out / "runs" / name).read_json("manifest.json") for name in RUNS}

    other = mtlprune(*command[:-1], 7)
    assert other.code == 2
    assert "found another one; name another --out" in other.err
