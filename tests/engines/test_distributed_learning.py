"""The batch loop, features and releases over ranks: each does a share, and all have the same in the end."""

import threading

import numpy as np
import pytest
import torch
from torch import nn

from labeldp import LabelDPClassifier, LabelVault, RandomizedResponse
from labeldp.engines import distributed
from labeldp.features.contrastive import byol, simclr
from labeldp.features.extract import Raw, extract
from labeldp.learning.fixmatch import fixmatch
from labeldp.learning.mean_teacher import mean_teacher
from labeldp.learning.optimisers import sgd
from labeldp.learning.train import fit
from labeldp.ranks import RankError, current
from labeldp.recipes.kept import release_labels
from tests.engines.teams import results, together


def rows(count, *shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).random((count, *shape))).float()


def weights(model):
    return torch.cat([value.flatten() for value in model.parameters()]).detach()


def network(seed=0):
    """Made from NumPy: torch's own generator belongs to all threads."""
    model, rng = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), np.random.default_rng(seed)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.from_numpy(rng.normal(size=tuple(value.shape))))
    return model


def cross_entropy(labels):
    return lambda logits, numbers: nn.functional.cross_entropy(logits, labels[numbers], reduction="none")


# -- the loop ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [16, 15, 1, 100])
def test_ranks_fit_what_one_process_fits(batch_size):
    """Shares of unequal size, batches smaller than the number of ranks, and a batch of all rows."""
    inputs, labels = rows(50, 12), torch.arange(50) % 3

    def job(ranks):
        model = network(seed=0 if ranks is None else ranks.rank)
        settings = {"epochs": 3, "batch_size": batch_size, "optimizer": sgd(0.1), "average": 0.5, "bf16": False}
        return weights(fit(model, inputs, cross_entropy(labels), **settings))

    alone = job(None)
    first, other = results(job)
    assert torch.allclose(first, alone, atol=1e-5)
    assert torch.equal(first, other)


def test_a_fit_goes_on_from_the_first_ranks_checkpoint_with_another_number_of_ranks(tmp_path):
    inputs, labels = rows(48, 12), torch.arange(48) % 3
    file = tmp_path / "fit.safetensors"

    def job(ranks, epochs, kept=True):
        reports = []
        settings = {"optimizer": sgd(0.1), "batch_size": 12, "report": reports.append}
        settings |= {"checkpoint": file, "every": 1} if kept else {}
        found = fit(network(), inputs, cross_entropy(labels), epochs=epochs, **settings)
        return weights(found), len(reports)

    whole, _ = job(None, 4, kept=False)
    results(lambda ranks: job(ranks, 2), 2)
    (found, reports), (_, none), _ = results(lambda ranks: job(ranks, 4), 3)
    assert torch.allclose(found, whole, atol=1e-5)
    assert (reports, none) == (2, 0)


def learners(images):
    labels = torch.arange(len(images)) % 3
    plain = {"epochs": 2, "batch_size": 8, "seed": 1}
    body = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    return {
        "fixmatch": lambda: fixmatch(network(), images, cross_entropy(labels), ratio=2, **plain, **views()),
        "mean_teacher": lambda: mean_teacher(network(), images, cross_entropy(labels), **plain, **views()),
        "simclr": lambda: (simclr(body, images, **plain, view=view, outputs=4), body)[1],
        "byol": lambda: (byol(body, images, **plain, view=view, outputs=4, hidden=8), body)[1],
    }


def view(images, generator):
    return images + 0.1 * torch.randn(images.shape, generator=generator)


def views():
    return {"weak": view, "strong": view}


@pytest.mark.parametrize("name", ["fixmatch", "mean_teacher", "simclr", "byol"])
def test_every_learner_of_the_loop_takes_ranks(name):
    """All end with the same weights, whatever they began with."""
    images = rows(32, 3, 2, 2)
    found = results(lambda ranks: weights(learners(images)[name]()))
    assert torch.equal(*found)
    assert found[0].isfinite().all()


def test_features_of_images_are_made_by_shares():
    images, seen, lock = rows(31, 3, 2, 2), [], threading.Lock()

    class Counting(Raw):
        def fit(self, inputs, device=None):
            found = super().fit(inputs, device)
            whole = type(found).features

            class Counted(type(found)):
                def features(self, inputs):
                    with lock:
                        seen.append(len(inputs))
                    return whole(self, inputs)

            return Counted(found.scaling, found.unit)

    (alone,) = extract(Raw(), images)
    for (found,) in results(lambda ranks: extract(Counting(), images)):
        assert torch.allclose(found, alone, atol=1e-6)
    assert sorted(seen) == [15, 16]


# -- releases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [True, False])
def test_responses_are_drawn_once_and_all_ranks_have_them(tmp_path, kept):
    labels = np.arange(60) % 3

    def job(ranks):
        vault = LabelVault(labels, 3)
        if not ranks.first:
            vault._rng.words = lambda count: pytest.fail("a rank drew responses of its own")
        file = tmp_path / "responses.npz" if kept and ranks.first else None
        return release_labels(vault, RandomizedResponse(1.0, 3), kept=file).responses, vault.certificate().epsilon

    (first, paid), (other, same) = results(job)
    assert np.array_equal(first, other)
    assert paid == same == 1.0
    if kept:
        # What an earlier run kept reaches the others, too.
        (again, _), (others, _) = results(job)
        assert np.array_equal(again, first)
        assert np.array_equal(others, first)


def blobs():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(300, 4))
    return features, (features[:, 0] > 0).astype(int)


@pytest.mark.filterwarnings("ignore:these labels, or parts of them, were fitted to more than once")
@pytest.mark.parametrize(("method", "helps"), [("forward", True), ("labeldp_pro", True), ("one_shot", False)])
def test_the_first_rank_has_the_estimator_and_the_others_have_helped(method, helps):
    features, labels = blobs()
    settings = {"epochs": 2} if helps else None

    def job(ranks):
        estimator = LabelDPClassifier(2.0, 1e-5, method, classes=[0, 1], random_state=0, settings=settings)
        found = distributed.helped(lambda: estimator.fit(features, labels))
        assert current() is None
        return None if found is None else (found.predict_proba(features), found.certificate_.epsilon)

    (predicted, epsilon), other = results(job)
    assert other is None
    assert predicted.shape == (300, 2)
    assert epsilon == pytest.approx(2.0, rel=1e-3)


# -- joining -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({}, "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set; start it with torchrun"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, "MASTER_PORT is not set"),
        ({"RANK": "x", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"}, "RANK='x' is not a whole number"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"}, "RANK is 2 and WORLD_SIZE 2"),
    ],
)
def test_what_torchrun_would_have_said_is_missed_in_one_sentence(monkeypatch, told, message):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RankError, match=message), distributed.ranks():
        pass


class Data:
    """As much of a table as is compared."""

    def __init__(self, features):
        self.features = features

    def __len__(self):
        return len(self.features)


def test_a_table_that_differs_or_cannot_be_read_is_refused_by_all():
    def differ(ranks):
        distributed.same_table(ranks, lambda: Data(np.full((4, 2), float(ranks.rank))))

    def missing(ranks):
        def read():
            if ranks.rank == 1:
                raise FileNotFoundError(2, "No such file or directory", "t.csv")
            return Data(np.zeros((4, 2)))

        distributed.same_table(ranks, read)

    def few(ranks):
        distributed.same_table(ranks, lambda: Data(np.zeros((1, 2))))

    expected = {differ: "rank 1 has a table other than rank 0", missing: "rank 1: t.csv: No such file", few: "2 ranks"}
    for job, message in expected.items():
        for found in together(job):
            assert isinstance(found, RankError)
            assert message in str(found)
