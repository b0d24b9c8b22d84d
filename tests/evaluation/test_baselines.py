"""The majority baseline: votes counted by hand, repairs that always give valid layers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_sentences import sentences as any_sentence
from random_sentences import spans

from mtlprune.evaluation.baselines import Majority
from mtlprune.sentence import Dependencies, Predicate, Sentence, SentenceError, Span


def said(words: str, **layers: object) -> Sentence:
    return Sentence(words, tuple(words.split()), **layers)


def test_most_frequent_tag_and_its_back_offs():
    train = [said("can can Can will", pos=("MD", "MD", "NNP", "MD")), said("can x", pos=("NN", "NN"))]
    baseline = Majority([*train, said("y", pos=("NN",))])
    # Can as written; CAN in lower case (3 MD or NN, 1 NNP); unknown: MD 3, NN 3, NNP 1, a tie that the alphabet decides
    assert baseline.predict(said("can Can CAN never")).pos == ("MD", "NNP", "MD", "MD")


def test_tags_of_words_become_entities():
    names = said("New York Jordan", ner=spans((0, 2, "LOC"), (2, 3, "PER")))
    train = [names, said("Jordan slept", ner=spans((0, 1, "PER"))), said("Jordan", ner=spans((0, 1, "LOC")))]
    baseline = Majority(train)
    assert baseline.predict(said("Jordan New York slept")).ner == spans((0, 1, "PER"), (1, 3, "LOC"))
    assert baseline.predict(said("Jordan York York")).ner == spans((0, 1, "PER"), (1, 3, "LOC"))
    assert baseline.predict(said("slept Jordan")).ner == spans((1, 2, "PER"))


def test_arcs_that_leave_the_sentence_take_the_next_best():
    first = said("a b c", dep=Dependencies((2, 0, 2), ("x", "root", "y")))
    train = [first, said("b c", dep=Dependencies((0, 1), ("root", "y")))]
    baseline = Majority(train)
    assert [baseline.predict(s).dep for s in train] == [s.dep for s in train]
    assert baseline.predict(said("b a")).dep == Dependencies((0, 1), ("root", "x"))  # a's head would be word 3
    assert baseline.predict(said("b b")).dep == Dependencies((0, 1), ("root", "y"))  # b has no arc but the root's
    assert baseline.predict(said("c a")).dep == Dependencies((0, 1), ("root", "x"))  # no root: the first word


def test_a_circle_is_broken_at_its_first_word():
    train = [said("a b z", dep=Dependencies((2, 3, 0), ("x", "v", "root")))] * 2
    train += [said("z k b", dep=Dependencies((0, 1, 2), ("root", "k", "w")))] * 3
    assert Majority(train).predict(said("a b z")).dep == Dependencies((3, 1, 0), ("x", "w", "root"))


def test_brackets_open_as_they_mostly_do_and_never_cross():
    tree = spans((0, 6, "S"), (0, 2, "NP"), (2, 5, "VP"), (3, 5, "NP"))
    baseline = Majority([said("the cat eats the rat .", con=tree)])
    assert baseline.predict(said("the cat eats the rat .")).con == tree
    longer = baseline.predict(said("the cat eats the cat eats the .")).con
    last = (5, 7, "VP"), (6, 7, "NP")  # this NP would cross its VP
    assert longer == spans((0, 8, "S"), (0, 2, "NP"), (2, 7, "VP"), (3, 5, "NP"), *last)


def test_predicates_and_their_arguments_relative_to_them():
    def sees(words: str, *arguments: tuple[int, int, str]) -> Sentence:
        return said(words, srl=(Predicate(2, "see.01", spans(*arguments, (2, 3, "V")), "see"),))

    train = [sees("the cat sees a rat .", (0, 2, "ARG0"), (3, 5, "ARG1"))]
    train += [sees("the dog sees it today .", (0, 2, "ARG0"), (3, 4, "ARG1"), (4, 5, "ARGM-TMP"))]
    train += [sees("old Tom sees a big rat .", (0, 2, "ARG0"), (3, 6, "ARG1")), said("cat sees", srl=())]
    baseline = Majority(train)
    # ARGM-TMP has one of three; ARG1 mostly reaches the sentence's end; the second predicate lacks room for its ARG0
    found = baseline.predict(said("a cat sees many grey rats .")).srl
    assert found == (Predicate(2, None, spans((0, 2, "ARG0"), (3, 6, "ARG1"))),)
    assert baseline.predict(said("cat sees rats .")).srl == (Predicate(1, None, (Span(2, 3, "ARG1"),)),)


def test_without_train_there_is_no_baseline():
    with pytest.raises(SentenceError, match="expected sentences in train"):
        Majority([])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(any_sentence(st.sampled_from("abcABC")), min_size=1, max_size=5), any_sentence(st.sampled_from("abcdXC"))
)
def test_predictions_are_valid_and_hold_the_layers_of_train(train, sentence):
    predicted = Majority(train).predict(sentence).validate()
    assert predicted.words == sentence.words and predicted.id == sentence.id
    assert set(predicted.layers()) == {layer for s in train for layer in s.layers()}
    if predicted.dep:
        assert predicted.dep.heads.count(0) == 1
