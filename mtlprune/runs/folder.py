"""The run folder: reads, checks and writes the files of one run. This module does not import torch.

config.yaml  manifest.json  vocabulary.json  metrics.jsonl  gates.jsonl  selection.json  uas.jsonl  encoder/  weights/
checkpoint.safetensors  scores/SPLIT.json  counts/SPLIT.json  predictions/SPLIT.jsonl

A run that is packed in a study (mtlprune.runs.study) has the path STUDY/NAME and is read in the same way, but a study
does not store weights and predictions.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import TypeAdapter

from mtlprune.config import ConfigError
from mtlprune.config.config import Config, build_config
from mtlprune.corpora.formats.jsonl import from_json, to_json
from mtlprune.corpora.store import INFO, read_info
from mtlprune.errors import command, plural
from mtlprune.evaluation.scores import main_score
from mtlprune.io.files import (
    RunError,
    file_sha256,
    json_lines,
    json_text,
    make_folder,
    one_writer,
    path_inside,
    read_json_lines,
    reading,
    remove,
    remove_temporary_paths,
    verify_file,
    write_json,
    write_text,
)
from mtlprune.io.strict import parse_json, parse_yaml
from mtlprune.runs import forms
from mtlprune.runs.settings import flat
from mtlprune.runs.study import FILE as STUDY
from mtlprune.runs.study import REMEDY as PACK_REMEDY
from mtlprune.runs.study import open_study, packed_run, tables
from mtlprune.sentence import Sentence

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SELECTION = "selection.json"
"""Written by a run with pruning.method=stable: how often random halves of the data selected each head."""
TREATED = "treatment.json"
"""Written by a run with treatments of heads: the heads that are treated."""
CURVES = "curves.jsonl"
"""Written by a pretraining run: loss, syntactic attention, minimal pairs and dimension by update."""
EVIDENCE = (
    *("config.yaml", "best.json", "vocabulary.json", "metrics.jsonl", CURVES, "gates.jsonl", "uas.jsonl"),
    *(SELECTION, TREATED),
)
"""Files, apart from results, that claims, tables and reports read. The manifest of a finished run holds the SHA-256 of
those that exist, of the encoder's files and of results."""
RESULTS = {"predictions": "jsonl", "counts": "json", "scores": "json"}
"""Folder of results → extension of its files (one file for each split), in the order in which they are written."""
REMEDY = "restore the file, or train the run again with another --out"
"""Advice in errors about a damaged run."""


def run_name(run: Path) -> str:
    """Return the name of a run outside of its folder, such as in a study.

    It is the name of the folder. A run of `mtlprune train --seeds` has a folder such as mtl/seed-1, and its name is
    mtl-seed-1.
    """
    path = Path(os.path.normpath(run.absolute()))
    is_of_seeds = re.fullmatch(r"seed-\d+", path.name) and packed_run(path) is None
    return f"{path.parent.name}-{path.name}" if is_of_seeds else path.name


class RunFolder:
    """The folder of a run, or a run in a packed study (STUDY/NAME). The folder need not exist. Raises RunError if the
    study is damaged."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.packed = packed_run(self.path)
        """The run in its study, or None for a run folder."""
        self.encoder_path, self.checkpoint_path = self.path / "encoder", self.path / "checkpoint.safetensors"
        names = "config.yaml", "metrics.jsonl", "gates.jsonl", "uas.jsonl"
        self.config_path, self.metrics_path, self.gates_path, self.uas_path = (self.path / name for name in names)

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    def has(self, name: str) -> bool:
        """Return True if the run has a file of this name, in its folder or in its study."""
        return (self.path / name).is_file() if self.packed is None else self.packed.text(name) is not None

    def read_text(self, name: str, remedy: str = "") -> str:
        """Read a text file of the run, from its folder or its study. Raises RunError if it is missing or not UTF-8."""
        if self.packed is None:
            with reading(self.path / name, RunError, remedy):
                return (self.path / name).read_text(encoding="utf-8")
        if (text := self.packed.text(name)) is None:
            raise RunError(f"{self.path / name} is missing{f'; {remedy}' if remedy else '; check the path'}")
        return text

    def weights_path(self, epoch: int) -> Path:
        return self.path / "weights" / f"epoch-{epoch:03d}.safetensors"

    def read_json(self, name: str, schema: TypeAdapter[Any] | None = None) -> Any:
        """Read a JSON file and check it against ``schema``, if given. Raises RunError if it is missing or damaged."""
        path = self.path / name
        if not (self.has(name) or path.exists()):
            raise RunError(f"{path} is missing; get a complete run")
        value = self._parse(name)
        if schema is not None:
            forms.check(schema, value, path)
        return value

    def _parse(self, name: str, remedy: str = "") -> Any:
        with reading(self.path / name, RunError, remedy):
            return parse_json(self.read_text(name, remedy))

    def write_json(self, name: str, value: Any) -> None:
        write_json(self.path / name, value)

    def write_text(self, name: str, text: str) -> None:
        write_text(self.path / name, text)

    @property
    def config(self) -> Config:
        """The checked settings of a run that trains tasks. Raises RunError if the file is damaged, or if the run is a
        pretraining run."""
        try:
            return build_config(self.read_config(), str(self.config_path))
        except ConfigError as error:
            raise RunError(str(error)) from None

    def read_config(self) -> dict[str, Any]:
        """Read config.yaml as a plain dictionary, also for a pretraining run. Raises RunError if the file is damaged
        or incomplete."""
        with reading(self.config_path):
            tree = parse_yaml(self.read_text("config.yaml"))
        if not isinstance(tree, dict):
            raise forms.damaged(self.config_path)
        forms.check_config(tree, self.config_path)
        return tree

    def write_config(self, tree: Mapping[str, Any]) -> None:
        self.write_text("config.yaml", yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True))

    def read_best(self) -> dict[str, dict[str, Any]]:
        """Read the "epoch", "score" and "sha256" of the best weights on dev, for "joint" and for each task.

        Raises:
            RunError: the file is missing or damaged, or no epoch counts as the best yet, because the gates have not
                reached their target number.
        """
        best: dict[str, dict[str, Any]] = self.read_json("best.json", forms.BEST)
        if not best and self.config.pruning.method == "gates":
            raise RunError(
                f"{self.path}: no epoch counts as the best yet, because the gates have not reached their number; "
                "continue training"
            )
        if "joint" not in best:
            raise forms.damaged(self.path / "best.json")
        return best

    def read_manifest(self) -> dict[str, Any]:
        """Read the manifest, which records how the run started and ended. Raises RunError if the file is missing or
        damaged."""
        manifest: dict[str, Any] = self.read_json("manifest.json", forms.MANIFEST)
        if "pruned" in manifest:
            forms.check_config(manifest["pruned"]["config"], self.path / "manifest.json")
        return manifest

    def known_hashes(self) -> dict[str, str]:
        """Return the SHA-256 of each file by its name, as recorded in the manifest."""
        manifest = self.path / "manifest.json"
        hashes: dict[str, str] = self.read_manifest().get("files", {}) if self.has("manifest.json") else {}
        for name in hashes:
            path_inside(self.path, name, manifest)
        return hashes

    def hashes(self) -> dict[str, str]:
        """Compute file name → SHA-256 for the present files of EVIDENCE, the encoder's files and results."""
        results = (path for kind, ending in RESULTS.items() for path in sorted(self.path.glob(f"{kind}/*.{ending}")))
        paths = [*(self.path / name for name in EVIDENCE), *sorted(self.encoder_path.rglob("*")), *results]
        return {path.relative_to(self.path).as_posix(): file_sha256(path) for path in paths if path.is_file()}

    def write_end(self, **end: Any) -> None:
        """Add ``end`` (how the run ended) and the SHA-256 of the run's files to the manifest.

        A SHA-256 that was recorded when the run began stays, except those of results.
        """
        with one_writer(self.path):
            manifest = self.read_manifest()
            begun_hashes = {name: sha256 for name, sha256 in manifest.get("files", {}).items() if not _is_result(name)}
            self.write_json("manifest.json", {**manifest, **end, "files": {**self.hashes(), **begun_hashes}})

    def verify(self, encoder: bool = True, remedy: str = REMEDY) -> None:
        """Raise RunError if a file of the run is missing, or was changed, damaged or added since the run wrote it.

        Results are verified when they are read, and studies when they are opened, so this method skips both.

        Args:
            encoder: verify the encoder's files, too.
            remedy: advice that the error message ends with.
        """
        if self.packed is not None:
            return
        hashes = self.known_hashes()
        for name, sha256 in hashes.items():
            if not _is_result(name) and (encoder or not name.startswith("encoder/")):
                verify_file(self.path / name, sha256, remedy)
        for name in EVIDENCE if "config.yaml" in hashes else ():
            if name not in hashes and (self.path / name).is_file():
                raise RunError(f"{self.path / name}: the manifest of the finished run does not name it; {remedy}")

    def verify_weights(self, key: str, best: Mapping[str, Any]) -> Path:
        """Return the path of the weights of a ``best`` epoch after verifying their SHA-256.

        Args:
            key: key of best.json ("joint" or a task), for the error message.
            best: entry of best.json.

        Raises:
            RunError: the file is missing, or was changed or damaged.
        """
        path = self.weights_path(best["epoch"])
        if not path.is_file():
            raise RunError(
                f"{path} is missing, although it holds the best weights ({key}); restore it, or train the run again"
            )
        verify_file(path, best.get("sha256", ""), REMEDY)
        return path

    def drop_weights(self) -> None:
        """Remove the weights of a finished run and keep everything that tables, claims and reports read."""
        with one_writer(self.path):
            if self.keeps_weights():
                self.write_json("manifest.json", {**self.read_manifest(), "weights": "removed"})
            remove(*(self.path / "weights").glob("epoch-*.safetensors"))

    def keeps_weights(self) -> bool:
        """Return False if `drop_weights` has removed the weights."""
        return "weights" not in self.read_manifest()

    def check_weights_kept(self) -> None:
        """Raise RunError if the run has no weights, because it is in a study or because its weights were removed."""
        self.refuse_packed("weights")
        if not self.keeps_weights():
            raise RunError(
                f"{self.path} is kept without its weights; train it again (`"
                f"{command('train', self.config_path, '--out', 'DIR')}`), or compare with --keep-weights and another "
                "--out"
            )

    # -- finding runs and corpora ------------------------------------------------------------------------------------

    @classmethod
    def existing(cls, path: str | Path) -> RunFolder:
        """Open a run folder, or a run of a study, and verify its files. Raises RunError if there is no run, or if it
        is damaged."""
        folder = cls(path)
        if not folder.has("config.yaml"):
            if (study := open_study(folder.path.parent)) is not None and not folder.path.exists():
                examples = ", ".join(sorted(study.rows)[:8])
                raise RunError(f"{study.folder} has no run {folder.path.name}; it has {examples} and so on")
            if not folder.path.exists():
                raise RunError(
                    f"{folder.path}: expected a run folder, found nothing; check the path, or train a run with "
                    "`mtlprune train`"
                )
            if folder.path.is_file():
                raise RunError(f"{folder.path}: expected a run folder, found a file; name the folder of the run")
            if (study := open_study(folder.path)) is not None:
                raise RunError(
                    f"{folder.path}: expected one run, found {plural(len(study.rows), 'packed run')}; name one, such "
                    f"as {folder.path / min(study.rows)}, or the folder in which it was trained, which has its weights"
                )
            if tables(folder.path):
                raise RunError(f"{folder.path} has lost its {STUDY}, which names its runs; {PACK_REMEDY}")
            runs_inside = sorted([*folder.path.glob("*/config.yaml"), *folder.path.glob("runs/*/config.yaml")])
            first = runs_inside[0].parent if runs_inside else None
            if folder.has(INFO):
                raise RunError(
                    f"{folder.path}: expected a run folder, found a corpus; name a run trained on this corpus"
                )
            advice = (
                f"it contains runs, so name {first.parent}/*, or {first}" if first else "`mtlprune train` makes one"
            )
            raise RunError(f"{folder.path}: expected a run folder, found no config.yaml in it; {advice}")
        folder.verify(encoder=False)
        return folder

    @classmethod
    def with_weights(cls, path: str | Path) -> RunFolder:
        """Open a run folder that has weights. Raises RunError if there is no run, if it is damaged or in a study, or if
        its weights were removed."""
        folder = cls.existing(path)
        folder.check_weights_kept()
        return folder

    def referenced_run(self, path: str | Path) -> RunFolder | None:
        """Find another run that this run refers to, such as the one of ``train.start``; None if it cannot be found.

        The run is looked for at ``path``, then under the same name in the parent folder of this run, because folders
        may have been moved and a study stores only names.
        """
        names = Path(path).name, run_name(Path(path))
        places = [folder / name for folder in (self.path.parent, self.path.resolve().parent) for name in names]
        return next((run for run in map(RunFolder, [Path(path), *places]) if run.has("config.yaml")), None)

    def started(self) -> dict[str, str]:
        """Return {"started": the working directory relative to the run folder, such as "../.."} for the manifest.

        Relative paths in the configuration can thus be resolved later from another directory. The dictionary is empty
        if the run folder is not below the working directory.
        """
        with contextlib.suppress(ValueError):
            below = self.path.resolve().relative_to(Path.cwd().resolve())
            return {"started": "/".join(".." for _ in below.parts)}
        return {}

    def corpus_path(self) -> Path:
        """Find the corpus of the run: ``data.path``, relative to the working directory or to where the run was started.

        A corpus with the run's fingerprint is preferred. Raises RunError if there is no corpus at either place, or if
        files of the run are damaged.
        """
        data_path, data = Path(self.config.data.path), self.read_manifest()["data"]
        places = [data_path, *([self.path / data["started"] / data_path] if "started" in data else [])]
        infos = {place: read_info(place) for place in places if (place / INFO).is_file()}
        if not infos:
            problem = f"expected the corpus of the run, found none at {data_path} (data.path)"
            remedy = "go to the folder where the run was started, or name the corpus (--corpus)"
            raise RunError(f"{self.path}: {problem}; {remedy}")
        matching = (place for place, info in infos.items() if info["fingerprint"] == data["fingerprint"])
        return next(matching, next(iter(infos)))

    def is_finished(self) -> bool:
        """Return True if the folder holds a run that was trained to its end."""
        return self.has("config.yaml") and "finished" in self.read_manifest()

    def check_whole(self) -> None:
        """Raise RunError, which names the first faulty file, if a run was started here and is damaged.

        For a finished run, files are verified and the weights must exist (their contents are not read). A folder
        without config.yaml passes.
        """
        if not self.has("config.yaml"):
            return
        remedy = f"restore the file, or remove {self.path} to train the run again"
        with reading(self.config_path, RunError, remedy):
            self.read_config()
            if self.is_finished():
                self.verify(encoder=False, remedy=remedy)
                for best in self.read_best().values() if self.packed is None and self.keeps_weights() else ():
                    if not (path := self.weights_path(best["epoch"])).is_file():
                        raise RunError(f"{path} is missing; {remedy}")

    # -- one process at a time ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for one training process. The lock is released when the process ends, however it ends.

        A folder in which nothing was written is removed again, so that a refused run leaves no empty folder behind.

        Raises:
            RunError: the folder is in use, cannot be created or written, or contains files that are not of a run.
        """
        from filelock import FileLock, Timeout

        self.check_ours()
        lock = self.path / ".lock"
        try:
            make_folder(self.path)
            file_lock = FileLock(lock, blocking=False).acquire()
            lock.write_text(str(os.getpid()), encoding="utf-8")
        except Timeout:
            owner = lock.read_text(encoding="utf-8").strip() or "unknown"
            raise RunError(
                f"{self.path} is in use by another process (number {owner}); wait for this process, or choose another "
                "--out"
            ) from None
        except OSError as error:
            raise RunError(
                f"{self.path}: expected a folder that can be written, found one that cannot "
                f"({error.strerror}); choose another --out"
            ) from None
        with file_lock:
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    if list(self.path.iterdir()) == [lock]:
                        lock.unlink()
                        self.path.rmdir()

    def in_use(self) -> bool:
        """Return True while a process trains in the folder."""
        from filelock import FileLock, Timeout

        try:
            if (lock := self.path / ".lock").is_file():
                FileLock(lock, blocking=False).acquire().lock.release()
        except Timeout:
            return True
        return False

    def check_ours(self) -> None:
        """Raise RunError if a folder without a run contains files that no started run could have left there."""
        if not self.path.is_dir() or self.has("config.yaml"):
            return
        begun_files = {"encoder", "vocabulary.json", TREATED, "manifest.json", "tensorboard", "weights"}
        foreign = sorted(
            p.name for p in self.path.iterdir() if p.name not in begun_files and not p.name.startswith(".")
        )
        if foreign:
            raise RunError(
                f"{self.path}: expected a run folder or an empty folder, found "
                f"{', '.join(foreign[:3])}{', ...' if foreign[3:] else ''}; "
                "choose another --out, or an empty folder"
            )

    # -- labels, logs and heads --------------------------------------------------------------------------------------

    def read_vocabularies(self) -> dict[str, dict[str, list[str]]]:
        """Read the vocabularies of each task, by name. Raises RunError if the file is missing or damaged."""
        vocabularies: dict[str, dict[str, list[str]]] = self.read_json("vocabulary.json")
        return vocabularies

    def read_metrics(self) -> list[dict[str, Any]]:
        """Read one record per evaluation from metrics.jsonl; empty if nothing was logged. Raises RunError, which names
        file and line, if a record is damaged."""
        return self._read_log("metrics.jsonl", forms.METRICS)

    def read_gates(self) -> list[forms.GateLine]:
        """Read one record per evaluation from gates.jsonl; empty if nothing was logged. Raises RunError, which names
        file and line, if a record is damaged."""
        return self._read_log("gates.jsonl", forms.GATES)

    def _read_log(self, name: str, schema: Any) -> list[Any]:
        records, path = [], self.path / name
        for number, record in json_lines(self.read_text(name), path) if self.has(name) or path.exists() else ():
            forms.check(schema, record, f"{path}, line {number}")
            records.append(record)
        return records

    def gates(self) -> list[tuple[int, int, dict[str, NDArray[np.float64]]]]:
        """Read epoch, step and gates (L, A) of each gate set ("shared", or a task), for every evaluation.

        Returns:
            A list that is empty for a run without gates.

        Raises:
            RunError: the file is damaged.
        """
        # Importing numpy takes a tenth of a second, and most runs have no gates.
        import numpy as np

        with reading(self.gates_path):
            return [
                (line["epoch"], line["step"], {key: np.array(rows, np.float64) for key, rows in gate_sets.items()})
                for line in self.read_gates()
                for gate_sets in [line["gates"]]
            ]

    def best_gates(self, key: str = "joint") -> tuple[int, dict[str, NDArray[np.float64]]]:
        """Read step and gates of each gate set at the last evaluation of the best epoch.

        Args:
            key: key of best.json ("joint" or a task), which decides which epoch is the best.

        Raises:
            RunError: the run has no gates, or is damaged.
        """
        best = self.read_best()[key]["epoch"]
        for epoch, step, gate_sets in reversed(self.gates()):
            if epoch == best:
                return step, gate_sets
        raise RunError(f"{self.gates_path}: expected the gates of epoch {best}; name a run with pruning")

    def selection(self) -> dict[str, Any] | None:
        """Read how often random halves of the data selected each head, for a run with pruning.method=stable.

        Returns:
            "frequencies" (L, A), shares of halves, and "expected_false", the bound on the expected number of false
            claims. None for runs with other methods.

        Raises:
            RunError: the file is damaged.
        """
        if not self.has(SELECTION):
            return None
        import numpy as np

        tree = self.read_json(SELECTION)
        with reading(self.path / SELECTION):
            frequencies = np.array(tree["frequencies"], dtype=np.float64)
            return {"frequencies": frequencies, "expected_false": tree["expected_false"]}

    def treated(self) -> dict[str, Any]:
        """Read which heads were treated: treatment → "heads" → task or "shared" → heads such as "3-7".

        Empty for a run without treatments of heads. Raises RunError if the file is damaged.
        """
        treated: dict[str, Any] = self.read_json(TREATED) if self.has(TREATED) else {}
        return treated

    # -- results on the splits of a corpus: scores, counts by sentence, predictions -----------------------------------

    def write_results(
        self,
        split: str,
        scores: Mapping[str, Any],
        ids: list[str],
        counts: Mapping[str, list[dict[str, int] | None]],
        predictions: Iterable[Sentence],
        best: Mapping[str, Any] | None = None,
    ) -> bool:
        """Write the scores, the counts of each sentence and the predictions of a split.

        The three files belong together: the last of several processes overwrites all three, and the scores are
        missing while the files are being written or if writing was interrupted.

        Args:
            split: name of the files without extension.
            scores: task → name → score.
            ids: ids of the sentences.
            counts: task → for each sentence name → count, or None if the layer of the sentence is unknown. The file
                has one column for each count, with null for None.
            predictions: predicted sentences.
            best: content of best.json when the weights were loaded; None skips the comparison with the present file.

        Returns:
            False, without writing anything, if other weights have become the best since ``best`` was read.
        """
        columns = {}
        for task, rows in counts.items():
            names = sorted({name for row in rows if row for name in row})
            columns[task] = {name: [row.get(name, 0) if row is not None else None for row in rows] for name in names}
        lines = (json.dumps(to_json(sentence), ensure_ascii=False) for sentence in predictions)
        texts = {
            _result("predictions", split): "".join(line + "\n" for line in lines),
            _result("counts", split): json.dumps({"ids": ids, "counts": columns}),
            _result("scores", split): json_text(scores),
        }
        with one_writer(self.path):
            if best is not None and best != self.read_best():
                return False
            for folder in (self.path, *(self.path / kind for kind in RESULTS)):
                remove_temporary_paths(folder)
            *other_names, scores_name = texts
            remove(self.path / scores_name)
            for name in other_names:
                self.write_text(name, texts[name])
            if self.has("manifest.json"):
                hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
                self.write_json("manifest.json", {**self.read_manifest(), "files": {**self.known_hashes(), **hashes}})
            self.write_text(scores_name, texts[scores_name])
        return True

    def forget_results(self, keys: Iterable[str]) -> None:
        """Remove the results of weights that are no longer the best, by keys of best.json ("joint" or tasks)."""
        keys_gone = set(keys)

        def surpassed(path: Path) -> bool:
            return (path.stem.partition(".best-")[2].partition(".on-")[0] or "joint") in keys_gone

        with one_writer(self.path):
            # Scores are removed first, because their presence stands for all three files.
            for kind in reversed(RESULTS):
                remove(*filter(surpassed, self.path.glob(f"{kind}/*")))
            hashes = self.known_hashes()
            remaining_hashes = {
                name: sha for name, sha in hashes.items() if not (_is_result(name) and surpassed(Path(name)))
            }
            if remaining_hashes != hashes:
                self.write_json("manifest.json", {**self.read_manifest(), "files": remaining_hashes})

    def splits(self) -> list[str]:
        """Return the names of the splits that have been scored, sorted.

        A split whose scores are missing although the manifest names them is included, so that reading them raises an
        error instead of passing silently. It is left out while an evaluation is writing or after one was interrupted.
        """
        writing = (self.path / ".writing").exists()
        names = self.packed.files() if self.packed is not None else [] if writing else [*self.known_hashes()]
        scored = {Path(name).stem for name in names if name.startswith("scores/")}
        return sorted(scored | {path.stem for path in (self.path / "scores").glob("*.json")})

    def result_path(self, kind: str, split: str) -> Path:
        """Return the path of a file of results, which need not exist unless the manifest records it.

        Raises:
            RunError: the file differs from the one that the manifest records, is missing although it is recorded, or is
                present although the manifest of a finished run does not record it.
        """
        name, hashes, remedy = _result(kind, split), self.known_hashes(), self._evaluate_hint(split)
        path = self.path / name
        if self.packed is not None:
            return path
        if name in hashes:
            try:
                verify_file(path, hashes[name], remedy)
            except RunError:
                if self.known_hashes() == hashes:
                    raise
                # Another process replaced the file after we read the manifest, so we check it against the new SHA-256.
                return self.result_path(kind, split)
        elif "config.yaml" in hashes and path.is_file():
            raise RunError(f"{path} does not belong to this run, or to an evaluation that was interrupted; {remedy}")
        return path

    def _evaluate_hint(self, split: str) -> str:
        return f"`{command('evaluate', self.path, '--split', split.partition('.')[0])}` writes it again"

    def _read_result(self, kind: str, split: str) -> Any:
        """Read a JSON file of results after verifying its SHA-256."""
        self.result_path(kind, split)
        return self._parse(_result(kind, split), self._evaluate_hint(split))

    def read_scores(self, split: str) -> dict[str, dict[str, float]]:
        """Read the scores of each task by name. Raises RunError if the file is missing or damaged."""
        scores: dict[str, dict[str, float]] = self._read_result("scores", split)
        return scores

    def score_rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each split, task and score, with all settings by path. Raises RunError if a file is
        damaged."""
        tree = self.config.model_dump(mode="json")
        settings = {path: ",".join(map(str, v)) if isinstance(v, list | tuple) else v for path, v in flat(tree)}
        for split in self.splits():
            for task, values in self.read_scores(split).items():
                for score, value in values.items():
                    main = score == main_score(task, tree["decoders"])
                    keys = {"run": str(self.path), "split": split, "task": task, "score": score, "main": main}
                    yield {**keys, "value": value, **settings}

    def has_counts(self, split: str) -> bool:
        return self.has(_result("counts", split))

    def read_counts(self, split: str) -> dict[str, Any]:
        """Read the counts from which scores are computed.

        Returns:
            "ids", the ids of the sentences, and "counts": task → name → one number for each sentence, or None if the
            layer of the sentence is unknown.

        Raises:
            RunError: the file is missing or damaged.
        """
        counts: dict[str, Any] = self._read_result("counts", split)
        return counts

    def why_damaged(self, split: str) -> str:
        """Return the first error in the results of a split, or "" if they can be read."""
        try:
            self.read_scores(split)
            self.read_counts(split)
            self.result_path("predictions", split)
        except RunError as error:
            return str(error)
        return ""

    def read_predictions(self, split: str) -> list[Sentence]:
        """Read the predicted sentences, in the order of the split. Raises RunError if the file is missing or damaged,
        or if the run is in a study."""
        self.refuse_packed("predictions")
        path = self.result_path("predictions", split)
        if not path.is_file():
            raise RunError(f"{path} is missing; {self._evaluate_hint(split)}")
        return [from_json(tree) for _, tree in read_json_lines(path)]

    def scored_sentences(self, split: str, sentences: Iterable[Sentence]) -> list[Sentence]:
        """Return those gold sentences of a split on which the run was scored.

        Training may score only the first sentences of dev, and an evaluation scores all of them, so the ids of the
        counts decide and not the configuration.

        Raises:
            RunError: the counts are missing or damaged, or have an id of no sentence.
        """
        ids = {*self.read_counts(split)["ids"]}
        scored = [sentence for sentence in sentences if sentence.id in ids]
        if missing := sorted(ids - {sentence.id for sentence in scored}):
            raise RunError(
                f"{self.path / _result('counts', split)}: expected sentences of {split}, found {missing[0]}, which "
                f"{split} does not have; {self._evaluate_hint(split)}"
            )
        return scored

    def gold_and_predicted(self, split: str, sentences: Iterable[Sentence]) -> list[tuple[Sentence, Sentence]]:
        """Return a gold and a predicted sentence for each sentence of ``sentences`` on which the run was scored.

        Raises:
            RunError: predictions or counts are missing, or are of different sentences.
        """
        gold = self.scored_sentences(split, sentences)
        predicted = {sentence.id: sentence for sentence in self.read_predictions(split)}
        if predicted.keys() != {sentence.id for sentence in gold}:
            raise RunError(
                f"{self.result_path('predictions', split)}: expected predictions of the {len(gold)} sentences of "
                f"{split} that are scored, found others; {self._evaluate_hint(split)}"
            )
        return [(sentence, predicted[sentence.id]) for sentence in gold]

    def refuse_packed(self, content: str) -> None:
        """Raise RunError if the run is in a study, which does not store ``content`` (such as "weights")."""
        if self.packed is not None:
            raise RunError(
                f"{self.path} is a run of a study, without {content}; name the folder in which the run was trained, or "
                "train it again"
            )

    def has_labels(self, split: str) -> bool:
        """Return True if the run is in a study that stores label counts by sentence.

        For a run folder, these counts can be computed from its predictions and the corpus.
        """
        return self.packed is not None and self.has(f"labels/{split}.json")

    def read_labels(self, split: str, task: str) -> dict[str, dict[str, tuple[int, int, int]] | None]:
        """Read the label counts of a run of a study.

        Returns:
            Id of a sentence → label → numbers of correct, gold and predicted items; None instead of a dictionary if
            the layer of the sentence is unknown.

        Raises:
            RunError: the study does not store label counts for the split.
        """
        name = f"labels/{split}.json"
        with reading(self.path / name):
            rows = self._parse(name)[task].items()
            return {
                sentence_id: labels and {label: tuple(items) for label, items in labels.items()}
                for sentence_id, labels in rows
            }


def _is_result(name: str) -> bool:
    return name.partition("/")[0] in RESULTS


def _result(kind: str, split: str) -> str:
    return f"{kind}/{split}.{RESULTS[kind]}"
