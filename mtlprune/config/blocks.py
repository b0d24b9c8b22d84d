"""The blocks of a run's configuration, as frozen pydantic models.

The docstring below each field documents the setting for users. `docs/generate.py` copies it to
docs/reference/settings.md.
"""

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
"""Largest number of epochs. It is limited because the batches of all epochs are planned before the first update, since
the schedule of the learning rates depends on their number."""


def as_folder_name(name: str) -> str:
    """Return a name unchanged if it can be part of the name of a folder. Raises ValueError otherwise."""
    if not name.strip() or name.startswith(".") or set(name) & set("/\\") or printable(name) != name:
        raise ValueError(
            f"name: expected the name of a folder without /, \\, line breaks and control characters, found {name!r}"
        )
    return name


class DataConfig(Block):
    """The corpus, its splits, and the number of sentences that are used."""

    path: str
    """Folder of a corpus that `mtlprune data build` made."""
    train: str = "train"
    """Split on which runs train."""
    dev: str = "dev"
    """Split on which the best epoch is chosen."""
    train_sentences: int | None = Field(default=None, ge=1)
    """Number of training sentences, counted from the first one (all, if not given)."""
    dev_sentences: int | None = Field(default=None, ge=1)
    """Number of dev sentences on which the best epoch is chosen, counted from the first one (all, if not given)."""
    half: Literal[1, 2] | None = None
    """Random half of the training sentences (1 or 2) on which the run trains (all sentences, if not given). The two
    halves are the same for all seeds."""


Layers = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
"""Layers of an encoder, counted from 1."""


class EncoderConfig(Block):
    """The encoder, and how its output becomes word vectors."""

    name: str = "minilm"
    """Name of an encoder on the Hugging Face hub, path of a local folder, or `minilm` or `mpnet`, which are installed
    as packages (docs/reference/encoder.md)."""
    revision: str | None = None
    """Commit, tag or branch on the Hugging Face hub (the main branch, if not given)."""
    random: bool = False
    """Start from random weights of the same architecture, as a control without pretraining."""
    context: bool = True
    """false keeps only the word embeddings, without layers or positions, which is the baseline without an encoder."""
    attention: Literal["causal", "full"] | None = None
    """Attention of a decoder-only model. A word attends to the words before it (causal) or to all words (full). If not
    given, the model attends as in pretraining, or as it was saved."""
    pooling: Literal["mean", "first", "last"] = "mean"
    """A word's vector is the mean of its sub-words, its first sub-word or its last sub-word. Under causal attention,
    mean also uses the last sub-word, because only the last sub-word attends to the whole word."""
    word_dropout: float = Field(default=0.2, ge=0, lt=1)
    """Probability with which each sub-word becomes the mask token in training."""
    fusion: Literal["none", "concat", "max", "gate", "scalar_mix"] = "none"
    """Method that combines layers. With none, word vectors come from the last layer. The weights of a fusion are
    trained at the learning rate of the decoders."""
    fusion_layers: Annotated[Layers | None, CountsOnlyWith(fusion="concat max gate scalar_mix")] = None
    """Layers that are combined, counted from 1, such as 1,2,3 (all, if not given)."""
    checkpointing: bool | Literal["auto"] = "auto"
    """Compute each layer again in the backward pass instead of keeping its output. Checkpointing saves memory and takes
    more time. On CPUs, auto uses it for the largest 2 % of the batches, on which peak memory depends, unless the run
    has a treatment or a penalty on attention along arcs."""

    @field_validator("fusion_layers", mode="wrap")
    @classmethod
    def _as_layers(cls, value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        """Accept 1,2,3 without brackets, as on a command line, and sort the layers, whose order has no meaning."""
        layers = check(value.split(",") if isinstance(value, str) else [value] if type(value) is int else value)
        return None if layers is None else tuple(sorted(set(layers)))

    @model_validator(mode="after")
    def _has_layers_to_join(self) -> "EncoderConfig":
        """Raise ValueError if fusion or checkpointing is set for an encoder without layers."""
        if self.fusion != "none" and not self.context:
            raise ValueError(
                f"fusion: {self.fusion} joins layers, and an encoder with context: false has none; leave one of the "
                "two out"
            )
        if self.checkpointing is True and not self.context:
            raise ValueError(
                "checkpointing computes layers again, and an encoder with context: false has none; leave one of the "
                "two out"
            )
        return self


Rate = Annotated[float, Field(gt=0)]
Rates = Annotated[
    Annotated[Rate, Tag("@number")] | Annotated[dict[str, Rate], Tag("@each")],
    Discriminator(lambda rates: "@each" if isinstance(rates, dict) else "@number"),
]
SINGLE, JOINT = "single", "joint"
"""Keys of a mapping of learning rates: for single-task runs (unless a key names the task), and for joint runs."""


class TrainConfig(Block):
    """Settings of training."""

    start: str | None = None
    """Run from whose encoder and decoders training starts (the pretrained encoder and new decoders, if not given)."""
    freeze: tuple[Literal["encoder", "decoders"], ...] = ()
    """Parts that training does not change. Static pruning starts from a run and freezes its decoders."""

    epochs: int = Field(default=5, ge=1, le=_MOST_EPOCHS)
    """Number of passes over the training set. With sampled mixing, a pass has as many batches as one pass over every
    task."""
    batch_sentences: int = Field(default=64, ge=1)
    """Largest number of sentences in an update."""
    batch_tokens: int = Field(default=3200, ge=1)
    """Largest number of sub-words in an update, padding included. A sentence with more sub-words forms an update by
    itself."""
    accumulate: int = Field(default=1, ge=1)
    """Number of mini-batches in an update. Each mini-batch contains an equal share of batch_sentences and
    batch_tokens."""
    mixing: Literal["joint", "sampled"] = "joint"
    """With joint, each batch is encoded once, and the losses of all tasks are computed on it. With sampled, each batch
    trains one task, which is drawn with p ∝ batches^tau."""
    tau: float = Field(default=0.8, ge=0)
    """Exponent tau of sampled mixing."""
    shares: Annotated[dict[str, float], CountsOnlyWith(mixing="joint")] = {}
    """Share of the batches on which the loss of a task is computed with joint mixing, such as {ner: 0.1}. These batches
    are spread evenly over an epoch. Tasks that are not named take part in all batches."""
    balance: Literal["none", "fixed", "running_mean", "uw", "dwa", "famo", "imtl-l"] = "none"
    """none adds the losses of the tasks, fixed multiplies the losses by `weights`, and running_mean scales the losses
    to the same size (He and Choi 2021). docs/guides/training.md explains the other methods."""
    weights: Annotated[dict[str, float], CountsOnlyWith(balance="fixed")] = {}
    """Factor of each task's loss, for balance: fixed (1 for tasks that are not named)."""
    balance_window: int = Field(default=5, ge=1, le=1_000_000)
    """Number of past losses that running_mean averages."""
    shuffle: bool = True
    """false takes batches from the longest sentences to the shortest, in the same order in every epoch, as the released
    code of He and Choi (2021) does by mistake."""
    encoder_rate: Rates = 1e-4
    """Peak learning rate of the encoder. The rate is a number or a mapping. The mapping {single: 2e-4, dep: 4e-4,
    joint: 4e-4} sets one rate for single-task runs, another rate for single-task runs of DEP, and a rate for joint
    runs."""
    decoder_rate: Rates = 1e-3
    """Peak learning rate of the decoders. The rate is a number or a mapping, as for encoder_rate."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of AdamW."""
    embedding_rows: Literal["used", "all"] = "used"
    """With used, updates skip the embeddings of sub-words that no training sentence contains. The gradient of these
    embeddings is 0, so that only weight decay changes them. With all, these embeddings are updated like other weights,
    which takes more time and leads to the same result."""
    cosreg: float = Field(default=0.0, ge=0)
    """Strength γ of CosReg, a penalty on cosines between the label weights of each decoder. Gao et al. (2019) use 1,
    and 0 turns the penalty off."""
    warmup: float = Field(default=0.1, ge=0, lt=1)
    """Share of the updates in which the learning rates rise before they follow `schedule`."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """After the warm-up, the learning rates fall to 0 (linear, cosine) or do not change (constant)."""
    clip: float = Field(default=1.0, gt=0)
    """Largest norm of the joint gradient of encoder and decoders."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after this number of evaluations without a better dev score (never, if not given)."""
    evaluate_every: int | None = Field(default=None, ge=1)
    """Number of updates between evaluations on dev (one after every epoch, if not given)."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """auto uses bf16 autocast if bf16 is faster on this hardware, and fp32 otherwise."""
    device: str = "auto"
    """auto uses the first GPU, or the CPU if there is no GPU. Other values name a torch device, such as cpu or
    cuda:1."""
    threads: int | None = Field(default=None, ge=1)
    """Number of CPU threads (all cores, if not given)."""
    checkpoint_minutes: float = Field(default=5.0, ge=0)
    """Minutes between checkpoints from which the run can be resumed. Another checkpoint is written after every
    evaluation."""
    tensorboard: bool = False
    """Also write losses, scores and the map of the gates for TensorBoard, which is installed with the extra
    `tensorboard`."""
    log_uas: bool = False
    """At every evaluation, also write how often each attention head attends from a word to its syntactic head in the
    trees of dev."""
    log_train_loss: int = Field(default=0, ge=0)
    """Number of training sentences, counted from the first one, whose mean loss is also written at every evaluation (0
    for none). The loss is computed without dropout and in fp32, so that runs can be compared at equal training loss."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Seed of all random numbers of the run."""

    def rate(self, setting: Literal["encoder_rate", "decoder_rate"], tasks: Sequence[str]) -> float:
        """Return the peak learning rate of a run with the given tasks."""
        rates: float | dict[str, float] = getattr(self, setting)
        if not isinstance(rates, dict):
            return rates
        return rates[JOINT] if len(tasks) > 1 else rates.get(tasks[0], rates[SINGLE])

    def evaluations(self, epochs: int, updates: int) -> int:
        """Return the number, counted from 1, of the evaluation that takes place at a point of training.

        Args:
            epochs: number of epochs at this point, which decides if evaluate_every is not set.
            updates: number of updates at this point, which decides if evaluate_every is set.
        """
        return epochs if self.evaluate_every is None else math.ceil(updates / self.evaluate_every)

    @field_validator("freeze", mode="before")
    @classmethod
    def _as_parts(cls, parts: Any) -> Any:
        """Accept train.freeze=decoders without brackets, which shells expand, and sort the parts."""
        names = [name.strip() for name in parts.split(",")] if isinstance(parts, str) else parts
        return sorted(set(names)) if isinstance(names, list | tuple) else names


def _as_heads(heads: Any) -> Any:
    """Parse and sort names of heads: 3-7,4-1 or a list, where 3-7 is head 7 of layer 3, both counted from 1.

    Values of other types are returned unchanged, so that pydantic reports them. Raises ValueError for invalid names.
    """
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
    """Names of heads, such as 3-7,4-1 for head 7 of layer 3 and head 1 of layer 4, counted from 1."""
    per_task: dict[str, tuple[str, ...]] | None = None
    """Heads of each task, where tasks have separate sets (dispatch, and pruning.sets: per_task)."""
    claims: str | None = None
    """Folder that `mtlprune claims --out` wrote, whose claimed heads are taken."""
    least: int = Field(default=3, ge=1)
    """With claims and one set for all tasks, smallest number of single tasks that claim a head of the set (3 for stem
    heads)."""
    rule: Literal["all", "random", "unclaimed", "permuted"] | None = None
    """all takes all heads. The other rules are controls with as many heads of each layer as `like`. random draws from
    all heads of the layer, including those of `like`. unclaimed draws from the heads outside `like`, and also from
    `like` if too few heads are outside. permuted needs a set for each task. It permutes the heads of each layer in the
    sets of `like`, in the same way for all tasks, so that tasks share as many heads as in `like`."""
    like: "HeadsConfig | None" = None
    """Choice of heads whose layers the controls have."""
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    """Seed with which the controls are drawn (train.seed, if not given)."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        """Accept the short forms heads: all, heads: 3-7,4-1 and heads: [3-7, 4-1]."""
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
        """Raise ValueError unless heads are chosen in exactly one way, with the settings that this way needs."""
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
                f"heads: {self.rule} heads with like: all are all heads; give rule: all, or other heads in like"
            )
        if self.seed is not None and not is_random:
            raise ValueError("heads: seed has an effect only with rule: random, unclaimed or permuted; leave it out")
        if self.least != 3 and self.claims is None:
            raise ValueError("heads: least has an effect only with claims; leave it out")
        return self


GATE_METHODS, RANK_METHODS = "gates topk", "importance fisher stable"
SIZE_PENALTIES = "target exact lagrangian"
MASK_METHODS = f"{RANK_METHODS} random given"
"""Values of settings, separated by blanks as CountsOnlyWith needs them: methods that train gates, methods that rank
heads on a finished run, penalties with a target number of heads, and methods with fixed masks."""


class PruningConfig(Block):
    """The attention heads that a run may use. See docs/methods/gates.md."""

    method: Literal["none", "gates", "topk", "importance", "random", "given", "fisher", "stable"] = "none"
    """With gates, Hard Concrete gates learn which heads are closed. With topk, exactly `keep` gates are open at every
    step. The other methods fix a mask. importance and fisher choose the heads on a finished run, and stable keeps the
    heads that `selector` chooses on most halves of the data. given keeps the heads that `heads` names, and random draws
    heads as a control."""
    sets: Annotated[Literal["shared", "per_task"], CountsOnlyWith(method="gates topk given")] = "shared"
    """All tasks use one set of gates (shared), or each task uses a separate set (per_task), which requires one encoding
    per task."""
    closed: Annotated[Closed, CountsOnlyWith(method=f"{GATE_METHODS} {MASK_METHODS}")] = "zero"
    """Replacement for the output of a closed head. zero means no output. mean is the mean output of the head over the
    sub-words of the training sentences, measured before the first update with all heads open. resample is the output of
    the head for another sentence of the batch. optimal is a constant that starts at the mean and is learnt with the
    other weights."""
    penalty: Annotated[Literal["lambda", "target", "exact", "lagrangian"], CountsOnlyWith(method="gates")] = "lambda"
    """lambda is a constant penalty on each open head. target steers the number of open heads to `keep`. exact does the
    same and then fixes the best `keep` heads. lagrangian does the same as exact with the multipliers of CoFi and The
    Heuristic Core."""
    strength: Annotated[float, CountsOnlyWith(penalty="lambda")] = Field(default=0.01, ge=0)
    """Strength λ of penalty: lambda."""
    in_loss: Annotated[bool, CountsOnlyWith(penalty="lambda")] = False
    """With penalty: lambda, the penalty is part of each task's loss and is balanced with it, and gates are clipped with
    the other weights, as in the released code of He and Choi (2021)."""
    multiplier_rate: Annotated[float, CountsOnlyWith(penalty="lagrangian")] = Field(default=1.0, gt=0)
    """Learning rate (Adam) with which the multipliers of penalty: lagrangian rise."""
    keep: Annotated[int | None, CountsOnlyWith(method=f"topk random {RANK_METHODS}", penalty=SIZE_PENALTIES)] = Field(
        default=None, ge=0
    )
    """Number of heads that stay open in each set, for fixed masks, topk and all penalties except lambda. With stable,
    this number of heads is chosen on each half."""
    warmup: Annotated[float | None, CountsOnlyWith(method=GATE_METHODS, selector=GATE_METHODS, noise="True")] = Field(
        default=None, ge=0, le=1
    )
    """Share of the updates over which λ rises (default 0), the target number of heads falls (default 0.4), or the
    temperature of topk falls (default 0.68)."""
    settle: Annotated[float | None, CountsOnlyWith(penalty=SIZE_PENALTIES, selector="gates", noise="True run")] = Field(
        default=None, ge=0, le=1
    )
    """Share of the updates after which an epoch can be chosen as the best. The default is 0.6 for target. For exact,
    lagrangian and noise, which fix the heads at this point, the default is 0.7."""
    init: Annotated[Literal["paper", "open"], CountsOnlyWith(method=GATE_METHODS, selector=GATE_METHODS)] = "paper"
    """Gates start half open with some noise, as in He and Choi 2021 (paper), or fully open (open, which is the default
    of stable)."""
    rate: Annotated[float, CountsOnlyWith(method=GATE_METHODS, selector=GATE_METHODS)] = Field(default=1e-3, gt=0)
    """Constant learning rate of the gates with Adam (the default of stable is 0.1)."""
    temperature: Annotated[float, CountsOnlyWith(method=GATE_METHODS, selector=GATE_METHODS, noise="True run")] = Field(
        default=0.33, gt=0
    )
    """Temperature of the Hard Concrete distribution, and final temperature of topk's gradients."""
    anneal_from: Annotated[float, CountsOnlyWith(method="topk", selector="topk")] = Field(default=1000.0, gt=0)
    """Temperature of topk at the first update, from which it falls geometrically."""
    overlap: Annotated[float, CountsOnlyWith(method="gates")] = Field(default=0.0, ge=0)
    """Strength of a penalty on heads that the gate sets of several tasks share, for sets: per_task."""
    importance_of: Annotated[str | None, CountsOnlyWith(method=RANK_METHODS)] = None
    """Run that ranks the heads for importance, fisher and stable, by the derivative of its loss with respect to each
    head's gate."""
    importance_sentences: Annotated[int, CountsOnlyWith(method=RANK_METHODS)] = Field(default=1024, ge=1)
    """Number of training sentences on which importance, fisher and stable choose the heads."""
    heads: Annotated[HeadsConfig | None, CountsOnlyWith(method="given")] = None
    """Heads that stay open with method: given. With sets: per_task, each task has separate heads (sparse sharing)."""
    layers_like: Annotated[str | None, CountsOnlyWith(method="random")] = None
    """Run with gates whose number of open heads in each layer random copies (if not given, the heads are spread evenly
    over layers)."""
    draw: Annotated[int | None, CountsOnlyWith(method="random")] = Field(default=None, ge=0, lt=2**63)
    """Seed with which random draws heads, so that runs of other tasks and training seeds use the same heads. The heads
    drawn for a smaller `keep` are a subset of the heads drawn for a larger `keep`. If not given, the training seed and
    the tasks decide."""
    selector: Annotated[str, CountsOnlyWith(method="stable")] = "fisher"
    """Selector (importance, fisher, gates or topk) that chooses `keep` heads on each half. gates (with penalty: exact)
    and topk train only the gates. Functions in training/pruning/selectors.py add further selectors."""
    selector_updates: Annotated[int, CountsOnlyWith(selector=GATE_METHODS)] = Field(default=250, ge=1)
    """Number of updates on each half, for the selectors gates and topk."""
    selector_sentences: Annotated[int, CountsOnlyWith(selector=GATE_METHODS)] = Field(default=4, ge=1)
    """Number of sentences in an update, for the selectors gates and topk."""
    halves: Annotated[int, CountsOnlyWith(method="stable")] = Field(default=64, ge=2, multiple_of=2)
    """Number of random halves of the sentences, for stable. Every second half is the complement of the half before
    it."""
    threshold: Annotated[float, CountsOnlyWith(method="stable")] = Field(default=0.9, gt=0.5, le=1)
    """Smallest share of the halves that must select a head so that stable keeps this head."""
    noise: Annotated[bool | Literal["run"], CountsOnlyWith(method=MASK_METHODS)] = False
    """With true, the methods of fixed masks close heads gradually. The closed heads start open, close over `warmup`,
    and have the noise of Hard Concrete gates until `settle`. With run, every head takes the gate that another head of
    its layer has in the run `layers_like`, and a kept head takes the gate of a kept head."""

    @property
    def learns(self) -> bool:
        """True for methods that train gates."""
        return self.method in ("gates", "topk")

    @property
    def moves(self) -> bool:
        """True if gates change during training."""
        return self.learns or bool(self.noise)

    @model_validator(mode="before")
    @classmethod
    def _moves_in_few_updates(cls, tree: Any) -> Any:
        """Set other defaults of init and rate for stable with trained gates.

        Selectors train gates for only a few updates (selector_updates), in which they would hardly change at the
        default rate.
        """
        has_learned_selector = (
            isinstance(tree, dict) and tree.get("method") == "stable" and tree.get("selector") in ("gates", "topk")
        )
        return {"init": "open", "rate": 0.1, **tree} if has_learned_selector else tree

    @model_validator(mode="after")
    def _is_whole(self) -> "PruningConfig":
        """Raise ValueError if a setting that the method needs is missing, or if settings contradict each other."""
        if self.overlap and self.sets == "shared":
            raise ValueError("overlap has an effect only with sets: per_task; leave it out, or give sets: per_task")
        if self.overlap and self.in_loss:
            raise ValueError(
                "in_loss makes the penalty of each task a part of its loss, and overlap is a penalty of no single "
                "task; leave one of the two out"
            )
        if self.noise == "run" and self.layers_like is None:
            raise ValueError("noise: run needs method: random, and a run whose gates are taken; give layers_like")
        method_text = f"method: {self.method}" + (f", penalty: {self.penalty}" if self.method == "gates" else "")
        if self.counts("keep") and self.keep is None and self.layers_like is None:
            raise ValueError(
                f"keep: expected the number of heads that stay open, which {method_text} needs, found nothing"
            )
        if self.keep is not None and self.layers_like is not None:
            raise ValueError("keep and layers_like both set the number of heads to keep; give one of them")
        if self.draw is not None and self.noise == "run":
            raise ValueError(
                "draw has no effect with noise: run, which takes the gates of a run; leave one of the two out"
            )
        if self.method == "given" and self.heads is None:
            raise ValueError("heads: expected the open heads, which method: given needs, found nothing")
        if self.counts("importance_of") and self.importance_of is None:
            raise ValueError("importance_of: expected a run folder whose loss ranks the heads, found nothing")
        return self


class SyntaxConfig(Block):
    """A penalty on attention along dependency arcs (Chen et al. 2024). See docs/methods/pretraining.md."""

    strength: float = 0.0
    """Strength λ of the penalty. A number above 0 suppresses attention along arcs, a number below 0 promotes it, and 0
    turns the penalty off."""
    variant: Literal["max", "norm"] = "max"
    """The cost of an arc is the largest attention weight of any head on this arc (max), or the p-norm of the weights of
    all heads (norm)."""
    norm: Annotated[float, CountsOnlyWith(variant="norm")] = Field(default=1.0, ge=1)
    """Exponent p of variant: norm."""
    scale: Literal["sum", "mean"] = "sum"
    """The costs of the arcs of a batch, in both directions, are added (sum, as published) or averaged (mean). With sum,
    the effect of λ depends on the size of the batch."""
    release: int | None = Field(default=None, ge=1)
    """Update from which on λ is 0 (never, if not given)."""
    heads: tuple[str, ...] | None = None
    """Heads that the penalty reads, such as 3-7,4-1 for head 7 of layer 3 and head 1 of layer 4, counted from 1 (all,
    if not given)."""

    _heads = field_validator("heads", mode="before")(_as_heads)

    @model_validator(mode="after")
    def _has_effect(self) -> "SyntaxConfig":
        """Raise ValueError for settings of a penalty that is turned off."""
        changed_settings = [
            n for n, f in type(self).model_fields.items() if n != "strength" and getattr(self, n) != f.default
        ]
        if not self.strength and changed_settings:
            raise ValueError(
                f"{changed_settings[0]} has no effect with strength: 0; leave it out, or give a strength (λ)"
            )
        return self


class DistilConfig(Block):
    """Finished single-task runs are teachers. The target changes gradually from their scores to the gold labels."""

    teachers: dict[str, str] = Field(min_length=1)
    """Finished run of each task on the same data. Tasks that are not named learn only from gold labels."""
    rise: float = Field(default=1.0, gt=0, le=1)
    """Share of the updates over which the weight λ of gold labels rises from 0 to 1."""


class DispatchConfig(Block):
    """Near the end of training, each task's gradient changes only its heads (important-attention training)."""

    heads: HeadsConfig
    """Heads of each task."""
    last: float = Field(default=0.1, gt=0, le=1)
    """Share δ of the updates, at the end of training, in which each task trains only its heads."""


class CloneConfig(Block):
    """Each task has a separate copy of some heads."""

    heads: HeadsConfig
    """Heads that are copied."""
    rank: int | None = Field(default=None, ge=1)
    """Rank of each task's change of a projection, as in LoRA (unlimited, if not given)."""


class ProtectConfig(Block):
    """Some heads are protected from the gradients of tasks."""

    heads: HeadsConfig
    """Heads that gradients of tasks do not change."""
    tasks: tuple[str, ...] = ()
    """Tasks whose gradients do not change the protected heads (all tasks, if not given)."""


class ProjectConfig(Block):
    """Conflicting parts of the gradients of tasks are removed (PCGrad)."""

    at: Literal["features", "heads"] = "features"
    """Gradients are projected at the output of the encoder (features) or at the weights of each head (heads)."""
    heads: Annotated[HeadsConfig, CountsOnlyWith(at="heads")] = HeadsConfig(rule="all")
    """Heads whose gradients are projected, for at: heads."""


class MergeConfig(Block):
    """Training starts from the merged encoders and the decoders of finished single-task runs."""

    sources: dict[str, str] = Field(min_length=2)
    """Finished run of each task."""
    method: Literal["fisher", "arithmetic", "ties"] = "fisher"
    """fisher weighs the heads of the runs by the Fisher information of each task. arithmetic adds the changes of all
    runs. ties adds only the changes whose sign prevails."""
    scale: Annotated[float | None, CountsOnlyWith(method="arithmetic ties")] = Field(default=None, gt=0)
    """Factor by which the changes are multiplied. The default is 1 divided by the number of tasks for arithmetic, and 1
    for ties."""
    keep: Annotated[float, CountsOnlyWith(method="ties")] = Field(default=0.2, gt=0, le=1)
    """Share of each task's changes that ties keeps, the largest first."""
    sentences: Annotated[int, CountsOnlyWith(method="fisher")] = Field(default=512, ge=1)
    """Number of training sentences on which fisher weighs the heads."""


def _no_treatment(point: EntryPoint) -> Any:
    """Load the class at an entry point of an installed package. Raises TypeError if it is no treatment."""
    treatment = point.load()
    if not (isinstance(treatment, type) and issubclass(getattr(treatment, "Options", object), Block)):
        raise TypeError("expected a subclass of mtlprune.training.treatments.Treatment with Options, a Block")
    return treatment


ADDED_TREATMENTS: Registry[Any] = Registry({}, "mtlprune.treatments", _no_treatment)
"""Treatments of installed packages: name → class."""


class TreatmentConfig(Block):
    """Changes of training that are meant to improve joint training. See docs/methods/treatments.md."""

    model_config = ConfigDict(extra="allow")

    distil: DistilConfig | None = None
    """Finished single-task runs serve as teachers."""
    dispatch: DispatchConfig | None = None
    """In the last updates each task trains only its heads."""
    clone: CloneConfig | None = None
    """Each task has a separate copy of some heads."""
    protect: ProtectConfig | None = None
    """Some heads are protected from the gradients of tasks."""
    project: ProjectConfig | None = None
    """Conflicting parts of gradients are removed."""
    merge: MergeConfig | None = None
    """Training starts from merged single-task runs."""

    @model_validator(mode="before")
    @classmethod
    def _check_added(cls, tree: Any) -> Any:
        """Validate the blocks of treatments that installed packages add. Raises ValueError for unknown treatments."""
        if not isinstance(tree, Mapping):
            return tree
        blocks = dict(tree)
        for name in blocks.keys() - cls.model_fields.keys():
            if name not in ADDED_TREATMENTS:
                known_names = ", ".join([*cls.model_fields, *ADDED_TREATMENTS])
                raise ValueError(
                    f"treatment: expected one of {known_names}, or a treatment of an installed package, found {name!r}"
                )
            try:
                blocks[name] = ADDED_TREATMENTS[name].Options.model_validate(blocks[name])
            except ValidationError as error:  # raised again with the name in its path, as for a field of this block
                errors = [{**detail, "loc": (name, *detail["loc"])} for detail in error.errors(include_url=False)]
                raise ValidationError.from_exception_data(cls.__name__, cast(Any, errors)) from None
        return blocks

    @property
    def runs(self) -> dict[str, str]:
        """Path of a setting below ``treatment`` → path of the run that it names."""
        teachers, merged = self.distil.teachers if self.distil else {}, self.merge.sources if self.merge else {}
        runs_by_setting = (("distil.teachers", teachers), ("merge.sources", merged))
        return {f"{setting}.{task}": path for setting, runs in runs_by_setting for task, path in runs.items()}

    @property
    def chosen_treatments(self) -> dict[str, Any]:
        """Name → settings of the treatments that are switched on."""
        names = [*type(self).model_fields, *(self.model_extra or {})]
        return {name: options for name in names if (options := getattr(self, name)) is not None}
