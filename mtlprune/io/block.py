"""Base class of blocks of settings: frozen pydantic models that refuse unknown keys, booleans in place of numbers,
numbers that are infinite or too large, and settings without an effect.

The configuration of a run and the options of analyses are made of such blocks.
"""

import ast
import functools
import inspect
import itertools
import textwrap
from collections.abc import Iterator
from typing import Any, TypeGuard, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

_LARGEST = 1e18
"""The largest absolute value of a setting with decimals. Its square does not overflow in float32."""
WIDTH = 116
"""The largest number of characters in a comment line of commented YAML, without the indentation of inner blocks."""


class CountsOnlyWith:
    """Annotation of a setting that has an effect only if another setting, which has an effect itself, has certain
    values.

    ``CountsOnlyWith(method="topk random", penalty="exact")`` marks a setting that has an effect if ``method`` has an
    effect and is topk or random, or if ``penalty`` has an effect and is exact.
    """

    def __init__(self, **values: str) -> None:
        self.values = {name: words.split() for name, words in values.items()}


class Block(BaseModel):
    """A block of settings. It is frozen, refuses unknown keys and numbers that are not finite, and does not accept
    true and false as numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _is_plain(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse two kinds of values that pydantic accepts: booleans given as numbers, and integers beyond 64 bits."""
        # Blocks, which were validated before, and floats return early, because sweeps validate thousands of
        # configurations.
        if value is None or isinstance(value, Block | float):
            return value
        annotation = cls.model_fields[str(info.field_name)].annotation
        inner = is_class(annotation) and issubclass(annotation, Block)  # the inner block validates its own values
        for part in () if inner else _parts(value):
            if isinstance(part, bool) and bool not in (annotation, *get_args(annotation)):
                raise PydanticCustomError("truth", "expected no truth value")
            if isinstance(part, int) and abs(part) > 2**63:
                raise PydanticCustomError("large", "expected a number below 2^63")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _fits_float32(cls, value: Any) -> Any:
        """Refuse numbers with decimals whose absolute value is above `_LARGEST`."""
        if any(isinstance(part, float) and abs(part) > _LARGEST for part in _parts(value)):
            raise PydanticCustomError("large", f"expected a number of at most {_LARGEST:g}")
        return value

    @model_validator(mode="after")
    def _ignores_nothing(self) -> "Block":
        """Refuse a setting that has no effect, unless it has its default."""
        for name in _marks(type(self)):
            if not self.counts(name) and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} has an effect only with {_cases(type(self), name)}; leave it out")
        return self

    def counts(self, name: str) -> bool:
        """Return whether a setting has an effect, given the values of the other settings."""
        condition = _marks(type(self)).get(name)
        return condition is None or any(
            str(getattr(self, setting)) in values and self.counts(setting) for setting, values in condition.items()
        )

    def commented(self) -> Iterator[str]:
        """Yield lines of YAML with all settings, each below its explanation as a comment. Settings without an effect
        are commented out."""
        tree, texts = self.model_dump(mode="json"), explanations(type(self))
        for name, value in tree.items():
            block = getattr(self, name)
            about_block = (inspect.getdoc(block) or "").partition("\n\n")[0] if isinstance(block, Block) else ""
            text = texts.get(name, about_block)
            yield from textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ")
            if isinstance(block, Block) and value:
                yield f"{name}:"
                yield from (f"  {line}" for line in block.commented())
            else:
                written = yaml.safe_dump([value], allow_unicode=True, default_flow_style=True, width=10**6)
                yield f"{'' if self.counts(name) else '# '}{name}: {written.strip()[1:-1]}"


@functools.cache
def _marks(block: type[Block]) -> dict[str, dict[str, list[str]]]:
    """Return a dict from each setting with a CountsOnlyWith to {other setting: values with which it has an effect}."""
    marked = {
        name: [m for m in field.metadata if isinstance(m, CountsOnlyWith)] for name, field in block.model_fields.items()
    }
    return {name: marks[0].values for name, marks in marked.items() if marks}


def _cases(block: type[Block], name: str) -> str:
    """Describe in words the cases in which a setting has an effect."""
    marks = _marks(block)
    parts = []
    for setting, values in marks[name].items():
        above = f" ({_cases(block, setting)})" if setting in marks else ""
        parts.append(f"{setting}: {', '.join(values)}{above}")
    return " or ".join(parts)


@functools.cache
def explanations(block: type[BaseModel]) -> dict[str, str]:
    """Return the explanation of each of a block's settings: its ``Field`` description, or the docstring below it."""
    texts = {name: field.description for name, field in block.model_fields.items() if field.description}
    for kind in reversed(block.__mro__[: block.__mro__.index(BaseModel)]):
        texts = {**_docstrings(kind), **texts}
    return texts


def _docstrings(kind: type) -> dict[str, str]:
    """Return the docstring below each setting in the source of a class; empty if the source is not available."""
    try:
        [written] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError):
        return {}
    return {
        field.target.id: inspect.cleandoc(str(text.value.value))
        for field, text in itertools.pairwise(written.body)  # type: ignore[attr-defined]
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def is_class(annotation: Any) -> TypeGuard[type]:
    """Return whether an annotation is a class. Generic aliases such as tuple[str, ...] are not classes, although
    Python 3.10 says that they are instances of ``type``."""
    return isinstance(annotation, type) and get_origin(annotation) is None


def _parts(value: Any) -> Iterator[Any]:
    """Yield all values inside nested lists, tuples and dictionaries, also the keys of dictionaries, or the value itself
    if it is none of these."""
    if isinstance(value, list | tuple | dict):
        for part in value.items() if isinstance(value, dict) else value:
            yield from _parts(part)
    else:
        yield value
