"""Scores by hand, by property, and against the official programs: what they said once, and say where they are found."""

import random
from itertools import pairwise

import numpy as np
import official_scorers
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_sentences import flat_spans, spans

from mtlprune.corpora.export import write_scorer_files
from mtlprune.evaluation import scores
from mtlprune.evaluation.by_type import ALL, scores_by_type
from mtlprune.evaluation.scores import MAIN, SCORES, add, count, score
from mtlprune.layers import kind_of
from mtlprune.sentence import LAYERS, NOT_ARGUMENTS, Dependencies, Predicate, Sentence, SentenceError, Span

PRF = ("precision", "recall", "f1")


def one(layer, words, gold, predicted, pos=None):
    words = tuple(words.split())
    mine = Sentence("s", words, pos=pos and tuple(pos.split())).with_layers(**{layer: gold}).validate()
    theirs = Sentence("s", words).with_layers(**{layer: predicted}).validate()
    counts = count(layer, mine, theirs)
    return counts, score(layer, [counts])


TAGS = ["NN", "VB", ",", ".", "``", "''", ":", "HYPH", "-LRB-", "NFP", "DT"]
WORDS = ["dog", "runs", ",", ".", "%", "$", "-LRB-", "well-known", "``", "(", "+", "Häuser"]
TYPES = ["PER", "LOC", "ORG"]
LABELS = ["NP", "VP", "NP-SBJ", "ADVP", "PRT", "S", "PP=2"]
ROLES = ["ARG0", "ARG1", "R-ARG0", "ARGM-TMP", "C-ARG1", "C-ARG0"]
RELATIONS = ["nsubj", "nsubj:pass", "obl", "obl:tmod", "punct", "root"]


def random_flat(rng, n, labels, chance):
    cuts = sorted({0, n, *(rng.randint(0, n) for _ in range(n // 2))})
    return tuple(Span(*cut, rng.choice(labels)) for cut in pairwise(cuts) if rng.random() < chance)


def random_brackets(rng, start, end):
    found = [Span(start, end, rng.choice(LABELS)) for chance in (0.7, 0.2) if rng.random() < chance]
    if end - start > 1:
        middle = rng.randint(start + 1, end - 1)
        found += random_brackets(rng, start, middle) + random_brackets(rng, middle, end)
    return found


def random_tree(rng, n):
    order = rng.sample(range(1, n + 1), n)
    heads = {word: rng.choice(order[:k]) if k else 0 for k, word in enumerate(order)}
    return Dependencies(tuple(heads[word] for word in range(1, n + 1)), tuple(rng.choices(RELATIONS, k=n)))


def random_predicate(rng, n, index):
    free = [span for span in random_flat(rng, n, ROLES, 0.6) if not span.start <= index < span.end]
    if free and rng.random() < 0.2:
        free[-1] = free[-1]._replace(label="C-V")
    return Predicate(index, None, tuple(sorted([*free, Span(index, index + 1, "V")])), "do")


def random_sentence(rng, number):
    n = rng.randint(1, 12)
    places = sorted(rng.sample(range(n), rng.randint(0, min(3, n))))
    return Sentence(
        f"s{number}",
        tuple(rng.choices(WORDS, k=n)),
        tuple(rng.choices(TAGS, k=n)),
        random_flat(rng, n, TYPES, 0.6),
        random_tree(rng, n),
        (Span(0, n, "S"), *random_brackets(rng, 0, n)),
        tuple(random_predicate(rng, n, place) for place in places),
    ).validate()


def corrupted(rng, gold):
    n = len(gold)

    def relabelled(found, labels):
        """Some go, some get another label, but for the predicate's own, which no decoder predicts."""
        kept = [span for span in found if rng.random() < 0.8]
        other = [span.label not in NOT_ARGUMENTS and rng.random() < 0.2 for span in kept]
        return tuple(s._replace(label=rng.choice(labels)) if o else s for s, o in zip(kept, other, strict=True))

    spare = [random_predicate(rng, n, index) for index in range(n) if rng.random() < 0.1]
    predicates = {p.index: p for p in (*spare, *gold.srl) if rng.random() < 0.8}
    relations = tuple(rng.choice(RELATIONS) if rng.random() < 0.2 else name for name in gold.dep.relations)
    return gold.with_layers(
        pos=tuple(rng.choice(TAGS) if rng.random() < 0.2 else tag for tag in gold.pos),
        ner=relabelled(gold.ner, TYPES),
        dep=Dependencies((random_tree(rng, n) if rng.random() < 0.4 else gold.dep).heads, relations),
        con=(gold.con[0], *relabelled(gold.con[1:], LABELS)),
        srl=tuple(p._replace(arguments=relabelled(p.arguments, ROLES)) for _, p in sorted(predicates.items())),
    ).validate()


def random_pairs():
    rng = random.Random(17)
    gold = [random_sentence(rng, number) for number in range(300)]
    return [(sentence, corrupted(rng, sentence)) for sentence in gold]


@pytest.fixture(scope="module")
def pairs():
    return random_pairs()


def test_dep_by_hand():
    """Five words, one of them a comma: a wrong head, a wrong relation, a wrong subtype."""
    gold = Dependencies((2, 0, 2, 2, 4), ("nsubj:pass", "root", "punct", "obl:tmod", "case"))
    guess = Dependencies((2, 0, 4, 2, 2), ("nsubj:pass", "root", "punct", "obl:npmod", "case"))
    counts, values = one("dep", "it was , then off", gold, guess)
    assert counts == {
        "words": 5, "heads": 3, "arcs": 2, "bare_arcs": 3,
        "words_no_punct": 4, "heads_no_punct": 3, "arcs_no_punct": 2, "bare_arcs_no_punct": 3,
    }  # fmt: skip
    assert values == {
        "uas": 60.0, "las": 40.0, "las_no_subtypes": 60.0,
        "uas_no_punct": 75.0, "las_no_punct": 50.0, "las_no_subtypes_no_punct": 75.0,
    }  # fmt: skip


def test_punctuation():
    marks = ["%", "&", "#", "@", "*", "/", "...", "-LRB-", "``", "`", "''", "—", "(", "«"]
    words = ["$", "+", "-a", "1.5", ":D", "word", "=", "😀", "-NONE-"]
    assert [word for word in [*marks, *words] if scores.is_punctuation(word)] == marks


@pytest.mark.parametrize(
    ("layer", "gold", "predicted", "counts"),
    [
        ("ner", (), (), (0, 0, 0)),  # nothing there and nothing found: 0, not 100
        ("con", spans((0, 2, "S")), spans((0, 2, "TOP"), (0, 2, "S")), (1, 1, 1)),  # TOP is no bracket
        ("con", spans((0, 2, "S"), (0, 2, "NP")), spans((0, 2, "NP"), (0, 2, "S")), (2, 2, 2)),  # whatever the order
        ("con", spans((0, 2, "S"), (1, 2, "NP")), spans((0, 2, "S")), (1, 2, 1)),  # without tags nothing is deleted
    ],
)
def test_what_no_other_program_is_asked(layer, gold, predicted, counts):
    found, values = one(layer, "a ,", gold, predicted)
    assert tuple(found.values()) == counts
    assert values["f1"] == pytest.approx(100 * 2 * counts[0] / max(1, counts[1] + counts[2]))


def test_con_deletes_by_the_gold_tags_on_both_sides():
    """A full stop predicted as NN makes EVALB drop the sentence; with gold tags on both sides it stays."""
    gold = Sentence("s", ("a", "."), ("NN", "."), con=spans((0, 2, "S"), (0, 1, "NP")))
    assert count("con", gold, gold.with_layers(pos=("NN", "NN"))) == {"correct": 2, "gold": 2, "predicted": 2}


def predicate(index, *triples, roleset=None, lemma=None):
    return Predicate(index, roleset, spans(*triples), lemma)


def counted(counts, prefix=""):
    return tuple(counts[prefix + key] for key in ("correct", "gold", "predicted"))


PIECES = (predicate(2, (0, 1, "ARG1"), (2, 3, "V"), (4, 6, "C-ARG1")),)
HEAD = (predicate(2, (0, 1, "ARG1")),)
WANTS = (predicate(2, (0, 1, "R-ARG0"), roleset="want.01", lemma="want"),)


@pytest.mark.parametrize(
    ("gold", "predicted", "end_to_end", "joined"),
    [  # (correct, gold, predicted)
        (PIECES, HEAD, (1, 2, 1), (0, 1, 1)),  # pieces count alone end to end, and joined in CoNLL-2005; V is none
        (HEAD, (predicate(2, (0, 1, "C-ARG1")),), (0, 1, 1), (1, 1, 1)),  # without its head: an argument of its own
        (HEAD, (*HEAD, predicate(4, (5, 6, "ARG1"))), (1, 1, 2), (1, 1, 1)),  # spurious predicates cost end to end
        (HEAD, (), (0, 1, 0), (0, 1, 0)),  # missed ones cost in both
        # roles R- are ordinary; rolesets and lemmas are not scored
        (WANTS, (predicate(2, (0, 1, "R-ARG0"), roleset="want.02", lemma="WANT"),), (1, 1, 1), (1, 1, 1)),
    ],
)
def test_srl_by_hand(gold, predicted, end_to_end, joined):
    counts, _ = one("srl", "a b c d e f", gold, predicted)
    assert (counted(counts), counted(counts, "conll05_")) == (end_to_end, joined)


def test_srl_predicates_without_arguments_count_as_predicates_but_not_as_filled_ones():
    gold = (predicate(1), predicate(2, (0, 1, "ARG0")), predicate(4, (4, 5, "V")))
    counts, _ = one("srl", "a b c d e f", gold, (predicate(2, (0, 1, "ARG1")), predicate(4)))
    assert counted(counts, "predicates_") == (2, 3, 2)
    assert counted(counts, "filled_") == (1, 1, 1)


@pytest.mark.parametrize("layer", LAYERS)
def test_unknown_gold_is_not_counted_and_unknown_prediction_refused(layer, pairs):
    gold, guess = pairs[3]
    assert count(layer, gold.with_layers(**{layer: None}), guess) is None
    with pytest.raises(SentenceError, match=f"expected a predicted {layer} layer"):
        count(layer, gold, guess.with_layers(**{layer: None}))
    with pytest.raises(SentenceError, match="do not have the same words"):
        count(layer, gold, pairs[4][1])
    with pytest.raises(ValueError, match=f"no sentence with a known {layer} layer"):
        score(layer, [None, None])


@pytest.mark.parametrize("layer", LAYERS)
def test_counts_add_up_and_resampled_sums_may_be_arrays(layer, pairs):
    counts = [count(layer, g, p) for g, p in pairs]
    assert all(0.0 <= value <= 100.0 for one in counts for value in score(layer, [one]).values())
    total = add(counts)
    assert total == add([add(counts[:100]), None, add(counts[100:])])
    table = {key: np.array([c[key] for c in counts]) for key in total}
    draws = np.random.default_rng(0).integers(len(counts), size=(5, len(counts)))
    main = MAIN[kind_of(layer)]
    values = SCORES[kind_of(layer)][main]({key: column[draws].sum(1) for key, column in table.items()})
    for draw, value in zip(draws, values, strict=True):
        assert value == pytest.approx(score(layer, [counts[k] for k in draw])[main])


@pytest.fixture(scope="module")
def files(pairs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scorers") / "files"
    write_scorer_files(*zip(*pairs, strict=True), folder)
    return folder


OURS = {  # program → its figure → layer and name of ours
    "evalb": {"Precision": ("con", "precision"), "Recall": ("con", "recall"), "FMeasure": ("con", "f1")},
    "srl-eval": {key: ("srl", f"conll05_{key}") for key in ("correct", "gold", "predicted", *PRF)},
    "conlleval": {key: ("ner", key) for key in ("correct", "gold", "predicted", *PRF)},
    # the official LAS drops the subtype of a relation
    "conll18_ud_eval": {"UAS": ("dep", "uas"), "LAS": ("dep", "las_no_subtypes"), "XPOS": ("pos", "accuracy")},
}


@pytest.mark.parametrize("name", official_scorers.PROGRAMS)
def test_ours_are_what_the_official_program_said_of_the_same_files(name, pairs, files):
    """What was said of other files proves nothing: after a change of the sentences or the writer, record it anew."""
    recorded = official_scorers.recorded()[name]
    assert official_scorers.digest(name, files) == recorded["files"], "run python tests/official_scorers.py"
    totals = {layer: add(count(layer, g, p) for g, p in pairs) for layer in LAYERS}
    ours = {layer: total | score(layer, [total]) for layer, total in totals.items()}
    expected = {figure: ours[layer][key] for figure, (layer, key) in OURS[name].items()}
    assert recorded["figures"] == pytest.approx(expected, abs=0.0051)  # as printed with two digits


@pytest.mark.parametrize("name", official_scorers.PROGRAMS)
def test_the_official_program_says_what_was_recorded(name, files, tmp_path):
    if reason := official_scorers.missing(name):
        pytest.skip(reason)
    assert official_scorers.PROGRAMS[name].ask(files, tmp_path) == official_scorers.recorded()[name]["figures"]


OUTER, INNER = (3, 6, "ARG1"), (4, 5, "ARG2")


@pytest.mark.parametrize(
    ("gold", "predicted", "ours", "theirs"),
    [  # gold and predicted arguments of word 2; (correct, gold, predicted)
        ([OUTER, INNER], [OUTER, INNER], (2, 2, 2), (2, 2, 2)),
        ([OUTER, INNER], [OUTER], (1, 2, 1), (0, 2, 1)),
        ([OUTER, INNER], [INNER], (1, 2, 1), (1, 2, 1)),
        ([OUTER, INNER], [OUTER, (3, 4, "ARG2")], (1, 2, 2), (0, 2, 2)),
        ([OUTER, (3, 6, "ARG2")], [OUTER, (3, 6, "ARG2")], (2, 2, 2), (1, 1, 1)),
    ],
)
def test_nested_arguments_are_where_srl_eval_differs(gold, predicted, ours, theirs, tmp_path):
    gold, predicted = (predicate(2, (2, 3, "V"), *arguments, lemma="c") for arguments in (gold, predicted))
    pair = [Sentence("s", tuple("abcdef"), srl=(one,)) for one in (gold, predicted)]
    assert counted(count("srl", *pair), "conll05_") == ours
    if reason := official_scorers.missing("srl-eval"):
        pytest.skip(reason)
    write_scorer_files([pair[0]], [pair[1]], tmp_path)
    assert counted(official_scorers.srl_eval(tmp_path, tmp_path)) == theirs


def named(sides: list[tuple[Span, ...]], words: int = 6) -> list[Sentence]:
    return [Sentence(str(n), ("w",) * words, ner=side) for n, side in enumerate(sides)]


@given(st.lists(st.tuples(flat_spans(6), flat_spans(6)), min_size=1, max_size=5))
def test_scores_by_type_are_ours(sides: list[tuple[tuple[Span, ...], tuple[Span, ...]]]) -> None:
    """All types together are the strict score; each is the strict score where no other type is there."""
    gold, predicted = (named(list(side)) for side in zip(*sides, strict=True))
    unknown = [Sentence("unknown", ("w",)), Sentence("unknown", ("w",), ner=spans((0, 1, "PER")))]
    rows = scores_by_type("ner", [*gold, unknown[0]], [*predicted, unknown[1]])
    labels = sorted({span.label for pair in sides for side in pair for span in side})
    assert [row.label for row in rows] == ([*labels, ALL] if labels else [])
    for row in rows:
        only = [
            [tuple(span for span in side if row.label in (span.label, ALL)) for side in every]
            for every in zip(*sides, strict=True)
        ]
        counts = [count("ner", mine, theirs) for mine, theirs in zip(*map(named, only), strict=True)]
        expected = score("ner", counts)
        assert row[1:4] == pytest.approx([expected[name] for name in PRF])
        assert row.gold == sum(one["gold"] for one in counts)


def test_types_that_seqeval_would_take_for_one_are_told_apart() -> None:
    gold = named([spans((0, 1, "-A"), (1, 3, "A-"), (4, 5, "A"))])
    predicted = named([spans((0, 1, "A"), (1, 3, "A-"), (4, 5, "-A"))])
    rows = scores_by_type("ner", gold, predicted)
    assert [(row.label, row.f1) for row in rows] == [("-A", 0), ("A", 0), ("A-", 100), (ALL, pytest.approx(100 / 3))]
