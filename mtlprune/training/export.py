"""`mtlprune export` without `--remove`: write a run as a folder that plain transformers can load.

The file has the check of a request, the export of the weights with a comparison of the reloaded model, and the model
card.
"""

import contextlib
import inspect
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub import EvalResult, ModelCardData
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers import __version__ as transformers_version

from mtlprune import __version__
from mtlprune.config.config import Config
from mtlprune.config.decoders import DECODERS
from mtlprune.corpora import CorpusError
from mtlprune.corpora.store import read_info
from mtlprune.encoder.export import (
    fold_gates,
    join_tags,
    label_words,
    score_text,
    text_tokenizer,
    with_all_heads,
    with_classifier,
    with_sequence_classifier,
)
from mtlprune.encoder.families import ENCODER_DECODERS
from mtlprune.encoder.gates import Gates
from mtlprune.encoder.interventions import fold_means
from mtlprune.encoder.model import Encoder, input_embeddings
from mtlprune.encoder.removal import KeptHeads
from mtlprune.encoder.sources import base_of, quiet
from mtlprune.errors import printable
from mtlprune.evaluation.scores import SCORES, count_names, main_score, name_of
from mtlprune.layers import OF_SENTENCES
from mtlprune.model import MultiTaskModel
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.sentence import Sentence
from mtlprune.statistics.paired import counts_in
from mtlprune.statistics.resamples import System, percentiles, resampled_scores
from mtlprune.tasks import decoder_class
from mtlprune.tasks.base import Task
from mtlprune.tasks.sentence import SentenceTask
from mtlprune.training.pruning.head_removal import TOLERANCE

_ROWS, _SLOTS = 4, 32
"""Shape of the random sub-words on which the run and the exported model are compared: rows, and sub-words of a row."""
_SENTENCES = 64
"""Number of dev sentences on which the labels of the run and of the exported model are compared."""
_RESAMPLES = 1000
"""Number of resamples of sentences behind the intervals of a model card."""
_HARD = "O'Brien of U.S. Steel met Jean-Luc , who paid 5.75 % ."
"""Another sentence on which labels are compared; tokenizers split several of its words."""


@dataclass
class ExportRequest:
    """A request for an export, checked as far as possible without loading weights.

    Attributes:
        run: the folder of the run.
        config: the configuration of the run.
        gate_set: the gate set that is folded into the weights, "shared" or a task; None for a run without gates.
        clones: the task whose clones of heads are folded into the weights; None for a run without clones.
        head: the task whose linear layer is exported with the encoder; None exports the encoder alone.
        licence: the licence for the model card, if given.
    """

    run: RunFolder
    config: Config
    gate_set: str | None
    clones: str | None
    head: str | None
    licence: str | None


@dataclass
class Exported:
    """The outcome of an export.

    Attributes:
        gates: the gates in the weights, (L, A) float32; None for a run without gates.
        clones: the task whose clones of heads are in the weights; None for a run without clones.
        heads: the remaining heads of a run from which `mtlprune export --remove` removed heads; else None.
        difference: the largest difference between outputs of the run and of the exported model, relative to the largest
            output.
        limit: the number of sub-words that the model can read at once; None if there is no limit.
        advice: instructions for users of the tokenizer, so that it splits texts like the run.
        auto: the name of the class of transformers that loads the folder.
        pooling: how the vector of a word follows from its sub-words, "first" or "mean".
        pooler: whether transformers add a pooler with random weights unless told otherwise.
        reading: arguments of `label_words` or `score_text` in the model card's code; None without a task's layer.
        compared: the number of words in the sentences whose labels (or scores) were compared.
    """

    gates: Tensor | None
    clones: str | None
    heads: KeptHeads | None
    difference: float
    limit: int | None
    advice: str
    auto: str
    pooling: str
    pooler: bool
    reading: dict[str, Any] | None
    compared: int


def request(run: str | Path, task: str | None, head: str | None, licence: str | None) -> ExportRequest:
    """Return a request for an export after all checks that need no weights; nothing is written.

    Args:
        run: the folder of the run.
        task: the task whose gates or clones are exported, for a run with separate gates or clones for each task.
        head: the task whose linear layer is exported.
        licence: the licence for the model card.

    Raises:
        RunError: there is no such run, plain transformers cannot compute its encoder, or ``task`` or ``head`` does not
            fit the run.
    """
    folder = RunFolder.with_weights(run)
    config = folder.config
    part, pruning, path = config.encoder, config.pruning, folder.path
    if not part.context:
        raise RunError(
            f"{path} has an encoder without context (encoder.context: false), which cannot be exported; name another "
            "run"
        )
    if part.fusion != "none":
        raise RunError(
            f"{path} joins all layers into word vectors (encoder.fusion: {part.fusion}), which no model of "
            "transformers can do; name a run with fusion: none"
        )
    if head is not None:
        _check_head(config, path, head)
    decoder_task, clones = task or head, None
    gates: str | None = None if pruning.method == "none" else pruning.sets
    if config.treatment.clone is not None:
        obstacle, gate_set, clones = "clones of heads", gates, decoder_task
    elif gates == "per_task":
        obstacle, gate_set = "a gate set", decoder_task
    else:
        if task is not None:
            found_gates = "no gates" if gates is None else "one gate set that all tasks share"
            raise RunError(f"{path} has {found_gates}; leave --task out")
        return ExportRequest(folder, config, gates, None, head, licence)
    if decoder_task is None:
        raise RunError(
            f"{path} has {obstacle} for each task, but the exported weights hold one; give --task with one of "
            f"{', '.join(config.tasks)}"
        )
    if task is not None and (task not in config.tasks or head not in (None, task)):
        expected = head or f"one of {', '.join(config.tasks)}"
        raise RunError(f"{path} has {obstacle} for each task; expected --task {expected}, found {task}")
    return ExportRequest(folder, config, gate_set, clones, head, licence)


def _check_head(config: Config, path: Path, head: str) -> None:
    if head not in config.tasks:
        raise RunError(f"{path}: expected one of its tasks {', '.join(config.tasks)} after --head, found {head!r}")
    decoder = DECODERS[config.decoder(head)]
    if decoder.kind in OF_SENTENCES:
        if getattr(config.decoders, head).pooling != "first":
            raise RunError(
                f"--head: {path} reads the sentences of {head} as the mean of their words, but models of transformers "
                f"read the first special token; expected a run with decoders.{head}.pooling: first"
            )
        return
    if decoder_class(config.decoder(head)).linear is Task.linear:
        raise RunError(
            f"--head: the decoder of {head} is more than a linear layer on each word; expected a task of tags (type "
            "pos), of spans (type bio) or of whole sentences (types label, number and labels)"
        )
    if config.encoder.pooling != "first":
        raise RunError(
            f"--head: {path} reads words as the mean of their sub-words, but models of transformers label each "
            "sub-word by itself; expected a run with encoder.pooling: first"
        )


def export(request: ExportRequest, folder: Path) -> Exported:
    """Write the exported model into a folder, reload it with plain transformers, and compare it with the run.

    Raises:
        RunError: the reloaded model computes other outputs or other labels than the run.
        EncoderError: gates cannot be folded into the weights, removed heads cannot be put back, or transformers have no
            model for the linear layer.
    """
    model = MultiTaskModel.load(request.run.path)
    encoder = model.encoder
    gates = None
    if request.gate_set is not None:
        gates = cast(Gates, model.gates[request.gate_set]).evaluated().detach()
    task: Any = model.tasks[request.head] if request.head is not None else None
    if isinstance(task, SentenceTask):
        return _export_sentence_task(request, folder, model, task, gates)
    linear = task.linear() if task is not None else None
    sentences = [list(sentence.words) for sentence in _checked_sentences(request)] if linear else []
    before, labels = _computed(encoder, gates, request.clones, linear, sentences)
    transformer = _folded(model, gates, request.clones)
    with quiet():
        tokenizer, advice = text_tokenizer(encoder, request.run.encoder_path)
        tokenizer.save_pretrained(folder)
        (transformer if linear is None else with_classifier(transformer, *linear)).save_pretrained(folder)
        auto = _auto_class(request, transformer.config.model_type)
        reloaded = auto.from_pretrained(folder, trust_remote_code=False).eval()  # as the model card does
        reloaded_tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        after = _states(reloaded, encoder.limit, None)
    reading = {name: getattr(encoder.word_pieces, name) for name in ("lead", "before", "after", "unknown")}
    reading["room"] = encoder.frame.capacity
    difference = _check_states(request, before, after)
    label = partial(label_words, tokenizer=reloaded_tokenizer, model=reloaded, **reading)
    _check_labels(request, sentences, labels, label)
    return Exported(
        gates,
        request.clones,
        encoder.head_map,
        difference,
        encoder.limit,
        advice,
        auto=auto.__name__,
        pooling=encoder.pooling,
        pooler="add_pooling_layer" in inspect.signature(type(transformer).__init__).parameters,
        reading=reading if linear else None,
        compared=sum(map(len, sentences)),
    )


_PROBLEMS = {
    "label": "single_label_classification",
    "number": "regression",
    "labels": "multi_label_classification",
}
"""Kind of a layer of whole sentences → the ``problem_type`` in the configuration of transformers."""


def _export_sentence_task(
    request: ExportRequest, folder: Path, model: MultiTaskModel, task: SentenceTask, gates: Tensor | None
) -> Exported:
    """Export the encoder with the layer of a task of whole sentences, as a model for sequence classification.

    Raises RunError if its scores of dev sentences differ from the scores of the run.
    """
    encoder, (linear, labels) = model.encoder, task.linear_of_sentence()
    sentences = _checked_sentences(request)
    with torch.no_grad(), _gated(encoder, gates, request.clones):
        batches = [encoder.collate([pieces]) for pieces in encoder.tokenize_sentences(sentences)]
        before = torch.cat([linear(encoder(batch).cls) for batch in batches])
    transformer = _folded(model, gates, request.clones)
    with quiet():
        tokenizer, advice = text_tokenizer(encoder, request.run.encoder_path)
        tokenizer.save_pretrained(folder)
        with_sequence_classifier(transformer, linear, labels, _PROBLEMS[task.kind]).save_pretrained(folder)
        reloaded = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=False).eval()
        reloaded_tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    names = "lead", "before", "between", "after", "unknown", "second_type"
    reading = {name: getattr(encoder.word_pieces, name) for name in names} | {"room": encoder.frame.capacity}
    score: Any = partial(score_text, tokenizer=reloaded_tokenizer, model=reloaded, **reading)
    texts = [(list(s.words[: s.split]), list(s.words[s.split :]) if s.split else []) for s in sentences]
    after = torch.stack([score(first, second) for first, second in texts])
    return Exported(
        gates,
        request.clones,
        encoder.head_map,
        _check_states(request, before, after),
        encoder.limit,
        advice,
        auto="AutoModelForSequenceClassification",
        pooling="first",
        pooler=False,
        reading=reading,
        compared=sum(map(len, sentences)),
    )


def _checked_sentences(request: ExportRequest) -> list[Sentence]:
    """Return the sentences whose labels are compared, `_HARD` and the first sentences of dev.

    Sentences of dev are read from the predictions of the run; a run without them contributes only `_HARD`.
    """
    split = request.config.data.dev
    has_predictions = (request.run.path / "predictions" / f"{split}.jsonl").is_file()
    dev = request.run.read_predictions(split)[:_SENTENCES] if has_predictions else []
    return [Sentence("hard", tuple(_HARD.split())), *dev]


@contextlib.contextmanager
def _gated(encoder: Encoder, gates: Tensor | None, clones: str | None) -> Iterator[None]:
    """Apply the gates, and the clones of heads of a task, to the forward passes within the context."""
    with contextlib.ExitStack() as stack:
        if gates is not None:
            stack.enter_context(encoder.gated(gates))
        if clones is not None and encoder.clones is not None:
            stack.enter_context(encoder.clones.serving([clones]))
        yield


def _computed(
    encoder: Encoder,
    gates: Tensor | None,
    clones: str | None,
    linear: tuple[nn.Linear, list[str]] | None,
    sentences: list[list[str]],
) -> tuple[Tensor, list[list[str]]]:
    """Return the outputs of the run for random sub-words (see `_states`), and its labels of the words of sentences."""
    with _gated(encoder, gates, clones):
        before = _states(cast(PreTrainedModel, encoder.transformer), encoder.limit, linear and linear[0])
        return before, [_labels(encoder, linear, words) for words in sentences] if linear else []


def _folded(model: MultiTaskModel, gates: Tensor | None, clones: str | None) -> PreTrainedModel:
    """Return the transformer of the run with clones, means and gates folded into its weights.

    Removed heads come back as columns of zeros, because plain transformers expect all heads.
    """
    encoder, transformer = model.encoder, cast(PreTrainedModel, model.encoder.transformer)
    if clones is not None:
        model.fold_clones(clones)
    if gates is not None:
        fold_means(encoder, gates)
        fold_gates(transformer, gates, encoder.head_hooks.kept_heads)
    if encoder.head_map is not None:
        transformer = with_all_heads(transformer, encoder.head_map)
    # The wrapper that refuses to save a gated model is removed, because the gates are now in the weights.
    vars(transformer).pop("save_pretrained", None)
    return transformer


def _check_states(request: ExportRequest, before: Tensor, after: Tensor) -> float:
    """Return the largest difference relative to the largest number in ``before``; raise RunError above `TOLERANCE`."""
    difference = float((before - after).abs().max() / before.abs().max())
    if not difference <= TOLERANCE:
        raise RunError(
            f"{request.run.path}: what transformers read back differs by {difference:.1e} of the largest number, "
            f"expected at most {TOLERANCE:.0e}; nothing was written. This is a defect of mtlprune. Please report it "
            "with the name of the encoder"
        )
    return difference


def _check_labels(
    request: ExportRequest,
    sentences: list[list[str]],
    labels: list[list[str]],
    label: Callable[[list[str]], list[tuple[str, float]]],
) -> None:
    """Raise RunError if the code of the model card (``label``) labels words differently from the run (``labels``)."""
    for words, expected_labels in zip(sentences, labels, strict=True):
        found_labels = [name for name, _ in label(words)]
        if found_labels != expected_labels:
            raise RunError(
                f"{request.run.path}: the model card's code labels {' '.join(words)!r} as {' '.join(found_labels)}, "
                f"the run as {' '.join(expected_labels)}; nothing was written. This is a defect of mtlprune. Please "
                "report it with the name of the encoder"
            )


@torch.no_grad()
def _labels(encoder: Encoder, linear: tuple[nn.Linear, list[str]], words: list[str]) -> list[str]:
    best = linear[0](encoder(encoder.collate([encoder.tokenize(words)])).words).argmax(-1)
    return [linear[1][place] for place in best.tolist()]


@torch.no_grad()
def _states(model: nn.Module, limit: int | None, scores: nn.Linear | None) -> Tensor:
    """Compute the last hidden states (rows, sub-words, hidden size) of random sub-words, the same at every call.

    With the linear layer ``scores``, or if the model has a classifier, the scores of labels are returned instead.
    """
    vocabulary = input_embeddings(cast(PreTrainedModel, model)).num_embeddings
    input_ids = torch.randint(
        vocabulary, (_ROWS, min(limit or _SLOTS, _SLOTS)), generator=torch.Generator().manual_seed(0)
    )
    output = model(input_ids=input_ids, attention_mask=torch.ones_like(input_ids))
    if "logits" in output:
        return output.logits
    hidden = output.last_hidden_state
    return hidden if scores is None else scores(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])


def _auto_class(request: ExportRequest, kind: str) -> Any:
    """Return the class of transformers that loads the exported folder."""
    if request.head:
        return AutoModelForTokenClassification
    return AutoModelForTextEncoding if kind in ENCODER_DECODERS else AutoModel


def account(exported: Exported) -> str:
    """Describe in sentences how clones, gates and closed heads were exported."""
    clones = (
        f"The clones of heads of {exported.clones} are part of the weights. " if exported.clones is not None else ""
    )
    if (heads := exported.heads) is not None:
        return (
            f"{clones}{heads.count} of {len(heads.kept) * heads.heads} heads are left, gates are folded into the "
            "weights, and closed heads are columns of zeros in the attention output projections."
        )
    if (gates := exported.gates) is None:
        return f"{clones}The run has no gates, so every head is as it was trained."
    closed, folded = (int(mask.sum()) for mask in (gates == 0, (gates > 0) & (gates < 1)))
    return (
        f"{clones}Gates are folded into the attention output projections: {closed} of {gates.numel()} heads are closed "
        f"(their columns are 0), {folded} are scaled down."
    )


# -- model card --------------------------------------------------------------------------------------------------------

_PLAIN = """from transformers import AutoTokenizer, {auto}

tokenizer = AutoTokenizer.from_pretrained(".")  # this folder, or its name on the hub
model = {auto}.from_pretrained("."{pooler})"""
_CLASSIFIER = """from functools import partial
from typing import Any

import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer

folder = "."  # this folder, or its name on the hub
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForTokenClassification.from_pretrained(folder)


{functions}

label = partial(label_words, tokenizer=tokenizer, model=model, {reading})
labels = label("{hard}".split())"""
_SEQUENCE = """from functools import partial
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

folder = "."  # this folder, or its name on the hub
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForSequenceClassification.from_pretrained(folder)


{function}

score = partial(score_text, tokenizer=tokenizer, model=model, {reading})
scores = score("{hard}".split(), [])
{answer}"""
_ANSWERS = {
    "label": "label = model.config.id2label[int(scores.argmax())]",
    "number": "number = float(scores[0])",
    "labels": "labels = [model.config.id2label[place] for place in (scores > 0).nonzero().flatten().tolist()]",
}
_SPANS = """
spans = join_tags([tag for tag, _ in labels])"""
_PIPELINE = """The pipeline of transformers gives other labels, because it reads parts of words (U.S., O'Brien) as
words, and labels sub-words that were not trained. """
_CARD = """---
{facts}
---

# {name}

The encoder of a run of mtlprune {version}: {base}, trained on {tasks} with {sentences} of {data}, seed {seed}.{start}

```python
{loader}
```

The vector of a word in `last_hidden_state` is {pooling}. There is no pooler. {limit}{texts}Written with transformers
{transformers}.

## Attention heads

{heads}

## Scores

Scores are of the run with its decoders{decoders}, in percent, with 95 % intervals over the sentences of the split.
The best epoch was chosen by the scores on {dev}.

| split | task | score | % | 95 % |
|---|---|---|---|---|
{scores}

## Limits

This is one run with one seed. The intervals do not cover other seeds, whose weights and scores differ. The scores hold
for texts like those of {data}, and nothing else was measured. Bias against groups of persons was not tested.

## Licences

| what | licence |
|---|---|
| this model | {licence} |
| {base} | {base_licence} |
| {data} | {data_licence} |
"""


def model_card(request: ExportRequest, exported: Exported) -> str:
    """Return the text of the model card README.md. Raises RunError if the scores of the run are damaged."""
    config, manifest = request.config, request.run.read_manifest()
    start, part, data = config.train.start, config.encoder, manifest["data"].get("name") or Path(config.data.path).name
    name = manifest["pruned"]["config"]["encoder"]["name"] if "pruned" in manifest else part.name
    revision = manifest.get("encoder", {}).get("revision", part.revision)
    hub, base_licence = base_of(name, revision)
    scores = list(_main_scores(request))
    facts = ModelCardData(
        license=request.licence,
        base_model=None if part.random else hub,
        library_name="transformers",
        pipeline_tag=_pipeline(request),
        tags=["mtlprune"],
        **_results(request, data, scores),
    )
    title = f"{'random weights in the shape of ' if part.random else ''}{hub or Path(name).name}"
    return _CARD.format(
        facts=facts.to_yaml(),
        name=_markdown(config.name),
        version=__version__,
        base=_markdown(f"{title} at revision {revision}" if revision else title),
        tasks=", ".join(config.tasks),
        sentences=_sentences(config),
        dev=_markdown(config.data.dev),
        data=_markdown(data),
        seed=config.train.seed,
        start=f" It began with the weights of the finished run {_markdown(Path(start).name)}." if start else "",
        loader=_loader(request, exported),
        pooling=f"the {exported.pooling} of a word's sub-words",
        limit=f"At most {exported.limit} sub-words are seen at once. " if exported.limit else "",
        texts=_PIPELINE if _pipeline(request) == "token-classification" else exported.advice,
        transformers=transformers_version,
        heads=account(exported),
        decoders="" if request.head else ", which are not part of this folder",
        scores="\n".join(
            f"| {split} | {task} | {name} | {value:.2f} | {_interval(request, split, task)} |"
            for split, task, name, value in scores
        ),
        licence=_markdown(request.licence or "not named yet"),
        base_licence=_markdown(base_licence or "not known here (see the page of the encoder)"),
        data_licence=_markdown(_licence_of_data(request) or "not known here"),
    )


def _sentences(config: Config) -> str:
    """Describe the part of the training split that a run used, for the model card."""
    limit, is_half = config.data.train_sentences, config.data.half
    used = "the training sentences" if limit is None else f"the training sentences 1 to {limit:,}"
    return f"one random half of {used}" if is_half else used


def _pipeline(request: ExportRequest) -> str:
    """Return the pipeline tag of the Hugging Face hub for the exported folder."""
    if request.head is None:
        return "feature-extraction"
    is_of_sentences = DECODERS[request.config.decoder(request.head)].kind in OF_SENTENCES
    return "text-classification" if is_of_sentences else "token-classification"


def _markdown(text: str) -> str:
    """Escape the Markdown markup in a text."""
    return re.sub(r"[\\`*<>\[\]|&~]", r"\\\g<0>", printable(text))


def _loader(request: ExportRequest, exported: Exported) -> str:
    if request.head is None:
        return _PLAIN.format(auto=exported.auto, pooler=", add_pooling_layer=False" if exported.pooler else "")
    if (kind := DECODERS[request.config.decoder(request.head)].kind) in OF_SENTENCES:
        reading = ", ".join(f"{name}={value!r}" for name, value in (exported.reading or {}).items())
        return _SEQUENCE.format(
            function=inspect.getsource(score_text), reading=reading, hard=_HARD, answer=_ANSWERS[kind]
        )
    spans = kind == "spans"
    functions = inspect.getsource(label_words) + ("\n\n" + inspect.getsource(join_tags) if spans else "")
    reading = ", ".join(f"{name}={value!r}" for name, value in (exported.reading or {}).items())
    return _CLASSIFIER.format(functions=functions, hard=_HARD, reading=reading) + _SPANS * spans


def _main_scores(request: ExportRequest) -> Iterator[tuple[str, str, str, float]]:
    """Yield (split, task, name of its main score, value in percent) for the scored splits of the run's corpus."""
    decoders = request.config.decoders.model_dump()
    for split in request.run.splits():
        if "." in split:  # results of the best weights of a task, or on another corpus
            continue
        for task, values in request.run.read_scores(split).items():
            main = main_score(task, decoders)
            yield split, task, name_of(task, main, decoders), values[main]


def _interval(request: ExportRequest, split: str, task: str) -> str:
    """Return the 95 % bootstrap interval of a main score over sentences, or a dash if the run has no counts."""
    decoder = request.config.decoder(task)
    kind, name = DECODERS[decoder].kind, main_score(task, request.config.decoders.model_dump())
    names = count_names(kind, name)
    tree = request.run.read_counts(split) if request.run.has_counts(split) else {}
    if (ids_and_rows := counts_in(tree, task, kind, names)) is None:
        return "–"
    [figure] = resampled_scores([System(ids_and_rows[1][None], names, SCORES[kind][name])], _RESAMPLES, seed=0)
    low, high = percentiles(figure.booted[:, 0])
    return "–" if math.isnan(low) else f"{low:.2f} to {high:.2f}"


def _results(request: ExportRequest, data: str, scores: list[tuple[str, str, str, float]]) -> dict[str, Any]:
    """Return the scores of the task whose layer is exported, as metadata that the Hugging Face hub shows."""
    results = [
        EvalResult(
            task_type=_pipeline(request),
            dataset_type=data,
            dataset_name=data,
            dataset_split=split,
            metric_type="f1" if name.endswith("F1") else "pearsonr" if name.startswith("Pearson") else "accuracy",
            metric_name=name,
            metric_value=round(value / 100, 4),
        )
        for split, task, name, value in scores
        if task == request.head
    ]
    return {"model_name": request.config.name, "eval_results": results} if results else {}


def _licence_of_data(request: ExportRequest) -> str | None:
    """Return the licence that the corpus of the run states; None if that corpus is missing or has changed."""
    with contextlib.suppress(CorpusError):
        info = read_info(Path(request.config.data.path))
        if info["fingerprint"] == request.run.read_manifest()["data"]["fingerprint"]:
            return str(info["licence"])
    return None
