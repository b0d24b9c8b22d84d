"""Files of configurations, their bases and overrides, before anyone knows what they mean; without torch."""

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mtlprune.errors import MtlpruneError, command
from mtlprune.io.files import read_yaml, reading
from mtlprune.io.strict import in_words, parse_yaml

TEXTS = re.compile(
    r"data\.(path|train|dev)|watch\.pairs|(.+\.)?(name|revision|start|device|claims|importance_of|layers_like|selector)"
    r"|.+\.(teachers|sources)\.\w+"
)
"""Settings that are text: on a command line they stand as they are, because YAML reads 007 as 7 and # as a comment."""
PRESETS = Path(__file__).parents[1] / "presets"


class ConfigError(MtlpruneError):
    """A configuration that cannot be used; the message names file and key, what was expected and what was found."""


def tree_of(source: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Keys and values of a YAML file (or of a preset's name), overrides laid over them. Raises ConfigError."""
    tree = read_tree(find_config(source))
    for override in overrides:
        apply_override(tree, override)
    return tree


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
        f"expected a file or a preset, found neither of the name {str(source)!r}{nearest(str(source), names)}; the "
        f"presets are {', '.join(names)}"
    )


def read_tree(path: Path, paths_read: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The keys and values of a file, laid over those of its base. Raises ConfigError."""
    if path.resolve() in [path_read.resolve() for path_read in paths_read]:
        raise ConfigError(
            f"{path}: expected files whose `base` leads to a file without a base, found a circle: "
            f"{' → '.join(map(str, [*paths_read, path]))}"
        )
    tree = read_yaml(path, ConfigError)
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected keys and values, found {in_words(tree)}")
    if "grid" in tree or "cells" in tree:
        raise ConfigError(f"{path} expected the file of one run, found that of a sweep; run `{command('sweep', path)}`")
    base = tree.pop("base", None)
    if base is None:
        return tree
    base_path = path.parent / str(base)
    return merged(read_tree(base_path if base_path.is_file() else find_config(str(base)), (*paths_read, path)), tree)


def merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Both, block by block; where both have a value, that of ``over``."""
    merged_tree = dict(under)
    for key, value in over.items():
        old = merged_tree.get(key)
        merged_tree[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged_tree


def apply_override(tree: dict[str, Any], override: str) -> None:
    """Set ``key.path=value`` in a tree. Raises ConfigError."""
    path, sign, text = override.partition("=")
    if not sign or not path:
        raise ConfigError(
            f"expected key.path=value, found {override!r}; write several values of one option as one word with commas "
            "(--tasks pos,dep)"
        )
    as_written = TEXTS.fullmatch(path) and not re.fullmatch(r"(['\"]).*\1|null|~|", text)
    with reading(f"{override[:60]} on the command line", ConfigError):
        value = text if as_written else parse_yaml(text)
    if isinstance(value, str) and value == text.strip() and not as_written:  # not in quotes
        value = _number(value)
    *blocks, last = path.split(".")
    for block in blocks:
        inner = tree.setdefault(block, {})
        if block == "pruning" and isinstance(inner, str):  # pruning=gates pruning.keep=36
            inner = tree[block] = {"method": inner}
        if not isinstance(inner, dict):
            raise ConfigError(
                f"{override!r}: {block} is a single value and has no keys; correct the name of the setting"
            )
        tree = inner
    tree[last] = value


def _number(text: str) -> str | float:
    """YAML 1.1 reads 1e-4 as text; people mean the number. Digits are 0 to 9, as in YAML; float takes others."""
    try:
        return float(text) if text.isascii() else text
    except ValueError:
        return text


def nearest(word: str, candidates: Iterable[str]) -> str:
    """A hint at the known word most like this one, if any is."""
    matches = difflib.get_close_matches(word, list(candidates), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
