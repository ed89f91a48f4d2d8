"""Consensus retraining: the rows that are kept, the two networks, and what it is worth on noisy labels."""

from functools import partial

import pytest
import torch

from labeldp.core.vault import LabelVault
from labeldp.learning.consensus import consensus, pulled_to
from labeldp.learning.dividemix import Pair
from labeldp.learning.evidence import (
    debiased_loss,
    forward_loss,
    on_classes,
)
from labeldp.learning.optimisers import adam
from labeldp.learning.train import accuracy, fit, predict
from labeldp.recipes import per_row
from tests.learning.semihelp import WEAK, K, network, pictures
from tests.trained import weights

PLAIN = partial(fit, epochs=6, batch_size=32, optimizer=adam(5e-3), augment=WEAK)


def noisy(labels, share, seed=0):
    generator = torch.Generator().manual_seed(seed)
    wrong = torch.rand(len(labels), generator=generator) < share
    return torch.where(wrong, (labels + 1) % K, labels), wrong


def remembering(train, seen):
    """The training, which notes the rows it is given."""

    def run(model, inputs, objective, **settings):
        seen.append(settings.get("rows"))
        return train(model, inputs, objective, **settings)

    return run


def test_the_label_of_any_objective():
    targets = torch.softmax(torch.randn(20, 5, generator=torch.Generator().manual_seed(0)), dim=1)
    rows, wanted = torch.arange(0, 20, 2), targets.argmax(dim=1)[::2]
    soft = lambda logits, rows: -(targets[rows] * torch.log_softmax(logits, dim=1)).sum(dim=1)  # noqa: E731
    likely = lambda logits, rows: forward_loss(logits, targets[rows].log())  # noqa: E731
    unbiased = lambda logits, rows: debiased_loss(logits, targets[rows] - 0.1)  # noqa: E731
    weighted = lambda logits, rows: (0.1 + rows) * soft(logits, rows)  # noqa: E731
    for objective in (soft, likely, unbiased, weighted, on_classes(targets.argmax(dim=1))):
        assert torch.equal(pulled_to(objective, rows, 5), wanted)
        with torch.no_grad():
            assert torch.equal(pulled_to(objective, rows, 5), wanted)


def test_the_second_sees_the_rows_on_which_both_agree():
    images, labels = pictures(300)
    given, wrong = noisy(labels, 0.2)
    first, second, some = [], [], torch.arange(10, 300)
    both = consensus(
        network(), images, on_classes(given), fit=remembering(PLAIN, first), again=remembering(PLAIN, second),
        second=lambda: network(1), rows=some,
    )  # fmt: skip
    assert isinstance(both, Pair)
    assert not both.training
    agreed = predict(both.first, images).argmax(dim=1) == given
    assert torch.equal(first[0], some)
    assert torch.equal(second[0], some[agreed[some]])
    # Most wrong labels are gone, and few of the right ones.
    assert wrong[second[0]].float().mean() < 0.3 * wrong[some].float().mean()
    assert len(second[0]) > 0.7 * len(some)
    assert not torch.equal(weights(both.first), weights(both.second))
    mean = (predict(both.first, images).softmax(dim=1) + predict(both.second, images).softmax(dim=1)) / 2
    assert torch.allclose(predict(both, images).exp(), mean, atol=1e-5)


def test_it_is_better_than_either_training_alone():
    images, labels = pictures(600, noise=0.15)
    given, _ = noisy(labels, 0.35)
    both = consensus(network(), images, on_classes(given), fit=PLAIN, again=PLAIN, second=lambda: network(1))
    test = pictures(600, 1, 0.15)
    alone = [accuracy(PLAIN(network(seed), images, on_classes(given)), *test) for seed in (0, 1)]
    assert accuracy(both, *test) > max(alone) + 0.05


def test_where_nothing_agrees_the_first_is_alone():
    images, _ = pictures(40)
    against = lambda model, inputs: torch.eye(K)[torch.full((len(inputs),), 1)]  # noqa: E731
    model = network()
    alone = consensus(
        model, images, on_classes(torch.zeros(40, dtype=torch.long)), fit=PLAIN, again=PLAIN, second=network,
        believe=against,
    )  # fmt: skip
    assert alone is model


def test_a_pair_goes_on_with_its_first():
    images, labels = pictures(60)
    pair, seen = Pair(network(), network(1)), []

    def train(model, inputs, objective, **settings):
        seen.append(model)
        return model.eval()

    consensus(pair, images, on_classes(labels), fit=train, again=train, second=lambda: network(2))
    assert seen[0] is pair.first


def test_finished_trainings_are_resumed(tmp_path):
    images, labels = pictures(120)
    told = []
    plain = partial(PLAIN, report=told.append, every=6)

    def run():
        settings = {
            "fit": plain,
            "again": plain,
            "second": lambda: network(1),
            "checkpoint": tmp_path / "c.safetensors",
        }
        return consensus(network(), images, on_classes(labels), **settings)

    once, epochs = run(), len(told)
    assert epochs == 12
    assert len(list(tmp_path.iterdir())) == 2
    assert torch.equal(weights(once), weights(run()))
    assert len(told) == epochs


def test_a_recipe_trains_by_it():
    """As the `fit` of any recipe, which tries it before labels are paid for."""
    images, labels = pictures(200)
    vault = LabelVault(labels, K)
    by = partial(consensus, fit=PLAIN, again=PLAIN, second=lambda: network(1))
    made = per_row.forward(network(), images, vault, epsilon=3.0, fit=by)
    assert isinstance(made, Pair)
    assert accuracy(made, *pictures(200, 1)) > 0.8
    with pytest.raises(ValueError, match="epoch"):
        per_row.forward(network(), images, vault, epsilon=3.0, fit=partial(by, fit=partial(PLAIN, epoch=3)))
    assert vault.certificate().epsilon == pytest.approx(3.0)
