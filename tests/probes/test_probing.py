"""Probes against double loops, planted heads, removed heads; rows, controls, names of the Result; refusals."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from found import GATES, met, without_heads
from tiny import CONTRACT_FAMILIES, make_tiny

import mtlprune
from mtlprune.analyses.analysis import Request
from mtlprune.analyses.probes import ANALYSIS, AS_RELEASED, CONTROLS, MODES, SHUFFLED, SOUND, TRUE, ProbeOptions
from mtlprune.analyses.probes.items import Items
from mtlprune.analyses.probes.measure import Data, Findings, ProbeSurvey
from mtlprune.analyses.probes.show import findings
from mtlprune.analyses.reading import ProbeError, find_sources, variant
from mtlprune.config import apply_override
from mtlprune.corpora.grammar import build_grammar
from mtlprune.corpora.store import save_corpus
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import SENTENCES, SLOTS, SQUARES, observation_batches, observe
from mtlprune.results import Result, write_result
from mtlprune.runs import RunFolder
from mtlprune.sentence import Sentence

LAYERS, HEADS = 2, 4


@pytest.fixture(scope="module")
def data() -> Data:
    return Data.read({name: list(part) for name, part in build_grammar(12, 8, 8, 1).items()})


def made(family: str, folder: Path) -> Encoder:
    """Words of the corpus are spelled out."""
    return Encoder.load(str(make_tiny(family, folder, positions=160)), attention="eager")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return made("bert", tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def found(bert: Encoder, data: Data) -> Findings:
    return ProbeSurvey(bert).run(data)


def alone(encoder: Encoder, sentence: Sentence) -> tuple[np.ndarray, np.ndarray]:
    """Word attention (L, A, S, S) with specials and head vectors (n, L, A, d) of one sentence, in float64."""
    seen = observe(encoder, encoder.collate(encoder.tokenize_all([sentence.words])))
    attention = torch.stack([seen.word_attention(layer)[0] for layer in range(LAYERS)])
    vectors = torch.stack([seen.word_vectors(heads) for heads in seen.heads], 1)
    return attention.double().numpy(), vectors.double().numpy()


def finds(items: Items, row: Sequence[int], attention: np.ndarray) -> bool:
    """Whether a head with this attention (S, S) finds an arc, for which the root can be chosen, or an argument."""
    first, last = int(items.task != "dep"), len(attention) - 1
    choice = [int(np.argmax(weights[first:last])) for weights in attention[first:last]]
    return met(items, row, lambda one, other: choice[one] == other)


def accuracies(hits: Sequence[bool], labels: np.ndarray, k: int) -> np.ndarray:
    """(K,): percent of the items of each label."""
    each = [[h for h, label in zip(hits, labels, strict=True) if label == one] for one in range(k)]
    return np.array([100 * np.mean(mine or np.nan) for mine in each])


def sentences_of(items: Items) -> np.ndarray:
    """The sentence of each item."""
    return np.repeat(np.arange(len(items.offsets) - 1), np.diff(items.offsets))


def units(items: Items, vectors: list[np.ndarray], layer: int, head: int) -> list[np.ndarray]:
    """The vector of each unit in one head."""
    places = zip(sentences_of(items), items.columns, strict=True)
    return [np.mean(vectors[s][start:end, layer, head], 0) for s, (start, end) in places]


def nearest(centroids: dict[int, np.ndarray], vector: np.ndarray) -> int:
    return max(sorted(centroids), key=lambda label: centroids[label] @ vector / np.linalg.norm(centroids[label]))


def test_attention_probes_by_double_loops(bert, data, found):
    for split, grids in (("dev", found.dev), ("test", found.test)):
        seen = [alone(bert, sentence)[0] for sentence in data.sentences[split]]
        for items in (items for items in data.items[split] if items.task in ("dep", "srl")):
            rows = list(zip(sentences_of(items), items.columns.tolist(), strict=True))
            for layer, head in np.ndindex(LAYERS, HEADS):
                hits = [finds(items, row, seen[s][layer, head]) for s, row in rows]
                for labelling, labels in ((TRUE, items.label), (SHUFFLED, items.shuffled)):
                    expected = accuracies(hits, labels, len(items.labels))
                    assert grids[SOUND, labelling, items.task][:, layer, head] == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("labelling", [TRUE, SHUFFLED])
def test_centroid_probes_by_double_loops(bert, data, found, mode, labelling):
    source = "train" if mode == SOUND else "test"
    vectors = {split: [alone(bert, s)[1] for s in data.sentences[split]] for split in {source, "test"}}
    for other, items in zip(data.items[source], data.items["test"], strict=True):
        if items.task not in ("pos", "ner", "con"):
            continue
        train, test = (i.label if labelling == TRUE else i.shuffled for i in (other, items))
        for layer, head in np.ndindex(LAYERS, HEADS):
            learning = np.array(units(other, vectors[source], layer, head))
            centroids = {int(k): learning[train == k].mean(0) for k in np.unique(train)}
            choices = [nearest(centroids, vector) for vector in units(items, vectors["test"], layer, head)]
            expected = accuracies(np.array(choices) == test, test, len(items.labels))
            assert found.test[mode, labelling, items.task][:, layer, head] == pytest.approx(expected, nan_ok=True)


def test_one_batch_or_many(bert, data, found, monkeypatch):
    monkeypatch.setattr("mtlprune.encoder.observe.SENTENCES", 1)
    batches: list[None] = []
    single = ProbeSurvey(bert, on_batch=lambda: batches.append(None)).run(data)
    for one, other in ((single.dev, found.dev), (single.test, found.test)):
        assert one.keys() == other.keys()
        for key, grid in one.items():
            np.testing.assert_allclose(grid, other[key], err_msg=str(key))
    assert len(batches) == sum(map(len, data.sentences.values())) + len(data.sentences["test"])


def test_items_of_the_chosen_head_are_those_counted(data, found):
    for mode in MODES:
        for items in data.items["test"]:
            for layer, head in np.ndindex(LAYERS, HEADS):
                hits = found.hits(mode, items.task, layer, head)
                expected = accuracies(hits, items.label, len(items.labels))
                assert found.test[mode, TRUE, items.task][:, layer, head] == pytest.approx(expected, nan_ok=True)


def test_batches_keep_to_their_budget():
    lengths = [500, 3, 40, 41, 120, *([25] * 200)]
    batches = list(observation_batches(lengths))
    assert sorted(row for rows in batches for row in rows) == list(range(len(lengths)))
    for rows in batches:
        width = max(lengths[row] for row in rows)
        assert len(rows) <= SENTENCES
        assert len(rows) == 1 or (len(rows) * width**2 <= SQUARES and len(rows) * width <= SLOTS)
    assert not list(observation_batches([]))


@pytest.mark.parametrize("family", ["bert", *(pytest.param(f, marks=pytest.mark.slow) for f in CONTRACT_FAMILIES[1:])])
def test_a_closed_head_is_a_removed_head(tmp_path, data, family):
    encoder = made(family, tmp_path)
    gated = ProbeSurvey(encoder, GATES).run(data, (AS_RELEASED,))
    removed = ProbeSurvey(without_heads(encoder, GATES)).run(data, (AS_RELEASED,))
    closed = (GATES == 0).numpy()
    for key, grid in gated.test.items():
        with_items = next(i for i in data.items["test"] if i.task == key[2]).counts() > 0
        assert np.isnan(grid[:, closed]).all() and not np.isnan(grid[with_items][:, ~closed]).any()
        gap = np.abs(grid - removed.test[key])  # folding the gates rounds: a choice between near equals may flip
        assert np.nanmax(gap) < 25 and np.nanmean(gap) < 0.5
        assert np.array_equal(np.isnan(grid), np.isnan(removed.test[key]))


GROUP = ["mode", "control", "task", "label"]


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> Request:
    folder = tmp_path_factory.mktemp("probing")
    save_corpus(build_grammar(30, 12, 12, 1), folder / "corpus", name="grammar", licence="Apache-2.0", sources={})
    encoder = make_tiny("bert", folder / "encoder", positions=160)
    return Request((str(encoder),), folder / "corpus", ProbeOptions(mode="both", few=8))


def probe(request: Request, options: dict[str, Any], **changes: Any) -> Result:
    return ANALYSIS.measure(replace(request, options=request.options.model_copy(update=options), **changes))


@pytest.fixture(scope="module")
def probed(request_: Request, tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("written")
    write_result(folder, probe(request_, {}))
    return mtlprune.read_results(folder)["probes"]


def test_a_row_for_each_head_and_label_and_one_best(probed):
    accuracy = probed.frames["accuracy"]
    for (_, control, _, _), rows in accuracy.groupby(GROUP):
        assert rows["best"].sum() <= 1 and rows["items"].nunique() == 1 and rows["encoder"].unique() == ["pretrained"]
        if control in ("offset", "chance"):
            assert rows[["layer", "head"]].to_numpy().tolist() == [[0, 0]]
            assert rows["distance"].notna().all() == (control == "offset")
        else:
            everywhere = [[layer, head] for layer in range(1, LAYERS + 1) for head in range(1, HEADS + 1)]
            assert rows[["layer", "head"]].to_numpy().tolist() == everywhere
            assert rows.loc[rows["best"], "dev"].eq(rows["dev"].max()).all()
    tasks = probed.about["kinds"]
    controls = set(accuracy[["task", "control"]].itertuples(index=False, name=None))
    always = {"none", "random_encoder", "shuffled_labels", "chance"}
    assert controls == {(t, c) for t in tasks for c in always} | {("dep", "offset"), ("srl", "offset")}
    assert set(accuracy["mode"]) == set(MODES) == set(probed.about["modes"])
    assert probed.about["splits"]["train"] == {"sentences": 30, "too_long": 0} and "[CLS]" in probed.about["specials"]


def test_labels_say_what_the_best_rows_say(probed):
    accuracy, labels = probed.frames["accuracy"], probed.frames["labels"]
    best = accuracy[accuracy["best"]].set_index(GROUP)
    assert labels["few"].any() and not labels["few"].all() and (labels["few"] == (labels["items"] < 8)).all()
    assert set(labels.loc[labels["apart"], "label"]) == {"root"}
    for row in labels.itertuples():
        mine = best.loc[(row.mode, "none", row.task, row.label)]
        assert (row.layer, row.head, row.items) == (mine["layer"], mine["head"], mine["items"])
        reached = {control: getattr(row, control) for control in CONTROLS if not np.isnan(getattr(row, control))}
        for control, value in {"none": row.test, **reached}.items():
            assert value == pytest.approx(best.loc[(row.mode, control, row.task, row.label), "test"], abs=1e-3)
        assert row.gain == pytest.approx(row.test - max(reached.values()), abs=1e-3)
    chosen = accuracy[(accuracy["control"] == "none") & accuracy["best"]]
    assert len(chosen) == len(labels)  # without a dev item to choose by there is no row
    there = accuracy.query("control == 'none'").drop_duplicates(GROUP)
    assert any("no item to choose a head on" in note for note in probed.about["notes"]) == (len(chosen) < len(there))
    released = accuracy.query("mode == @AS_RELEASED")
    pd.testing.assert_series_equal(released["dev"], released["test"], check_names=False)
    labels = labels.query("mode == 'sound' and task == 'dep' and not few and not apart")
    line = next(line for line in findings(probed) if line.startswith("sound, pretrained, seed 0"))
    gains = (labels["gain"].mean(), (labels["gain"] > 0).sum(), len(labels))
    assert f"DEP {labels['test'].mean():.2f} (" in line and "{:+.2f}; {} of {})".format(*gains) in line


def test_part_of_train_and_no_random_encoder_and_the_same_numbers(request_, probed):
    again = probe(request_, {"mode": SOUND, "random_encoder": False})
    mine, theirs = (one.frames["accuracy"].query("mode == 'sound' and control == 'none'") for one in (again, probed))
    np.testing.assert_allclose(mine["test"], theirs["test"], rtol=1e-5)
    part = probe(request_, {"mode": SOUND, "random_encoder": False, "train_sentences": 5})
    assert part.about["splits"]["train"]["sentences"] == 5
    assert set(part.frames["accuracy"]["control"]) == {"none", "shuffled_labels", "offset", "chance"}
    assert part.frames["labels"]["random_encoder"].isna().all()


def test_what_is_left_out_or_refused(request_, tmp_path):
    small = make_tiny("bert", tmp_path / "small", positions=64)
    left = probe(request_, {"mode": AS_RELEASED, "random_encoder": False}, names=(str(small),)).about["splits"]["test"]
    assert 0 < left["too_long"] < 12 and left["sentences"] + left["too_long"] == 12
    save_corpus({"test": build_grammar(1, 1, 2, 1)["test"]}, tmp_path / "c", name="g", licence="x", sources={})
    with pytest.raises(ProbeError, match="expected the splits train, dev, test"):
        probe(request_, {}, corpus=tmp_path / "c")
    tiny = make_tiny("bert", tmp_path / "tiny", positions=4)
    with pytest.raises(ProbeError, match="no sentence of"):
        probe(request_, {}, names=(str(tiny),))


FIVE = "tasks=[pos,ner,dep,con,srl]"
GATED = "pruning.method=gates"


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (["", "train.seed=2"], ["POS", "POS"]),
        (["tasks=[dep]", GATED], ["DEP", "POS (gates)"]),  # no comparison takes one for the other
        (["", f"{GATED} train.seed=2"], ["POS", "POS (gates)"]),  # no seeds of one thing
        (["", GATED, f"{GATED} removed"], ["POS", "POS (gates)", "POS (gates, heads removed)"]),
        ([GATED, f"{GATED} train.start=x train.freeze=decoders"], ["POS (gates)", "POS (static gates)"]),
        ([FIVE, f"{FIVE} train.mixing=sampled"], ["MTL-5", "MTL-5 (sampled)"]),
        (["", "encoder.fusion=gate"], ["POS", "POS (fusion gate)"]),
        (["name=a", "name=b", "tasks=[dep]"], ["POS (a)", "POS (b)", "DEP"]),
    ],
)
def test_what_differs_has_another_label(tmp_path, runs, expected):
    for number, words in enumerate(runs):
        tree: dict[str, Any] = {"data": {"path": "x"}, "encoder": {"name": "minilm"}, "tasks": ["pos"]}
        run = RunFolder(tmp_path / str(number))
        run.encoder_path.mkdir(parents=True)
        for word in words.split():
            if word == "removed":
                (run.encoder_path / "heads.json").write_text("{}")
            else:
                apply_override(tree, word)
        run.write_config(tree)
    found = find_sources([str(tmp_path / str(number)) for number in range(len(runs))])
    assert [source.label for source in found] == expected


def test_the_kind_of_a_run_is_read_off_its_label():
    labels = ["POS", "POS (gates)", "MTL-5 (gates):POS", "MTL-5 (sampled)", "MTL-5 (gates, sampled)", "pretrained"]
    assert [variant(label) for label in labels] == ["", "gates", "gates", "", "gates", ""]
