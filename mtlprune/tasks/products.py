"""Fast matrix products for the decoders, with the same results as ``nn.Linear`` and plain biaffine products.

**Tables.** The rows of a decoder are words without padding. ``form_table`` and ``biaffine_table`` arrange them in a
padded table with one line per sentence. The host computes the positions in the table (``slots`` and ``move_together``
in ``encoder/batch.py``), so that it never waits for the device.

**Rounded numbers of rows.** Under bf16 autocast on CPUs, oneDNN compiles a kernel for every new shape (three kernels
for the forward and backward pass of a linear layer), and the number of words is new in nearly every batch. Therefore
rows of zeros are added, so that the number of rows is one of four numbers per octave, and are removed from the result.
This is exact, and lets oneDNN use its kernels again. A training step of five tasks has 22 such layers. On Intel CPUs
with AMX a kernel takes about 3 ms, so that new shapes would cost 0.2 s per step, half of its time. On AMD CPUs with
AVX-512 the kernels of a layer take 1.9 ms and 2.2 MB, and rounding neither gains nor loses time (results/speed).
``_compiled`` decides whether rows are added. Otherwise ``linear`` is ``torch.nn.functional.linear``.

Letters in shapes: M rows of the batch, B sentences of ``sizes`` rows each (M in total), T rows of the longest sentence.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mtlprune.encoder.batch import move_together, slots, table

_SMALLEST = 64
_TABLE_STEP = 4
"""The sides of tables are rounded up to multiples of this number."""


def _rounded(rows: int) -> int:
    """Round a number of rows up to one of 64, 128, ..., 512, 640, ..., 1024, 1280, ... (four numbers per octave)."""
    # Four numbers per octave limit the number of shapes for which oneDNN compiles a kernel. Above 256 rows they add a
    # quarter of the rows or less.
    step = max(_SMALLEST, 1 << max(0, (rows - 1).bit_length() - 3))
    return -(-rows // step) * step


def _compiled(tensor: Tensor) -> bool:
    """Return whether oneDNN compiles products of this tensor for each shape, that is, on a CPU under autocast."""
    return tensor.device.type == "cpu" and torch.is_autocast_enabled("cpu")


class _RoundedLinear(torch.autograd.Function):
    """A linear layer in bf16 over rows that are copied into a buffer of ``_rounded`` length."""

    @staticmethod
    def forward(ctx, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # type: ignore[no-untyped-def]
        dtype = torch.get_autocast_dtype("cpu")
        ctx.dtypes = (rows.dtype, weight.dtype, None if bias is None else bias.dtype)
        # Both operands are cast here, because autocast does not apply inside a custom function.
        padded, weight = _padded(rows, dtype), weight.to(dtype)
        ctx.save_for_backward(padded, weight)
        product = padded @ weight.t() if bias is None else torch.addmm(bias.to(dtype), padded, weight.t())
        # The results of padding rows are removed and therefore get no gradient.
        return product[: len(rows)]

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # type: ignore[no-untyped-def, override]
        padded, weight = ctx.saved_tensors
        rows_dtype, weight_dtype, bias_dtype = ctx.dtypes
        rows_grad = weight_grad = bias_grad = None
        # The gradient is also padded with zeros. Padding rows then add nothing to the gradient of the weight, and the
        # products of the backward pass have the same few shapes.
        padded_grad = _padded(grad, padded.dtype)
        if ctx.needs_input_grad[0]:
            rows_grad = (padded_grad @ weight)[: len(grad)].to(rows_dtype)
        if ctx.needs_input_grad[1]:
            weight_grad = (padded_grad.t() @ padded).to(weight_dtype)
        if bias_dtype is not None and ctx.needs_input_grad[2]:
            # The sum is in fp32, because a bf16 sum over a thousand rows would lose small numbers.
            bias_grad = padded_grad.sum(0, dtype=torch.float32).to(bias_dtype)
        return rows_grad, weight_grad, bias_grad


def _padded(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Copy rows to another dtype and append rows of zeros: (M, h) → (_rounded(M), h)."""
    padded = rows.new_empty(_rounded(len(rows)), rows.shape[1], dtype=dtype)
    padded[: len(rows)] = rows
    padded[len(rows) :] = 0
    return padded


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply a linear layer with weight (outputs, inputs) to rows: (M, inputs) → (M, outputs)."""
    if not _compiled(rows):
        return nn.functional.linear(rows, weight, bias)
    result: Tensor = _RoundedLinear.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    return result


class Linear(nn.Linear):
    """``nn.Linear`` for two-dimensional inputs (M, inputs), computed by ``linear``."""

    def forward(self, rows: Tensor) -> Tensor:
        return linear(rows, self.weight, self.bias)


def table_side(longest: int) -> int:
    """Return the side of a table whose longest sentence has ``longest`` rows."""
    return -(-longest // _TABLE_STEP) * _TABLE_STEP


def _form_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Convert L biaffine forms with biases on both sides, (L, a + 1, b + 1), to a linear layer over left vectors.

    Returns:
        The weight (L·b + L, a) and the bias (L·b + L,) of the layer. Its outputs are L vectors, to be multiplied with a
        right vector, and then L scores that do not depend on the right vector.
    """
    labels, a, b = weight.shape[0], weight.shape[1] - 1, weight.shape[2] - 1
    # A form is [x; 1]ᵀ W [y; 1]. The last column of W is multiplied by the 1 of the right vector, so it gives a score
    # that depends on the left vector only, and is split off. The last row of W is multiplied by the 1 of the left
    # vector, so it becomes the bias of the linear layer.
    forms, last_columns = weight.permute(1, 0, 2).split([b, 1], dim=2)  # (a + 1, L, b) and (a + 1, L, 1)
    columns = torch.cat([forms.reshape(a + 1, labels * b), last_columns.squeeze(2)], dim=1)
    rows, bias = columns.split([a, 1])
    return rows.t(), bias.squeeze(0)


def form_table(
    left: Tensor, form: Tensor, right: Tensor, sizes: Sequence[int], side: int, lefts: Tensor, rights: Tensor
) -> Tensor:
    """Compute the scores [x; 1]ᵀ form y of all pairs of a left row x and a right row y of the same sentence.

    Args:
        left: (M, a) left rows of all sentences.
        form: (a + 1, b) biaffine form with a bias on the left side.
        right: (M', b) right rows of all sentences.
        sizes: a list with one entry for each of the B sentences. Only its length is used.
        side: side of the table, as ``table_side`` computes it.
        lefts: (M,) position of each left row in a flattened table (B · side).
        rights: (M',) position of each right row in a flattened table (B · side).

    Returns:
        (B, side, side) scores in fp32. Cells beyond the rows of a sentence have no meaning and must not be read.
    """
    # One product applies the form to the left rows of the whole batch. A batched product per sentence follows.
    mixed = table(linear(left, form[:-1].t(), form[-1]), sizes, side, lefts)  # (B, side, b)
    return torch.bmm(mixed, table(right, sizes, side, rights).transpose(1, 2).to(mixed.dtype)).float()


def biaffine_table(left: Tensor, weight: Tensor, right: Tensor, sizes: Sequence[int]) -> Tensor:
    """Compute L biaffine scores of all pairs of rows of the same sentence.

    Args:
        left: (M, a) left vectors of all rows.
        weight: (L, a + 1, b + 1) biaffine forms with biases on both sides.
        right: (M, b) right vectors of all rows.
        sizes: number of rows of each sentence.

    Returns:
        (B, T, L, T) scores in fp32: sentence, left row, form, right row.
    """
    labels, b, longest = weight.shape[0], weight.shape[2] - 1, max(sizes)
    side = table_side(longest)
    (table_slots,) = move_together([slots(sizes, side)], left.device)
    mixed = table(linear(left, *_form_weight(weight)), sizes, side, table_slots)  # (B, side, L·b + L)
    forms, by_left = mixed.split([labels * b, labels], dim=-1)
    forms = forms.reshape(len(sizes), side * labels, b)
    scores = torch.bmm(
        forms, table(right.to(mixed.dtype), sizes, side, table_slots).transpose(1, 2)
    )  # (B, side·L, side)
    # The score of the right bias depends only on the left row and the form, so it is added for all right rows.
    scores = scores.view(len(sizes), side, labels, side).float() + by_left[..., None].float()
    return scores[:, :longest, :, :longest]


def biaffine_lists(left: Tensor, weight: Tensor, right: Tensor) -> Tensor:
    """Compute L biaffine scores of each left row with its list of K right rows.

    Args:
        left: (M, a) left rows.
        weight: (L, a + 1, b + 1) biaffine forms with biases on both sides.
        right: (M, K, b), where ``right[m]`` lists the right rows for left row m.

    Returns:
        (M, L, K) scores in fp32.
    """
    rows, per_row = right.shape[:2]
    # A column of ones multiplies the biases of the forms, so that no separate bias of the size of all forms is needed.
    left, right = (nn.functional.pad(vectors, (0, 1), value=1) for vectors in (left, right))
    if _compiled(left):
        # Rows and columns of zeros let oneDNN use its compiled kernels of the batched product again, as in `linear`.
        left = nn.functional.pad(left, (0, 0, 0, _rounded(rows) - rows))
        right = nn.functional.pad(right, (0, 0, 0, table_side(per_row) - per_row, 0, _rounded(rows) - rows))
    forms = linear(left, weight.transpose(1, 2).flatten(0, 1)).unflatten(1, (len(weight), -1))  # (M, L, b + 1)
    return torch.bmm(forms, right.transpose(1, 2).to(forms.dtype))[:rows, :, :per_row].float()
