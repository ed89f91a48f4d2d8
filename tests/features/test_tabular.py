import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labeldp.features.extract import extract
from labeldp.features.tables import Table, bin_edges


def table(n=200, seed=0, values=4):
    rng = np.random.default_rng(seed)
    return rng.normal([5, -2], [3, 0.1], size=(n, 2)), rng.integers(0, values, size=(n, 2))


def test_numbers_are_standardised_and_categories_one_hot():
    numeric, categorical = table()
    rows = Table().fit((numeric, categorical)).features((numeric, categorical))
    assert rows.shape == (200, 2 + 4 + 4)
    expected = (numeric - numeric.mean(0)) / numeric.std(0)
    assert np.allclose(rows[:, :2].numpy(), expected, atol=1e-5)
    assert torch.equal(rows[:, 2:6].argmax(1), torch.tensor(categorical[:, 0]))
    assert torch.equal(rows[:, 2:].sum(1), torch.full((200,), 2.0))


def test_values_not_seen_before_are_zero():
    numeric, categorical = table()
    map_ = Table().fit((numeric, categorical))
    rows = map_.features((numeric[:1], np.array([[99, categorical[0, 1]]])))
    assert rows[0, 2:6].sum() == 0
    assert rows[0, 6:].sum() == 1


def test_missing_numbers_become_the_mean_and_say_so():
    numeric, categorical = table()
    holes = numeric.copy()
    holes[::3, 0] = np.nan
    map_ = Table().fit((holes, categorical))
    rows = map_.features((holes, categorical))
    assert map_.dim == rows.shape[1] == 2 + 1 + 8
    assert torch.equal(rows[::3, 0], torch.zeros(len(rows[::3])))
    assert torch.equal(rows[:, 2], torch.tensor(np.isnan(holes[:, 0])).float())
    present = holes[~np.isnan(holes[:, 0]), 0]
    assert map_.mean[0] == pytest.approx(present.mean())
    assert map_.spread[0] == pytest.approx(present.std())


def test_columns_of_one_value_and_tables_of_one_kind():
    numeric, categorical = table()
    constant = Table().fit((np.ones((5, 1)), np.zeros((5, 0), dtype=int)))
    assert torch.equal(constant.features((np.ones((2, 1)), np.zeros((2, 0), dtype=int))), torch.zeros(2, 1))
    assert Table().fit((np.zeros((200, 0)), categorical)).dim == 8
    assert Table().fit((numeric, np.zeros((200, 0), dtype=int))).dim == 2


@given(words=st.lists(st.text(min_size=1, max_size=6).filter(lambda w: "\0" not in w), min_size=2, max_size=30))
def test_hashed_rows_have_one_sign_per_column(words):
    column = np.array(words)[:, None]
    empty = np.zeros((len(words), 0))
    map_ = Table(one_hot=0, buckets=16).fit((empty, column))
    rows = map_.features((empty, column))
    assert rows.shape == (len(words), 16)
    assert torch.equal(rows.abs().sum(1), torch.ones(len(words)))
    same = torch.tensor([[a == b for a in words] for b in words])
    assert torch.equal(same <= (rows @ rows.T == 1), torch.ones_like(same))


def test_hashing_keeps_products_unbiased():
    """⟨φ(a), φ(b)⟩ is 1 for equal and on average 0 for different values: mean over 499,500 pairs, five σ."""
    column, empty = np.arange(1000)[:, None], np.zeros((1000, 0))
    rows = Table(buckets=64).fit((empty, column)).features((empty, column))
    products = (rows @ rows.T)[*torch.triu_indices(1000, 1000, 1)]
    assert abs(products.mean().item()) < 5 / (64 * 1000) ** 0.5
    assert products.square().mean().item() == pytest.approx(1 / 64, rel=0.1)


def test_the_column_and_the_seed_are_hashed_too():
    column, empty = np.arange(200)[:, None], np.zeros((200, 0))
    pair = (empty, np.concatenate((column, column), axis=1))
    rows = Table(buckets=4096).fit(pair).features(pair)
    assert rows.abs().sum() > 300  # the two columns do not land on each other
    first, second = (Table(buckets=64, seed=s).fit((empty, column)).features((empty, column)) for s in (0, 1))
    assert not torch.equal(first, second)


def test_strings_tensors_and_objects_are_taken():
    numeric = torch.zeros(3, 1)
    words = np.array([["a"], ["b"], ["a"]], dtype=object)
    rows = Table().fit((numeric, words)).features((numeric, words))
    assert rows[:, 1:].tolist() == [[1, 0], [0, 1], [1, 0]]
    codes = Table().fit((numeric, torch.tensor([[0], [1], [0]])))
    assert torch.equal(codes.features((numeric, torch.tensor([[0], [1], [0]]))), rows)


def test_components_and_cache(tmp_path):
    train, test = table(), table(seed=1)
    first = extract(Table(dims=5), train, test, cache=tmp_path)
    again = extract(Table(dims=5), train, test, cache=tmp_path)
    assert [part.shape for part in first] == [(200, 5), (200, 5)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    whole = Table().fit(train).features(train)
    kept = torch.linalg.svdvals(whole - whole.mean(0))[:5]
    assert torch.allclose(torch.linalg.svdvals(first[0]), kept, rtol=1e-3)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.zeros((3, 2)), "pair"),
        ((np.zeros((3, 2)), np.zeros((4, 1), dtype=int)), "same n"),
        ((np.zeros(3), np.zeros((3, 1), dtype=int)), "same n"),
        ((np.full((3, 1), np.inf), np.zeros((3, 1), dtype=int)), "infinite"),
        ((np.zeros((3, 1)), np.zeros((3, 1))), "floats"),
    ],
)
def test_refusals(inputs, message):
    with pytest.raises(ValueError, match=message):
        Table().fit(inputs)


def test_a_table_of_another_shape_or_kind_is_refused():
    map_ = Table().fit(table())
    with pytest.raises(ValueError, match="3 numeric"):
        map_.features((np.zeros((5, 3)), np.zeros((5, 2), dtype=int)))
    with pytest.raises(ValueError, match="categorical column 0"):
        map_.features((np.zeros((5, 2)), np.array([["0", "1"]] * 5)))


# -- bins and steps ---------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=200), st.integers(1, 12))
def test_bins_are_few_and_hold_about_as_many_rows(values, bins):
    column = np.array(values, dtype=float)
    edges = bin_edges(column, bins)
    assert (np.diff(edges) > 0).all()
    assert set(edges) <= set(values)
    place = np.searchsorted(edges, column, side="right")
    assert len(np.unique(place)) == len(edges) + 1
    # A frequent value may cut a bin in two.
    assert len(edges) + 1 <= 2 * bins
    for one in np.unique(place):
        inside = column[place == one]
        assert len(np.unique(inside)) == 1 or len(inside) <= 2 * len(column) / bins + 1


def test_a_frequent_value_has_a_bin_to_itself():
    column = np.concatenate([np.zeros(900), np.linspace(1, 2, 100)])
    edges = bin_edges(column, 8)
    assert len(edges) == 7
    assert edges[0] == 1.0


def test_numbers_in_bins_and_steps():
    table = (np.array([[0.0], [1.0], [2.0], [3.0], [np.nan]]), np.empty((5, 0), "U1"))
    found = Table(bins=2, steps=4, scale=0.5, clip=1.0).fit(table)
    rows = found.features(table).numpy()
    assert rows.shape == (5, found.dim)
    assert rows[:, 0].tolist() == pytest.approx([-0.5, -0.2236, 0.2236, 0.5, 0.0], abs=1e-4)
    assert rows[:, 1].tolist() == [0, 0, 0, 0, 1]
    assert rows[:, 2:4].tolist() == [[1, 0], [1, 0], [0, 1], [0, 1], [0, 0]]
    assert rows[:, 4:].tolist() == [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 0, 0]]
    new = found.features((np.array([[-9.0], [1.5]]), np.empty((2, 0), "U1"))).numpy()
    assert new[:, 2:].tolist() == [[1, 0, 0, 0, 0], [1, 0, 1, 0, 0]]


def test_a_column_without_a_number_has_one_bin():
    table = (np.full((3, 1), np.nan), np.array([["a"], ["b"], ["a"]]))
    assert Table(bins=4, steps=4).fit(table).features(table)[:, 0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("settings", [{"clip": 0}, {"clip": -1.0}, {"scale": -1.0}, {"bins": -1}, {"steps": 1.5}])
def test_bad_limits_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        Table(**settings).fit((np.zeros((3, 1)), np.empty((3, 0), "U1")))


def test_plain_features_are_those_of_a_map_without_bins_and_steps():
    chance = np.random.default_rng(0)
    numeric = chance.normal(size=(50, 2))
    numeric[::9, 1] = np.nan
    inputs = numeric, chance.choice(["a", "b", "c"], size=(50, 1))
    whole, bare = Table(bins=8, steps=4).fit(inputs), Table().fit(inputs)
    assert torch.equal(whole.features(inputs)[:, whole.plain], bare.features(inputs))
    turned = Table(bins=8, dims=3).fit(inputs)
    assert turned.plain.tolist() == [0, 1, 2]
