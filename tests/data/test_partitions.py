"""One partition at a time: answers that repeat, sums that do not depend on the split, and no label in any message."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from labeldp.core import keyed, random
from labeldp.core.keyed import KeyedRandom
from labeldp.core.random import SecureRandom
from labeldp.data import partitions
from labeldp.data.partitions import CountTask, Keyed, MomentTask, withheld
from labeldp.data.request import TableError, checked
from labeldp.mechanisms.counts import GaussianNoise, LaplaceNoise
from labeldp.mechanisms.evaluation import ScoreCounts
from labeldp.mechanisms.moments import Moments

ROWS, CLASSES = 3000, ("a", "b", "c")
CHANCE = np.random.default_rng(0)
CODES = CHANCE.integers(0, 3, ROWS)
PRIOR = CHANCE.random((ROWS, 3))
TABLE = pa.table({
    "id": CHANCE.permutation(ROWS * 7)[:ROWS], "name": [f"r{i}" for i in range(ROWS)],
    "y": np.array(CLASSES, dtype=object)[CODES], "x": CHANCE.normal(size=ROWS),
    **{f"p{k}": PRIOR[:, k] for k in range(3)},
})  # fmt: skip
MECHANISMS = {
    "rr": {},
    "prior": {"prior_columns": ["p0", "p1", "p2"]},
    "top-k": {"mechanism": "top-k-response", "prior_columns": ["p0", "p1", "p2"], "k": 2},
    "bit-flip": {"mechanism": "bit-flip"},
    "laplace": {"mechanism": "laplace-one-hot"},
}


@pytest.fixture
def key(tmp_path):
    found = random.system_key()
    (tmp_path / "key").write_bytes(found)
    return found


def batches(table, rows):
    return table.combine_chunks().to_batches(max_chunksize=rows)


@pytest.mark.parametrize("id", ["id", "name"])
@pytest.mark.parametrize("name", MECHANISMS)
def test_answers_are_those_of_one_machine_however_rows_are_split(name, id, key, tmp_path):
    request = checked("y", CLASSES, 1.0, **MECHANISMS[name])
    task = Keyed(request, id, "r1", str(tmp_path))

    def answered(table, rows):
        return pa.Table.from_batches(partitions.answer(task, batches(table, rows)))

    whole = answered(TABLE, ROWS)
    assert whole.drop_columns(["y"]).equals(TABLE.drop_columns(["y"]))
    order = np.random.default_rng(1).permutation(ROWS)
    assert answered(TABLE.take(order), 137).equals(whole.take(order))
    ids = TABLE.column(id).to_pylist() if id == "name" else TABLE.column(id).to_numpy()
    expected = request.randomizer(PRIOR).sample(CODES.astype(np.uint8), KeyedRandom(key, "r1", ids)).responses
    found = whole.column("y").to_pylist()
    assert found == (expected.tolist() if request.is_vector else [CLASSES[code] for code in expected])
    other = pa.Table.from_batches(partitions.answer(Keyed(request, id, "r2", str(tmp_path)), batches(TABLE, 500)))
    assert other.column("y") != whole.column("y")


@pytest.mark.parametrize("name", MECHANISMS)
def test_partitions_may_be_empty_or_hold_nearly_all_rows(name, key, tmp_path):
    task = Keyed(checked("y", CLASSES, 1.0, **MECHANISMS[name]), "id", "r", str(tmp_path))
    whole = pa.Table.from_batches(partitions.answer(task, batches(TABLE, ROWS)))
    assert list(partitions.answer(task, [])) == []
    found, start = [], 0
    for rows in (0, 1, 0, ROWS - 5, 4, 0):
        part = TABLE.slice(start, rows)
        # Spark hands an empty partition over as no batch, or as a batch without a row.
        found += partitions.answer(task, batches(part, 1000) or [pa.RecordBatch.from_pylist([], TABLE.schema)])
        start += rows
    assert pa.Table.from_batches(found).equals(whole)


def test_types_are_checked():
    request = checked("y", CLASSES, 1.0, prior_columns=["p0", "p1", "p2"])
    partitions.check_kinds(request, "id", TABLE.schema)
    for column, kind, words in [("id", pa.float64(), "ids are whole"), ("p1", pa.string(), "a prior needs numbers")]:
        place = TABLE.schema.get_field_index(column)
        with pytest.raises(TableError, match=words):
            partitions.check_kinds(request, "id", TABLE.schema.set(place, pa.field(column, kind)))


def test_no_message_of_a_task_quotes_a_label(key, tmp_path):
    task = Keyed(checked("y", CLASSES, 1.0), "id", "r", str(tmp_path))
    odd = pa.table({"id": [1, 2], "y": ["a", "SECRET"]})
    with pytest.raises(TableError) as refused:
        list(withheld(partitions.answer)(task, odd.to_batches()))
    assert "SECRET" not in str(refused.value)

    def broken(task, given):
        yield from given
        raise KeyError("SECRET")

    with pytest.raises(TableError, match="failed with KeyError; its message is withheld") as refused:
        list(withheld(broken)(task, odd.to_batches()))
    assert refused.value.__context__ is None
    frames, place = [], refused.value.__traceback__
    while place is not None:
        frames.append(place.tb_frame)
        place = place.tb_next
    assert not any("SECRET" in repr(frame.f_locals.get("error")) for frame in frames)


@pytest.mark.parametrize("content", [None, b"", b"short"])
def test_a_key_that_is_not_there_is_an_error(content, tmp_path):
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    task = Keyed(checked("y", CLASSES, 1.0), "id", "r", str(tmp_path))
    with pytest.raises(TableError, match="cannot be read on this machine"):
        list(partitions.answer(task, batches(TABLE, 10)))


# -- sums --------------------------------------------------------------------------------------------------------------


def phi(table):
    x = table.column("x").to_numpy().astype(np.float32)
    return np.stack([x, np.cos(x), 3 * np.ones_like(x)], axis=1)


def nobody(ids):
    return np.zeros(len(ids), dtype=bool)


def even(ids):
    return np.asarray(ids) % 2 == 0


@pytest.mark.parametrize("noise", [GaussianNoise(5.0), LaplaceNoise(1.0)])
@pytest.mark.parametrize("aside", [nobody, even])
def test_a_moment_is_that_of_one_machine_bit_for_bit(noise, aside):
    task, key = MomentTask("y", CLASSES, "id", noise, 2.0, 3, phi, aside), random.system_key()
    trained = np.flatnonzero(~aside(TABLE.column("id").to_numpy()))
    mechanism = Moments(phi(TABLE)[trained], 3, noise, 2.0)
    alone = mechanism.sample(CODES[trained].astype(np.uint8), keyed.stream(key, "m"))
    assert alone.scaled_rows > 0
    order = np.random.default_rng(2).permutation(ROWS)
    for table, pieces in ((TABLE, [ROWS]), (TABLE.take(order), [1, 0, 700, 2000, 0])):
        length, lines, start = len(task.empty().to_numbers()), [], 0
        for rows in [*pieces, ROWS - sum(pieces)]:
            lines += list(partitions.add_moment(task, batches(table.slice(start, rows), 64)))
            start += rows
        few = [line for part in (lines[:2], lines[2:]) for line in partitions.join(length, part)]
        together = task.empty().from_numbers(partitions.added_up(length, few))
        noisy = mechanism.noised(together, keyed.stream(key, "m"))
        assert (noisy.value == alone.value).all()
        assert (noisy.total == alone.total).all()
        assert (noisy.scaled_rows, noisy.num_rows) == (alone.scaled_rows, len(trained))


def test_a_sum_of_other_rows_is_not_released():
    task = MomentTask("y", CLASSES, "id", GaussianNoise(5.0), 2.0, 3, phi, nobody)
    (line,) = partitions.add_moment(task, batches(TABLE.slice(0, 10), 10))
    part = task.empty().from_numbers(partitions.added_up(12, [line]))
    with pytest.raises(ValueError, match="the sum is of 10 rows"):
        Moments(phi(TABLE), 3, GaussianNoise(5.0), 2.0).noised(part, SecureRandom(1))


@pytest.mark.parametrize("id", ["id", "name"])
def test_counts_are_those_of_one_machine(id):
    held = np.flatnonzero(CHANCE.random(ROWS) < 0.2)
    predicted, groups = CHANCE.integers(0, 3, len(held)), CHANCE.integers(0, 4, len(held))
    query = ScoreCounts(predicted, groups, 4, 3, 1.0)
    alone = query.sample(CODES[held].astype(np.uint8), SecureRandom(seed=1))
    ids = TABLE.column(id).combine_chunks().take(pa.array(held))
    task = CountTask("y", CLASSES, id, ids, query.predicted, query.cells.groups, 4)
    order = np.random.default_rng(3).permutation(ROWS)
    lines = [line for part in batches(TABLE.take(order), 400) for line in partitions.count_labels(task, [part])]
    numbers = partitions.added_up(14, lines)
    assert numbers[0] == len(held)
    together = query.noised(int(numbers[1]), numbers[2:], SecureRandom(seed=1))
    assert together.right == alone.right
    assert (together.cells.counts == alone.cells.counts).all()
