"""The penalty on attention along arcs: against loops, its sign, whom its gradient reaches, padding, scale."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from tiny import FAMILIES
from torch import Tensor
from transformers import AutoModel

from mtlprune.config.config import ConfigError
from mtlprune.encoder.batch import EncoderBatch, Frame, collate
from mtlprune.encoder.pieces import EncoderError, Pieces
from mtlprune.sentence import Dependencies
from mtlprune.training.arcs import arc_penalty, attention_seen, batch_arcs, named_heads

LAYERS, HEADS = 2, 3


def batch_of(counts: Sequence[Sequence[int]], capacity: int | None = None) -> EncoderBatch:
    """Sentences given as numbers of pieces of their words."""
    made = [Pieces(np.arange(10, 10 + sum(words), dtype=np.int32), np.array(words, np.int32)) for words in counts]
    return collate(made, Frame([1], [2], 0, capacity))


def tree(*heads: int) -> Dependencies:
    return Dependencies(heads, tuple("x" for _ in heads))


def random_attention(batch: EncoderBatch, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows, width = batch.input_ids.shape
    there = batch.attention_mask[:, None, None, :] == 1
    shape = (rows, HEADS, width, width)
    made = [torch.randn(shape, generator=generator).masked_fill(~there, -1e9) for _ in range(LAYERS)]
    return [scores.double().softmax(-1) for scores in made]


Trees = Sequence[Dependencies | None]
Gamma = Callable[[Tensor], Tensor]


def by_loops(attention: Sequence[Tensor], counts: Sequence[Sequence[int]], trees: Trees, gamma: Gamma) -> list[float]:
    """γ of every directed arc: words' attention as UAS reads it, one number a head, then over all heads."""
    found = []
    for row, (words, one) in enumerate(zip(counts, trees, strict=True)):
        ends = np.cumsum([1, *words])
        spans = [slice(*ends[place : place + 2]) for place in range(len(words))]
        for word, head in enumerate(one.heads if one else ()):
            for source, target in ((word, head - 1), (head - 1, word)) if head else ():
                each = [layer[row, :, spans[source], spans[target]].sum(2).mean(1) for layer in attention]
                found.append(float(gamma(torch.cat(each))))
    return found


COUNTS = ([1, 2, 1], [3, 1, 1, 2, 1], [2], [1, 1])
TREES = (tree(2, 0, 2), tree(0, 1, 2, 5, 1), tree(0), None)


@pytest.fixture
def priced():
    batch = batch_of(COUNTS)
    return random_attention(batch), batch_arcs(batch, TREES)


@pytest.mark.parametrize(
    ("options", "gamma"),
    [
        ({"variant": "max"}, lambda each: each.max()),
        ({"variant": "norm"}, lambda each: each.sum()),
        ({"variant": "norm", "norm": 3.0}, lambda each: each.norm(3)),
    ],
)
def test_price_is_what_loops_over_pieces_and_heads_find(priced, options, gamma):
    attention, arcs = priced
    expected = by_loops(attention, COUNTS, TREES, gamma)
    assert arcs.number == len(expected) == 2 * 6
    assert float(arc_penalty(attention, arcs, **options)) == pytest.approx(sum(expected), rel=1e-5)
    mean = arc_penalty(attention, arcs, scale="mean", **options)
    assert float(mean) == pytest.approx(sum(expected) / len(expected), rel=1e-5)


@pytest.mark.parametrize("variant", ["max", "norm"])
@pytest.mark.parametrize("scale", ["sum", "mean"])
def test_without_arcs_there_is_no_price_and_no_gradient(variant, scale):
    batch = batch_of([[1], [2, 1]])
    attention = [layer.requires_grad_() for layer in random_attention(batch)]
    penalty = arc_penalty(attention, batch_arcs(batch, [tree(0), None]), variant=variant, scale=scale)
    penalty.backward()
    assert penalty.item() == 0 and all(not layer.grad.any() for layer in attention)


def test_arcs_across_windows_are_left_out():
    counts = [[1] * 12]
    batch = batch_of(counts, capacity=8)
    assert len(batch.input_ids) > 1  # several windows
    found = batch_arcs(batch, [tree(*range(12))])  # a chain
    assert 0 < found.number < 2 * 11
    assert (found.row < len(batch.input_ids)).all() and len(set(found.row.tolist())) > 1
    far = batch_arcs(batch, [tree(12, *[0] * 10, 0)])  # first and last word, never in one window
    assert far.number == 0


def test_named_heads_are_priced_alone(priced):
    attention, arcs = priced
    kept = [(0, 1, 2), (0, 2)]  # of the second layer one head was removed before
    attention[1] = attention[1][:, :2]
    counted = named_heads(["1-2", "2-3"], kept)
    assert counted == [(1,), (1,)]
    chosen = [attention[0][:, 1:2], attention[1][:, 1:2]]
    penalty = arc_penalty(attention, arcs, heads=counted)
    assert penalty.item() == pytest.approx(arc_penalty(chosen, arcs).item()) and penalty < arc_penalty(attention, arcs)
    for name in ("2-2", "3-1", "1-4"):
        with pytest.raises(ConfigError, match=f"no head {name}"):
            named_heads([name], kept)


@pytest.mark.parametrize("family", FAMILIES)
def test_maps_seen_are_those_the_model_returns(tiny_encoder, family):
    model = AutoModel.from_pretrained(tiny_encoder(family), attn_implementation="eager").eval()
    ids = torch.randint(10, 60, (2, 7), generator=torch.Generator().manual_seed(1))
    with attention_seen(model) as maps, torch.no_grad():
        expected = model(input_ids=ids, output_attentions=True).attentions
    assert len(maps) == len(expected) == 2
    assert all(torch.equal(one, other) for one, other in zip(maps, expected, strict=True))
    with torch.no_grad():
        model(input_ids=ids)
    assert len(maps) == 2  # nothing is kept afterwards


def test_a_kernel_that_hides_its_maps_is_refused(tiny_encoder):
    model = AutoModel.from_pretrained(tiny_encoder("bert"), attn_implementation="sdpa").eval()
    with attention_seen(model), pytest.raises(EncoderError, match="does not show its maps"):
        model(input_ids=torch.tensor([[5, 6, 7]]))
