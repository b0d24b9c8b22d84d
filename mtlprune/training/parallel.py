"""One run on several processes, as `torchrun` starts them: each takes a share of every mini-batch, all take one step.

each process    the same mini-batch, tasks and rates; forward and backward of its own sentences
all together    sum and number of every loss term → the loss of the whole batch; sum of the gradients after the last
                backward pass
each process    clip, penalty, step: on equal numbers, so weights stay equal and are never sent
process 0       owns the folder, writes and speaks

A task's loss is a sum of means (`Task.terms`) over words, spans or pairs, of which processes have different numbers:
the gradient of the whole batch is not the mean of theirs. So each mean is weighed by its share of the items, and
gradients are summed; then two processes take the step that one would take, up to rounding.

Numbers and messages go by gloo, gradients by gloo from CPUs and by NCCL from GPUs.
"""

import contextlib
import datetime
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mtlprune.encoder.gates import Gates
from mtlprune.errors import MtlpruneError, launched
from mtlprune.runs.folder import RunError
from mtlprune.tasks.base import Term, summed
from mtlprune.training.checkpoint import step_seed
from mtlprune.training.mixing import MiniBatch

TIMEOUT = datetime.timedelta(minutes=10)
"""The time that a process waits for the others before it gives the run up."""
TERMS = 4
"""A task's loss has at most so many terms."""


class ProcessGroupError(MtlpruneError):
    """The run ends because of another process; the message names it and says what it said."""

    exit_code = 3
    spoken_by = 1
    """So many processes, the first ones, have to say it."""


class LostProcess(ProcessGroupError):
    """Another process ended without a word, or does not answer."""

    spoken_by = 2  # the first may be the one that is lost


class ProcessGroup:
    """The processes of a run; without a process group there is only this one, and nothing is sent.

    Args:
        rank, size: which process this is, from 0, and of how many.
        local: which it is on its machine.
        grouped: whether there is a process group.
    """

    def __init__(self, rank: int = 0, size: int = 1, local: int = 0, grouped: bool = False) -> None:
        self.rank, self.size, self.local, self.grouped = rank, size, local, grouped

    @property
    def leads(self) -> bool:
        """True in the process that writes and speaks."""
        return self.rank == 0

    def take(self, device: str) -> None:
        """Make "cuda" mean this process's own GPU.

        Raises:
            RunError: there are fewer GPUs than processes, or one of them was asked for by its number.
        """
        if not self.grouped or not device.startswith("cuda"):
            return
        if device != "cuda":
            raise RunError(
                f"train.device: each of {self.size} processes takes a GPU of its own; expected cuda or cpu, "
                f"found {device}"
            )
        if self.local >= torch.cuda.device_count():
            raise RunError(
                f"train.device: {torch.cuda.device_count()} GPUs here for more processes than that; start as "
                "many as there are GPUs (torchrun --nproc-per-node), or train with train.device=cpu"
            )
        torch.cuda.set_device(self.local)

    def share(self, mini_batch: MiniBatch) -> MiniBatch:
        """This process's sentences of a mini-batch; none where there are more processes than sentences."""
        return mini_batch._replace(rows=mini_batch.rows[self.rank :: self.size])

    def seed_gates(self, sets: Mapping[str, Gates], seed: int, step: int, tasks: Sequence[str], place: int) -> None:
        """Let gates draw the same noise in every process, whatever dropout drew there before."""
        if self.grouped:
            for name, gates in sets.items():
                gates.noise = torch.Generator(gates.logits.device)
                gates.noise.manual_seed(step_seed(seed, step, tasks, place, *name.encode()))

    def losses(
        self, terms: Mapping[str, Sequence[Term]], tasks: Sequence[str]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """This process's parts of the losses, to be differentiated, and the losses of the whole mini-batch.

        Args:
            terms: task → terms of the loss of this process's share.
            tasks: of the mini-batch, the same in every process.

        Returns:
            Task → this process's part of its loss, and task → its loss over all processes, equal in all of them:
            scalars without a gradient, on the CPU where there are several processes.
        """
        if not self.grouped:
            losses = {task: summed(parts) for task, parts in terms.items()}
            return losses, {task: loss.detach() for task, loss in losses.items()}
        own = torch.zeros(2, len(tasks), TERMS, dtype=torch.float64)  # counts, sums
        here = [
            (row, column, term) for row, task in enumerate(tasks) for column, term in enumerate(terms.get(task, ()))
        ]
        for (row, column, term), mean in zip(here, read([term.mean for _, _, term in here]), strict=True):
            own[0, row, column] = term.items
            own[1, row, column] = mean * term.items
        total = own.clone()
        self._call(dist.all_reduce, total)
        counts, sums = total
        means = sums / counts.clamp(min=1)
        values = {task: means[row].sum() for row, task in enumerate(tasks) if counts[row].any()}
        shares = dict(zip(tasks, (own[0] / counts.clamp(min=1)).tolist(), strict=True))
        parts = {
            task: torch.stack([term.mean * shares[task][column] for column, term in enumerate(tensors)]).sum()
            for task, tensors in terms.items()
        }
        return parts, values

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace gradients by their sums over the processes; what has none anywhere keeps none, so that it neither
        steps nor decays.

        Args:
            parameters: the same in every process.
        """
        if not self.grouped:
            return
        moved = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
        self._call(dist.all_reduce, moved, dist.ReduceOp.MAX)
        chosen = [parameter for parameter, has in zip(parameters, moved.tolist(), strict=True) if has]
        for kind in dict.fromkeys(parameter.dtype for parameter in chosen):
            same = [parameter for parameter in chosen if parameter.dtype == kind]
            flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in same])
            self._call(dist.all_reduce, flat)
            for parameter, part in zip(same, flat.split([p.numel() for p in same]), strict=True):
                parameter.grad = part.view_as(parameter)

    def summed(self, tensor: Tensor) -> Tensor:
        """A tensor on the CPU, of one shape everywhere, added over the processes."""
        if self.grouped:
            self._call(dist.all_reduce, tensor)
        return tensor

    def any(self, asked: bool) -> bool:
        """True where any process answers yes."""
        if not self.grouped:
            return asked
        flag = torch.tensor(int(asked))
        self._call(dist.all_reduce, flag, dist.ReduceOp.MAX)
        return bool(flag)

    @contextlib.contextmanager
    def agreed(self) -> Iterator[None]:
        """Let what fails in one process fail in all.

        Raises:
            ProcessGroupError: another process failed within; where that is process 0, whatever happened here.
        """
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            if not self.grouped:
                raise
            failure = error
        if not self.grouped:
            return
        messages = self.gather(f"{type(failure).__name__}: {failure}" if failure else "")
        if failure is not None and (self.leads or not messages[0]):
            raise failure
        for rank, message in enumerate(messages):
            if message:
                raise ProcessGroupError(f"process {rank} of {self.size} could not go on: {message}") from failure

    def gather(self, text: str) -> list[str]:
        """A text of every process, in their order."""
        if not self.grouped:
            return [text]
        letters = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)
        sizes = torch.zeros(self.size, dtype=torch.int64)
        sizes[self.rank] = len(text.encode())
        self._call(dist.all_reduce, sizes)
        longest = max(1, int(sizes.max()))
        own = nn.functional.pad(letters, (0, longest - len(letters)))
        all_ = [torch.empty_like(own) for _ in range(self.size)]
        self._call(dist.all_gather, all_, own)
        return [part[:size].numpy().tobytes().decode() for part, size in zip(all_, sizes.tolist(), strict=True)]

    def send_state(self, model: nn.Module) -> None:
        """Give every process the weights of process 0."""
        if self.grouped:
            for tensor in model.state_dict().values():
                self._call(dist.broadcast, tensor, 0)

    def _call(self, operation: Callable[..., Any], *args: Any) -> None:
        """Do what needs the other processes. Raises LostProcess where they do not answer."""
        try:
            operation(*args)
        except RuntimeError as error:
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> LostProcess:
        what = re.sub(r"^\[[^]]*\] *", "", str(error).splitlines()[0]).split(". ")[0]  # without lines of gloo's source
        return LostProcess(
            f"process {self.rank} of {self.size}: another process of this run has ended or does not answer ({what}); "
            "what it said tells why. The same command continues from the last checkpoint"
        )


def read(scalars: Sequence[Tensor]) -> list[float]:
    """Their values, for which the host waits once."""
    values = [0.0] * len(scalars)
    for device in dict.fromkeys(scalar.device for scalar in scalars):
        places = [place for place, scalar in enumerate(scalars) if scalar.device == device]
        numbers = torch.stack([scalars[place].detach() for place in places]).tolist()
        for place, number in zip(places, numbers, strict=True):
            values[place] = number
    return values


def numbers(values: Mapping[str, Tensor]) -> dict[str, float]:
    """The same of scalars by name."""
    return dict(zip(values, read(list(values.values())), strict=True))


ALONE = ProcessGroup()
"""This process, and no other."""


@contextlib.contextmanager
def joined() -> Iterator[ProcessGroup]:
    """The processes that torchrun (or another launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT) started
    for this run; this one alone where none did.

    Raises:
        LostProcess: the others do not come.
        MtlpruneError: some of these variables are missing, or contradict each other.
    """
    rank, size, local = launched()
    if size < 2:
        yield ALONE
        return
    group = ProcessGroup(rank, size, local, grouped=True)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    try:
        dist.init_process_group(backend, timeout=TIMEOUT)
    except RuntimeError as error:
        raise group._lost(error) from error
    try:
        yield group
    finally:
        dist.destroy_process_group()
