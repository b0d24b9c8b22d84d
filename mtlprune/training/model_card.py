"""The model card of an exported run: front matter for the hub, how to load, heads, scores, licences."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from transformers import __version__ as transformers_version

from mtlprune import __version__
from mtlprune.corpora import CorpusError
from mtlprune.corpora.store import read_info
from mtlprune.encoder.sources import base_of
from mtlprune.scores import main_score, name_of
from mtlprune.training.export import Exported, ExportRequest, account

PLAIN = """from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")  # this folder, or its name on the hub
model = AutoModel.from_pretrained("."{pooler})"""
CLASSIFIER = """from transformers import pipeline

label = pipeline("token-classification", model="."{strategy})  # this folder, or its name on the hub"""
REMOVED = """from mtlprune.encoder.removal import load_pruned

folder = "."  # or what huggingface_hub.snapshot_download gives
model = load_pruned(folder)  # transformers alone refuse layers with different numbers of heads"""

CARD = """---
{facts}
---

# {name}

The encoder of a run of mtlprune {version}: {base}, trained on {tasks} with the sentences of {data}, seed {seed}.{start}

```python
{loader}
```

Words are read off `last_hidden_state`: {pooling}. There is no pooler. {limit}{blank}Written with
transformers {transformers}.

## Attention heads

{heads}

## Scores

Of the run with its decoders{decoders}, in percent.

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
        pipeline_tag="token-classification" if asked.head else "feature-extraction",
        tags=["mtlprune"],
        **_results(asked, data, scores),
    )
    shown = f"{'random weights in the shape of ' if part.random else ''}{hub or Path(name).name}"
    return CARD.format(
        facts=facts.to_yaml(),
        name=config.name,
        version=__version__,
        base=f"{shown} at revision {revision}" if revision else shown,
        tasks=", ".join(config.tasks),
        data=data,
        seed=config.train.seed,
        start=f" It began with the weights of the finished run {Path(start).name}." if start else "",
        loader=_loader(asked, found),
        pooling="the mean of a word's sub-words" if part.pooling == "mean" else "the first of a word's sub-words",
        limit=f"At most {found.limit} sub-words are seen at once. " if found.limit else "",
        blank="" if found.reads_texts else "Texts have to begin with a blank, as every word in a text does. ",
        transformers=transformers_version,
        heads=account(found),
        decoders="" if asked.head else ", which are not part of this folder",
        scores="\n".join(f"| {split} | {task} | {name} | {value:.2f} |" for split, task, name, value in scores),
        licence=asked.licence or "not stated yet",
        base_licence=base_licence or "not known here; its own page says it",
        data_licence=_licence_of_data(asked) or "not known here",
    )


def _loader(asked: ExportRequest, found: Exported) -> str:
    if not found.whole:
        return REMOVED
    if asked.head is None:
        return PLAIN.format(pooler=", add_pooling_layer=False" if found.pooler else "")
    spans = asked.config.decoder(asked.head).kind == "spans"  # whose IOB2 tags the pipeline joins
    return CLASSIFIER.format(strategy=', aggregation_strategy="first"' if spans else "")


def _main_scores(asked: ExportRequest) -> Iterator[tuple[str, str, str, float]]:
    """Split, task, name of its main score, and value in percent."""
    decoders = asked.run.read_config().get("decoders", {})
    for split in asked.run.splits():
        if "." in split:  # a task's own best weights, or another corpus
            continue
        for task, values in asked.run.read_scores(split).items():
            main = main_score(task, decoders)
            yield split, task, name_of(task, main, decoders), values[main]


def _results(asked: ExportRequest, data: str, scores: list[tuple[str, str, str, float]]) -> dict[str, Any]:
    """Scores of the task that goes along, as the hub shows them."""
    found = [
        EvalResult(
            task_type="token-classification",
            dataset_type=data,
            dataset_name=data,
            dataset_split=split,
            metric_type="f1" if name.endswith("F1") else "accuracy",
            metric_name=name,
            metric_value=round(value / 100, 4),
        )
        for split, task, name, value in scores
        if task == asked.head
    ]
    return {"model_name": asked.config.name, "eval_results": found} if found else {}


def _licence_of_data(asked: ExportRequest) -> str | None:
    """As the corpus says, where it is still there."""
    with contextlib.suppress(CorpusError):
        info = read_info(Path(asked.config.data.path))
        if info["fingerprint"] == asked.run.read_manifest()["data"]["fingerprint"]:
            return str(info["licence"])
    return None
