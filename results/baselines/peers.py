"""Train parsers and taggers of other projects on the same encoder, sentences and updates, and score them as ours.

    pip install accelerate                       # the Trainer of transformers needs it; mtlprune does not
    python results/baselines/peers.py train pos data/ewt5 --seed 1 --out runs/peers/pos-1
    python results/baselines/peers.py table --peers runs/peers/* --ours runs/five-papers*/none-*

The *peers* are, for pos and ner, BertForTokenClassification with the Trainer of transformers, which labels the first
sub-word of each word (with IOB2 tags for entities), for dep supar's biaffine parser, and for con supar's CRF parser.
The defaults are those of the preset pruning-minilm-ewt5 on 2026-11-28: the first 2,000 sentences, four passes of 63
updates with 32 sentences, AdamW without weight decay, a linear schedule with a warm-up over a tenth of the updates,
learning rates of 1e-4 (encoder) and 1e-3 (decoder), bf16 autocast, and an evaluation on dev after each pass. The pass
with the best dev score is scored on test. Dropout, pooling, clipping, losses and decoding are those of the peer.

The training loop of supar 1.1.4 does not run with current packages. It imports AdamW from transformers, which has
removed it in version 5, and loads its best weights with torch.load, which refuses supar's classes since torch 2.6. It
also limits batches by words, so that the number of updates would differ. Therefore the script uses supar's fields,
model, code for one epoch and decoding, with our order of batches and the AdamW of torch. The parser runs in fp32 after
an encoder in bf16.

``table`` prints the test scores of both sides, and ours minus the peer's with an interval over seeds and sentences. It
ignores our runs with more than one task.
"""

import argparse
import functools
import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mtlprune.corpora.formats.brackets import format_tree
from mtlprune.corpora.formats.iob2 import iob2_from_spans, spans_from_tags
from mtlprune.corpora.store import load_corpus
from mtlprune.encoder.sources import locate
from mtlprune.evaluation.scores import MAIN, SCORES, count, count_names, score
from mtlprune.layers import kind_of
from mtlprune.model import autocast
from mtlprune.runs.folder import RunFolder
from mtlprune.sentence import Dependencies, Sentence, Span
from mtlprune.statistics.resamples import System
from mtlprune.statistics.significance import differences
from mtlprune.tasks.con import TOP
from mtlprune.training.checkpoint import epoch_generator
from mtlprune.training.mixing import batches

PEERS = {"pos": "token classification", "ner": "token classification", "dep": "supar biaffine", "con": "supar CRF"}
MARGIN = 0.3  # points, by the plan
UNLIMITED = 10**9
SUPAR = {
    **{"encoder_dropout": 0.1, "clip": 5.0, "update_steps": 1, "partial": False, "punct": True},
    **{"tree": True, "proj": False, "mbr": True, "prob": False},
}
"""Settings that supar's functions require. The clipping is supar's default. The dropout of 0.1 after the encoder is our
choice, because the default of 0.33 is meant for an LSTM that is not pretrained."""
HEADER = """# Peers at equal updates

Test scores in percent, mean ± standard deviation over seeds. The interval is of 95 % over seeds and sentences, with one
seed over sentences alone. Both sides train the same encoder on the same sentences for as many updates, choose the best
pass on dev, and are scored by mtlprune; `peers.py` has the settings and the commands.
"""

Splits = dict[str, list[Sentence]]


def scored(task: str, gold: Sequence[Sentence], values: Sequence[Any]) -> tuple[list[Sentence], list[Any], float]:
    """Return the predicted sentences, their counts, and the main score of the task."""
    predicted = [s.bare().with_layers(**{task: value}).validate() for s, value in zip(gold, values, strict=True)]
    counts = [count(task, *pair) for pair in zip(gold, predicted, strict=True)]
    return predicted, counts, score(task, counts)[MAIN[kind_of(task)]]


# --- token classification --------------------------------------------------------------------------------------------


def tags_of(task: str, sentence: Sentence) -> Sequence[str]:
    """Return the gold tag of each word, with IOB2 tags for entities."""
    value = sentence.get(task)
    return value if task == "pos" else iob2_from_spans(value or (), len(sentence))


def tagged_rows(
    task: str, splits: Splits, tokenizer: Any, index: dict[str, int], longest: int
) -> tuple[dict[str, Any], dict[str, list[list[int | None]]]]:
    """Tokenise all splits for token classification.

    The label of a word is on its first sub-word. Other sub-words, and tags that do not occur in the training sentences,
    have the label -100, which the loss ignores.

    Returns:
        For each split, the rows of sub-words with their labels, and the position of each word's first sub-word, or None
        if the row was truncated before it.
    """
    first: dict[str, list[list[int | None]]] = defaultdict(list)
    rows: dict[str, Any] = defaultdict(list)
    for split, sentences in splits.items():
        for sentence in sentences:
            row = tokenizer(list(sentence.words), is_split_into_words=True, truncation=True, max_length=longest)
            owners = row.word_ids()
            positions = [owners.index(word) if word in owners else None for word in range(len(sentence))]
            labels = [-100] * len(owners)
            for position, tag in zip(positions, tags_of(task, sentence), strict=True):
                if position is not None:
                    labels[position] = index.get(tag, -100)
            rows[split].append({**row, "labels": labels})
            first[split].append(positions)
    return rows, first


def train_tagger(task: str, splits: Splits, settings: argparse.Namespace) -> tuple[list[Any], list[float]]:
    """Train a tagger with the Trainer of transformers.

    Returns:
        The predicted values of the test sentences, and the dev score of each pass.
    """
    from transformers import (
        AutoModelForTokenClassification,
        AutoTokenizer,
        DataCollatorForTokenClassification,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    set_seed(settings.seed)
    tokenizer = AutoTokenizer.from_pretrained(settings.encoder)
    names = sorted({tag for sentence in splits["train"] for tag in tags_of(task, sentence)})
    index = {tag: place for place, tag in enumerate(names)}
    model = AutoModelForTokenClassification.from_pretrained(settings.encoder, num_labels=len(names))
    rows, first = tagged_rows(task, splits, tokenizer, index, model.config.max_position_embeddings)

    def values(split: str, best: Any) -> list[Any]:
        """Convert predictions to tags, or to the spans that IOB2 tags describe.

        A word without a sub-word gets the tag O or, for POS, the first tag.
        """
        missing = "O" if "O" in index else names[0]
        tags = [
            tuple(missing if position is None else names[row[position]] for position in positions)
            for row, positions in zip(best, first[split], strict=True)
        ]
        return list(tags) if task == "pos" else [spans_from_tags(row, repair=True) for row in tags]

    encoder: list[torch.nn.Parameter] = []
    head: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (head if name.startswith("classifier") else encoder).append(parameter)
    groups = [{"params": encoder, "lr": settings.encoder_rate}, {"params": head, "lr": settings.head_rate}]
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model,
            TrainingArguments(
                output_dir=folder,
                num_train_epochs=settings.passes,
                per_device_train_batch_size=settings.batch,
                per_device_eval_batch_size=64,
                warmup_steps=settings.warmup,
                bf16=settings.precision == "bf16",
                use_cpu=True,
                seed=settings.seed,
                eval_strategy="epoch",
                save_strategy="epoch",
                save_total_limit=1,
                save_only_model=True,
                load_best_model_at_end=True,
                metric_for_best_model="score",
                greater_is_better=True,
                logging_strategy="epoch",
                report_to=[],
            ),
            data_collator=DataCollatorForTokenClassification(tokenizer),
            train_dataset=rows["train"],
            eval_dataset=rows["dev"],
            optimizers=(torch.optim.AdamW(groups, weight_decay=0.0), None),
            preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
            compute_metrics=lambda result: {"score": scored(task, splits["dev"], values("dev", result.predictions))[2]},
        )
        trainer.train()
        trainer.compute_metrics = None  # which compares with dev
        best = trainer.predict(rows["test"]).predictions
    settings.updates = trainer.state.global_step
    passes = [line["eval_score"] for line in trainer.state.log_history if "eval_score" in line]
    return values("test", best), passes[: settings.passes]


# --- supar -----------------------------------------------------------------------------------------------------------


def numbered_tree(sentence: Sentence) -> Any:
    """Convert the brackets of a sentence to a tree for supar, whose leaves are the numbers of the words.

    Below TOP there is always a single constituent that covers all words.
    """
    from nltk import Tree  # type: ignore[import-untyped]

    spans, length = sentence.con or (), len(sentence)
    if not any((span.start, span.end) == (0, length) for span in spans):
        spans = (Span(0, length, TOP), *spans)
    return Tree.fromstring(format_tree(Sentence(sentence.id, tuple(map(str, range(length)))).with_layers(con=spans)))


def supar_sentence(task: str, transform: Any, sentence: Sentence, gold: bool) -> Any:
    """Build supar's object for a sentence without writing a file, so that no word has to be escaped."""
    from nltk import Tree
    from supar.utils.transform import CoNLLSentence, TreeSentence

    if task == "dep":
        heads, relations = sentence.dep if gold and sentence.dep else ([0] * len(sentence), ["_"] * len(sentence))
        rows = enumerate(zip(sentence.words, heads, relations, strict=True), 1)
        lines = ["\t".join([str(i), word, *"____", str(head), label, *"__"]) for i, (word, head, label) in rows]
        return CoNLLSentence(transform, lines)
    if not gold:
        return TreeSentence(transform, Tree(TOP, [Tree("_", [word]) for word in sentence.words]))
    tree = numbered_tree(sentence)
    for position in tree.treepositions("leaves"):
        tree[position] = sentence.words[int(tree[position])]
    return TreeSentence(transform, tree)


def build_supar(task: str, sentences: Sequence[Sentence], settings: argparse.Namespace) -> Any:
    """Build supar's parser for the labels of these sentences, with its encoder under bf16 autocast if requested."""
    import supar

    def lines(sentence: Sentence) -> str:
        if task == "con":
            return f"{numbered_tree(sentence).pformat(UNLIMITED)}\n"
        return f"{supar_sentence(task, supar.utils.transform.CoNLL(), sentence, gold=True)!r}\n"

    kind = {"dep": supar.BiaffineDependencyParser, "con": supar.CRFConstituencyParser}[task]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train"
        path.write_text("".join(map(lines, sentences)), encoding="utf-8")
        parser = kind.build(
            path=f"{folder}/model",
            train=str(path),
            build=True,
            encoder="bert",
            bert=settings.encoder,
            feat=None,
            embed=None,
            **{**SUPAR, **settings.options},
        )
    if settings.precision == "fp32":
        return parser
    encode = parser.model.encode

    def encode_in_bf16(*arguments: Any) -> torch.Tensor:
        with autocast(torch.device("cpu"), torch.bfloat16):
            encoded: torch.Tensor = encode(*arguments)
        return encoded.float()

    parser.model.encode = encode_in_bf16
    return parser


def train_parser(task: str, splits: Splits, settings: argparse.Namespace) -> tuple[list[Any], list[float]]:
    """Train a parser of supar.

    Returns:
        The predicted values of the test sentences, and the dev score of each pass.
    """
    from supar.utils.transform import Batch, Tree
    from transformers import get_linear_schedule_with_warmup

    torch.manual_seed(settings.seed)
    parser = build_supar(task, splits["train"], settings)
    transform = parser.transform

    def transformed(split: str, gold: bool) -> list[Any]:
        transform.train(gold)
        sentences = [supar_sentence(task, transform, sentence, gold) for sentence in splits[split]]
        transform(sentences)
        return sentences

    def predict(sentences: Sequence[Any]) -> list[Any]:
        transform.eval()
        order = sorted(range(len(sentences)), key=lambda row: len(sentences[row].words))
        cuts = [order[start : start + 32] for start in range(0, len(order), 32)]
        result = parser._predict([Batch([sentences[row] for row in cut]) for cut in cuts])
        if task == "dep":
            pairs = zip(result["arcs"], result["rels"], strict=True)
            values: list[Any] = [Dependencies(tuple(heads), tuple(relations)) for heads, relations in pairs]
        else:
            trees = map(Tree.factorize, result["trees"])
            values = [tuple(Span(*bracket) for bracket in tree if bracket[2] != TOP) for tree in trees]
        return [value for _, value in sorted(zip(order, values, strict=True), key=lambda pair: pair[0])]

    training = transformed("train", gold=True)
    evaluated = {split: transformed(split, gold=False) for split in ("dev", "test")}
    lengths = [int((row.transformed["words"] != parser.args.pad_index).sum()) for row in training]
    cut = functools.partial(batches, lengths, settings.batch, UNLIMITED)
    plans = [cut(epoch_generator(settings.seed, epoch)) for epoch in range(settings.passes)]
    settings.updates = sum(map(len, plans))
    rates = {True: settings.encoder_rate, False: settings.head_rate}
    groups = [
        {"params": [parameter], "lr": rates[name.startswith("encoder")]}
        for name, parameter in parser.model.named_parameters()
    ]
    parser.optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    warmup = int(settings.updates * settings.warmup)
    parser.scheduler = get_linear_schedule_with_warmup(parser.optimizer, warmup, settings.updates)
    passes: list[float] = []
    best: dict[str, torch.Tensor] = {}
    for plan in plans:
        transform.train()
        parser._train([Batch([training[row] for row in rows]) for rows in plan])
        passes.append(scored(task, splits["dev"], predict(evaluated["dev"]))[2])
        print(f"{task} seed {settings.seed}, pass {len(passes)}: dev {passes[-1]:.2f}", flush=True)
        if passes[-1] > max(passes[:-1], default=-1.0):
            best = {name: tensor.clone() for name, tensor in parser.model.state_dict().items()}
    parser.model.load_state_dict(best)
    return predict(evaluated["test"]), passes


# --- commands --------------------------------------------------------------------------------------------------------


def train(settings: argparse.Namespace) -> None:
    """Train one peer, and write its test predictions, counts and scores in the form of a run folder."""
    if (settings.out / "peer.json").exists():
        raise SystemExit(f"{settings.out} is a finished run; name another --out")
    torch.set_num_threads(1)
    task, corpus = settings.task, load_corpus(settings.data)
    splits: Splits = {
        "train": [s for s in corpus["train"].first(settings.sentences) if s.get(task) is not None],
        **{split: list(corpus[split].first(settings.evaluated)) for split in ("dev", "test")},
    }
    make: Callable[..., tuple[list[Any], list[float]]] = train_tagger if task in ("pos", "ner") else train_parser
    values, passes = make(task, splits, settings)
    predicted, counts, main = scored(task, splits["test"], values)
    folder = RunFolder(settings.out)
    ids = [sentence.id for sentence in splits["test"]]
    folder.write_results("test", {task: score(task, counts)}, ids, {task: counts}, predicted)
    record = {"peer": PEERS[task], "dev": passes, "test": main, **vars(settings), "fingerprint": corpus.fingerprint}
    folder.write_text("peer.json", json.dumps(record, indent=1, default=str) + "\n")
    print(f"{task} seed {settings.seed}: {settings.updates} updates, dev {max(passes):.2f}, test {main:.2f}")


def system(task: str, runs: dict[int, RunFolder]) -> System:
    """Build the system of the test counts of runs, sorted by seed."""
    kind = kind_of(task)
    names, rows = count_names(kind, MAIN[kind]), []
    for _, run in sorted(runs.items()):
        tree = run.read_counts("test")
        columns = np.array([[value or 0 for value in tree["counts"][task][name]] for name in names])
        rows.append(columns[:, np.argsort(tree["ids"])].T)
    return System(np.stack(rows), names, SCORES[kind][MAIN[kind]], tuple(sorted(runs)))


def table(settings: argparse.Namespace) -> None:
    """Print a row for each task that both sides have, over the seeds that both sides have."""
    peers: dict[str, dict[int, RunFolder]] = defaultdict(dict)
    ours: dict[str, dict[int, RunFolder]] = defaultdict(dict)
    for path in settings.peers:
        if (path / "peer.json").exists():
            record = json.loads((path / "peer.json").read_text())
            peers[record["task"]][record["seed"]] = RunFolder(path)
    for path in settings.ours:
        config = RunFolder(path).config
        if len(config.tasks) == 1:
            ours[config.tasks[0]][config.train.seed] = RunFolder(path)
    print(HEADER)
    print("| task | peer | seeds | peer's score | ours | ours minus the peer's | within 0.3 or better |")
    print("|:--|:--|:--|--:|--:|:--|:--|")
    for task in (task for task in PEERS if task in peers):
        seeds_of_both = sorted(peers[task].keys() & ours[task].keys())
        if not seeds_of_both:
            continue
        first, second = (system(task, {seed: side[task][seed] for seed in seeds_of_both}) for side in (ours, peers))
        [result] = differences([first, second], [(0, 1)])
        cells = [
            f"{scores.mean():.2f}" + (f" ± {scores.std(ddof=1):.2f}" if len(scores) > 1 else "")
            for scores in (side.scores(side.totals) for side in (second, first))
        ]
        low, high = (result.wide_low, result.wide_high) if result.has_seeds else (result.low, result.high)
        verdict = "yes" if result.delta >= -MARGIN else "no"
        seeds = ", ".join(map(str, seeds_of_both))
        interval = f"{result.delta:+.2f} [{low:+.2f}, {high:+.2f}]"
        print(f"| {task.upper()} | {PEERS[task]} | {seeds} | {cells[0]} | {cells[1]} | {interval} | {verdict} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("train", help=train.__doc__)
    one.set_defaults(run=train)
    one.add_argument("task", choices=PEERS)
    one.add_argument("data", type=Path, help="corpus, such as data/ewt5")
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--seed", type=int, default=1)
    one.add_argument("--encoder", default=locate("minilm"), help="folder of the encoder")
    one.add_argument("--sentences", type=int, default=2000, help="training sentences, from the first on")
    one.add_argument("--evaluated", type=int, help="sentences of dev and of test, all if not given (to try)")
    one.add_argument("--passes", type=int, default=4)
    one.add_argument("--batch", type=int, default=32, help="sentences of an update")
    one.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    one.add_argument("--encoder-rate", type=float, default=1e-4)
    one.add_argument("--head-rate", type=float, default=1e-3)
    one.add_argument("--warmup", type=float, default=0.1, help="share of the updates")
    one.add_argument(
        "--options", type=json.loads, default={}, help='of supar\'s model, as JSON, such as {"n_bert_layers": 1}'
    )
    two = commands.add_parser("table", help=table.__doc__)
    two.set_defaults(run=table)
    two.add_argument("--peers", type=Path, nargs="+", required=True, help="folders that train wrote")
    two.add_argument("--ours", type=Path, nargs="+", required=True, help="run folders")
    settings = parser.parse_args()
    run = vars(settings).pop("run")
    run(settings)


if __name__ == "__main__":
    main()
