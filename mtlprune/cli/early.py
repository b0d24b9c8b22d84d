"""A wrong path of a corpus is said at once: before torch and all that needs it are loaded, which takes seconds."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtlprune.sweeps.sheet import Sheet


def check_corpora(*paths: Path | None) -> None:
    """Raises CorpusError where no corpus lies at a path that is given."""
    from mtlprune.corpora.store import check_there

    for path in paths:
        if path is not None:
            check_there(path)


def check_settings(source: str | Path, overrides: Sequence[str] = ()) -> None:
    """The same of the data.path (or data.corpora) that a configuration names; the rest is looked at later.

    Raises:
        ConfigError: the file or an override is not readable.
        CorpusError: no corpus there.
    """
    from mtlprune.config.files import tree_of

    check_tree(tree_of(source, overrides))


def check_tree(tree: Mapping[str, Any]) -> None:
    """The same of a configuration's keys and values."""
    data = tree.get("data")
    block = data if isinstance(data, Mapping) else {}
    named = block.get("corpora", block.get("path"))
    several = named.split(",") if isinstance(named, str) and "corpora" in block else named
    paths = several if isinstance(several, list) else [several]
    check_corpora(*(Path(path.strip()) for path in paths if isinstance(path, str)))


def check_run(run: Path, data: Path | None = None) -> None:
    """The same of a run's own corpus, or of ``data`` instead. Raises RunError too: no run, or a damaged one."""
    from mtlprune.corpora import CorpusError
    from mtlprune.runs import RunFolder

    folder = RunFolder.existing(run)
    folder.refuse_record("weights")
    tree = folder.read_config()
    try:
        check_tree(tree) if data is None else check_corpora(data)
    except CorpusError as error:
        raise CorpusError(f"{folder.path}: {error}") from None


def check_sweep(sheet: Sheet, overrides: Sequence[str] = ()) -> None:
    """The same of the first cell of a sweep."""
    from mtlprune.config.files import apply_override, find_config, merged, read_tree

    beside = sheet.path.parent / sheet.base
    tree = read_tree(beside if beside.is_file() else find_config(sheet.base))
    for recipe in itertools.islice(sheet.recipes(), 1):
        for layer in recipe.layers:
            tree = merged(tree, copy.deepcopy(layer))
    for override in overrides:
        apply_override(tree, override)
    check_tree(tree)
