"""Counts what a GPU would be asked to do: operations launched, and times that the host waits for the device.

Where there is no GPU, everything lies in main memory and one rule tells the sides apart. A tensor is on the host where
it was made without a device (``torch.from_numpy``, ``torch.arange(n)``) or read off the device (``cpu``, ``tolist``),
and where it was computed from such tensors alone; all others, parameters first, are on the device.

operation    one call that reaches a kernel, as torch's dispatcher sees it (within custom functions too); on the device
             only, and neither views nor memory that is only reserved
wait         a number that the host reads, or a size that depends on values; a copy that is not asynchronous
mixed        an operation on tensors of both sides, which a GPU refuses
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

FREE = {"_unsafe_view", "detach", "alias", "lift_fresh", "empty", "empty_like", "empty_strided"}
FREE |= {"new_empty", "new_empty_strided"}
SIZED = {"nonzero", "masked_select", "bincount", "equal", "_unique2", "unique_dim", "unique_consecutive"}
"""Operations whose result or its size the host has to read."""
READS = {"cpu", "tolist", "numpy", "__array__"}
DEVICE = torch.device("cpu", 0)
"""The device that tensors of the device name where there is no GPU; torch takes it for main memory."""
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}


@dataclass
class Launches:
    """Counts of operations, waits and mixed operations by name."""

    operations: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    mixed: Counter[str] = field(default_factory=Counter)
    on_host: int = 0
    """Calls in progress whose tensors are all on the host."""


@contextmanager
def counted(host: Sequence[Tensor] = ()) -> Iterator[Launches]:
    """Count within the block.

    Args:
        host: tensors made before that stay on the host.
    """
    launches, from_numpy = Launches(), torch.from_numpy
    for tensor in host:
        _mark(tensor)

    def marked(array: Any) -> Tensor:  # no mode is told of it
        tensor = from_numpy(array)
        _mark(tensor)
        return tensor

    with _Operations(launches), _Sides(launches), mock.patch.object(torch, "from_numpy", marked):
        yield launches


def _mark(tensor: Tensor) -> None:
    vars(tensor)["on_host"] = True


def _on_host(tensor: Tensor) -> bool:
    return "on_host" in vars(tensor)


class _Operations(TorchDispatchMode):
    def __init__(self, launches: Launches) -> None:
        super().__init__()
        self.launches = launches

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        if self.launches.on_host:
            return result
        if name == "_local_scalar_dense" or name in SIZED or _sized(name, args, kwargs or {}):
            self.launches.waits[name] += 1
        none = name == "_to_copy" and result.dtype == args[0].dtype  # from DEVICE to itself
        if name != "_local_scalar_dense" and name not in FREE and not func.is_view and not none:
            self.launches.operations[name] += 1
        return result


def _sized(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    places = args[1] if name in INDEXED else ()
    return any(place is not None and place.dtype == torch.bool for place in places)


class _Sides(TorchFunctionMode):
    def __init__(self, launches: Launches) -> None:
        super().__init__()
        self.launches = launches

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        launches, name = self.launches, getattr(func, "__name__", "")
        leaves = tree_leaves((args, kwargs))
        sides = [_on_host(leaf) for leaf in leaves if isinstance(leaf, Tensor)]
        named = any(leaf == DEVICE for leaf in leaves if isinstance(leaf, torch.device))
        on_host = all(sides) and not (named and name != "to")
        launches.on_host += on_host
        try:
            result = func(*args, **kwargs)
        finally:
            launches.on_host -= on_host
        if isinstance(result, torch.device):
            return result if on_host else DEVICE
        if on_host and named:  # another object, without the mark
            launches.operations["copy to the device"] += 1
            if not kwargs.get("non_blocking"):
                launches.waits["copy to the device"] += 1
            return result.detach()
        reads = name in READS and not on_host
        if reads:
            launches.waits[f"read by {name}"] += 1
        if not on_host and any(leaf.dim() for leaf in leaves if isinstance(leaf, Tensor) and _on_host(leaf)):
            if name in ("__getitem__", "__setitem__", "copy_"):
                launches.operations["copy to the device"] += 1
                launches.waits[f"copy by {name}"] += 1
            elif name not in ("__get__", "__set__"):
                launches.mixed[name] += 1
        if reads and isinstance(result, Tensor):
            result = result.detach()  # another object, with the mark
        if on_host or reads:
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor):
                    _mark(leaf)
        return result
