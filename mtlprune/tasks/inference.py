"""Structured inference over tensors: the constituency tree CRF, spanning trees, non-overlapping spans.

The only importer of supar, which is imported inside functions (it costs seconds). What runs at every step or sentence
is written here, because supar's versions are several times slower, break under ``torch.inference_mode()`` or recurse
once per word; supar and plain enumeration are the oracles in the tests. Everything is computed in fp32 (fp64 stays
fp64) with autocast off, no caller's tensor is ever written to, and what stands in the padding is never read.

Letters: B sentences, T words in the longest one, w width of a span, n = T + 1 − w spans of that width.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@contextmanager
def _full_precision(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor in fp32 (or fp64 if it is), with autocast off inside the block."""
    with torch.autocast(device_type=tensor.device.type, enabled=False):
        yield tensor if tensor.dtype == torch.float64 else tensor.float()


# --- constituency: binary trees over fenceposts 0 … T, score of a tree = sum of the scores of its 2n − 1 spans --------


def _batch_last(scores: Tensor, lengths: Tensor) -> Tensor:
    """(B, T+1, T+1) → (T+1, T+1, B) with zeros outside each sentence, so that rubbish in the padding cannot spread."""
    # The batch goes last, so that all spans of a width lie in memory with constant strides, and one operation serves
    # all of them in all sentences.
    beyond_end = torch.arange(scores.shape[1], device=scores.device)[:, None] > lengths  # (T+1, B)
    chart = scores.permute(1, 2, 0).clone(memory_format=torch.contiguous_format)
    return chart.masked_fill_(beyond_end, 0.0)


def _children(chart: Tensor, w: int) -> tuple[Tensor, Tensor]:
    """Views of the left and the right children at the w − 1 splits of the n spans of a width. (w-1, n, B) each"""
    size, batch = chart.shape[1:]  # T + 1, B
    shape, diagonal = (w - 1, size - w, batch), (size + 1) * batch
    # Element (k, i) of `left` is the cell (i, i + 1 + k), and of `right` the cell (i + 1 + k, i + w). Both follow
    # from strides alone: one step of k is one column for the left child and one row for the right one; one step of i
    # is one step down the diagonal. Nothing is copied.
    left = chart.as_strided(shape, (batch, diagonal, 1), batch)  # (i, i + 1), (i, i + 2), …
    right = chart.as_strided(shape, (size * batch, diagonal, 1), (size + w) * batch)  # (i + 1, i + w), …
    return left, right


def _upwards(chart: Tensor, join: Callable[[Tensor, Tensor, Tensor], None]) -> Tensor:
    """Turn the scores of the spans of a contiguous (T+1, T+1, B) chart into values, in place, one step a width.

    Args:
        join: the spans' own scores (n, B), and both children's values at the w − 1 splits of the n spans of a width,
            (w-1, n, B) each; adds what comes of these to the former.
    """
    # CKY from narrow to wide: children of a span are narrower than the span, so their values are final when they are
    # read.
    for w in range(2, len(chart)):
        join(chart.diagonal(w).T, *_children(chart, w))
    return chart


def _log_sum(sums: Tensor, left: Tensor, right: Tensor) -> None:
    # log Σ exp s = s − log softmax(s), at the largest s: fewer operations than a sum of exponentials takes
    operands = left.new_empty(2, *left.shape)
    torch.add(left, right, out=operands[0])
    torch.log_softmax(operands[0], 0, out=operands[1])
    score, share = operands.amax(1)
    sums.add_(score).sub_(share)


def _outside_pass(chart: Tensor, lengths: Tensor) -> Tensor:
    """Marginals of all spans, (T+1, T+1, B): each span hands its own down to the children of its splits.

    Args:
        chart: inside values, as `_upwards` leaves them.
    """
    marginals = torch.zeros_like(chart)
    # The whole sentence is in every tree, so its marginal is 1; from there probability mass flows down to the
    # children.
    marginals[0, lengths, torch.arange(len(lengths), device=lengths.device)] = 1.0
    # Wide before narrow: when a span hands its mass on, all spans that may contain it have handed theirs to it.
    for w in range(len(chart) - 1, 1, -1):
        left, right = _children(chart, w)
        # a softmax always hands on exactly the span's own mass, however large the scores are
        share = torch.softmax(left + right, 0).mul_(marginals.diagonal(w).T)
        for child in _children(marginals, w):
            child.add_(share)
    return marginals


class _LogPartition(torch.autograd.Function):
    """log Z with the outside pass as its backward: half the time and a third of the memory of plain autograd."""

    @staticmethod
    def forward(ctx, scores: Tensor, lengths: Tensor) -> Tensor:
        chart = _upwards(_batch_last(scores, lengths), _log_sum)
        # The inside chart alone is kept. Plain autograd would keep the (w − 1, n, B) tensors of every width, which is
        # cubic memory.
        ctx.save_for_backward(chart, lengths)
        return chart[0, lengths, torch.arange(len(lengths), device=lengths.device)]

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        # The derivative of log Z by the score of a span is the marginal probability of that span.
        return (_outside_pass(*ctx.saved_tensors) * grad).permute(2, 0, 1), None


def constituency_log_partition(scores: Tensor, lengths: Tensor) -> Tensor:
    """Log of the summed exponentiated scores of all binary trees over each sentence.

    Zhang, Zhou & Li 2020, "Fast and Accurate Neural CRF Constituency Parsing". Differentiable once; the gradient is
    the marginals.

    Args:
        scores: (B, T+1, T+1); ``scores[b, i, j]`` with i < j is that of the span of words i … j − 1. Finite.
        lengths: (B,) numbers of words, from 1 to T.

    Returns:
        (B,) in nats.
    """
    lengths = lengths.to(scores.device, torch.long)
    with _full_precision(scores) as full:
        return _LogPartition.apply(full, lengths)


def constituency_crf_loss(scores: Tensor, charts: Tensor, lengths: Tensor) -> Tensor:
    """Sum over the batch of log Z minus the score of the gold tree, in nats; the caller divides.

    Args:
        scores, lengths: as in ``constituency_log_partition``.
        charts: (B, T+1, T+1) bool, True at the 2n − 1 spans of the binarised gold tree.
    """
    with _full_precision(scores) as full:
        # The score of a tree is the sum of its spans' scores. `where` and not a product, because a score that is
        # masked out may be infinite.
        gold = torch.where(charts, full, 0.0).sum()
        return constituency_log_partition(full, lengths).sum() - gold


@torch.no_grad()
def constituency_marginals(scores: Tensor, lengths: Tensor) -> Tensor:
    """(B, T+1, T+1) probabilities that each span is in the tree; zero outside the sentence and where i ≥ j."""
    lengths = lengths.to(scores.device, torch.long)
    with _full_precision(scores) as full:
        return _outside_pass(_upwards(_batch_last(full, lengths), _log_sum), lengths).permute(2, 0, 1)


@torch.no_grad()
def best_splits(scores: Tensor, lengths: Tensor) -> Tensor:
    """The best split of every span (i, i + w), at [w, i], from which ``bracketing`` reads the best-scoring binary tree;
    over marginals, the minimum Bayes risk tree. (B, T+1, T+1)

    Arguments as in ``constituency_log_partition``. Among equal trees the one that splits further left wins.
    """
    lengths = lengths.to(scores.device, torch.long)
    with _full_precision(scores) as full:
        chart = _batch_last(full, lengths)
        middles = torch.zeros_like(chart, dtype=torch.long)

        def best(scores_of_spans: Tensor, left: Tensor, right: Tensor) -> None:
            splits = left + right
            # argmax and not max: only argmax promises the first of equal maxima, and equal scores must give the same
            # tree everywhere.
            first = splits.argmax(0, keepdim=True)
            middles[len(splits) + 1, : splits.shape[1]] = first[0]
            scores_of_spans.add_(splits.gather(0, first)[0])

        _upwards(chart, best)
    return middles.permute(2, 0, 1).contiguous()


def bracketing(middles: Tensor, length: int) -> list[tuple[int, int]]:
    """Follow the best splits from the whole sentence down; ``middles[w, i]`` + 1 is the width of the left child.

    Returns:
        2n − 1 spans (start, end) in pre-order.
    """
    table = middles[: length + 1, :length].tolist()
    spans = []
    agenda = [(0, length)]
    while agenda:
        start, end = agenda.pop()
        spans.append((start, end))
        if end - start > 1:
            # Left is pushed last and so popped first: pre-order.
            middle = start + 1 + table[end - start][start]
            agenda += [(middle, end), (start, middle)]
    return spans


# --- dependency trees with a single root ---------------------------------------------------------------------------


@torch.no_grad()
def mst(scores: Tensor, lengths: Tensor, projective: bool = False) -> Tensor:
    """Maximum spanning tree with exactly one word under ROOT.

    Each word's best head is taken first: where that is already such a tree it is the optimum. Only the other sentences
    are decoded, by Chu-Liu/Edmonds or, if ``projective``, by Eisner's algorithm (supar's).

    Args:
        scores: (B, T+1, T+1); ``scores[b, d, h]`` is that of head h for dependent d, position 0 is ROOT. The row of
            ROOT, the diagonal and the padding are not read; all else must be finite. Never written to.
        lengths: (B,) numbers of words without ROOT, from 1 to T.
        projective: allow projective trees only.

    Returns:
        (B, T+1) long on the scores' device; 0 at ROOT and in the padding. Equal scores always give the same tree.

    Raises:
        ValueError: a score that is read is NaN or infinite.
    """
    lengths = lengths.to(scores.device, torch.long)
    with _full_precision(scores) as full:
        places = torch.arange(scores.shape[1], device=scores.device)
        is_node = places <= lengths[:, None]  # (B, T+1)
        word = is_node & (places > 0)
        readable = word[:, :, None] & is_node[:, None, :] & (places[:, None] != places)
        if not bool(full.isfinite().logical_or_(~readable).all()):
            raise ValueError("the scores of some arcs are NaN or infinite; a tree needs finite scores")
        # A word is not its own head, ROOT has none, and padding is no candidate.
        masked = full.masked_fill(~readable, float("-inf"))
        heads = masked.argmax(-1).masked_fill_(~word, 0)
        # In trained parsers most sentences' greedy heads already form a tree; a sum of maxima cannot be beaten, so
        # these are done.
        good = _single_root_trees(heads, word)
        if projective:
            good &= ~_crossing(heads, word)
        unfinished = (~good).nonzero()[:, 0]
        if len(unfinished):
            decode = _eisner if projective else _chu_liu_edmonds
            heads[unfinished] = decode(masked[unfinished], lengths[unfinished])
    return heads


def _single_root_trees(heads: Tensor, word: Tensor) -> Tensor:
    """(B,) True where exactly one word hangs under ROOT and every word leads there."""
    above = heads
    # Pointer jumping: after k rounds `above` points 2^k steps up, so log₂(T + 1) rounds bring every word that is
    # connected to ROOT there. Words on a cycle never arrive.
    for _ in range(heads.shape[1].bit_length()):
        above = above.gather(1, above)
    return ((heads == 0) & word).sum(1).eq(1) & above.eq(0).all(1)


def _crossing(heads: Tensor, word: Tensor) -> Tensor:
    """(B,) True where two arcs cross."""
    places = torch.arange(heads.shape[1], device=heads.device).expand_as(heads)
    low = torch.minimum(heads, places).masked_fill(~word, 0)
    high = torch.maximum(heads, places).masked_fill(~word, 0)
    # Two arcs cross where one begins strictly within the other and ends strictly behind it.
    starts_within = (low[:, :, None] < low[:, None, :]) & (low[:, None, :] < high[:, :, None])
    return (starts_within & (high[:, :, None] < high[:, None, :])).flatten(1).any(1)


def _eisner(scores: Tensor, lengths: Tensor) -> Tensor:
    from supar.structs import DependencyCRF

    # supar's argmax is a gradient, which neither inference mode nor no_grad may stop; its sums need finite numbers
    with torch.inference_mode(False), torch.enable_grad():
        # supar's sums need finite numbers; the entries that become 0 (the row of ROOT, the diagonal, the padding) are
        # never used.
        finite = torch.nan_to_num(scores.clone(), neginf=0.0)
        return DependencyCRF(finite, lengths.clone(), multiroot=False).argmax


def _chu_liu_edmonds(scores: Tensor, lengths: Tensor) -> Tensor:
    result = torch.zeros(scores.shape[:2], dtype=torch.long)
    tables = scores.double().cpu().numpy()
    for b, n in enumerate(lengths.tolist()):
        result[b, : n + 1] = torch.from_numpy(_single_root_arborescence(tables[b, : n + 1, : n + 1]))
    return result.to(scores.device)


# --- maximum spanning arborescences (Chu & Liu 1965, Edmonds 1967) over numpy tables ---------------------------------
# Without recursion: supar's version recurses once per word (1,500 words in a chain end in a RecursionError).


def _single_root_arborescence(scores: np.ndarray) -> np.ndarray:
    """The best tree among those with exactly one arc out of node 0.

    A charge on every arc out of node 0 that outweighs all other differences leaves one such arc, and among trees with
    one it changes nothing. Computed in fp64, where the charge costs no digit that fp32 scores have.

    Args:
        scores: (n+1, n+1) ``scores[dependent, head]``; −inf on the diagonal and in row 0, all else finite. Never
            written to.

    Returns:
        (n+1,) heads; 0 at node 0.
    """
    table = scores.astype(np.float64)
    arcs = table[np.isfinite(table)]
    # With a second root a tree would save at most n times the range of scores and lose more than that, so the best
    # tree has one root. Every tree with one root pays the charge once, so their order stays.
    table[:, 0] -= 1.0 + len(table) * float(arcs.max() - arcs.min())
    return _arborescence(table)


def _arborescence(scores: np.ndarray) -> np.ndarray:
    """Heads of the best tree from node 0, however many arcs leave it; ``scores`` is overwritten."""
    heads = scores.argmax(1)
    heads[0] = 0
    contractions = []
    leads_to_root = np.zeros(len(scores), dtype=bool)  # known to lead to node 0
    leads_to_root[0] = True
    # Follow best heads upwards from every node until something is met that is known to lead to node 0. If the path
    # bites its own tail, the cycle is contracted into its first node and the walk goes on from there.
    for start in range(1, len(scores)):
        path: list[int] = []
        node = start
        while not leads_to_root[node]:
            if node not in path:
                path.append(node)
                node = int(heads[node])
                continue
            cycle = path[path.index(node) :]
            del path[len(path) - len(cycle) :]
            contractions.append(_contract(scores, heads, cycle))
            node = cycle[0]
        leads_to_root[path] = True
    # Expand the cycles, last contracted first. The arc that enters the contracted node replaces the arc of the member
    # that it really enters; the other members keep their heads within the cycle.
    for cycle, cycle_heads, entered, left in reversed(contractions):
        outer = heads[cycle[0]]
        heads = np.where(heads == cycle[0], left, heads)
        heads[cycle] = cycle_heads
        heads[entered[outer]] = outer
    return heads


def _contract(scores: np.ndarray, heads: np.ndarray, cycle: list[int]) -> tuple:
    """Let ``cycle[0]`` stand for the cycle: best way in (gain over the arc it replaces) and best way out."""
    cycle_heads = heads[cycle].copy()
    members = np.array(cycle)
    gains = scores[members] - scores[members, cycle_heads][:, None]  # (|C|, n+1)
    entered = members[gains.argmax(0)]
    left = members[scores[:, members].argmax(1)]
    scores[cycle[0]] = gains.max(0)
    scores[:, cycle[0]] = scores[:, members].max(1)
    scores[cycle[0], members] = -np.inf
    # The other members are absorbed: nothing may choose them as head any more, and their own rows are not read again.
    scores[:, members[1:]] = -np.inf
    heads[np.isin(heads, members)] = cycle[0]
    heads[cycle[0]] = scores[cycle[0]].argmax()
    return cycle, cycle_heads, entered, left


# --- flat spans -----------------------------------------------------------------------------------------------------


def nonoverlapping(spans: Iterable[tuple[int, int, float, str]]) -> list[tuple[int, int, float, str]]:
    """The subset of ``(start, end, score, label)`` without overlaps whose summed score is highest.

    Exact (weighted interval scheduling), O(n log n). ``end`` is exclusive, so neighbours may touch. Spans that add
    nothing (score ≤ 0 or NaN) are never taken; among equal sums the one found first by end, then start, wins.

    Returns:
        the chosen spans in order of their start.
    """
    ordered = sorted((span for span in spans if span[2] > 0), key=lambda span: (span[1], span[0]))
    ends = [span[1] for span in ordered]
    best = [0.0]  # best[k]: the highest sum among the first k spans
    compatible = []  # how many spans end at or before the start of this one
    for k, (start, _, score, _) in enumerate(ordered):
        # Spans are sorted by their ends, so those that end at or before this start form a prefix, found by bisection.
        compatible.append(bisect_right(ends, start, 0, k))
        best.append(max(best[k], best[compatible[k]] + score))
    selection = []
    k = len(ordered)
    # Walk back through the table: the k-th span was taken exactly where it raised the best sum.
    while k:
        if best[k] > best[k - 1]:
            selection.append(ordered[k - 1])
            k = compatible[k - 1]
        else:
            k -= 1
    return selection[::-1]
