"""The graph of nearest images, which a moment is taken of where noise leaves few directions; and where it is not."""

import numpy as np
import pytest
import torch

from labeldp import LabelDPClassifier, LabelVault
from labeldp.features.extract import Raw
from labeldp.recipes.catalogue import BY_KEY
from labeldp.recipes.job import SUPPLIES, Job, _Work

pytestmark = pytest.mark.filterwarnings("ignore::labeldp.estimator.RepeatedFitWarning")


def halves(count=700, side=8, seed=0):
    """Bright in the upper or in the lower half."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    found = rng.integers(0, 100, (count, 1, side, side)).astype(np.uint8)
    for image, label in zip(found, labels, strict=True):
        image[:, label * side // 2 : (label + 1) * side // 2] += 100
    return found, labels


def seen(rows, epsilon, images=True):
    found, labels = halves(rows)
    inputs = torch.from_numpy(found) if images else torch.from_numpy(found).flatten(1).float()
    features = torch.from_numpy(found).flatten(1).float()
    job = Job(features, inputs, LabelVault(labels, num_classes=2), epsilon, 1e-6, None, {}, 0)
    return SUPPLIES["seen"](_Work(BY_KEY["one_shot+linear"], job, "classes", {}))


def test_only_images_and_only_where_noise_leaves_few_directions():
    graph = seen(700, 0.02)
    assert graph.shape == (700, 64)
    assert seen(700, 2.0) is None
    assert seen(300, 0.02) is None
    assert seen(700, 0.02, images=False) is None


def test_a_moment_of_the_graph_is_certified_and_its_student_comes_back():
    x, y = halves()
    model = LabelDPClassifier(0.05, 1e-6, "one_shot+linear", classes=[0, 1], features=Raw(), random_state=0, holdout=0)
    model.fit(x, LabelVault(y, num_classes=2))
    assert model._predictor.share == 0
    assert model._predictor.head.weight.shape[1] <= 65
    assert model.certificate_.epsilon <= 0.05
    config, arrays = model.to_parts()
    again = LabelDPClassifier.from_parts(config, arrays)
    new = halves(100, seed=1)[0]
    assert np.allclose(again.predict_proba(new), model.predict_proba(new), atol=1e-5)
