"""What every task owes with every family of encoders: one settings table, the same checks for each row.

A row is trained once on ten sentences of the grammar corpus (train and dev are the same ten), and all checks look at
that run. A sixth task is one more row.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tiny import CONTRACT_FAMILIES, make_tiny

from mtlprune import model
from mtlprune.config.config import build_config
from mtlprune.corpora.grammar import build_grammar
from mtlprune.corpora.store import save_corpus
from mtlprune.evaluation import scores
from mtlprune.model import MultiTaskModel
from mtlprune.runs.folder import RunFolder
from mtlprune.sentence import LAYERS, Sentence
from mtlprune.training.loop import Event, train

COPIES = 16  # of the ten sentences in train, so that an epoch is 8 updates and evaluation costs little


class Row(NamedTuple):
    """Tasks trained together, settings of their decoders that are not the defaults, and the families with which this is
    tested; the others are left to the slow tests."""

    tasks: tuple[str, ...]
    decoders: dict[str, Any]
    families: tuple[str, ...]


# full-size decoders would take minutes
SMALL = {"dep": {"arc_size": 64, "relation_size": 32}, "con": {"span_size": 64, "label_size": 32}}
MLP = {"predicates": "ranked", "argument_scorer": "mlp", "affinity": False, "size": 64, "dropout": 0.05}
MLP |= {"argument_ratio": 3.0, "predicate_ratio": 0.6}
ROWS = {
    **{  # a family a task; the sixth, bert, has the decoders below
        task: Row((task,), {task: SMALL.get(task, {})}, (CONTRACT_FAMILIES[place or 5],))
        for place, task in enumerate(LAYERS)
    },
    "joint": Row(tuple(LAYERS), SMALL, ("bert", "deberta-v2")),
    "ner, by bio": Row(("ner",), {"ner": {"type": "bio"}}, ("bert",)),
    "dep, relations by mlp": Row(("dep",), {"dep": {**SMALL["dep"], "relation_scorer": "mlp"}}, ("bert",)),
    "dep, projective": Row(("dep",), {"dep": {**SMALL["dep"], "projective": True}}, ("roberta",)),
    "con, labels by mlp": Row(("con",), {"con": {**SMALL["con"], "label_scorer": "mlp"}}, ("electra",)),
    "srl, ranked, arguments by mlp": Row(("srl",), {"srl": MLP}, ("distilbert",)),
}
FAST = {*LAYERS, "ner, by bio"}  # tests/tasks has the other decoders by oracles
CASES = [
    pytest.param((name, family), id=f"{name}-{family}", marks=() if fast else pytest.mark.slow)
    for name, row in ROWS.items()
    for family in (CONTRACT_FAMILIES if name in LAYERS else row.families)
    for fast in [name in FAST and family in row.families]
]


@pytest.fixture(scope="module")
def ten() -> list[Sentence]:
    """Ten short sentences with all layers, among them an entity and a predicate each."""
    drawn = build_grammar(300, 0, 0, seed=7)["train"]
    return [s for s in drawn if 5 <= len(s) <= 12 and s.ner and s.srl][:10]


@pytest.fixture(scope="module")
def corpus(ten: list[Sentence], tmp_path_factory: pytest.TempPathFactory) -> Path:
    copies = [replace(s, id=f"{s.id}-{copy}") for copy in range(COPIES) for s in ten]
    out = tmp_path_factory.mktemp("ten") / "corpus"
    save_corpus({"train": copies, "dev": ten}, out, name="ten", licence="Apache-2.0", sources={})
    return out


class Trained(NamedTuple):
    row: Row
    folder: RunFolder
    model: MultiTaskModel
    best: dict[str, float]


@pytest.fixture(scope="module")
def trained(request, ten, corpus, tmp_path_factory) -> Trained:
    name, family = request.param
    row, place = ROWS[name], tmp_path_factory.mktemp("run")
    make_tiny(family, place / "encoder", [word for sentence in ten for word in sentence.words])
    settings = {"epochs": 40, "batch_sentences": 20, "encoder_rate": 3e-3, "decoder_rate": 8e-3}
    settings |= {"device": "cpu", "precision": "fp32", "threads": 1, "checkpoint_minutes": 1e6}
    config = build_config(
        {
            "data": {"path": str(corpus)},
            "tasks": list(row.tasks),
            "encoder": {"name": str(place / "encoder"), "word_dropout": 0.0},
            "decoders": row.decoders,
            "train": settings,
        }
    )
    folder = RunFolder(place / "run")
    best: dict[str, float] = {}

    def watch(event: Event) -> None:
        if event.evaluation is not None and event.evaluation.joint() > sum(best.values()) / len(row.tasks):
            best.update(event.evaluation.main())

    train(config, folder, watch=watch, stop=lambda: bool(best) and min(best.values()) == 100)
    return Trained(row, folder, MultiTaskModel.load(folder.path), best)


@pytest.mark.parametrize("trained", CASES, indirect=True)
class TestContract:
    def test_overfits_ten_sentences(self, trained: Trained):
        assert set(trained.best) == set(trained.row.tasks)
        assert min(trained.best.values()) / 100 >= 0.99, trained.best

    def test_loaded_it_predicts_the_same(self, trained: Trained, ten: list[Sentence]):
        kept = trained.folder.read_predictions("dev")
        loaded = list(trained.model.annotate(ten))
        assert loaded == kept
        assert [s.layers() for s in loaded] == [tuple(t for t in LAYERS if t in trained.row.tasks)] * len(ten)
        assert [s.validate().words for s in loaded] == [s.words for s in ten]
        stored = trained.folder.read_scores("dev")
        for task in trained.row.tasks:
            rows = [scores.count(task, g, p) for g, p in zip(ten, loaded, strict=True)]
            assert scores.score(task, rows) == stored[task]

    def test_alone_in_a_batch_and_in_another_order(self, trained: Trained, ten: list[Sentence]):
        # sentences it was not trained on are in it too: their words are spelled out, so lengths differ a lot
        strange = [replace(s, id=f"new-{s.id}") for s in build_grammar(12, 0, 0, seed=11)["train"]]
        sentences = [*ten, *strange]
        together = list(trained.model.annotate(sentences))
        assert [found for s in sentences for found in trained.model.annotate([s])] == together
        assert list(trained.model.annotate(sentences[::-1])) == together[::-1]

    def test_decoding_while_the_next_batch_is_encoded_changes_nothing(self, trained, ten, monkeypatch):
        monkeypatch.setattr(model, "EVALUATION_SENTENCES", 3)
        in_turn = list(trained.model.annotate(ten))
        monkeypatch.setattr(model, "OVERLAPPING", {"cpu"})
        assert list(trained.model.annotate(ten)) == in_turn

    def test_an_unknown_layer_contributes_nothing(self, trained: Trained, ten: list[Sentence]):
        model = trained.model
        for task in trained.row.tasks:
            known = [s if place not in (0, 4, 9) else s.with_layers(**{task: None}) for place, s in enumerate(ten)]
            rest = [s for s in known if getattr(s, task) is not None]
            with torch.no_grad():
                mixed = losses_of(model, ten, {other: known for other in trained.row.tasks})
                without = losses_of(model, rest, {task: rest})
                whole = losses_of(model, ten, {other: ten for other in trained.row.tasks})
                nothing = losses_of(model, ten, {task: [s.with_layers(**{task: None}) for s in ten]})
            torch.testing.assert_close(mixed[task], without[task], rtol=1e-4, atol=1e-6)
            assert all(torch.equal(mixed[other], whole[other]) for other in trained.row.tasks if other != task)
            assert nothing == {}


def losses_of(model: MultiTaskModel, sentences: Sequence[Sentence], gold: dict[str, Sequence[Sentence]]) -> Any:
    model.eval()
    parts: dict[str, Any] = {task: model.tasks[task] for task in gold}
    targets = {
        task: [part.target(row) if part.is_annotated(row) else None for row in gold[task]]
        for task, part in parts.items()
    }
    return model.losses(model.collate(model.encoder.tokenize_all([s.words for s in sentences]), targets))
