"""Strict parsers of JSON and YAML. They refuse repeated keys, and in JSON also numbers that are not finite and lone
surrogates, all of which the standard parsers accept."""

import json
import math
from collections.abc import Hashable
from typing import Any

import yaml


def parse_json(text: str) -> Any:
    """Parse JSON, and refuse NaN, infinite numbers, lone surrogates (half characters), and repeated keys of an object.

    Raises:
        ValueError: the text is not JSON, or contains one of these.
        RecursionError: the text is nested too deeply.
    """
    value = json.loads(text, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_object)
    if "\\ud" in text or "\\uD" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError("half a character (a lone surrogate)") from None
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name}, which is not a number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated_key = next(key for place, key in enumerate(keys) if key in keys[:place])
        raise ValueError(f"{repeated_key!r} occurs twice in one object; join both values")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:20]}, which is too large")
    return value


_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the optional C loader is ten times as fast


class _Strict(_SafeLoader):  # type: ignore[misc]
    """yaml.SafeLoader that refuses repeated keys. Keys from a merge key (<<) may be overridden, as YAML defines."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        first: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in first:
                    raise ValueError(
                        f"line {line}: {key.value} occurs twice (first in line {first[key.value]}); join both values"
                    )
                first[key.value] = line
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> Any:
    """Parse YAML, and refuse repeated keys, of which the standard parser would silently keep only the last.

    Raises:
        yaml.YAMLError: the text is not YAML.
        ValueError: a key is repeated; the message names line and key.
        RecursionError: the text is nested too deeply.
    """
    loader = _Strict(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def reason(error: Exception) -> str:
    """Return the message of an exception on one line."""
    text = " ".join(str(error).split())
    if "integer string conversion" in text:
        return "a number of thousands of digits"
    return f"no {error}" if isinstance(error, KeyError) else text


def in_words(value: Any) -> str:
    """Describe a YAML value for messages: ``nothing``, ``keys and values``, or the value itself."""
    if value is None:
        return "nothing"
    return "keys and values" if isinstance(value, dict) else repr(value)
