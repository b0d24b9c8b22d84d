"""The run folder: one run, everything needed to doubt it. Knows nothing of torch.

config.yaml  manifest.json  vocabulary.json  metrics.jsonl  gates.jsonl  selection.json  uas.jsonl  encoder/  weights/
checkpoint.safetensors  scores/SPLIT.json  counts/SPLIT.json  predictions/SPLIT.jsonl

A run of a study (mtlprune.runs.study), STUDY/NAME, is read as a run folder is, but for weights and predictions.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtlprune.io.files import RunError, read_json_lines, reading
from mtlprune.runs import forms, lock
from mtlprune.runs.evaluations import Evaluations
from mtlprune.runs.evidence import EVIDENCE, RESULTS, SELECTION, TREATED
from mtlprune.runs.settings import flat, is_aside
from mtlprune.runs.study import open_study

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["EVIDENCE", "RESULTS", "SELECTION", "TREATED", "RunError", "RunFolder", "flat", "is_aside"]


class RunFolder(Evaluations):
    """A folder that holds one run, or a run of a study; it need not exist yet."""

    # -- which run lies here -----------------------------------------------------------------------------------------

    @classmethod
    def existing(cls, path: str | Path) -> RunFolder:
        """A folder that holds a run, or a run of a study, as it was written. Raises RunError otherwise."""
        folder = cls(path)
        if not folder.config_path.is_file():
            if (study := open_study(folder.path.parent)) is not None and not folder.path.exists():
                known = ", ".join(sorted(study.rows)[:8])
                raise RunError(f"{study.folder} has no run {folder.path.name}; it has {known} and so on")
            if not folder.path.exists():
                raise RunError(f"{folder.path} is no run folder: nothing is there; `mtlprune train` makes one")
            inside = sorted(folder.path.glob("*/config.yaml"))[:1]
            how = f"runs lie in it: {folder.path}/*, or {inside[0].parent}" if inside else "`mtlprune train` makes one"
            raise RunError(f"{folder.path} is no run folder (it has no config.yaml); {how}")
        folder.verify(encoder=False)
        return folder

    @classmethod
    def with_weights(cls, path: str | Path) -> RunFolder:
        """A folder that holds a run itself. Raises RunError where it is none, or a run of a study."""
        folder = cls.existing(path)
        folder.refuse_packed("weights")
        return folder

    def other(self, given: str | Path) -> RunFolder | None:
        """A run that this one names, where it says or beside it under the same name, for folders are moved, and studies
        know the name only; None where it is not to be found."""
        places = (Path(given), self.path.parent / Path(given).name, self.path.resolve().parent / Path(given).name)
        return next((run for run in map(RunFolder, places) if run.config_path.is_file()), None)

    def is_finished(self) -> bool:
        """True where a run lies here that was trained to its end."""
        return self.config_path.is_file() and "finished" in self.read_manifest()

    def check_whole(self) -> None:
        """Refuse a run that was begun and cannot be read, or is finished without the weights that it names, which are
        not read.

        Raises:
            RunError: the first thing that is wrong, and with which file.
        """
        if not self.config_path.is_file():
            return
        with reading(self.path, RunError, "remove the folder to have it trained anew"):
            if not {"tasks", "train"} <= self.read_config().keys():  # defaults alone would be valid
                raise ValueError("a configuration that was cut short")
            if self.is_finished():
                self.verify(encoder=False)
                self.read_vocabularies()
                for best in self.read_best().values() if self.packed is None else ():
                    if not (path := self.weights_path(best["epoch"])).is_file():
                        raise RunError(f"{path} is missing; remove the folder to have it trained anew")

    # -- one process at a time ---------------------------------------------------------------------------------------

    def locked(self) -> AbstractContextManager[None]:
        """Own the folder while training; a second process is refused.

        Raises:
            RunError: the folder is in use, cannot be made or written, or holds files of another kind.
        """
        if self.path.is_dir() and not self.config_path.exists():
            self.check_ours()
        return lock.locked(self.path)

    def in_use(self) -> bool:
        """True while a process trains in the folder."""
        return lock.in_use(self.path)

    def check_ours(self) -> None:
        """Refuse to begin a run among files that no run left there. Raises RunError."""
        begun = {"encoder", "vocabulary.json", TREATED, "manifest.json", "tensorboard", "wandb", "weights"}
        foreign = sorted(p.name for p in self.path.iterdir() if p.name not in begun and not p.name.startswith("."))
        if foreign:
            raise RunError(
                f"{self.path} is no run folder, but holds {', '.join(foreign[:3])}{', ...' if foreign[3:] else ''}; "
                "choose another --out, or an empty folder"
            )

    # -- labels, logs and heads --------------------------------------------------------------------------------------

    def read_vocabularies(self) -> dict[str, dict[str, list[str]]]:
        """Task → kind → labels. Raises RunError where the file is missing or damaged."""
        vocabularies: dict[str, dict[str, list[str]]] = self.read_json("vocabulary.json")
        return vocabularies

    def read_metrics(self) -> list[dict[str, Any]]:
        """A record an evaluation; none where nothing was logged. Raises RunError, naming file and line."""
        return self._read_log(self.metrics_path, forms.METRICS)

    def read_gates(self) -> list[dict[str, Any]]:
        """The same of gates.jsonl."""
        return self._read_log(self.gates_path, forms.GATES)

    def _read_log(self, path: Path, schema: Any) -> list[dict[str, Any]]:
        records = []
        for number, record in read_json_lines(path) if path.exists() else ():
            forms.check(schema, record, f"{path}, line {number}")
            records.append(record)
        return records

    def gates(self) -> dict[str, NDArray[np.float64]]:
        """Gate set ("shared", or tasks) → (L, A) gates of the best joint epoch.

        Raises:
            RunError: a run without gates, or a damaged one.
        """
        best = self.read_best()["joint"]["epoch"]
        gates = [line["gates"] for line in self.read_gates() if line["epoch"] == best]
        if not gates:
            raise RunError(f"{self.gates_path}: expected the gates of epoch {best}; runs with pruning have them")
        import numpy as np  # takes a tenth of a second, and commands that are refused need none

        return {name: np.array(rows, dtype=np.float64) for name, rows in gates[-1].items()}

    def selection(self) -> dict[str, Any] | None:
        """The heads that halves of the data selected, of a run with pruning.method: stable; None of others.

        Returns:
            "frequencies" (L, A), "selected" (H, L, A) on each of H halves, two by two complements, and the bound on
            false claims, "expected_false".

        Raises:
            RunError: a damaged file.
        """
        if not (path := self.file(SELECTION)).is_file():
            return None
        import numpy as np

        tree = self.read_json(SELECTION)
        with reading(path):
            frequencies = np.array(tree["frequencies"], dtype=np.float64)
            selected = np.zeros((len(tree["selected"]), *frequencies.shape))
            for half, places in zip(selected, tree["selected"], strict=True):
                half.flat[places] = 1
            return {"frequencies": frequencies, "selected": selected, "expected_false": tree["expected_false"]}

    def treated(self) -> dict[str, Any]:
        """Treatment → "heads" → task, or "shared", → heads such as 3-7; nothing of a run without treatments.

        Raises:
            RunError: a damaged file.
        """
        treated: dict[str, Any] = self.read_json(TREATED) if self.file(TREATED).is_file() else {}
        return treated
