"""Results of a run on the splits of a corpus: scores, counts by sentence, predictions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from mtlprune.config.blocks import filled
from mtlprune.corpora.formats.jsonl import read_sentences, to_json
from mtlprune.evaluation.scores import main_score
from mtlprune.io.files import (
    RunError,
    json_text,
    one_writer,
    read_json,
    read_yaml,
    reading,
    remove,
    remove_halves,
    verify_file,
)
from mtlprune.runs import forms
from mtlprune.runs.evidence import RESULTS, Evidence
from mtlprune.runs.settings import flat
from mtlprune.sentence import Sentence


class Evaluations(Evidence):
    """A run, as far as its configuration, its best weights and its results go."""

    def read_config(self) -> dict[str, Any]:
        """Keys and values. Raises RunError where the file is damaged, or only half of one."""
        tree = read_yaml(self.config_path)
        if not isinstance(tree, dict):
            raise forms.damaged(self.config_path)
        forms.check_config(tree, self.config_path)
        return tree

    def write_config(self, tree: Mapping[str, Any]) -> None:
        self.write_text("config.yaml", yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True))

    def read_best(self) -> dict[str, dict[str, Any]]:
        """joint and each task → "epoch", "score" and "sha256" of its best weights on dev. Raises RunError where the
        file is damaged."""
        best: dict[str, dict[str, Any]] = self.read_json("best.json", forms.BEST)
        if not best and self.read_config().get("pruning", {}).get("method") == "gates":
            raise RunError(f"{self.path}: no epoch counts as the best yet: its gates are not at their number; train on")
        if "joint" not in best:
            raise forms.damaged(self.file("best.json"))
        return best

    def write_results(
        self,
        split: str,
        scores: Mapping[str, Any],
        ids: list[str],
        counts: Mapping[str, list[dict[str, int] | None]],
        predictions: Iterable[Sentence],
        best: Mapping[str, Any] | None = None,
    ) -> bool:
        """Scores, counts by sentence (a column a count; null: the layer is unknown) and predictions of a split.

        They belong together: of several processes the last one's stay, and while they are written, or where that was
        cut short, there are no scores.

        Args:
            best: the content of best.json when the weights were loaded; None where it is that of now.

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
            for folder in (self.path, *(self.path / kind for kind in RESULTS)):
                remove_halves(folder)
            *others, stands_for_all = texts
            remove(self.path / stands_for_all)
            for name in others:
                self.write_text(name, texts[name])
            if self.file("manifest.json").exists():
                hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
                self.write_json("manifest.json", {**self.read_manifest(), "files": {**self.known_hashes(), **hashes}})
            self.write_text(stands_for_all, texts[stands_for_all])
        return True

    def forget_results(self, keys: Iterable[str]) -> None:
        """Remove results of weights that are no longer the best: "joint" or tasks, as in best.json."""
        gone = set(keys)
        with one_writer(self.path):
            for kind in reversed(RESULTS):  # scores first: they stand for all three
                found = ((path, path.stem.partition(".best-")[2]) for path in self.path.glob(f"{kind}/*"))
                remove(*(path for path, task in found if (task.partition(".on-")[0] or "joint") in gone))

    def splits(self) -> list[str]:
        """The splits that have been scored."""
        if self.packed is not None:
            return sorted(Path(name).stem for name in self.packed.files() if name.startswith("scores/"))
        return sorted(path.stem for path in (self.path / "scores").glob("*.json"))

    def result_path(self, kind: str, split: str) -> Path:
        """A file of results, which is the one that was written, or none. Raises RunError."""
        name, known, anew = _result(kind, split), self.known_hashes(), self._anew(split)
        path = self.file(name)
        if self.packed is not None:
            return path
        if name in known:
            try:
                verify_file(path, known[name], anew)
            except RunError:
                if self.known_hashes() == known:
                    raise
                return self.result_path(kind, split)  # another process evaluated just now
        elif "config.yaml" in known and path.is_file():
            raise RunError(f"{path} is no result of this run, or of an evaluation that was cut short; {anew}")
        return path

    def _anew(self, split: str) -> str:
        return f"`mtlprune evaluate {self.path} --split {split.partition('.')[0]}` writes it anew"

    def read_scores(self, split: str) -> dict[str, dict[str, float]]:
        """Task → name → score. Raises RunError where the file is damaged."""
        scores: dict[str, dict[str, float]] = read_json(self.result_path("scores", split), remedy=self._anew(split))
        return scores

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

    def has_counts(self, split: str) -> bool:
        return self.file(_result("counts", split)).is_file()

    def read_counts(self, split: str) -> dict[str, Any]:
        """Ids of sentences, and task → name → a number a sentence, or None. Raises RunError where it is damaged."""
        counts: dict[str, Any] = read_json(self.result_path("counts", split), remedy=self._anew(split))
        return counts

    def why_damaged(self, split: str) -> str:
        """The first thing that is wrong with the results of a split; "" where nothing is."""
        try:
            self.read_scores(split)
            self.read_counts(split)
            self.result_path("predictions", split)
        except RunError as error:
            return str(error)
        return ""

    def read_predictions(self, split: str) -> list[Sentence]:
        """In the order of the split. Raises RunError, naming file and line."""
        self.refuse_packed("predictions")
        path = self.result_path("predictions", split)
        if not path.is_file():
            raise RunError(f"{path} is missing; {self._anew(split)}")
        return list(read_sentences(path))

    def refuse_packed(self, what: str) -> None:
        """Raises RunError where this is a run of a study, which does not have ``what`` is needed."""
        if self.packed is not None:
            raise RunError(f"{self.path} is a run of a study, without {what}; name the run folder itself")

    def has_labels(self, split: str) -> bool:
        """True where labels are counted by sentence, as in a study; else predictions and corpus say them."""
        return self.packed is not None and self.file(f"labels/{split}.json").is_file()

    def read_labels(self, split: str, task: str) -> dict[str, dict[str, tuple[int, int, int]] | None]:
        """Sentence → label → correct, gold and predicted items; None where the layer is unknown. Of a run of a study.

        Raises:
            RunError: there are none.
        """
        with reading(path := self.file(f"labels/{split}.json")):
            rows = read_json(path)[task].items()
            return {one: labels and {label: tuple(items) for label, items in labels.items()} for one, labels in rows}


def _result(kind: str, split: str) -> str:
    return f"{kind}/{split}.{RESULTS[kind]}"
