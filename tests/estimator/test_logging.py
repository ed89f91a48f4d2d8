"""What a fit says while it goes on: nothing, unless it is asked to; and never a label."""

import logging

import numpy as np
import pytest

from labeldp.estimator.classifier import LabelDPClassifier
from tests.estimator.helpers import CLASSES, numbers

pytestmark = pytest.mark.filterwarnings("ignore::labeldp.estimator.RepeatedFitWarning")


def test_it_is_silent_by_default(capfd):
    x, y = numbers(200)
    LabelDPClassifier(1.0, classes=CLASSES).fit(x, y)
    assert capfd.readouterr() == ("", "")


def test_phases_are_logged_and_steps_too_where_that_is_wanted(caplog):
    x, y = numbers(200)
    model = LabelDPClassifier(1.0, method="forward", classes=CLASSES, settings={"epochs": 3})
    with caplog.at_level(logging.INFO, "labeldp"):
        model.fit(x, y)
    assert {record.name for record in caplog.records} == {"labeldp"}
    few = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("features: 200 rows") for line in few)
    assert few[-1].startswith("done: epsilon 1")
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "labeldp"):
        model.fit(x, y)
    assert len(caplog.records) > len(few)


@pytest.mark.parametrize("method", ["auto", "rr", "one_shot", "boosting", "dp_sgd"])
def test_no_class_and_no_label_is_in_the_log(method, caplog, capfd):
    x, y = numbers(300)
    secret = np.where(y == "yes", "zebrafish", "quokka")
    settings = {"epochs": 1} if method in ("rr", "dp_sgd") else None
    with caplog.at_level(logging.DEBUG, "labeldp"):
        LabelDPClassifier(1.0, method=method, classes=["zebrafish", "quokka"], settings=settings, verbose=2).fit(
            x, secret
        )
    said = caplog.text + "".join(capfd.readouterr())
    assert len(said) > 100
    assert "zebrafish" not in said
    assert "quokka" not in said


def test_verbose_prints_a_line_for_every_phase(capsys):
    x, y = numbers(200)
    LabelDPClassifier(1.0, method="one_shot", classes=CLASSES, verbose=True).fit(x, y)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("public features (epsilon 0)")
    assert "done: epsilon" in lines[-1]
    LabelDPClassifier(1.0, method="one_shot", classes=CLASSES, verbose=2).fit(x, y)
    assert len(capsys.readouterr().out.splitlines()) > len(lines)


def test_verbose_goes_with_report(capsys):
    heard = []
    x, y = numbers(200)
    LabelDPClassifier(1.0, method="one_shot", classes=CLASSES, verbose=1, report=heard.append).fit(x, y)
    assert heard[-1].phase == "done"
    assert capsys.readouterr().out


def test_what_is_no_level_is_refused_before_anything_is_spent():
    from labeldp import LabelVault

    x, y = numbers(60)
    vault = LabelVault((y == "yes").astype(int), 2)
    with pytest.raises(ValueError, match="verbose='loud' is none of 0"):
        LabelDPClassifier(1.0, classes=CLASSES, verbose="loud").fit(x, vault)
    assert vault.ledger.groups()[0].queries == ()
