"""What is measured at a checkpoint: loss, syntactic attention, dimension of sentences, minimal pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from mtlprune.analyses.syntax.pseudo_likelihood import MaskedLanguageModel, evaluating, judge
from mtlprune.encoder.arc_counts import ArcCounts
from mtlprune.encoder.arcs import uas_of
from mtlprune.encoder.batch import EncoderBatch
from mtlprune.encoder.model import input_embeddings
from mtlprune.files import plain
from mtlprune.pretraining.setup import Pretraining, mask, prediction_loss
from mtlprune.sentence import Sentence
from mtlprune.statistics.twonn import likelihood
from mtlprune.training.arcs import arc_penalty, attention_seen, batch_arcs
from mtlprune.training.optimisation import mean_cosine

ROWS = 64
MASKS = 15
"""Seed of the masks of dev sentences: the same at every evaluation of every run."""
CLOUD = 1000
"""Sentences at most whose vectors' dimension is estimated."""


def measure(run: Pretraining) -> dict[str, Any]:
    """All that is logged of the present weights; the model's mode and the random generators are as before afterwards.

    Returns:
        Numbers by name; None for what cannot be told (a relation too rare, points that are one). UAS in percent, in
        layers × heads where it is of each head; losses in nats a hidden piece.
    """
    everything = [sentence for sentences in run.dev.values() for sentence in sentences]
    with torch.random.fork_rng(), evaluating(run.model):
        found = {**_losses(run, everything), **_syntax(uas_of(run.encoder, everything)), **_dimensions(run, everything)}
        if len(run.dev) > 1:
            found["corpora"] = {name: _of_corpus(run, sentences) for name, sentences in run.dev.items()}
        if run.paradigms:
            lm = MaskedLanguageModel.of(run.model, run.encoder.tokenizer)
            judged = judge(lm, run.paradigms)
            found["blimp"] = judged.overall
            found["blimp_phenomena"] = judged.phenomena
    found["embedding_cosine"] = float(mean_cosine(input_embeddings(run.model).weight.detach()))
    return found


def _of_corpus(run: Pretraining, sentences: Sequence[Sentence]) -> dict[str, Any]:
    found = _losses(run, sentences)
    if any(sentence.dep is not None for sentence in sentences):
        found |= {key: value for key, value in _syntax(uas_of(run.encoder, sentences)).items() if key != "heads"}
    return found


def _losses(run: Pretraining, sentences: Sequence[Sentence]) -> dict[str, Any]:
    """Mean loss a hidden piece, and mean γ (largest weight of any head) over directed arcs."""
    generator = torch.Generator().manual_seed(MASKS)
    tokenizer, plain = run.encoder.tokenizer, run.plain_ids
    total, hidden, penalty, arcs = 0.0, 0, 0.0, 0
    for batch, part in _batches(run, sentences):
        masked = mask(batch, run.config.mask, int(tokenizer.mask_token_id), plain, generator)
        here = masked._replace(**{name: value.to(run.device) for name, value in masked._asdict().items()})
        with attention_seen(run.model) as maps:
            total += float(prediction_loss(run.model, here, batch.attention_mask.to(run.device)))
        found = batch_arcs(batch, [sentence.dep for sentence in part]).to(run.device)
        penalty += float(arc_penalty(maps, found))
        hidden += len(masked.gold)
        arcs += found.number
    return {"loss": total / hidden if hidden else None, "arc_weight": penalty / arcs if arcs else None}


def _syntax(counts: ArcCounts) -> dict[str, Any]:
    """Both numbers of the model level, on all and held out; the companion that knows no threshold; each head."""
    single, best = counts.single(), counts.mean_best(counts.listed())
    weight = counts.best(weight=True)
    found = {
        "uas_single": single.value,
        "uas_single_held_out": single.held_out,
        "uas_best": best.value,
        "uas_best_held_out": best.held_out,
        "weight": weight.value,
        "offset_single": counts.best_offset().value,
        "offset_best": counts.mean_best_offset(counts.listed())[0],
        "heads": counts.by_head(),
    }
    return dict(plain(found))


def _dimensions(run: Pretraining, sentences: Sequence[Sentence]) -> dict[str, Any]:
    """TwoNN (maximum likelihood) of the last layer's first token and of its mean word piece, one a sentence."""
    chosen = list({sentence.words: sentence for sentence in sentences}.values())[:CLOUD]
    first, mean = [], []
    for batch, _ in _batches(run, chosen):
        here = batch.to(run.device)
        last = run.model.base_model(input_ids=here.input_ids, attention_mask=here.attention_mask).last_hidden_state
        within = (here.source >= 0).to(last.dtype)[..., None]  # (B, L, 1)
        first.append(last[:, 0].double().cpu().numpy())
        mean.append(((last * within).sum(1) / within.sum(1)).double().cpu().numpy())
    return {
        "twonn_cls": plain(likelihood(np.concatenate(first))),  # a model yet untrained may say the same of all
        "twonn_mean": plain(likelihood(np.concatenate(mean))),
    }


def _batches(run: Pretraining, sentences: Sequence[Sentence]) -> Iterator[tuple[EncoderBatch, list[Sentence]]]:
    """On the CPU, of similar length, longest first."""
    pieces = run.encoder.tokenize_all([sentence.words for sentence in sentences])
    order = sorted(range(len(pieces)), key=lambda row: (-len(pieces[row].ids), row))
    for start in range(0, len(order), ROWS):
        rows = order[start : start + ROWS]
        yield run.encoder.collate([pieces[row] for row in rows]), [sentences[row] for row in rows]
