"""Prose: words carry over to new rows, at a price of nothing but public rows, and are kept without a pickle."""

import numpy as np
import pandas as pd
import pytest

import labeldp
from labeldp.core.vault import LabelVault
from labeldp.estimator import LabelDPClassifier
from labeldp.estimator.serialise import PartsError
from labeldp.features.tables import Table
from labeldp.features.text import Encoded, Text
from labeldp.results.measure import auc

pytest.importorskip("sklearn")


def corpus(rows, seed):
    """Thirty common words and two of a class's own, in any order; a number that says nothing."""
    rng = np.random.default_rng(seed)
    common, rank = np.array([f"word{i}" for i in range(2000)]), 1 / np.arange(1, 2001)
    labels = rng.integers(0, 2, rows)
    own = np.array([[f"alpha{i}" for i in range(40)], [f"beta{i}" for i in range(40)]])
    plain = rng.choice(common, (rows, 30), p=rank / rank.sum())
    words = np.concatenate([plain, own[labels[:, None], rng.integers(0, 40, (rows, 2))]], axis=1)
    texts = [" ".join(line) for line in rng.permuted(words, axis=1)]
    return pd.DataFrame({"review": texts, "age": rng.normal(size=rows)}), labels


@pytest.fixture(scope="module")
def fitted():
    train, labels = corpus(3000, 0)
    return LabelDPClassifier(1.0, classes=[0, 1], random_state=0).fit(train, labels)


def test_topics_are_learnt_at_epsilon_one(fitted):
    """0.50 where a review was one of 256 hashed values; 1.00 by logistic regression on tf-idf without privacy."""
    test, labels = corpus(2000, 1)
    assert auc(fitted.predict_proba(test)[:, 1], labels) >= 0.95
    assert fitted.certificate_.epsilon <= 1.0


def test_a_model_with_prose_is_taken_apart_and_put_together(fitted):
    test, _ = corpus(50, 2)
    config, arrays = fitted.to_parts()
    again = LabelDPClassifier.from_parts(config, arrays)
    assert np.allclose(again.predict_proba(test), fitted.predict_proba(test), atol=1e-6)
    assert config["prose"] == [True, False]
    assert not any(array.dtype == object for array in arrays.values())


def test_new_rows_need_not_look_like_prose(fitted):
    short = pd.DataFrame({"review": ["alpha1 alpha2", None, "beta3"], "age": [0.0, 0.0, 0.0]})
    found = fitted.predict_proba(short)[:, 1]
    assert found[0] < 0.5 < found[2]


def test_with_an_extractor_of_ones_own_text_is_a_category():
    train, labels = corpus(300, 3)
    model = LabelDPClassifier(1.0, classes=[0, 1], features=Table(), random_state=0).fit(train, labels)
    assert model._map.dim == 1 + 256


def test_encodings_are_the_same_for_the_same_words():
    texts = np.array([["a good day"], ["a bad day"], ["the plot is thin"], [""]], dtype=object)
    found = Text(dims=3).fit(texts)
    rows = found.features(texts)
    assert rows.shape == (4, found.dim)
    assert np.allclose(found.features(texts[:1]), rows[:1], atol=1e-6)
    assert np.allclose(found.features([["A good, day!"]]), rows[:1], atol=1e-6)
    with pytest.raises(ValueError, match="2 columns of text"):
        found.features(np.full((1, 2), "a", dtype=object))
    with pytest.raises(ValueError, match="shape"):
        Text().fit(np.array(["a", "b"], dtype=object))


def test_columns_without_a_word_give_nothing():
    texts = np.full((5, 1), "", dtype=object)
    assert not Text().fit(texts).features(texts).any()


# -- an encoder of the user's ------------------------------------------------------------------------------------------


def meaning(texts):
    """A stand-in for a sentence encoder: it knows which words are kind, wherever they stand."""
    kind = [sum(word in ("good", "fine", "great") for word in text.split()) for text in texts]
    unkind = [sum(word in ("bad", "awful", "dull") for word in text.split()) for text in texts]
    return np.c_[kind, unkind, [len(text) for text in texts]].astype(float)


def films(rows, seed):
    chance = np.random.default_rng(seed)
    kinds = chance.integers(0, 2, rows)
    said = [chance.choice([["bad", "awful", "dull"], ["good", "fine", "great"]][kind]) for kind in kinds]
    texts = [f"the film {place} and the plot {word}" for place, word in enumerate(said)]
    return pd.DataFrame({"said": texts, "length": chance.normal(size=rows)}), kinds


def test_an_encoder_of_yours_reads_prose_and_is_given_again(tmp_path):
    frame, kinds = films(2000, 0)
    model = LabelDPClassifier(1.0, 1e-6, "one_shot", classes=[0, 1], encoder=meaning, random_state=0).fit(frame, kinds)
    assert (model.predict(frame) == kinds).mean() > 0.97
    model.save(tmp_path / "model")
    again = labeldp.load(tmp_path / "model", encoder=meaning)
    assert np.allclose(again.predict_proba(frame), model.predict_proba(frame), atol=1e-6)
    with pytest.raises(PartsError, match="encoder="):
        labeldp.load(tmp_path / "model")
    # One with other weights is another one.
    with pytest.raises(PartsError, match="other numbers"):
        labeldp.load(tmp_path / "model", encoder=lambda texts: 2 * meaning(texts))


def test_what_no_encoder_gives_is_refused_before_anything_is_spent():
    frame, kinds = films(300, 1)
    vault = LabelVault(kinds, 2)
    wrong = [
        (lambda texts: [1.0] * len(texts), "shape"), (lambda texts: meaning(texts)[:-1], "one row of numbers"),
        (lambda texts: meaning(texts) * np.nan, "finite"),
    ]  # fmt: skip
    for encoder, words in wrong:
        with pytest.raises(ValueError, match=words):
            LabelDPClassifier(1.0, 1e-6, "one_shot", classes=[0, 1], encoder=encoder).fit(frame, vault)
    with pytest.raises(ValueError, match="X has none"):
        LabelDPClassifier(1.0, 1e-6, "one_shot", classes=[0, 1], encoder=meaning).fit(frame[["length"]], vault)
    assert not any(group.queries for group in vault.ledger.groups())


def test_missing_texts_are_empty_ones_and_columns_are_each_for_itself():
    texts = np.array([["a good film", None], ["bad", "the plot"]], dtype=object)
    found = Encoded(meaning).fit(texts)
    assert found.dim == 6
    assert found.features(texts).square().sum(dim=1).mean() == pytest.approx(8.0)
    with pytest.raises(ValueError, match="2"):
        found.features(texts[:, :1])
