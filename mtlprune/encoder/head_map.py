"""Which heads a model still has, in the numbering of the model it was cut from: the file ``heads.json``."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from mtlprune.encoder.pieces import EncoderError
from mtlprune.files import read_json, write_text

FILE = "heads.json"
FORMAT = 1


@dataclass(frozen=True)
class KeptHeads:
    """The heads of a model from which some were removed.

    Attributes:
        family: the model type, as transformers names it.
        heads: A, heads a layer had before any was removed.
        kept: for each layer the original numbers of the heads it still has, rising, as they lie there.
        layer_gates: the model carries gates that could not be folded into weights, because layers share them (ALBERT).
    """

    family: str
    heads: int
    kept: tuple[tuple[int, ...], ...]
    layer_gates: bool = False

    @property
    def count(self) -> int:
        """Heads kept, over all layers."""
        return sum(map(len, self.kept))

    def text(self) -> str:
        """The file's content."""
        record = {"format": FORMAT, **asdict(self)}
        rows = ",\n  ".join(json.dumps(row) for row in record.pop("kept"))
        head = json.dumps(record, indent=1)[:-2]
        return f'{head},\n "kept": [\n  {rows}\n ]\n}}\n'

    def write(self, folder: str | Path) -> None:
        """Put the file into a folder that holds the model."""
        write_text(Path(folder) / FILE, self.text())

    @classmethod
    def read(cls, folder: str | Path) -> "KeptHeads":
        """The file of a folder.

        Raises:
            EncoderError: there is none, or it is damaged; file, what was expected, what was found.
        """
        path = Path(folder) / FILE
        if not path.exists():
            raise EncoderError(
                f"{path} is missing: expected a folder with a model from which heads were removed; a model that has "
                "all its heads is loaded with transformers alone"
            )
        return cls._parse(read_json(path, EncoderError, "take it from where the model was saved"), path)

    @classmethod
    def _parse(cls, record: Any, path: Path) -> "KeptHeads":
        known = {"format": int, "family": str, "heads": int, "kept": list, "layer_gates": bool}
        if not isinstance(record, dict) or any(type(record.get(key)) is not kind for key, kind in known.items()):
            raise EncoderError(f"{path}: expected a head map with {', '.join(known)}, found {_short(record)}")
        if record["format"] != FORMAT:
            raise EncoderError(
                f"{path}: expected format {FORMAT}, found {record['format']}; it was written by another version of "
                "mtlprune, so use that one"
            )
        heads, kept = record["heads"], record["kept"]
        for layer, row in enumerate(kept):
            whole = isinstance(row, list) and all(type(head) is int and 0 <= head < heads for head in row)
            if not whole or row != sorted(set(row)):
                raise EncoderError(
                    f"{path}: expected different heads from 0 to {heads - 1}, rising, in layer {layer}, found "
                    f"{_short(row)}"
                )
        return cls(record["family"], heads, tuple(map(tuple, kept)), record["layer_gates"])

    @classmethod
    def find(cls, folder: str | Path) -> "KeptHeads | None":
        """The file of a folder, or None where no such folder has one. Raises EncoderError where it is damaged."""
        return cls.read(folder) if (Path(folder) / FILE).is_file() else None

    def check(self, config: PreTrainedConfig, where: str | Path) -> None:
        """Compare with a model's config.

        Raises:
            EncoderError: the map belongs to another model.
        """
        mine: Sequence[Any] = (self.family, len(self.kept), self.heads)
        theirs = (config.model_type, config.num_hidden_layers, config.num_attention_heads)
        if tuple(mine) != theirs:
            raise EncoderError(
                f"{Path(where) / FILE} does not fit the model: it is of a {mine[0]!r} with {mine[1]} layers of "
                f"{mine[2]} heads, but config.json there is of a {theirs[0]!r} with {theirs[1]} of {theirs[2]}; take "
                "both from where the model was saved"
            )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
