"""SRL against plain loops over predicates, spans and roles."""

import itertools
from typing import Any

import pytest
import torch
from by_hand import check_loss, decoder, encoded, span_layer, surprise, with_one

from mtlprune.sentence import Predicate, Sentence, Span
from mtlprune.tasks.srl import SRL

SIZES = [4, 1, 3, 2]
GOES = Predicate(1, "go.01", (Span(0, 1, "A0"), Span(1, 2, "V"), Span(2, 4, "A1")))
GOLD = [
    Sentence("1", tuple("abcd"), srl=(GOES, Predicate(3, None, (Span(0, 3, "A1"),)))),
    Sentence("2", ("e",), srl=()),
    Sentence("3", tuple("fgh"), srl=(Predicate(0, None, (Span(1, 3, "A1"), Span(1, 2, "C-V"))),)),
    Sentence("4", tuple("ij"), srl=(Predicate(0),)),
]
ROLES = ["A0", "A1"]
OPTIONS: dict[str, Any] = {"size": 6, "width_size": 3, "max_width": 3}
RANKED, MLP = {"predicates": "ranked"}, {"argument_scorer": "mlp", "affinity": False}
each_kind = pytest.mark.parametrize("kind", [{}, MLP, RANKED, RANKED | MLP], ids=["defaults", "mlp", "ranked", "paper"])


def linear(layer: torch.nn.Linear, vector: torch.Tensor) -> torch.Tensor:
    return layer.weight @ vector + layer.bias


def two_layers(rest: torch.nn.Sequential, hidden: torch.Tensor) -> torch.Tensor:
    return linear(rest[5], linear(rest[2], hidden.relu()).relu())


class Scores:
    """Everything there is to score in one sentence."""

    def __init__(self, task: SRL, words: torch.Tensor) -> None:
        n, widths = len(words), task.widths.weight
        self.spans = [(i, j) for i in range(n) for j in range(i, min(n, i + task.options.max_width))]
        self.argument = {span: self._argument(task, words, *span, widths) for span in self.spans}
        self.predicate = [two_layers(task.predicate[1], linear(task.predicate[0], word)).squeeze() for word in words]
        self.pair = {}
        for span, p in itertools.product(self.spans, range(n)):
            hidden = span_layer(task.label_span, words, *span, widths) + task.label_predicate.weight @ words[p]
            roles = two_layers(task.label, hidden) + self.argument[span] + (self.predicate[p] if task.ranked else 0)
            if task.options.affinity:
                key = span_layer(task.match_span, words, *span, widths)
                roles = roles + key @ linear(task.match_predicate, words[p])
            self.pair[span, p] = torch.cat([torch.zeros(1), roles])  # none first
        best = sorted(self.spans, key=lambda span: -self.argument[span].item())
        self.kept = set(best[: max(1, int(n * task.options.argument_ratio))])
        if task.ranked:
            order = sorted(range(n), key=lambda p: -self.predicate[p].item())
            self.layers = set(order[: max(1, int(n * task.options.predicate_ratio))])
        else:
            self.layers = {p for p in range(n) if self.predicate[p].item() > 0}

    @staticmethod
    def _argument(task: SRL, words: torch.Tensor, start: int, end: int, widths: torch.Tensor) -> torch.Tensor:
        scorer: Any = task.argument
        if task.options.argument_scorer == "mlp":
            return two_layers(scorer.output_layers, span_layer(scorer.first, words, start, end, widths)).squeeze()
        ends, size = [linear(scorer.ends, words[place]) for place in (start, end)], task.options.size
        left, right = with_one(ends[0][:size]), with_one(ends[1][size:])
        return left @ scorer.weight[0] @ right + scorer.width[end - start]


def gold_roles(sentence: Sentence, max_width: int) -> dict[tuple[tuple[int, int], int], int]:
    return {
        ((span.start, span.end - 1), predicate.index): 1 + ROLES.index(span.label)
        for predicate in sentence.srl
        for span in predicate.arguments
        if span.label in ROLES and span.end - span.start <= max_width
    }


def binary(score: torch.Tensor, gold: bool) -> torch.Tensor:
    return surprise(torch.stack([torch.tensor(0.0), score]), int(gold))


@each_kind
@pytest.mark.parametrize("max_width", [3, 2])
@pytest.mark.parametrize("seed", range(2))
def test_loss(kind, max_width, seed):
    task = decoder(SRL, SRL.collect(GOLD), seed, **OPTIONS | kind | {"max_width": max_width})
    assert task.labels == {"roles": ROLES}
    words = encoded(SIZES, seed)
    word_losses, span_losses, pair_losses = [], [], []
    for sentence, vectors in zip(GOLD, words.words.split(SIZES), strict=True):
        scores, gold = Scores(task, vectors), gold_roles(sentence, max_width)
        kept, chosen = set(scores.kept), set(scores.layers)
        if not task.ranked:
            spans, places = {span for span, _ in gold}, {p.index for p in sentence.srl}
            word_losses += [binary(score, p in places) for p, score in enumerate(scores.predicate)]
            span_losses += [binary(score, span in spans) for span, score in scores.argument.items()]
            kept |= spans
            chosen |= places
        pairs = itertools.product(kept, chosen)
        pair_losses += [surprise(scores.pair[pair], gold.get(pair, 0)) for pair in pairs]
    if task.ranked:
        expected = torch.stack(pair_losses).mean()
    else:
        expected = torch.stack(word_losses).mean() + (sum(span_losses) + sum(pair_losses)) / sum(SIZES)
    check_loss(task, words, GOLD, expected, atol=1e-4)


@each_kind
@pytest.mark.parametrize("ratio", [0.8, 5.0])
def test_decoding_takes_the_best_spans_that_do_not_overlap(kind, ratio):
    sizes, several = [4, 1, 5, 3], 0
    for seed in range(3):
        task = decoder(SRL, {"roles": ROLES}, seed, argument_ratio=ratio, predicate_ratio=1.0, **OPTIONS | kind)
        words = encoded(sizes, seed)
        for n, vectors, found in zip(sizes, words.words.split(sizes), task.decode(words), strict=True):
            Sentence("x", tuple("abcde"[:n]), srl=found).validate()
            scores = Scores(task, vectors)
            best = {p: best_set(scores, p) for p in range(n) if p in scores.layers}
            expected = {p: spans for p, spans in best.items() if spans or not task.ranked}
            assert {predicate.index: predicate.arguments for predicate in found} == expected
            several += any(len(spans) > 1 for spans in best.values())
    assert several or ratio < 1


def best_set(scores: Scores, p: int) -> tuple[Span, ...]:
    """Of all sets of kept spans without overlap that leave the predicate free, the one of highest summed score."""
    possible = (span for span in sorted(scores.kept) if not span[0] <= p <= span[1])
    usable = [span for span in possible if scores.pair[span, p][1:].max() > 0]
    best, best_score = (), 0.0
    for size in range(1, len(usable) + 1):
        for chosen in itertools.combinations(usable, size):
            if all(left[1] < right[0] for left, right in itertools.pairwise(chosen)):
                score = sum(scores.pair[span, p][1:].max().item() for span in chosen)
                if score > best_score:
                    best, best_score = chosen, score
    return tuple(Span(i, j + 1, ROLES[int(scores.pair[(i, j), p][1:].argmax())]) for i, j in best)


@each_kind
def test_a_batch_without_predicates_has_a_loss_and_a_gradient(kind):
    task, words = decoder(SRL, {"roles": ROLES}, **OPTIONS | kind), encoded([1, 1])
    words.words.requires_grad_()
    gold = [Sentence("1", ("a",), srl=()), Sentence("2", ("b",), srl=())]
    loss = task.loss(words, task.collate([task.target(s) for s in gold], [1, 1]))
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(words.words.grad).all() and words.words.grad.any()


@pytest.mark.parametrize("predicates", ["classified", "ranked"])
def test_predicates_without_any_role(predicates):
    """Where training sentences hold no argument there are no roles; predicates are still found."""
    sentences = [s.with_layers(srl=tuple(p._replace(arguments=()) for p in s.srl)) for s in GOLD]
    assert SRL.collect(sentences) == {"roles": []}
    task = decoder(SRL, {"roles": []}, predicates=predicates, predicate_ratio=1.0, **OPTIONS)
    task.predicate[1][5].bias.data.fill_(50.0)  # every word is one
    batch = encoded(SIZES)
    assert torch.isfinite(task.loss(batch, task.collate([task.target(s) for s in sentences], SIZES)))
    found = task.decode(batch)
    assert all(not predicate.arguments for layer in found for predicate in layer)
    assert [len(layer) for layer in found] == ([0] * 4 if predicates == "ranked" else SIZES)
