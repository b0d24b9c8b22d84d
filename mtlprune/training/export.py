"""From a run to a folder that plain transformers load: what is asked for, the weights, their check, the model card."""

import contextlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from huggingface_hub import ModelCardData
from torch import Tensor
from transformers import AutoModel, PreTrainedModel
from transformers import __version__ as transformers_version

from mtlprune import __version__
from mtlprune.config.config import Config, build_config
from mtlprune.corpora import CorpusError
from mtlprune.corpora.store import read_info
from mtlprune.encoder.export import fold_gates, text_tokenizer, with_all_heads
from mtlprune.encoder.gates import Gates
from mtlprune.encoder.interventions import fold_means
from mtlprune.encoder.model import input_embeddings
from mtlprune.encoder.removal import KeptHeads
from mtlprune.encoder.sources import base_of, quiet
from mtlprune.errors import printable
from mtlprune.evaluation.scores import main_score, name_of
from mtlprune.model import MultiTaskModel
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.training.pruning.head_removal import TOLERANCE

ROWS, SLOTS = 4, 32
"""Size of the random sub-words on which both models are compared, one window each."""


@dataclass
class ExportRequest:
    """An export that is asked for, checked as far as can be without the weights.

    Attributes:
        run: the run.
        config: its settings.
        gate_set: whose gates go into the weights: "shared", a task, or None where it has none.
        clones: the task whose clones of heads go into the weights; None where there are none.
        licence: of the whole, an identifier of the hub.
    """

    run: RunFolder
    config: Config
    gate_set: str | None
    clones: str | None
    licence: str | None


@dataclass
class Exported:
    """The outcome of an export.

    Attributes:
        gates: (L, A) float32; None where the run has none.
        clones: the task whose clones are in the weights.
        heads: what is left, where heads were removed by `mtlprune export --remove`; else None.
        difference: between states before and after, relative to the largest number in them.
        limit: sub-words that the model sees at once.
        reads_texts: whether the tokenizer splits the first word of a text as the run does, or needs a blank before it.
        pooler: whether transformers add one of random weights, if they are not told otherwise.
    """

    gates: Tensor | None
    clones: str | None
    heads: KeptHeads | None
    difference: float
    limit: int | None
    reads_texts: bool
    pooler: bool


def request(run: str | Path, task: str | None, licence: str | None) -> ExportRequest:
    """Check what is asked for. Nothing is written.

    Raises:
        RunError: no run, an encoder that plain transformers cannot compute, a task that it has not.
    """
    folder = RunFolder.with_weights(run)
    config = build_config(folder.read_config(), str(folder.config_path))
    part, pruning, path = config.encoder, config.pruning, folder.path
    if not part.context:
        raise RunError(f"{path} has an encoder without context (encoder.context: false): there is nothing to export")
    if part.fusion != "none":
        raise RunError(
            f"{path} joins all layers into word vectors (encoder.fusion: {part.fusion}), which no model of plain "
            "transformers does; expected fusion: none"
        )
    gates: str | None = None if pruning.method == "none" else pruning.sets
    cloned, own = config.treatment.clone is not None, "clones of heads" if config.treatment.clone else "a gate set"
    if not cloned and gates != "per_task":
        if task is not None:
            available = "no gates" if gates is None else "one gate set that all tasks share"
            raise RunError(f"{path} has {available}; leave --task out")
        return ExportRequest(folder, config, gates, None, licence)
    if task not in config.tasks:
        raise RunError(
            f"{path} has {own} for each task, and weights hold one; expected --task with one of "
            f"{', '.join(config.tasks)}, found {task}"
        )
    return ExportRequest(folder, config, gates if cloned else task, task if cloned else None, licence)


def export(asked: ExportRequest, folder: Path) -> Exported:
    """Fill a folder, read it back with plain transformers, and compare.

    Raises:
        RunError: what was read back does not compute what the run computes.
        EncoderError: gates that no weights can hold, heads that cannot be removed.
    """
    model = MultiTaskModel.load(asked.run.path)
    encoder, transformer = model.encoder, cast(PreTrainedModel, model.encoder.transformer)
    gates = None
    if asked.gate_set is not None:
        gates = cast(Gates, model.gates[asked.gate_set]).evaluated().detach()
    with contextlib.ExitStack() as stack:
        if gates is not None:
            stack.enter_context(encoder.gated(gates))
        if asked.clones is not None and encoder.clones is not None:
            stack.enter_context(encoder.clones.serving([asked.clones]))
        before = states(transformer, encoder.limit)
    if asked.clones is not None:
        model.fold_clones(asked.clones)
    if gates is not None:
        fold_means(encoder, gates)
        fold_gates(transformer, gates, encoder.places.kept)
    heads = encoder.head_map
    if heads is not None:
        transformer = with_all_heads(transformer, heads)
    vars(transformer).pop("save_pretrained", None)  # its gates are in the weights now
    with quiet():
        tokenizer, reads_texts = text_tokenizer(encoder, asked.run.encoder_path)
        tokenizer.save_pretrained(folder)
        transformer.save_pretrained(folder)
        again = AutoModel.from_pretrained(folder, trust_remote_code=False).eval()
        after = states(again, encoder.limit)
    difference = float((before - after).abs().max() / before.abs().max())
    if not difference <= TOLERANCE:
        raise RunError(
            f"{asked.run.path}: what transformers read back differs by {difference:.1e} of the largest number, "
            f"expected at most {TOLERANCE:.0e}; nothing is written. This is a defect: please report it with the "
            "encoder's name"
        )
    pooler = "add_pooling_layer" in inspect.signature(type(transformer).__init__).parameters
    about = difference, encoder.limit, reads_texts, pooler
    return Exported(gates, asked.clones, heads, *about)


@torch.no_grad()
def states(model: PreTrainedModel, limit: int | None) -> Tensor:
    """Last hidden states, (ROWS, T, H), of random sub-words, the same at every call."""
    vocabulary = input_embeddings(model).num_embeddings
    drawn = torch.randint(vocabulary, (ROWS, min(limit or SLOTS, SLOTS)), generator=torch.Generator().manual_seed(0))
    hidden: Tensor = model(input_ids=drawn, attention_mask=torch.ones_like(drawn)).last_hidden_state
    return hidden


def account(found: Exported) -> str:
    """The fate of clones and gates, in sentences."""
    clones = f"The clones of heads of {found.clones} are in the weights. " if found.clones is not None else ""
    return clones + _account_of_gates(found)


def _account_of_gates(found: Exported) -> str:
    if found.heads is not None:
        others = "the others are columns of zeros in the attention output projections"
        of = len(found.heads.kept) * found.heads.heads
        return f"{found.heads.count} of {of} heads are left; {others}."
    if found.gates is None:
        return "The run has no gates: every head is as it was trained."
    closed, folded = (int(some.sum()) for some in (found.gates == 0, (found.gates > 0) & (found.gates < 1)))
    return (
        f"Gates are folded into the attention output projections: {closed} of {found.gates.numel()} heads are closed "
        f"(their columns are 0), {folded} are scaled down."
    )


PLAIN = """from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")  # this folder, or its name on the hub
model = AutoModel.from_pretrained("."{pooler})"""
BLANK = "Texts have to begin with a blank, as every word in a text does. "
CARD = """---
{facts}
---

# {name}

The encoder of a run of mtlprune {version}: {base}, trained on {tasks} with the sentences of {data}, seed {seed}.{start}

```python
{loader}
```

Words are read off `last_hidden_state`: {pooling}. There is no pooler. {limit}{texts}Written with transformers
{transformers}.

## Attention heads

{heads}

## Scores

Of the run with its decoders, which are not part of this folder, in percent.

| split | task | score | % |
|---|---|---|---|
{scores}

## Licences

| what | licence |
|---|---|
| this model | {licence} |
| {base} | {base_licence} |
| {data} | {data_licence} |
"""


def model_card(asked: ExportRequest, found: Exported) -> str:
    """The text of README.md. Raises RunError: scores of the run are damaged."""
    config, manifest = asked.config, asked.run.read_manifest()
    start, part, data = config.train.start, config.encoder, manifest["data"].get("name") or Path(config.data.path).name
    name = manifest["pruned"]["config"]["encoder"]["name"] if "pruned" in manifest else part.name
    revision = manifest.get("encoder", {}).get("revision", part.revision)
    hub, base_licence = base_of(name, revision)
    scores = list(_main_scores(asked))
    facts = ModelCardData(
        license=asked.licence,
        base_model=None if part.random else hub,
        library_name="transformers",
        pipeline_tag="feature-extraction",
        tags=["mtlprune"],
    )
    shown = f"{'random weights in the shape of ' if part.random else ''}{hub or Path(name).name}"
    return CARD.format(
        facts=facts.to_yaml(),
        name=_markdown(config.name),
        version=__version__,
        base=_markdown(f"{shown} at revision {revision}" if revision else shown),
        tasks=", ".join(config.tasks),
        data=_markdown(data),
        seed=config.train.seed,
        start=f" It began with the weights of the finished run {_markdown(Path(start).name)}." if start else "",
        loader=PLAIN.format(pooler=", add_pooling_layer=False" * found.pooler),
        pooling="the mean of a word's sub-words" if part.pooling == "mean" else "the first of a word's sub-words",
        limit=f"At most {found.limit} sub-words are seen at once. " if found.limit else "",
        texts="" if found.reads_texts else BLANK,
        transformers=transformers_version,
        heads=account(found),
        scores="\n".join(f"| {split} | {task} | {name} | {value:.2f} |" for split, task, name, value in scores),
        licence=_markdown(asked.licence or "not stated yet"),
        base_licence=_markdown(base_licence or "not known here; its own page says it"),
        data_licence=_markdown(_licence_of_data(asked) or "not known here"),
    )


def _markdown(text: str) -> str:
    """Text of others as Markdown shows it: nothing in it is markup."""
    return re.sub(r"[\\`*<>\[\]|&~]", r"\\\g<0>", printable(text))


def _main_scores(asked: ExportRequest) -> Iterator[tuple[str, str, str, float]]:
    """Split, task, name of its main score, and value in percent."""
    decoders = asked.run.read_config().get("decoders", {})
    for split in asked.run.splits():
        if "." in split:  # a task's own best weights, or another corpus
            continue
        for task, values in asked.run.read_scores(split).items():
            main = main_score(task, decoders)
            yield split, task, name_of(task, main, decoders), values[main]


def _licence_of_data(asked: ExportRequest) -> str | None:
    """The licence that the corpus states, where it is still there."""
    with contextlib.suppress(CorpusError, RunError):
        info = read_info(asked.run.corpus_path())
        if info["fingerprint"] == asked.run.read_manifest()["data"]["fingerprint"]:
            return str(info["licence"])
    return None
