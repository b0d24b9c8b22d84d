"""`mtlprune export --remove`: convert a run with closed heads into a run folder without these heads.

The word vectors of both runs are compared before anything is kept.
"""

import contextlib
import datetime
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from mtlprune import __version__
from mtlprune.config.config import Config, build_config
from mtlprune.corpora.store import Corpus, load_corpus
from mtlprune.encoder.gates import Gates
from mtlprune.encoder.interventions import fold_means
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.removal import KeptHeads, remove_heads
from mtlprune.errors import out_of_memory
from mtlprune.evaluation.head_masks import OPEN_ABOVE
from mtlprune.io.files import file_sha256, replacing_folder
from mtlprune.model import MultiTaskModel
from mtlprune.runs.claims import load_claims
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.runs.groups import SHARED
from mtlprune.sentence import Sentence
from mtlprune.training import hardware
from mtlprune.training.checkpoint import save_weights
from mtlprune.training.evaluation import Evaluation, evaluate
from mtlprune.training.pruning.gate_penalty import seeded
from mtlprune.training.pruning.penalty import largest

_CHECKED_SENTENCES = 64
"""The number of dev sentences whose word vectors are compared."""
TOLERANCE = 1e-5
"""The largest difference between outputs before and after an export, relative to the largest output."""


@dataclass
class RemovalRequest:
    """A request for the removal of heads, checked as far as possible without loading the model.

    Attributes:
        source: the folder of the run.
        task: the task whose gates or clones are used; None if all tasks share them.
        gate_set: the gate set that is used, "shared" or the task.
        most_open: the number of heads to keep, which are the heads with the largest gates; None keeps all open heads.
        corpus: the corpus of the run.
    """

    source: RunFolder
    task: str | None
    gate_set: str
    most_open: int | None
    corpus: Corpus

    @property
    def tasks(self) -> list[str]:
        """The tasks of the run without the removed heads."""
        return list(self.source.config.tasks) if self.task is None else [self.task]


@dataclass
class Pruned:
    """The outcome of a removal of heads.

    Attributes:
        gates: the gates by which heads were removed, (L, A) float32 in original numbering, with 0 for removed heads.
        model: the model without the removed heads, reloaded from its folder.
        heads: the heads that remain.
        parameters: "before" and "after" → part of the model → number of parameters.
        difference: the largest difference between word vectors before and after, relative to the largest number in
            them.
    """

    gates: Tensor
    model: MultiTaskModel
    heads: KeptHeads
    parameters: dict[str, dict[str, int]]
    difference: float


def request(run: str | Path, task: str | None, most_open: int | None) -> RemovalRequest:
    """Return a request for the removal of heads after all checks that need no model; nothing is written.

    Args:
        run: the folder of the run.
        task: the task whose gates or clones are used, for a run with separate gates or clones for each task.
        most_open: the number of heads to keep; None keeps all open heads.

    Raises:
        RunError: there is no such run, it has no gates, the arguments do not fit it, or its corpus has changed.
    """
    source = RunFolder.with_weights(run)
    sets = {claim.label.partition(":")[2].lower() or SHARED: claim.gates for claim in load_claims([source.path])}
    config = source.config
    cloned = config.treatment.clone is not None
    if task is None and (cloned or SHARED not in sets):
        obstacle = "clones of heads" if cloned else "a gate set for each task, so each task has other closed heads"
        raise RunError(f"{source.path} has {obstacle}; give --task with one of {', '.join(config.tasks)}")
    if task is not None and task not in (config.tasks if cloned else sets):
        shared = "one gate set that all tasks share; leave --task out"
        available = shared if SHARED in sets else f"gates of {', '.join(sets)}"
        raise RunError(f"{source.path}: expected gates of the task {task!r}, found {available}")
    layers, heads = next(iter(sets.values())).shape
    if most_open is not None and most_open > layers * heads:
        raise RunError(
            f"--keep {most_open}: expected at most {layers * heads} heads, which is all that the encoder of "
            f"{source.path} has ({layers} layers of {heads})"
        )
    path, expected_fingerprint = source.corpus_path(), source.read_manifest()["data"]["fingerprint"]
    corpus = load_corpus(path)
    if corpus.fingerprint != expected_fingerprint:
        raise RunError(
            f"{path} has the fingerprint {corpus.fingerprint[:16]}…, but {source.path} was trained on "
            f"{expected_fingerprint[:16]}…; restore that corpus, on which the run is checked and scored after removal"
        )
    return RemovalRequest(source, task, SHARED if SHARED in sets else str(task), most_open, corpus)


@contextlib.contextmanager
def appearing(out: Path) -> Iterator[RunFolder]:
    """Yield a temporary run folder that becomes ``out`` at the end of the context, or is deleted after an error.

    Raises RunError if ``out`` is a file or a folder with content, or cannot be written.
    """
    if out.exists() and not out.is_dir():
        raise RunError(f"--out: {out} is a file; name a new folder")
    if out.is_dir() and any(out.iterdir()):
        raise RunError(f"--out: {out} is not empty; name a new folder, or remove this folder")
    try:
        with replacing_folder(out) as staging:
            yield RunFolder(staging)
    except OSError as error:
        raise RunError(f"{out} could not be written ({error.strerror or error})") from error


def prune(request: RemovalRequest, folder: RunFolder, out: Path) -> Pruned:
    """Remove the closed heads of a run, write the new run without results, reload it, and compare it with the run.

    Args:
        folder: the folder to which the files are written.
        out: the final path of the folder, for messages and for the configuration.

    Raises:
        RunError: the new model computes other word vectors than the model with closed heads.
        EncoderError: heads of this encoder cannot be removed.
    """
    config = request.source.config
    hardware.configure_process(config.train.threads)
    model = MultiTaskModel.load(request.source.path, device=hardware.choose_device(config.train.device))
    gates = _chosen_gates(model, request, seeded(config, 9))
    encoder = model.encoder
    sentences = list(request.corpus[config.data.dev])[:_CHECKED_SENTENCES]
    before = _word_vectors(model, sentences, gates, request.task)
    if request.task is not None:
        model.fold_clones(request.task)
    pruned_model = MultiTaskModel(encoder, {name: model.tasks[name] for name in request.tasks})  # type: ignore[misc]
    sizes = {"before": pruned_model.sizes()}
    head_map = cut(encoder, gates)
    sizes["after"] = pruned_model.sizes()
    _write_run(request, folder, out, pruned_model, sizes)
    reloaded = MultiTaskModel.load(folder.path, device=str(model.device))
    after = _word_vectors(reloaded, sentences, None)
    difference = float((before - after).abs().max() / before.abs().max())
    if not difference <= TOLERANCE:
        raise RunError(
            f"{request.source.path}: without the heads, word vectors of {len(sentences)} sentences of "
            f"{config.data.dev} differ by {difference:.1e} of the largest number in them, expected at most "
            f"{TOLERANCE:.0e}; nothing was written. This is a defect of mtlprune. Please report it with the name of "
            "the encoder"
        )
    return Pruned(gates, reloaded, head_map, sizes, difference)


def cut(encoder: Encoder, gates: Tensor) -> KeptHeads:
    """Remove the closed heads from an encoder in place, and return the heads that remain.

    The means or constants that removed heads contribute are added to biases, and the other gates are folded into the
    weights. Raises EncoderError if heads of this encoder cannot be removed.
    """
    fold_means(encoder, gates)
    encoder.head_map = remove_heads(cast(PreTrainedModel, encoder.transformer), gates, encoder.head_hooks.kept_heads)
    encoder.forget_head_hooks()
    return encoder.head_map


def _chosen_gates(model: MultiTaskModel, request: RemovalRequest, generator: np.random.Generator) -> Tensor:
    """Return the gates of the run's best weights, (L, A), with 0 for the heads to remove; ties are broken at random."""
    gates = cast(Gates, model.gates[request.gate_set]).evaluated().detach()
    gates = gates * (gates > OPEN_ABOVE)
    if request.most_open is None:
        return gates
    most_open = min(request.most_open, int((gates > 0).sum()))  # chance need not decide between closed heads
    return gates * largest(gates, most_open, generator, "gates have")


@torch.no_grad()
def _word_vectors(
    model: MultiTaskModel, sentences: Sequence[Sentence], gates: Tensor | None, task: str | None = None
) -> Tensor:
    """Encode sentences, and return the vectors of all words, (words, hidden size), in float32 without autocast.

    If the encoder has clones of heads, the clones of ``task`` are used.
    """
    encoder = model.encoder
    pieces = encoder.tokenize_sentences(sentences)
    batches = [encoder.collate([row]).to(model.device) for row in pieces]
    if encoder.clones is None:
        return torch.cat([encoder(batch, gates).words for batch in batches])
    return torch.cat([encoder.encode_for_tasks(batch, [str(task)], gates)[0].words for batch in batches])


def _write_run(
    request: RemovalRequest,
    folder: RunFolder,
    out: Path,
    model: MultiTaskModel,
    parameter_counts: dict[str, dict[str, int]],
) -> None:
    """Write all files of the new run except its results, with config.yaml last.

    The manifest gets the SHA-256 of the files later, in `score`.

    Args:
        folder: the folder to which the files are written.
        out: the final path of the folder.
        model: the model without the removed heads.
        parameter_counts: "before" and "after" → part of the model → number of parameters.

    Raises:
        RunError: the files could not be written.
    """
    source, heads = request.source, cast(KeptHeads, model.encoder.head_map)
    config, manifest, best = source.config, source.read_manifest(), source.read_best()
    vocabularies = source.read_vocabularies()
    epoch = best["joint"]["epoch"]
    try:
        model.encoder.save(folder.encoder_path)
    # safetensors and tokenizers report a full disk with exceptions of their own classes, so all exceptions are caught.
    except Exception as error:
        if out_of_memory(error):
            raise
        raise RunError(f"{out}: the encoder could not be written ({error}); nothing was written") from error
    sha256 = save_weights(folder.weights_path(epoch), model)
    folder.write_json("vocabulary.json", {task: vocabularies[task] for task in request.tasks})
    best_scores = {
        key: {"epoch": epoch, "score": best[key]["score"], "sha256": sha256} for key in ("joint", *request.tasks)
    }
    folder.write_json("best.json", best_scores)
    record = {
        "from": str(source.path),
        "epoch": epoch,
        "sha256": file_sha256(source.weights_path(epoch)),
        "gates": request.gate_set,
        "most_open": request.most_open,
        "heads_kept": heads.count,
        "heads": [list(row) for row in heads.kept],
        "parameters": parameter_counts,
        "made": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "mtlprune": __version__,
        "command": sys.argv,
        "config": config.model_dump(mode="json"),
    }
    manifest |= {"files": {}, "parameters": parameter_counts["after"], "pruned": record}
    folder.write_json("manifest.json", manifest)
    folder.write_config(_pruned_config(config, request.tasks, out).model_dump(mode="json"))


def _pruned_config(config: Config, tasks: list[str], out: Path) -> Config:
    """Return the configuration of the new run: that of the source without pruning, with the smaller encoder.

    The encoder is named by its folder in the new run, so that `mtlprune bench` measures the smaller encoder and
    `mtlprune train` begins from it.
    """
    tree = config.model_dump(mode="json")
    changes = {
        "name": f"{config.name}-pruned",
        "tasks": tasks,
        "encoder": tree["encoder"] | {"name": str((out / "encoder").resolve()), "random": False},
        "train": tree["train"] | {"start": None, "freeze": []},
        "pruning": {"method": "none"},
        "treatment": tree["treatment"] | {"clone": None},
    }
    return build_config(tree | changes, str(out))


def score(folder: RunFolder, model: MultiTaskModel, corpus: Corpus, source: RunFolder) -> Evaluation:
    """Evaluate the new run on dev, and write best.json, the results, and the SHA-256 of all files.

    Args:
        source: the run before the removal. If it has results on dev, the same sentences are used, so that the scores of
            both runs can be compared.
    """
    config = folder.config
    split, best = config.data.dev, folder.read_best()["joint"]
    if source.has_counts(split):
        dev = source.scored_sentences(split, corpus[split])
    else:
        dev = list(corpus[split].first(config.data.dev_sentences))
    evaluation = evaluate(model, dev, hardware.dtype(config.train.precision))
    scores = {"joint": evaluation.joint(), **evaluation.main()}
    folder.write_json("best.json", {key: {**best, "score": value} for key, value in scores.items()})
    folder.write_results(split, evaluation.scores, [s.id for s in dev], evaluation.counts, evaluation.predictions)
    folder.write_end()
    return evaluation
