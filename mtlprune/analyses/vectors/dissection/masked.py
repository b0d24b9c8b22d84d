"""Predict masked words from subsets of the four terms, with a model's prediction head and with learnt projections.

The analysis chooses 15 % of the sub-words. The model sees 80 % of the chosen sub-words as the mask token, 10 % as a
random sub-word, and 10 % unchanged. The task is to predict the original sub-word. The prediction head (the layers of
the language model after its encoder) reads the sum of some terms instead of the last layer's vector. A learnt
projection is dropout and one linear layer, trained on the frozen sums. It measures the information in a sum, whereas
the prediction head shows how much of this information the model itself can use. The chosen sub-words are split into
80 % to train projections, 10 % to choose the learning rate and the number of passes for each subset, and 10 % to score
projections and prediction head.

Letters for shapes: N chosen sub-words, H hidden size, V different sub-words among those to train on (for the prediction
head the whole vocabulary), S = 16 subsets, B sub-words of a training step, D seeds.

Source: Mickus, Paperno and Constant (2022), section 5.1. With f alone they report an accuracy of 1.36 % for the
prediction head of BERT and 53.77 % for a learnt projection. They choose hyperparameters by 50 trials of Bayesian
optimisation, whereas this module tries three learning rates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.harness.reading import Subject, batches
from mtlprune.analyses.vectors.dissection import LEARNT_MLM, MLM, SUBSETS, TERMS, maths
from mtlprune.analyses.vectors.dissection.decoders import Ints, entry
from mtlprune.encoder.pieces import EncoderError
from mtlprune.encoder.pseudo_likelihood import MaskedLanguageModel
from mtlprune.sentence import Sentence

_CHOSEN_SHARE = 0.15
"""Share of the sub-words that are chosen and predicted."""
_HIDDEN, _REPLACED = 0.8, 0.1
"""Shares of the chosen sub-words that the model sees as the mask token, and as a random sub-word."""
_TRAIN, _DEV = 0.8, 0.1
"""Shares of the chosen sub-words for training projections and for choosing rates and passes; the rest is scored."""
_RATES = (1e-3, 3e-3, 1e-2)
"""Learning rates that are tried for each projection."""
_BATCH, _DROPOUT = 512, 0.1
_IN_SUBSET = torch.tensor([[float(term in subset) for term in TERMS] for subset in SUBSETS])
"""(S, 4): 1 where a subset contains a term, 0 elsewhere."""


@dataclass(frozen=True, eq=False)
class MaskedItems:
    """The chosen sub-words of some sentences.

    Attributes:
        terms: (4, N, H), terms of the last layer.
        gold: (N,), ids of the original sub-words.
        input_ids: (N,), ids that the model saw instead.
        sentence: (N,), row of the sentence.
        part: (N,), 0 for training, 1 for the choice of rate and passes, 2 for scoring.
    """

    terms: Tensor
    gold: Tensor
    input_ids: Tensor
    sentence: Ints
    part: Tensor


def masked_items(subject: Subject, sentences: Sequence[Sentence], request: Request) -> MaskedItems:
    """Choose sub-words, mask them and decompose the vectors of the last layer at their positions.

    Which sub-words are chosen and how they are masked depends only on the sentences, the seed and the tokenizer.
    """
    encoder, draws = subject.encoder, np.random.default_rng([request.seed, 14])
    special = {*encoder.tokenizer.all_special_ids}
    plain = np.array([piece for piece in range(len(encoder.tokenizer)) if piece not in special])
    terms, gold, inputs_of_batches, rows_of_items = [], [], [], []
    for rows, batch in batches(encoder, sentences):
        slots = batch.piece_slot.numpy()
        slots = slots[draws.random(len(slots)) < _CHOSEN_SHARE]
        how, random_pieces = draws.random(len(slots)), draws.choice(plain, len(slots))
        true_pieces = batch.input_ids.flatten().numpy()[slots]
        pieces_seen = np.where(
            how < _HIDDEN, encoder.word_pieces.mask, np.where(how < _HIDDEN + _REPLACED, random_pieces, true_pieces)
        )
        batch.input_ids.view(-1)[torch.from_numpy(slots)] = torch.from_numpy(pieces_seen)
        traced, _, tokens = maths.trace(encoder, batch.to(request.device), subject.gates)
        *_, stack = maths.terms(traced)
        places = torch.searchsorted(tokens, torch.from_numpy(slots).to(tokens.device))
        terms.append(stack[:, places].cpu())
        gold.append(true_pieces)
        inputs_of_batches.append(pieces_seen)
        rows_of_items.append(np.array(rows)[slots // batch.input_ids.shape[1]])
        request.on_batch()
    total = sum(map(len, gold))
    # A random permutation assigns the items to the three parts, with exact shares.
    part = np.digitize(draws.permutation(total), [round(_TRAIN * total), round((_TRAIN + _DEV) * total)])
    ids, ids_shown = (torch.from_numpy(np.concatenate(values)) for values in (gold, inputs_of_batches))
    return MaskedItems(torch.cat(terms, 1), ids, ids_shown, np.concatenate(rows_of_items), torch.from_numpy(part))


@torch.no_grad()
def prediction_head_scores(model: PreTrainedModel, vectors: Tensor, piece: int) -> Tensor:
    """Return the scores of the vocabulary that a model's prediction head computes from given vectors: (N, H) → (N, V).

    The model runs on a sentence of one sub-word, ``piece``, whose last hidden state is replaced by the vectors, so that
    everything between encoder and output applies to them.
    """

    def replace_states(module: Any, args: Any, output: Any) -> Any:
        output["last_hidden_state"] = vectors[None]
        return output

    with model.base_model.register_forward_hook(replace_states):
        return model(input_ids=torch.tensor([[piece]], device=vectors.device)).logits[0]


def learnt_answers(items: MaskedItems, epochs: int, seed: int, device: str = "cpu") -> Tensor:
    """Train a projection on each subset of terms and return the sub-words that it predicts for part 2 of the items.

    All subsets are trained at once: they share batches but no weights, so their losses can be summed. Features are
    z-scored. Weights start at 0 and biases at log frequencies, so that the empty subset, whose features are 0, predicts
    by frequency. For each subset the answers are those of the learning rate and pass with the highest accuracy on part
    1 of the items.

    Returns:
        Ids of sub-words, (S, number of items in part 2).
    """
    names, classes = torch.unique(items.gold[items.part == 0], return_inverse=True)
    terms = [items.terms[:, items.part == part].to(device) for part in range(3)]
    masks, classes = _IN_SUBSET.to(device), classes.to(device)
    mean = torch.einsum("st,th->sh", masks, terms[0].mean(1))[:, None]
    # The variance of a sum of terms follows from the covariances of the terms, so no sum has to be formed here.
    centred = terms[0] - terms[0].mean(1, keepdim=True)
    covariance = torch.einsum("tnh,unh->tuh", centred, centred) / len(classes)
    deviation = torch.einsum("st,su,tuh->sh", masks, masks, covariance).clamp(min=1e-12).sqrt()[:, None]
    initial_bias = classes.bincount().float().log().expand(len(SUBSETS), -1)

    def scores(stack: Tensor, weights: Sequence[Tensor], dropout: float = 0.0) -> Tensor:
        features = functional.dropout((torch.einsum("st,tbh->sbh", masks, stack) - mean) / deviation, dropout)
        return torch.baddbmm(weights[1][:, None], features, weights[0])  # (S, B, V)

    def answers(stack: Tensor, weights: Sequence[Tensor]) -> Tensor:
        with torch.no_grad():
            return torch.cat([names[scores(rows, weights).argmax(-1).cpu()] for rows in stack.split(_BATCH, 1)], 1)

    best_accuracy = torch.full((len(SUBSETS),), -1.0)
    best_answers = torch.zeros(len(SUBSETS), terms[2].shape[1], dtype=torch.int64)
    with torch.random.fork_rng():
        for rate in _RATES:
            torch.manual_seed(seed)
            weights = [initial_bias.new_zeros(len(SUBSETS), terms[0].shape[2], len(names)), initial_bias.clone()]
            optimizer = torch.optim.Adam([weight.requires_grad_() for weight in weights], rate)
            for _ in range(epochs):
                for rows in torch.randperm(len(classes)).to(device).split(_BATCH):
                    optimizer.zero_grad()
                    predicted = scores(terms[0][:, rows], weights, _DROPOUT).flatten(0, 1)
                    loss = functional.cross_entropy(predicted, classes[rows].repeat(len(SUBSETS)), reduction="sum")
                    (loss / len(rows)).backward()
                    optimizer.step()
                accuracy = (answers(terms[1], weights) == items.gold[items.part == 1]).float().mean(1)  # (S,)
                is_better = (accuracy > best_accuracy)[:, None]
                best_answers = torch.where(is_better, answers(terms[2], weights), best_answers)
                best_accuracy = torch.maximum(accuracy, best_accuracy)
    return best_answers


def score_masked(
    subject: Subject, lm: MaskedLanguageModel, sentences: Sequence[Sentence], seeds: Sequence[int], request: Request
) -> list[dict[str, Any]]:
    """Score both ways of predicting masked words on one encoder.

    Returns:
        An entry as from ``decoders.score`` for MLM, with answers of the prediction head, and one for LEARNT_MLM, with
        answers of the projections of each seed.

    Raises:
        EncoderError: there are too few chosen sub-words for three parts.
    """
    items = masked_items(subject, sentences, request)
    train, test = items.gold[items.part == 0], items.part == 2
    if not min(len(train), int((items.part == 1).sum()), int(test.sum())):
        raise EncoderError(
            f"tasks={MLM}: expected at least 10 chosen sub-words, found {len(items.gold)}; read more sentences"
        )
    model = lm.model.to(request.device)  # type: ignore[arg-type]  # transformers annotates a device only
    sums = torch.einsum("st,tnh->snh", _IN_SUBSET, items.terms[:, test]).to(request.device)
    head_answers = [
        torch.cat(
            [prediction_head_scores(model, rows, int(items.gold[0])).argmax(-1).cpu() for rows in subset.split(_BATCH)]
        )
        for subset in sums
    ]
    learnt = torch.stack([learnt_answers(items, request.options.epochs, seed, request.device) for seed in seeds])
    gold, frequent = items.gold[test].numpy(), int(train.bincount().argmax())
    rows = items.sentence[test.numpy()]

    def count_answers(answers: Ints) -> Ints:
        words_chosen = np.bincount(rows, minlength=len(sentences))
        right = np.bincount(rows[answers == gold], minlength=len(sentences))
        return np.stack([right, words_chosen, words_chosen], axis=1)

    about: dict[str, Any] = {"test": len(gold), "unseen": int((~np.isin(gold, train.numpy())).sum())}
    about["baseline"] = float((gold == frequent).mean())
    return [
        entry(MLM, {"train": 0, **about}, torch.stack(head_answers)[None].numpy(), gold, count_answers),
        entry(LEARNT_MLM, {"train": len(train), **about}, learnt.numpy(), gold, count_answers),
    ]
