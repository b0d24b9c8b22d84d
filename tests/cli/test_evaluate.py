"""mtlprune evaluate: results in the run folder, and files on which the official scorers say the same."""

import shutil
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from mtlprune.config.config import load_config
from mtlprune.corpora.export import write_scorer_files
from mtlprune.corpora.formats.conllu import read_conllu
from mtlprune.corpora.store import load_corpus
from mtlprune.files import file_sha256
from mtlprune.runs import RunFolder
from mtlprune.scores import score
from mtlprune.sentence import Predicate, Sentence, Span
from mtlprune.training import evaluation as scoring
from mtlprune.training.loop import train


def test_stored_counts_are_of_the_stored_sentences_and_make_the_stored_scores(trained):
    run = RunFolder(trained)
    stored = run.read_counts("test")
    assert stored["ids"] == [sentence.id for sentence in run.read_predictions("test")]
    for task, columns in stored["counts"].items():
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        assert score(task, rows) == run.read_scores("test")[task]


def test_evaluating_dev_again_gives_what_training_found(mtlprune, trained, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    before = (folder / "scores/dev.json").read_text()
    (folder / "scores/dev.json").unlink()
    answer = mtlprune("evaluate", folder, "--split", "dev", "--predictions", tmp_path / "files")
    assert answer.code == 0 and f"{tmp_path / 'files'}/srl.gold and srl.pred: 8 of 8 sentences" in answer.out
    assert (folder / "scores/dev.json").read_text() == before
    assert [s.pos for s in read_conllu(tmp_path / "files/pos.pred")] == [
        s.pos for s in RunFolder(folder).read_predictions("dev")
    ]


def test_results_of_other_weights_or_data_have_their_own_names(mtlprune, trained, tmp_path):
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


def test_scorer_files_fit_predictions_to_gold(tmp_path):
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
        (["{run}", "--split", "test", "--predictions", "{tmp}/thesis.txt"], "thesis.txt"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence(arguments, message, mtlprune, trained, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    answer = mtlprune("evaluate", *(argument.format(tmp=tmp_path, run=trained) for argument in arguments))
    answer.refuses(message)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


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
def test_results_are_of_the_weights_that_best_names(moment, trained, tmp_path, monkeypatch):
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


def test_results_are_not_written_once_training_named_better_weights(lab, tmp_path, monkeypatch):
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
