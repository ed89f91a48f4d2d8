"""LabelDPClassifier: every input, every method, the certificate, and what it refuses."""

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from torch import nn

from labeldp import LabelVault, UserVault
from labeldp.core.certificate import verify
from labeldp.estimator.classifier import LabelDPClassifier
from labeldp.recipes.catalogue import BY_KEY, RECIPES
from tests.estimator.helpers import CLASSES, columns, numbers
from tests.marks import mostly_slow

pytestmark = pytest.mark.filterwarnings("ignore::labeldp.estimator.RepeatedFitWarning")
FRAMES = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "arrow": pa.table,
    "objects": lambda columns: np.array(list(columns.values()), dtype=object).T,
}


def accuracy(model, x, y):
    return (model.predict(x) == y).mean()


@pytest.mark.parametrize("kind", FRAMES)
def test_tables_of_every_kind_are_read(kind):
    data, y = columns()
    x = FRAMES[kind](data)
    model = LabelDPClassifier(20.0, 1e-6, "one_shot", classes=CLASSES, random_state=0).fit(x, y)
    assert accuracy(model, x, y) > 0.9
    assert model.n_features_in_ == 4
    assert hasattr(model, "feature_names_in_") == (kind != "objects")
    assert model.predict_proba(x).sum(axis=1) == pytest.approx(np.ones(len(y)))


@pytest.mark.parametrize("read", [np.asarray, torch.as_tensor, lambda x: x.tolist()], ids=["numpy", "torch", "list"])
def test_numbers_of_every_kind_are_read(read):
    x, y = numbers()
    model = LabelDPClassifier(20.0, 1e-6, "one_shot", classes=CLASSES).fit(read(x), y)
    assert accuracy(model, read(x), y) > 0.9


@pytest.mark.parametrize(
    "hold", [list, pd.Series, pl.Series, pa.array, lambda y: pd.Series(y, dtype="category")],
    ids=["list", "pandas", "polars", "arrow", "categories"],
)  # fmt: skip
def test_labels_of_every_kind_are_read(hold):
    x, y = numbers()
    model = LabelDPClassifier(20.0, 1e-6, "one_shot", classes=CLASSES).fit(x, hold(y))
    assert accuracy(model, x, y) > 0.9


def test_labels_in_a_tensor_and_classes_that_do_not_occur():
    x, y = numbers()
    codes = torch.from_numpy((y == "yes").astype(np.int64))
    model = LabelDPClassifier(20.0, 1e-6, "one_shot", classes=[0, 1, 7]).fit(x, codes)
    assert model.classes_.tolist() == [0, 1, 7]
    assert model.predict_proba(x).shape == (600, 3)


def test_frames_are_read_alike_and_columns_by_name():
    data, y = columns()
    model = LabelDPClassifier(20.0, 1e-6, "one_shot", classes=CLASSES).fit(pd.DataFrame(data), y)
    expected = model.predict_proba(pd.DataFrame(data))
    turned = dict(reversed(data.items()))
    for frame in (pl.DataFrame(data), pa.table(data), pd.DataFrame(turned), pl.DataFrame(turned), pa.table(turned)):
        assert np.array_equal(model.predict_proba(frame), expected)


def test_missing_dates_and_new_values_are_read():
    data, y = columns()
    data["when"] = pd.date_range("2020-01-01", periods=600)
    frame = pd.DataFrame(data)
    frame.loc[::7, "size"] = np.nan
    frame.loc[::9, "kind"] = None
    model = LabelDPClassifier(20.0, 1e-6, "one_shot", classes=CLASSES).fit(frame, y)
    new = frame.head(3).assign(kind=["never seen", "a", None], size=[np.nan, 1.0, None])
    assert np.isfinite(model.predict_proba(new)).all()


def test_images_are_read():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200)
    x = (rng.random((200, 8, 8)) * 100 + 100 * y[:, None, None]).astype(np.uint8)
    from labeldp.features.extract import Raw

    model = LabelDPClassifier(20.0, 1e-6, "one_shot", classes=[0, 1], features=Raw()).fit(x, y)
    assert accuracy(model, x, y) > 0.9
    assert model.n_features_in_ == 64


# -- methods ----------------------------------------------------------------------------------------------------------

QUICK = {"epochs": 3}


@pytest.mark.parametrize("epsilon", [0.05, 8.0])
def test_auto_takes_no_network_for_images_unless_one_is_given(epsilon):
    """Of many small images, where responses to a network are expected to do best, and of few."""
    images = np.random.default_rng(0).integers(0, 256, (60, 6, 6), dtype=np.uint8)
    model = LabelDPClassifier(epsilon, classes=[0, 1]).fit(images, np.arange(60) % 2)
    assert not BY_KEY[model.method_].network
    assert (model.choice_.problem["feature_dim"], model.choice_.problem["modality"]) == (36, "images")
    assert any("network" in one.obstacle for one in model.choice_.ranking)
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 2))
    settings = {"epochs": 1} if epsilon > 1 else None
    own = LabelDPClassifier(epsilon, classes=[0, 1], model=net, settings=settings).fit(images, np.arange(60) % 2)
    assert BY_KEY[own.method_].network


METHODS = [recipe.key for recipe in RECIPES if recipe.classes and not recipe.needs_images]
FIT_SETTINGS = {key: QUICK for key in METHODS if BY_KEY[key].network == "any"}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_fits_within_its_budget(method):
    x, y = numbers(400)
    model = LabelDPClassifier(4.0, 1e-5, method, classes=CLASSES, settings=FIT_SETTINGS.get(method), random_state=0)
    model.fit(x, y)
    assert model.method_ == method
    assert model.choice_ is None
    assert model.certificate_.epsilon <= 4.0
    assert model.certificate_.delta == (0.0 if BY_KEY[method].pure else 1e-5)
    assert verify(model.certificate_) == ()
    assert model.predict_proba(x).shape == (400, 2)


@pytest.mark.parametrize(
    "method", mostly_slow(["one_shot", "forward", "one_shot+linear", "one_shot+student", "lp_mst"], quick=2)
)
def test_methods_learn(method):
    x, y = numbers(2000)
    model = LabelDPClassifier(8.0, 1e-5, method, classes=CLASSES, random_state=0).fit(x, y)
    assert accuracy(model, *numbers(2000, seed=1)) > 0.85


IMAGES = [recipe.key for recipe in RECIPES if recipe.needs_images]


@pytest.mark.parametrize("method", IMAGES)
def test_methods_on_images_refuse_a_table_before_anything_is_spent(method):
    x, y = numbers(200)
    vault = LabelVault((y == CLASSES[1]).astype(int), 2)
    with pytest.raises(ValueError, match="learns from changed copies of images"):
        LabelDPClassifier(4.0, 1e-5, method, classes=CLASSES).fit(x, vault)
    assert vault.certificate().epsilon == 0.0


@pytest.mark.parametrize("method", [*IMAGES, "pate_fm"])
def test_methods_on_images_fit_within_their_budget(method):
    chance = np.random.default_rng(0)
    y = chance.integers(0, 2, 200)
    x = (chance.random((200, 1, 8, 8)) * (0.5 + 0.5 * y[:, None, None, None])).astype(np.float32)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    settings = {"epochs": 1, "batch_size": 16}
    model = LabelDPClassifier(4.0, 1e-5, method, classes=[0, 1], model=net, settings=settings, random_state=0).fit(x, y)
    assert 3.9 < model.certificate_.epsilon <= 4.0
    assert model.predict_proba(x).shape == (200, 2)


@pytest.mark.parametrize("method", [recipe.key for recipe in RECIPES if recipe.users and recipe.classes])
def test_methods_for_users_protect_all_labels_of_one(method):
    x, y = numbers(300)
    vault = UserVault((y == CLASSES[1]).astype(int), np.arange(300) // 3, 2)
    model = LabelDPClassifier(4.0, 1e-5, method, classes=CLASSES, settings=QUICK, random_state=0).fit(x, vault)
    assert 3.9 < model.certificate_.epsilon <= 4.0
    assert "user" in model.certificate_.to_json()["claim"]["protects"]


@pytest.mark.parametrize("each", [1, 3])
def test_users_are_given_by_name_and_auto_finds_a_method_for_them(each):
    x, y = numbers(300)
    who = [f"person {row // each}" for row in range(300)]
    model = LabelDPClassifier(4.0, 1e-5, classes=CLASSES, settings=QUICK, random_state=0).fit(x, y, users=who)
    assert BY_KEY[model.method_].users
    assert (model.certificate_.epsilon <= 4.0, verify(model.certificate_)) == (True, ())
    assert model.certificate_.unit.protects == "all labels of one user"


def test_users_that_do_not_fit_are_refused_with_a_sentence():
    x, y = numbers(300)
    model = LabelDPClassifier(4.0, 1e-5, "forward", classes=CLASSES)
    with pytest.raises(ValueError, match="users has 299 entries for 300 labels"):
        model.fit(x, y, users=np.arange(299))
    with pytest.raises(ValueError, match="leave it out"):
        model.fit(x, UserVault(np.zeros(300, int), np.arange(300), 2), users=np.arange(300))
    with pytest.raises(ValueError, match="protects one label at a time"):
        LabelDPClassifier(4.0, 1e-5, "one_shot", classes=CLASSES).fit(x, y, users=np.arange(300))


def test_other_methods_refuse_users_before_anything_is_spent():
    x, y = numbers(300)
    vault = UserVault((y == CLASSES[1]).astype(int), np.arange(300) // 3, 2)
    with pytest.raises(ValueError, match="protects one label at a time"):
        LabelDPClassifier(4.0, 1e-5, "lp_mst", classes=CLASSES).fit(x, vault)
    assert vault.certificate().epsilon == 0.0


def test_a_students_settings_are_refused_before_the_look_is_paid_for():
    x, y = numbers(400)
    reports = []
    settings = {"settings": {"ridge": 0.0}, "report": reports.append}
    with pytest.raises(ValueError, match="ridge=0"):
        LabelDPClassifier(1.0, 1e-6, "one_shot+linear", classes=CLASSES, **settings).fit(x, y)
    assert not [one for one in reports if one.phase == "query"]


def test_auto_says_why():
    x, y = numbers()
    model = LabelDPClassifier(1.0, classes=CLASSES).fit(x, y)
    assert model.choice_ is not None
    assert model.method_ == model.choice_.recipe
    assert "ε = 1" in model.choice_.reason


def test_a_network_of_ones_own_is_trained_as_a_copy():
    x, y = numbers(400)
    mine = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    before = [p.detach().clone() for p in mine.parameters()]
    model = LabelDPClassifier(4.0, model=mine, classes=CLASSES, settings=QUICK).fit(x, y)
    assert model.method_ != "one_shot"
    assert all(torch.equal(a, b) for a, b in zip(before, mine.parameters(), strict=True))
    for method in ("one_shot", "one_shot+linear"):
        with pytest.raises(ValueError, match="trains no network"):
            LabelDPClassifier(1.0, method=method, model=mine, classes=CLASSES).fit(x, y)


def test_delta_zero_is_pure():
    x, y = numbers()
    model = LabelDPClassifier(2.0, 0.0, classes=CLASSES).fit(x, y)
    assert (model.certificate_.epsilon, model.certificate_.delta) == (2.0, 0.0)


def test_delta_follows_the_rows():
    x, y = numbers(300)
    model = LabelDPClassifier(2.0, classes=CLASSES, method="one_shot").fit(x, y)
    assert model.certificate_.delta == 1e-5


def test_random_state_seeds_public_things_and_never_the_noise():
    x, y = numbers()
    first, second = (LabelDPClassifier(0.5, classes=CLASSES, method="one_shot", random_state=3).fit(x, y) for _ in "ab")
    assert not np.array_equal(first.predict_proba(x), second.predict_proba(x))
    assert not first.certificate_.seeded
    before = torch.random.get_rng_state()
    LabelDPClassifier(4.0, classes=CLASSES, method="rr", settings=QUICK, random_state=3).fit(x, y)
    assert torch.equal(before, torch.random.get_rng_state())


def test_progress_is_told():
    x, y = numbers(200)
    reports = []
    LabelDPClassifier(4.0, classes=CLASSES, method="one_shot", report=reports.append).fit(x, y)
    phases = [one.phase for one in reports]
    assert phases[:2] == ["features", "choice"]
    assert {"tuning", "query", "head"} <= set(phases)
    assert phases[-1] == "done"
    assert 3.9 < reports[-1].epsilon <= 4.0
    reports.clear()
    LabelDPClassifier(4.0, classes=CLASSES, method="rr", settings=QUICK, report=reports.append).fit(x, y)
    assert [one.share for one in reports if one.phase == "training"] == pytest.approx([1 / 3, 2 / 3, 1.0])


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 0}, "epsilon=0"),
        ({"epsilon": float("inf")}, "finite"),
        ({"epsilon": "1"}, "epsilon='1'"),
        ({"epsilon": True}, "epsilon=True"),
        ({"epsilon": 1.0, "delta": -1e-5}, "delta"),
        ({"epsilon": 1.0, "delta": "x"}, "delta='x'"),
        ({"epsilon": 1.0, "method": "magic"}, "'auto' or one of one_shot"),
        ({"epsilon": 1.0, "classes": ["no", "no"]}, "each of them once"),
        ({"epsilon": 1.0, "classes": ["no"]}, "not among the 1 declared"),
        ({"epsilon": 1.0, "classes": [0, 1]}, "classes are numbers and the labels text"),
        ({"epsilon": 1.0, "model": "net"}, "torch.nn.Module"),
        ({"epsilon": 1.0, "store": 3}, "store is a int"),
        ({"epsilon": 1.0, "method": "rr", "settings": {"epsilon": 9.0}}, "which the estimator sets"),
        ({"epsilon": 1.0, "method": "one_shot", "settings": {"ranks": 1}}, "does not know"),
        ({"epsilon": 1.0, "method": "dp_sgd", "settings": {"ranks": 1}}, "does not know"),
        ({"epsilon": 1.0, "method": "dp_sgd", "settings": {"noise_multiplier": 1.0}}, "which the estimator sets"),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(settings, message):
    x, y = numbers(100)
    with pytest.raises(ValueError, match=message):
        LabelDPClassifier(**{"classes": CLASSES, **settings}).fit(x, y)


@pytest.mark.parametrize("method", ["one_shot", "forward", "dp_sgd", "auto"])
@pytest.mark.parametrize(
    "settings",
    [
        {"settings": {"lr": 0.1}},
        {"settings": {"epochs": "3"}},
        {"settings": [("epochs", 3)]},
        {"settings": {"folder": Path(__file__) / "run"}},
        {"model": nn.Linear(3, 2)},
        {"report": "a text"},
        {"device": "nowhere"},
    ],
    ids=str,
)
def test_a_mistake_is_found_before_anything_is_spent(method, settings):
    """tests/recipes/test_before_the_charge.py has every recipe; here is the way to it."""
    x, y = numbers(100)
    vault = LabelVault((y == CLASSES[1]).astype(int), 2)
    with pytest.raises((ValueError, TypeError, OSError, RuntimeError)):
        LabelDPClassifier(1.0, 1e-5, method, classes=CLASSES, **settings).fit(x, vault)
    assert vault.certificate().epsilon == 0.0


def test_no_error_quotes_a_label():
    x, _ = numbers(100)
    secret = np.array(["perfectly-secret"] * 50 + ["no"] * 50)
    with pytest.raises(ValueError, match="50 of 100 labels") as refusal:
        LabelDPClassifier(1.0, classes=CLASSES).fit(x, secret)
    assert "secret" not in str(refusal.value)
    for hidden in ([None] * 3 + ["no"] * 97, [float("nan")] * 3 + [0.0] * 97):
        with pytest.raises(ValueError, match="3 are missing"):
            LabelDPClassifier(1.0, classes=CLASSES).fit(x, hidden)


def test_other_features_are_refused():
    data, y = columns()
    frame = pd.DataFrame(data)
    model = LabelDPClassifier(4.0, 1e-6, "one_shot", classes=CLASSES).fit(frame, y)
    with pytest.raises(ValueError, match=r"missing: \['kind'\], not known: \['sort'\]"):
        model.predict(frame.rename(columns={"kind": "sort"}))
    with pytest.raises(ValueError, match=r"column 'size' .* holds 'large', but the model reads numbers there"):
        model.predict(frame.assign(size="large"))
    with pytest.raises(ValueError, match="infinity"):
        model.predict(frame.assign(size=np.inf))
    with pytest.raises(ValueError, match="column 'kind' holds list"):
        LabelDPClassifier(4.0, classes=CLASSES).fit(frame.assign(kind=[[1]] * len(y)), y)


def test_nothing_that_holds_a_label_is_kept():
    x, _ = numbers(300)
    y = np.arange(300) % 2
    model = LabelDPClassifier(4.0, 1e-6, "rr", classes=[0, 1], settings=QUICK).fit(x, y)
    held = [value for value in vars(model).values() if isinstance(value, np.ndarray | torch.Tensor)]
    assert all(len(value) != 300 for value in held)


def test_a_refused_fit_leaves_nothing_that_predicts():
    from sklearn.exceptions import NotFittedError

    x, y = numbers(100)
    model = LabelDPClassifier(4.0, 1e-6, "one_shot", classes=CLASSES).fit(x, y)
    with pytest.raises(ValueError, match="epsilon"):
        model.set_params(epsilon=-1.0).fit(x, y)
    with pytest.raises(NotFittedError):
        model.predict(x)
