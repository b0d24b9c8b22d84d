"""The configuration of a run, its validation and the error messages, which suggest the nearest key for unknown keys."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
    field_validator,
    model_validator,
)

from mtlprune.config import PRESETS as PRESETS
from mtlprune.config import ConfigError, nearest, tree_of
from mtlprune.config import apply_override as apply_override
from mtlprune.config import find_config as find_config
from mtlprune.config import merged as merged
from mtlprune.config import read_tree as read_tree
from mtlprune.config.blocks import (
    ADDED_TREATMENTS,
    JOINT,
    SINGLE,
    DataConfig,
    EncoderConfig,
    PruningConfig,
    SyntaxConfig,
    TrainConfig,
    TreatmentConfig,
    as_folder_name,
)
from mtlprune.config.decoders import DECODERS
from mtlprune.io.block import Block, is_class
from mtlprune.io.strict import in_words
from mtlprune.layers import LAYERS, check_layer, kind_of

_Settings = TypeVar("_Settings", bound=Block)


@cache
def _of_type(name: str) -> type[Block]:
    """Create the class of settings for a layer whose decoder is chosen by ``type``.

    It extends the decoder's settings by the fields ``type`` (name of the decoder) and ``kind`` (kind of the layer).
    """
    decoder = DECODERS[name]
    fields: dict[str, Any] = {
        "type": (Literal[name], Field(description="Decoder of this layer.")),
        "kind": (
            Literal[decoder.kind],
            Field(decoder.kind, description="Kind of the layer, which its decoder decides."),
        ),
    }
    settings_class = create_model(
        decoder.Options.__name__, __base__=decoder.Options, __doc__=decoder.Options.__doc__, **fields
    )
    # Another process cannot import this class by its name, so unpickling builds the settings from their type.
    settings_class.__reduce__ = lambda self: (_with_type, (name, self.model_dump(exclude_unset=True)))  # type: ignore[method-assign]
    return settings_class


def _with_type(name: str, tree: Mapping[str, Any]) -> Block:
    """Build the settings of a decoder that is chosen by ``type``, when they are unpickled."""
    return _of_type(name).model_validate(tree)


class _Decoders(Block):
    """Settings of decoders, with further layers in addition to the five fields of ``DecodersConfig``.

    A further layer has to name its decoder by ``type``. One of the five layers may name another decoder by ``type``.
    """

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _check_further_layers(cls, tree: Any) -> Any:
        if not isinstance(tree, Mapping):
            return tree
        return {
            name: value if name in cls.model_fields else _check_decoder(name, value) for name, value in tree.items()
        }


def _check_decoder(name: str, value: Any) -> Block:
    """Validate the settings of a layer whose decoder is chosen by ``type``. Raises ValueError for a wrong type."""
    if isinstance(value, Block):
        return value
    type_ = value.get("type") if isinstance(value, Mapping) else None
    if name in LAYERS:
        fit = [decoder_name for decoder_name, decoder in DECODERS.items() if kind_of(decoder.kind) == kind_of(name)]
        if type_ not in fit:
            raise ValueError(f"decoders.{name}.type: expected {' or '.join(fit)}, found {in_words(type_)}")
    elif not isinstance(type_, str) or type_ not in DECODERS:
        raise ValueError(
            f"unknown key decoders.{name}{nearest(name, LAYERS)}; expected {', '.join(LAYERS)}, or another layer of "
            f"the corpus with the type of its decoder, which is one of {', '.join(DECODERS)}"
        )
    else:
        check_layer(name, DECODERS[type_].kind)
    return validated(_of_type(str(type_)), value, f"decoders.{name}")


def _of_layer(name: str) -> Any:
    """Return annotation and default of the field for one of the five layers.

    The field accepts the settings of the layer's standard decoder, or those of another decoder that ``type`` names.
    """
    options = DECODERS[name].Options

    def settings(value: Any, check_block: ValidatorFunctionWrapHandler) -> Any:
        if isinstance(value, Mapping) and "type" in value and value["type"] != name:
            return _check_decoder(name, value)
        if isinstance(value, Mapping):
            value = {key: setting for key, setting in value.items() if key != "type"}
        return value if isinstance(value, Block) else check_block(value)

    return Annotated[options, WrapValidator(settings), SerializeAsAny()], options()


if TYPE_CHECKING:
    DecodersConfig = Block
else:
    DecodersConfig = create_model(
        "DecodersConfig",
        __base__=_Decoders,
        __doc__="Settings of each task's decoder.",
        **{name: _of_layer(name) for name in LAYERS},
    )


class Config(Block):
    """The configuration of one run."""

    name: str = "run"
    """Name of the run in tables and folders."""
    data: DataConfig
    """The corpus, its splits, and the number of sentences that are used."""
    tasks: tuple[str, ...] = tuple(LAYERS)
    """Tasks that are trained jointly. One task means single-task training (STL), and several mean multi-task training
    (MTL). If not given, `mtlprune train` takes the tasks of the corpus."""
    encoder: EncoderConfig = EncoderConfig()
    """The encoder, and how its output becomes word vectors."""
    decoders: DecodersConfig = DecodersConfig()
    """Settings of each decoder."""
    train: TrainConfig = TrainConfig()
    """Settings of training."""
    pruning: PruningConfig = PruningConfig()
    """The heads that a run may use. `pruning=METHOD` is short for `pruning.method=METHOD`."""
    syntax: SyntaxConfig = SyntaxConfig()
    """A penalty on attention along dependency arcs."""
    treatment: TreatmentConfig = TreatmentConfig()
    """Changes of training that are meant to improve joint training in one encoder."""

    _name = field_validator("name")(as_folder_name)

    @field_validator("tasks", mode="before")
    @classmethod
    def _as_names(cls, tasks: Any) -> Any:
        """Accept tasks=pos,ner without brackets, which shells expand, and sort the tasks in the order of the layers.

        Sorting makes runs of the same tasks equal in whatever order the user names the tasks.
        """
        if isinstance(tasks, str):
            tasks = [name.strip() for name in tasks.split(",")]
        if not isinstance(tasks, list | tuple):
            raise ValueError(f"tasks: expected names of tasks such as pos,ner, found {in_words(tasks)}")
        order = list(LAYERS)
        return sorted(tasks, key=lambda name: (order.index(name) if name in order else len(order), str(name)))

    @field_validator("pruning", mode="before")
    @classmethod
    def _as_block(cls, pruning: Any) -> Any:
        """Accept pruning=gates as a short form of pruning.method=gates."""
        return {"method": pruning} if isinstance(pruning, str) else pruning

    @property
    def prunes_statically(self) -> bool:
        """True for static pruning: gates are trained on a finished run whose decoders stay fixed."""
        return self.pruning.learns and "decoders" in self.train.freeze

    @model_validator(mode="after")
    def _heads_exist(self) -> "Config":
        """Raise ValueError for settings of pruning, of frozen parts and of CosReg that contradict other settings."""
        if self.pruning.method != "none" and not self.encoder.context:
            raise ValueError(
                "pruning needs heads, and an encoder without context (encoder.context: false) has none; leave one of "
                "the two out"
            )
        if self.pruning.sets == "per_task" and len(self.tasks) < 2:
            raise ValueError("pruning.sets: per_task needs several tasks; with one task, leave it out")
        if self.train.freeze == ("decoders", "encoder") and self.pruning.method == "none":
            raise ValueError(
                "train.freeze: encoder and decoders are frozen and there are no gates, so nothing would be trained; "
                "freeze only one of them, or add pruning=gates"
            )
        if "decoders" in self.train.freeze and self.train.start is None:
            raise ValueError(
                "train.freeze: decoders that start at random cannot be frozen; give a finished run as train.start"
            )
        if "decoders" in self.train.freeze and self.train.cosreg:
            raise ValueError(
                "train.cosreg has no effect if train.freeze includes the decoders; leave one of the two out"
            )
        return self

    @model_validator(mode="after")
    def _syntax_reaches_heads(self) -> "Config":
        """Raise ValueError for a penalty on attention that would have no effect."""
        if self.syntax.strength and not self.encoder.context:
            raise ValueError(
                "syntax needs heads, and an encoder without context (encoder.context: false) has none; leave one of "
                "the two out"
            )
        if self.syntax.strength and "encoder" in self.train.freeze:
            raise ValueError("syntax has no effect on a frozen encoder (train.freeze); leave one of the two out")
        if self.syntax.strength and self.pruning.sets == "per_task":
            raise ValueError(
                "syntax needs one attention for all tasks, and pruning.sets: per_task has one for each task; give "
                "sets: shared"
            )
        if self.syntax.strength and self.pruning.closed == "resample":
            raise ValueError(
                "syntax needs one forward pass for each batch, and pruning.closed: resample makes two; give zero, mean "
                "or optimal"
            )
        return self

    @model_validator(mode="after")
    def _tasks_exist(self) -> "Config":
        """Raise ValueError for unknown tasks, and for settings of losses that do not fit the tasks."""
        if not self.tasks or len(set(self.tasks)) != len(self.tasks):
            raise ValueError(f"tasks: expected one or more different tasks, found {list(self.tasks)}")
        known_tasks = self.decoders.model_dump()
        tasks_by_setting: dict[str, Iterable[str]] = {"tasks": self.tasks, "train.weights": self.train.weights}
        tasks_by_setting["train.shares"] = self.train.shares
        for setting in ("encoder_rate", "decoder_rate"):
            if isinstance(rates := getattr(self.train, setting), dict):
                if not rates.keys() >= {SINGLE, JOINT}:
                    raise ValueError(
                        f"train.{setting}: expected a number, or a rate for {SINGLE} and one for {JOINT} (and for "
                        f"tasks that differ from {SINGLE}), found only {', '.join(rates)}; add the missing rate"
                    )
                tasks_by_setting[f"train.{setting}"] = rates.keys() - {SINGLE, JOINT}
        for setting, names in tasks_by_setting.items():
            for task in names:
                if task not in known_tasks:
                    raise ValueError(
                        f"{setting}: expected one of {', '.join(known_tasks)}, or another layer of the corpus whose "
                        f"decoder is given (decoders.{task}.type), found {task!r}{nearest(task, known_tasks)}"
                    )
        for task, weight in self.train.weights.items():
            if weight < 0:
                raise ValueError(f"train.weights: expected weights of 0 or more, found {weight} for {task}")
        if not any(self.train.weights.get(task, 1) for task in self.tasks):
            raise ValueError(
                "train.weights: expected a weight above 0, found 0 for all tasks, with which nothing would be learnt"
            )
        for task, share in self.train.shares.items():
            if not 0 < share <= 1:
                raise ValueError(f"train.shares: expected shares above 0 and at most 1, found {share} for {task}")
        if self.train.shares and all(self.train.shares.get(task, 1) < 1 for task in self.tasks):
            raise ValueError(
                f"train.shares: expected a task that takes part in all batches, found smaller shares for "
                f"{', '.join(self.tasks)}; leave out one of them"
            )
        has_all_losses = self.train.mixing == "joint" and self.train.accumulate == 1 and not self.train.shares
        if self.train.balance == "famo" and not has_all_losses:
            raise ValueError(
                "train.balance: famo computes the losses of all tasks again after each update; give train.mixing: "
                "joint and train.accumulate: 1, and leave out train.shares"
            )
        if self.train.balance == "famo" and self.pruning.in_loss:
            raise ValueError(
                "train.balance: famo needs losses without the penalty of pruning.in_loss; leave one of the two out"
            )
        if self.train.accumulate > self.train.batch_sentences:
            raise ValueError(
                "train.accumulate: expected at most as many mini-batches as train.batch_sentences has sentences, found "
                "more; lower it"
            )
        return self

    @model_validator(mode="after")
    def _treatments_fit(self) -> "Config":
        """Raise ValueError for combinations of treatments and settings that are not allowed or would be ignored.

        docs/methods/treatments.md lists the allowed combinations.
        """
        treatment, joint = self.treatment, self.train.mixing == "joint"
        treatments_chosen, heads = (
            treatment.chosen_treatments,
            {"dispatch", "clone", "protect"} & treatment.chosen_treatments.keys(),
        )
        if treatment.project is not None:
            heads |= {"project"}
        for name in sorted(heads):
            if not self.encoder.context:
                raise ValueError(
                    f"treatment.{name} needs heads, and an encoder without context (encoder.context: false) has none; "
                    "leave one of the two out"
                )
            if "encoder" in self.train.freeze:
                raise ValueError(
                    f"treatment.{name} has no effect on a frozen encoder (train.freeze); leave one of the two out"
                )
            if len(self.tasks) < 2:
                raise ValueError(
                    f"treatment.{name}: expected several tasks, found only {self.tasks[0]}; add tasks, or leave the "
                    "treatment out"
                )
            if self.syntax.strength:
                raise ValueError(
                    f"treatment.{name} cannot be combined with syntax, whose gradient belongs to no task; leave one of "
                    "the two out"
                )
        other_settings = [f"treatment.{name}" for name in heads - {"clone"}]
        for name, excluded in (
            ("clone", [*other_settings, "pruning.sets: per_task", "train.log_uas"]),
            ("clone", [f"pruning.closed: {kind}" for kind in ("mean", "resample", "optimal")]),
            ("clone", ["encoder.fusion", "encoder.checkpointing"]),
            ("project", ["pruning.sets: per_task"]),
            ("merge", ["train.start"]),
        ):
            for excluded_setting in excluded if name in treatments_chosen else ():
                if self._asks_for(excluded_setting):
                    raise ValueError(
                        f"treatment.{name} cannot be combined with {excluded_setting}; leave one of the two out"
                    )
        if treatment.project is not None and not joint:
            raise ValueError(
                "treatment.project compares gradients of tasks in one batch, and with train.mixing: sampled each batch "
                "has one task; give train.mixing: joint"
            )
        tasks_by_setting = {
            "treatment.distil.teachers": treatment.distil.teachers if treatment.distil else (),
            "treatment.protect.tasks": treatment.protect.tasks if treatment.protect else (),
            "treatment.merge.sources": treatment.merge.sources if treatment.merge else (),
        }
        for setting, names in tasks_by_setting.items():
            for task in names:
                if task not in self.tasks:
                    raise ValueError(f"{setting}: expected tasks of this run ({', '.join(self.tasks)}), found {task!r}")
        if treatment.merge is not None and (tasks_without_source := set(self.tasks) - treatment.merge.sources.keys()):
            raise ValueError(
                f"treatment.merge.sources: expected a run for each task, found none for {min(tasks_without_source)}; "
                "name a run of this task"
            )
        return self

    def _asks_for(self, setting: str) -> bool:
        """Return True if a setting "block.name" is switched on, or if "block.name: value" is its value."""
        path, _, value = setting.partition(": ")
        block, name = path.split(".")
        value_set = getattr(getattr(self, block), name)
        return value_set == value if value else value_set not in (None, False, "none", "auto")

    def decoder(self, task: str) -> str:
        """Return the name of a task's decoder."""
        return str(getattr(getattr(self.decoders, task), "type", task))


def digest(settings: Block) -> str:
    """Return eight hexadecimal digits that identify a configuration.

    They are computed from the settings that differ from the defaults, so settings that later releases add do not change
    them.
    """
    tree = settings.model_dump(mode="json", exclude_defaults=True)
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:8]


def default_folder(settings: Any) -> Path:
    """Return the default folder of a run, runs/NAME-DIGEST."""
    return Path("runs") / f"{settings.name}-{digest(settings)}"


def load_config(source: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file or a preset, apply ``key.path=value`` overrides, and validate the configuration.

    A file may extend another file or preset with ``base: NAME_OR_FILE``. Its keys then override those of the base,
    block by block.

    Raises:
        ConfigError: the file is missing or is no YAML, a key is unknown, or a value is invalid.
    """
    return validated(Config, tree_of(source, overrides), str(source), overrides)


def build_config(tree: Mapping[str, Any], source: str = "config") -> Config:
    """Validate a configuration tree. Raises ConfigError, which names ``source``, if it is invalid."""
    return validated(Config, tree, source)


def validated(model: type[_Settings], tree: Mapping[str, Any], source: str, overrides: Sequence[str] = ()) -> _Settings:
    """Validate a tree as a model of settings. Raises ConfigError, which names ``source`` or the faulty override."""
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        messages: dict[str, list[str]] = {}
        for explained in (_explain(model, dict(e)) for e in error.errors()):
            messages.setdefault(_blamed(explained, source, overrides), []).append(explained)
        raise ConfigError(
            "; ".join(f"{key}: " + "; ".join(messages_of_key) for key, messages_of_key in messages.items())
        ) from None


def _blamed(explained: str, source: str, overrides: Sequence[str]) -> str:
    """Return the last override that set the key at the start of a message (or a key above or below it), else source."""
    key = re.split(r"[:;\s]", explained.removeprefix("unknown key "), maxsplit=1)[0] + "."
    for override in reversed(overrides):
        prefix = override.partition("=")[0] + "."
        if key.startswith(prefix) or prefix.startswith(key):
            return f"{override if len(override) <= 60 else override[:59] + '…'} on the command line"
    return source


def _explain(model: type[Block], error: dict[str, Any]) -> str:
    """Return the message for an error of pydantic: path of the key, what was expected, and what was found."""
    # Parts such as @number are tags of the alternative forms of a setting, such as those of Rates.
    path = ".".join(str(part) for part in error["loc"] if not str(part).startswith("@"))
    if error["type"] == "extra_forbidden":
        known_fields = list(_fields(model, error["loc"][:-1]))
        hint = _suggest_block(model, path, error["input"]) or nearest(str(error["loc"][-1]), known_fields)
        return f"unknown key {path}{hint}; expected one of {', '.join(known_fields)}"
    if error["type"] == "missing":
        return f"{path} is missing"
    if error["type"] == "value_error":
        # Messages of validators begin with a key of their block, with the whole path, or with neither.
        message, above = str(error["ctx"]["error"]), error["loc"]
        key = re.split(r"[:\s]", message, maxsplit=1)[0]
        drops_keys = not key.isidentifier() or message.startswith("unknown key")
        return ".".join([*above[: above.index(key) if key in above else 0 if drops_keys else None], message])
    if error["type"] in ("model_type", "dict_type"):
        return f"{path}: expected keys and values, found {in_words(error['input'])}"
    return f"{path}: {error['msg'][0].lower()}{error['msg'][1:]}, found {in_words(error['input'])}"


def _suggest_block(model: type[Block], path: str, value: Any) -> str:
    """Return a hint at the setting of the same name in another block, such as train.device for device; else ""."""
    while isinstance(value, dict) and len(value) == 1:
        [(key, value)] = value.items()
        path = f"{path}.{key}"
    name = path.rpartition(".")[2]
    blocks = {block: field.annotation for block, field in model.model_fields.items()}
    blocks_with_name = [
        block for block, kind in blocks.items() if is_class(kind) and name in getattr(kind, "model_fields", ())
    ]
    return f" (did you mean {blocks_with_name[0]}.{name}?)" if blocks_with_name else ""


def _fields(root: type[Block], path: Sequence[Any]) -> Iterator[str]:
    """Yield the names of the settings in the block at a path."""
    model: Any = root
    for key in path:
        field = model.model_fields.get(key)
        annotation = ADDED_TREATMENTS[key].Options if field is None else field.annotation
        model = next((part for part in get_args(annotation) if is_class(part)), annotation)
    yield from model.model_fields
