import numpy as np
import pytest

from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.data.storage import load_labels, save_labels
from labeldp.mechanisms.responses import PriorResponse, RandomizedResponse, TopKResponse
from labeldp.mechanisms.vectors import BitFlip, LaplaceOneHot

PRIOR = np.random.default_rng(0).dirichlet(np.ones(4), 30)


@pytest.mark.parametrize(
    "question",
    [
        RandomizedResponse(1.0, 4),
        RandomizedResponse(float("inf"), 4),
        TopKResponse(1.0, np.array([True, False, True, True])),
        TopKResponse.of_prior(1.0, PRIOR, 2),
        PriorResponse(2.0, PRIOR),
        LaplaceOneHot(1.0, 4),
        BitFlip(1.0, 4),
    ],
)
def test_answers_and_their_likelihood_come_back(question, tmp_path):
    private = LabelVault(np.arange(30) % 4, 4, rng=SecureRandom(0)).release(question)
    save_labels(tmp_path / "answers.npz", private)
    again = load_labels(tmp_path / "answers.npz")
    assert np.array_equal(again.responses, private.responses)
    assert again.responses.dtype == private.responses.dtype
    assert np.array_equal(again.log_likelihood(), private.log_likelihood())
    assert np.array_equal(again.unbiased(), private.unbiased())
    assert [path.name for path in tmp_path.iterdir()] == ["answers.npz"]


def test_no_pickle_is_ever_read(tmp_path):
    described = '{"law": {"mechanism": "bit-flip", "epsilon": 1.0, "num_classes": 2}, "note": {}}'
    np.savez(tmp_path / "answers.npz", answers=np.array([object()]), description=np.array(described))
    with pytest.raises(ValueError):
        load_labels(tmp_path / "answers.npz")
