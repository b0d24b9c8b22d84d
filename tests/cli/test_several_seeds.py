"""Several seeds of one configuration: as many runs, read back as one table."""

import numpy as np
import pytest

import mtlprune as library
from mtlprune.claimed_heads import load_claims
from mtlprune.runs import RunError, RunFolder

SETTINGS = ("tasks=pos", "pruning.method=gates", "train.epochs=1")


def test_seeds_are_runs_and_a_data_frame(mtlprune, lab, tmp_path):
    out = tmp_path / "runs"
    answer = mtlprune("train", lab.config, *SETTINGS, "--seeds", "1,2", "--out", out)
    assert answer.code == 0, answer.err
    assert f"mtlprune table {out}/seed-1 {out}/seed-2" in answer.out
    alone = tmp_path / "alone"
    assert mtlprune("train", lab.config, *SETTINGS, "train.seed=2", "--out", alone).code == 0
    for file in ("metrics.jsonl", "gates.jsonl"):
        assert (alone / file).read_bytes() == (out / "seed-2" / file).read_bytes()
    again = mtlprune("train", lab.config, *SETTINGS, "--seeds", "1,2", "--out", out)
    assert again.code == 0 and again.out.count("was finished already") == 2
    (out / "notes").mkdir()
    frame = library.read_runs(out / "*", alone)
    assert library.read_runs(out).equals(frame[frame["run"] != str(alone)])
    (tmp_path / "more").mkdir()
    out.rename(tmp_path / "more/runs")
    assert set(library.read_runs(tmp_path / "more/*")["run"]) == {f"{tmp_path}/more/runs/seed-{k}" for k in (1, 2)}
    (tmp_path / "more/runs").rename(out)
    tables = [mtlprune("table", *runs, "--split", "dev") for runs in ([out], [out / "seed-1", out / "seed-2"])]
    assert tables[0].code == 0 and tables[0].out == tables[1].out
    main = frame.query("main and split == 'dev'")
    assert main["run"].tolist() == [f"{out}/seed-1", f"{out}/seed-2", str(alone)]
    assert main["train.seed"].tolist() == [1, 2, 2] and set(main["tasks"]) == {"pos"}
    scores = [RunFolder(run).read_scores("dev")["pos"]["accuracy"] for run in main["run"]]
    assert main["value"].tolist() == scores and set(main["score"]) == {"accuracy"}
    [claim] = load_claims([alone])
    np.testing.assert_array_equal(RunFolder(alone).gates()["shared"], claim.gates)


def test_what_is_no_seed_is_refused(mtlprune, lab, single, tmp_path):
    for given, words in (("1,x", "found '1,x'"), ("2,2", "found '2,2'"), ("", "found ''")):
        answer = mtlprune("train", lab.config, "--seeds", given, "--out", tmp_path / "runs")
        assert answer.code == 2 and words in answer.err
    answer = mtlprune("train", lab.config, "train.seed=1", "--seeds", "1", "--out", tmp_path / "runs")
    assert answer.code == 2 and "give one of them" in answer.err and not list(tmp_path.iterdir())
    (tmp_path / "notes").mkdir()
    with pytest.raises(RunError, match="no run is found at"):
        library.read_runs(tmp_path / "*")
    with pytest.raises(RunError, match="expected the gates of epoch 1"):
        RunFolder(single).gates()
