"""Matrix products that make the decoders fast without changing a number: they would read the same with ``nn.Linear``.

**Tables.** A decoder's rows are words without padding. ``form_table`` and ``biaffine_table`` lay them out by sentence,
at places counted on the host (``encoder.batch``: ``slots``, ``move_together``), so that no device is waited for.

**Rounded rows.** Under bf16 autocast on CPUs oneDNN compiles a kernel for every new shape, three for a layer's forward
and backward pass, and the number of words is new in nearly every batch. Rows of zeros are therefore added to reach one
of four counts an octave, and taken off the result: exact, and the kernels are met again. A step of five tasks has 22
such layers. On Intel with AMX a kernel takes about 3 ms, so that new counts would cost a step 0.2 s, half of its time.
On AMD with AVX-512 the kernels of a layer take 1.9 ms and 2.2 MB, and rounding neither gains nor loses time
(results/speed). ``compiled`` is the switch: everywhere else ``linear`` is torch's own.

M rows, B sentences of ``sizes`` rows each (M in all), T the longest.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mtlprune.encoder.batch import move_together, slots, table

_SMALLEST = 64
TABLE = 4  # sides of tables are rounded up to multiples of this


def rounded(rows: int) -> int:
    """The next of four counts an octave, at least 64: 64, 128, ... 512, 640, ... 1024, 1280, ..."""
    # oneDNN compiles a kernel for every new shape of a bf16 product on a CPU, which takes longer than the product.
    # Four counts an octave bound the number of shapes, at the cost of at most a quarter more rows.
    step = max(_SMALLEST, 1 << max(0, (rows - 1).bit_length() - 3))
    return -(-rows // step) * step


def compiled(tensor: Tensor) -> bool:
    """True where products of this tensor are compiled shape by shape: under bf16 autocast on a CPU."""
    return tensor.device.type == "cpu" and torch.is_autocast_enabled("cpu")


class _RoundedLinear(torch.autograd.Function):
    """A linear layer in bf16 on rows copied into a buffer of ``rounded`` length; one copy each way."""

    @staticmethod
    def forward(ctx, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # type: ignore[no-untyped-def]
        kind = torch.get_autocast_dtype("cpu")
        # Both operands are cast here because autocast does not reach into a custom function.
        full, lean = _filled(rows, kind), weight.to(kind)
        ctx.save_for_backward(full, lean)
        ctx.kinds = (rows.dtype, weight.dtype, None if bias is None else bias.dtype)
        product = full @ lean.t() if bias is None else torch.addmm(bias.to(kind), full, lean.t())
        # Rows of padding are zeros; their products are cut off and get no gradient.
        return product[: len(rows)]

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # type: ignore[no-untyped-def, override]
        full, lean = ctx.saved_tensors
        of_rows, of_weight, of_bias = ctx.kinds
        by_rows = by_weight = by_bias = None
        # The gradient is padded with zeros too, so that padded rows add nothing to the weight's gradient, and its
        # products have the same few shapes.
        by_result = _filled(grad, full.dtype)
        if ctx.needs_input_grad[0]:
            by_rows = (by_result @ lean)[: len(grad)].to(of_rows)
        if ctx.needs_input_grad[1]:
            by_weight = (by_result.t() @ full).to(of_weight)
        if of_bias is not None and ctx.needs_input_grad[2]:
            # Summed in fp32: a bf16 sum over a thousand rows would lose the small ones.
            by_bias = by_result.sum(0, dtype=torch.float32).to(of_bias)
        return by_rows, by_weight, by_bias


def _filled(rows: Tensor, kind: torch.dtype) -> Tensor:
    """The rows as ``kind``, with rows of zeros behind: (M, h) → (rounded(M), h)."""
    full = rows.new_empty(rounded(len(rows)), rows.shape[1], dtype=kind)
    full[: len(rows)] = rows
    full[len(rows) :] = 0
    return full


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """rows (M, inputs), weight (outputs, inputs) → (M, outputs)."""
    if not compiled(rows):
        return nn.functional.linear(rows, weight, bias)
    result: Tensor = _RoundedLinear.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    return result


class Linear(nn.Linear):
    """nn.Linear over (M, inputs)."""

    def forward(self, rows: Tensor) -> Tensor:
        return linear(rows, self.weight, self.bias)


def table_side(longest: int) -> int:
    """The side of a table for so many rows."""
    return -(-longest // TABLE) * TABLE


def _form_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A biaffine form with both biases, (L, a + 1, b + 1), as a linear layer from the left vector: its weight
    (L·b + L, a) and bias; outputs are L vectors to meet the right one, then the L scores of the right bias."""
    labels, a, b = weight.shape[0], weight.shape[1] - 1, weight.shape[2] - 1
    # The form is [x; 1]ᵀ W [y; 1]. Its last column meets the 1 of the right vector, so it yields a score by the left
    # vector alone, and is split off; the last row meets the 1 of the left vector and becomes the bias of the linear
    # layer.
    forms, ends = weight.permute(1, 0, 2).split([b, 1], dim=2)  # (a + 1, L, b + 1)
    columns = torch.cat([forms.reshape(a + 1, labels * b), ends.squeeze(2)], dim=1)
    rows, bias = columns.split([a, 1])
    return rows.t(), bias.squeeze(0)


def form_table(
    left: Tensor, form: Tensor, right: Tensor, sizes: Sequence[int], side: int, lefts: Tensor, rights: Tensor
) -> Tensor:
    """Scores [left; 1]ᵀ form right of the rows of each sentence: left (M, a), form (a + 1, b), right (M', b) →
    (B, side, side), fp32.

    Args:
        lefts, rights: (M,) and (M',), their places in (B · side) tables.
    """
    # First the left vectors through the form, as one product over all words of the batch; then one batched product a
    # sentence. Rows of padding are zeros and are never read.
    mixed = table(linear(left, form[:-1].t(), form[-1]), sizes, side, lefts)  # (B, side, b)
    return torch.bmm(mixed, table(right, sizes, side, rights).transpose(1, 2).to(mixed.dtype)).float()


def biaffine_table(left: Tensor, weight: Tensor, right: Tensor, sizes: Sequence[int]) -> Tensor:
    """Scores of every row against every row of its sentence: left (M, a), weight (L, a + 1, b + 1), right (M, b) →
    (B, T, L, T), fp32."""
    labels, b, longest = weight.shape[0], weight.shape[2] - 1, max(sizes)
    side = table_side(longest)
    (table_slots,) = move_together([slots(sizes, side)], left.device)
    mixed = table(linear(left, *_form_weight(weight)), sizes, side, table_slots)  # (B, side, L·b + L)
    forms, by_left = mixed.split([labels * b, labels], dim=-1)
    forms = forms.reshape(len(sizes), side * labels, b)
    scores = torch.bmm(
        forms, table(right.to(mixed.dtype), sizes, side, table_slots).transpose(1, 2)
    )  # (B, side·L, side)
    # The score of the right bias depends on the left row and the label only, so it is added to all right rows alike.
    scores = scores.view(len(sizes), side, labels, side).float() + by_left[..., None].float()
    return scores[:, :longest, :, :longest]


def biaffine_lists(left: Tensor, weight: Tensor, right: Tensor) -> Tensor:
    """left (M, a), weight (L, a + 1, b + 1), right (M, K, b) → (M, L, K), fp32: row m of left against the K rows of
    ``right[m]`` only."""
    rows, per_row = right.shape[:2]
    # A column of ones multiplies the biases of the form, so that no bias as large as all forms is written or summed.
    left, right = (nn.functional.pad(vectors, (0, 1), value=1) for vectors in (left, right))
    if compiled(left):
        # Rows and columns of zeros let the compiled kernels of the products by row be used again, as in `linear`.
        left = nn.functional.pad(left, (0, 0, 0, rounded(rows) - rows))
        right = nn.functional.pad(right, (0, 0, 0, table_side(per_row) - per_row, 0, rounded(rows) - rows))
    forms = linear(left, weight.transpose(1, 2).flatten(0, 1)).unflatten(1, (len(weight), -1))  # (M, L, b + 1)
    return torch.bmm(forms, right.transpose(1, 2).to(forms.dtype))[:rows, :, :per_row].float()
