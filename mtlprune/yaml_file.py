"""YAML read as its writer meant it: a key given twice is a mistake, not a silent loss of the first."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml


class YamlError(ValueError):
    """A file that is no YAML, or says two things of one key; the message names file, line and key."""


class _Strict(yaml.SafeLoader):
    """yaml.SafeLoader, but for keys given twice; merge keys (<<) may be overridden, as YAML has it."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        first: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in first:
                    raise YamlError(
                        f"line {line}: {key.value} is given a second time (first in line {first[key.value]}); join both"
                    )
                first[key.value] = line
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """What a file holds. Raises YamlError, and OSError where it cannot be read."""
    try:
        loader = _Strict(path.read_text(encoding="utf-8"))
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise YamlError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from None
    except YamlError as error:
        raise YamlError(f"{path}, {error}") from None


def found(value: Any) -> str:
    """A YAML value in words, for messages: nothing, keys and values, or the value itself."""
    if value is None:
        return "nothing"
    return "keys and values" if isinstance(value, dict) else repr(value)
