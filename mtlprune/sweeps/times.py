"""Estimates of the time and memory that the cells of a sweep need, for `--dry-run` and the progress of a sweep.

The time of a cell is the mean time of finished cells of the same kind. Without such cells it is an estimate from
operation counts, multiplied by the ratio of measured to estimated time of the finished cells of other kinds. Cells are
of the same kind if their configurations differ only in seeds, rates and the runs that they use.

A time includes loading the model, training with the evaluations on dev, and scoring other splits. It does not include
importing libraries, which a worker process does only once for many cells.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from mtlprune.config.config import Config
from mtlprune.corpora.store import INFO, how_to_build, read_info
from mtlprune.io.files import read_json
from mtlprune.io.processor import fast_in_bf16
from mtlprune.runs.settings import REFERENCES
from mtlprune.sweeps.cells import Cell, digest
from mtlprune.sweeps.folder import State

_WITHOUT_COST = {
    "train": ("seed", "encoder_rate", "decoder_rate", "weight_decay", "warmup", "schedule", "clip"),
    "pruning": ("strength", "rate", "multiplier_rate", "temperature", "anneal_from"),
}
"""Block → settings that change what is learnt, but not how long training takes."""
_PLACEHOLDER_RUN = "another run"
FP32, BF16, GPU = 5e10, 1.65e11, 1e13
"""Operations per second: of one core with AVX2 in fp32 and of one core with bf16 instructions (both measured on
MiniLM), and of a GPU (assumed)."""
_PIECES = 18
"""Sub-words per sentence, as in OntoNotes and EWT."""
_DECODER = 1e8
"""Operations of a decoder per sentence, for MiniLM. For other encoders they are scaled by the width of the encoder."""
START, NEXT, _WARMING = 6.0, 1.0, 6.0
"""Seconds for importing libraries; seconds for loading the encoder or run of a cell; and additional seconds because the
first updates are slower than later ones."""
_DECODING = 0.27
"""Time of decoding one task, as a share of the encoder's forward pass. Annotation with 5 tasks takes 2.35 times as long
as the forward pass alone (results/speed/bench.json), and (2.35 − 1) / 5 = 0.27."""
_DEV_SHARE = 1 / 8
"""Assumed ratio of dev to training sentences for a corpus that has not been built."""


def kind_of(cell: Cell) -> str:
    """Return a digest that is the same for cells of the same kind, which are expected to take the same time."""
    config, runs = cell.config, {f"treatment.{key}": _PLACEHOLDER_RUN for key in cell.config.treatment.runs}
    for setting in REFERENCES:
        block, _, key = setting.partition(".")
        if getattr(getattr(config, block), key) is not None:
            runs[setting] = _PLACEHOLDER_RUN
    for name, keys in _WITHOUT_COST.items():
        block = getattr(config, name)
        defaults = {key: type(block).model_fields[key].default for key in keys}
        config = config.model_copy(update={name: block.model_copy(update=defaults)})
    return digest(config, config.data.path, runs)


class Expected(NamedTuple):
    """The time that a run is expected to take."""

    seconds: float
    rough: bool
    """True if the time is estimated from operation counts, because no run of this kind has been trained."""


def expected_times(cells: Iterable[Cell], states_by_name: Mapping[str, State]) -> dict[str, Expected | None]:
    """Estimate the total time of every cell that is not trained yet.

    Returns:
        Name of a cell → time, or None if no cell of its kind is trained and the size of its corpus is unknown.
    """
    cell_list = list(cells)
    seconds_by_kind: dict[str, list[float]] = defaultdict(list)
    measured = estimated = 0.0
    for cell in cell_list:
        if (seconds := states_by_name[cell.name].seconds) is not None:
            seconds_by_kind[kind_of(cell)].append(seconds)
            if (rough := rough_seconds(cell.config)) is not None:
                measured, estimated = measured + seconds, estimated + rough
    slowness = measured / estimated if estimated else 1.0
    times: dict[str, Expected | None] = {}
    for cell in cell_list:
        if states_by_name[cell.name].trained:
            continue
        # Computing the kind of a cell takes a while, so we do it only if the time of some cell is known.
        if seconds_by_kind and (same_kind := seconds_by_kind.get(kind_of(cell))):
            times[cell.name] = Expected(
                statistics.mean(same_kind) + _overhead_seconds(cell.config, cell.evaluate), False
            )
        else:
            rough = rough_seconds(cell.config, cell.evaluate)
            times[cell.name] = None if rough is None else Expected(rough * slowness, True)
    return times


# -- estimates from operation counts -----------------------------------------------------------------------------------


def core() -> float:
    """Return the assumed operations per second of one core of this machine, in the precision that runs use here."""
    return BF16 if fast_in_bf16() else FP32


class Shape(NamedTuple):
    """The size of an encoder."""

    layers: int
    width: int
    vocabulary: int

    @property
    def weights(self) -> int:
        """Number of weights: 12 · width² per layer, and the embeddings."""
        return 12 * self.layers * self.width**2 + self.vocabulary * self.width


_MINILM, _BASE = Shape(6, 384, 30_522), Shape(12, 768, 30_522)


def shape_of(name: str) -> Shape:
    """Return the size of MiniLM or of an encoder in a local folder; for other names, the size of BERT-base is assumed,
    because the Hugging Face Hub is not queried."""
    file = Path(name) / "config.json"
    tree = read_json(file) if file.is_file() else {}
    sizes = [n for key in ("num_hidden_layers", "hidden_size", "vocab_size") if isinstance(n := tree.get(key), int)]
    if len(sizes) == 3:
        return Shape(*sizes)
    return _MINILM if name == "minilm" else _BASE


def forward_operations(config: Config) -> float:
    """Return the operations of the encoder's forward pass on a sentence: 2 per weight and sub-word."""
    shape = shape_of(config.encoder.name)
    return 2 * 12 * shape.layers * shape.width**2 * _PIECES if config.encoder.context else 0


def scoring_operations(config: Config, sentences: float) -> float:
    """Return the operations for annotating a number of sentences with all tasks."""
    return sentences * forward_operations(config) * (1 + _DECODING * len(config.tasks))


def _only_selects(config: Config) -> bool:
    """Return True if a run only selects heads in one pass over the data, without training anything."""
    return len(config.train.freeze) == 2 and not config.pruning.moves


def _rough_operations(config: Config, sentences: int) -> float:
    """Return the operations of training on a corpus with a number of training sentences.

    The backward pass counts as twice the forward pass.
    """
    shape, train = shape_of(config.encoder.name), config.train
    sentences = min(sentences, config.data.train_sentences or sentences)
    if _only_selects(config):
        sentences, passes = min(sentences, config.pruning.importance_sentences), 1
    else:
        passes = train.epochs * (len(config.tasks) if train.mixing == "sampled" else 1)
    encoder = 3 * forward_operations(config)
    decoders = _DECODER * shape.width / _MINILM.width * (1 if train.mixing == "sampled" else len(config.tasks))
    return sentences * passes * (encoder + decoders)


def rough_memory(config: Config) -> float:
    """Estimate the memory of a run in bytes: weights, gradients and Adam's two moments in float32, and 2 GB for
    libraries, compiled kernels and a batch (results/speed/training.md, "Peak memory of training")."""
    return 16 * shape_of(config.encoder.name).weights + 2.0e9


class _Absent(NamedTuple):
    """A corpus that is known but not built yet."""

    source: str
    sentences: int
    """Number of training sentences."""


_ABSENT = {
    "ontonotes5": _Absent("LDC2013T19", 75_187),
    "ewt5": _Absent("the English Web Treebank", 12_543),
}
"""Folder name of a corpus → its source and size."""


def data_missing(path: Path) -> str:
    """Return a note that a corpus is missing, with its source and the command that builds it; "" if it exists."""
    if (path / INFO).is_file():
        return ""
    if path.exists():
        return f"data missing: {path} exists, but it is not a corpus that `mtlprune data build` made; check data.path"
    source = _ABSENT[path.name].source if path.name in _ABSENT else path
    return f"data missing: {source}; build the corpus with {how_to_build(path)}"


def training_sentences(config: Config) -> int | None:
    """Return the number of training sentences in a run's corpus; None if it is neither built nor in ``_ABSENT``."""
    path = Path(config.data.path)
    if not (path / INFO).is_file():
        return _ABSENT[path.name].sentences if path.name in _ABSENT else None
    return sentences_in(path, config.data.train)


def sentences_in(path: Path, split: str) -> int:
    """Return the number of sentences in a split of a corpus; 0 if the corpus or the split does not exist."""
    number: int = read_info(path)["splits"].get(split, {"sentences": 0})["sentences"] if (path / INFO).is_file() else 0
    return number


def rough_seconds(config: Config, splits: Iterable[str] = ()) -> float | None:
    """Estimate the seconds of a run on one core from operation counts; None if the size of the corpus is unknown.

    Args:
        splits: splits on which the finished run is scored.
    """
    if (sentences := training_sentences(config)) is None:
        return None
    dev = sentences_in(Path(config.data.path), config.data.dev) or sentences * _DEV_SHARE
    dev = min(dev, config.data.dev_sentences or dev) * (1 if _only_selects(config) else config.train.epochs)
    operations = _rough_operations(config, sentences) + scoring_operations(config, dev)
    warming = 0.0 if _only_selects(config) or not config.encoder.context else _WARMING
    return operations / core() + warming + _overhead_seconds(config, splits)


def _overhead_seconds(config: Config, splits: Iterable[str]) -> float:
    """Estimate the seconds for loading the model before training and scoring splits after it."""
    scored = sum(sentences_in(Path(config.data.path), split) for split in splits)
    return NEXT + scoring_operations(config, scored) / core()
