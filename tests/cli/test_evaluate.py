"""mtlprune evaluate: results in the run folder, and files on which the official scorers say the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import official_scorers
import pytest
from safetensors.torch import load_file, save_file

from mtlprune.config.config import load_config
from mtlprune.corpora.export import write_scorer_files
from mtlprune.corpora.formats.conllu import read_conllu
from mtlprune.corpora.store import load_corpus
from mtlprune.files import file_sha256
from mtlprune.runs import RunFolder
from mtlprune.scores import main_score, ner_seqeval, score
from mtlprune.sentence import Predicate, Sentence, Span
from mtlprune.training import evaluation as scoring
from mtlprune.training.loop import train

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def learned(mtlprune: Call, lab: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that knows its training sentences partly by heart, so that no score of them is trivial."""
    folder = tmp_path_factory.mktemp("learned") / "run"
    settings = ("train.epochs=20", "train.batch_sentences=2", "encoder.word_dropout=0")
    rates = ("train.encoder_rate=3e-3", "train.decoder_rate=5e-3")
    assert mtlprune("train", lab.config, *settings, *rates, "--out", folder).code == 0
    return folder


@pytest.fixture(scope="module")
def files(mtlprune: Call, learned: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scorers")
    answer = mtlprune("evaluate", learned, "--split", "train", "--predictions", folder)
    assert answer.code == 0, answer.err
    assert f"{folder}/srl.gold and srl.pred: 24 of 24 sentences" in answer.out
    return folder


@pytest.fixture(scope="module")
def scored(learned: Path, files: Path) -> dict[str, dict[str, float]]:
    scores = RunFolder(learned).read_scores("train")
    for task, values in scores.items():
        assert 5 < values[main_score(task, {})] < 100, f"{task}: a score that could show no difference"
    return scores


def test_results_are_kept_in_the_run(trained: Path, lab: Any) -> None:
    run = RunFolder(trained)
    gold = list(load_corpus(lab.corpus)["test"])
    predicted = run.read_predictions("test")
    assert [s.words for s in predicted] == [s.words for s in gold]
    assert all(sentence.validate().layers() == ("pos", "ner", "dep", "con", "srl") for sentence in predicted)
    stored = run.read_counts("test")
    assert stored["ids"] == [s.id for s in gold]
    for task, columns in stored["counts"].items():
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        assert score(task, rows) == run.read_scores("test")[task]


def test_evaluating_dev_again_gives_what_training_found(mtlprune: Call, trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    before = (folder / "scores/dev.json").read_text()
    (folder / "scores/dev.json").unlink()
    assert mtlprune("evaluate", folder, "--split", "dev").code == 0
    assert (folder / "scores/dev.json").read_text() == before


def test_results_of_other_weights_or_data_have_their_own_names(mtlprune: Call, trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    assert (
        mtlprune("data", "build", "grammar", "--out", tmp_path / "g", "--train", 9, "--dev", 3, "--test", 0).code == 0
    )
    assert mtlprune("evaluate", folder, "--split", "test", "--best", "ner").code == 0
    assert mtlprune("evaluate", folder, "--split", "dev", "--data", tmp_path / "g").code == 0
    mark = load_corpus(tmp_path / "g").fingerprint[:8]
    assert RunFolder(folder).splits() == ["dev", f"dev.on-grammar-{mark}", "test", "test.best-ner"]
    assert len(RunFolder(folder).read_predictions(f"dev.on-grammar-{mark}")) == 3


def test_ud_eval_agrees(files: Path, scored: dict[str, dict[str, float]], tmp_path: Path) -> None:
    if reason := official_scorers.missing("conll18_ud_eval"):
        pytest.skip(reason)
    said = official_scorers.ud_eval(files, tmp_path)
    assert said["XPOS"] == pytest.approx(scored["pos"]["accuracy"], abs=0.0051)
    assert said["UAS"] == pytest.approx(scored["dep"]["uas"], abs=0.0051)
    assert said["LAS"] == pytest.approx(scored["dep"]["las_no_subtypes"], abs=0.0051)


def test_seqeval_agrees(files: Path, learned: Path, lab: Any, scored: dict[str, dict[str, float]]) -> None:
    theirs = ner_seqeval(load_corpus(lab.corpus)["train"], RunFolder(learned).read_predictions("train"))
    assert theirs == pytest.approx(scored["ner"])
    columns = [line.split(" ") for line in (files / "ner.conlleval").read_text().split("\n")]
    gold = [line.split(" ") for line in (files / "ner.gold").read_text().split("\n")]
    predicted = [line.split(" ") for line in (files / "ner.pred").read_text().split("\n")]
    assert columns == [g + p[1:] for g, p in zip(gold, predicted, strict=True)]


def test_srl_eval_agrees(files: Path, scored: dict[str, dict[str, float]], tmp_path: Path) -> None:
    if reason := official_scorers.missing("srl-eval"):
        pytest.skip(reason)
    said = official_scorers.srl_eval(files, tmp_path)
    for name in ("precision", "recall", "f1"):
        assert said[name] == pytest.approx(scored["srl"][f"conll05_{name}"], abs=0.0051)


def test_evalb_agrees(files: Path, scored: dict[str, dict[str, float]], tmp_path: Path) -> None:
    if reason := official_scorers.missing("evalb"):
        pytest.skip(reason)
    said = official_scorers.evalb(files, tmp_path)
    assert said["Number of Error sentence"] == 0
    assert said["Bracketing FMeasure"] == pytest.approx(scored["con"]["f1"], abs=0.0051)


def test_scorer_files_fit_predictions_to_gold(tmp_path: Path) -> None:
    words = ("Ann", "wants", "to", "go")
    gold = [
        Sentence("a", words, ("NNP", "VBZ", "TO", "VB"), con=(Span(0, 4, "S"),), srl=(Predicate(1, None, (), "want"),)),
        Sentence("b", words),
    ]
    predicted = [
        Sentence("a", words, ("NN",) * 4, con=(Span(1, 4, "VP"),), srl=(Predicate(1), Predicate(3))),
        Sentence("b", words, ("NN",) * 4, con=(), srl=()),
    ]  # fmt: skip
    assert write_scorer_files(gold, predicted, tmp_path / "new" / "folder") == {"pos": 1, "con": 1, "srl": 1}
    folder = tmp_path / "new" / "folder"
    assert {path.name for path in folder.iterdir()} == {
        f"{n}.{s}" for n in ("pos", "con", "srl") for s in ("gold", "pred")
    }
    assert (folder / "con.pred").read_text() == "(TOP (NNP Ann) (VP (VBZ wants) (TO to) (VB go)))\n"
    lemmas = [line.split()[:1] for line in (folder / "srl.pred").read_text().splitlines()]
    assert lemmas == [["-"], ["want"], ["-"], ["go"], []]
    [read] = read_conllu(folder / "pos.pred")
    assert read.pos == ("NN",) * 4
    assert read.dep is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{tmp}", "--split", "test"], "is no run folder (it has no config.yaml); `mtlprune train` makes one"),
        (["{run}", "--split", "tset"], "expected one of the splits train, dev, test, found 'tset'"),
        (["{run}", "--split", "test", "--best", "sentiment"], "no best epoch is kept for 'sentiment'; there are"),
        (["{run}", "--split", "test", "--data", "{tmp}"], "found no corpus.json"),
        (["{run}", "--split", "test", "--device", "cuda:77"], "the device cuda:77 (train.device, --device) cannot"),
        (["{run}", "--split", "test", "--predictions", "{tmp}/thesis.txt"], "thesis.txt"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence(
    arguments: list[str], message: str, mtlprune: Call, trained: Path, tmp_path: Path
) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    answer = mtlprune("evaluate", *(argument.format(tmp=tmp_path, run=trained) for argument in arguments))
    assert answer.code == 2
    assert message in answer.err
    assert answer.err.count("\n") == 1
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_run_that_kept_nothing_yet(mtlprune: Call, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run/best.json").unlink()
    answer = mtlprune("evaluate", tmp_path / "run", "--split", "test")
    assert answer.code == 2
    assert "best.json is missing; is this run complete?" in answer.err


def replace_best(folder: RunFolder) -> None:
    """What training does when it finds better weights: here the same with a louder bias, called epoch 99."""
    best = folder.read_best()
    old = folder.weights_path(best["joint"]["epoch"])
    tensors = load_file(old)
    name = next(name for name in tensors if name.startswith("tasks.pos") and name.endswith("bias"))
    tensors[name][0] += 100.0
    save_file(tensors, folder.weights_path(99))
    new = {"epoch": 99, "score": 99.0, "sha256": file_sha256(folder.weights_path(99))}
    folder.write_json("best.json", dict.fromkeys(best, new))
    folder.forget_results(best)
    old.unlink()


@pytest.mark.parametrize("moment", ["while it is loaded", "while it is evaluated"])
def test_results_are_of_the_weights_that_best_names(
    moment: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(shutil.copytree(trained, tmp_path / "run"))
    waiting = [replace_best]

    def first(original: Callable[..., Any]) -> Callable[..., Any]:
        def then(*args: Any, **named: Any) -> Any:
            if waiting:
                waiting.pop()(folder)
            return original(*args, **named)

        return then

    if moment == "while it is loaded":
        monkeypatch.setattr(RunFolder, "verify_weights", first(RunFolder.verify_weights))
    else:
        monkeypatch.setattr(scoring, "evaluate", first(scoring.evaluate))
    result, _, _ = scoring.evaluate_run(folder, "test")
    assert not waiting
    monkeypatch.undo()
    again, _, _ = scoring.evaluate_run(RunFolder(shutil.copytree(folder.path, tmp_path / "copy")), "test")
    assert folder.read_scores("test") == RunFolder(tmp_path / "copy").read_scores("test")
    assert result.scores == again.scores != RunFolder(trained).read_scores("test")


def test_results_are_not_written_once_training_named_better_weights(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between every two steps of training, who evaluated the best weights of before is turned away."""
    folder, seen, original = RunFolder(tmp_path / "run"), [], RunFolder.forget_results

    def forget(self: RunFolder, keys: Iterable[str]) -> None:
        if seen and keys:
            assert not folder.write_results("test", {}, [], {}, [], seen[-1])
        original(self, keys)
        seen.append(folder.read_best())

    monkeypatch.setattr(RunFolder, "forget_results", forget)
    train(load_config(lab.config, ["tasks=pos", "train.epochs=4"]), folder)
    assert len({entry["joint"]["epoch"] for entry in seen}) > 1 and "test" not in folder.splits()
