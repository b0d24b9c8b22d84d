"""EWT5: the join on small sources with every trap, and on the real ones with their exact counts."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_sentences import flat_spans, nested_spans, predicates, sized, spans

from mtlprune.corpora import CorpusError
from mtlprune.corpora.ewt5 import Group, Regrouping, build_ewt5, move_entities
from mtlprune.sentence import Dependencies, Predicate, Sentence, Span


def block(sentence_id: str, *rows: str) -> str:
    numbered = (f"{number}\t{row}\n" for number, row in enumerate(rows, 1))
    return f"# sent_id = {sentence_id}\n{''.join(numbered)}\n"


def ud(sentence_id: str, *words: str) -> str:
    arcs = ["0\troot", *["1\tdep"] * (len(words) - 1)]
    rows = (f"{word}\t_\t_\tT\t_\t{arc}\t_\t_" for word, arc in zip(words, arcs, strict=True))
    return block(sentence_id, *rows)


def uner(sentence_id: str, *words: str) -> str:
    return block(sentence_id, *("\t".join(word.rsplit("/", 1)) for word in words))


def skeleton(document: str, index: int, *bits: str) -> str:
    """The first token is a predicate whose argument is the last one."""
    name, last, rows = f"google/ewt/{document}.xml", len(bits) - 1, []
    for k, bit in enumerate(bits):
        lemma, argument = ("be be.01", "(V*)") if k == 0 else ("- -", "(A*)" if k == last else "*")
        rows.append(f"{name} {index} {k} [WORD] T {bit} {lemma} {argument}\n")
    return "".join(rows) + "\n"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Two documents a split, the last without skeleton; UNER has them in another order and with other words."""
    folder = tmp_path / "ewt"
    for inner in ("ud", "uner", "data/google/ewt/answers/00"):
        (folder / inner).mkdir(parents=True)
    for split in ("train", "dev", "test"):
        text = ud(f"answers-{split}-0001", "Al-Zaman", "is") + ud(f"answers-{split}-0002", "in", "Rome", ".")
        (folder / f"ud/en_ewt-ud-{split}.conllu").write_text(text + ud(f"email-{split}-0001", "no"))
        place, last = ("B-OTH", "B-O") if split == "train" else ("B-LOC", "O")
        other = uner(f"email-{split}-0001", "no/O")
        other += uner(f"answers-{split}-0001", "Al/B-ORG", "-/I-ORG", "Zaman/I-ORG", f"is/{last}")
        other += uner(f"answers-{split}-0002", "in/O", f"Rome/{place}", "./O")
        (folder / f"uner/en_ewt-ud-{split}.iob2").write_text(other)
        document = f"answers/00/{split}"
        text = skeleton(document, 0, "(TOP(S*", "*))") + skeleton(document, 1, "(TOP(PP*", "(NP*", "*)))")
        (folder / f"data/google/ewt/{document}.xml.gold_skel").write_text(text)
    return folder


def test_the_join(sources: Path) -> None:
    corpus = build_ewt5(sources)
    roles = [(Predicate(0, "be.01", spans((0, 1, "V"), (k, k + 1, "A")), "be"),) for k in (1, 2)]
    trees = [Dependencies((0, *[1] * k), ("root", *["dep"] * k)) for k in range(3)]  # all on the first word
    zaman, rome, no = ("Al-Zaman", "is"), ("in", "Rome", "."), ("no",)
    org, loc, phrases = spans((0, 1, "ORG")), spans((1, 2, "LOC")), spans((0, 3, "PP"), (1, 3, "NP"))
    assert corpus["dev"] == [
        Sentence("answers-dev-0001", zaman, ("T", "T"), org, trees[1], spans((0, 2, "S")), roles[0]),
        Sentence("answers-dev-0002", rome, ("T", "T", "T"), loc, trees[2], phrases, roles[1]),
        Sentence("email-dev-0001", no, ("T",), (), trees[0]),
    ]
    assert [sentence.ner for sentence in corpus["train"]] == [(Span(0, 1, "ORG"),), (), ()]


DEV, SKELETON = "uner/en_ewt-ud-dev.iob2", "data/google/ewt/answers/00/dev.xml.gold_skel"
LAST = "*))) - - (A*)\n"
WORD = "google/ewt/answers/00/dev.xml 1 3 [WORD] T * - - *\n"
SENTENCE = "\ngoogle/ewt/answers/00/dev.xml 2 0 [WORD] T (TOP*) - -\n"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "ud/en_ewt-ud-dev.conllu",
            None,
            r"dev.conllu: expected a file, found none; download it from https://.*/r2.16/",
        ),
        ("data", None, r"found none; download it from https://codeload.github.com/propbank"),
        (DEV, ("Rome", "Roma"), "expected the same characters"),
        (DEV, ("email-dev", "email-x"), "expected the documents of UD, found 'email-dev' only in UD"),
        (SKELETON, (LAST, LAST + WORD), "line 4: the skeleton does not fit .* 'answers-dev-0002': .* found 4 and 3"),
        (SKELETON, (LAST, LAST + SENTENCE), "expected a sentence for each of UD, found 3 for 2"),
    ],
)
def test_sources_that_do_not_fit_are_worded(sources, name, change, message):
    path = sources / name
    if change:
        assert change[0] in path.read_text()
        path.write_text(path.read_text().replace(*change))
    else:
        path.rename(sources / "elsewhere")
    with pytest.raises(CorpusError, match=message):
        build_ewt5(sources)


def words(text: str, ner: tuple[Span, ...] | None = None, name: str = "s") -> Sentence:
    return Sentence(name, tuple(text.split()), ner=ner)


def test_entities_grow_to_whole_words_and_follow_sentences() -> None:
    zaman, ann = spans((0, 3, "ORG"), (5, 6, "LOC")), spans((0, 1, "PER"))
    source = [words("Al - Zaman is in Rome", zaman), words("Ann's", ann)]
    target = [words("Al-Zaman is"), words("in Rome"), words("Ann 's")]
    assert move_entities(source, target) == [spans((0, 1, "ORG")), spans((1, 2, "LOC")), spans((0, 2, "PER"))]
    part = words("New York City", spans((0, 2, "LOC")))
    assert move_entities([part], [words("New YorkCity")]) == [spans((0, 2, "LOC"))]


@given(sized(flat_spans))
def test_entities_survive_any_retokenisation_that_keeps_their_boundaries(case: tuple[int, tuple[Span, ...]]) -> None:
    n, entities = case
    source, letters = words("ab " * n, entities), words("a b " * n)
    [moved] = move_entities([source], [letters])
    assert moved == tuple(Span(2 * start, 2 * end, label) for start, end, label in entities)
    assert move_entities([letters.with_layers(ner=moved)], [source]) == [entities]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (words("ab c", ()), [words("a bd")], r"the same characters .*found 'c' against 'd' at character 2"),
        (words("a b", spans((0, 2, "X"))), [words("a"), words("b")], "one sentence of the target, found it across two"),
        (words("a b", spans((0, 1, "X"), (1, 2, "Y"))), [words("ab")], "collide"),
    ],
)
def test_entities_that_cannot_be_moved(source: Sentence, target: list[Sentence], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        move_entities([source], target)


@given(sized(lambda n: st.tuples(nested_spans(n), predicates(n))))
def test_without_groups_nothing_changes(case: tuple[int, tuple[tuple[Span, ...], tuple[Predicate, ...]]]) -> None:
    n, (con, srl) = case
    same = Regrouping(n, n)
    assert (same.constituents(con), same.predicates(srl)) == (con, srl)


def test_several_tokens_to_one_word() -> None:
    """(S (NP a b) (VP c (ADVP d))) with b c d or c d joined: the word takes the place of its first leaf."""
    con = spans((0, 4, "S"), (0, 2, "NP"), (2, 4, "VP"), (3, 4, "ADVP"))
    joined = Regrouping(4, 2, [Group((1, 2, 3), (1,))])
    assert joined.constituents(con) == spans((0, 2, "S"), (0, 2, "NP"))
    srl = (Predicate(3, None, spans((0, 2, "A0"), (3, 4, "V"))),)
    assert joined.predicates(srl) == (Predicate(1, None, spans((0, 2, "A0"), (1, 2, "V"))),)
    last = Regrouping(4, 3, [Group((2, 3), (2,))])
    assert last.constituents(con) == spans((0, 3, "S"), (0, 2, "NP"), (2, 3, "VP"))


def test_one_token_to_several_words() -> None:
    split = Regrouping(3, 4, [Group((1,), (1, 2))])
    con = split.constituents(spans((0, 3, "S"), (1, 2, "NP"), (2, 3, "VP")))
    assert con == spans((0, 4, "S"), (1, 3, "NP"), (3, 4, "VP"))
    srl = split.predicates([Predicate(1, "r", spans((1, 2, "V"), (2, 3, "A")), "l")])
    assert srl == (Predicate(1, "r", spans((1, 3, "V"), (3, 4, "A")), "l"),)


def test_trees_restricted_to_some_words() -> None:
    """Three tokens, of which only the last two are this sentence."""
    part = Regrouping(3, 2, [Group((1,), (0,)), Group((2,), (1,))])
    assert part.constituents(spans((0, 3, "S"), (0, 1, "NP"), (1, 3, "VP"))) == spans((0, 2, "S"), (0, 2, "VP"))
    srl = part.predicates([Predicate(0, None, spans((1, 2, "A"))), Predicate(2, None, spans((0, 2, "A")))])
    assert srl == (Predicate(1, None, spans((0, 1, "A"))),)
