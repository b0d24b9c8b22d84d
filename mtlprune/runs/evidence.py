"""The small files of a run, and their SHA-256 in its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from mtlprune.io.files import RunError, file_sha256, one_writer, read_json, verify_file, write_json, write_text
from mtlprune.runs import forms
from mtlprune.runs.study import packed_run

SELECTION = "selection.json"
"""What halves of the data selected, of a run with pruning.method: stable."""
TREATED = "treatment.json"
"""Which heads are treated, of a run with treatments of heads."""
EVIDENCE = (
    *("config.yaml", "best.json", "vocabulary.json", "metrics.jsonl", "curves.jsonl", "gates.jsonl", "uas.jsonl"),
    *(SELECTION, TREATED),
)
"""What claims, tables and pages read of a run beside its results; the manifest of a finished one has the SHA-256 of
all that exists of it, of the encoder's files and of results."""
RESULTS = {"predictions": "jsonl", "counts": "json", "scores": "json"}
"""Folder → how the names of its files end: of a split, in the order in which they are written."""
ANEW = "bring that file back, or train the run anew with another --out"


class Evidence:
    """A folder, or a run of a study, whose small files are those that were written.

    Args:
        path: the folder, which need not exist yet, or STUDY/NAME.

    Raises:
        RunError: the study is damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.packed = packed_run(self.path)
        """The run as its study has it; None of a run folder."""
        self.encoder_path, self.checkpoint_path = self.path / "encoder", self.path / "checkpoint.safetensors"
        names = "config.yaml", "metrics.jsonl", "gates.jsonl", "uas.jsonl"
        self.config_path, self.metrics_path, self.gates_path, self.uas_path = map(self.file, names)

    def __fspath__(self) -> str:
        return str(self.path)

    def file(self, name: str) -> Path:
        """Where a small file of the run can be read."""
        return self.path / name if self.packed is None else self.packed.file(name)

    def weights_path(self, epoch: int) -> Path:
        return self.path / "weights" / f"epoch-{epoch:03d}.safetensors"

    def read_json(self, name: str, schema: TypeAdapter[Any] | None = None) -> Any:
        """The content of a JSON file, which is of a schema. Raises RunError where it is missing or damaged."""
        path = self.file(name)
        if not path.exists():
            raise RunError(f"{path} is missing; is this run complete?")
        value = read_json(path)
        if schema is not None:
            forms.check(schema, value, path)
        return value

    def write_json(self, name: str, value: Any) -> None:
        write_json(self.path / name, value)

    def write_text(self, name: str, text: str) -> None:
        write_text(self.path / name, text)

    def read_manifest(self) -> dict[str, Any]:
        """How the run began, and how it ended. Raises RunError where the file is damaged."""
        manifest: dict[str, Any] = self.read_json("manifest.json", forms.MANIFEST)
        if "pruned" in manifest:
            forms.check_config(manifest["pruned"]["config"], self.file("manifest.json"))
        return manifest

    def known_hashes(self) -> dict[str, str]:
        """Name → SHA-256 of the files that the manifest names."""
        known: dict[str, str] = self.read_manifest().get("files", {}) if self.file("manifest.json").exists() else {}
        return known

    def hashes(self) -> dict[str, str]:
        """Name → SHA-256 of EVIDENCE, of the encoder's files and of results, as they are now."""
        results = (path for kind, ending in RESULTS.items() for path in sorted(self.path.glob(f"{kind}/*.{ending}")))
        paths = [*(self.path / name for name in EVIDENCE), *sorted(self.encoder_path.rglob("*")), *results]
        return {path.relative_to(self.path).as_posix(): file_sha256(path) for path in paths if path.is_file()}

    def write_end(self, **end: Any) -> None:
        """Write into the manifest how a run ended, and the SHA-256 of all that is read of it from now on."""
        with one_writer(self.path):
            manifest = self.read_manifest()
            begun = {name: sha256 for name, sha256 in manifest.get("files", {}).items() if not _is_result(name)}
            self.write_json("manifest.json", {**manifest, **end, "files": {**self.hashes(), **begun}})

    def verify(self, encoder: bool = True) -> None:
        """Refuse a run whose files are not those that it wrote. Results are verified where they are read, and studies
        when they are opened.

        Args:
            encoder: its files too.

        Raises:
            RunError: a file is missing, or was changed or damaged.
        """
        if self.packed is not None:
            return
        for name, sha256 in self.known_hashes().items():
            if not _is_result(name) and (encoder or not name.startswith("encoder/")):
                verify_file(self.path / name, sha256, ANEW)

    def verify_weights(self, key: str, best: Mapping[str, Any]) -> Path:
        """The file with the best weights by a key of best.json, which is the one that the run wrote.

        Raises:
            RunError: it is missing, or was changed or damaged.
        """
        path = self.weights_path(best["epoch"])
        if not path.is_file():
            raise RunError(f"{path} is missing, though it holds the best weights ({key}); was it removed by hand?")
        verify_file(path, best.get("sha256", ""), ANEW)
        return path


def _is_result(name: str) -> bool:
    return name.partition("/")[0] in RESULTS
