"""Settings of a pretraining: frozen models, one sentence under every field."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from mtlprune.config import tree_of
from mtlprune.config.blocks import SyntaxConfig, as_folder_name
from mtlprune.config.config import validated
from mtlprune.io.block import Block


class SourceConfig(Block):
    """The sentences."""

    corpora: tuple[str, ...] = Field(min_length=1)
    """Folders of stored corpora, as `mtlprune data build` writes them; several with commas."""
    train: str = "train"
    """Split to train on."""
    dev: str = "dev"
    """Split to watch."""
    train_sentences: int | None = Field(default=None, ge=1)
    """Number of training sentences of each corpus, from its start (all, if not given)."""
    dev_sentences: int | None = Field(default=None, ge=4)
    """Number of dev sentences of each corpus, from its start (all, if not given)."""

    @field_validator("corpora", mode="before")
    @classmethod
    def _as_paths(cls, paths: Any) -> Any:
        return [path.strip() for path in paths.split(",")] if isinstance(paths, str) else paths


class ModelConfig(Block):
    """The model. With `start`, the sizes below are the started one's and may not be given."""

    start: str | None = None
    """A name or folder to start from, with its tokenizer; if not given, from scratch, with word pieces learnt from
    the training sentences."""
    vocabulary: int = Field(default=4000, ge=100, le=10_000_000)
    """Pieces at most."""
    layers: int = Field(default=4, ge=1, le=1000)
    """Layers."""
    heads: int = Field(default=4, ge=1, le=1000)
    """Heads a layer."""
    hidden: int = Field(default=128, ge=4, le=100_000)
    """Size of a vector."""
    inner: int | None = Field(default=None, ge=1, le=1_000_000)
    """Size within the feed-forward part (four times hidden, if not given)."""
    positions: int = Field(default=128, ge=8, le=1_000_000)
    """Tokens, special ones included, of the longest sentence; longer ones are left out."""
    init: float = Field(default=0.02, gt=0)
    """Standard deviation of weights at the beginning; BERT's 0.02 is 1/√hidden for 2,500, and small for a small one."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of vectors."""
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of attention weights; it blurs what the penalty on syntax reads, so BERT's 0.1 is not the default."""

    @model_validator(mode="after")
    def _fits(self) -> "ModelConfig":
        changed_settings = [
            n for n, f in type(self).model_fields.items() if n != "start" and getattr(self, n) != f.default
        ]
        if self.start is not None and changed_settings:
            raise ValueError(
                f"model.{changed_settings[0]} has no effect with model.start, whose own it is; leave it out (if a base "
                "file has it, begin from one that has not)"
            )
        if self.hidden % self.heads:
            raise ValueError(f"model: hidden {self.hidden} cannot be shared out among {self.heads} heads")
        return self


class StepsConfig(Block):
    """Updates."""

    steps: int = Field(default=10_000, ge=1, le=10_000_000)
    """Updates; the rate reaches 0 after the last."""
    batch_sentences: int = Field(default=32, ge=1)
    """Sentences an update at most."""
    batch_tokens: int = Field(default=2048, ge=1)
    """Sub-words an update at most, padding counted."""
    rate: float = Field(default=1e-3, gt=0)
    """Peak learning rate."""
    weight_decay: float = Field(default=0.01, ge=0)
    """AdamW's weight decay, of matrices only."""
    warmup: float = Field(default=0.05, ge=0, lt=1)
    """Share of the updates in which the rate rises, before it follows `schedule`."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """The way the rate falls to 0 after the warm-up, or that it stays."""
    clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """auto takes bf16 autocast where the hardware has it; penalties on attention and embeddings stay in fp32."""
    device: str = "auto"
    """auto takes the first GPU where there is one; else a torch device such as cpu or cuda:1."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads (all cores, if not given)."""
    checkpoint_minutes: float = Field(default=5.0, ge=0)
    """A resumable state is written whenever so much time has passed."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Everything random follows from it; runs of one seed share beginnings, batches and masks."""


class WatchConfig(Block):
    """Measurements on the way, and their schedule."""

    points: int = Field(default=20, ge=2, le=10_000)
    """Evaluations and checkpoints, on a log schedule from `first` to the last update; one before the first beside."""
    first: int = Field(default=10, ge=1)
    """Update after which the log schedule begins."""
    every: int | None = Field(default=None, ge=1)
    """Also evaluate, without a checkpoint, after every so many updates: the even steps of the published break."""
    models: bool = True
    """Write each checkpoint as a model folder; false writes the last one only."""
    pairs: str | None = None
    """Minimal pairs to be judged at each evaluation: grammar (drawn from the generated language, none of them among the
    training sentences), or a folder of BLiMP, as data_scripts/blimp.py makes it."""
    pairs_each: int | None = Field(default=None, ge=1)
    """Pairs of each phenomenon of grammar (200, if not given) or of each paradigm of BLiMP (all, if not given)."""

    @model_validator(mode="after")
    def _says_which_pairs(self) -> "WatchConfig":
        if self.pairs_each is not None and self.pairs is None:
            raise ValueError("watch.pairs_each has an effect only with watch.pairs; leave it out, or set it to null")
        return self


class PretrainConfig(Block):
    """One pretraining."""

    name: str = "pretraining"
    """Its name in figures and folders."""
    data: SourceConfig
    """The sentences."""
    model: ModelConfig = ModelConfig()
    """The model."""
    syntax: SyntaxConfig = SyntaxConfig()
    """A penalty on attention along dependency arcs."""
    cosreg: float = Field(default=0.0, ge=0)
    """γ of CosReg, a penalty on cosines between the tied embeddings (Gao et al. 2019: 1); 0: none."""
    train: StepsConfig = StepsConfig()
    """Updates."""
    watch: WatchConfig = WatchConfig()
    """Measurements on the way."""

    _name = field_validator("name")(as_folder_name)

    @model_validator(mode="after")
    def _release_is_within(self) -> "PretrainConfig":
        release = self.syntax.release
        if release is not None and release >= self.train.steps:
            raise ValueError(f"syntax.release: {release} is not before the end, train.steps {self.train.steps}")
        if self.watch.first > self.train.steps:
            raise ValueError(f"watch.first: {self.watch.first} is beyond the end, train.steps {self.train.steps}")
        return self

    def log_steps(self) -> list[int]:
        """Updates after which a checkpoint is written: 0, then evenly spaced logarithms from ``first`` to the last."""
        first, last, points = self.watch.first, self.train.steps, self.watch.points
        ratio = (last / first) ** (1 / (points - 1))
        return sorted({0, *(round(first * ratio**place) for place in range(points)), last})

    def watched_steps(self) -> list[int]:
        """Updates after which all is measured: those, and the even ones."""
        regular_steps = range(0, self.train.steps + 1, self.watch.every) if self.watch.every else ()
        return sorted({*self.log_steps(), *regular_steps})


def load_pretraining(source: str | Path, overrides: Sequence[str] = ()) -> PretrainConfig:
    """Read a YAML file, apply ``key.path=value`` overrides, and validate; ``base: FILE`` in a file works as for runs.

    Raises:
        ConfigError: the file is missing or no YAML, a key is unknown, a value is wrong.
    """
    return validated(PretrainConfig, tree_of(source, overrides), str(source), overrides)
