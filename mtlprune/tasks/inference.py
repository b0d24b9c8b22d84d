"""Structured inference for the decoders: a CRF over constituency trees, spanning trees, and non-overlapping spans.

This is the only module that imports supar, and it does so inside a function, because the import takes seconds. The
algorithms that run at every training step or for every sentence are implemented here, because supar's versions are
several times slower, fail under ``torch.inference_mode()`` or recurse once per word. The tests compare them with supar
and with plain enumeration. All public functions compute in fp32 (fp64 input stays fp64) with autocast off, never write
to the caller's tensors, and never read the padding.

Letters in shapes: B sentences, T words of the longest sentence, w width of a span, n = T + 1 − w spans of width w.
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
    """Provide the tensor in fp32 (fp64 stays fp64) and switch autocast off inside the block."""
    with torch.autocast(device_type=tensor.device.type, enabled=False):
        yield tensor if tensor.dtype == torch.float64 else tensor.float()


# --- constituency: binary trees over fenceposts 0 … T. The score of a tree is the sum of the scores of its spans. -----


def _batch_last(scores: Tensor, lengths: Tensor) -> Tensor:
    """Copy scores (B, T+1, T+1) → (T+1, T+1, B), with zeros in the padding so that its values cannot spread."""
    # The batch is the last dimension, so that all spans of one width have constant strides in memory, and one operation
    # handles all of them in all sentences.
    beyond_end = torch.arange(scores.shape[1], device=scores.device)[:, None] > lengths  # (T+1, B)
    chart = scores.permute(1, 2, 0).clone(memory_format=torch.contiguous_format)
    return chart.masked_fill_(beyond_end, 0.0)


def _children(chart: Tensor, w: int) -> tuple[Tensor, Tensor]:
    """Return views of the left and right children at the w − 1 splits of the n spans of width w: (w-1, n, B) each."""
    size, batch = chart.shape[1:]  # T + 1, B
    shape, diagonal = (w - 1, size - w, batch), (size + 1) * batch
    # Element (k, i) of `left` is the cell (i, i + 1 + k), and element (k, i) of `right` is the cell (i + 1 + k, i + w).
    # Strides alone describe both views, so that nothing is copied: a step of k moves one column for the left child and
    # one row for the right child, and a step of i moves one cell down the diagonal.
    left = chart.as_strided(shape, (batch, diagonal, 1), batch)  # (i, i + 1), (i, i + 2), …
    right = chart.as_strided(shape, (size * batch, diagonal, 1), (size + w) * batch)  # (i + 1, i + w), …
    return left, right


def _upwards(chart: Tensor, join: Callable[[Tensor, Tensor, Tensor], None]) -> Tensor:
    """Compute the CKY values of all spans from narrow to wide, in place, and return the chart.

    Args:
        chart: (T+1, T+1, B) span scores, contiguous; they are overwritten by the values.
        join: called once for each width, with the scores of the n spans (n, B) and the values of their left and right
            children at the w − 1 splits, (w-1, n, B) each. It adds the contribution of the children to the scores.
    """
    # The children of a span are narrower than the span, so their values are final when they are read.
    for w in range(2, len(chart)):
        join(chart.diagonal(w).T, *_children(chart, w))
    return chart


def _log_sum(sums: Tensor, left: Tensor, right: Tensor) -> None:
    # log Σ exp s = s − log softmax(s) holds for every element s. At the largest s, where the second term is smallest,
    # it takes fewer operations than a sum of exponentials.
    operands = left.new_empty(2, *left.shape)
    torch.add(left, right, out=operands[0])
    torch.log_softmax(operands[0], 0, out=operands[1])
    score, share = operands.amax(1)
    sums.add_(score).sub_(share)


def _outside_pass(chart: Tensor, lengths: Tensor) -> Tensor:
    """Compute the marginal probabilities of all spans from their inside values: (T+1, T+1, B).

    Args:
        chart: (T+1, T+1, B) inside values, as ``_upwards`` computes them with ``_log_sum``.
        lengths: (B,) number of words of each sentence.
    """
    marginals = torch.zeros_like(chart)
    # The whole sentence is in every tree, so its marginal is 1. From there, each span distributes its probability mass
    # over the children of its splits.
    marginals[0, lengths, torch.arange(len(lengths), device=lengths.device)] = 1.0
    # Wide spans come before narrow ones, so that a span has received all of its mass before it distributes the mass.
    for w in range(len(chart) - 1, 1, -1):
        left, right = _children(chart, w)
        # The softmax sums to 1, so that a span distributes exactly its mass, however large the scores are.
        share = torch.softmax(left + right, 0).mul_(marginals.diagonal(w).T)
        for child in _children(marginals, w):
            child.add_(share)
    return marginals


class _LogPartition(torch.autograd.Function):
    """The log partition function log Z (B,), with the outside pass as its backward pass.

    It takes half the time and a third of the memory of plain autograd.
    """

    @staticmethod
    def forward(ctx, scores: Tensor, lengths: Tensor) -> Tensor:
        chart = _upwards(_batch_last(scores, lengths), _log_sum)
        # Only the inside chart is kept for the backward pass. Plain autograd would keep the (w − 1, n, B) tensors of
        # every width, which take cubic memory.
        ctx.save_for_backward(chart, lengths)
        return chart[0, lengths, torch.arange(len(lengths), device=lengths.device)]

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        # The derivative of log Z with respect to the score of a span is the marginal probability of that span.
        return (_outside_pass(*ctx.saved_tensors) * grad).permute(2, 0, 1), None


def constituency_log_partition(scores: Tensor, lengths: Tensor) -> Tensor:
    """Compute the log of the summed exponentiated scores of all binary trees over each sentence.

    The model is that of Zhang, Zhou and Li (2020), "Fast and Accurate Neural CRF Constituency Parsing". The result can
    be differentiated once, and its gradient consists of the marginal probabilities of the spans.

    Args:
        scores: (B, T+1, T+1) finite numbers, where ``scores[b, i, j]`` with i < j scores the span of words i … j − 1.
        lengths: (B,) number of words of each sentence, from 1 to T.

    Returns:
        (B,) in nats.
    """
    lengths = lengths.to(scores.device, torch.long)
    with _full_precision(scores) as full:
        return _LogPartition.apply(full, lengths)


def constituency_crf_loss(scores: Tensor, charts: Tensor, lengths: Tensor) -> Tensor:
    """Compute the negative log-likelihood of the gold trees, summed over the batch, in nats.

    For each sentence this is log Z minus the score of the gold tree. The caller divides the sum.

    Args:
        scores, lengths: as in ``constituency_log_partition``.
        charts: (B, T+1, T+1) bool, True at the 2n − 1 spans of the binarised gold tree.
    """
    with _full_precision(scores) as full:
        # `where` instead of a product, because a score that is masked out may be infinite.
        gold = torch.where(charts, full, 0.0).sum()
        return constituency_log_partition(full, lengths).sum() - gold


@torch.no_grad()
def constituency_marginals(scores: Tensor, lengths: Tensor) -> Tensor:
    """Compute the probability that each span is in the tree: (B, T+1, T+1), zero outside the sentence and for i ≥ j.

    The arguments are those of ``constituency_log_partition``.
    """
    lengths = lengths.to(scores.device, torch.long)
    with _full_precision(scores) as full:
        return _outside_pass(_upwards(_batch_last(full, lengths), _log_sum), lengths).permute(2, 0, 1)


@torch.no_grad()
def best_splits(scores: Tensor, lengths: Tensor) -> Tensor:
    """Compute the best split of every span, from which ``bracketing`` reads the binary tree with the highest score.

    If the scores are marginals, this is the tree of minimum Bayes risk. Among trees with equal scores, the tree that
    splits further left wins. The arguments are those of ``constituency_log_partition``.

    Returns:
        (B, T+1, T+1) long. Element [b, w, i] describes the span (i, i + w) of sentence b, and is the width of its left
        child minus 1.
    """
    lengths = lengths.to(scores.device, torch.long)
    with _full_precision(scores) as full:
        chart = _batch_last(full, lengths)
        middles = torch.zeros_like(chart, dtype=torch.long)

        def best(scores_of_spans: Tensor, left: Tensor, right: Tensor) -> None:
            splits = left + right
            # `argmax` instead of `max`, because only `argmax` promises the first of equal maxima, and equal scores must
            # give the same tree on every device.
            first = splits.argmax(0, keepdim=True)
            middles[len(splits) + 1, : splits.shape[1]] = first[0]
            scores_of_spans.add_(splits.gather(0, first)[0])

        _upwards(chart, best)
    return middles.permute(2, 0, 1).contiguous()


def bracketing(middles: Tensor, length: int) -> list[tuple[int, int]]:
    """Read the best binary tree of one sentence from its best splits, starting at the whole sentence.

    Args:
        middles: (T+1, T+1) the sentence's part of what ``best_splits`` returns.
        length: number of words n of the sentence.

    Returns:
        The 2n − 1 spans (start, end) of the tree in pre-order.
    """
    table = middles[: length + 1, :length].tolist()
    spans = []
    agenda = [(0, length)]
    while agenda:
        start, end = agenda.pop()
        spans.append((start, end))
        if end - start > 1:
            # The left child is pushed last and therefore popped first, which gives pre-order.
            middle = start + 1 + table[end - start][start]
            agenda += [(middle, end), (start, middle)]
    return spans


# --- dependency trees with a single root ---------------------------------------------------------------------------


@torch.no_grad()
def mst(scores: Tensor, lengths: Tensor, projective: bool = False) -> Tensor:
    """Find the maximum spanning tree of each sentence in which exactly one word depends on ROOT.

    First, every word takes its best head. If these heads already form such a tree, it is the optimum. Only the other
    sentences are decoded by the Chu-Liu/Edmonds algorithm or, if ``projective``, by supar's version of Eisner's
    algorithm.

    Args:
        scores: (B, T+1, T+1), where ``scores[b, d, h]`` scores head h for dependent d, and position 0 is ROOT. The row
            of ROOT, the diagonal and the padding are not read. All other scores must be finite.
        lengths: (B,) number of words of each sentence without ROOT, from 1 to T.
        projective: whether to allow projective trees only.

    Returns:
        (B, T+1) long, the head of each word on the device of the scores; 0 at ROOT and in the padding. Equal scores
        always give the same tree.

    Raises:
        ValueError: a score that is read is NaN or infinite.
    """
    lengths = lengths.to(scores.device, torch.long)
    with _full_precision(scores) as full:
        positions = torch.arange(scores.shape[1], device=scores.device)
        is_node = positions <= lengths[:, None]  # (B, T+1)
        is_word = is_node & (positions > 0)
        readable = is_word[:, :, None] & is_node[:, None, :] & (positions[:, None] != positions)
        if not bool(full.isfinite().logical_or_(~readable).all()):
            raise ValueError("the scores of some arcs are NaN or infinite; a tree needs finite scores")
        # A word cannot be its own head, ROOT has no head, and padding is never a head.
        masked = full.masked_fill(~readable, float("-inf"))
        heads = masked.argmax(-1).masked_fill_(~is_word, 0)
        # In trained parsers, the greedy heads of most sentences already form a tree. No tree can score higher than the
        # sum of each word's maximum, so these sentences are done.
        is_tree = _single_root_trees(heads, is_word)
        if projective:
            is_tree &= ~_crossing(heads, is_word)
        unfinished = (~is_tree).nonzero()[:, 0]
        if len(unfinished):
            decode = _eisner if projective else _chu_liu_edmonds
            heads[unfinished] = decode(masked[unfinished], lengths[unfinished])
    return heads


def _single_root_trees(heads: Tensor, is_word: Tensor) -> Tensor:
    """Return whether exactly one word depends on ROOT and every word is connected to ROOT: (B,) bool."""
    above = heads
    # Pointer jumping: after k rounds, `above` points 2^k steps towards ROOT, so that log₂(T + 1) rounds reach ROOT from
    # every word that is connected to it. Words on a cycle never reach ROOT.
    for _ in range(heads.shape[1].bit_length()):
        above = above.gather(1, above)
    return ((heads == 0) & is_word).sum(1).eq(1) & above.eq(0).all(1)


def _crossing(heads: Tensor, is_word: Tensor) -> Tensor:
    """Return whether two arcs of a sentence cross: (B,) bool."""
    positions = torch.arange(heads.shape[1], device=heads.device).expand_as(heads)
    low = torch.minimum(heads, positions).masked_fill(~is_word, 0)
    high = torch.maximum(heads, positions).masked_fill(~is_word, 0)
    # Two arcs cross if one of them begins strictly within the other and ends strictly behind it.
    starts_within = (low[:, :, None] < low[:, None, :]) & (low[:, None, :] < high[:, :, None])
    return (starts_within & (high[:, :, None] < high[:, None, :])).flatten(1).any(1)


def _eisner(scores: Tensor, lengths: Tensor) -> Tensor:
    from supar.structs import DependencyCRF

    # supar computes the argmax as a gradient, so that inference mode and no_grad must be off.
    with torch.inference_mode(False), torch.enable_grad():
        # supar sums scores, which must be finite. The entries that become 0 here (the row of ROOT, the diagonal and the
        # padding) do not influence the result.
        finite = torch.nan_to_num(scores.clone(), neginf=0.0)
        return DependencyCRF(finite, lengths.clone(), multiroot=False).argmax


def _chu_liu_edmonds(scores: Tensor, lengths: Tensor) -> Tensor:
    result = torch.zeros(scores.shape[:2], dtype=torch.long)
    tables = scores.double().cpu().numpy()
    for b, n in enumerate(lengths.tolist()):
        result[b, : n + 1] = torch.from_numpy(_single_root_arborescence(tables[b, : n + 1, : n + 1]))
    return result.to(scores.device)


# --- maximum spanning arborescences (Chu & Liu 1965, Edmonds 1967) over numpy tables ---------------------------------
# This version does not recurse. supar's version recurses once per word, so that a chain of 1,500 words raises a
# RecursionError.


def _single_root_arborescence(scores: np.ndarray) -> np.ndarray:
    """Find the tree with the highest score among the trees with exactly one arc out of node 0.

    A penalty on every arc out of node 0 that is larger than all possible gains enforces a single arc, and does not
    change the order of trees with a single arc. The computation is in fp64, so that the penalty costs no digit of fp32
    scores.

    Args:
        scores: (n+1, n+1) ``scores[dependent, head]``: −inf on the diagonal and in row 0, and finite elsewhere.

    Returns:
        (n+1,) head of each node; 0 for node 0.
    """
    table = scores.astype(np.float64)
    arcs = table[np.isfinite(table)]
    # A second arc out of node 0 gains at most n times the range of the scores, and the penalty is larger than that, so
    # the best tree has a single arc out of node 0. Every such tree pays the penalty once, so their order does not
    # change.
    table[:, 0] -= 1.0 + len(table) * float(arcs.max() - arcs.min())
    return _arborescence(table)


def _arborescence(scores: np.ndarray) -> np.ndarray:
    """Find the heads of the best tree from node 0, with any number of arcs out of it; ``scores`` is overwritten."""
    heads = scores.argmax(1)
    heads[0] = 0
    contractions = []
    leads_to_root = np.zeros(len(scores), dtype=bool)  # whether a node is known to lead to node 0
    leads_to_root[0] = True
    # From every node, follow the best heads upwards until the path reaches a node that is known to lead to node 0. If
    # the path reaches one of its own nodes again, the cycle is contracted into its first node, and the path continues
    # from there.
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
    # Expand the cycles, starting with the one that was contracted last. The arc that enters the contracted node
    # replaces the arc of the member that it enters in the original graph. The other members keep their heads within the
    # cycle.
    for cycle, cycle_heads, entered, left in reversed(contractions):
        outer = heads[cycle[0]]
        heads = np.where(heads == cycle[0], left, heads)
        heads[cycle] = cycle_heads
        heads[entered[outer]] = outer
    return heads


def _contract(scores: np.ndarray, heads: np.ndarray, cycle: list[int]) -> tuple:
    """Contract a cycle into its first node, changing ``scores`` and ``heads`` in place.

    An arc into the cycle scores its gain over the arc of the cycle that it replaces. An arc out of the cycle has the
    score of the best arc from any member.

    Returns:
        The cycle, the heads of its members within the cycle, the member that each possible head would enter, and the
        best member as head of each other node.
    """
    cycle_heads = heads[cycle].copy()
    members = np.array(cycle)
    gains = scores[members] - scores[members, cycle_heads][:, None]  # (|C|, n+1)
    entered = members[gains.argmax(0)]
    left = members[scores[:, members].argmax(1)]
    scores[cycle[0]] = gains.max(0)
    scores[:, cycle[0]] = scores[:, members].max(1)
    scores[cycle[0], members] = -np.inf
    # From here on no node may choose another member of the cycle as head, and the rows of these members are not read.
    scores[:, members[1:]] = -np.inf
    heads[np.isin(heads, members)] = cycle[0]
    heads[cycle[0]] = scores[cycle[0]].argmax()
    return cycle, cycle_heads, entered, left


# --- flat spans -----------------------------------------------------------------------------------------------------


def nonoverlapping(spans: Iterable[tuple[int, int, float, str]]) -> list[tuple[int, int, float, str]]:
    """Choose the non-overlapping spans ``(start, end, score, label)`` with the highest sum of scores.

    The algorithm is weighted interval scheduling, which is exact and takes O(n log n). ``end`` is exclusive, so that
    neighbours may touch. Spans with a score ≤ 0 or NaN are never chosen. Among subsets with equal sums, the subset that
    is found first wins, with spans in order of end and then start.

    Returns:
        The chosen spans in order of their start.
    """
    ordered = sorted((span for span in spans if span[2] > 0), key=lambda span: (span[1], span[0]))
    ends = [span[1] for span in ordered]
    best = [0.0]  # best[k]: the highest sum among the first k spans
    compatible = []  # compatible[k]: the number of spans that end at or before the start of span k
    for k, (start, _, score, _) in enumerate(ordered):
        # Spans are sorted by their ends, so the spans that end at or before this start form a prefix of the list.
        compatible.append(bisect_right(ends, start, 0, k))
        best.append(max(best[k], best[compatible[k]] + score))
    selection = []
    k = len(ordered)
    # Walk back through the table: the k-th span is chosen exactly if it raised the best sum.
    while k:
        if best[k] > best[k - 1]:
            selection.append(ordered[k - 1])
            k = compatible[k - 1]
        else:
            k -= 1
    return selection[::-1]
