"""Label rows: one a class, live weights, each moving its own class's scores only; places count what collect lists."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from mtlprune.corpora.formats.iob2 import iob2_from_spans
from mtlprune.corpora.grammar import build_grammar
from mtlprune.sentence import NOT_ARGUMENTS, Sentence
from mtlprune.tasks import TASKS
from mtlprune.tasks.con import binarise
from mtlprune.tasks.pairs import pair_scorer

SENTENCES: list[Sentence] = build_grammar(30, 1, 1, seed=4)["train"]
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "dep": [{"relation_scorer": "biaffine"}, {"relation_scorer": "mlp"}],
    "con": [{"label_scorer": "biaffine"}, {"label_scorer": "mlp"}],
}
ROWS = [(name, options) for name in TASKS for options in OPTIONS.get(name, [{}])]


def make(name: str, options: dict[str, Any]) -> Any:
    kind, layer = TASKS[name], "ner" if name == "bio" else name
    task = kind(kind.collect(SENTENCES, layer), 24, kind.Options(**options))
    task.layer = layer
    return task


def counted(name: str) -> Counter[str]:
    """Items of every label, by hand."""
    found: Counter[str] = Counter()
    for s in SENTENCES:
        if name == "pos":
            found.update(s.pos)
        elif name == "ner":
            found.update(span.label for span in s.ner)
        elif name == "bio":
            found.update(iob2_from_spans(s.ner, len(s)))
        elif name == "dep":
            found.update(s.dep.relations)
        elif name == "con":
            found.update(label for *_, label in binarise(s.con, len(s)))
        else:
            found.update(a.label for p in s.srl for a in p.arguments if a.label not in NOT_ARGUMENTS)
    return found


@pytest.mark.parametrize(("name", "options"), ROWS)
def test_one_live_row_a_class(name: str, options: dict[str, Any]) -> None:
    task = make(name, options)
    labels = task.label_rows()
    assert labels.rows.shape[0] == len(labels.names) == len(set(labels.names)) and labels.rows.requires_grad
    assert any(p.data_ptr() == labels.rows.data_ptr() and p.numel() == labels.rows.numel() for p in task.parameters())
    known = [label for label in labels.names if label]
    assert [known] == list(task.labels.values())


@pytest.mark.parametrize("name", TASKS)
def test_places_count_labels(name: str) -> None:
    task = make(name, {})
    names = task.label_rows().names
    places = np.concatenate([task.label_places(task.target(s)) for s in SENTENCES])
    assert Counter(names[place] for place in places) == counted(name)


@pytest.mark.parametrize("kind", ["biaffine", "mlp"])
def test_a_row_of_a_pair_scorer_moves_its_own_label_only(kind: Any) -> None:
    scorer = pair_scorer(kind, 6, 4, 3, 0.0)
    torch.nn.init.normal_(scorer.weight if kind == "biaffine" else scorer.last.weight)
    owner = torch.zeros(5, dtype=torch.long)
    vectors = scorer(torch.randn(5, 6), owner, 1)
    scores = scorer.score(vectors, torch.tensor([0, 1]), torch.tensor([2, 3]), owner[:2])
    (slope,) = torch.autograd.grad(scores[:, 1].sum(), scorer.weight if kind == "biaffine" else scorer.last.weight)
    moved = slope.flatten(1).abs().sum(1)
    assert moved[1] > 0 and moved[0] == moved[2] == 0 and scorer.label_rows().shape[0] == 3
