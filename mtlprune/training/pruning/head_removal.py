"""From a run with gates to a run without the heads they closed: a whole run folder, proved to compute the same."""

import contextlib
import copy
import datetime
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mtlprune import __version__
from mtlprune.claimed_heads import SHARED, load_claims
from mtlprune.config.config import build_config
from mtlprune.corpora.store import Corpus, load_corpus
from mtlprune.encoder.gates import OPEN, Gates, top_mask
from mtlprune.encoder.head_closing import fold_means
from mtlprune.encoder.removal import KeptHeads, remove_heads
from mtlprune.errors import out_of_memory
from mtlprune.files import file_sha256, replacing_folder
from mtlprune.model import MultiTaskModel
from mtlprune.runs import RunError, RunFolder
from mtlprune.sentence import Sentence
from mtlprune.training import hardware, setup
from mtlprune.training.checkpoint import save_weights
from mtlprune.training.evaluation import Evaluation, evaluate

CHECKED_SENTENCES = 64
TOLERANCE = 1e-5
"""How far word vectors before and after may lie apart, relative to the largest number in them."""
RECORDED = 1e-4
"""How far a gate in gates.jsonl, which is rounded, may lie from the one in the weights."""


@dataclass
class RemovalRequest:
    """What is asked for, checked as far as can be without a model.

    Attributes:
        source: a run with gates.
        gate_set: "shared", or the task whose own gates count.
        most_open: keep only so many heads, the most open ones; all open heads if None.
        corpus: the data of the run.
    """

    source: RunFolder
    gate_set: str
    most_open: int | None
    corpus: Corpus

    @property
    def tasks(self) -> list[str]:
        """The tasks that the pruned run serves."""
        every = list(self.source.read_config()["tasks"])
        return every if self.gate_set == SHARED else [self.gate_set]


@dataclass
class Pruned:
    """What came of it.

    Attributes:
        full: the transformer before, in evaluation mode, without the gates.
        gates: (L, A) float32 with closed ones at 0, in original numbering.
        kept_before: the heads that were there before.
        model: the run as it was written and read back.
        heads: which are left.
        parameters: "before" and "after" → part → number.
        difference: between word vectors before and after, relative to the largest number in them.
    """

    full: PreTrainedModel
    gates: Tensor
    kept_before: Sequence[Sequence[int]]
    model: MultiTaskModel
    heads: KeptHeads
    parameters: dict[str, dict[str, int]]
    difference: float


def request(run: str | Path, task: str | None, most_open: int | None) -> RemovalRequest:
    """Check what is asked for. Nothing is written.

    Raises:
        RunError: no run, one without gates, a task it has no gates for, more heads than there are, or other data.
    """
    source = RunFolder.with_weights(run)
    sets = _gate_sets(source)
    if task is None and SHARED not in sets:
        raise RunError(
            f"{source.path} has a gate set for each task, so each task lost other heads; expected --task with one of "
            f"{', '.join(sets)}"
        )
    if task is not None and task not in sets:
        shared = "one gate set that all tasks share; leave --task out"
        there = shared if SHARED in sets else f"gates of {', '.join(sets)}"
        raise RunError(f"{source.path} has no gates of the task {task!r}: it has {there}")
    layers, heads = next(iter(sets.values())).shape
    if most_open is not None and most_open > layers * heads:
        raise RunError(
            f"--heads {most_open}: expected at most {layers * heads} heads, which is all that the encoder of "
            f"{source.path} has ({layers} layers of {heads})"
        )
    path, wanted = Path(source.read_config()["data"]["path"]), source.read_manifest()["data"]["fingerprint"]
    corpus = load_corpus(path)
    if corpus.fingerprint != wanted:
        raise RunError(
            f"{path} has the fingerprint {corpus.fingerprint[:16]}…, but {source.path} was trained on {wanted[:16]}…; "
            "bring that data back: the run is checked and scored on it after removal"
        )
    return RemovalRequest(source, task or SHARED, most_open, corpus)


def _gate_sets(run: RunFolder) -> dict[str, Any]:
    """Name of a gate set, shared or a task → its gates in the run's best epoch, (L, A)."""
    return {claim.label.partition(":")[2].lower() or SHARED: claim.gates for claim in load_claims([run.path])}


@contextlib.contextmanager
def appearing(out: Path) -> Iterator[RunFolder]:
    """A folder beside ``out`` that takes its place at the end, if nothing goes wrong; else nothing is left.

    Of two that end there, the last one stays, whole.

    Raises:
        RunError: ``out`` is a file, or holds something; or the disk refused.
    """
    if out.exists() and not out.is_dir():
        raise RunError(f"--out: {out} is a file; name a new folder")
    if out.is_dir() and any(out.iterdir()):
        raise RunError(f"--out: {out} is not empty; name a new folder, or remove that one")
    try:
        with replacing_folder(out) as beside:
            yield RunFolder(beside)
    except OSError as error:
        raise RunError(f"{out} could not be written ({error.strerror or error})") from error


def prune(asked: RemovalRequest, folder: RunFolder, out: Path, device: str | None = None) -> Pruned:
    """Remove the heads and write the run, but for its results.

    Args:
        folder: where the files go.
        out: what that folder will be called.
        device: another device than the run's own.

    Raises:
        RunError: weights and gates disagree, or the result does not compute what the masked model computes.
        EncoderError: heads of this encoder cannot be removed.
    """
    config = build_config(asked.source.read_config(), str(asked.source.config_path))
    setup.settle(config.train)
    model = MultiTaskModel.load(asked.source.path, device=hardware.choose_device(device or config.train.device))
    gates = chosen_gates(model, asked)
    encoder = model.encoder
    sentences = list(asked.corpus[config.data.dev])[:CHECKED_SENTENCES]
    masked = word_vectors(model, sentences, gates)
    transformer = cast(PreTrainedModel, encoder.transformer)
    kept_before, full = encoder.places.kept, copy.deepcopy(transformer)
    left = MultiTaskModel(encoder, {name: model.tasks[name] for name in asked.tasks})  # type: ignore[misc]
    sizes = {"before": left.sizes()}
    fold_means(encoder, gates)
    encoder.head_map = remove_heads(transformer, gates, kept_before)
    del encoder.places  # they knew the heads as they lay before
    sizes["after"] = left.sizes()
    write(asked, folder, out, left, sizes)
    again = MultiTaskModel.load(folder.path, device=str(model.device))
    removed = word_vectors(again, sentences, None)
    difference = float((masked - removed).abs().max() / masked.abs().max())
    if not difference <= TOLERANCE:
        raise RunError(
            f"{asked.source.path}: without the heads, word vectors of {len(sentences)} sentences of {config.data.dev} "
            f"differ by {difference:.1e} of the largest number in them, expected at most {TOLERANCE:.0e}; nothing is "
            "written. This is a defect: please report it with the encoder's name"
        )
    return Pruned(full, gates, kept_before, again, encoder.head_map, sizes, difference)


def chosen_gates(model: MultiTaskModel, asked: RemovalRequest) -> Tensor:
    """The gates of the run's best weights, (L, A), with those at 0 whose heads are to go."""
    gates = cast(Gates, model.gates[asked.gate_set]).evaluated().detach()
    recorded = torch.from_numpy(_gate_sets(asked.source)[asked.gate_set])
    if float((gates.cpu() - recorded).abs().max()) > RECORDED:
        raise RunError(
            f"{asked.source.path}: gates.jsonl and the weights of epoch {asked.source.read_best()['joint']['epoch']} "
            "disagree; one of them is from another run"
        )
    gates = gates * (gates > OPEN)
    return gates if asked.most_open is None else gates * top_mask(gates, asked.most_open)


@torch.no_grad()
def word_vectors(model: MultiTaskModel, sentences: Sequence[Sentence], gates: Tensor | None) -> Tensor:
    """Vectors of all words, (N, H), in float32 with the autocast off."""
    pieces = model.encoder.tokenize_all([sentence.words for sentence in sentences])
    rows = [model.encoder(model.encoder.collate([row]).to(model.device), gates).words for row in pieces]
    return torch.cat(rows)


def write(
    asked: RemovalRequest, folder: RunFolder, out: Path, model: MultiTaskModel, counted: dict[str, dict[str, int]]
) -> None:
    """All files of the run but its results; config.yaml last."""
    source, heads = asked.source, cast(KeptHeads, model.encoder.head_map)
    tree, manifest, best = source.read_config(), source.read_manifest(), source.read_best()
    vocabularies = source.read_vocabularies()
    epoch = best["joint"]["epoch"]
    try:
        model.encoder.save(folder.encoder_path)
    except Exception as error:  # safetensors and tokenizers tell of a full disk by classes of their own
        if out_of_memory(error):
            raise
        raise RunError(f"{out}: its encoder could not be written ({error}); nothing was left there") from error
    sha256 = save_weights(folder.weights_path(epoch), model)
    folder.write_json("vocabulary.json", {task: vocabularies[task] for task in asked.tasks})
    kept = {key: {"epoch": epoch, "score": best[key]["score"], "sha256": sha256} for key in ("joint", *asked.tasks)}
    folder.write_json("best.json", kept)
    record = {
        "from": str(source.path),
        "epoch": epoch,
        "sha256": file_sha256(source.weights_path(epoch)),
        "gates": asked.gate_set,
        "most_open": asked.most_open,
        "heads_kept": heads.count,
        "heads": [list(row) for row in heads.kept],
        "parameters": counted,
        "made": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "mtlprune": __version__,
        "command": sys.argv,
        "config": tree,
    }
    manifest |= {"files": folder.hashes(), "parameters": counted["after"], "pruned": record}
    folder.write_json("manifest.json", manifest)
    folder.write_config(pruned_config(tree, asked.tasks, out))


def pruned_config(tree: dict[str, Any], tasks: list[str], out: Path) -> dict[str, Any]:
    """The configuration of the pruned run: the source's, but for the encoder, which is now in the run's own folder.

    So `mtlprune bench` measures the smaller encoder, and `mtlprune train` begins from it.
    """
    changed = {
        "name": f"{tree['name']}-pruned",
        "tasks": tasks,
        "encoder": {**tree["encoder"], "name": str((out / "encoder").resolve()), "random": False},
        "train": {**tree["train"], "start": None, "freeze": []},
        "pruning": {"method": "none"},
    }
    return build_config({**tree, **changed}, str(out)).model_dump(mode="json")


def score(folder: RunFolder, model: MultiTaskModel, corpus: Corpus) -> Evaluation:
    """Evaluate on dev, as training does after an epoch, and write results and best.json."""
    config = build_config(folder.read_config(), str(folder.config_path))
    split, best = config.data.dev, folder.read_best()["joint"]
    dev = list(corpus[split])
    found = evaluate(model, dev, hardware.dtype(config.train.precision))
    folder.write_results(split, found.scores, [s.id for s in dev], found.counts, found.predictions)
    scores = {"joint": found.joint(), **found.main()}
    folder.write_json("best.json", {key: {**best, "score": value} for key, value in scores.items()})
    return found
