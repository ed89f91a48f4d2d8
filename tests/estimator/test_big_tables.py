"""Tables whose rows stay in their files, from the file to a model that was measured; limits are lowered instead."""

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import torch

from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.data import stored
from labeldp.data.door import read
from labeldp.estimator import LabelDPClassifier, LabelDPRegressor, reading
from labeldp.features import coded
from labeldp.features.coded import Coder
from labeldp.features.tables import Table
from labeldp.mechanisms.counts import GaussianNoise
from labeldp.mechanisms.moments import Moments, RowChunks
from labeldp.recipes import one_shot

ROWS = 4000
pytestmark = pytest.mark.filterwarnings("ignore::labeldp.estimator.RepeatedFitWarning")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(stored, "SAMPLE_ROWS", 1000)
    monkeypatch.setattr(stored, "MANY_CELLS", 4000)
    monkeypatch.setattr("labeldp.data.door.MANY_CELLS", 4000)
    monkeypatch.setattr("labeldp.data.parquet._BATCH_ROWS", 700)
    monkeypatch.setattr("labeldp.data.csv._ARROW_BYTES", 20_000)
    monkeypatch.setattr(reading, "_FEW_ROWS", 1000)
    monkeypatch.setattr(reading, "ROWS_AT_ONCE", 700)
    monkeypatch.setattr(reading, "MOST_CELLS", 100_000)
    monkeypatch.setattr(one_shot, "HELD_CELLS", 150_000)


def made(rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    x, kind = rng.normal(size=(rows, 3)), rng.integers(3, size=rows)
    score = x[:, 0] + np.sin(2 * x[:, 1]) + (kind == 1)
    columns = {f"x{i}": x[:, i] for i in range(3)} | {"kind": np.array(["a", "b", "c"])[kind]}
    return pa.table({**columns, "y": np.where(score > 0.3, "yes", "no"), "number": np.clip(score, -3, 3)})


@pytest.fixture(params=["parquet", "csv", "folder"])
def path(request, tmp_path):
    place, table = tmp_path / f"t.{request.param}", made()
    if request.param == "csv":
        pacsv.write_csv(table, place)
    elif request.param == "parquet":
        pq.write_table(table, place)
    else:
        for part in range(3):
            (place / f"p{part}").mkdir(parents=True)
            pq.write_table(table.slice(1400 * part, 1400), place / f"p{part}" / "rows.parquet")
    return place


def test_a_stored_table_is_learnt_and_measured_without_being_read_whole(path, monkeypatch):
    monkeypatch.setattr(stored.StoredTable, "read", None)
    data, reports = read(path, "y", ["no", "yes"], drop=["number"]), []
    model = LabelDPClassifier(3.0, 1e-6, "one_shot", classes=range(2), random_state=0, report=reports.append)
    model.fit(data.features, data.vault)
    assert model.certificate_.epsilon <= 3.0
    assert model.evaluation_.rows == 400
    assert model.evaluation_.measures["accuracy"].value > 0.8
    shares = [one.share for one in reports if one.phase == "features" and one.share is not None]
    assert len(shares) > 3
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert max(one.share for one in reports if one.phase == "query" and one.share is not None) == 1.0
    assert (model.predict(data.features) == (np.array(made()["y"].to_pylist()) == "yes")).mean() > 0.8


@pytest.mark.parametrize("method", ["one_shot+kernel", "one_shot+linear"])
def test_cosines_and_linear_students_are_made_as_they_are_needed(tmp_path, monkeypatch, method):
    monkeypatch.setattr(stored.StoredTable, "read", None)
    pq.write_table(made(), tmp_path / "t.parquet")
    data = read(tmp_path / "t.parquet", "y", ["no", "yes"], drop=["number"])
    settings = {"cosines": 100} if "kernel" in method else {}
    model = LabelDPClassifier(5.0, 1e-6, method, classes=range(2), random_state=0, settings=settings)
    model.fit(data.features, data.vault)
    assert model.certificate_.epsilon <= 5.0
    again = LabelDPClassifier.from_parts(*model.to_parts())
    test = made(2000, 1)
    truth = np.array(test["y"].to_pylist()) == "yes"
    for one in (model, again):
        assert (one.predict(test.drop(["y", "number"])) == truth).mean() > 0.82
    # In parts, from the file, and at once.
    assert model.predict_proba(data.features) == pytest.approx(
        np.concatenate(
            [model.predict_proba(made().slice(start, 500).drop(["y", "number"])) for start in range(0, ROWS, 500)]
        ),
        abs=1e-4,
    )


def test_numbers_of_a_stored_table_are_learnt(path, monkeypatch):
    monkeypatch.setattr(stored.StoredTable, "read", None)
    data = read(path, "number", bounds=(-3, 3), drop=["y"])
    model = LabelDPRegressor(3.0, (-3, 3), 1e-6, "one_shot", random_state=0).fit(data.features, data.vault)
    assert model.certificate_.epsilon <= 3.0
    assert model.evaluation_.rows == 400
    test = made(2000, 1)
    predicted = model.predict(test.drop(["y", "number"]))
    assert np.corrcoef(predicted, test["number"].to_numpy())[0, 1] > 0.9


def test_methods_that_need_all_features_have_them(tmp_path):
    pq.write_table(made(), tmp_path / "t.parquet")
    data = read(tmp_path / "t.parquet", "y", ["no", "yes"], drop=["number"])
    settings = {"epochs": 2}
    model = LabelDPClassifier(4.0, method="forward", classes=range(2), random_state=0, settings=settings)
    assert model.fit(data.features, data.vault).evaluation_.measures["accuracy"].value > 0.7


# -- the sum is the same however rows are kept and cut ---------------------------------------------------------------


def moment(rows, basis, labels, at_once=None):
    """Return the moment of these rows, noise by a seed."""
    parts = [basis.from_turned(part).numpy() for _, part in rows.mapped(basis.matrix)]
    if at_once is not None:
        whole = np.concatenate(parts)
        parts = [whole[start : start + at_once] for start in range(0, len(whole), at_once)]
    chunks = RowChunks(len(rows), basis.width, lambda: parts)
    return LabelVault(labels, 2, rng=SecureRandom(seed=7)).release(Moments(chunks, 2, GaussianNoise(3.0), 1.0))


def test_the_moment_is_bitwise_the_same_in_memory_in_files_and_in_any_chunks(monkeypatch):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(3000, 4)), rng.integers(3, size=(3000, 1))
    labels, found = rng.integers(2, size=3000), Table(bins=8, steps=4).fit(table)
    basis = one_shot.tune(found.features(table), 2, 1.0, rows=1000, clusterings=1, draws=1).basis
    parts = [tuple(one[start : start + 450] for one in table) for start in range(0, 3000, 450)]
    held = moment(Coder(found).coded(parts), basis, labels)
    monkeypatch.setattr(coded, "_IN_MEMORY", 0)
    filed = Coder(found).coded(parts, 3000)
    assert isinstance(filed.numbers, torch.Tensor)
    for other in (moment(filed, basis, labels), moment(filed, basis, labels, 1), moment(filed, basis, labels, 977)):
        assert np.array_equal(other.value, held.value)
        assert np.array_equal(other.total, held.total)


def test_a_disk_without_room_is_said_before_anything_is_spent(monkeypatch):
    monkeypatch.setattr(coded, "_IN_MEMORY", 0)

    class Full:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def write(self, _):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(coded.tempfile, "TemporaryFile", Full)
    vault = LabelVault(np.arange(ROWS) % 2, 2)
    model = LabelDPClassifier(1.0, 1e-6, "one_shot", classes=range(2))
    with pytest.raises(ValueError, match=r"has no room \(No space left on device\).*TMPDIR"):
        model.fit(made().drop(["y", "number"]), vault)
    assert vault.certificate(1e-6).epsilon == 0


def test_a_report_that_fails_while_labels_are_added_up_costs_nothing(tmp_path):
    pq.write_table(made(), tmp_path / "t.parquet")
    data = read(tmp_path / "t.parquet", "y", ["no", "yes"], drop=["number"])

    def report(progress):
        if "added up" in progress.detail:
            raise RuntimeError("broken")

    model = LabelDPClassifier(3.0, 1e-6, "one_shot", classes=range(2), random_state=0, report=report)
    assert model.fit(data.features, data.vault).evaluation_ is not None
