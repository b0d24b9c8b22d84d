"""Counts what a GPU would be asked to do: operations launched, and times that the host waits for the device.

Where there is no GPU, everything lies in main memory and one rule tells the sides apart. A tensor is on the host where
it was made without a device (``torch.from_numpy``, ``torch.arange(n)``) or read off the device (``cpu``, ``tolist``),
and where it was computed from such tensors alone; all others, parameters first, are on the device.

operation    one call that reaches a kernel, as torch's dispatcher sees it (within custom functions too); on the device
             only, and neither views nor memory that is only reserved
wait         a number that the host reads, or a size that depends on values; a copy that is not asynchronous
mixed        an operation on tensors of both sides, which a GPU refuses
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, cast
from unittest import mock

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from mtlprune.config.config import Config
from mtlprune.layers import Layer, kind_of
from mtlprune.model import MultiTaskModel
from mtlprune.runs.folder import RunFolder
from mtlprune.sentence import Dependencies, Predicate, Sentence, Span
from mtlprune.tasks import Task
from mtlprune.training import hardware, mixing
from mtlprune.training.benchmark import Stepper, gated_run
from mtlprune.training.checkpoint import Progress
from mtlprune.training.data import load_data
from mtlprune.training.hardware import decide, settle
from mtlprune.training.loop import Trainer
from mtlprune.training.optimisation import make_optimizer
from mtlprune.training.run import Run, gate_sets

FREE = {
    "_unsafe_view",
    "detach",
    "alias",
    "lift_fresh",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}
SIZED = {"nonzero", "masked_select", "bincount", "equal", "_unique2", "unique_dim", "unique_consecutive"}
"""Operations whose result or its size the host has to read."""
READS = {"cpu", "tolist", "numpy", "__array__"}
DEVICE = torch.device("cpu", 0)
"""What tensors of the device give for their device, where there is no GPU; torch takes it for main memory."""
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}


@dataclass
class Launches:
    """What was counted."""

    operations: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    mixed: Counter[str] = field(default_factory=Counter)
    kernels: int = 0
    """On a GPU; 0 where there is none."""
    products: int = 0
    """Floating-point operations of matrix products, two for each multiplication that is added up."""
    kept: int = 0
    """Bytes that the forward pass keeps for the backward pass, parameters left out."""
    on_host: int = 0
    """Calls in progress whose tensors are all on the host."""

    def figures(self) -> dict[str, Any]:
        """As JSON holds them."""
        counts = {name: dict(getattr(self, name)) for name in ("operations", "waits")}
        return counts | {name: getattr(self, name) for name in ("kernels", "products", "kept")}


@contextmanager
def counted(host: Sequence[Tensor] = ()) -> Iterator[Launches]:
    """Count within the block.

    Args:
        host: tensors made before that stay on the host.
    """
    found, from_numpy = Launches(), torch.from_numpy
    for tensor in host:
        _mark(tensor)

    def marked(array: Any) -> Tensor:  # no mode is told of it
        tensor = from_numpy(array)
        _mark(tensor)
        return tensor

    with _Operations(found), _Sides(found), mock.patch.object(torch, "from_numpy", marked):
        yield found


def _mark(tensor: Tensor) -> None:
    vars(tensor)["on_host"] = True


def _on_host(tensor: Tensor) -> bool:
    return "on_host" in vars(tensor)


class _Operations(TorchDispatchMode):
    """What reaches a kernel."""

    def __init__(self, found: Launches) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        if self.found.on_host:
            return result
        if name == "_local_scalar_dense" or name in SIZED or _sized(name, args, kwargs or {}):
            self.found.waits[name] += 1
        none = name == "_to_copy" and result.dtype == args[0].dtype  # from DEVICE to itself
        if name != "_local_scalar_dense" and name not in FREE and not func.is_view and not none:
            self.found.operations[name] += 1
        return result


def _sized(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the size of the result depends on values."""
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    places = args[1] if name in INDEXED else ()
    return any(place is not None and place.dtype == torch.bool for place in places)


class _Sides(TorchFunctionMode):
    """On which side each tensor lies."""

    def __init__(self, found: Launches) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found, name = self.found, getattr(func, "__name__", "")
        leaves = tree_leaves((args, kwargs))
        sides = [_on_host(leaf) for leaf in leaves if isinstance(leaf, Tensor)]
        named = any(leaf == DEVICE for leaf in leaves if isinstance(leaf, torch.device))
        on_host = all(sides) and not (named and name != "to")
        found.on_host += on_host
        try:
            result = func(*args, **kwargs)
        finally:
            found.on_host -= on_host
        if isinstance(result, torch.device):
            return result if on_host else DEVICE
        if on_host and named:  # another object, without the mark
            found.operations["copy to the device"] += 1
            if not kwargs.get("non_blocking"):
                found.waits["copy to the device"] += 1
            return result.detach()
        reads = name in READS and not on_host
        if reads:
            found.waits[f"read by {name}"] += 1
        if not on_host and any(leaf.dim() for leaf in leaves if isinstance(leaf, Tensor) and _on_host(leaf)):
            if name in ("__getitem__", "__setitem__", "copy_"):
                found.operations["copy to the device"] += 1
                found.waits[f"copy by {name}"] += 1
            elif name not in ("__get__", "__set__"):
                found.mixed[name] += 1
        if reads and isinstance(result, Tensor):
            result = result.detach()  # another object, with the mark
        if on_host or reads:
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor):
                    _mark(leaf)
        return result


# -- a step and a batch of annotation, of made sentences ---------------------------------------------------------------

SENTENCES, WIDTHS = 4, (20, 88)
"""Of a batch, and words of each. More sentences of so many words take the same operations, only larger ones."""
BARE = "bare encoder"
WORDS = [
    "the",
    "old",
    "students",
    "of",
    "London",
    "unbelievably",
    "wrote",
    ",",
    "antidisestablishmentarianism",
    "letters",
]


def made_sentence(number: int, size: int, kinds: Mapping[str, str]) -> Sentence:
    """A sentence with something of every kind of layer. Args: kinds: layer → kind."""
    every = range(0, size - 3, 5)
    values: dict[str, Any] = {
        "tags": tuple("ABC"[place % 3] for place in range(size)),
        "spans": tuple(Span(place, place + 2, "AB"[place % 2]) for place in every),
        "tree": Dependencies(tuple(range(size)), ("root", *["ab"[place % 2] for place in range(size - 1)])),
        "brackets": (Span(0, size, "S"), *(Span(place, place + 2, "NP") for place in every)),
        "frames": tuple(Predicate(place, None, (Span(place + 1, place + 3, "A"),)) for place in every),
    }
    words = tuple(WORDS[(number * number + place) % len(WORDS)] for place in range(size))
    layers: dict[str, Any] = {name: Layer(kind, values[kind_of(kind)]) for name, kind in kinds.items()}
    return Sentence(str(number), words).with_layers(**layers).validate()


@dataclass
class Asked:
    """What a model of a configuration was counted to ask for."""

    parts: dict[str, dict[str, Launches]]
    """step (the bare encoder's, each task's, all tasks' and that with gates) and annotation → kind → counts."""
    sent: int
    """Bytes of gradients that each of several processes gives into the sum of a step."""

    def plan(self, sentences: int, gpus: int, flops: float, link: float) -> "Planned":
        """What an update of all tasks would take, by arithmetic alone: nothing here was timed.

        Each process has its share of the sentences, and the sum of the gradients, which waits for the backward pass,
        sends 2 (n − 1) / n of them (the ring of Patarasuk and Yuan 2009).

        Args:
            sentences: of an update, each as long as those counted.
            gpus: n.
            flops: floating-point operations a second that a GPU really does.
            link: bytes a second between GPUs.
        """
        step = next(one for name, one in self.parts["step"].items() if name.startswith("MTL-"))
        share = math.ceil(sentences / gpus) / SENTENCES
        sent = 2 * (gpus - 1) / gpus * self.sent
        return Planned(step.products * share / flops, sent / link, sent, 4 * self.sent + step.kept * share)


class Planned(NamedTuple):
    """One of several GPUs, in an update."""

    compute: float
    """Seconds of matrix products."""
    sum: float
    """Seconds of the sum of the gradients."""
    sent: float
    """Bytes."""
    memory: float
    """Bytes: weights, gradients and both of Adam's moments, and what the backward pass needs; as counted, in fp32."""


def measure(config: Config, words: int, sentences: int = SENTENCES) -> Asked:
    """Count steps and annotation of a new model, on the CPU; where there is a GPU, kernels on it too.

    The numbers are the same each time: they depend on the configuration and on the length of the sentences alone.
    """
    parts: dict[str, dict[str, Launches]] = {"step": {}, "annotation": {}}
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        sent = 0
        for part, kind, model, work in works(config, words, sentences, device):
            sent = max(sent, sent_in_a_step(model))
            work()  # the first one makes the optimizer's state
            if device == "cuda":
                parts[part][kind].kernels = kernels(work)
                continue
            with counted([gates.fixed for gates in gate_sets(model).values()]) as found:
                work()
            found.products, found.kept = products_and_kept(work, model)
            parts[part][kind] = found
    return Asked(parts, sent)


def sent_in_a_step(model: MultiTaskModel) -> int:
    """Bytes of gradients of a step of all tasks."""
    return sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)


def works(
    config: Config, words: int, sentences: int, device: str
) -> Iterator[tuple[str, str, MultiTaskModel, Callable[[], Any]]]:
    """Everything to be counted: what it is part of, its name, its model, and one step or the annotation of a batch."""
    precision = config.train.precision.replace("auto", "fp32")
    settings = config.train.model_copy(update={"precision": precision, "device": device})
    config = decide(config.model_copy(update={"train": settings}))
    settle(config.train.threads)
    layers = {task: config.decoder(task).kind for task in config.tasks}
    rows = [made_sentence(number, words, layers) for number in range(sentences)]
    model = MultiTaskModel.build(config, {task: config.decoder(task).collect(rows, task) for task in config.tasks})
    run, dtype = load_data(config, model.to(device), rows, rows), hardware.dtype(precision)
    every = list(range(sentences))
    bare = Stepper(run, (), dtype)
    yield "step", BARE, model, lambda: bare.step(every)
    joint, gated = f"MTL-{len(config.tasks)}", gated_run(run)
    wanted = {**{f"STL {task}": (task,) for task in config.tasks}, joint: config.tasks}
    steps = [(name, tasks, run) for name, tasks in wanted.items()]
    for name, tasks, part in steps + ([(f"{joint}, gated", config.tasks, gated)] if gated is not None else []):
        trainer = trainer_of(part, tasks)
        yield "step", name, part.model, partial(trainer.update, [mixing.MiniBatch(tasks, every)])
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.tasks.parameters():
            parameter.normal_(std=0.3)  # new decoders find next to nothing
    for name, tasks in wanted.items():
        alone = MultiTaskModel(model.encoder, {task: cast(Task, model.tasks[task]) for task in tasks})
        yield "annotation", name, alone, partial(_annotated, alone, rows, dtype)


def products_and_kept(work: Callable[[], Any], model: MultiTaskModel) -> tuple[int, int]:
    """Operations of one call's matrix products, and bytes that it keeps between its two passes."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = max(storage.nbytes(), kept.get(storage.data_ptr(), 0))
        return tensor

    with FlopCounterMode(display=False) as counter, saved_tensors_hooks(keep, lambda tensor: tensor):
        work()
    return int(counter.get_total_flops()), sum(kept.values())


def trainer_of(run: Run, tasks: tuple[str, ...]) -> Trainer:
    """The training loop itself, over some of the tasks; nothing is written before an evaluation."""
    run = replace(run, config=run.config.model_copy(update={"tasks": tasks}))
    trainer = Trainer(run, RunFolder("launches"), make_optimizer(run.model, run.config), Progress())
    trainer.model.train()
    return trainer


def _annotated(model: MultiTaskModel, rows: Sequence[Sentence], precision: torch.dtype) -> list[Sentence]:
    return list(model.annotate(rows, precision))


def kernels(work: Callable[[], Any]) -> int:
    """Kernels and copies that one call launches on a GPU, as the profiler has them."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    return sum(event.device_type == DeviceType.CUDA for event in profiler.events() or ())
