"""The decoder of constituent trees: the two-stage tree CRF of Zhang et al. (2020).

The first stage scores unlabelled spans of a binary tree. The second stage labels the spans of the tree; in training
these are the gold spans only.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mtlprune.config.decoders import CONOptions
from mtlprune.encoder.batch import Encoded, move_together, slots
from mtlprune.sentence import Sentence, Span
from mtlprune.tasks import inference
from mtlprune.tasks.base import LabelRows, SharedMLP, Target, Task, joined, offsets, owners
from mtlprune.tasks.products import form_table, table_side
from mtlprune.tasks.spans import Pairs, pair_scorer

LONGEST = 500
"""Words of the longest sentence that is decoded where time is limited; it takes about a second."""
_DUMMY = "|<>"  # suffix of the labels of nodes that binarisation adds
TOP = "TOP"
"""Label of the root in a binarised tree if no bracket covers the whole sentence."""


class CON(Task):
    """Decoder of constituents: a CRF over unlabelled binary trees, and a classifier that labels the spans of a tree.

    The loss is (log partition − score of the gold tree) / words of the batch, plus the mean cross-entropy of the labels
    of gold spans. Decoding runs CKY over the span marginals, which gives the tree of minimum Bayes risk, and then
    chooses the best label of each span.
    """

    name, kind = "con", "brackets"
    cubic = True
    Options = CONOptions

    def __init__(self, labels: dict[str, list[str]], hidden_size: int, options: Any) -> None:
        super().__init__(labels, hidden_size, options)
        span, width = options.span_size, hidden_size // 2 * 2
        self.mlp = SharedMLP(width, [span, span], options.dropout)
        self.span = nn.Parameter(torch.zeros(span + 1, span))
        self.label = pair_scorer(
            options.label_scorer, width, options.label_size, len(labels["labels"]), options.dropout
        )

    def loss(self, encoded: Encoded, target: dict[str, Tensor]) -> Tensor:
        scores, vectors = self.features(encoded)
        crf = inference.constituency_crf_loss(scores, target["chart"], encoded.lengths) / len(encoded.words)
        labels = self.label_scores(encoded, vectors, target)
        return crf + nn.functional.cross_entropy(labels, target["labels"])

    def label_scores(self, encoded: Encoded, vectors: Any, target: dict[str, Tensor]) -> Tensor:
        """Score every label for each of the M gold spans: (M, L), fp32."""
        pairs = Pairs(*(target[name] for name in Pairs._fields))
        return self.label.score(vectors, pairs, len(encoded.sizes))

    def decode(self, encoded: Encoded) -> list[Any]:
        scores, vectors = self.features(encoded)
        marginals = inference.constituency_marginals(scores, encoded.lengths)
        splits = inference.best_splits(marginals, encoded.lengths).cpu()
        trees = [inference.bracketing(row, size) for row, size in zip(splits, encoded.sizes, strict=True)]
        sentence = torch.arange(len(trees)).repeat_interleave(torch.tensor([len(tree) for tree in trees]))
        ends = torch.tensor([span for tree in trees for span in tree]) + _post_offsets(encoded.sizes)[sentence, None]
        pairs = Pairs.by_left(ends[:, 0], ends[:, 1], sentence, len(vectors[0]))
        on_device = Pairs(*move_together(pairs, scores.device))
        best = self.label.score(vectors, on_device, len(trees)).argmax(-1).cpu()
        names = iter([self.labels["labels"][index] for index in best.tolist()])
        return [debinarise([(i, j, next(names)) for i, j in tree]) for tree in trees]

    def fenceposts(self, encoded: Encoded) -> Tensor:
        """Return the vectors of all fenceposts, that is, of the positions between words: (N + B, H).

        A fencepost joins the first half of the vector of the word on its left and the second half of the vector of the
        word on its right. The first and the last special token serve as the words outside the sentence.
        """
        half_width, words = encoded.words.shape[1] // 2, np.arange(len(encoded.words))
        sizes = np.array(encoded.sizes, np.int64)
        # Rows from N on are the special tokens, which `torch.cat` appends to the words below.
        ends, special = np.cumsum(sizes), len(words) + np.arange(len(sizes))
        rows = [torch.from_numpy(np.insert(words, at, special)) for at in (ends - sizes, ends)]
        left_rows, right_rows = move_together(rows, encoded.words.device)
        left = torch.cat([encoded.words[:, :half_width], encoded.cls[:, :half_width]])
        right = torch.cat([encoded.words[:, half_width : 2 * half_width], encoded.sep[:, half_width : 2 * half_width]])
        return torch.cat([left.index_select(0, left_rows), right.index_select(0, right_rows)], dim=1)

    def features(self, encoded: Encoded) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Compute the span scores (B, T + 1, T + 1) in fp32, and the vectors from which labels of spans are scored."""
        posts, count = self.fenceposts(encoded), len(encoded.sizes)
        sizes = [size + 1 for size in encoded.sizes]
        longest = max(sizes)
        side = table_side(longest)
        sentence = torch.from_numpy(np.repeat(np.arange(count), sizes))
        owner, table_slots = move_together([sentence, slots(sizes, side)], posts.device)
        left, right = self.mlp(posts, owner, count)
        scores = form_table(left, self.span, right, sizes, side, table_slots, table_slots)
        return scores[:, :longest, :longest], self.label(posts, owner, count)

    @classmethod
    def collect(cls, sentences: Iterable[Sentence], layer: str = name) -> dict[str, list[str]]:
        annotated_trees = ((brackets, len(s)) for s in sentences if (brackets := s.get(layer)) is not None)
        return {"labels": sorted({label for tree in annotated_trees for _, _, label in binarise(*tree)})}

    def target(self, sentence: Sentence) -> Target:
        index = self.index["labels"]
        rows = [(i, j, index[label]) for i, j, label in binarise(sentence.get(self.layer), len(sentence))]
        return {"spans": np.array(rows, dtype=np.int32)}  # (2n − 1, 3)

    def collate(self, targets: Sequence[Target], sizes: Sequence[int]) -> dict[str, Tensor]:
        spans = joined(targets, "spans")
        owner = owners(targets, "spans")
        side = max(sizes) + 1
        chart = torch.zeros(len(sizes), side, side, dtype=torch.bool)
        chart[owner, spans[:, 0], spans[:, 1]] = True
        first = _post_offsets(sizes)[owner]
        pairs = Pairs.by_left(first + spans[:, 0], first + spans[:, 1], owner, sum(sizes) + len(sizes))
        return {"chart": chart, "labels": spans[:, 2], **pairs._asdict()}

    def label_rows(self) -> LabelRows:
        return LabelRows(self.labels["labels"], self.label.label_rows())

    def label_places(self, target: Target) -> np.ndarray:
        return target["spans"][:, 2]


def _post_offsets(sizes: Sequence[int]) -> Tensor:
    """Return the index of each sentence's first fencepost among those of the batch: (B,) int64, on the CPU."""
    return offsets([size + 1 for size in sizes])


def binarise(brackets: Sequence[Span], length: int) -> list[tuple[int, int, str]]:
    """Convert brackets to a left-binarised tree, as in the parser that He and Choi (2021) use.

    The labels of a unary chain are joined by "+", with the upper label first. A word without a bracket that has
    siblings, and every node that binarisation adds, gets the label of its parent and the suffix "|<>".

    Args:
        brackets: labelled brackets in pre-order.
        length: number of words n.

    Returns:
        The 2n − 1 spans (start, end, label) of the tree.
    """
    chains: dict[tuple[int, int], str] = {}
    # Pre-order: the upper label of a chain of unary brackets comes first, so joining labels keeps their order.
    for start, end, label in brackets:
        chains[start, end] = f"{chains[start, end]}+{label}" if (start, end) in chains else label
    chains = {(0, length): TOP, **chains} if (0, length) not in chains else chains
    children: dict[tuple[int, int], list[tuple[int, int]]] = {}
    stack: list[tuple[int, int]] = []
    for span in chains:  # still in pre-order
        while stack and stack[-1][1] <= span[0]:
            stack.pop()
        if stack:
            children.setdefault(stack[-1], []).append(span)
        stack.append(span)
    spans: list[tuple[int, int, str]] = []
    for (start, end), chain in chains.items():
        spans.append((start, end, chain))
        if end - start == 1:
            continue
        parent = chain.rsplit("+", 1)[-1]
        position, ends = start, []
        for first, last in [*children.get((start, end), []), (end, end)]:
            # Words before this bracket are direct children of the phrase, without a bracket of their own.
            while position < first:
                spans.append((position, position + 1, parent + _DUMMY))
                position += 1
                ends.append(position)
            if first < end:
                position = last
                ends.append(position)
        spans.extend((start, stop, parent + _DUMMY) for stop in ends[1:-1])
    return spans


def debinarise(spans: Iterable[tuple[int, int, str]]) -> tuple[Span, ...]:
    """Convert the labelled spans of a binary tree back to brackets in pre-order, the inverse of ``binarise``.

    Nodes that binarisation added and TOP are removed, and joined labels become unary chains again.
    """
    brackets: list[Span] = []
    for start, end, label in sorted(spans, key=lambda span: (span[0], -span[1])):
        if not label.endswith(_DUMMY):
            brackets.extend(Span(start, end, part) for part in label.split("+") if part != TOP)
    return tuple(brackets)
