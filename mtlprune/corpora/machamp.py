"""Read MaChAmp's dataset configurations, and write predictions into files with columns.

A configuration names the files of each data set, the column with the words, and the columns with the labels of each
task. Example:

splits, mixed, about = build_machamp(Path("configs/ewt.json"), repair=False, tell=print)
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeGuard

from mtlprune.corpora import CorpusError
from mtlprune.corpora.build import Splits, merge, read_files, with_unique_ids
from mtlprune.corpora.formats import Tell, join_row, read_lines
from mtlprune.corpora.formats.brackets import stars_from_spans
from mtlprune.corpora.formats.columns import (
    ALL_FURTHER,
    SKIP,
    WORD,
    ColumnTable,
    FileColumn,
    parse_columns,
    read_columns,
)
from mtlprune.corpora.formats.iob2 import iob2_from_spans
from mtlprune.corpora.formats.rows import WORDS, parse_row_columns, read_rows
from mtlprune.io.files import reading
from mtlprune.io.strict import parse_json
from mtlprune.layers import LayerError, check_layer
from mtlprune.sentence import Sentence

_WORD_KINDS = {"seq": "tags", "seq_bio": "spans", "dependency": "tree"}
"""MaChAmp's type of a task over words → the kind of its layer."""
_TEXT_KINDS = {"classification": "label", "regression": "number", "multiclas": "labels"}
"""MaChAmp's type of a task over whole texts → the kind of its layer."""
_PATHS = {"train": "train_data_path", "dev": "dev_data_path", "test": "test_data_path"}
_OLD_NAMES = {"validation_data_path": "dev_data_path"}
"""Names of settings before MaChAmp 0.3 → their present names."""
_READ_SETTINGS = {*_PATHS.values(), "word_idx", "sent_idxs", "skip_first_line", "tasks"}
"""Settings of a data set that are read."""
_MOST_COLUMNS = 1000
_UNDERSCORE = "__"
"""The tag of words whose cell is ``_``. MaChAmp reads ``_`` as a label, but in our columns it means unknown."""


class _Dataset(NamedTuple):
    """A data set of a configuration.

    Attributes:
        name: its name in the configuration.
        paths: name of the split → path as in the configuration.
        columns: the contents of the columns, in the notation of ``--columns``.
        header: None if the rows are words; if the rows are texts, whether the first row names the columns.
    """

    name: str
    paths: dict[str, str]
    columns: str
    header: bool | None = None


def build_machamp(config: Path, repair: bool, tell: Tell) -> tuple[Splits, Collection[str], dict[str, Any]]:
    """Read every data set of a configuration, and join sentences of several data sets with the same words.

    Args:
        config: MaChAmp's JSON file, which may contain comment lines. Its paths are relative to the working folder, to
            the folder of the configuration, or to the parent of that folder; the first existing file is read.
        repair: whether a tag that continues no span opens one, as in conlleval.
        tell: receives the columns of each data set, and what is left out.

    Returns:
        the sentences of each split, the layers whose tag sets differ between data sets, and the record ``sources`` of
        paths with checksums.

    Raises:
        CorpusError: the configuration is missing or malformed, no data set can be read, or a file is malformed.
    """
    corpora: dict[str, Splits] = {}
    sources: dict[str, str] = {}
    for dataset in _read_config(config, tell):
        paths = {split: [str(_located(config, path))] for split, path in dataset.paths.items()}
        corpora[dataset.name], record = read_files((), paths, _reader(dataset, repair, tell), tell)
        sources |= record["sources"]
    if len(corpora) == 1:
        return next(iter(corpora.values())), (), {"sources": sources}
    splits, mixed = merge(corpora, tell)
    return with_unique_ids(splits, tell), mixed, {"sources": sources}


def _reader(dataset: _Dataset, repair: bool, tell: Tell) -> Callable[[Path], Iterable[Sentence]]:
    """Return the function that reads a file of a data set."""
    if dataset.header is not None:
        texts = parse_row_columns(dataset.columns)
        return lambda path: read_rows(path, texts, has_header=False, skip_first=bool(dataset.header))
    columns = parse_columns(dataset.columns)
    return lambda path: read_columns(path, columns, repair, tell, unlabelled=_UNDERSCORE)


def _read_config(config: Path, tell: Tell) -> list[_Dataset]:
    """Return the data sets of a configuration that can be read.

    Raises CorpusError if the configuration is missing or malformed, or contains no such data set.
    """
    text = "\n".join(re.sub(r"^\s*//.*", "", line.text) for line in read_lines(config))
    with reading(config, CorpusError, "expected MaChAmp's dataset configuration"):
        tree = parse_json(text)
    if not isinstance(tree, dict) or not all(isinstance(settings, dict) for settings in tree.values()):
        raise CorpusError(
            f"{config}: expected data sets by name, each with its settings, as MaChAmp's configurations have"
        )
    datasets = [dataset for name, settings in tree.items() if (dataset := _dataset(config, name, settings, tell))]
    if not datasets:
        problem = f"a data set with word_idx and tasks of {', '.join(_WORD_KINDS)}, or sent_idxs and tasks of "
        raise CorpusError(f"{config}: expected {problem}{', '.join(_TEXT_KINDS)}; found none")
    return datasets


def _dataset(config: Path, name: str, settings: Mapping[str, Any], tell: Tell) -> _Dataset | None:
    """Return a data set, or None after a message to ``tell`` if nothing in it can be read.

    Raises:
        CorpusError: an index of a column is too large, or two tasks share a column.
    """
    settings = {
        (key if _OLD_NAMES.get(key, key) in settings else _OLD_NAMES.get(key, key)): settings[key] for key in settings
    }
    left_out = [key for key in settings if key not in _READ_SETTINGS]
    tasks = settings.get("tasks")
    if "sent_idxs" in settings and isinstance(tasks, dict):
        return _text_dataset(config, name, settings, left_out, tell)
    if not _is_index(word := settings.get("word_idx")) or not isinstance(tasks, dict):
        tell(f"{name} was left out, because it has no word_idx or sent_idxs with tasks")
        return None
    columns = {word: WORD}
    for task, task_config in tasks.items():
        task_config = task_config if isinstance(task_config, dict) else {}
        kind, index = _WORD_KINDS.get(str(task_config.get("task_type"))), task_config.get("column_idx")
        if kind is None or not _is_index(index):
            left_out.append(f"{task} ({task_config.get('task_type')})")
            continue
        for offset, text in enumerate(("head", "relation") if kind == "tree" else (_layer(config, task, kind),)):
            if (text_there := columns.setdefault(index + offset, text)) != text:
                raise CorpusError(
                    f"{config}: {name}, {task}: column {index + offset} is already {text_there}; give the column one "
                    "task"
                )
    if left_out:
        tell(f"{name}: left out: {', '.join(left_out)}")
    if len(columns) == 1:
        return None
    if max(columns) >= _MOST_COLUMNS:
        problem = f"expected word_idx and column_idx below {_MOST_COLUMNS}, found {str(max(columns))[:20]}"
        raise CorpusError(f"{config}: {name}: {problem}; correct it")
    texts = [columns.get(index, SKIP) for index in range(max(columns) + 1)]
    tell(f"{name}: the columns are {','.join([*texts, ALL_FURTHER])}")
    paths = {split: str(settings[key]) for split, key in _PATHS.items() if key in settings}
    return _Dataset(name, paths, ",".join([*texts, ALL_FURTHER]))


def _text_dataset(
    config: Path, name: str, settings: Mapping[str, Any], left_out: list[str], tell: Tell
) -> _Dataset | None:
    """Return a data set with one text or a pair of texts per row, or None if none of its tasks can be read.

    Raises:
        CorpusError: ``sent_idxs`` is neither one column nor two.
    """
    indices = [settings["sent_idxs"]] if isinstance(settings["sent_idxs"], int) else settings["sent_idxs"]
    if not isinstance(indices, list) or len(indices) not in (1, 2) or not all(map(_is_index, indices)):
        raise CorpusError(
            f"{config}: {name}: expected sent_idxs of one column or two, such as [0, 1], found {indices!r}"
        )
    columns = {index: WORDS for index in indices}
    for task, task_config in settings["tasks"].items():
        task_config = task_config if isinstance(task_config, dict) else {}
        kind, index = _TEXT_KINDS.get(str(task_config.get("task_type"))), task_config.get("column_idx")
        if kind is None or not _is_index(index) or index in columns:
            left_out.append(f"{task} ({task_config.get('task_type')})")
        else:
            columns[index] = _layer(config, task, kind)
    if left_out:
        tell(f"{name}: left out: {', '.join(left_out)}")
    if len(columns) == len(indices):
        return None
    text = ",".join(f"{index}={layer}" for index, layer in columns.items())
    tell(f"{name}: the columns, from 0, are {text}")
    paths = {split: str(settings[key]) for split, key in _PATHS.items() if key in settings}
    return _Dataset(name, paths, text, bool(settings.get("skip_first_line")))


def _is_index(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and value >= 0


def _layer(config: Path, task: str, kind: str) -> str:
    try:
        check_layer(task, kind)
    except LayerError as error:
        raise CorpusError(f"{config}: {task}: {error}; rename the task") from None
    return f"{task}:{kind}"


def _located(config: Path, path: str) -> str:
    folder = config.resolve().parent
    candidates = (base / path for base in (Path(), folder, folder.parent))
    return str(next((candidate for candidate in candidates if candidate.is_file()), path))


# -- Predictions in columns --------------------------------------------------------------------------------------------


class ColumnFile:
    """A file with columns, which is read for its words and then copied with predictions in some columns."""

    def __init__(self, path: Path, columns: str, layers: Collection[str]) -> None:
        """Open the file, and select the columns to predict.

        Args:
            columns: the contents of the columns, in the notation of ``--columns``.
            layers: the layers that the run predicts. Their columns are replaced, except columns of semantic roles.

        Raises:
            CorpusError: no column belongs to one of the layers.
        """
        self._path, self._columns = path, parse_columns(columns)
        parts = {"head": "dep", "relation": "dep"}
        self._predicted_columns = {
            index: column
            for index, column in enumerate(self._columns)
            if parts.get(column.name, column.name) in layers and column.kind != "frames"
        }
        self.layers = {parts.get(column.name, column.name) for column in self._predicted_columns.values()}
        if not self.layers:
            raise CorpusError(
                f"--columns: expected a column of {', '.join(layers)}, which the run predicts, found none"
            )
        self._table = ColumnTable(path, self._columns)
        self._rows = self._table.sentences(None)
        self._lines = read_lines(path)

    def sentences(self) -> Iterator[tuple[int, Sentence]]:
        """Yield each sentence without its layers, with the number of its first line."""
        word = next(index for index, column in enumerate(self._columns) if column.name == WORD)
        for name, lines, cells in self._table.sentences(None):
            yield lines[0].number, Sentence(name, tuple(row[word] for row in cells)).validate()

    def write(self, sentences: Iterable[Sentence], stream: TextIO) -> None:
        """Copy the lines up to the end of the last of these sentences to ``stream``, with the predicted cells.

        Calls must pass the sentences in the order of the file.
        """
        for sentence in sentences:
            _, rows, cells = next(self._rows)
            values = {index: _cells(sentence, column) for index, column in self._predicted_columns.items()}
            texts = {}
            for word, (line, row) in enumerate(zip(rows, cells, strict=True)):
                new = {index: tags[word] for index, tags in values.items()}
                new_cells = [new.get(index, cell) for index, cell in enumerate(row)]
                texts[line.number] = join_row(new_cells, self._table.separator)
            for line in self._lines:
                stream.write(texts.get(line.number, line.text) + "\n")
                if line.number == rows[-1].number:
                    break

    def finish(self, stream: TextIO) -> None:
        """Copy the lines after the last sentence."""
        stream.write("\n".join(line.text for line in self._lines))


def _cells(sentence: Sentence, column: FileColumn) -> Sequence[str]:
    """Return one cell per word, which is ``_`` if the layer is unknown."""
    value = sentence.get("dep" if column.name in ("head", "relation") else column.name)
    if value is None:
        return ["_"] * len(sentence)
    if column.name in ("head", "relation"):
        return list(map(str, value.heads)) if column.name == "head" else value.relations
    if column.kind == "tags":
        return ["_" if tag == _UNDERSCORE else tag for tag in value]
    return (iob2_from_spans if column.kind == "spans" else stars_from_spans)(value, len(sentence))
