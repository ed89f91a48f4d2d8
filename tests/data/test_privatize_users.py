"""A privatized table whose labels are protected user by user."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from labeldp.budgets.journal import Journal
from labeldp.core.certificate import read as read_certificate
from labeldp.core.ledger import ONE_USER, Budget
from labeldp.core.random import SecureRandom
from labeldp.data.request import Owners, Request, TableError
from labeldp.data.tables import certificate_path, privatize, read_private, verify_file

CLASSES = ["no", "mild", "severe"]


@pytest.fixture(params=["csv", "parquet"])
def source(request, tmp_path):
    """Eight people with 1 to 4 rows each, mixed."""
    owners = np.random.default_rng(0).permutation(np.repeat(np.arange(8), [1, 2, 3, 4] * 2))
    labels = np.array(CLASSES)[owners % 3]
    table = pa.table({"who": owners, "age": np.arange(len(owners)), "y": labels})
    path = tmp_path / f"t.{request.param}"
    pacsv.write_csv(table, path) if request.param == "csv" else pq.write_table(table, path)
    return path


def released(source, epsilon=2.0, **more):
    target = source.with_name(f"out{source.suffix}")
    return target, privatize(source, target, label="y", classes=CLASSES, epsilon=epsilon, users="who", **more)


def test_the_claim_is_about_users_and_every_label_gets_a_share(source):
    target, certificate = released(source)
    assert (certificate.epsilon, certificate.unit, [group.rows for group in certificate.groups]) == (2.0, ONE_USER, [8])
    assert verify_file(target) == ()
    found = read_private(target)
    assert found.labels.channel.describe()["epsilon"] == 0.5
    assert len(found.labels) == 20
    assert certificate.release["users"] == {"column": "who", "users": 8, "most_rows": 4}


@pytest.mark.parametrize(("epsilon", "most"), [(1.0, 3), (0.1, 7), (5e-324, 2), (3.3, 1), (1e300, 999)])
def test_shares_never_add_up_to_more(epsilon, most):
    share = Request("y", ("a", "b"), epsilon, owners=Owners("who", 5, most)).label_epsilon
    assert Fraction(share) * most <= Fraction(epsilon)
    assert share >= 0.999999 * (epsilon / most) or epsilon < 1e-300


def test_labels_are_kept_as_often_as_the_share_says(tmp_path):
    """10⁶ labels of 250,000 users; a false alarm has probability below 1e-6 (five standard deviations).

    At ε instead of ε/4, the planted bug, 88% of the labels would be kept and not 62%.
    """
    rows = 1_000_000
    table = pa.table({"who": np.arange(rows) // 4, "y": np.array(["no", "yes"])[np.arange(rows) % 2]})
    pq.write_table(table, tmp_path / "t.parquet")
    where = tmp_path / "t.parquet", tmp_path / "out.parquet"
    privatize(*where, label="y", classes=["no", "yes"], epsilon=2.0, users="who", rng=SecureRandom(1))
    kept = pq.read_table(where[1])["y"].to_numpy() == table["y"].to_numpy()
    chance = 1 / (1 + np.exp(-0.5))
    assert abs(kept.mean() - chance) < 5 * np.sqrt(chance * (1 - chance) / rows)
    assert abs(kept.mean() - 1 / (1 + np.exp(-2.0))) > 0.1


def test_a_changed_user_column_or_claim_is_noticed(source):
    target, _ = released(source)
    note = certificate_path(target)
    honest = read_certificate(note)
    for release in (
        {**honest.release, "users": {"column": "who", "users": 8, "most_rows": 2}},
        {**honest.release, "users": {"column": "age", "users": 8, "most_rows": 4}},
        {**honest.release, "users": {"column": "who", "users": 8, "most_rows": 0}},
        {key: value for key, value in honest.release.items() if key != "users"},
        {**honest.release, "format": "labeldp-table/1"},
        {**honest.release, "mechanism": {**honest.release["mechanism"], "epsilon": 2.0}},
    ):
        note.write_text(type(honest)(**{**vars(honest), "release": release}).dumps())
        assert verify_file(target)
    note.write_text(honest.dumps())
    assert verify_file(target) == ()


def test_journals_of_rows_and_of_users_stay_apart(source):
    journal = Journal.open(source.with_name("j"), Budget(2.0), unit=ONE_USER)
    target, _ = released(source, journal=journal)
    assert journal.epsilon(0.0) == 2.0
    of_rows = Journal.open(source.with_name("rows"), Budget(2.0))
    target.unlink()
    certificate_path(target).unlink()
    with pytest.raises(ValueError, match="user"):
        released(source, journal=of_rows)
    assert not target.exists()


def test_users_that_cannot_be_meant_are_refused_before_anything_is_written(source):
    target = source.with_name(f"out{source.suffix}")
    for users, words in (("y", "the label itself"), ("nobody", "no single column 'nobody'")):
        with pytest.raises(TableError, match=words):
            privatize(source, target, label="y", classes=CLASSES, epsilon=1.0, users=users)
    assert {path.name for path in source.parent.iterdir()} == {source.name}


def test_the_command_protects_users(source, capsys):
    from tests.commands import labeldp

    target = source.with_name(f"out{source.suffix}")
    given = ("--label", "y", "--classes", "no,mild,severe", "--epsilon", 2, "--user", "who", "--json")
    ran = labeldp("privatize", source, *given, "--out", target, check=0)
    assert json.loads(ran.stdout)["claim"]["protects"] == ONE_USER.protects
    assert ONE_USER.protects in labeldp("verify", target, check=0).stdout
