"""The parts of a configuration: frozen models, one sentence under every field."""

import math
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Annotated, Any, Literal, cast

from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from mtlprune.errors import printable
from mtlprune.evaluation.ablations import Closed
from mtlprune.io.block import Block, CountsOnlyWith
from mtlprune.io.plugins import Registry

_MOST_EPOCHS = 10_000
"""Batches of all epochs are laid out before the first one: the schedule of the rates needs their number."""


def as_folder_name(name: str) -> str:
    """A name that becomes part of that of a folder. Raises ValueError."""
    if not name.strip() or name.startswith(".") or set(name) & set("/\\") or printable(name) != name:
        raise ValueError(
            "name: expected a name that a folder can have, without /, \\, line breaks and signs that steer a terminal, "
            f"found {name!r}"
        )
    return name


class DataConfig(Block):
    """The corpus, its splits, and how much of them is used."""

    path: str
    """Folder of a stored corpus, as `mtlprune data build` writes it."""
    train: str = "train"
    """Split to train on."""
    dev: str = "dev"
    """Split that chooses the best epoch."""
    train_sentences: int | None = Field(default=None, ge=1)
    """Number of training sentences to use, from the first on (all, if not given)."""
    dev_sentences: int | None = Field(default=None, ge=1)
    """Number of dev sentences, from the first on, that choose the best epoch (all, if not given)."""
    half: Literal[1, 2] | None = None
    """Train on one of two random halves of the training sentences (the same halves for all seeds)."""


Layers = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
"""Layers of an encoder, from 1."""


class EncoderConfig(Block):
    """The encoder, and how vectors of words are made of its output."""

    name: str = "minilm"
    """A Hugging Face name, a local folder, or `minilm` or `mpnet`, which are packages (docs/reference/encoder.md)."""
    revision: str | None = None
    """A commit, tag or branch of a Hugging Face name (the main branch, if not given)."""
    random: bool = False
    """Start from random weights of the same architecture (the no-pretraining control)."""
    context: bool = True
    """false leaves only the word embeddings, without layers or positions: the no-encoder baseline."""
    attention: Literal["causal", "full"] | None = None
    """Words of a decoder-only model attend to the words before them (causal) or to all words (full). If not given, the
    attention is that of pretraining, or of the saved model."""
    pooling: Literal["mean", "first", "last"] = "mean"
    """A word's vector is the mean of its sub-words, its first sub-word or its last. Under causal attention mean takes
    the last sub-word, because only that one has seen the whole word."""
    word_dropout: float = Field(default=0.2, ge=0, lt=1)
    """In training each sub-word becomes the mask token with this probability."""
    fusion: Literal["none", "concat", "max", "gate", "scalar_mix"] = "none"
    """Word vectors of the last layer (none), or of all layers joined. A fusion learns at the decoders' rate."""
    fusion_layers: Annotated[Layers | None, CountsOnlyWith(fusion="concat max gate scalar_mix")] = None
    """The layers that are joined, from 1, such as 1,2,3 (all, if not given)."""
    checkpointing: bool = False
    """Compute each layer again in the backward pass instead of keeping its output. This saves memory and takes time."""

    @field_validator("fusion_layers", mode="wrap")
    @classmethod
    def _as_layers(cls, value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        """1,2,3 needs no brackets on a command line, and the order of layers means nothing."""
        layers = check(value.split(",") if isinstance(value, str) else [value] if type(value) is int else value)
        return None if layers is None else tuple(sorted(set(layers)))

    @model_validator(mode="after")
    def _has_layers_to_join(self) -> "EncoderConfig":
        if self.fusion != "none" and not self.context:
            raise ValueError(f"fusion: {self.fusion} joins layers, and context: false has none; leave one of them out")
        if self.checkpointing and not self.context:
            raise ValueError("checkpointing: layers are computed again, and context: false has none; leave one out")
        return self


Rate = Annotated[float, Field(gt=0)]
Rates = Annotated[
    Annotated[Rate, Tag("@number")] | Annotated[dict[str, Rate], Tag("@each")],
    Discriminator(lambda rates: "@each" if isinstance(rates, dict) else "@number"),
]
SINGLE, JOINT = "single", "joint"
"""Keys of rates that differ between runs of one task (or of the task that is named) and runs of several tasks."""


class TrainConfig(Block):
    """Settings of training."""

    start: str | None = None
    """A run whose weights training starts from, encoder and decoders (the pretrained encoder, if not given)."""
    freeze: tuple[Literal["encoder", "decoders"], ...] = ()
    """Parts that training leaves as they are. Static pruning: start from a run, and freeze the decoders."""

    epochs: int = Field(default=5, ge=1, le=_MOST_EPOCHS)
    """Passes over the training set (for sampled mixing: as many batches as one pass over every task has)."""
    batch_sentences: int = Field(default=64, ge=1)
    """Largest number of sentences in an update."""
    batch_tokens: int = Field(default=3200, ge=1)
    """Largest number of sub-words in an update, padding included (a longer sentence is an update by itself)."""
    accumulate: int = Field(default=1, ge=1)
    """Number of mini-batches in an update, each with its share of batch_sentences and batch_tokens."""
    mixing: Literal["joint", "sampled"] = "joint"
    """joint: each batch has one encoding and all losses. sampled: each batch has one task, drawn with p ∝
    batches^tau."""
    tau: float = Field(default=0.8, ge=0)
    """Exponent of sampled mixing."""
    balance: Literal["none", "fixed", "running_mean", "uw", "dwa", "famo", "imtl-l"] = "none"
    """none adds losses, fixed multiplies them by `weights`, and running_mean brings them to the same size (He and Choi
    2021). docs/guides/training.md explains the others."""
    weights: Annotated[dict[str, float], CountsOnlyWith(balance="fixed")] = {}
    """Task → factor of its loss, for balance: fixed (1 for tasks that are not named)."""
    balance_window: int = Field(default=5, ge=1, le=1_000_000)
    """Number of past losses that running_mean averages."""
    shuffle: bool = True
    """false takes batches from the longest sentences to the shortest, the same in every epoch, as the original's
    released code does by mistake."""
    encoder_rate: Rates = 1e-4
    """Peak learning rate of the encoder: a number, or one for each side of a comparison, such as {single: 2e-4,
    dep: 4e-4, joint: 4e-4} for runs of one task, of DEP alone, and of several tasks."""
    decoder_rate: Rates = 1e-3
    """Peak learning rate of the decoders, a number or a mapping as for encoder_rate."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's weight decay."""
    embedding_rows: Literal["used", "all"] = "used"
    """used: embeddings of sub-words that no training sentence contains are left out of the updates, because their
    gradient is 0, and only decay (weight_decay). all: they are updated like other weights, with the same result and
    more time."""
    cosreg: float = Field(default=0.0, ge=0)
    """γ of CosReg, a penalty on cosines between the label weights of each decoder (1 in Gao et al. 2019; 0 turns it
    off)."""
    warmup: float = Field(default=0.1, ge=0, lt=1)
    """Share of the updates in which the rates rise, before they follow `schedule`."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """Course of the rates after the warm-up: they fall to 0 (linear, cosine) or do not change (constant)."""
    clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient over encoder and decoders together."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after this number of evaluations without a better dev score (never, if not given)."""
    evaluate_every: int | None = Field(default=None, ge=1)
    """Number of updates between evaluations on dev (one after every epoch, if not given)."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """auto takes bf16 autocast if it is faster on this hardware, and fp32 otherwise."""
    device: str = "auto"
    """auto takes the first GPU if there is one. Other values name a torch device, such as cpu or cuda:1."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads (all cores, if not given)."""
    checkpoint_minutes: float = Field(default=5.0, ge=0)
    """Minutes between resumable states. Another state is written after every evaluation."""
    tensorboard: bool = False
    """Also write losses, scores and the map of the gates for TensorBoard (extra `tensorboard`)."""
    log_uas: bool = False
    """Also write, at every evaluation, how often each head attends from a word to its head in dev's trees."""
    log_train_loss: int = Field(default=0, ge=0)
    """Also write, at every evaluation, the mean loss of this number of training sentences (the first ones) without
    dropout in fp32, so that runs can be compared at equal training loss; 0: none."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Seed of all random numbers of the run."""

    def rate(self, setting: Literal["encoder_rate", "decoder_rate"], tasks: Sequence[str]) -> float:
        """The peak rate of a run of these tasks."""
        rates: float | dict[str, float] = getattr(self, setting)
        if not isinstance(rates, dict):
            return rates
        return rates[JOINT] if len(tasks) > 1 else rates.get(tasks[0], rates[SINGLE])

    def evaluations(self, epochs: int, updates: int) -> int:
        """The number (from 1) of the evaluation after so many epochs or, with evaluate_every, so many updates."""
        return epochs if self.evaluate_every is None else math.ceil(updates / self.evaluate_every)

    @field_validator("freeze", mode="before")
    @classmethod
    def _as_parts(cls, parts: Any) -> Any:
        """train.freeze=decoders needs no brackets, which shells take for patterns; the order means nothing."""
        names = [name.strip() for name in parts.split(",")] if isinstance(parts, str) else parts
        return sorted(set(names)) if isinstance(names, list | tuple) else names


def _as_heads(heads: Any) -> Any:
    """3-7,4-1 (layer 3, head 7, counted from 1) or a list of such, in order; what is neither is left to pydantic."""
    names = [name.strip() for name in heads.split(",")] if isinstance(heads, str) else heads
    if not isinstance(names, list | tuple):
        return names
    wrong = [name for name in names if not re.fullmatch(r"[1-9]\d*-[1-9]\d*", str(name))]
    if wrong or not names:
        raise ValueError(f"heads: expected heads such as 3-7,4-1, found {str(wrong[0]) if wrong else 'none'!r}")
    return sorted(set(names), key=lambda name: [int(part) for part in re.findall(r"\d+", name)])


class HeadsConfig(Block):
    """Heads that are treated, or open: `named`, by `claims`, or by a `rule`. See docs/methods/treatments.md."""

    named: tuple[str, ...] | None = None
    """Names of heads, such as 3-7,4-1 (layer 3, head 7, counted from 1)."""
    per_task: dict[str, tuple[str, ...]] | None = None
    """Task → its heads, where each task has a set (dispatch; pruning.sets: per_task)."""
    claims: str | None = None
    """Folder of a claims Result (`mtlprune claims --out`): heads that a task claims, or that several do."""
    least: int = Field(default=3, ge=1)
    """claims, one set for all tasks: heads claimed by at least this number of single tasks (stem heads)."""
    rule: Literal["all", "random", "unclaimed", "permuted"] | None = None
    """all takes all heads. The other rules are controls with as many heads of each layer as `like`. random draws from
    all heads of the layer, including those of `like`. unclaimed draws from the heads outside `like`, and from `like`
    if there are too few. permuted (a set for each task) permutes the heads of each layer in the sets of `like`, in
    the same way for all tasks, so that tasks share as many heads as in `like`."""
    like: "HeadsConfig | None" = None
    """Controls: the choice of heads to compare with."""
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    """Controls: seed of the draw (train.seed, if not given)."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        """heads: all, heads: 3-7,4-1 and heads: [3-7, 4-1] need no key."""
        if value == "all":
            return {"rule": "all"}
        return {"named": value} if isinstance(value, str | list | tuple) else value

    _parse_named = field_validator("named", mode="before")(_as_heads)

    @field_validator("per_task", mode="before")
    @classmethod
    def _per_task(cls, sets: Any) -> Any:
        return {task: _as_heads(heads) for task, heads in sets.items()} if isinstance(sets, Mapping) else sets

    @model_validator(mode="after")
    def _one_way(self) -> "HeadsConfig":
        ways = [name for name in ("named", "per_task", "claims", "rule") if getattr(self, name) is not None]
        if len(ways) != 1:
            raise ValueError(
                f"heads: expected one of named, per_task, claims and rule, found {' and '.join(ways) or 'none'}"
            )
        is_random = self.rule is not None and self.rule != "all"
        if is_random != (self.like is not None):
            raise ValueError(
                "heads: like (the heads whose layers are kept) and rule: random, unclaimed or permuted go together; "
                "give both"
            )
        if self.like is not None and self.like.rule == "all":
            raise ValueError(
                f"heads: {self.rule} heads like all heads are all heads; take rule: all, or other heads in like"
            )
        if self.seed is not None and not is_random:
            raise ValueError("heads: seed has an effect only with rule: random, unclaimed or permuted; leave it out")
        if self.least != 3 and self.claims is None:
            raise ValueError("heads: least has an effect only with claims; leave it out")
        return self


LEARNT, RANKED, STEERED = "gates topk", "importance fisher stable", "target exact lagrangian"
MASKED = f"{RANKED} random given"
"""Methods whose gates are trained, that rank heads on a finished run, penalties that steer to a number of heads; and
methods of fixed masks."""


class PruningConfig(Block):
    """The attention heads that a run may use. See docs/methods/gates.md."""

    method: Literal["none", "gates", "topk", "importance", "random", "given", "fisher", "stable"] = "none"
    """gates: Hard Concrete gates learn which heads to close. topk: exactly `keep` gates are open at every step. The
    other methods fix a mask. importance and fisher choose the heads on a finished run, stable keeps the heads that
    `selector` chooses on most halves of the data, given takes the heads that `heads` names, and random is the
    control."""
    sets: Annotated[Literal["shared", "per_task"], CountsOnlyWith(method="gates topk given")] = "shared"
    """One gate set for all tasks, or one for each task (which costs one encoding a task)."""
    closed: Annotated[Closed, CountsOnlyWith(method=f"{LEARNT} {MASKED}")] = "zero"
    """Contribution of a closed head. zero: nothing. mean: its mean over the sub-words of the training sentences,
    measured before the first update with all heads open. resample: its output for another sentence of the batch.
    optimal: a constant that starts at the mean and is learnt with the other weights."""
    penalty: Annotated[Literal["lambda", "target", "exact", "lagrangian"], CountsOnlyWith(method="gates")] = "lambda"
    """lambda: a constant penalty for each head. target: steer to `keep` open heads. exact: steer, then fix the best
    `keep`. lagrangian: like exact, with the multipliers of CoFi and The Heuristic Core."""
    strength: Annotated[float, CountsOnlyWith(penalty="lambda")] = Field(default=0.01, ge=0)
    """λ for penalty: lambda."""
    in_loss: Annotated[bool, CountsOnlyWith(penalty="lambda")] = False
    """lambda: the penalty is part of each task's loss and balanced with it, and gates are clipped with the other
    weights (He and Choi 2021, released code)."""
    multiplier_rate: Annotated[float, CountsOnlyWith(penalty="lagrangian")] = Field(default=1.0, gt=0)
    """lagrangian: rate of the multipliers' ascent (Adam)."""
    keep: Annotated[int | None, CountsOnlyWith(method=f"topk random {RANKED}", penalty=STEERED)] = Field(
        default=None, ge=0
    )
    """Number of heads to keep in each set, for fixed masks, topk and all penalties but lambda (stable: each half)."""
    warmup: Annotated[float | None, CountsOnlyWith(method=LEARNT, selector=LEARNT, noise="True")] = Field(
        default=None, ge=0, le=1
    )
    """Share of the updates over which λ rises (default 0), the wanted number of heads falls (default 0.4), or the
    temperature of topk falls (default 0.68)."""
    settle: Annotated[float | None, CountsOnlyWith(penalty=STEERED, selector="gates", noise="True run")] = Field(
        default=None, ge=0, le=1
    )
    """Share of the updates after which an epoch may be the best (default 0.6 for target, and 0.7 for exact, lagrangian
    and noise, which fix the heads at this point)."""
    init: Annotated[Literal["paper", "open"], CountsOnlyWith(method=LEARNT, selector=LEARNT)] = "paper"
    """Start of the gates: half open with some noise, as in the original (paper), or fully open (open, the default of
    stable)."""
    rate: Annotated[float, CountsOnlyWith(method=LEARNT, selector=LEARNT)] = Field(default=1e-3, gt=0)
    """Learning rate of the gates (Adam, constant; the default of stable is 0.1)."""
    temperature: Annotated[float, CountsOnlyWith(method=LEARNT, selector=LEARNT, noise="True run")] = Field(
        default=0.33, gt=0
    )
    """Temperature of the Hard Concrete distribution, and final temperature of topk's gradients."""
    anneal_from: Annotated[float, CountsOnlyWith(method="topk", selector="topk")] = Field(default=1000.0, gt=0)
    """topk: temperature at the first update, which then falls geometrically."""
    overlap: Annotated[float, CountsOnlyWith(method="gates")] = Field(default=0.0, ge=0)
    """Penalty on heads that several tasks' gate sets share, for sets: per_task."""
    importance_of: Annotated[str | None, CountsOnlyWith(method=RANKED)] = None
    """importance, fisher, stable: the run whose loss, differentiated by each head's gate, ranks the heads."""
    importance_sentences: Annotated[int, CountsOnlyWith(method=RANKED)] = Field(default=1024, ge=1)
    """importance, fisher, stable: number of training sentences that choose the heads."""
    heads: Annotated[HeadsConfig | None, CountsOnlyWith(method="given")] = None
    """given: the open heads, for all tasks together or, with sets: per_task, for each task (sparse sharing)."""
    layers_like: Annotated[str | None, CountsOnlyWith(method="random")] = None
    """random: a run with gates, whose numbers of open heads in each layer are kept (spread evenly, if not given)."""
    draw: Annotated[int | None, CountsOnlyWith(method="random")] = Field(default=None, ge=0, lt=2**63)
    """random: a seed for the heads only, so that runs of other tasks and training seeds have the same heads. The
    heads of a smaller `keep` are a subset of those of a larger one. If not given, the training seed and the tasks
    decide."""
    selector: Annotated[str, CountsOnlyWith(method="stable")] = "fisher"
    """stable: importance, fisher, gates or topk chooses `keep` heads on each half. gates (with penalty: exact) and topk
    train only the gates. Functions in training/pruning/selectors.py add further selectors."""
    selector_updates: Annotated[int, CountsOnlyWith(selector=LEARNT)] = Field(default=250, ge=1)
    """stable, selector: gates or topk: updates on each half."""
    selector_sentences: Annotated[int, CountsOnlyWith(selector=LEARNT)] = Field(default=4, ge=1)
    """stable, selector: gates or topk: sentences an update."""
    halves: Annotated[int, CountsOnlyWith(method="stable")] = Field(default=64, ge=2, multiple_of=2)
    """stable: number of halves of the sentences; every second half is the complement of the one before."""
    threshold: Annotated[float, CountsOnlyWith(method="stable")] = Field(default=0.9, gt=0.5, le=1)
    """stable: a head is claimed when this share of the halves selects it."""
    noise: Annotated[bool | Literal["run"], CountsOnlyWith(method=MASKED)] = False
    """importance, fisher, stable, random, given: the other heads close like gates, and are not closed from the first
    update. They start open, close over `warmup`, and have the noise of Hard Concrete gates until `settle`. run: every
    head takes the gate of another head of its layer in `layers_like`, and a kept head the gate of a kept head."""

    @property
    def learns(self) -> bool:
        """True for methods that train gates."""
        return self.method in ("gates", "topk")

    @property
    def moves(self) -> bool:
        """True where gates change from update to update."""
        return self.learns or bool(self.noise)

    @model_validator(mode="before")
    @classmethod
    def _moves_in_few_updates(cls, tree: Any) -> Any:
        """A selector's gates have few updates (selector_updates), in which at the paper's rate they hardly move."""
        has_learned_selector = (
            isinstance(tree, dict) and tree.get("method") == "stable" and tree.get("selector") in ("gates", "topk")
        )
        return {"init": "open", "rate": 0.1, **tree} if has_learned_selector else tree

    @model_validator(mode="after")
    def _is_whole(self) -> "PruningConfig":
        """Refuse a method without what it needs, and settings that contradict each other."""
        if self.overlap and self.sets == "shared":
            raise ValueError("overlap has an effect only with sets: per_task")
        if self.overlap and self.in_loss:
            raise ValueError("in_loss makes the penalty of each task part of its loss, and overlap is none; drop one")
        if self.noise == "run" and self.layers_like is None:
            raise ValueError("noise: run needs method: random and layers_like, the run whose gates are taken")
        method_text = f"method: {self.method}" + (f", penalty: {self.penalty}" if self.method == "gates" else "")
        if self.counts("keep") and self.keep is None and self.layers_like is None:
            raise ValueError(f"keep: expected how many heads to keep (needed with {method_text}), found nothing")
        if self.keep is not None and self.layers_like is not None:
            raise ValueError("keep and layers_like both set the number of heads to keep; give one of them")
        if self.draw is not None and self.noise == "run":
            raise ValueError("draw has no effect with noise: run, which takes the gates of a run; leave one out")
        if self.method == "given" and self.heads is None:
            raise ValueError("heads: expected the heads that are open (needed with method: given), found nothing")
        if self.counts("importance_of") and self.importance_of is None:
            raise ValueError("importance_of: expected a run folder whose loss ranks the heads, found nothing")
        return self


class SyntaxConfig(Block):
    """A penalty on attention along dependency arcs (Chen et al. 2024). See docs/methods/pretraining.md."""

    strength: float = 0.0
    """λ: above 0 suppresses attention along arcs, below 0 promotes it, 0 has no effect."""
    variant: Literal["max", "norm"] = "max"
    """The cost of an arc: the largest weight that any head puts on it, or the p-norm over all heads."""
    norm: Annotated[float, CountsOnlyWith(variant="norm")] = Field(default=1.0, ge=1)
    """p, for variant: norm."""
    scale: Literal["sum", "mean"] = "sum"
    """sum: over a batch's arcs in both directions, as published, so λ depends on batch size. mean: of these arcs."""
    release: int | None = Field(default=None, ge=1)
    """The update from which λ is 0 (never, if not given)."""
    heads: tuple[str, ...] | None = None
    """Only these heads, such as 3-7,4-1 (layer 3, head 7, counted from 1); all, if not given."""

    _heads = field_validator("heads", mode="before")(_as_heads)

    @model_validator(mode="after")
    def _has_effect(self) -> "SyntaxConfig":
        changed_settings = [
            n for n, f in type(self).model_fields.items() if n != "strength" and getattr(self, n) != f.default
        ]
        if not self.strength and changed_settings:
            raise ValueError(
                f"{changed_settings[0]} has no effect with strength: 0; leave it out, or give a strength (λ)"
            )
        return self


class DistilConfig(Block):
    """Finished single-task runs teach: the target goes from their scores to gold."""

    teachers: dict[str, str] = Field(min_length=1)
    """Task → a finished run of it on the same data; tasks that are not named learn only from gold labels."""
    rise: float = Field(default=1.0, gt=0, le=1)
    """Share of the updates over which λ, the weight of gold, rises from 0 to 1."""


class DispatchConfig(Block):
    """Near the end each task's gradient moves its own heads only (important-attention training)."""

    heads: HeadsConfig
    """Heads of each task."""
    last: float = Field(default=0.1, gt=0, le=1)
    """Share of the updates, at the end, in which each task trains only its own heads (δ)."""


class CloneConfig(Block):
    """Each task has a copy of its own of some heads."""

    heads: HeadsConfig
    """Heads that are copied."""
    rank: int | None = Field(default=None, ge=1)
    """Rank of each task's change of a projection (LoRA); any, if not given."""


class ProtectConfig(Block):
    """Some heads are kept from the gradients of tasks."""

    heads: HeadsConfig
    """Heads that are kept."""
    tasks: tuple[str, ...] = ()
    """Tasks whose gradients do not change these heads (all tasks, if not given)."""


class ProjectConfig(Block):
    """Gradients of tasks that oppose each other are brought together (PCGrad)."""

    at: Literal["features", "heads"] = "features"
    """Gradients with respect to the encoder's output, or to the weights of each head."""
    heads: Annotated[HeadsConfig, CountsOnlyWith(at="heads")] = HeadsConfig(rule="all")
    """at: heads: the heads whose gradients are projected."""


class MergeConfig(Block):
    """The encoder begins as a merger of finished single-task runs, decoders as theirs."""

    sources: dict[str, str] = Field(min_length=2)
    """Task → a finished run of it, for each task."""
    method: Literal["fisher", "arithmetic", "ties"] = "fisher"
    """fisher weighs heads by the loss of each task. arithmetic adds all changes. ties adds changes of one sign only."""
    scale: Annotated[float | None, CountsOnlyWith(method="arithmetic ties")] = Field(default=None, gt=0)
    """Factor of the changes (default: 1 / number of tasks for arithmetic, 1 for ties)."""
    keep: Annotated[float, CountsOnlyWith(method="ties")] = Field(default=0.2, gt=0, le=1)
    """ties: share of each task's changes that is kept, the largest ones."""
    sentences: Annotated[int, CountsOnlyWith(method="fisher")] = Field(default=512, ge=1)
    """fisher: number of training sentences that weigh the heads."""


def _no_treatment(point: EntryPoint) -> Any:
    """The class that a package names. Raises TypeError where it is no treatment."""
    treatment = point.load()
    if not (isinstance(treatment, type) and issubclass(getattr(treatment, "Options", object), Block)):
        raise TypeError("expected a subclass of mtlprune.training.treatments.Treatment with Options, a Block")
    return treatment


ADDED_TREATMENTS: Registry[Any] = Registry({}, "mtlprune.treatments", _no_treatment)
"""Those of installed packages: a class each."""


class TreatmentConfig(Block):
    """Changes of heads, gradients and targets so that tasks get on with each other. See docs/methods/treatments.md."""

    model_config = ConfigDict(extra="allow")

    distil: DistilConfig | None = None
    """Finished single-task runs serve as teachers."""
    dispatch: DispatchConfig | None = None
    """Near the end each task trains only its own heads."""
    clone: CloneConfig | None = None
    """Each task has its own copy of some heads."""
    protect: ProtectConfig | None = None
    """Gradients of tasks do not change some heads."""
    project: ProjectConfig | None = None
    """Conflicting parts of gradients are removed."""
    merge: MergeConfig | None = None
    """Training starts from a merge of single-task runs."""

    @model_validator(mode="before")
    @classmethod
    def _check_added(cls, tree: Any) -> Any:
        """Blocks of treatments that installed packages add."""
        if not isinstance(tree, Mapping):
            return tree
        blocks = dict(tree)
        for name in blocks.keys() - cls.model_fields.keys():
            if name not in ADDED_TREATMENTS:
                known_names = ", ".join([*cls.model_fields, *ADDED_TREATMENTS])
                raise ValueError(
                    f"treatment: there is no treatment {name!r}; known are {known_names}, and those of further "
                    "packages, once they are installed"
                )
            try:
                blocks[name] = ADDED_TREATMENTS[name].Options.model_validate(blocks[name])
            except ValidationError as error:  # as if the block stood among ours
                errors = [{**detail, "loc": (name, *detail["loc"])} for detail in error.errors(include_url=False)]
                raise ValidationError.from_exception_data(cls.__name__, cast(Any, errors)) from None
        return blocks

    @property
    def runs(self) -> dict[str, str]:
        """Setting below ``treatment`` → the other run that it names."""
        teachers, merged = self.distil.teachers if self.distil else {}, self.merge.sources if self.merge else {}
        runs_by_setting = (("distil.teachers", teachers), ("merge.sources", merged))
        return {f"{setting}.{task}": path for setting, runs in runs_by_setting for task, path in runs.items()}

    @property
    def chosen_treatments(self) -> dict[str, Any]:
        """Name → settings of the treatments that there are."""
        names = [*type(self).model_fields, *(self.model_extra or {})]
        return {name: options for name in names if (options := getattr(self, name)) is not None}
