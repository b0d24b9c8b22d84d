"""Commands of analyses: what they write, the section of the report; and mtlprune bench."""

import io
import json
import os
import shutil
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
import torch
from run_folders import write_run
from tiny import HEADS, LAYERS, make_lab
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

import mtlprune as package
from mtlprune.analyses.analysis import Request, find, read
from mtlprune.analyses.harness import ablation
from mtlprune.analyses.harness.ablation import AblatableRun
from mtlprune.analyses.harness.reading import Subject, remarks
from mtlprune.analyses.heads.roles import measure as roles
from mtlprune.analyses.heads.roles.maths import two_sided
from mtlprune.analyses.vectors.degeneration.labels import Frequencies
from mtlprune.cli import display
from mtlprune.cli.display import count_steps, duration, working
from mtlprune.cli.terminal import PlainConsole
from mtlprune.corpora.store import load_corpus, save_corpus
from mtlprune.encoder.arcs import uas_of
from mtlprune.encoder.interventions import Closed
from mtlprune.encoder.model import Encoder
from mtlprune.evaluation.head_masks import single_heads
from mtlprune.figures.grid import Grid
from mtlprune.model import MultiTaskModel
from mtlprune.reports.analyses import Figure, section
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.runs.results import Result
from mtlprune.sentence import Sentence
from mtlprune.training.evaluation import evaluate

FEW = {
    "smoothing": ("--sentences", 6, "closing=3", "permutations=9"),
    "degeneration": ("--sentences", 8, "rows=40", "permutations=49"),
    "dissection": ("train_sentences=12", "epochs=2", "hidden=8", "decoder_seeds=2"),
    "syntax": (),
    "gradients": ("permutations=49",),
    "cross": ("--sentences", 6, "draws=2", "resamples=99"),
    "roles": ("--sentences", 6, "draws=2", "resamples=99"),
    "curve": ("--sentences", 6, "every=3", "draws=2", "tests=3", "train_sentences=8", "resamples=99", "margin=0.1"),
}
FIGURES = {
    "smoothing": ("layers", "sigma", "labels", "heads"),
    "degeneration": ("spectrum", "projection", "pieces", "isotropy", "heads", "labels", "lost"),
    "dissection": ("importance", "heads", "across", "subsets", "agreement", "losses"),
    "syntax": ("relations", "heads"),
    "gradients": ("maps", "cosine"),
    "cross": ("matrix",),
    "roles": ("maps",),
    "curve": ("curves",),
}


@pytest.fixture
def claims(tmp_path: Path, encoder: Path) -> list[str]:
    gates = np.array([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0]])[:LAYERS, :HEADS]
    more = np.array([[0, 1.0, 0, 0], [0, 0, 0, 0]])
    runs = [
        write_run(tmp_path / task, [task], np.maximum(gates * (task != "pos"), more), encoder=str(encoder)).path
        for task in ("pos", "ner", "dep", "srl")
    ]
    return [word for run in runs for word in ("--claims", str(run))]


@pytest.fixture
def measured(mtlprune, lab, tmp_path):
    """Run an analysis: its Result and words; all that belongs to it lies there, and its section shows all of it."""

    def run(name: str, *words: Any, without: tuple[str, ...] = (), tables: int = 5) -> tuple[Result, str]:
        out, more = tmp_path / "results", () if "tasks=none" in words else FEW[name]
        answer = mtlprune("analyze", name, *words, "--corpus", lab.corpus, "--out", out, *more).done()
        result = package.read_results(out)[name]
        drawn = [figure for figure in FIGURES[name] if figure not in without]
        wanted = {f"{name}-{figure}.{ending}" for figure in drawn for ending in ("png", "svg")}
        wanted |= {path.name for path in out.glob(f"{name}-*.parquet")}  # tables with many rows
        assert {path.name for path in out.iterdir()} == wanted | {f"{name}.{kind}" for kind in ("json", "md", "tex")}
        blocks = section(find(name), result)
        assert sum(isinstance(block, Figure) for block in blocks) == len(drawn)
        grids = [block for block in blocks if isinstance(block, Grid)]
        assert all(len(row) == len(table.header) for table in grids for row in table.rows) and len(grids) >= tables
        return result, answer.out + (out / f"{name}.md").read_text()

    return run


def test_a_pattern_of_claims_that_the_shell_expanded_is_refused(mtlprune, lab, claims, tmp_path):
    _, pos, _, ner, *_ = claims
    words = ("analyze", "cross", "--corpus", lab.corpus, "--out", tmp_path / "new")
    mtlprune(*words, tmp_path, "--claims", pos, ner).refuses("put a pattern in quotes")
    assert "quotes" not in mtlprune(*words, ner, "--claims", pos).err  # that run is to be read


@pytest.mark.slow
def test_smoothing_of_sentences_of_one_word_has_no_traceback(mtlprune, encoder, tmp_path):
    sentences = [Sentence(f"s{place}", (word,), ("X",)) for place, word in enumerate(("dog", "man", "sees"))]
    save_corpus({"dev": sentences}, tmp_path / "one", name="one", licence="none", sources={})
    command = ("analyze", "smoothing", encoder, "--corpus", tmp_path / "one", "--split", "dev", "permutations=2")
    assert "Similarity of tokens" in mtlprune(*command).done().out


def test_smoothing(measured, encoder, claims):
    result, text = measured("smoothing", encoder, *claims)
    assert result.about["claims"]["groups"]["stem"] >= 1
    assert "rigorous bound holds everywhere" in text and "q <" in text


def test_gradients(measured, mtlprune, lab, trained, single, encoder, tmp_path):
    """Halves make up the whole, the sum of losses is no more than its parts; an encoder alone is left out."""
    result, _ = measured("gradients", trained, single, encoder, tables=3)
    assert "without decoders" in result.about["notes"][0]
    mtlprune("analyze", "gradients", encoder, "--corpus", lab.corpus, "--out", tmp_path / "none").refuses("decoders")
    heads = result.wide("heads").set_index(["name", "task", "mode", "layer", "head"])["importance"].sort_index()
    joint = heads.xs("MTL-5")
    parts = joint.xs("", level="mode")
    sums = parts.drop("all tasks", level="task").groupby(["layer", "head"]).sum()
    assert (parts.xs("all tasks") <= sums + 1e-6).all()
    halves = np.stack([joint.xs(("pos", half)) for half in ("half 1", "half 2")])
    whole = joint.xs(("pos", "")).to_numpy()
    assert (halves.min(0) - 1e-9 <= whole).all() and (whole <= halves.max(0) + 1e-9).all()
    table = tmp_path / "heads"
    mtlprune("analyze", "heads", tmp_path / "results", "permutations=19", "--out", table).done()
    assert "importance DEP in MTL-5" in (table / "heads.md").read_text()


def test_cross(measured, mtlprune, lab, single, trained, claims, encoder, tmp_path):
    """Of the same heads the difference is that of the scores; a run whose heads are closed heads is left out. What
    only CON claims, and what it shares, is closed apart."""
    both = write_run(tmp_path / "con", ["con"], [[0, 1, 0, 1], [0, 0, 0, 0]], encoder=str(encoder)).path
    words = ("pruning=random", "pruning.keep=4", "tasks=pos", "train.epochs=1", "--out", tmp_path / "pruned")
    mtlprune("train", lab.config, *words).done()
    none = write_run(tmp_path / "none", ["con"], np.zeros((LAYERS, HEADS)), encoder=str(encoder)).path
    words = ("--corpus", lab.corpus, "--out", tmp_path / "refused", *claims, "--claims", none)
    mtlprune("analyze", "cross", single, *words, "--split", "none").refuses("claims no head")  # before anything is read
    elsewhere = RunFolder(shutil.copytree(single, tmp_path / "elsewhere"))
    elsewhere.write_json("manifest.json", elsewhere.read_manifest() | {"data": {"fingerprint": "0"}})
    mtlprune("analyze", "cross", elsewhere.path, *words[:-2]).refuses("found one of another corpus")
    claims += ["--claims", str(both)]
    result, _ = measured("cross", single, trained, tmp_path / "pruned", *claims, tables=1)
    assert "closed heads" in result.about["notes"][0]
    keys = ["encoder", "task", "other", "mode"]
    cells = result.frames["cells"].set_index(keys)
    sizes = result.frames["claimed"].groupby(["other", "measure"])["value"].sum().unstack()
    assert sizes.loc["CON"].to_dict() == {"claimed": 2, "exclusive": 1, "shared": 1}
    assert sizes.drop("CON")["shared"].isna().all()  # all that the others claim, another one claims, too
    assert len(cells) == (1 + 5) * sizes.count().sum()
    assert (cells["p_holm"].isna() == (cells.index.get_level_values(0) == cells.index.get_level_values(2))).all()
    assert np.allclose(cells["estimate"], cells["closed"] - cells["random"], atol=1e-3)
    scores = result.frames["scores"]
    whole = measured("cross", single, *claims, "exclusive=false", tables=1)[0].frames["claimed"]
    assert whole.equals(result.frames["claimed"].query("measure == 'claimed'").reset_index(drop=True))
    claimed = scores[(scores["mode"] != "") & (scores["control"] == "")].set_index(keys)["value"]
    assert np.allclose(claimed.sort_index(), cells["closed"].sort_index(), atol=1e-3)
    side_by_side, _ = measured("cross", single, trained, tmp_path / "pruned", *claims, "--jobs", 2, tables=1)
    assert side_by_side.about == result.about
    for name, frame in result.frames.items():
        pd.testing.assert_frame_equal(side_by_side.frames[name], frame)


def test_roles_by_closing_each_head_alone(measured, mtlprune, lab, trained, tmp_path):
    """Every head of every task on both halves, and closing the confirmed ones beside random heads, if there are any."""
    result, text = measured("roles", trained, "closing=single", tables=1)
    heads = result.frames["heads"]
    assert set(heads["measure"]) == {"gain", "detectable"} and set(heads["step"]) == {0, 1}
    assert len(heads) == 2 * 2 * LAYERS * HEADS * heads["task"].nunique()
    chosen = result.frame("chosen", "task", "p_holm")
    assert set(result.frame("gains", "task")["task"]) - {"mean"} == set(chosen[chosen["p_holm"] < 0.05]["task"])
    assert "Closing a single head raises the task's score" in text
    _, text = measured("roles", trained, "updates=2", "train_sentences=8", "batch=4", "permutations=9", tables=2)
    assert "lets through effects of 0.025 nats" in text  # 4 λ / 8 heads
    command = ("analyze", "roles", trained, "--corpus", lab.corpus, "--out", tmp_path / "no")
    mtlprune(*command, "closing=single", "updates=3").refuses("updates has no effect")
    mtlprune(*command, "scored=test").refuses("scored has no effect")
    mtlprune(*command, "closing=single", "scored=tset").refuses("expected a split tset, found")


@pytest.mark.parametrize(
    "words", [("roles", "closing=single"), ("cross",), ("curve", "train_sentences=8", "every=3", "resamples=99")]
)
def test_an_interrupted_analysis_goes_on(mtlprune, lab, trained, single, claims, tmp_path, monkeypatch, words):
    """No evaluation is made twice but that of open heads, whose layers are needed; results are those of one go. Nothing
    is taken from another question or from a file that is damaged."""
    name, *settings = words
    selections = claims if name == "cross" else []
    words = (
        "analyze",
        name,
        trained,
        single,
        *settings,
        *selections,
        "--corpus",
        lab.corpus,
        "--sentences",
        6,
        "--out",
    )
    whole, parts, evaluations = tmp_path / "whole", tmp_path / "parts", []

    def evaluated(*arguments: Any) -> Any:
        evaluations.append(arguments)
        if len(evaluations) == stop:
            raise RunError("interrupted")
        return evaluate(*arguments)

    stop = 0
    monkeypatch.setattr(ablation, "evaluate", evaluated)
    mtlprune(*words, whole).done()
    number, stop = len(evaluations), len(evaluations) - 2
    evaluations.clear()
    assert mtlprune(*words, parts).code == 2
    other = shutil.copytree(parts, tmp_path / "other")
    evaluations.clear()
    assert "an interrupted command" in mtlprune(*words, parts).done().err
    assert 3 <= len(evaluations) <= 3 + 2 * 3 and number > 12
    assert {path.name for path in parts.iterdir()} == {path.name for path in whole.iterdir()}
    assert all((whole / path.name).read_bytes() == path.read_bytes() for path in parts.glob("*.json"))
    stop = 0
    evaluations.clear()
    [file, *_] = sorted((other / f".unfinished-{name}").iterdir())
    mtlprune(*words[:-1], "--split", "test", "--out", shutil.copytree(other, tmp_path / "another question")).done()
    assert len(evaluations) > number / 2
    for path in file.parent.iterdir():
        path.write_bytes(file.read_bytes()[:100])
    assert "so that it is made again" in mtlprune(*words, other).err


def test_gates_that_an_interrupted_analysis_fitted_are_not_fitted_again(mtlprune, lab, trained, tmp_path, monkeypatch):
    """Results are those of one go, and other options fit their own gates."""
    words = ("analyze", "roles", trained, "train_sentences=8", "batch=4", "permutations=9", "--corpus", lab.corpus)
    whole, parts, fits, stop = tmp_path / "whole", tmp_path / "parts", [], 0

    def fitted(*arguments: Any) -> Any:
        fits.append(arguments)
        if len(fits) == stop:
            raise RunError("interrupted")
        return two_sided(*arguments)

    monkeypatch.setattr(roles, "two_sided", fitted)
    mtlprune(*words, "updates=3", "--out", whole).done()
    number = stop = len(fits)
    fits.clear()
    assert mtlprune(*words, "updates=3", "--out", parts).code == 2
    other = shutil.copytree(parts, tmp_path / "other")
    stop = 0
    fits.clear()
    mtlprune(*words, "updates=3", "--out", parts).done()
    assert len(fits) == 1 and (parts / "roles.json").read_bytes() == (whole / "roles.json").read_bytes()
    fits.clear()
    mtlprune(*words, "updates=2", "--out", other).done()
    assert len(fits) == number > 2


def test_lower_layers_that_are_computed_once_change_no_count(trained, lab):
    """For sets of heads in one layer and in several, in fp32 and bf16, and for each kind of ablation."""
    model, sentences = MultiTaskModel.load(str(trained), device="cpu"), list(load_corpus(lab.corpus)["dev"])
    masks = [*single_heads((LAYERS, HEADS))[::3], np.ones((LAYERS, HEADS), bool)]
    for precision, kind in (
        (torch.float32, "zero"),
        (torch.bfloat16, "zero"),
        *((torch.float32, k) for k in get_args(Closed)),
    ):
        run = AblatableRun(model, precision).contributing(kind, sentences, masks)
        for heads, counts in zip(
            [np.zeros((LAYERS, HEADS), bool), *masks], run.counts_each(masks, sentences), strict=True
        ):
            expected = run.counts(heads, sentences)
            assert counts.keys() == expected.keys() and len(counts) > 1
            assert all(np.array_equal(counts[task].counts, expected[task].counts) for task in counts)


def test_exchange_with_few_pairs_is_refused(mtlprune, lab, single, claims):
    words = ("analyze", "exchange", single, "--corpus", lab.corpus, *claims)
    mtlprune(*words, "pairs=5").refuses("greater than or equal to 6")
    mtlprune(*words, "pairs=6").refuses("pos is left out, because it has only ")


def test_exchange_of_natural_sentences(mtlprune, encoder, claims, tmp_path):
    """Pairs are of the split that is named; tasks in whose layer none differ are left out, and so are their runs."""
    config, runs = make_lab(tmp_path, encoder, (600, 4, 4)), (tmp_path / "several", tmp_path / "one")
    for run, tasks in zip(runs, ("pos,ner,srl", "pos"), strict=True):
        mtlprune("train", config, f"tasks={tasks}", "train.epochs=1", "data.train_sentences=150", "--out", run).done()
    words = ("analyze", "exchange", *runs, "--corpus", tmp_path / "corpus", *claims, "draws=2", "resamples=99")
    answer = mtlprune(*words, "pairs=8", "natural=train", "single=false", "--out", tmp_path / "out").done()
    result = package.read_results(tmp_path / "out")["exchange"]
    assert "heads" not in result.frames
    assert set(result.frames["cells"]["task"]) == {"ner", "srl"} and set(result.frames["cells"]["pairs"]) == {8}
    assert "in which pairs differ" in result.about["notes"][0]
    assert "a sentence of train and this sentence with" in answer.out + (tmp_path / "out" / "exchange.md").read_text()
    mtlprune(*words, "natural=none").refuses("expected a split of train, dev, test, found 'none'")


def test_curve(measured, single, trained, claims, encoder):
    """Every order begins and ends alike; areas are those of the curve; a task's own gates rank its heads; sets have no
    common head and are sufficient."""
    result, _ = measured("curve", single, trained, encoder, *claims, tables=2)
    assert "without decoders" in result.about["notes"][0]
    curve, keys = result.frames["curve"], ["encoder", "task", "heads"]
    assert (curve[curve["heads"].isin([0, 8])].groupby(keys)["score"].nunique() == 1).all()
    assert sorted(curve["heads"].unique()) == [0, 3, 6, 8]
    scores = curve.set_index([*keys, "mode", "control", "step"])["score"]
    order = ("POS", "pos", slice(None), "fisher", "", 0)
    none, three, six, whole = scores.loc[order]
    area = result.frames["areas"].set_index(["encoder", "task", "mode", "control"]).loc["POS", "pos", "fisher", ""]
    expected = (3 * (none + 2 * three + six) + 2 * (six + whole)) / 16 - none
    assert area["cpr"] * (whole - none) == pytest.approx(expected, abs=1e-3) and area["n"] == 1
    assert set(curve.query("encoder == 'POS'")["mode"]) == {"fisher", "importance", "gates"}
    sets = result.frames["sets"].set_index(["encoder", "task", "step"])
    member = result.frames["heads"].query("measure == 'set' and value > 0").groupby(["encoder", "task", "value"]).size()
    assert member.tolist() == sets["heads"].sort_index().tolist()
    assert (sets["alone"] >= sets["all"] - 0.1 - 1e-3).all()
    assert "With tests=3 no p of a set is below 0.25" in result.about["notes"][-1]


def test_work_is_announced_in_pipes_once_it_has_begun():
    terminal = PlainConsole(file=io.StringIO(), width=80)
    with count_steps(bar=terminal) as (part, step):
        part("loading")
        part("reading", 3)
        assert not terminal.file.getvalue()
        step()
        step()
        part("comparing")
        step()
    assert terminal.file.getvalue() == "reading 1 of 3\ncomparing\n"


def test_work_without_steps_says_once_a_minute_that_it_goes_on(monkeypatch):
    monkeypatch.setattr(display, "MINUTE", 0.01)
    terminal = PlainConsole(file=io.StringIO(), width=80)
    with working("tests", terminal):
        time.sleep(0.2)
    with count_steps(bar=terminal) as (part, step):
        part("reading", 3)
        part("loading", process=1)
        part("closing heads", 5, process=1)
        step(2, process=1)
        part("loading", 5, process=2)
        part("another run", process=2)
        time.sleep(0.2)
    printed = terminal.file.getvalue()
    assert printed.startswith("after 0 s: tests\nafter 0 s: tests\n")
    assert "after 0 s: reading, 0 of 3; closing heads, 2 of 5; another run\n" in printed
    assert [duration(seconds) for seconds in (40, 150, 45_240, 845_674)] == ["40 s", "2.5 min", "13 h", "9.8 days"]


def test_output_that_nobody_reads_any_more_ends_no_work():
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w") as pipe:
        terminal = PlainConsole(file=pipe)
        terminal.print("epoch 1")
        terminal.print("epoch 2")


def test_cross_closes_heads_as_is_asked_for(measured, single, claims):
    """With all heads open no substitute counts; with some closed, it does."""
    zero, other = (measured("cross", single, *claims, f"closed={name}", tables=1)[0] for name in ("zero", "optimal"))
    keys = ["other", "mode", "control", "step"]
    scores = [result.frames["scores"].set_index(keys)["value"] for result in (zero, other)]
    assert scores[0].loc[""].tolist() == scores[1].loc[""].tolist() and not scores[0].equals(scores[1])
    assert other.about["settings"]["closed"] == "optimal"


def test_cross_with_only_claimed_heads_open(measured, single, encoder, tmp_path):
    """NER claims the heads that POS does not, so closing NER's heads leaves those of POS open."""
    heads = np.zeros((LAYERS, HEADS))
    heads[:, 1] = 1
    for task, gates in (("pos", heads), ("ner", 1 - heads)):
        write_run(tmp_path / "claims" / task, [task], gates, encoder=str(encoder))
    claims = ("--claims", str(tmp_path / "claims" / "*"))
    plain, result = (measured("cross", single, *claims, *words, tables=1)[0] for words in ((), ("claimed_only=true",)))
    pd.testing.assert_frame_equal(result.frames["cells"], plain.frames["cells"])
    scores = result.frames["scores"].groupby(["mode", "other", "control"])["value"].mean()
    only_claimed, only_random = scores["others", "POS", ""], scores["others", "POS", "random"]
    whole, none = scores["", "", ""], scores["all", "POS", ""]
    assert only_claimed == scores["claimed", "NER", ""]
    rows = result.frames["claimed_only"].query("encoder == 'POS' and term == 'points'").set_index("mode")["estimate"]
    names = ["claims - random", "claims - none", "random - none", "all - none"]
    wanted = [only_claimed - only_random, only_claimed - none, only_random - none, whole - none]
    assert np.allclose(rows[names], wanted, atol=1e-3)


def test_cross_with_factors_of_0_and_1(measured, mtlprune, lab, single, claims, tmp_path):
    """A factor of 0 closes heads, and a factor of 1 changes nothing. Specificity is of closed heads only."""
    closed, zero, one = (
        measured("cross", single, *claims, *words, tables=1) for words in ((), ("factor=0",), ("factor=1",))
    )
    for name, frame in closed[0].frames.items():
        if name != "specificity":
            pd.testing.assert_frame_equal(zero[0].frames[name], frame)
    assert one[0].frames["scores"]["value"].nunique() == 1
    assert "Closing the heads" in closed[1] and "Multiplying by 0 the outputs of the heads" in zero[1]
    words = ("analyze", "cross", single, "--corpus", lab.corpus, *claims, "--out", tmp_path / "refused", "factor=2")
    mtlprune(*words, "closed=mean").refuses("closed=mean has no effect")
    mtlprune(*words, "specific=pos").refuses("leave out specific or factor")
    mtlprune(*words, "claimed_only=true").refuses("leave out claimed_only or factor")


def test_single_heads_are_closed_in_four_ways(mtlprune, lab, single, masked, tmp_path):
    """Zero ≡ a head whose values reach no output; optimal loses no more than mean and zero on what it is fitted to; the
    table of heads has the rises, and so has the page of one head."""
    corpus, each = load_corpus(lab.corpus), np.eye(LAYERS * HEADS, dtype=bool).reshape(-1, LAYERS, HEADS)
    totals, rises = {}, {}
    for kind in get_args(Closed):
        run = AblatableRun(MultiTaskModel.load(single)).contributing(kind, list(corpus["train"]), list(each))
        totals[kind] = run.losses(list(corpus["train"]), list(each)).sum()
        options = find("heads").options(closed=kind, permutations=9)
        result = find("heads").measure(Request([str(single)], Path(), options))
        rises[kind] = result.frames["heads"].query("measure == 'closing POS'").set_index(["layer", "head"])["value"]
    assert totals["optimal"] <= min(totals["mean"], totals["zero"])
    assert len({tuple(rise.round(6)) for rise in rises.values()}) == 4
    run, nothing = AblatableRun(MultiTaskModel.load(single)), [np.zeros((LAYERS, HEADS), bool)]
    losses = [run.losses(list(corpus["dev"]), nothing).item()]
    width = run.model.encoder.head_hooks.width
    with torch.no_grad():
        run.model.encoder.transformer.encoder.layer[1].attention.output.dense.weight[:, 2 * width : 3 * width] = 0
    losses.append(run.losses(list(corpus["dev"]), nothing).item())
    assert rises["zero"][2, 3] == pytest.approx(losses[1] - losses[0], abs=1e-5)
    words = ("analyze", "head", single, "layer=2", "head=3")
    result = mtlprune(*words, "closed=mean", "--out", tmp_path / "head").done()
    [row] = package.read_results(tmp_path / "head")["head"].frames["closing"].to_dict("records")
    assert row["closed"] - row["open"] == pytest.approx(rises["mean"][2, 3], abs=1e-4)
    assert "Cost of closing the head" in (tmp_path / "head" / "head.md").read_text()
    mtlprune("analyze", "heads", masked, "closed=mean").refuses("expected finished runs without gates")
    mtlprune("analyze", "head", masked, "layer=1", "head=1", "closed=mean").refuses("whose heads are all open")


def test_a_head_reads_the_corpus_of_a_run_that_was_started_elsewhere(mtlprune, lab, single, tmp_path, monkeypatch):
    run = RunFolder(shutil.copytree(single, tmp_path / "work/runs/pos"))
    (tmp_path / "work/corpus").symlink_to(lab.corpus)
    tree, manifest = run.read_config(), run.read_manifest()
    run.write_config(tree | {"data": tree["data"] | {"path": "corpus"}})
    run.write_json("manifest.json", manifest | {"data": manifest["data"] | {"started": "../.."}, "files": {}})
    monkeypatch.chdir(tmp_path)
    found = mtlprune("analyze", "head", "work/runs/pos", "layer=1", "head=1", "--sentences", 1).done().out
    assert "Attention: " in found


@pytest.mark.slow
def test_degeneration(measured, lab, trained, single, encoder, claims):
    result, _ = measured("degeneration", encoder, trained, single, *claims, without=("lost",))  # none has 20 items
    assert [one["encoder"] for one in result.about["encoders"]] == ["pretrained", "MTL-5", "POS"]
    decoders = result.frames["decoders"][["task", "encoder"]].drop_duplicates().to_numpy().tolist()
    assert decoders == [*([task, "MTL-5"] for task in ("pos", "ner", "dep", "con", "srl")), ["pos", "POS"]]
    last = result.wide("layers").query(f"layer == {LAYERS}").set_index("name")
    assert np.isclose(last["share_heads"], result.wide("heads").groupby("name")["cone"].sum()).all()
    counts = Counter(tag for sentence in load_corpus(lab.corpus)["train"] for tag in sentence.pos)
    rows = result.frames["labels"].query("task == 'pos' and encoder == 'POS'")
    assert dict(zip(rows["label"], rows["frequency"], strict=True)) == dict(counts)


def test_label_frequencies_are_of_the_sentences_that_trained_each_run(lab, train):
    corpus = load_corpus(lab.corpus)
    frequencies = Frequencies(lab.corpus, corpus.fingerprint)
    for settings, sentences in {
        ("data.half=1",): corpus["train"].one_half(1),
        ("data.train_sentences=6",): corpus["train"].first(6),
        ("data.train=dev", "data.dev=train"): corpus["dev"],
    }.items():
        run = train("-".join(settings), "tasks=pos", "train.epochs=1", *settings)
        task = MultiTaskModel.load(run).tasks["pos"]
        rows = task.label_rows()
        expected = Counter(tag for sentence in sentences for tag in sentence.pos)
        assert dict(zip(rows.names, frequencies.of(run, task, rows), strict=True)) == dict(expected)


@pytest.mark.slow
def test_dissection(measured, trained, single, encoder):
    result, _ = measured("dissection", encoder, single, trained, tables=9)
    assert result.names == ["pretrained", "POS", "MTL-5"] and (result.wide("encoders")["error"] < 1e-5).all()
    scored = {name: rows["task"].unique().tolist() for name, rows in result.with_names("tasks").groupby("name")}
    assert scored["pretrained"] == scored["MTL-5"] and scored["POS"][0] == "pos"
    losses = result.with_names("losses")
    assert set(losses["task"]) == {"pos"} and set(losses["name"]) == {"POS"} and set(losses["other"]) == {"MTL-5"}
    scores, alike = result.wide("scores"), result.with_names("tuned_agreement")
    assert scores["score_sd"].notna().sum() > 100 and (scores["term"].eq("") | scores["score"].gt(0)).all()
    assert set(alike["other"]) == {"POS", "MTL-5"} and set(alike.loc[alike["other"] == "POS", "task"]) == {"pos"}
    sums = result.wide("layers").groupby(["name", "layer"], observed=True)["importance"].sum()
    assert np.allclose(sums, 1, atol=1e-4)


def test_dissection_without_scores_and_with_gates(measured, train, encoder):
    run = train("gates-pos", "pruning=gates", "tasks=pos", "train.epochs=1")
    left_out = ("subsets", "agreement", "losses")
    result, _ = measured("dissection", encoder, run, "tasks=none", without=left_out, tables=4)
    assert set(result.with_names("gates")["other"]) == {"pretrained"} and not {"losses", "scores"} & set(result.frames)


def test_dissection_of_masked_words(mtlprune, lab, trained, tiny_encoder, tmp_path):
    masked, out = tmp_path / "masked", tmp_path / "out"
    AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(tiny_encoder("bert"))).save_pretrained(masked)
    AutoTokenizer.from_pretrained(tiny_encoder("bert")).save_pretrained(masked)
    given = ("tasks=mlm", "epochs=2", "decoder_seeds=2", "--corpus", lab.corpus, "--split", "train")
    answer = mtlprune("analyze", "dissection", masked, trained, *given, "--out", out).done()
    assert "With f of pretrained, the encoder's prediction head predicts " in answer.out
    result, page = package.read_results(out)["dissection"], (out / "dissection.md").read_text()
    assert set(result.with_names("scores")["name"]) == {"pretrained"}
    assert any("MTL-5: no masked words" in note for note in result.about["notes"])
    assert "pretrained, own head | pretrained, learnt" in page and "±" in page.rpartition("own head |")[2]
    assert {path.stem for path in out.glob("*.svg")} >= {"dissection-subsets", "dissection-across"}


def test_a_missing_result_is_told_with_its_command(tmp_path):
    with pytest.raises(RunError, match="mtlprune analyze dissection"):
        read(tmp_path, "dissection")


def test_numbers_are_those_of_the_functions(mtlprune, lab, trained, tiny_encoder, tmp_path):
    masked, blimp, out = tmp_path / "masked", tmp_path / "blimp", tmp_path / "out"
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(tiny_encoder("bert"))).save_pretrained(masked)
    AutoTokenizer.from_pretrained(tiny_encoder("bert")).save_pretrained(masked)
    blimp.mkdir()
    for name in ("a", "b"):
        entry = {"UID": name, "linguistics_term": f"t-{name}", "field": "syntax"}
        pairs = [entry | {"sentence_good": f"the dog {k}", "sentence_bad": f"a cat cat {k}"} for k in range(5)]
        (blimp / f"{name}.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    given = [f"blimp={blimp}", "pairs=3", "--corpus", lab.corpus, "--split", "train", "--out", out]
    mtlprune("analyze", "syntax", masked, trained, *given).done()
    result = package.read_results(out)["syntax"]
    assert [one["encoder"] for one in result.about["encoders"]] == ["pretrained", "MTL-5"]
    counts = uas_of(Encoder.load(str(masked), attention="eager"), list(load_corpus(lab.corpus)["train"]))
    assert result.about["tokens"] == counts.size()
    facts = result.frames["encoders"].query("encoder == 'pretrained'").set_index("measure")
    single = counts.best()
    assert facts.loc["uas_single", "value"] == pytest.approx(single.value, abs=1e-3)
    assert facts.loc["uas_single", ["layer", "head"]].tolist() == [single.layer + 1, single.head + 1]
    grids = result.grids(result.about["encoders"][0])
    assert np.allclose(grids["uas"], counts.by_head(), atol=1e-3) and grids["twonn"].shape == (2, 4)
    judged = result.frames["blimp"].query("measure == 'overall'")
    assert judged["n"].tolist() == [6] and any("no BLiMP" in note for note in result.about["notes"])


@pytest.mark.slow
def test_bench_prints_and_writes_ratios(mtlprune, lab, tmp_path):
    out = tmp_path / "bench.json"
    answer = mtlprune("bench", lab.config, "tasks=pos,dep", "--batches", 2, "--rounds", 1, "--out", out).done()
    figures, lines = json.loads(out.read_text(encoding="utf-8")), answer.out.splitlines()
    plain = {"plain fine-tuning", "plain fine-tuning, random batches"}
    assert set(figures["steps"]) == plain | {"STL pos", "STL dep", "MTL-2 joint", "MTL-2 joint, gated"}
    for kind, seconds in figures["steps"].items():
        row = next(line for line in lines if kind in line)
        assert f"{seconds[0]:.2f}" in row and f"{seconds[1]:.2f}" in row
        ratio = figures["ratios"][kind]
        assert f"{ratio['value']:.2f} (" in row or "unsteady" in row  # where rounds differ by more than a fifth
    assert 1e8 < figures["memory"] < 1e10  # a fresh process with torch in it
    assert f"{figures['memory'] / 1e9:.2f} GB" in answer.out


def test_a_task_that_a_run_has_not_learnt_is_named(single, tmp_path):
    """Closing heads changes a score of 0 by nothing, which must not look like a measurement."""
    run = RunFolder(shutil.copytree(single, tmp_path / "run"))
    learnt = Subject("POS", str(run.path), 1, SimpleNamespace(attention_direction="full"), None, "")
    assert not remarks(learnt)
    run.write_json("best.json", {task: best | {"score": 0.0} for task, best in run.read_best().items()})
    (text,) = remarks(learnt)
    assert text.startswith("POS, seed 1: the score of POS on dev is 0")
