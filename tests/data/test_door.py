"""The door: features open, labels sealed, and public test labels that nothing trains on."""

from __future__ import annotations

import builtins
import io
import os
import pathlib
import shutil
import traceback

import numpy as np
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from labeldp import data
from labeldp.core.events import NonPrivate
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.data import csv
from labeldp.data.door import OpenLabels, read, seal_classes, seal_column, seal_numbers
from labeldp.data.request import TableError, refusing
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.mechanisms.users import UserVault
from labeldp.mechanisms.values import ValueVault, seal_values

CLASSES = ["none", "mild", "severe"]
ROWS = [(i, "abc"[i % 3], CLASSES[i // 2 % 3], i % 7, i / 10) for i in range(60)]


@pytest.fixture
def table(tmp_path):
    lines = "".join(",".join(map(str, row)) + "\n" for row in ROWS)
    (tmp_path / "t.csv").write_text("age,kind,diagnosis,doctor,cost\n" + lines)
    pq.write_table(pacsv.read_csv(tmp_path / "t.csv"), tmp_path / "t.parquet")
    return tmp_path


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_features_are_open_and_labels_sealed(table, kind):
    found = read(table / f"t.{kind}", "diagnosis", CLASSES, drop=["cost"])
    assert found.features.column_names == ["age", "kind", "doctor"]
    assert found.vault.reveal("a test").tolist() == [i // 2 % 3 for i in range(60)]
    assert (len(found), found.classes, found.bounds, found.test) == (60, tuple(CLASSES), None, None)
    assert repr(found) == f"PrivateData('t.{kind}', 60 rows, labels sealed)"
    assert data.read is read


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_numbers_and_users_are_sealed_by_the_same_door(table, kind):
    numbers = read(table / f"t.{kind}", "cost", bounds=(0, 6))
    assert isinstance(numbers.vault, ValueVault)
    assert numbers.vault.num_classes == data.LEVELS
    assert "cost" not in numbers.features.column_names
    people = read(table / f"t.{kind}", "diagnosis", CLASSES, users="doctor")
    assert isinstance(people.vault, UserVault)
    assert (len(people.vault), len(people.vault.users)) == (60, 7)
    assert people.features.column_names == ["age", "kind", "cost"]


def test_a_csv_file_is_read_twice_once_for_each_side(table, monkeypatch):
    """One pass for the features and one for the labels; four at the time of the first design."""
    size, path, passes = (table / "t.csv").stat().st_size, str(table / "t.csv"), []
    opened, arrow = io.open, pacsv.read_csv

    class Counted(io.FileIO):
        def readinto(self, buffer):
            got = super().readinto(buffer)
            passes.append((got or 0) / size)
            return got

    def counting(file, mode="r", *given, **settings):
        if str(file) == path and "b" in mode:
            return io.BufferedReader(Counted(file, "r"))
        return opened(file, mode, *given, **settings)

    def whole(source, *given, **settings):
        passes.append(1.0)
        return arrow(source, *given, **settings)

    for module in (io, builtins):
        monkeypatch.setattr(module, "open", counting)
    monkeypatch.setattr(pathlib.io, "open", counting, raising=False)
    monkeypatch.setattr(pacsv, "read_csv", whole)
    # The header is shorter than the buffer it is read through, so each reading of it would count as a pass here.
    monkeypatch.setattr(csv, "read_header", _only_the_header(opened))
    read(table / "t.csv", "diagnosis", CLASSES)
    assert sum(passes) == pytest.approx(2.0, abs=0.1)


def _only_the_header(opened):
    honest = csv.read_header

    def header(file, delimiter):
        with opened(file.name, "rb") as quiet:
            found = honest(quiet, delimiter)
        file.seek(len(found.raw))
        return found

    return header


def test_other_tables_are_measured_on_and_no_training_row_is(table):
    rest = table / "other.csv"
    rest.write_text("diagnosis,cost,kind,age,doctor\nmild,0.5,a,3,1\nsevere,0.5,b,4,1\n")
    found = read(table / "t.csv", "diagnosis", CLASSES, test=rest)
    assert isinstance(found.test.labels, OpenLabels)
    assert found.test.labels.values.tolist() == [1, 2]
    assert found.test.features.column_names == found.features.column_names
    assert "1" not in repr(found.test.labels)
    shutil.copy(table / "t.csv", table / "copy.csv")
    os.symlink(table / "t.csv", table / "link.csv")
    for name in ("t.csv", "copy.csv", "link.csv"):
        with pytest.raises(TableError, match="rows that are trained on"):
            read(table / "t.csv", "diagnosis", CLASSES, test=table / name)


def test_nothing_trains_on_open_labels():
    pytest.importorskip("torch")
    from labeldp.estimator import LabelDPClassifier, LabelDPRegressor, select

    x, opened = np.random.default_rng(0).normal(size=(40, 2)), OpenLabels(np.arange(40) % 2)
    model = LabelDPClassifier(1.0, classes=[0, 1])
    for train in (
        lambda: model.fit(x, opened),
        lambda: LabelDPRegressor(1.0, (0, 1)).fit(x, opened),
        lambda: select([model], x, opened, epsilon=1.0),
        lambda: LabelVault(opened, 2),
        lambda: UserVault(opened, np.arange(40), 2),
        lambda: seal_values(opened, 0, 1),
        lambda: seal_classes(opened, [0, 1], "a test"),
        lambda: seal_numbers(opened, (0, 1)),
    ):
        with pytest.raises(TypeError, match="OpenLabels are for measuring"):
            train()


def test_an_estimator_takes_a_vault_unopened_and_its_ledger_counts_the_fit():
    pytest.importorskip("torch")
    from labeldp.estimator import LabelDPClassifier, LabelDPRegressor

    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    labels = (x[:, 0] > 0).astype(int)
    vault = LabelVault(labels, 2, Budget(2.5, 1e-5), rng=SecureRandom(0))
    model = LabelDPClassifier(2.0, 1e-6, "one_shot", classes=["low", "high"]).fit(x, vault)
    assert (model.predict(x) == np.where(labels, "high", "low")).mean() > 0.6
    assert model.certificate_.epsilon == pytest.approx(vault.certificate(1e-6).epsilon)
    assert not any(isinstance(query.event, NonPrivate) for group in vault.ledger.groups() for query in group.queries)
    with pytest.raises(BudgetExceededError):
        LabelDPClassifier(2.0, 1e-6, "one_shot", classes=["low", "high"]).fit(x, vault)
    with pytest.raises(ValueError, match="3 classes and the vault has 2"):
        LabelDPClassifier(1.0, classes=[0, 1, 2]).fit(x, vault)
    numbers = seal_numbers(x[:, 0], (-3, 3))
    LabelDPRegressor(1.0, (-3, 3), 1e-6, "one_shot").fit(x, numbers)
    assert numbers.certificate(1e-6).epsilon > 0
    with pytest.raises(ValueError, match="seal_numbers"):
        LabelDPRegressor(1.0, (-3, 3)).fit(x, vault)


def test_a_part_is_paid_for_by_the_whole():
    whole = LabelVault([0, 1, 1, 0, 1, 0], 2, Budget(1.5))
    part = whole.part([1, 3, 5], Budget(1.0))
    part.release(RandomizedResponse(1.0, 2), rows=[0, 2])
    assert (part.certificate().epsilon, whole.certificate().epsilon) == (1.0, 1.0)
    charged = [whole.ledger.epsilon(0.0), sorted(group.rows for group in whole.ledger.groups())]
    assert charged == [1.0, [2, 4]]
    with pytest.raises(BudgetExceededError):
        part.release(RandomizedResponse(1.0, 2), rows=[0])
    # Its own budget would allow it, that of the whole does not.
    with pytest.raises(BudgetExceededError):
        whole.part([1], Budget(9.0)).release(RandomizedResponse(1.0, 2))
    assert whole.certificate().epsilon == 1.0
    people = UserVault([0, 1, 1], ["ann", "bob", "ann"], 2)
    people.part().release(RandomizedResponse(0.5, 2))
    assert people.certificate().epsilon == 1.0
    with pytest.raises(ValueError, match="rows cannot be taken out"):
        people.part([0])


def test_messages_give_counts_and_no_label(table):
    for wrong in (["none", "mild"], ["none", "mild", "Severe"]):
        with pytest.raises(TableError, match="20 of 60 labels") as caught:
            read(table / "t.csv", "diagnosis", wrong)
        assert "severe'" not in str(caught.value)
    with pytest.raises(TableError, match="give the classes, or bounds"):
        read(table / "t.csv", "diagnosis")
    with pytest.raises(TableError, match="60 are missing, infinite or not numbers"):
        seal_column(table / "t.csv", "diagnosis", bounds=(0, 1))
    with pytest.raises(TableError, match="is not one of the data sets"):
        read("nothing like this")


def test_no_frame_of_a_refusal_holds_labels(table):
    with pytest.raises(TableError) as caught:
        read(table / "t.csv", "diagnosis", ["none", "mild"])
    frame = caught.value.__traceback__
    while frame is not None:
        assert not any(isinstance(value, np.ndarray) for value in frame.tb_frame.f_locals.values())
        frame = frame.tb_next


def test_a_refusal_leads_back_to_no_frame_that_held_labels():
    @refusing
    def leaky(labels):
        try:
            raise KeyError(labels[0])
        except KeyError:
            raise TableError("refused") from None

    with pytest.raises(TableError, match="refused") as caught:
        leaky(["secret"])
    assert caught.value.__context__ is None
    assert [frame.f_code.co_name for frame, _ in traceback.walk_tb(caught.value.__traceback__)][1:] == ["refuse"]
