"""Classes are declared: by argument, by the type of the labels, or as observed, which the certificate states.

A class that a single row has would show in `classes_`, in the shape of `predict_proba` and in the channel; so nothing
infers it in silence.
"""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from labeldp import LabelVault
from labeldp.core.certificate import parse, verify
from labeldp.data import seal_classes
from labeldp.estimator.classifier import LabelDPClassifier
from labeldp.estimator.select import select
from tests.estimator.helpers import CLASSES, numbers

pytestmark = pytest.mark.filterwarnings("ignore::labeldp.estimator.RepeatedFitWarning")
X, Y = numbers(120)
# What one row alone has.
RARE = Y.astype(object)
RARE[0] = "rare"
DECLARED = [*CLASSES, "rare"]


def classifier(classes=None):
    return LabelDPClassifier(4.0, 1e-6, "one_shot", classes=classes)


@pytest.mark.parametrize(
    "fit",
    [
        lambda y: classifier().fit(X, y),
        lambda y: select([classifier()], X, y, epsilon=1.0),
        lambda y: seal_classes(y, None, "the test"),
    ],
    ids=["classifier", "select", "door"],
)
@pytest.mark.parametrize("hold", [list, np.asarray, pd.Series, pl.Series, pa.array], ids=lambda hold: hold.__name__)
def test_undeclared_classes_are_refused_and_the_error_says_what_to_write(fit, hold):
    with pytest.raises(ValueError, match=r"write classes=\['no', 'yes'\].*classes=\"observed\"") as refusal:
        fit(hold(RARE.tolist()))
    assert "rare" not in str(refusal.value)


def test_one_text_is_no_list():
    with pytest.raises(ValueError, match="is one text; give a list"):
        classifier("no,yes").fit(X, Y)


TYPES = {
    "pandas categories": lambda y: pd.Series(pd.Categorical(y, categories=DECLARED)),
    "polars enumeration": lambda y: pl.Series(y.tolist(), dtype=pl.Enum(DECLARED)),
    "Arrow dictionary": lambda y: pa.DictionaryArray.from_arrays(
        pa.array([DECLARED.index(one) for one in y], pa.int8()), pa.array(DECLARED)
    ),
    "Arrow dictionary in parts": lambda y: pa.chunked_array([TYPES["Arrow dictionary"](part) for part in (y, y)])[:120],
}


@pytest.mark.parametrize("kind", TYPES)
def test_a_declared_type_names_the_classes_and_the_certificate_says_so(kind):
    """Also those that no row has."""
    model = classifier().fit(X, TYPES[kind](Y))
    assert model.classes_.tolist() == sorted(DECLARED)
    assert model.predict_proba(X).shape == (120, 3)
    assert any("type of the labels" in one for one in model.certificate_.assumptions)


def test_a_type_that_was_made_from_the_labels_is_not_said_to_be_declared():
    """Pandas finds the categories of a column in its values: a certificate that denied it would be false."""
    found = classifier().fit(X, pd.Series(Y).astype("category"))
    assert found.classes_.tolist() == sorted(set(Y.tolist()))
    (said,) = found.certificate_.assumptions
    assert "where the type was made from the labels, which classes occur is not protected" in said


@pytest.mark.parametrize(
    "hold",
    [
        np.asarray,
        pd.Series,
        lambda y: pd.Series(y, dtype="boolean"),
        lambda y: pl.Series(y.tolist()),
        lambda y: pa.array(y.tolist()),
    ],
    ids=["numpy", "pandas", "pandas boolean", "polars", "arrow"],
)
def test_true_and_false_are_two_classes_whichever_occur(hold):
    known, vault = seal_classes(hold(np.ones(5, dtype=bool)), None, "the test")
    assert (known.tolist(), vault.num_classes, vault.certificate().assumptions) == ([False, True], 2, ())


def test_polars_categories_are_read_off_the_labels_and_so_are_refused():
    with pytest.raises(ValueError, match="classes is not given"):
        classifier().fit(X, pl.Series(Y.tolist(), dtype=pl.Categorical))


def test_observed_classes_are_named_in_the_certificate_wherever_it_goes():
    model = classifier("observed").fit(X, RARE)
    assert model.classes_.tolist() == sorted(DECLARED)
    assert any("read off the labels" in one for one in model.certificate_.assumptions)
    kept = parse(model.certificate_.dumps())
    assert kept.assumptions == model.certificate_.assumptions
    assert verify(kept) == ()
    found = select([classifier("observed")], X, RARE, epsilon=1.0)
    assert found.certificate.assumptions == found.best.certificate_.assumptions == model.certificate_.assumptions


def test_declared_classes_and_a_vault_assume_nothing():
    assert classifier(CLASSES).fit(X, Y).certificate_.assumptions == ()
    model = classifier().fit(X, LabelVault((Y == "yes").astype(int), 2))
    assert (model.classes_.tolist(), model.certificate_.assumptions) == ([0, 1], ())
