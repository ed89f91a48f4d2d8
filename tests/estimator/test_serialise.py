"""Estimators taken apart into plain values and arrays, and put together again; no pickle on the way."""

import json
import tomllib

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from labeldp.estimator.classifier import LabelDPClassifier
from labeldp.estimator.regressor import LabelDPRegressor
from labeldp.estimator.serialise import PartsError, map_parts
from labeldp.features.encoders import Encoder
from labeldp.features.extract import Raw
from labeldp.features.patches import Patches
from tests.estimator.helpers import CLASSES, columns, numbers

pytestmark = pytest.mark.filterwarnings("ignore::labeldp.estimator.RepeatedFitWarning")


def travelled(fitted, **settings):
    """Through JSON and raw bytes, as files would have it."""
    config, arrays = fitted.to_parts()
    text = json.dumps(config, allow_nan=False)
    raw = {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()}
    back = {name: np.frombuffer(data, kind).reshape(shape) for name, (kind, shape, data) in raw.items()}
    return type(fitted).from_parts(json.loads(text), back, **settings)


def same(probabilities, others):
    """Up to rounding: where a tensor lies in memory decides, on some processors, in what order a sum is taken."""
    return np.allclose(probabilities, others, rtol=0, atol=1e-6)


def test_a_head_on_a_table():
    data, y = columns()
    frame = pd.DataFrame(data)
    model = LabelDPClassifier(4.0, 1e-6, "one_shot", classes=CLASSES).fit(frame, y)
    again = travelled(model, certificate=model.certificate_)
    assert same(again.predict_proba(frame), model.predict_proba(frame))
    assert again.classes_.tolist() == CLASSES
    assert again.feature_names_in_.tolist() == ["size", "other", "kind", "flag"]
    assert again.certificate_ is model.certificate_
    assert again.method_ == "one_shot"


def test_columns_of_many_values_and_principal_components():
    from labeldp.features.tables import Table

    data, y = columns()
    frame = pd.DataFrame({**data, "name": [f"row {i}" for i in range(600)]})
    model = LabelDPClassifier(4.0, 1e-6, "one_shot", classes=CLASSES, features=Table(dims=10)).fit(frame, y)
    assert same(travelled(model).predict_proba(frame), model.predict_proba(frame))


@pytest.mark.parametrize("method", ["rr", "one_shot+student", "rounds"])
def test_a_network(method):
    x, y = numbers(200)
    model = LabelDPClassifier(4.0, 1e-6, method, classes=CLASSES, settings={"epochs": 2}).fit(x, y)
    assert np.allclose(travelled(model).predict_proba(x), model.predict_proba(x))


def test_a_head_and_its_student():
    x, y = numbers(400)
    model = LabelDPClassifier(4.0, 1e-6, "one_shot+linear", classes=CLASSES).fit(x, y)
    again = travelled(model)
    assert same(again.predict_proba(x), model.predict_proba(x))
    assert 0 < model.to_parts()[0]["predictor"]["share"] < 1
    assert again.method_ == "one_shot+linear"


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, rows):
        return self.layer(rows)


def test_a_network_of_ones_own_is_needed_again():
    x, y = numbers(200)
    model = LabelDPClassifier(4.0, 1e-6, "rr", model=Own(), classes=CLASSES, settings={"epochs": 2}).fit(x, y)
    with pytest.raises(PartsError, match="a Own, is not kept, only its weights"):
        travelled(model)
    assert np.allclose(travelled(model, model=Own()).predict_proba(x), model.predict_proba(x))


@pytest.mark.parametrize("features", [Raw(), Patches(filters=8, size=3)])
def test_images(features):
    rng = np.random.default_rng(0)
    x, y = rng.random((120, 1, 12, 12)).astype(np.float32), rng.integers(0, 2, 120)
    model = LabelDPClassifier(4.0, 1e-6, "one_shot", classes=[0, 1], features=features).fit(x, y)
    assert np.allclose(travelled(model).predict_proba(x), model.predict_proba(x), atol=1e-6)


@pytest.mark.parametrize("method", ["one_shot", "binned_regression"])
def test_a_regressor(method):
    x, _ = numbers(300)
    settings = {"epochs": 2} if method == "binned_regression" else None
    model = LabelDPRegressor(4.0, (-3, 3), 1e-6, method, settings=settings).fit(x, x[:, 0])
    again = travelled(model)
    assert np.allclose(again.predict(x), model.predict(x), atol=1e-5)
    assert again.bounds == (-3.0, 3.0)


def test_settings_fit_toml():
    data, y = columns()
    config, _ = LabelDPClassifier(4.0, 1e-6, "one_shot", classes=CLASSES).fit(pd.DataFrame(data), y).to_parts()

    def plain(value):
        if isinstance(value, dict):
            return all(isinstance(key, str) and plain(one) for key, one in value.items())
        return all(map(plain, value)) if isinstance(value, list) else type(value) in (str, int, float, bool)

    assert plain(config)
    assert tomllib.loads(f"names = {json.dumps(config['names'])}")["names"] == config["names"]


def test_parts_of_something_else_are_refused():
    x, y = numbers(100)
    config, arrays = LabelDPClassifier(4.0, 1e-6, "one_shot", classes=CLASSES).fit(x, y).to_parts()
    with pytest.raises(PartsError, match="not of a 'regressor'"):
        LabelDPRegressor.from_parts(config, arrays)
    with pytest.raises(PartsError, match="format"):
        LabelDPClassifier.from_parts({**config, "format": "other/9"}, arrays)
    with pytest.raises(PartsError, match=r"'head.weight' is missing"):
        LabelDPClassifier.from_parts(config, {k: v for k, v in arrays.items() if k != "head.weight"})
    with pytest.raises(PartsError, match="not known"):
        LabelDPClassifier.from_parts({**config, "predictor": {"kind": "tree"}}, arrays)


def test_an_encoder_of_images_is_not_kept_and_has_to_be_given_again():
    x, y = numbers(100)
    images = torch.from_numpy(x).float().view(100, 1, 2, 2)
    encoder = Encoder(nn.Sequential(nn.Flatten(), nn.Linear(4, 6)))
    model = LabelDPClassifier(4.0, 1e-6, "one_shot", classes=CLASSES, features=encoder).fit(images, y)
    config, arrays = model.to_parts()
    assert not any(array.size == 24 for array in arrays.values())
    again = LabelDPClassifier.from_parts(config, arrays, encoder=encoder)
    assert np.allclose(again.predict_proba(images), model.predict_proba(images), atol=1e-6)
    assert again.to_parts()[0] == config
    with pytest.raises(PartsError, match="is not kept; give it again"):
        LabelDPClassifier.from_parts(config, arrays)
    with pytest.raises(PartsError, match="not the one"):
        LabelDPClassifier.from_parts(config, arrays, encoder=Encoder(nn.Sequential(nn.Flatten(), nn.Linear(4, 6))))
    huge = {**config["map"], "shape": [1, 1 << 20, 1 << 20]}
    with pytest.raises(PartsError, match="none that a model was fitted with"):
        LabelDPClassifier.from_parts({**config, "map": huge}, arrays, encoder=encoder)


def test_an_encoder_of_rows_cannot_be_taken_apart():
    x, _ = numbers(100)
    encoder = Encoder(nn.Linear(4, 6))
    found = encoder.fit(torch.from_numpy(x).float())
    with pytest.raises(PartsError, match="cannot be taken apart"):
        map_parts(found)


def test_columns_weighed_by_a_moment(monkeypatch):
    chance = np.random.default_rng(0)
    x = chance.normal(size=(4000, 6))
    y = np.array(CLASSES)[(x[:, 1] * x[:, 4] > 0).astype(int)]
    model = LabelDPClassifier(3.0, 1e-6, "one_shot+kernel", classes=CLASSES, random_state=0, holdout=0).fit(x, y)
    assert model._predictor.weighed is not None
    again = travelled(model)
    assert same(again.predict_proba(x), model.predict_proba(x))
    # Many rows are predicted in parts, whose features are made as they are needed.
    whole = again.predict_proba(x)
    monkeypatch.setattr("labeldp.estimator.reading.ROWS_AT_ONCE", 1000)
    assert np.allclose(again.predict_proba(x), whole, rtol=0, atol=1e-4)
