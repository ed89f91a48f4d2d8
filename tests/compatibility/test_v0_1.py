"""What version 0.1.0 (34fca78) wrote is read today: model folders, certificates, a journal and a budget store.

The files in v0_1/ were written by that version's commands from a made-up table of 400 rows; none of them is made anew.
"""

import csv
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from labeldp.budgets.journal import Journal
from labeldp.cli.app import cli
from labeldp.core.ledger import Budget

KEPT = Path(__file__).parent / "v0_1"
MODELS = {"one_shot": "toy.csv", "rr": "toy.csv", "labeldp_pro": "toy.csv", "numbers": "numbers.csv"}


@pytest.fixture
def old(tmp_path):
    """A copy of the files: whoever opens a store or a journal may write to it."""
    folder = tmp_path / "old"
    shutil.copytree(KEPT, folder)
    for name in ("budgets.db", "budgets.db.key", "toy.journal"):
        (folder / name).chmod(0o600)
    return folder


def run(*words):
    return CliRunner().invoke(cli, [str(word) for word in words])


@pytest.mark.parametrize("name", [*MODELS, "private.csv"])
def test_old_certificates_verify(old, name):
    found = run("verify", old / name)
    assert found.exit_code == 0, found.output


@pytest.mark.parametrize("name", MODELS)
def test_an_old_certificate_with_another_epsilon_does_not_verify(old, name):
    path = old / name / "certificate.json"
    claim = json.loads(path.read_text())
    claim["claim"]["epsilon"] /= 2
    path.write_text(json.dumps(claim))
    assert run("verify", old / name).exit_code == 1


@pytest.mark.parametrize(("name", "table"), MODELS.items())
def test_old_models_predict_what_they_predicted(old, name, table):
    few = old / "few.csv"
    few.write_text("".join((old / table).read_text().splitlines(keepends=True)[:21]))
    found = run("predict", old / name, few, "--out", old / "now.csv", "--quiet")
    assert found.exit_code == 0, found.output
    with open(old / "now.csv") as now, open(old / f"{name}.predictions.csv") as before:
        rows, kept = list(csv.DictReader(now)), list(csv.DictReader(before))
    assert len(rows) == len(kept) == 20
    for row, was in zip(rows, kept, strict=True):
        assert row.keys() == was.keys()
        for column, value in was.items():
            try:
                assert float(row[column]) == pytest.approx(float(value), rel=1e-4)
            except ValueError:
                assert row[column] == value


def test_an_old_journal_goes_on(old):
    spent = Journal.open(old / "toy.journal", Budget(3.0))
    found = run(
        "privatize", old / "toy.csv", "--label", "label", "--classes", "no,yes", "--epsilon", "2.5", "--quiet",
        "--out", old / "too_much.csv", "--journal", old / "toy.journal",
    )  # fmt: skip
    assert found.exit_code != 0
    assert not (old / "too_much.csv").exists()
    assert spent is not None


def test_an_old_store_knows_what_was_spent(old):
    found = run("budget", "show", "--store", old / "budgets.db")
    assert found.exit_code == 0, found.output
    assert "0.49" in found.output.replace("0.5 of", "0.49 of")
    refused = run(
        "privatize", old / "toy.csv", "--label", "label", "--classes", "no,yes", "--epsilon", "2.6", "--quiet",
        "--out", old / "too_much.csv", "--store", old / "budgets.db",
    )  # fmt: skip
    assert refused.exit_code != 0
    assert not (old / "too_much.csv").exists()
