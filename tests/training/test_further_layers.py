"""Layers other than the five in a run: the same data under other names give the same run, number by number."""

import pytest
from small_runs import trained, with_sentences

from mtlprune.layers import LAYERS, Layer
from mtlprune.model import MultiTaskModel
from mtlprune.reports.scores.comparisons import compare, with_tests
from mtlprune.reports.scores.tables import markdown
from mtlprune.runs.claims import load_claims
from mtlprune.runs.folder import RunFolder
from mtlprune.sentence import Sentence
from mtlprune.training.evaluation import evaluate_run

NAMES = {"pos": "a_tags", "ner": "b_spans", "dep": "c_tree", "con": "d_brackets", "srl": "e_frames"}


def renamed(sentence: Sentence) -> Sentence:
    """The five layers under other names, in the same order; the brackets name the tags that stand for pos."""
    kinds = LAYERS | {"con": "brackets:a_tags"}
    layers = {new: Layer(kinds[old], sentence.get(old)) for old, new in NAMES.items()}
    return sentence.bare().with_layers(**layers)


@pytest.fixture(scope="module")
def runs(quiet_settings, tmp_path_factory):
    """One epoch of all five layers under their own names, and under others; without dropout, which differs by name."""
    folder = tmp_path_factory.mktemp("further")
    known = quiet_settings(epochs=1)
    further = with_sentences(known, folder / "corpus", lambda sentences: list(map(renamed, sentences)))
    further["tasks"] = [*NAMES.values()]
    further["decoders"] = {new: {"type": old, **known["decoders"].get(old, {})} for old, new in NAMES.items()}
    for made, names in ((known, NAMES), (further, NAMES.values())):
        heads = {name: "1-1,1-3,2-2,2-4" for name in names}
        made["pruning"] = {"method": "given", "sets": "per_task", "heads": {"per_task": heads}}
    return {"known": trained(known, folder / "known"), "further": trained(further, folder / "further")}


def test_losses_scores_and_predictions_are_those_of_the_known_names(runs: dict[str, RunFolder]) -> None:
    [known], [further] = (runs[name].read_metrics() for name in ("known", "further"))
    assert further["loss"] == {NAMES[task]: loss for task, loss in known["loss"].items()}
    assert further["dev"] == {NAMES[task]: values for task, values in known["dev"].items()}
    predicted = [sentence.with_layers(con=None) for sentence in runs["known"].read_predictions("dev")]
    found = [sentence.with_layers(d_brackets=None) for sentence in runs["further"].read_predictions("dev")]
    assert found == [renamed(sentence) for sentence in predicted]


def test_the_run_is_loaded_scored_again_and_compared(runs: dict[str, RunFolder]) -> None:
    folder = runs["further"]
    assert evaluate_run(folder, "dev", device="cpu")[0].scores == folder.read_scores("dev")
    [sentence] = MultiTaskModel.load(folder.path).parse("the dog saw a cat .")
    assert sentence.validate().kinds() == {name: name.partition("_")[2] for name in NAMES.values()}
    compared = with_tests(compare([folder], "dev"), 100)
    assert compared.tasks() == [*NAMES.values()] and "C_TREE LAS" in markdown(compared)
    labels = {claim.label.partition(":")[2].lower() for claim in load_claims([folder.path])}
    assert labels == {*NAMES.values()}
