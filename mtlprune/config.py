"""What a run is told: frozen models, one sentence under every field, unknown keys refused with the nearest one."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator, model_validator

from mtlprune.tasks import TASKS

PRESETS = Path(__file__).parent / "presets"


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names file and key, what was expected and what was found."""


class Block(BaseModel):
    """A part of the configuration: frozen, no unknown keys, finite numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataConfig(Block):
    """Which sentences."""

    path: str
    """Folder of a stored corpus, as `mtlprune data build` writes it."""
    train: str = "train"
    """Split to train on."""
    dev: str = "dev"
    """Split that chooses the best epoch."""
    train_sentences: int | None = Field(default=None, ge=1)
    """Use only the first so many training sentences (all, if not given)."""


class EncoderConfig(Block):
    """Which encoder, and how words are read off it."""

    name: str = "minilm"
    """A Hugging Face name, a local folder, or `minilm` for the encoder of the extra `minilm`."""
    random: bool = False
    """Start from random weights of the same architecture (the no-pretraining control)."""
    context: bool = True
    """false leaves only the word embeddings, without layers or positions: the no-encoder baseline."""
    pooling: Literal["mean", "first"] = "mean"
    """A word's vector is the mean of its sub-words, or its first one."""
    word_dropout: float = Field(default=0.2, ge=0, lt=1)
    """In training each sub-word becomes the mask token with this probability."""


class TrainConfig(Block):
    """How to train."""

    epochs: int = Field(default=5, ge=1)
    """Passes over the training set (for sampled mixing: as many batches as one pass over every task has)."""
    batch_sentences: int = Field(default=64, ge=1)
    """Sentences an update at most."""
    batch_tokens: int = Field(default=6400, ge=1)
    """Sub-words an update at most, padding counted (a longer sentence stands alone)."""
    accumulate: int = Field(default=1, ge=1)
    """Mini-batches an update; each holds its share of batch_sentences and batch_tokens."""
    mixing: Literal["joint", "sampled"] = "joint"
    """joint: one encoding and all losses a batch. sampled: one task a batch, drawn with p ∝ batches^tau."""
    tau: float = Field(default=0.8, ge=0)
    """Exponent of sampled mixing."""
    balance: Literal["none", "fixed", "running_mean"] = "none"
    """none: losses are added; fixed: times `weights`; running_mean: brought to the same size (He and Choi 2021)."""
    weights: dict[str, float] = {}
    """Task → factor of its loss, for balance: fixed; 1 where not given."""
    balance_window: int = Field(default=5, ge=1)
    """How many past losses running_mean averages."""
    encoder_rate: float = Field(default=1e-4, gt=0)
    """Peak learning rate of the encoder."""
    decoder_rate: float = Field(default=1e-3, gt=0)
    """Peak learning rate of the decoders."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's weight decay."""
    warmup: float = Field(default=0.1, ge=0, lt=1)
    """Share of the updates in which the rates rise; then they fall linearly to 0."""
    clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient over encoder and decoders together."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after so many epochs without a better dev score (never, if not given)."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """auto takes bf16 autocast where the hardware has it."""
    device: str = "auto"
    """auto takes the first GPU where there is one; else a torch device such as cpu or cuda:1."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads (all cores, if not given)."""
    checkpoint_minutes: float = Field(default=5.0, ge=0)
    """A resumable state is written after every epoch and whenever so much time has passed."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Everything random follows from it."""


if TYPE_CHECKING:
    DecodersConfig = Block
else:
    DecodersConfig = create_model(
        "DecodersConfig",
        __base__=Block,
        __doc__="Settings of each task's decoder.",
        **{name: (task.Options, task.Options()) for name, task in TASKS.items()},
    )


class Config(Block):
    """One run."""

    name: str = "run"
    """What tables and folders call it."""
    data: DataConfig
    """Which sentences."""
    tasks: tuple[str, ...] = tuple(TASKS)
    """Tasks trained together; one task is STL, several are MTL."""
    encoder: EncoderConfig = EncoderConfig()
    """Which encoder."""
    decoders: DecodersConfig = DecodersConfig()
    """Settings of each decoder."""
    train: TrainConfig = TrainConfig()
    """How to train."""

    @field_validator("tasks", mode="before")
    @classmethod
    def _as_names(cls, tasks: Any) -> Any:
        """tasks=pos,ner on a command line needs no brackets, which shells take for patterns.

        Whatever their order, the same tasks are the same run: they are put into the order of the layers.
        """
        if isinstance(tasks, str):
            tasks = [name.strip() for name in tasks.split(",")]
        if not isinstance(tasks, list | tuple):
            raise ValueError(f"tasks: expected names of tasks such as pos,ner, found {tasks!r}")
        order = list(TASKS)
        return sorted(tasks, key=lambda name: order.index(name) if name in order else len(order))

    @model_validator(mode="after")
    def _tasks_exist(self) -> Config:
        if not self.tasks or len(set(self.tasks)) != len(self.tasks):
            raise ValueError(f"tasks: expected one or more different tasks, found {list(self.tasks)}")
        for where, names in (("tasks", self.tasks), ("train.weights", self.train.weights)):
            for task in names:
                if task not in TASKS:
                    raise ValueError(
                        f"{where}: there is no task {task!r}{_nearest(task, TASKS)}; tasks are {', '.join(TASKS)}"
                    )
        for task, weight in self.train.weights.items():
            if weight < 0:
                raise ValueError(f"train.weights: the weight of {task} is {weight}; expected 0 or more")
        if self.train.weights and self.train.balance != "fixed":
            raise ValueError("train.weights is given, but has an effect only with train.balance: fixed")
        if self.train.accumulate > self.train.batch_sentences:
            raise ValueError("train.accumulate: more mini-batches an update than train.batch_sentences has sentences")
        return self

    def digest(self) -> str:
        """Eight letters that name this configuration: equal configurations, equal letters."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def load_config(source: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file (or a preset's name), apply ``key.path=value`` overrides, and validate.

    A file may begin from another one with ``base: NAME_OR_FILE``; its own keys then win, block by block.

    Raises:
        ConfigError: the file is missing or no YAML, a key is unknown, a value is wrong.
    """
    path = find_config(source)
    tree = _read(path)
    for override in overrides:
        _apply(tree, override)
    return build_config(tree, str(source))


def build_config(tree: Mapping[str, Any], source: str = "config") -> Config:
    """Validate a nested mapping. Raises ConfigError."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{source}: " + "; ".join(_explain(dict(e)) for e in error.errors())) from None


def find_config(source: str | Path) -> Path:
    """A file, or the preset of that name."""
    path = Path(source)
    if path.is_file():
        return path
    preset = PRESETS / f"{source}.yaml"
    if preset.is_file():
        return preset
    names = sorted(p.stem for p in PRESETS.glob("*.yaml"))
    raise ConfigError(
        f"there is neither a file nor a preset {str(source)!r}{_nearest(str(source), names)}; "
        f"presets are {', '.join(names)}"
    )


def _read(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    if path.resolve() in [other.resolve() for other in seen]:
        raise ConfigError(f"{path}: `base` runs in a circle: {' → '.join(map(str, [*seen, path]))}")
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected keys and values, found {type(tree).__name__}")
    base = tree.pop("base", None)
    if base is None:
        return tree
    beside = path.parent / str(base)
    return _merged(_read(beside if beside.is_file() else find_config(str(base)), (*seen, path)), tree)


def _merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    both = dict(under)
    for key, value in over.items():
        old = both.get(key)
        both[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return both


def _apply(tree: dict[str, Any], override: str) -> None:
    path, sign, text = override.partition("=")
    if not sign or not path:
        raise ConfigError(f"expected key.path=value, found {override!r}")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"{path}: the value {text!r} is not readable as YAML") from None
    if isinstance(value, str) and value == text.strip():  # not in quotes
        value = _number(value)
    *blocks, last = path.split(".")
    for block in blocks:
        inner = tree.setdefault(block, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{override!r}: {block} is a single value, nothing lies below it")
        tree = inner
    tree[last] = value


def _number(text: str) -> str | float:
    """YAML 1.1 reads 1e-4 as text; people mean the number."""
    try:
        return float(text)
    except ValueError:
        return text


def _explain(error: dict[str, Any]) -> str:
    path = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        known = list(_fields(error["loc"][:-1]))
        return f"unknown key {path}{_nearest(str(error['loc'][-1]), known)}; known there: {', '.join(known)}"
    if error["type"] == "missing":
        return f"{path} is missing"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return f"{path}: {error['msg'][0].lower()}{error['msg'][1:]}, found {error['input']!r}"


def _fields(path: Sequence[Any]) -> Iterator[str]:
    model: Any = Config
    for key in path:
        annotation = model.model_fields[key].annotation
        model = next((part for part in get_args(annotation) if isinstance(part, type)), annotation)
    yield from model.model_fields


def _nearest(word: str, known: Any) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
