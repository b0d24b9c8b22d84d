"""The model with a shared encoder and a decoder for each task, which computes training losses and annotates sentences.

Training, evaluation, prediction and the analyses of trained runs use it.
"""

import itertools
import logging
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel

from mtlprune.config.config import Config
from mtlprune.corpora.formats import BLANKS, words_of
from mtlprune.encoder.batch import by_length, move_together
from mtlprune.encoder.clones import Clones
from mtlprune.encoder.gates import Gates, TopKGates
from mtlprune.encoder.interventions import CONSTANT, set_substitute
from mtlprune.encoder.model import Encoded, Encoder, EncoderBatch
from mtlprune.encoder.pieces import EncoderError, Pieces
from mtlprune.encoder.sources import fill, read_weights
from mtlprune.layers import Layer
from mtlprune.runs.folder import REMEDY, RunError, RunFolder
from mtlprune.runs.groups import SHARED as SHARED
from mtlprune.sentence import Sentence
from mtlprune.tasks import Task, decoder_class
from mtlprune.tasks.base import Target
from mtlprune.tasks.con import LONGEST

log = logging.getLogger(__name__)

OVERLAPPING = {"cuda"}
"""Device types that compute asynchronously, so that the host can decode one batch while the device encodes the next."""
EVALUATION_SENTENCES = 128
_EVALUATION_PIECES = 8192
_MIN_FILLED = 0.8
"""The smallest share of an evaluation batch in fp32 that is not padding."""


Decode = Callable[[str, Encoded, "list[int] | None", "dict[str, Tensor]"], Tensor]
"""A function that computes the loss of a task from the task's name, the encoded batch, the rows of the sentences that
have the task's layer (None: all sentences), and their targets."""


@dataclass
class Batch:
    """One batch on a device: the input of the encoder, and for each task the rows that have its layer with targets."""

    pieces: EncoderBatch
    targets: dict[str, tuple[list[int] | None, dict[str, Tensor]]]  # None instead of rows: every sentence has the layer
    sentences: int
    words: int


class _EarlyGradient(torch.autograd.Function):
    """A decoder's loss whose gradient is already computed in the forward pass.

    The decoder's activations are freed before the next decoder runs, so the peak memory contains the activations of
    the largest decoder instead of those of all decoders. The results are the same, up to the order in which the
    gradients with respect to the encoding are added.
    """

    @staticmethod
    def forward(ctx, loss_of: Callable[[Encoded], Tensor], encoded: Encoded, *inputs: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        vectors, parameters = inputs[:3], inputs[3:]
        with torch.enable_grad():
            leaves = [vector.detach().requires_grad_(vector.requires_grad) for vector in vectors]
            words, cls, sep = leaves
            loss = loss_of(replace(encoded, words=words, cls=cls, sep=sep))
            differentiable = [tensor for tensor in (*leaves, *parameters) if tensor.requires_grad]
            # This backward pass runs inside the forward pass, so autocast is switched off, as in any backward pass.
            with torch.autocast(loss.device.type, enabled=False):
                gradients = iter(torch.autograd.grad(loss, differentiable, allow_unused=True))
        ctx.gradients = [next(gradients) if t.requires_grad else None for t in (*leaves, *parameters)]
        return loss.detach()

    @staticmethod
    @once_differentiable  # type: ignore[misc]
    def backward(ctx, factor: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def, override]
        present = [gradient for gradient in ctx.gradients if gradient is not None]
        scaled = iter(torch._foreach_mul(present, factor))  # one kernel launch on a GPU for all tensors
        return None, None, *(None if gradient is None else next(scaled) for gradient in ctx.gradients)


class MultiTaskModel(nn.Module):
    """A shared encoder and one decoder for each task.

    Args:
        encoder: the encoder, which computes the word vectors.
        tasks: the decoders as {task: decoder}.
        gates: the gates that all tasks share, as {"shared": gates}, or the gates of each task, as {task: gates}. By
            default, the model has no gates.
    """

    def __init__(self, encoder: Encoder, tasks: dict[str, Task], gates: dict[str, Gates] | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.tasks = nn.ModuleDict(tasks)
        self.gates = nn.ModuleDict(gates or {})
        self.treated: dict[str, Any] = {}  # the content of treatment.json
        vars(encoder.transformer).pop("save_pretrained", None)
        if gates:
            vars(encoder.transformer)["save_pretrained"] = _refuse_to_save

    def __repr__(self) -> str:
        hooks = self.encoder.head_hooks
        size = f"{hooks.layers} layers of {hooks.heads} heads"
        family = cast(PreTrainedModel, self.encoder.transformer).config.model_type
        return f"MultiTaskModel({', '.join(self.tasks)}; {family}, {size})"

    @classmethod
    def build(
        cls, config: Config, vocabularies: dict[str, dict[str, list[str]]], source: str | None = None
    ) -> "MultiTaskModel":
        """Build the model of a configuration as it is before training.

        Args:
            config: the configuration of the run.
            vocabularies: the lists of labels of each task.
            source: a folder with the encoder's configuration and tokenizer. If it is given, the encoder's weights stay
                random, because the caller loads them afterwards.

        Raises:
            EncoderError: a decoder pools the first token of an encoder that has no such special token.
        """
        part = config.encoder
        encoder = Encoder.load(
            source or part.name,
            pooling=part.pooling,
            word_dropout=part.word_dropout,
            random=part.random or source is not None,
            context=part.context,
            seed=config.train.seed,
            attention_direction=part.attention,
            fusion=part.fusion,
            fusion_layers=part.fusion_layers,
            revision=None if source else part.revision,
        )
        if part.checkpointing is True:
            encoder.use_checkpointing()
        closed = config.pruning.closed
        if closed in CONSTANT:
            zeros = torch.zeros(encoder.head_hooks.layers, encoder.head_hooks.heads, encoder.head_hooks.width)
            set_substitute(encoder, closed, nn.Parameter(zeros) if closed == "optimal" else zeros)
        elif closed == "resample":
            set_substitute(encoder, closed, seed=config.train.seed)
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")  # of a task without labels
        torch.manual_seed(config.train.seed)
        tasks = {}
        for name in config.tasks:
            options = getattr(config.decoders, name)
            if getattr(options, "pooling", "mean") == "first" and not encoder.reads_first:
                raise EncoderError(
                    f"decoders.{name}.pooling: expected mean, because {part.name} has no special token of its own that "
                    "stands before a sentence and sees all of it, found first"
                )
            tasks[name] = decoder_class(config.decoder(name))(vocabularies[name], encoder.hidden_size, options)
            tasks[name].layer = name
        return cls(encoder, tasks, make_gates(config, encoder))

    @classmethod
    def load(cls, path: Any, *, task: str | None = None, device: str = "cpu") -> "MultiTaskModel":
        """Load the best model of a run that is finished or has been evaluated at least once.

        Args:
            path: the folder of the run.
            task: the task whose best weights are loaded. By default, the weights that are best for all tasks together
                are loaded.
            device: the device of the model.

        Raises:
            RunError: the folder holds no run, the run has saved no weights yet, it has no such task, or a file differs
                from the one that the run wrote.
        """
        run = RunFolder.with_weights(path)
        config = run.config
        best = run.read_best()
        key, repair = task or "joint", "it, config.yaml or vocabulary.json was changed or damaged"
        if key not in best:
            raise RunError(
                f"{run.path}: expected a task with a best epoch, found {key!r}; the run has {', '.join(best)}"
            )
        run.verify()
        try:
            weights = run.verify_weights(key, best[key])
            tensors = read_weights(weights, RunError, repair)
        except RunError:
            if run.read_best() == best:
                raise
            # Training may have replaced the best weights between reading the record and opening the file; the second
            # attempt reads the new record.
            return cls.load(path, task=task, device=device)
        model = cls.build(config, run.read_vocabularies(), source=str(run.encoder_path))
        model.treated = run.treated() if config.treatment.chosen_treatments else {}
        if config.treatment.clone is not None:
            encoder, heads = model.encoder, model.treated["clone"]["heads"][SHARED]
            transformer, rank = cast(PreTrainedModel, encoder.transformer), config.treatment.clone.rank
            encoder.clones = Clones(transformer, encoder.head_hooks, heads, config.tasks, rank)
        fill(model, tensors, RunError, f"{weights} does not hold the weights of this run; {repair}")
        if model.gates:
            model._check_gates(run, key)
        return model.to(device).eval()

    def _check_gates(self, run: RunFolder, key: str) -> None:
        """Raise RunError if the gates recorded in the run folder differ from the gates in the model's weights.

        Tables and claims read the recorded gates.
        """
        for name, stored in run.best_gates(key)[1].items():
            gates = cast(Gates, self.gates[name]).evaluated().detach().cpu().numpy()
            if gates.shape != stored.shape or not np.allclose(gates, stored, rtol=1e-4, atol=1e-5):
                raise RunError(f"{run.gates_path}: the gates of {name} are not those of the weights ({key}); {REMEDY}")

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def fold_clones(self, task: str) -> None:
        """Turn a model with cloned heads into the model of one task, in place.

        The clones of this task are folded into the encoder, and only its decoder stays. A model without clones does not
        change.
        """
        if self.encoder.clones is not None:
            self.encoder.clones.fold(task)
            self.encoder.clones = None
            self.tasks = nn.ModuleDict({task: self.tasks[task]})

    # -- training ----------------------------------------------------------------------------------------------------

    def sizes(self) -> dict[str, int]:
        """Return the number of parameters of the encoder and of each task's decoder, by name."""
        parts: dict[str, nn.Module] = {"encoder": self.encoder, **dict(self.tasks.items())}
        return {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}

    def collate(self, pieces: Sequence[Pieces], targets: Mapping[str, Sequence[Target | None]]) -> Batch:
        """Join tokenised sentences, and the targets of each given task, into one batch on the model's device.

        Args:
            pieces: the tokenised sentences.
            targets: for each task a target for each sentence, or None where the sentence's layer is unknown.
        """
        batch = self.encoder.collate(pieces)
        joined: dict[str, tuple[list[int] | None, dict[str, Tensor]]] = {}
        for name, rows in targets.items():
            annotated_rows = [place for place, row in enumerate(rows) if row is not None]
            if not annotated_rows:
                continue
            sizes = [batch.sizes[place] for place in annotated_rows]
            part = self.tasks[name].collate([rows[place] for place in annotated_rows], sizes)  # type: ignore[operator]
            joined[name] = (None if len(annotated_rows) == len(rows) else annotated_rows, part)
        parts = [batch.tensors(), *(part for _, part in joined.values())]
        on_device = iter(move_together([tensor for part in parts for tensor in part.values()], self.device))
        for part in parts:
            part.update(zip(part, on_device, strict=False))
        device_batch = EncoderBatch(**parts[0], sizes=batch.sizes, full=batch.full)
        return Batch(device_batch, joined, len(pieces), sum(batch.sizes))

    def losses(self, batch: Batch, decode: Decode | None = None) -> dict[str, Tensor]:
        """Encode a batch and return the loss of every task that has targets in it.

        Args:
            batch: the batch.
            decode: the function that computes the loss of a task, by default `decoder_loss`.
        """
        losses = {}
        for encoded, names in self.encodings(batch.pieces, list(batch.targets)):
            for name in names:
                losses[name] = (decode or self.decoder_loss)(name, encoded, *batch.targets[name])
        return {name: losses[name] for name in batch.targets}

    def decoder_loss(
        self, name: str, encoded: Encoded, annotated_rows: list[int] | None, target: dict[str, Tensor]
    ) -> Tensor:
        """Return the loss that a task's decoder computes for an encoded batch.

        Args:
            name: the task.
            encoded: the encoded batch.
            annotated_rows: the rows of the sentences that have the task's layer, or None if all sentences have it.
            target: the targets of these sentences.
        """
        task: Any = self.tasks[name]

        def loss_of(encoded: Encoded) -> Tensor:
            loss: Tensor = task.loss(encoded if annotated_rows is None else encoded.select(annotated_rows), target)
            return loss

        inputs = encoded.words, encoded.cls, encoded.sep, *task.parameters()
        # With a single task an early gradient would save no memory: the activations of its decoder are the last that
        # the forward pass makes and the first that the backward pass frees.
        if len(self.tasks) == 1 or not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in inputs):
            return loss_of(encoded)
        result: Tensor = _EarlyGradient.apply(loss_of, encoded, *inputs)  # type: ignore[no-untyped-call]
        return result

    def encodings(self, pieces: EncoderBatch, names: list[str]) -> Iterator[tuple[Encoded, list[str]]]:
        """Yield encodings of a batch, each with the tasks that read it.

        All tasks share one encoding, unless the tasks have separate gates or cloned heads, so that encodings differ.
        """
        if self.encoder.clones is not None:
            gates = self.gates[SHARED]() if self.gates else None
            for name, encoded in zip(names, self.encoder.encode_for_tasks(pieces, names, gates), strict=True):
                yield encoded, [name]
        elif not self.gates:
            yield self.encoder(pieces), names
        elif SHARED in self.gates:
            yield self.encoder(pieces, self.gates[SHARED]()), names
        else:
            for name in names:
                yield self.encoder(pieces, self.gates[name]()), [name]

    # -- use ---------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def annotate(
        self, sentences: Sequence[Sentence], precision: torch.dtype = torch.float32, longest_con: int | None = None
    ) -> Iterator[Sentence]:
        """Annotate sentences and return them in the same order, with only the predicted layers.

        A GPU encodes a batch while a thread of the host decodes the previous batch. On a CPU, encoding and decoding
        would compete for the cores, so they alternate.

        Args:
            sentences: the sentences, whose layers are ignored.
            precision: the dtype of the forward pass, float32 or bfloat16 (by autocast).
            longest_con: the largest number of words of a sentence that gets constituents, because the time of
                constituency parsing grows with the third power of the length. None for no limit.
        """
        self.eval()
        pieces = self.encoder.tokenize_sentences(sentences)
        kinds: dict[str, Any] = {name: task.kind for name, task in self.tasks.items()}
        annotated: dict[int, Sentence] = {}

        def decode(rows: Sequence[int], encodings: Mapping[str, Encoded]) -> None:
            # Both modes are local to a thread, and this function may run in another thread than the caller.
            with torch.no_grad(), autocast(self.device, precision):
                values = {name: self._decode(name, encoded, longest_con) for name, encoded in encodings.items()}
            for place, row in enumerate(rows):
                layers = {name: Layer(kinds[name], column[place]) for name, column in values.items()}
                annotated[row] = sentences[row].bare().with_layers(**layers)

        with ThreadPoolExecutor(1) as host:
            before: Future[None] | None = None
            for rows in evaluation_batches([len(p.ids) for p in pieces], precision):
                batch = self.encoder.collate([pieces[row] for row in rows]).to(self.device)
                with autocast(self.device, precision):
                    encodings = {
                        name: encoded for encoded, names in self.encodings(batch, list(self.tasks)) for name in names
                    }
                if before is not None:
                    before.result()
                if self.device.type in OVERLAPPING:
                    before = host.submit(decode, rows, encodings)
                else:
                    decode(rows, encodings)
            if before is not None:
                before.result()
        return (annotated[row] for row in range(len(sentences)))

    def _decode(self, name: str, encoded: Encoded, longest: int | None) -> list[Any]:
        """Return a task's prediction for each sentence, or None for a sentence too long for a cubic-time decoder."""
        task: Any = self.tasks[name]
        fits = [place for place, size in enumerate(encoded.sizes) if longest is None or size <= longest]
        if not task.cubic or len(fits) == len(encoded.sizes):
            values: list[Any] = task.decode(encoded)
            return values
        values = [None] * len(encoded.sizes)
        for place, value in zip(fits, task.decode(encoded.select(fits)) if fits else (), strict=True):
            values[place] = value
        return values

    def parse(self, *texts: str | Sequence[str], longest_con: int | None = LONGEST) -> list[Sentence]:
        """Annotate sentences, which are lists of words or text that is split at spaces and tabs: ``parse("A b c", "D
        e")``, and ``parse(["A b c", "D e"])``. A list of strings without spaces holds the words of one sentence.

        Args:
            texts: the sentences, or lists of sentences.
            longest_con: the largest number of words of a sentence that gets constituents, or None for no limit. A
                warning is logged for every longer sentence.
        """
        lists = [[text] if isinstance(text, str) or not _are_texts(text) else text for text in texts]
        words = [words_of(text) if isinstance(text, str) else tuple(text) for text in itertools.chain(*lists)]
        sentences = [Sentence(str(number), w).validate() for number, w in enumerate(words, 1)]
        longest = longest_con if any(task.cubic for task in self.tasks.values()) else None
        for sentence in sentences:
            if longest is not None and len(sentence) > longest:
                message = "sentence %s has %d words, more than longest_con=%d, so it gets no constituents"
                log.warning(message, sentence.id, len(sentence), longest)
        return list(self.annotate(sentences, longest_con=longest_con))


def _are_texts(strings: Sequence[str]) -> bool:
    """Return True if a list holds texts or lists of words, and False if it holds words, which contain no blanks."""
    return any(not isinstance(text, str) or set(text) & set(BLANKS) for text in strings)


def _refuse_to_save(*args: Any, **options: Any) -> None:
    """Raise EncoderError in place of ``save_pretrained`` of a transformer with gates, which would save no gates."""
    raise EncoderError(
        "this transformer has gates, which would be lost when it is saved; `mtlprune export RUN --out DIR` folds the "
        "gates into the weights"
    )


def make_gates(config: Config, encoder: Encoder) -> dict[str, Gates]:
    """Return the gate sets of a configuration by name ("shared", or the tasks), each drawn with a different seed."""
    settings = config.pruning
    if settings.method == "none":
        return {}
    names = config.tasks if settings.sets == "per_task" else (SHARED,)
    size = encoder.head_hooks.layers, encoder.head_hooks.heads
    # The tasks are part of the seed, so that gates of different tasks start from different values. With equal initial
    # values, different tasks would be likely to claim the same heads.
    salt = zlib.crc32(",".join(config.tasks).encode())
    seeds = np.random.SeedSequence([config.train.seed, salt, 3]).generate_state(len(names)).tolist()
    gates: dict[str, Gates] = {}
    for name, seed in zip(names, seeds, strict=True):
        if settings.method == "topk":
            gates[name] = TopKGates(*size, cast(int, settings.keep), settings.init, seed, settings.anneal_from)
        else:
            gates[name] = Gates(*size, "open" if settings.noise else settings.init, seed, settings.temperature)
        gates[name].requires_grad_(settings.learns)
    return gates


def evaluation_batches(lengths: Sequence[int], precision: torch.dtype | None = None) -> Iterator[list[int]]:
    """Yield batches of evaluation as rows of sentences of similar length, longest first.

    Args:
        lengths: the number of sub-words of each sentence.
        precision: the dtype of the forward pass. In float32, batches contain little padding.
    """
    # Without a limit, half of the slots of a hundred sentences would be padding. The limit applies to fp32 only: in
    # bf16 rounding makes predictions depend slightly on the shape of the batch, and the committed results were computed
    # with batches of this composition.
    filled = _MIN_FILLED if precision == torch.float32 else 0.0
    return by_length(lengths, lambda longest: min(EVALUATION_SENTENCES, _EVALUATION_PIECES // max(1, longest)), filled)


@contextmanager
def autocast(device: torch.device, precision: torch.dtype) -> Iterator[None]:
    """Enter bf16 autocast on a device, or do nothing for fp32.

    With gradients in bf16 on the CPU, attention uses PyTorch's unfused kernel, because the backward pass of the fused
    kernel takes several times as long (torch 2.13). Attention with dropout uses the unfused kernel anyway.
    """
    plain = device.type == "cpu" and precision == torch.bfloat16 and torch.is_grad_enabled()
    kernel = sdpa_kernel(SDPBackend.MATH) if plain else nullcontext()
    with torch.autocast(device.type, precision, enabled=precision != torch.float32), kernel:
        yield
