"""Items of all tasks, shuffles, chance; probes against double loops; rows, controls, names of the Result; refusals."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from found import GATES, without_heads
from hypothesis import given
from random_sentences import corpora, nested_spans, spans
from tiny import CONTRACT_FAMILIES, make_tiny

import mtlprune
from mtlprune.analyses.analysis import Request
from mtlprune.analyses.harness.reading import ProbeError, find_sources, variant
from mtlprune.analyses.probes import (
    ANALYSIS,
    AS_RELEASED,
    CONTROLS,
    MODES,
    SHUFFLED,
    SOUND,
    TRUE_LABELS,
    ProbeOptions,
    maths,
)
from mtlprune.analyses.probes.items import Items, chance, lowest, offset_hits, read_items
from mtlprune.analyses.probes.measure import Data, Findings, ProbeSurvey
from mtlprune.analyses.probes.show import findings
from mtlprune.config import apply_override
from mtlprune.corpora.grammar import build_grammar
from mtlprune.corpora.store import save_corpus
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import SENTENCES, SLOTS, SQUARES, observation_batches, observe
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.results import Result, write_result
from mtlprune.sentence import Dependencies, Predicate, Sentence

# (S (NP the old dog) (VP saw (NP (NP cats) (PP in (NP parks)))))
TREE = spans((0, 7, "S"), (0, 3, "NP"), (3, 7, "VP"), (4, 7, "NP"), (4, 5, "NP"), (5, 7, "PP"), (6, 7, "NP"))
SENTENCE = Sentence(
    "1",
    ("the", "old", "dog", "saw", "cats", "in", "parks"),
    pos=("DT", "JJ", "NN", "VBD", "NNS", "IN", "NNS"),
    ner=spans((6, 7, "LOC")),
    dep=Dependencies((3, 3, 4, 0, 4, 7, 5), ("det", "amod", "nsubj", "root", "obj", "case", "nmod")),
    con=TREE,
    srl=(Predicate(3, "see.01", spans((0, 3, "ARG0"), (3, 4, "V"), (4, 7, "ARG1"))),),
).validate()


def listed(task: str) -> list[tuple]:
    found = {items.task: items for items in read_items({"test": [SENTENCE]}, 0)["test"]}[task]
    return [(*map(int, row), found.labels[k]) for row, k in zip(found.columns, found.label, strict=True)]


def test_items_of_a_sentence():
    assert listed("pos")[2] == (2, 3, "NN") and len(listed("pos")) == 7
    assert listed("ner") == [(6, 7, "LOC")]
    assert listed("dep")[:4] == [(3, 1, "det"), (3, 2, "amod"), (4, 3, "nsubj"), (0, 4, "root")]
    assert listed("srl") == [(0, 3, 3, "ARG0"), (4, 7, 3, "ARG1")]  # without V
    assert listed("con") == [(0, 3, "NP"), (4, 5, "NP"), (6, 7, "NP")]
    tasks = [items.task for items in read_items({"test": [SENTENCE.bare().with_layers(pos=SENTENCE.pos)]}, 0)["test"]]
    assert tasks == ["pos"]


@given(nested_spans(7))
def test_the_lowest_phrases_have_none_inside(tree):
    inside = [any(span.start <= later.start and later.end <= span.end for later in tree[place + 1 :])
              for place, span in enumerate(tree)]  # fmt: skip
    assert list(lowest(tree)) == [span for span, holds in zip(tree, inside, strict=True) if not holds]


@given(corpora())
def test_labels_offsets_and_shuffles(sentences):
    found = read_items({"train": sentences[:1], "test": sentences}, 3)
    for train, test in zip(found["train"], found["test"], strict=True):
        assert train.labels == test.labels and train.task == test.task
        assert len(test) == test.offsets[-1] == len(test.columns) == test.counts().sum()
        assert np.array_equal(np.bincount(test.shuffled, minlength=len(test.labels)), test.counts())
        total = test.counts() + train.counts()
        assert all(a >= b for a, b in pairwise(total))
        rows = list(range(len(sentences)))[::-1]
        which, row = test.of(rows)
        parts = [np.arange(test.offsets[s], test.offsets[s + 1]) for s in rows]
        assert np.array_equal(which, np.concatenate(parts))
        assert np.array_equal(row, np.repeat(np.arange(len(rows)), [len(part) for part in parts]))
        assert np.array_equal(test.lengths, np.repeat([len(s) for s in sentences], np.diff(test.offsets)))
    many = {"test": [SENTENCE] * 20}
    first, again, other = (read_items(many, seed)["test"][0].shuffled for seed in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def met(items: Items, row: Sequence[int], choice: Callable[[int, int], bool]) -> bool:
    """Whether an arc, or an argument, is found where ``choice`` says that one word leads to another."""
    if items.task == "dep":
        head, dependent = row
        return choice(dependent, head) or choice(head, dependent)
    start, end, predicate = row
    return any(choice(word, predicate) or choice(predicate, word) for word in range(start, end))


@given(corpora())
def test_offsets_one_by_one(sentences):
    for items in (items for items in read_items({"test": sentences}, 0)["test"] if items.task in ("dep", "srl")):
        expected = np.zeros((len(items.labels), 9))
        for row, label in zip(items.columns.tolist(), items.label, strict=True):
            for offset in range(1, 10):
                expected[label, offset - 1] += met(items, row, lambda one, other, by=offset: one + by == other)
        assert np.array_equal(offset_hits(items, 9), expected)
        assert np.array_equal(offset_hits(items, 2), expected[:, :2])


@given(corpora())
def test_chance_by_all_ways_to_choose(sentences):
    for items in read_items({"test": [s for s in sentences if len(s) < 5]}, 0)["test"]:
        if items.task in ("pos", "ner", "con"):
            assert np.allclose(chance(items), 1 / len(items.labels))
            continue
        expected: dict[int, list[float]] = {}
        for row, label, n in zip(items.columns.tolist(), items.label, items.lengths, strict=True):
            slots = n + (items.task == "dep")  # one for the root
            ways = product(range(slots), repeat=int(slots))
            hits = [met(items, row, lambda one, other, way=way: way[one] == other) for way in ways]
            expected.setdefault(int(label), []).append(float(np.mean(hits)))
        found = chance(items)
        for label, values in expected.items():
            assert found[label] == pytest.approx(np.mean(values))


def test_of_equally_good_heads_the_lowest_is_chosen():
    dev = np.array([[[1.0, 5.0], [5.0, 2.0]], [[np.nan, 0.0], [0.0, np.nan]], np.full((2, 2), np.nan)])
    assert maths.best_heads(dev).tolist() == [1, 1, -1]


def test_sentences_of_different_sizes_are_resampled_as_wholes():
    """Against the plain bootstrap, sentence by sentence."""
    generator = np.random.default_rng(4)
    sizes = generator.integers(1, 6, 80)
    sentence = np.repeat(np.arange(80), sizes)
    gap = generator.choice([-1.0, 0.0, 1.0], len(sentence))
    sums = np.bincount(sentence, gap)
    rows = generator.integers(0, 80, (20_000, 80))
    plain = np.quantile(sums[rows].sum(1) / sizes[rows].sum(1), [0.025, 0.975])
    assert np.allclose(maths.paired_interval(gap, sentence), plain, atol=0.01)


LAYERS, HEADS = 2, 4


@pytest.fixture(scope="module")
def data() -> Data:
    splits = {name: list(part) for name, part in build_grammar(12, 8, 8, 1).items()}
    return Data(splits, read_items(splits, 0))


def made(family: str, folder: Path) -> Encoder:
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
    each = [[h for h, label in zip(hits, labels, strict=True) if label == one] for one in range(k)]
    return np.array([100 * np.mean(mine or np.nan) for mine in each])


def sentences_of(items: Items) -> np.ndarray:
    return np.repeat(np.arange(len(items.offsets) - 1), np.diff(items.offsets))


def units(items: Items, vectors: list[np.ndarray], layer: int, head: int) -> list[np.ndarray]:
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
                for labelling, labels in ((TRUE_LABELS, items.label), (SHUFFLED, items.shuffled)):
                    expected = accuracies(hits, labels, len(items.labels))
                    assert grids[SOUND, labelling, items.task][:, layer, head] == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("labelling", [TRUE_LABELS, SHUFFLED])
def test_centroid_probes_by_double_loops(bert, data, found, mode, labelling):
    source = "train" if mode == SOUND else "test"
    vectors = {split: [alone(bert, s)[1] for s in data.sentences[split]] for split in {source, "test"}}
    for other, items in zip(data.items[source], data.items["test"], strict=True):
        if items.task not in ("pos", "ner", "con"):
            continue
        train, test = (i.label if labelling == TRUE_LABELS else i.shuffled for i in (other, items))
        for layer, head in np.ndindex(LAYERS, HEADS):
            learning = np.array(units(other, vectors[source], layer, head))
            centroids = {int(k): learning[train == k].mean(0) for k in np.unique(train)}
            choices = [nearest(centroids, vector) for vector in units(items, vectors["test"], layer, head)]
            expected = accuracies(np.array(choices) == test, test, len(items.labels))
            assert found.test[mode, labelling, items.task][:, layer, head] == pytest.approx(expected, nan_ok=True)


def test_items_of_the_chosen_head_are_those_counted(data, found):
    for mode in MODES:
        for items in data.items["test"]:
            for layer, head in np.ndindex(LAYERS, HEADS):
                hits = found.hits(mode, items.task, layer, head)
                expected = accuracies(hits, items.label, len(items.labels))
                assert found.test[mode, TRUE_LABELS, items.task][:, layer, head] == pytest.approx(expected, nan_ok=True)


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
    assert set(accuracy["mode"]) == set(MODES)
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
    assert any("no item on which a head is chosen" in note for note in probed.about["notes"]) == (
        len(chosen) < len(there)
    )
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
    small = make_tiny("bert", tmp_path / "small", positions=48)
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
        (["", f"{GATED} train.start=x train.seed=2"], ["POS", "POS (gates)"]),  # its decoders are trained
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
        run.write_json("manifest.json", {"data": {"fingerprint": "f" * 64}})
    found = find_sources([str(tmp_path / str(number)) for number in range(len(runs))])
    assert [source.label for source in found] == expected


def test_the_kind_of_a_run_is_read_off_its_label():
    labels = ["POS", "POS (gates)", "MTL-5 (gates):POS", "MTL-5 (sampled)", "MTL-5 (gates, sampled)", "pretrained"]
    assert [variant(label) for label in labels] == ["", "gates", "gates", "", "gates", ""]
