"""What is reported during a fit: ε as the ledger has it, and curves of what was released."""

import itertools
import math

import numpy as np
import pytest

from labeldp.core.events import Gaussian
from labeldp.core.vault import LabelVault
from labeldp.data.door import PrivateData
from labeldp.data.kinds import Column
from labeldp.estimator import spending
from labeldp.estimator.classifier import LabelDPClassifier
from labeldp.estimator.progress import Recorder, Reporter
from labeldp.estimator.regressor import LabelDPRegressor
from labeldp.learning.progress import Progress
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.recipes.catalogue import RECIPES
from labeldp.results.measure import metrics_of
from labeldp.results.model import trained
from tests.marks import mostly_slow

pytest.importorskip("torch")
pytest.importorskip("sklearn")


ROWS = 300
X = np.random.default_rng(0).normal(size=(ROWS, 3))
Y = (X[:, 0] > 0).astype(int)


def fitted(method, labels=Y):
    """What a fit reports, and its certificate."""
    reports = []
    model = LabelDPClassifier(2.0, 1e-6, method, classes=[0, 1], random_state=0, report=reports.append).fit(X, labels)
    return reports, model.certificate_


# One of each kind: a moment, responses, gradients, rounds.
KINDS = ("one_shot", "rr", "dp_sgd", "rounds")
# Those of one pass report nothing between.
METHODS = [recipe.key for recipe in RECIPES if recipe.classes and recipe.loop == "fit" and recipe.network != "linear"]


@pytest.mark.parametrize("method", mostly_slow(sorted(METHODS, key=lambda name: name not in KINDS), quick=len(KINDS)))
def test_every_method_says_what_it_has_spent(method):
    reports, certificate = fitted(method)
    spent = [one.epsilon for one in reports if one.epsilon is not None]
    # Up to what δ is worth: a pure query is counted at δ when others of other rows are beside it.
    assert all(later >= earlier * (1 - 1e-5) for earlier, later in itertools.pairwise(spent))
    assert spent[-1] == certificate.epsilon
    # It is reported before the end, too, and not only at the end.
    during = [one.epsilon for one in reports if one.phase in ("query", "head", "training", "learner", "histogram")]
    assert during
    assert None not in during
    assert during[-1] == pytest.approx(certificate.epsilon, rel=1e-3)
    assert during[0] > 0


def test_numbers_say_it_too():
    for method in ("one_shot", "binned_regression"):
        spending.MEMORY.forget()
        reports = []
        model = LabelDPRegressor(2.0, (-2, 2), 1e-6, method, random_state=0, report=reports.append).fit(X, X[:, 0])
        assert reports[-2].epsilon == pytest.approx(model.certificate_.epsilon, rel=1e-9)


def test_descent_shows_epsilon_as_it_grows():
    reports, certificate = fitted("dp_sgd")
    steps = [one for one in reports if one.step is not None]
    assert len(steps) >= 3
    spent = [one.epsilon for one in steps]
    assert spent == sorted(set(spent))
    assert spent[0] < 0.8 * certificate.epsilon


def test_epsilon_is_computed_when_the_ledger_changes_and_at_no_delta_where_none_is_needed(monkeypatch):
    from labeldp.estimator import progress

    computed, honest = [], progress.worst_epsilon
    monkeypatch.setattr(progress, "worst_epsilon", lambda *given: computed.append(given) or honest(*given))
    reports = []
    vault = LabelVault(Y, 2)
    reporter = Reporter(reports.append, 0, vault, 1e-6, 0.0)
    for phase in ("features", "choice"):
        reporter.phase(phase, "")
    vault.release(RandomizedResponse(1.0, 2))
    for _ in range(3):
        reporter.phase("training", "")
    assert [one.epsilon for one in reports] == [0.0, 0.0, 1.0, 1.0, 1.0]
    assert [one.queries for one in reports] == [0, 0, 1, 1, 1]
    assert len(computed) == 2
    vault._charge([(Gaussian(4.0, 1.0), 1, None)])
    reporter.phase("training", "")
    assert reports[-1].queries == 2
    assert math.isfinite(reports[-1].epsilon)
    assert reports[-1].epsilon == honest(vault.ledger.groups(), 1e-6)


# --- curves ---------------------------------------------------------------------------------------------------------


def test_trainings_in_turn_are_curves_of_their_own():
    recorder = Recorder()
    for epoch, loss in ((1, 0.9), (2, 0.8), (1, 0.7), (2, math.nan), (3, 0.5)):
        recorder.add(Progress("training", "", 0.0, epoch=epoch, loss=loss, epsilon=1.0, queries=1))
    first, second = recorder.curves()
    assert first == {
        "name": "training loss on private targets, training 1", "x_name": "epoch", "x": [1, 2], "y": [0.9, 0.8],
    }  # fmt: skip
    assert (second["x"], second["y"]) == ([1, 3], [0.7, 0.5])


def test_steps_and_looks_are_curves_of_epsilon():
    recorder = Recorder()
    for step in (10, 20):
        recorder.add(Progress("training", "", 0.0, step=step, epsilon=step / 20))
    assert recorder.curves() == [{"name": "ε spent", "x_name": "step", "x": [0, 10, 20], "y": [0.0, 0.5, 1.0]}]
    recorder = Recorder()
    for queries, spent in ((0, 0.0), (1, 0.7), (1, 0.7), (2, 1.0)):
        recorder.add(Progress("training", "", 0.0, queries=queries, epsilon=spent))
    assert recorder.curves() == [{"name": "ε spent", "x_name": "query", "x": [0, 1, 2], "y": [0.0, 0.7, 1.0]}]


def test_one_look_and_one_point_are_no_curve():
    recorder = Recorder()
    recorder.add(Progress("query", "", 0.0, queries=1, epsilon=1.0))
    recorder.add(Progress("training", "", 0.0, epoch=1, loss=0.5))
    assert recorder.curves() == []


def test_curves_are_a_function_of_what_was_released(monkeypatch):
    """Two data sets with other labels, but with the same answers of the vault: the same curves, to the bit."""
    responses = np.random.default_rng(1).integers(2, size=ROWS)

    def answered(self, labels, rng):
        from labeldp.releases import NoisyLabels

        return NoisyLabels(self, responses.astype(np.uint8))

    monkeypatch.setattr(RandomizedResponse, "sample", answered)
    found = []
    for labels in (Y, 1 - Y):
        recorder = Recorder()
        spending.MEMORY.forget()
        LabelDPClassifier(1.0, 0.0, "rr", classes=[0, 1], random_state=0, report=recorder.add).fit(X, labels)
        found.append(recorder.curves())
    assert found[0] == found[1]
    assert len(found[0][0]["x"]) > 5


@pytest.mark.parametrize(("method", "names"), [
    ("forward", ["training loss on private targets"]),
    ("dp_sgd", ["ε spent"]),
    ("one_shot", []),
])  # fmt: skip
def test_train_puts_curves_into_the_metrics(method, names):
    from pyarrow import table

    columns = tuple(Column(name, "number") for name in "abc")
    features = table(dict(zip("abc", X.T, strict=True)))
    data = PrivateData("t.csv", "y", features, LabelVault(Y, 2), ("no", "yes"), columns=columns)
    model = trained(data, 2.0, delta=1e-6, method=method)
    curves = metrics_of(data, model).get("curves", [])
    assert [curve["name"] for curve in curves] == names
    for curve in curves:
        assert len(curve["x"]) == len(curve["y"]) > 1
        assert np.isfinite(curve["y"]).all()
