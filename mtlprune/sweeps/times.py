"""Times of cells: as long as finished cells of their kind took, or a rough figure by arithmetic; memory and disk.

A time is that of a cell in a process that has loaded its libraries, as a worker does once for many cells: loading,
training with the scores of dev, and other scores.

Cells are of one kind whose configurations differ in seeds, rates and the runs they make use of only.
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
from mtlprune.sweeps.cells import REFERENCES, Cell, digest
from mtlprune.sweeps.folder import State

_WITHOUT_COST = {
    "train": ("seed", "encoder_rate", "decoder_rate", "weight_decay", "warmup", "schedule", "clip"),
    "pruning": ("strength", "rate", "multiplier_rate", "temperature", "anneal_from"),
}
"""Block → settings that change what is learnt, not how long that takes."""
_PLACEHOLDER_RUN = "another run"
FP32, BF16, GPU = 5e10, 1.65e11, 1e13
"""Operations a second: of one core with AVX2 in fp32, and of one that multiplies bf16, measured on MiniLM; assumed of a
GPU."""
PIECES = 18
"""Sub-words a sentence, as in OntoNotes and EWT."""
DECODER = 1e8
"""Operations of a decoder on a sentence, on MiniLM's words; in proportion to the encoder's width on others."""
START, NEXT, WARMING = 6.0, 1.0, 6.0
"""Seconds until a process has loaded its libraries; until it has loaded the encoder or run of a cell; and that the
first updates take longer than later ones."""
_DECODING = 0.27
"""Time of decoding one task, as a share of the encoder's forward pass (results/speed/bench.json: 2.35 with 5 tasks)."""
_DEV_SHARE = 1 / 8
"""Sentences of dev for each of train, of a corpus that is not there."""


def kind_of(cell: Cell) -> str:
    """A digest that is the same for cells that cost the same."""
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
    """By arithmetic alone, as none of its kind is trained."""


def expected_times(cells: Iterable[Cell], states_by_name: Mapping[str, State]) -> dict[str, Expected | None]:
    """Name of each cell that is not trained → its time from its beginning to its end; None where neither a cell of its
    kind is trained, nor its data are known."""
    cell_list = list(cells)
    seconds_by_kind: dict[str, list[float]] = defaultdict(list)
    for cell in cell_list:
        if (seconds := states_by_name[cell.name].seconds) is not None:
            seconds_by_kind[kind_of(cell)].append(seconds)
    times: dict[str, Expected | None] = {}
    for cell in cell_list:
        if states_by_name[cell.name].trained:
            continue
        # The kind of a cell takes a while to find out, so it is only asked where times are known.
        if seconds_by_kind and (same_kind := seconds_by_kind.get(kind_of(cell))):
            times[cell.name] = Expected(
                statistics.mean(same_kind) + _overhead_seconds(cell.config, cell.evaluate), False
            )
        else:
            seconds = rough_seconds(cell.config, cell.evaluate)
            times[cell.name] = None if seconds is None else Expected(seconds, True)
    return times


# -- rough figures, by arithmetic alone --------------------------------------------------------------------------------


def core() -> float:
    """Operations a second of one core of this machine, in the precision that runs choose here."""
    return BF16 if fast_in_bf16() else FP32


class Shape(NamedTuple):
    """The size of an encoder."""

    layers: int
    width: int
    vocabulary: int

    @property
    def weights(self) -> int:
        return 12 * self.layers * self.width**2 + self.vocabulary * self.width


MINILM, BASE = Shape(6, 384, 30_522), Shape(12, 768, 30_522)


def shape_of(name: str) -> Shape:
    """The size of an encoder that is at hand; of a name on the hub, which is not asked, that of BERT-base."""
    file = Path(name) / "config.json"
    tree = read_json(file) if file.is_file() else {}
    sizes = [n for key in ("num_hidden_layers", "hidden_size", "vocab_size") if isinstance(n := tree.get(key), int)]
    if len(sizes) == 3:
        return Shape(*sizes)
    return MINILM if name == "minilm" else BASE


def forward_operations(config: Config) -> float:
    """Operations of the encoder on a sentence: 2 a weight and sub-word."""
    shape = shape_of(config.encoder.name)
    return 2 * 12 * shape.layers * shape.width**2 * PIECES if config.encoder.context else 0


def scoring_operations(config: Config, sentences: float) -> float:
    """Operations of annotating so many sentences with all tasks."""
    return sentences * forward_operations(config) * (1 + _DECODING * len(config.tasks))


def _only_selects(config: Config) -> bool:
    """True where heads are chosen in one pass, and nothing is learnt."""
    return len(config.train.freeze) == 2 and not config.pruning.moves


def _rough_operations(config: Config, sentences: int) -> float:
    """Operations of a run on so many training sentences: those of the encoder forward, twice as many backward."""
    shape, train = shape_of(config.encoder.name), config.train
    sentences = min(sentences, config.data.train_sentences or sentences)
    if _only_selects(config):
        sentences, passes = min(sentences, config.pruning.importance_sentences), 1
    else:
        passes = train.epochs * (len(config.tasks) if train.mixing == "sampled" else 1)
    encoder = 3 * forward_operations(config)
    decoders = DECODER * shape.width / MINILM.width * (1 if train.mixing == "sampled" else len(config.tasks))
    return sentences * passes * (encoder + decoders)


def rough_memory(config: Config) -> float:
    """Bytes: weights, gradients and two moments in float32, and 1.2 GB for libraries and a batch."""
    return 16 * shape_of(config.encoder.name).weights + 1.2e9


class Absent(NamedTuple):
    """A corpus that is not built yet."""

    source: str
    sentences: int
    """Of its training split."""


_ABSENT = {
    "ontonotes5": Absent("LDC2013T19", 75_187),
    "ewt5": Absent("the English Web Treebank", 12_543),
}
"""Name of a corpus's folder → where it comes from."""


def data_missing(path: Path) -> str:
    """A sentence on a corpus missing at a path: its source, and the command that builds it; "" where it is there."""
    if (path / INFO).is_file():
        return ""
    if path.exists():
        return f"data missing: {path} exists, but it is not a corpus that `mtlprune data build` made; check data.path"
    source = _ABSENT[path.name].source if path.name in _ABSENT else path
    return f"data missing: {source}; build the corpus with {how_to_build(path)}"


def training_sentences(config: Config) -> int | None:
    """The number of training sentences in a run's corpus; None of one that is neither built nor in ``_ABSENT``."""
    path = Path(config.data.path)
    if not (path / INFO).is_file():
        return _ABSENT[path.name].sentences if path.name in _ABSENT else None
    return sentences_in(path, config.data.train)


def sentences_in(path: Path, split: str) -> int:
    """The number of sentences in a split of a corpus; 0 where either is not there."""
    number: int = read_info(path)["splits"].get(split, {"sentences": 0})["sentences"] if (path / INFO).is_file() else 0
    return number


def rough_seconds(config: Config, splits: Iterable[str] = ()) -> float | None:
    """Seconds of a cell on one core by arithmetic; None on data that are not known. ``splits``: those that the run
    is scored on in the end."""
    if (sentences := training_sentences(config)) is None:
        return None
    dev = sentences_in(Path(config.data.path), config.data.dev) or sentences * _DEV_SHARE
    dev = min(dev, config.data.dev_sentences or dev) * (1 if _only_selects(config) else config.train.epochs)
    operations = _rough_operations(config, sentences) + scoring_operations(config, dev)
    warming = 0.0 if _only_selects(config) or not config.encoder.context else WARMING
    return operations / core() + warming + _overhead_seconds(config, splits)


def _overhead_seconds(config: Config, splits: Iterable[str]) -> float:
    """Seconds before and after a training: the model is loaded, and further splits are scored."""
    scored = sum(sentences_in(Path(config.data.path), split) for split in splits)
    return NEXT + scoring_operations(config, scored) / core()
