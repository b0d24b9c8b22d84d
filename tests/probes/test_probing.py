"""The Result of probing real encoders: rows, chosen heads, controls, and what is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tiny import make_tiny

import mtlprune
from mtlprune.analyses.analysis import Request
from mtlprune.analyses.probes import ANALYSIS, AS_RELEASED, CONTROLS, MODES, SOUND, ProbeOptions
from mtlprune.analyses.probes.show import findings
from mtlprune.analyses.reading import ProbeError, find_sources
from mtlprune.corpora.grammar import build_grammar
from mtlprune.corpora.store import save_corpus
from mtlprune.results import Result, write_result

LAYERS, HEADS = 2, 4
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
def found(request_: Request, tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("written")
    write_result(folder, probe(request_, {}))
    return mtlprune.read_results(folder)["probes"]


def test_a_row_for_each_head_and_label_and_one_best(found):
    accuracy = found.frames["accuracy"]
    for (_, control, _, _), rows in accuracy.groupby(GROUP):
        assert rows["best"].sum() <= 1 and rows["items"].nunique() == 1 and rows["encoder"].unique() == ["pretrained"]
        if control in ("offset", "chance"):
            assert rows[["layer", "head"]].to_numpy().tolist() == [[0, 0]]
            assert rows["distance"].notna().all() == (control == "offset")
        else:
            everywhere = [[layer, head] for layer in range(1, LAYERS + 1) for head in range(1, HEADS + 1)]
            assert rows[["layer", "head"]].to_numpy().tolist() == everywhere
            assert rows.loc[rows["best"], "dev"].eq(rows["dev"].max()).all()
    tasks = found.about["kinds"]
    controls = set(accuracy[["task", "control"]].itertuples(index=False, name=None))
    always = {"none", "random_encoder", "shuffled_labels", "chance"}
    assert controls == {(t, c) for t in tasks for c in always} | {("dep", "offset"), ("srl", "offset")}
    assert set(accuracy["mode"]) == set(MODES) == set(found.about["modes"])
    assert found.about["splits"]["train"] == {"sentences": 30, "too_long": 0} and "[CLS]" in found.about["specials"]


def test_labels_say_what_the_best_rows_say(found):
    accuracy, labels = found.frames["accuracy"], found.frames["labels"]
    best = accuracy[accuracy["best"]].set_index(GROUP)
    assert labels["few"].any() and not labels["few"].all() and (labels["few"] == (labels["items"] < 8)).all()
    assert set(labels.loc[labels["apart"], "label"]) == {"root"}
    for row in labels.itertuples():
        key = (row.task, row.label)
        mine = best.loc[(row.mode, "none", *key)]
        assert (row.layer, row.head, row.items) == (mine["layer"], mine["head"], mine["items"])
        assert row.test == pytest.approx(mine["test"], abs=1e-3)
        reached = {control: getattr(row, control) for control in CONTROLS if not np.isnan(getattr(row, control))}
        for control, value in reached.items():
            assert value == pytest.approx(best.loc[(row.mode, control, *key), "test"], abs=1e-3)
        assert row.gain == pytest.approx(row.test - max(reached.values()), abs=1e-3)
    chosen = accuracy[(accuracy["control"] == "none") & accuracy["best"]]
    assert len(chosen) == len(labels)  # without a dev item to choose by there is no row
    there = accuracy.query("control == 'none'").drop_duplicates(GROUP)
    assert any("no item to choose a head on" in note for note in found.about["notes"]) == (len(chosen) < len(there))


def test_as_released_chooses_on_what_it_reports(found):
    released = found.frames["accuracy"].query("mode == @AS_RELEASED")
    pd.testing.assert_series_equal(released["dev"], released["test"], check_names=False)
    single = released.query("items == 1 and control == 'none' and task == 'pos'")
    assert len(single) and (single["test"] == 100).all()


def test_means_leave_out_rare_labels_and_the_root(found):
    labels = found.frames["labels"].query("mode == 'sound' and task == 'dep' and not few and not apart")
    line = next(line for line in findings(found) if line.startswith("sound, pretrained, seed 0"))
    gains = (labels["gain"].mean(), (labels["gain"] > 0).sum(), len(labels))
    assert f"DEP {labels['test'].mean():.2f} (" in line and "{:+.2f}; {} of {})".format(*gains) in line


def test_part_of_train_and_no_random_encoder_and_the_same_numbers(request_, found):
    again = probe(request_, {"mode": SOUND, "random_encoder": False})
    mine, theirs = (one.frames["accuracy"].query("mode == 'sound' and control == 'none'") for one in (again, found))
    np.testing.assert_allclose(mine["test"], theirs["test"], rtol=1e-5)
    part = probe(request_, {"mode": SOUND, "random_encoder": False, "train_sentences": 5})
    assert part.about["splits"]["train"]["sentences"] == 5
    assert set(part.frames["accuracy"]["control"]) == {"none", "shuffled_labels", "offset", "chance"}
    assert part.frames["labels"]["random_encoder"].isna().all()


def test_long_sentences_are_left_out_and_counted(request_, tmp_path):
    small = make_tiny("bert", tmp_path / "small", positions=64)
    left = probe(request_, {"mode": AS_RELEASED, "random_encoder": False}, names=(str(small),)).about["splits"]["test"]
    assert 0 < left["too_long"] < 12 and left["sentences"] + left["too_long"] == 12


def test_what_cannot_be_probed_is_refused(request_, tmp_path):
    name = request_.names[0]
    with pytest.raises(ProbeError, match="are both pretrained, seed 0"):
        find_sources([name, name])
    with pytest.raises(ProbeError, match="found none"):
        find_sources([])
    save_corpus({"test": build_grammar(1, 1, 2, 1)["test"]}, tmp_path / "c", name="g", licence="x", sources={})
    with pytest.raises(ProbeError, match="expected the splits train, dev, test"):
        probe(request_, {}, corpus=tmp_path / "c")
    tiny = make_tiny("bert", tmp_path / "tiny", positions=4)
    with pytest.raises(ProbeError, match="no sentence of"):
        probe(request_, {}, names=(str(tiny),))
