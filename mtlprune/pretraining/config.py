"""The settings of pretraining, as immutable models whose field descriptions appear in the documentation.

A configuration with ``data.corpora`` is one of these.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from mtlprune.config import tree_of
from mtlprune.config.blocks import SyntaxConfig, as_folder_name
from mtlprune.config.config import validated
from mtlprune.io.block import Block


class SourceConfig(Block):
    """The corpora from which sentences are read."""

    corpora: tuple[str, ...] = Field(min_length=1)
    """Folders of stored corpora, as `mtlprune data build` writes them; several with commas."""
    train: str = "train"
    """Split on which the model trains."""
    dev: str = "dev"
    """Split on which the measurements are made."""
    train_sentences: int | None = Field(default=None, ge=1)
    """Number of training sentences of each corpus, counted from the first one (all, if not given)."""
    dev_sentences: int | None = Field(default=None, ge=4)
    """Number of dev sentences of each corpus, counted from the first one (all, if not given)."""

    @field_validator("corpora", mode="before")
    @classmethod
    def _as_paths(cls, paths: Any) -> Any:
        return [path.strip() for path in paths.split(",")] if isinstance(paths, str) else paths


class ModelConfig(Block):
    """The model. With `start`, the sizes below are those of the model named there and may not be given."""

    start: str | None = None
    """Name or folder of the model from which training starts, with its tokenizer. If not given, the model starts from
    random weights, and its word pieces are learnt from the training sentences."""
    vocabulary: int = Field(default=4000, ge=100, le=10_000_000)
    """Largest number of word pieces."""
    layers: int = Field(default=4, ge=1, le=1000)
    """Number of layers."""
    heads: int = Field(default=4, ge=1, le=1000)
    """Number of heads in each layer."""
    hidden: int = Field(default=128, ge=4, le=100_000)
    """Size of a vector."""
    inner: int | None = Field(default=None, ge=1, le=1_000_000)
    """Size within the feed-forward part (four times hidden, if not given)."""
    positions: int = Field(default=128, ge=8, le=1_000_000)
    """Largest number of tokens of a sentence, special tokens included. Longer sentences are left out."""
    init: float = Field(default=0.02, gt=0)
    """Standard deviation of the weights at the beginning. BERT's 0.02 is 1/√hidden for a hidden size of 2,500, and is
    small for a small model."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of vectors."""
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of attention weights. BERT's 0.1 is not the default, because dropout blurs the attention that the penalty
    on syntax reads."""

    @model_validator(mode="after")
    def _fits(self) -> "ModelConfig":
        changed_settings = [
            n for n, f in type(self).model_fields.items() if n != "start" and getattr(self, n) != f.default
        ]
        if self.start is not None and changed_settings:
            raise ValueError(
                f"model.{changed_settings[0]} has no effect with model.start, whose model decides it; leave it out (if "
                "a base file has it, use a base file without it)"
            )
        if self.hidden % self.heads:
            raise ValueError(f"model: hidden {self.hidden} expected a multiple of heads ({self.heads})")
        return self


class StepsConfig(Block):
    """Settings of the optimisation."""

    steps: int = Field(default=10_000, ge=1, le=10_000_000)
    """Number of updates, over which `schedule` extends."""
    batch_sentences: int = Field(default=32, ge=1)
    """Largest number of sentences in an update."""
    batch_tokens: int = Field(default=2048, ge=1)
    """Largest number of sub-words in an update, padding included."""
    rate: float = Field(default=1e-3, gt=0)
    """Peak learning rate."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Weight decay of AdamW, which applies to matrices only."""
    warmup: float = Field(default=0.05, ge=0, lt=1)
    """Share of the updates in which the learning rate rises before it follows `schedule`."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """Course of the learning rate after the warm-up. It falls to 0 (linear, cosine) or does not change (constant)."""
    clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """auto takes bf16 autocast if the hardware supports it. Penalties on attention and embeddings stay in fp32."""
    device: str = "auto"
    """auto takes the first GPU if there is one. Other values name a torch device, such as cpu or cuda:1."""
    threads: int | None = Field(default=None, ge=1)
    """Number of CPU threads (all cores, if not given)."""
    checkpoint_minutes: float = Field(default=5.0, ge=0)
    """Minutes between checkpoints from which the run can be resumed."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Seed of all random numbers. Runs with the same seed start from the same weights and have the same batches and
    masks."""


class WatchConfig(Block):
    """Measurements during training, and their schedule."""

    points: int = Field(default=20, ge=2, le=10_000)
    """Number of evaluations and checkpoints on a log schedule from `first` to the last update. One more is made before
    the first update."""
    first: int = Field(default=10, ge=1)
    """Update after which the log schedule begins."""
    every: int | None = Field(default=None, ge=1)
    """Number of updates after which the model is also evaluated, without a checkpoint, so that breaks in the curves can
    be located."""
    models: bool = True
    """Write each checkpoint as a model folder; false writes only the last checkpoint."""
    pairs: str | None = None
    """Minimal pairs that are scored at each evaluation. With grammar, the pairs are drawn from the generated language,
    without training sentences. A folder that data_scripts/blimp.py made contains the pairs of BLiMP."""
    pairs_each: int | None = Field(default=None, ge=1)
    """Number of pairs of each phenomenon of grammar (200, if not given) or of each paradigm of BLiMP (all, if not
    given)."""

    @model_validator(mode="after")
    def _says_which_pairs(self) -> "WatchConfig":
        if self.pairs_each is not None and self.pairs is None:
            raise ValueError("watch.pairs_each has an effect only with watch.pairs; leave it out, or set it to null")
        return self


class PretrainConfig(Block):
    """The configuration of one pretraining."""

    name: str = "pretraining"
    """Name of the run in figures and folders."""
    data: SourceConfig
    """The corpora from which sentences are read."""
    model: ModelConfig = ModelConfig()
    """The masked language model, new or as in a folder or on the hub."""
    syntax: SyntaxConfig = SyntaxConfig()
    """A penalty on attention along dependency arcs."""
    cosreg: float = Field(default=0.0, ge=0)
    """γ of CosReg, a penalty on cosines between the tied embeddings (1 in Gao et al. 2019; 0 turns it off)."""
    train: StepsConfig = StepsConfig()
    """Settings of the optimisation."""
    watch: WatchConfig = WatchConfig()
    """Measurements during training."""

    _name = field_validator("name")(as_folder_name)

    @model_validator(mode="after")
    def _release_is_within(self) -> "PretrainConfig":
        release = self.syntax.release
        if release is not None and release >= self.train.steps:
            raise ValueError(
                f"syntax.release: expected an update before the last one ({self.train.steps}, train.steps), found "
                f"{release}"
            )
        if self.watch.first > self.train.steps:
            raise ValueError(
                f"watch.first: expected an update up to the last one ({self.train.steps}, train.steps), found "
                f"{self.watch.first}"
            )
        return self

    def log_steps(self) -> list[int]:
        """Return the updates after which a checkpoint is written: 0, and a log schedule from ``first`` to the last."""
        first, last, points = self.watch.first, self.train.steps, self.watch.points
        ratio = (last / first) ** (1 / (points - 1))
        return sorted({0, *(round(first * ratio**point) for point in range(points)), last})

    def watched_steps(self) -> list[int]:
        """Return the updates after which the model is measured: ``log_steps`` and every multiple of ``watch.every``."""
        regular_steps = range(0, self.train.steps + 1, self.watch.every) if self.watch.every else ()
        return sorted({*self.log_steps(), *regular_steps})


def load_pretraining(source: str | Path, overrides: Sequence[str] = ()) -> PretrainConfig:
    """Read a YAML file, apply ``key.path=value`` overrides, and check all settings.

    As in configurations of runs, ``base: FILE`` in the file names a file whose settings it changes.

    Raises:
        ConfigError: the file is missing or is not YAML, a key is unknown, or a value is wrong.
    """
    return validated(PretrainConfig, tree_of(source, overrides), str(source), overrides)
