"""Layers other than the five in a run: the same data under other names give the same run, number by number."""

from pathlib import Path
from typing import Any

import pytest
from small_runs import trained, with_sentences

from mtlprune.claimed_heads import load_claims
from mtlprune.config.config import ConfigError, build_config
from mtlprune.layers import LAYERS, Layer
from mtlprune.model import MultiTaskModel
from mtlprune.reports.scores.comparisons import compare
from mtlprune.reports.scores.tables import markdown
from mtlprune.reports.scores.tests import with_tests
from mtlprune.runs import RunFolder
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
    stored = folder.read_scores("dev")
    assert evaluate_run(folder, "dev", device="cpu")[0].scores == stored
    [sentence] = MultiTaskModel.load(folder.path).parse("the dog saw a cat .")
    assert sentence.validate().kinds() == {name: name.partition("_")[2] for name in NAMES.values()}
    compared = with_tests(compare([folder], "dev"), 100)
    assert compared.tasks() == [*NAMES.values()]
    assert "C_TREE LAS" in markdown(compared)


def test_gates_of_a_further_layer(small_settings: Any, runs: dict[str, RunFolder], tmp_path: Path) -> None:
    path = runs["further"].read_config()["data"]["path"]
    pruning = {"method": "gates", "sets": "per_task", "rate": 0.1}
    settings = small_settings(epochs=1) | {"tasks": ["a_tags", "b_spans"], "data": {"path": path}, "pruning": pruning}
    settings["decoders"] = {"a_tags": {"type": "pos"}, "b_spans": {"type": "ner", "size": 8}}
    labels = {claim.label.partition(":")[2] for claim in load_claims([trained(settings, tmp_path / "run").path])}
    assert labels == {"A_TAGS", "B_SPANS"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": ["chunk"]}, r"there is no task 'chunk'; .* \(decoders.chunk.type\)"),
        ({"decoders": {"chunk": {"size": 3}}}, "unknown key decoders.chunk; known there: pos, .* the type of their"),
        ({"decoders": {"chunk": {"type": "ner", "sise": 3}}}, r"decoders.chunk: unknown key sise \(did you"),
        ({"decoders": {"chunk": {"type": "ner", "kind": "tags"}}}, "decoders.chunk: kind: input should be 'spans'"),
        ({"decoders": {"joint": {"type": "ner"}}}, "expected the name of a layer.*; found 'joint'"),
    ],
)
def test_what_a_configuration_may_not_say(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config({"data": {"path": "x"}} | change)


def test_a_configuration_is_itself_again() -> None:
    tree = {"data": {"path": "x"}, "tasks": "chunk,pos", "decoders": {"chunk": {"type": "ner", "size": 7}}}
    config = build_config(tree)
    assert config.tasks == ("pos", "chunk") and build_config(config.model_dump(mode="json")) == config
