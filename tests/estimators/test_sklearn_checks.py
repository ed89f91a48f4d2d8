"""scikit-learn's own contract for estimators. What fails by design is listed with the reason."""

import pytest

pytest.importorskip("sklearn")

from sklearn.utils.estimator_checks import parametrize_with_checks

from labeldp import LabelDPClassifier

# Warnings about repeated fits and undeclared classes are tested elsewhere; here the same labels are fitted to hundreds
# of times, on purpose and on made-up data.
pytestmark = pytest.mark.filterwarnings(
    "ignore::labeldp.estimators.RepeatedFitWarning",
    "ignore::labeldp.estimators.PublicClassesWarning",
    "ignore::labeldp.estimators.UnpaidScoreWarning",
)
NOISE = "the noise comes from the operating system, never from random_state, so two fits are not alike"


def expected(estimator):
    return {"check_fit_idempotent": NOISE, "check_classifier_data_not_an_array": NOISE + "; twelve rows show it"}


# Not strict: by luck two fits may be alike.
@parametrize_with_checks(
    [LabelDPClassifier(epsilon=20.0, method="one_shot")], expected_failed_checks=expected, xfail_strict=False
)
def test_checks(estimator, check):
    check(estimator)
