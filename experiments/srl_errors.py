"""What limits end-to-end SRL: sorts the errors of a scored run, and says what mending each kind would be worth.

    python experiments/srl_errors.py RUN CORPUS [SPLIT]

Every gold argument that was not found falls into the first kind that fits: its predicate was missed; the span was
predicted with another role; a span of the same role overlaps it (boundary); another role and other borders; nothing was
predicted there. "F1 if mended" gives these arguments to the prediction and takes the wrong ones they explain away.
"""

import sys
from collections import Counter
from pathlib import Path

from mtlprune.corpora.store import load_corpus
from mtlprune.runs.folder import RunFolder
from mtlprune.sentence import Sentence, Span

KINDS = ("predicate missed", "wrong role", "wrong borders", "wrong role and borders", "nothing predicted")


def arguments(sentence: Sentence) -> dict[int, list[Span]]:
    """Arguments by predicate, without V and C-V."""
    layers = sentence.srl or ()
    return {p.index: [a for a in p.arguments if a.label not in ("V", "C-V")] for p in layers}


def overlap(one: Span, other: Span) -> bool:
    return one.start < other.end and other.start < one.end


def explain(gold: Span, wrong: list[Span]) -> tuple[str, Span | None]:
    """The kind of a missed argument, and the wrong prediction it explains."""
    for span in wrong:
        if (span.start, span.end) == (gold.start, gold.end):
            return "wrong role", span
    near = [span for span in wrong if overlap(span, gold)]
    for span in near:
        if span.label == gold.label:
            return "wrong borders", span
    return ("wrong role and borders", near[0]) if near else ("nothing predicted", None)


def main(run: str, corpus: str, split: str = "dev") -> None:
    predicted = {sentence.id: sentence for sentence in RunFolder.existing(run).read_predictions(split)}
    missed: Counter[str] = Counter()
    explained: Counter[str] = Counter()
    roles: dict[str, Counter[str]] = {}
    confusions: Counter[tuple[str, str]] = Counter()
    total = right = guessed = spurious_predicates = 0
    for sentence in load_corpus(Path(corpus))[split]:
        if sentence.srl is None:
            continue
        gold, found = arguments(sentence), arguments(predicted[sentence.id])
        guessed += sum(map(len, found.values()))
        spurious_predicates += sum(len(spans) for index, spans in found.items() if index not in gold)
        for index, spans in gold.items():
            wrong = [span for span in found.get(index, []) if span not in spans]
            for span in spans:
                total += 1
                role = roles.setdefault(span.label, Counter())
                role["gold"] += 1
                if span in found.get(index, []):
                    right += 1
                    role["right"] += 1
                    continue
                kind, instead = ("predicate missed", None) if index not in found else explain(span, wrong)
                missed[kind] += 1
                if instead is not None:
                    wrong.remove(instead)
                    explained[kind] += 1
                    if kind == "wrong role":
                        confusions[span.label, instead.label] += 1
    print(f"{split}: gold {total}, predicted {guessed}, right {right}, F1 {200 * right / (total + guessed):.2f}")
    print(f"\n{'kind of missed argument':26}{'number':>8}{'share':>8}{'F1 if mended':>14}")
    for kind in KINDS:
        mended = 200 * (right + missed[kind]) / (total + guessed + missed[kind] - explained[kind])
        print(f"{kind:26}{missed[kind]:8}{100 * missed[kind] / (total - right):7.1f}%{mended:14.2f}")
    mended = 200 * right / (total + guessed - spurious_predicates)
    print(f"{'(spurious predicates)':26}{spurious_predicates:8}{'':8}{mended:14.2f}")
    print("\nroles confused on the right span (gold → predicted):")
    for (gold_role, other), number in confusions.most_common(10):
        print(f"  {gold_role} → {other}: {number}")
    print("\nrecall of the most frequent roles:")
    for label, counts in sorted(roles.items(), key=lambda item: -item[1]["gold"])[:15]:
        print(f"  {label:10}{counts['gold']:6}{100 * counts['right'] / counts['gold']:7.1f}%")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])
