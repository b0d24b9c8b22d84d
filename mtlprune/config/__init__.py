"""Configurations as plain trees: reads YAML files and their bases, and applies overrides of the command line.

mtlprune.config.config checks the resulting trees. No module of this package imports torch.
"""

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
"""Paths of settings that are text. On the command line their values are not parsed as YAML, which reads 007 as 7 and #
as a comment."""
PRESETS = Path(__file__).parents[1] / "presets"


class ConfigError(MtlpruneError):
    """A configuration is invalid. The message names file and key, what was expected and what was found."""


def tree_of(source: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read the tree of a YAML file or preset and apply overrides. Raises ConfigError."""
    tree = read_tree(find_config(source))
    for override in overrides:
        apply_override(tree, override)
    return tree


def rates_remark(source: str | Path, overrides: Sequence[str]) -> str:
    """Return a remark if overrides replace the encoder of a preset but not its learning rates; otherwise "".

    The rates of a preset were tuned for its encoder. Rates that are too high for another encoder can lower the scores
    of joint training more than those of single tasks, and so look like an effect of joint training.
    """
    if Path(source).is_file():
        return ""
    before, after = tree_of(source), tree_of(source, overrides)
    encoder = before.get("encoder", {}).get("name")
    rates = [tree.get("train", {}).get("encoder_rate") for tree in (before, after)]
    if after.get("encoder", {}).get("name") == encoder or rates[0] != rates[1]:
        return ""
    return (
        f"the learning rates of {source} are those for {encoder}; another encoder may need other rates, such as "
        "train.encoder_rate=5e-5 for one of the size of BERT base"
    )


def find_config(source: str | Path) -> Path:
    """Return the path of a configuration file or of the preset of this name. Raises ConfigError if there is neither."""
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
    """Read the tree of a file, merged over the tree of its ``base``.

    Args:
        paths_read: files whose bases led to this file, which serve to detect cycles.

    Raises:
        ConfigError: a file is missing or invalid, belongs to a sweep, or has a base that leads back to it.
    """
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
    """Merge two configuration trees block by block; where both set a value, ``over`` wins."""
    merged_tree = dict(under)
    for key, value in over.items():
        old = merged_tree.get(key)
        merged_tree[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged_tree


def apply_override(tree: dict[str, Any], override: str) -> None:
    """Apply an override ``key.path=value`` to a tree in place. Raises ConfigError if it is malformed."""
    path, sign, text = override.partition("=")
    if not sign or not path:
        raise ConfigError(
            f"expected key.path=value, found {override!r}; write several values of one option as one word with commas "
            "(--tasks pos,dep)"
        )
    as_written = TEXTS.fullmatch(path) and not re.fullmatch(r"(['\"]).*\1|null|~|", text)
    with reading(f"{override[:60]} on the command line", ConfigError):
        value = text if as_written else parse_yaml(text)
    # A value that equals its text was not in quotes, so it may be a number that YAML does not recognise.
    if isinstance(value, str) and value == text.strip() and not as_written:
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
    """Convert text such as 1e-4, which YAML 1.1 does not read as a number, to a number if possible.

    Only ASCII digits count, as in YAML, although ``float`` accepts digits of other scripts.
    """
    try:
        return float(text) if text.isascii() else text
    except ValueError:
        return text


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return a hint such as " (did you mean 'pos'?)" at the most similar candidate, or "" if none is similar."""
    matches = difflib.get_close_matches(word, list(candidates), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
