"""Responses that were released before: read with their certificate, and no vault."""

import json
import pickle
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from labeldp.core.certificate import read as read_certificate
from labeldp.core.certificate import verify
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.data.door import read, seal_or_take
from labeldp.data.released import ReleasedLabels
from labeldp.data.request import TableError
from labeldp.data.tables import certificate_path, find_certificate, privatize, read_private, read_released
from labeldp.mechanisms.counts import GroupCounts, LaplaceNoise
from labeldp.mechanisms.responses import RandomizedResponse

CLASSES = ("no", "yes", "maybe")
MECHANISMS = {
    "randomized-response": {},
    "prior-response": {"prior_columns": ["p0", "p1", "p2"]},
    "top-k-response": {"prior_columns": ["p0", "p1", "p2"], "k": 2},
    "bit-flip": {},
    "laplace-one-hot": {},
}


def made(folder, kind="csv", rows=60):
    """A table with a label, two features, a prior, and whose each row is."""
    rng = np.random.default_rng(0)
    prior = rng.dirichlet(np.ones(3), rows).round(3)
    table = pa.table({
        "age": rng.integers(18, 90, rows), "town": rng.choice(["Ulm", "Bonn"], rows), "who": np.arange(rows) // 3,
        **{f"p{c}": prior[:, c] for c in range(3)}, "y": rng.choice(CLASSES, rows),
    })  # fmt: skip
    path = folder / f"true.{kind}"
    pacsv.write_csv(table, path) if kind == "csv" else pq.write_table(table, path)
    return path


def private(folder, kind="csv", epsilon=1.0, **settings):
    target = folder / f"private.{kind}"
    privatize(made(folder, kind), target, label="y", classes=CLASSES, epsilon=epsilon, **settings)
    return target


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_label_classes_and_channel_come_from_the_certificate(tmp_path, kind, mechanism):
    if kind == "csv" and mechanism in ("bit-flip", "laplace-one-hot"):
        pytest.skip("CSV holds no vectors")
    path = private(tmp_path, kind, mechanism=mechanism, **MECHANISMS[mechanism])
    data = read_released(path)
    assert (data.label, data.classes, len(data)) == ("y", CLASSES, 60)
    assert data.features.column_names == ["age", "town", "who", "p0", "p1", "p2"]
    assert isinstance(data.vault, ReleasedLabels)
    assert data.vault.labels.channel.describe()["mechanism"] == mechanism
    assert np.array_equal(data.vault.labels.log_likelihood(), read_private(path).labels.log_likelihood())
    assert data.vault.certificate() == read_certificate(certificate_path(path))
    assert data.features == read(tmp_path / f"true.{kind}", "y", CLASSES).features


def test_whose_a_row_is_is_no_feature_and_the_claim_is_about_users(tmp_path):
    data = read_released(private(tmp_path, users="who"), drop=["p0", "p1", "p2"])
    assert data.features.column_names == ["age", "town"]
    claim = data.vault.certificate()
    assert (claim.epsilon, claim.unit.counted) == (1.0, "users")
    assert data.vault.epsilon <= 1 / 3


def test_it_is_no_vault_and_answers_one_query_only():
    noisy = LabelVault([0, 1, 2, 1], num_classes=3).release(RandomizedResponse(1.0, 3))
    released = ReleasedLabels(noisy)
    assert not isinstance(released, LabelVault)
    assert released.release(RandomizedResponse(1.0, 3)) is released.release(RandomizedResponse(9.0, 3)) is noisy
    for asked, rows in (
        (GroupCounts([0, 0, 1, 1], 2, 3, LaplaceNoise(1.0)), None),
        (RandomizedResponse(1.0, 3), [0, 1]),
    ):
        with pytest.raises(ValueError, match="cannot be drawn: there are responses that were released before"):
            released.release(asked, rows)
    assert len(pickle.loads(pickle.dumps(released))) == 4


def test_responses_without_a_certificate_state_their_channel_and_do_not_verify():
    released = ReleasedLabels(LabelVault([0, 1, 1], num_classes=2).release(RandomizedResponse(2.0, 2)))
    claim = released.certificate()
    assert (claim.epsilon, claim.delta, [group.rows for group in claim.groups]) == (2.0, 0.0, [3])
    assert any("noise source 'not known here" in problem for problem in verify(claim))


def test_responses_are_taken_and_anything_else_is_sealed():
    noisy = LabelVault([0, 1], num_classes=2).release(RandomizedResponse(1.0, 2))
    classes, taken = seal_or_take(noisy, ["b", "a"], "the test")
    assert (classes.tolist(), taken.labels) == (["b", "a"], noisy)
    assert isinstance(seal_or_take(["a", "b"], ["a", "b"], "the test")[1], LabelVault)
    with pytest.raises(ValueError, match="classes names 3 classes and the vault has 2"):
        seal_or_take(noisy, ["a", "b", "c"], "the test")
    with pytest.raises(ValueError, match="users is given with responses"):
        seal_or_take(noisy, ["a", "b"], "the test", users=[1, 1])


def flip(path):
    """Change one response in a CSV file for another class."""
    lines = path.read_text().splitlines(keepends=True)
    cell = lines[1].rstrip().rsplit(",", 1)[1]
    lines[1] = lines[1].replace(cell, '"yes"' if "no" in cell else '"no"')
    path.write_text("".join(lines))


def claim_less(path):
    """State a smaller ε in the certificate, and leave the rest."""
    note = certificate_path(path)
    fields = json.loads(note.read_text())
    fields["claim"]["epsilon"] = 0.1
    note.write_text(json.dumps(fields))


def true_labels(path):
    """Put the true table under the name of the private one."""
    shutil.copy(path.with_name("true.csv"), path)


def another(path):
    """Put the certificate of another release of the same table beside it."""
    other = path.with_name("other.csv")
    privatize(path.with_name("true.csv"), other, label="y", classes=CLASSES, epsilon=0.5)
    shutil.copy(certificate_path(other), certificate_path(path))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (flip, "is not the certified one"), (claim_less, "checksum does not match"),
        (true_labels, "is not the certified one"), (another, "is not the certified one"),
    ],
)  # fmt: skip
def test_what_was_changed_or_does_not_belong_together_is_refused(tmp_path, change, why):
    path = private(tmp_path)
    read_released(path)
    change(path)
    with pytest.raises(TableError, match=why):
        read_released(path)


def test_noise_from_a_seed_and_responses_that_say_nothing_are_refused(tmp_path):
    seeded = private(tmp_path, rng=SecureRandom(1))
    with pytest.raises(TableError, match="the noise came from a seed"):
        read_released(seeded)
    (tmp_path / "zero").mkdir()
    with pytest.raises(TableError, match="say nothing about the labels"):
        read_released(private(tmp_path / "zero", epsilon=0.0))
    with pytest.raises(TableError, match="is not a file"):
        read_released(tmp_path / "missing.csv")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_certificate_is_found_beside_the_table_or_where_it_is_named(tmp_path, kind):
    path = private(tmp_path, kind)
    beside, elsewhere = certificate_path(path), tmp_path / "elsewhere.json"
    assert find_certificate(path) == beside
    assert find_certificate(tmp_path / f"true.{kind}") is None
    assert find_certificate("adult") is None
    beside.rename(elsewhere)
    assert find_certificate(path, elsewhere) == elsewhere
    assert read_released(path, certificate=elsewhere).vault.epsilon == 1.0
    with pytest.raises(TableError, match="is not the certified one"):
        read_released(tmp_path / f"true.{kind}", certificate=elsewhere)
    if kind == "csv":
        # A CSV file cannot say what it holds: it is a table like any other.
        assert find_certificate(path) is None
    else:
        with pytest.raises(TableError, match="holds private responses and not labels"):
            find_certificate(path)


def test_columns_are_read_as_of_any_table_and_overruled_by_name(tmp_path):
    path = private(tmp_path)
    kinds = {one.name: one.read_as for one in read_released(path).readings}
    assert (kinds["age"], kinds["town"]) == ("number", "category")
    data = read_released(path, category=["age"], drop=["town"])
    kinds = {one.name: one.read_as for one in data.readings}
    assert (kinds["age"], kinds["town"]) == ("category", "left out")
    assert "town" not in data.features.column_names
    with pytest.raises(TableError, match="number names 'y', which is the label"):
        read_released(path, number=["y"])


def test_a_claim_about_other_responses_is_refused():
    """A model learnt from responses at ε = 8 had a certificate of ε = 0.1 that verified."""
    quiet, loud = LabelVault([0, 1, 1], num_classes=2), LabelVault([0, 1, 1], num_classes=2)
    quiet.release(RandomizedResponse(0.1, 2))
    noisy = loud.release(RandomizedResponse(8.0, 2))
    assert ReleasedLabels(noisy, loud.certificate()).certificate().epsilon == 8.0
    fewer = LabelVault([0, 1], num_classes=2)
    fewer.release(RandomizedResponse(8.0, 2))
    for other in (quiet, fewer):
        with pytest.raises(ValueError, match="of these responses"):
            ReleasedLabels(noisy, other.certificate())
