"""A network of the user's sees X as it is, and one that does not fit costs nothing."""

from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_array
from torch import nn

from labeldp import LabelVault
from labeldp.estimator.classifier import LabelDPClassifier
from labeldp.estimator.reading import as_given
from labeldp.estimator.serialise import PartsError
from labeldp.features.tables import Table
from tests.estimator.helpers import CLASSES, columns, numbers

QUICK = {"epochs": 2}


class Watching(nn.Module):
    """Keeps the largest number that it saw, and how wide rows were."""

    seen: ClassVar[list] = []

    def __init__(self, width=4, outputs=2):
        super().__init__()
        self.layer = nn.Linear(width, outputs)

    def forward(self, rows):
        Watching.seen.append((tuple(rows.shape[1:]), rows.dtype, float(rows.max())))
        return self.layer(rows)


def classifier(model, **settings):
    return LabelDPClassifier(4.0, method="rr", classes=CLASSES, model=model, settings=QUICK, **settings)


def test_it_sees_the_columns_as_they_came_neither_scaled_nor_encoded():
    x, y = numbers(200)
    x[17, 2] = 12_345.0
    Watching.seen.clear()
    model = classifier(Watching()).fit(x, y)
    model.predict(x)
    assert {(shape, dtype) for shape, dtype, _ in Watching.seen} == {((4,), torch.float32)}
    assert max(largest for *_, largest in Watching.seen) == 12_345.0
    rows = torch.from_numpy(x).float()
    with torch.no_grad():
        expected = torch.softmax(model._predictor.net(rows).double(), dim=1).numpy()
    assert np.allclose(model.predict_proba(x), expected)


def test_frames_keep_their_columns_in_order_and_lazy_layers_learn_their_width():
    x, y = numbers(200)
    frame = pd.DataFrame(x, columns=list("dacb"))
    model = classifier(nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(2))).fit(frame, y)
    assert model._predictor.net[0].in_features == 4
    assert np.array_equal(model.predict_proba(frame[["a", "b", "c", "d"]]), model.predict_proba(frame))


def test_with_an_extractor_it_sees_what_that_makes():
    data, y = columns(200)
    model = classifier(nn.Sequential(nn.LazyLinear(2)), features=Table()).fit(pd.DataFrame(data), y)
    assert model._predictor.net[0].in_features == model._map.dim > 4


@pytest.mark.parametrize(
    ("net", "why"),
    [
        (nn.Linear(7, 2), r"does not take rows of 4 numbers.*first layer take 4 numbers"),
        (nn.Linear(4, 3), r"makes \(2, 3\) of 2 rows of 4 numbers; its last layer must give 2 numbers"),
        (nn.LSTM(4, 2), "makes tuple of 2 rows"),
    ],
    ids=["too wide", "three outputs", "no tensor"],
)
def test_a_network_that_does_not_fit_is_refused_by_its_width_and_costs_nothing(net, why):
    x, y = numbers(200)
    vault = LabelVault((y == "yes").astype(int), 2)
    with pytest.raises(ValueError, match=why):
        classifier(net).fit(x, vault)
    assert vault.ledger.groups()[0].queries == ()


def test_text_and_gaps_are_refused_before_anything_is_spent():
    data, y = columns(200)
    vault = LabelVault((y == "yes").astype(int), 2)
    with pytest.raises(ValueError, match="1 of its 4 columns are text; encode them"):
        classifier(nn.Linear(4, 2)).fit(pd.DataFrame(data), vault)
    x, _ = numbers(200)
    frame = pd.DataFrame(x, columns=list("abcd"))
    frame.loc[3, "c"] = np.nan
    with pytest.raises(ValueError, match="column 'c' has missing numbers; fill them in"):
        classifier(nn.Linear(4, 2)).fit(frame, vault)
    assert vault.ledger.groups()[0].queries == ()


def test_sparse_rows_are_written_out():
    rows = csr_array(np.eye(3, 600))
    assert as_given(rows).shape == (3, 600)


def test_it_is_loaded_with_a_network_like_it(tmp_path):
    import labeldp

    x, y = numbers(200)
    model = classifier(nn.Linear(4, 2)).fit(x, y)
    model.save(tmp_path / "model")
    again = labeldp.load(tmp_path / "model", model=nn.Linear(4, 2))
    assert np.array_equal(again.predict_proba(x), model.predict_proba(x))
    with pytest.raises(PartsError, match="only its weights; give one like it"):
        labeldp.load(tmp_path / "model")
    with pytest.raises(PartsError, match="no network like the one that was fitted"):
        labeldp.load(tmp_path / "model", model=nn.Linear(5, 2))
