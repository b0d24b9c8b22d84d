"""Masked words predicted from each subset of the four terms: by the model's own head, and by learnt projections.

15 % of the sub-words are chosen; of these 80 % are shown as the mask token, 10 % as any other piece, 10 % as they are.
What is predicted is the chosen piece. The own head reads the sum of some terms instead of the last layer's vector. A
learnt projection is dropout and one linear layer, trained on frozen sums, so it tells what a sum contains from what the
own head can read off it. The chosen sub-words are split into 80 % to train projections, 10 % to choose rate and passes
of each subset, and 10 % on which both are scored.

Letters for shapes: N chosen sub-words, H hidden size, V pieces that occur among those to train on, S = 16 subsets, B
sub-words of a step, D seeds.

Source: Mickus, Paperno and Constant (2022), section 5.1: accuracy of f alone is 1.36 % by the own head of BERT and
53.77 % by a learnt projection. They choose by 50 trials of Bayesian optimisation, here three rates are tried.
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
"""Share of the sub-words that are predicted."""
HIDDEN, REPLACED = 0.8, 0.1
"""Shares of these that are shown as the mask token and as any other piece."""
TRAIN, DEV = 0.8, 0.1
"""Shares of these on which projections are trained and chosen; the rest is scored."""
RATES = (1e-3, 3e-3, 1e-2)
"""Learning rates that are tried for each projection."""
BATCH, DROPOUT = 512, 0.1
_IN_SUBSET = torch.tensor([[float(term in subset) for term in TERMS] for subset in SUBSETS])
"""(S, 4): 1 where a subset has a term."""


@dataclass(frozen=True, eq=False)
class MaskedItems:
    """Chosen sub-words: ``terms`` (4, N, H) of the last layer, ``gold`` (N,) ids of the pieces that stood there,
    ``input_ids`` (N,) those that the model saw, ``sentence`` (N,) rows of sentences; ``part`` (N,): 0 to train on, 1 to
    choose by, 2 to score."""

    terms: Tensor
    gold: Tensor
    input_ids: Tensor
    sentence: Ints
    part: Tensor


def masked_items(subject: Subject, sentences: Sequence[Sentence], request: Request) -> MaskedItems:
    """Choose, hide and take apart; which sub-words follows from the seed and the tokenizer alone."""
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
            how < HIDDEN, encoder.word_pieces.mask, np.where(how < HIDDEN + REPLACED, random_pieces, true_pieces)
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
    part = np.digitize(draws.permutation(total), [round(TRAIN * total), round((TRAIN + DEV) * total)])
    ids, ids_shown = (torch.from_numpy(np.concatenate(values)) for values in (gold, inputs_of_batches))
    return MaskedItems(torch.cat(terms, 1), ids, ids_shown, np.concatenate(rows_of_items), torch.from_numpy(part))


@torch.no_grad()
def own_head(model: PreTrainedModel, vectors: Tensor, piece: int) -> Tensor:
    """Scores of the vocabulary by a model's head that reads vectors (N, H) instead of what its encoder says of a
    sentence of one ``piece``. (N, V)"""

    def exchange(module: Any, args: Any, output: Any) -> Any:
        output["last_hidden_state"] = vectors[None]
        return output

    with model.base_model.register_forward_hook(exchange):
        return model(input_ids=torch.tensor([[piece]], device=vectors.device)).logits[0]


def learnt_answers(items: MaskedItems, epochs: int, seed: int, device: str = "cpu") -> Tensor:
    """Pieces that a projection learnt on each subset of terms predicts for the items to score. (S, N')

    All subsets are trained at once: their losses are summed, share no weight, and see the same batches. Features are
    z-scored, weights begin at 0 and biases at frequencies, so that the empty subset stays with frequencies.
    """
    names, classes = torch.unique(items.gold[items.part == 0], return_inverse=True)
    terms = [items.terms[:, items.part == part].to(device) for part in range(3)]
    masks, classes = _IN_SUBSET.to(device), classes.to(device)
    mean = torch.einsum("st,th->sh", masks, terms[0].mean(1))[:, None]
    centred = terms[0] - terms[0].mean(1, keepdim=True)
    covariance = torch.einsum("tnh,unh->tuh", centred, centred) / len(classes)
    deviation = torch.einsum("st,su,tuh->sh", masks, masks, covariance).clamp(min=1e-12).sqrt()[:, None]
    beginning = classes.bincount().float().log().expand(len(SUBSETS), -1)

    def scores(stack: Tensor, weights: Sequence[Tensor], dropout: float = 0.0) -> Tensor:
        features = functional.dropout((torch.einsum("st,tbh->sbh", masks, stack) - mean) / deviation, dropout)
        return torch.baddbmm(weights[1][:, None], features, weights[0])  # (S, B, V)

    def answers(stack: Tensor, weights: Sequence[Tensor]) -> Tensor:
        with torch.no_grad():
            return torch.cat([names[scores(rows, weights).argmax(-1).cpu()] for rows in stack.split(BATCH, 1)], 1)

    best, best_step = torch.full((len(SUBSETS),), -1.0), torch.zeros(len(SUBSETS), terms[2].shape[1], dtype=torch.int64)
    with torch.random.fork_rng():
        for rate in RATES:
            torch.manual_seed(seed)
            weights = [beginning.new_zeros(len(SUBSETS), terms[0].shape[2], len(names)), beginning.clone()]
            optimizer = torch.optim.Adam([weight.requires_grad_() for weight in weights], rate)
            for _ in range(epochs):
                for rows in torch.randperm(len(classes)).to(device).split(BATCH):
                    optimizer.zero_grad()
                    predicted = scores(terms[0][:, rows], weights, DROPOUT).flatten(0, 1)
                    loss = functional.cross_entropy(predicted, classes[rows].repeat(len(SUBSETS)), reduction="sum")
                    (loss / len(rows)).backward()
                    optimizer.step()
                right = (answers(terms[1], weights) == items.gold[items.part == 1]).float().mean(1)  # (S,)
                best_step = torch.where((right > best)[:, None], answers(terms[2], weights), best_step)
                best = torch.maximum(right, best)
    return best_step


def score_masked(
    subject: Subject, lm: MaskedLanguageModel, sentences: Sequence[Sentence], seeds: Sequence[int], request: Request
) -> list[dict[str, Any]]:
    """Entries as those of ``decoders.score`` for MLM, by the own head, and for LEARNT_MLM projections of each seed.

    Raises:
        EncoderError: too few sub-words to choose from.
    """
    items = masked_items(subject, sentences, request)
    train, test = items.gold[items.part == 0], items.part == 2
    if not min(len(train), int((items.part == 1).sum()), int(test.sum())):
        raise EncoderError(
            f"tasks={MLM}: expected at least 10 chosen sub-words, found {len(items.gold)}; read more sentences"
        )
    model = lm.model.to(request.device)  # type: ignore[arg-type]  # transformers annotates a device only
    sums = torch.einsum("st,tnh->snh", _IN_SUBSET, items.terms[:, test]).to(request.device)
    by_head = [
        torch.cat([own_head(model, rows, int(items.gold[0])).argmax(-1).cpu() for rows in subset.split(BATCH)])
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
        entry(MLM, {"train": 0, **about}, torch.stack(by_head)[None].numpy(), gold, count_answers),
        entry(LEARNT_MLM, {"train": len(train), **about}, learnt.numpy(), gold, count_answers),
    ]
