"""The run folder: one run, everything needed to doubt it. Knows nothing of torch.

config.yaml  manifest.json  vocabulary.json  metrics.jsonl  gates.jsonl  selection.json  uas.jsonl  encoder/  weights/
checkpoint.safetensors  scores/SPLIT.json  counts/SPLIT.json  predictions/SPLIT.jsonl

A run of a study (mtlprune.runs.study), STUDY/NAME, is read as a run folder is, but for weights and predictions.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import struct
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from mtlprune.config.blocks import filled
from mtlprune.corpora import CorpusError
from mtlprune.corpora.formats import Skip, check_text, on_lines, read_lines, skipping
from mtlprune.errors import MtlpruneError
from mtlprune.evaluation.scores import SCORES, main_score
from mtlprune.io.files import (
    RunError,
    file_sha256,
    json_text,
    make_folder,
    one_writer,
    parse_json_line,
    read_json,
    read_json_lines,
    read_yaml,
    reading,
    remove,
    remove_halves,
    replacing,
    verify_file,
    write_json,
    write_text,
)
from mtlprune.io.strict import parse_json
from mtlprune.layers import KINDS, LAYERS, Layer, kind_of
from mtlprune.runs import forms
from mtlprune.runs.study import open_study, packed_run
from mtlprune.sentence import Sentence

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["RunError", "RunFolder", "from_json", "read_json_lines", "replacing", "to_json"]


SELECTION = "selection.json"
"""What halves of the data selected, of a run with pruning.method: stable."""
TREATED = "treatment.json"
"""Which heads are treated, of a run with treatments of heads."""
EVIDENCE = (
    *("config.yaml", "best.json", "vocabulary.json", "metrics.jsonl", "curves.jsonl", "gates.jsonl", "uas.jsonl"),
    *(SELECTION, TREATED),
)
"""What claims, tables and pages read of a run beside its results; the manifest of a finished one has the SHA-256 of
all that is there, and of its results."""
RESULTS = {"predictions": "jsonl", "counts": "json", "scores": "json"}
"""Folder → how the names of its files end: of a split, in the order in which they are written."""
_ASIDE = (
    *("name", "tasks", "data.path", "train.seed", "train.device", "train.threads", "train.checkpoint_minutes"),
    *("train.tensorboard", "train.wandb", "train.log_uas"),
    *("train.start", "pruning.importance_of", "pruning.layers_like"),  # runs of the same seed
)
_ASIDE_BELOW = ("treatment.distil.teachers.", "treatment.merge.sources.")  # a run for each task


class RunFolder:
    """A folder that holds one run, or a run of a study.

    Args:
        path: the folder; it need not exist before ``create``.

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

    def file(self, name: str) -> Path:
        """Where a small file of the run can be read."""
        return self.path / name if self.packed is None else self.packed.file(name)

    def __fspath__(self) -> str:
        return str(self.path)

    # -- life --------------------------------------------------------------------------------------------------------

    @classmethod
    def existing(cls, path: str | Path) -> RunFolder:
        """A folder that holds a run, or a run of a study, as it was written. Raises RunError otherwise."""
        folder = cls(path)
        if not folder.config_path.is_file():
            if (study := open_study(folder.path.parent)) is not None and not folder.path.exists():
                there = ", ".join(sorted(study.rows)[:8])
                raise RunError(f"{study.folder} has no run {folder.path.name}; it has {there} and so on")
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

    def refuse_packed(self, what: str) -> None:
        """Raises RunError where this is a run of a study, which does not have ``what`` is needed."""
        if self.packed is not None:
            raise RunError(f"{self.path} is a run of a study, without {what}; name the run folder itself")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Own the folder while training; a second process is refused. The lock dies with its process.

        A folder in which nothing was written meanwhile is removed again: a mistake leaves no trace.

        Raises:
            RunError: the folder is in use, cannot be made or written, or holds files of another kind.
        """
        if self.path.is_dir() and not self.config_path.exists():
            self.check_ours()
        from filelock import FileLock, Timeout

        lock = self.path / ".lock"
        try:
            make_folder(self.path)
            held = FileLock(lock, blocking=False).acquire()
            lock.write_text(str(os.getpid()), encoding="utf-8")
        except Timeout:
            owner = lock.read_text(encoding="utf-8").strip() or "unknown"
            raise RunError(
                f"{self.path} is in use by another process (number {owner}); wait for it, or choose another --out"
            ) from None
        except OSError as error:
            raise RunError(
                f"{self.path}: expected a run folder or a place to make one, found what cannot be written "
                f"({error.strerror}); choose another --out"
            ) from None
        with held:
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    if list(self.path.iterdir()) == [lock]:
                        lock.unlink()
                        self.path.rmdir()

    def in_use(self) -> bool:
        """Whether a process trains in the folder."""
        from filelock import FileLock, Timeout

        try:
            if (lock := self.path / ".lock").is_file():
                FileLock(lock, blocking=False).acquire().lock.release()
        except Timeout:
            return True
        return False

    def check_ours(self) -> None:
        """Refuse to begin a run among files that no run left there. Raises RunError."""
        begun = {"encoder", "vocabulary.json", TREATED, "manifest.json", "tensorboard", "wandb", "weights"}  # earlier
        foreign = sorted(p.name for p in self.path.iterdir() if p.name not in begun and not p.name.startswith("."))
        if foreign:
            raise RunError(
                f"{self.path} is no run folder, but holds {', '.join(foreign[:3])}{', ...' if foreign[3:] else ''}; "
                "choose another --out, or an empty folder"
            )

    # -- small files -------------------------------------------------------------------------------------------------

    def weights_path(self, epoch: int) -> Path:
        return self.path / "weights" / f"epoch-{epoch:03d}.safetensors"

    def read_config(self) -> dict[str, Any]:
        """Keys and values. Raises RunError where the file is damaged, or only half of one."""
        tree = read_yaml(self.config_path)
        if not isinstance(tree, dict):
            raise RunError(f"{self.config_path}: expected keys and values, found {type(tree).__name__}")
        with reading(self.config_path):
            forms.check_config(tree)
        return tree

    def write_config(self, tree: Mapping[str, Any]) -> None:
        self.write_text("config.yaml", yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True))

    def read_json(self, name: str, check: Callable[[Any], None] = lambda value: None) -> Any:
        """What a file holds; ``check`` raises ValueError where that is of another form. Raises RunError."""
        path = self.file(name)
        if not path.exists():
            raise RunError(f"{path} is missing; is this run complete?")
        value = read_json(path)
        with reading(path):
            check(value)
        return value

    def read_manifest(self) -> dict[str, Any]:
        """What the run began with, and how it ended. Raises RunError where the file is damaged."""
        manifest = self.read_json("manifest.json", partial(forms.check, forms.MANIFEST))
        if "pruned" in manifest:
            with reading(self.path / "manifest.json"):
                forms.check_config(manifest["pruned"]["config"])
        return manifest

    def read_best(self) -> dict[str, dict[str, Any]]:
        """joint and each task → {"epoch", "score"} of its best dev score. Raises RunError where the file is damaged."""
        best = self.read_json("best.json", partial(forms.check, forms.BEST))
        if best == {} and self.read_config().get("pruning", {}).get("method") == "gates":
            raise RunError(f"{self.path}: no epoch counts as the best yet: its gates are not at their number; train on")
        if "joint" not in best:
            raise RunError(f"{self.path / 'best.json'}: expected the best epoch of joint and of each task")
        return best

    def read_vocabularies(self) -> dict[str, dict[str, list[str]]]:
        """Task → kind → labels. Raises RunError where the file is damaged, or leaves a task of the run out."""
        found = self.read_json("vocabulary.json", partial(forms.check, forms.VOCABULARIES))
        if not set(self.read_config().get("tasks", ())) <= found.keys():
            raise RunError(f"{self.path / 'vocabulary.json'}: expected the labels of every task of the run")
        return found

    def is_finished(self) -> bool:
        """Whether a run lies here that was trained to its end."""
        return self.config_path.is_file() and "finished" in self.read_manifest()

    def check_whole(self) -> None:
        """Refuse a run that was begun and cannot be read, or is finished without the weights that it names.

        Weights are not read: the length of the file is the one that its own header gives.

        Raises:
            RunError: what is wrong, and with which file.
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
                    _check_length(self.weights_path(best["epoch"]))

    def hashes(self) -> dict[str, str]:
        """Name → SHA-256 of EVIDENCE, of the encoder's files and of results, as they are now."""
        results = (self.path / _result(kind, split) for split in self.splits() for kind in RESULTS)
        paths = [*(self.path / name for name in EVIDENCE), *sorted(self.encoder_path.rglob("*")), *results]
        return {path.relative_to(self.path).as_posix(): file_sha256(path) for path in paths if path.is_file()}

    def verify(self, encoder: bool = True) -> bool:
        """Refuse a run whose files are not those that it wrote. Results are verified where they are read, and studies
        when they are opened.

        Args:
            encoder: its files too.

        Returns:
            whether their SHA-256 are known; those of a run of an early release are not.

        Raises:
            RunError: a file is missing, or was changed or damaged.
        """
        if self.packed is not None:
            return True
        known = self._known()
        for name, sha256 in known.items():
            kind = name.partition("/")[0]
            if kind not in RESULTS and (encoder or kind != "encoder"):
                verify_file(self.path / name, sha256, "bring that file back, or train the run anew with another --out")
        return bool(known)

    def _known(self) -> dict[str, str]:
        """Name → SHA-256 of the files that the manifest knows."""
        found: dict[str, str] = self.read_manifest().get("files", {}) if (self.path / "manifest.json").exists() else {}
        return found

    def result_path(self, kind: str, split: str) -> Path:
        """A file of results, which is the one that was written. Raises RunError."""
        if self.packed is not None:
            return self.packed.file(_result(kind, split))
        name, known, anew = _result(kind, split), self._known(), self._anew(split)
        path = self.path / name
        if name not in known and "config.yaml" in known and path.is_file():
            raise RunError(f"{path} is no result of this run, or of an evaluation that was cut short; {anew}")
        if name in known:
            try:
                verify_file(path, known[name], anew)
            except RunError:
                if self._known() == known:
                    raise
                return self.result_path(kind, split)  # another process evaluated just now
        return path

    def _anew(self, split: str) -> str:
        return f"`mtlprune evaluate {self.path} --split {split.partition('.')[0]}` writes it anew"

    def write_end(self, **end: Any) -> None:
        """Write into the manifest how a run ended, and the SHA-256 of all that is read of it from now on."""
        with one_writer(self.path):
            manifest = self.read_manifest()
            files = {**self.hashes(), **manifest.get("files", {})}  # what the run began with stays what it was
            self.write_json("manifest.json", {**manifest, **end, "files": files})

    def verify_weights(self, key: str, best: Mapping[str, Any]) -> Path:
        """The file with the best weights by a key of best.json, which is the one that the run wrote.

        Raises:
            RunError: it is missing, or was changed or damaged.
        """
        path = self.weights_path(best["epoch"])
        if not path.is_file():
            raise RunError(f"{path} is missing, though it holds the best weights ({key}); was it removed by hand?")
        if "sha256" in best:  # a run of an early release has none
            verify_file(path, best["sha256"], "bring that file back, or train the run anew with another --out")
        return path

    def write_json(self, name: str, value: Any) -> None:
        write_json(self.path / name, value)

    def write_text(self, name: str, text: str) -> None:
        write_text(self.path / name, text)

    # -- logs: one JSON object a line, in the order of training ------------------------------------------------------

    def read_metrics(self) -> list[dict[str, Any]]:
        """A record an evaluation; none where nothing was logged. Raises RunError, naming file and line."""
        return self._read_log(self.metrics_path, forms.METRICS)

    def read_gates(self) -> list[dict[str, Any]]:
        """The same of gates.jsonl."""
        return self._read_log(self.gates_path, forms.GATES)

    def gates(self) -> dict[str, NDArray[np.float64]]:
        """Gate set ("shared", or tasks) → (L, A) gates of the best joint epoch.

        Raises:
            RunError: a run without gates, or a damaged one.
        """
        best = self.read_best()["joint"]["epoch"]
        found = [line["gates"] for line in self.read_gates() if line["epoch"] == best]
        if not found:
            raise RunError(f"{self.gates_path}: expected the gates of epoch {best}; runs with pruning have them")
        import numpy as np  # takes a tenth of a second, and commands that are refused need none

        return {name: np.array(rows, dtype=np.float64) for name, rows in found[-1].items()}

    def selection(self) -> dict[str, Any] | None:
        """What halves of the data selected, of a run with pruning.method: stable; None of others.

        Returns:
            "frequencies" (L, A), what was "selected" (H, L, A) on each of H halves, two by two complements, and
            the bound on false claims, "expected_false".

        Raises:
            RunError: a damaged file.
        """
        if not self.file(SELECTION).is_file():
            return None
        import numpy as np

        tree = self.read_json(SELECTION, partial(forms.check, forms.SELECTION))
        with reading(self.path / SELECTION):
            frequencies = np.array(tree["frequencies"], dtype=np.float64)
            selected = np.zeros((len(tree["selected"]), *frequencies.shape))
            for half, places in zip(selected, tree["selected"], strict=True):
                half.flat[places] = 1
            if not np.allclose(selected.mean(0), frequencies):
                raise ValueError("frequencies other than those of the heads selected")
        return {"frequencies": frequencies, "selected": selected, "expected_false": tree["expected_false"]}

    def treated(self) -> dict[str, Any]:
        """Treatment → "heads" → task, or "shared", → heads such as 3-7; nothing of a run without treatments.

        Raises:
            RunError: a damaged file.
        """
        if not self.file(TREATED).is_file():
            return {}
        found: dict[str, Any] = self.read_json(TREATED, partial(forms.check, forms.TREATED))
        return found

    def score_rows(self) -> Iterator[dict[str, Any]]:
        """A row for each split, task and score, with every setting by its path; RunError where a file is damaged."""
        tree = filled(self.read_config())
        decoders = tree.get("decoders", {})
        settings = {path: ",".join(map(str, v)) if isinstance(v, list | tuple) else v for path, v in flat(tree)}
        for split in self.splits():
            for task, values in self.read_scores(split).items():
                for score, value in values.items():
                    main = score == main_score(task, decoders)
                    where = {"run": str(self.path), "split": split, "task": task, "score": score, "main": main}
                    yield {**where, "value": value, **settings}

    def _read_log(self, path: Path, form: Any) -> list[dict[str, Any]]:
        found = []
        for number, record in read_json_lines(path) if path.exists() else ():
            with reading(f"{path}, line {number}"):
                forms.check(form, record)
            found.append(record)
        return found

    # -- results -----------------------------------------------------------------------------------------------------

    def write_results(
        self,
        split: str,
        scores: Mapping[str, Any],
        ids: list[str],
        counts: Mapping[str, list[dict[str, int] | None]],
        predictions: Iterable[Sentence],
        best: Mapping[str, Any] | None = None,
    ) -> bool:
        """Scores, per-sentence counts (a column a count; null: the layer is unknown) and predictions of a split.

        They belong together: of several processes the last one's stay, and while they are written, or where that was
        cut short, there are no scores.

        Args:
            best: what best.json held when the weights were loaded; None where they are what it holds.

        Returns:
            False, and nothing is written, where other weights have become the best since.
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
            for kind in RESULTS:
                remove_halves(self.path / kind)
            *others, stands_for_all = texts
            remove(self.path / stands_for_all)
            for name in others:
                self.write_text(name, texts[name])
            if "config.yaml" in (known := self._known()):  # else write_end is to come
                remove_halves(self.path)
                mine = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
                self.write_json("manifest.json", {**self.read_manifest(), "files": {**known, **mine}})
            self.write_text(stands_for_all, texts[stands_for_all])
        return True

    def forget_results(self, keys: Iterable[str]) -> None:
        """Remove results of weights that are no longer the best: "joint" or tasks, as in best.json."""
        gone = set(keys)
        with one_writer(self.path):
            for kind in ("scores", "counts", "predictions"):  # scores first: they stand for all three
                there = ((path, path.stem.partition(".best-")[2]) for path in self.path.glob(f"{kind}/*"))
                remove(*(path for path, task in there if (task.partition(".on-")[0] or "joint") in gone))

    def splits(self) -> list[str]:
        """The splits that have been scored."""
        if self.packed is not None:
            return sorted(Path(name).stem for name in self.packed.files() if name.startswith("scores/"))
        return sorted(path.stem for path in (self.path / "scores").glob("*.json"))

    def read_scores(self, split: str) -> dict[str, Any]:
        """Task → name → score. Raises RunError where the file is damaged."""
        path = self.result_path("scores", split)
        scores = read_json(path, remedy=self._anew(split))
        tree = self.read_config() if self.config_path.exists() else {}
        with reading(path, remedy=self._anew(split)):
            forms.check(forms.SCORES, scores)
            for task, values in scores.items():
                if task not in tree.get("tasks", scores):
                    raise ValueError(f"scores of {task}, which is no task of the run")
                if (main := main_score(task, tree.get("decoders", {}))) not in values:
                    raise ValueError(f"no {main} of {task}")
        return scores

    def has_counts(self, split: str) -> bool:
        return self.file(_result("counts", split)).is_file()

    def read_counts(self, split: str) -> dict[str, Any]:
        """Ids of sentences, and task → name → a number a sentence, or None. Raises RunError where it is damaged."""
        self.result_path("counts", split)
        return self.read_json(_result("counts", split), forms.check_counts)

    def why_damaged(self, split: str) -> str:
        """What is wrong with the results of a split; "" where nothing is."""
        try:
            with reading(self.path / _result("counts", split), remedy=self._anew(split)):
                scores, counts = self.read_scores(split), self.read_counts(split)
                decoders = self.read_config().get("decoders", {})
                for task, values in scores.items():
                    columns = counts["counts"][task]
                    if not counts["ids"] or {*map(len, columns.values())} != {len(counts["ids"])}:
                        raise ValueError("not as many counts as sentences")
                    sums = Counter({name: sum(filter(None, column)) for name, column in columns.items()})
                    for name, score in SCORES[kind_of(task, decoders)].items():
                        if name in values and not math.isclose(score(sums), values[name], abs_tol=1e-6):
                            raise ValueError(f"counts of {task} that do not give the {name} in scores/{split}.json")
        except MtlpruneError as error:
            return str(error)
        return ""

    def has_labels(self, split: str) -> bool:
        """Whether labels are counted by sentence, as in a study; else predictions and corpus say them."""
        return self.packed is not None and self.file(f"labels/{split}.json").is_file()

    def read_labels(self, split: str, task: str) -> dict[str, dict[str, tuple[int, int, int]] | None]:
        """Sentence → label → correct, gold and predicted items; None where the layer is unknown. Of a run of a study.

        Raises:
            RunError: there are none.
        """
        with reading(path := self.file(f"labels/{split}.json")):
            rows = read_json(path)[task].items()
            return {one: labels and {label: tuple(items) for label, items in labels.items()} for one, labels in rows}

    def read_predictions(self, split: str) -> list[Sentence]:
        """In the order of the split. Raises RunError, naming file and line."""
        self.refuse_packed("predictions")
        path = self.result_path("predictions", split)
        if not path.is_file():
            raise RunError(f"{path} is missing; {self._anew(split)}")
        return list(read_sentences(path))


def _result(kind: str, split: str) -> str:
    return f"{kind}/{split}.{RESULTS[kind]}"


def _check_length(path: Path) -> None:
    """Raise RunError where a file of weights is missing or cut short."""
    with reading(path, RunError, "the weights of its best epoch are needed"), path.open("rb") as handle:
        size = path.stat().st_size
        length = struct.unpack("<Q", handle.read(8))[0] if size >= 8 else size
        if length > size - 8:
            raise RunError(f"{path} is cut short: it has {size} bytes, fewer than its header")
        header = parse_json(handle.read(length).decode("utf-8"))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
        if size != expected or not ends:
            raise RunError(f"{path} is cut short or damaged: expected {expected} bytes of weights, found {size}")


def flat(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Path → value of every setting of a configuration."""
    for key, value in tree.items():
        here = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping) and value:
            yield from flat(value, here)
        else:
            yield here, value


def is_aside(path: str) -> bool:
    """Whether a setting changes nothing of what is trained, or is told apart otherwise: tasks, seed, other runs."""
    return path in _ASIDE or path.startswith(_ASIDE_BELOW)


def task_labels(runs: Sequence[Sequence[str]]) -> list[str]:
    """What runs are called by their tasks: POS, POS+DEP, MTL-5; "" of none.

    Those of k tasks, three or more, are MTL-k; where runs of different k tasks meet, they are named by their tasks.
    """
    of_size = {size: {tuple(tasks) for tasks in runs if len(tasks) == size} for size in map(len, runs)}
    return [
        f"MTL-{len(tasks)}" if len(tasks) > 2 and len(of_size[len(tasks)]) == 1 else "+".join(tasks).upper()
        for tasks in runs
    ]


def read_sentences(path: Path) -> Iterator[Sentence]:
    """Sentences as JSON lines, as ``predict`` and ``evaluate`` write them. Raises RunError, naming file and line."""
    for number, tree in read_json_lines(path):
        with reading(f"{path}, line {number}", remedy=_SENTENCE):
            forms.check_sentence(tree)
            yield from_json(tree)


_SENTENCE = 'a sentence is {"id": "s1", "words": ["a", "b"], "pos": ["X", "Y"]}'


def read_jsonl(
    path: Path, tell: Callable[[str], None], skip: Skip | None = None, unread: Container[str] = ()
) -> Iterator[Sentence]:
    """As :func:`read_sentences`, from a file that others may have written: with a BOM, empty lines, a last line without
    an end, and sentences that contradict themselves.

    Args:
        tell: is given the keys that are no layers.
        skip: is told of a sentence that cannot be read, which is then left out; None has it raised.
        unread: layers to leave out.

    Raises:
        CorpusError: with file and line.
    """
    left: dict[str, None] = {}
    for line in read_lines(path, skip):
        if not line.text.strip():
            continue
        where = f"{path}, line {line.number}"
        with skipping(skip), reading(where, CorpusError, _SENTENCE):
            check_text(path, [line])
            tree = parse_json_line(line.text, where, CorpusError)
            if isinstance(tree, dict):
                tree = {key: value for key, value in tree.items() if key in ("id", "words") or key not in unread}
            forms.check_sentence(tree)
            with on_lines(path, [line]):
                sentence = from_json(tree).validate()
            left |= dict.fromkeys(tree.keys() - {"id", "words"} - {name for name, _, _ in forms.layers_of(tree)})
            yield sentence
    if left:
        own = '"chunk": {"kind": "spans", "value": [[0, 2, "NP"]]}'
        tell(f"{path}: left out {', '.join(sorted(left))}; a layer of a name of your own is written {own}")


def to_json(sentence: Sentence) -> dict[str, Any]:
    """A sentence as plain JSON; unknown layers are left out. Layers other than the five stand with their kind."""
    tree: dict[str, Any] = {"id": sentence.id, "words": list(sentence.words)}
    for name, kind in sentence.kinds().items():
        value = KINDS[kind_of(kind)].to_json(sentence.get(name))
        tree[name] = value if name in LAYERS else {"kind": kind, "value": value}
    return tree


def from_json(tree: Mapping[str, Any]) -> Sentence:
    """The reverse of to_json."""
    layers = {name: Layer(kind, KINDS[kind_of(kind)].from_json(value)) for name, kind, value in forms.layers_of(tree)}
    return Sentence(tree["id"], tuple(tree["words"])).with_layers(**layers)
