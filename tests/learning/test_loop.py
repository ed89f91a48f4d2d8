import pytest
import torch
from torch import nn

from labeldp.learning.optimisers import adam, constant, linear, sgd
from labeldp.learning.train import PausedError, minimise


def settings(**changes):
    return {"epochs": 3, "batch_size": 4, "optimizer": sgd(0.1), "schedule": constant()} | changes


def distance(network, points):
    return lambda batch: (points[batch.rows] - network.weight).square().sum(dim=1).mean()


class Point(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))


def test_it_finds_the_minimum():
    points, network = torch.randn(40, 2, generator=torch.Generator().manual_seed(0)), Point()
    minimise(network, distance(network, points), 40, **settings(epochs=60, schedule=linear(), optimizer=adam(0.1)))
    assert torch.allclose(network.weight, points.mean(0), atol=0.05)


def test_every_row_once_an_epoch_but_for_the_last_part_of_a_batch():
    network, seen = Point(), []

    def loss(batch):
        seen.append(batch.rows)
        return network.weight.sum()

    minimise(network, loss, 10, **settings())
    assert [len(rows) for rows in seen] == [4, 4] * 3
    for epoch in range(3):
        rows = torch.cat(seen[2 * epoch : 2 * epoch + 2]).tolist()
        assert len(set(rows)) == 8
        assert set(rows) <= set(range(10))
    seen.clear()
    minimise(network, loss, 3, **settings(epochs=1))
    assert sorted(seen[0].tolist()) == [0, 1, 2]


def test_schedule_and_after_see_the_share_done():
    network, factors, shares = Point(), [], []

    def schedule(share):
        factors.append(share)
        return 1.0 - share

    steps = []

    def loss(batch):
        steps.append(network.weight.detach()[0].item())
        return network.weight.sum()

    minimise(
        network, loss, 8, **settings(epochs=2, schedule=schedule, after=shares.append, optimizer=sgd(0.1, 0.0, 0.0))
    )
    assert factors == shares == [0, 0.25, 0.5, 0.75]
    assert steps == pytest.approx([0, -0.1, -0.175, -0.225])


@pytest.mark.parametrize(("bf16", "expected"), [(True, True), (False, False), (None, False)])
def test_mixed_precision_is_for_gpus_unless_told(bf16, expected):
    network, seen = Point(), []

    def loss(batch):
        seen.append(torch.is_autocast_enabled("cpu"))
        return network.weight.sum()

    minimise(network, loss, 4, **settings(epochs=1, bf16=bf16))
    assert seen == [expected]


def test_frozen_parameters_are_not_given_to_the_optimiser():
    network = nn.ModuleList((Point(), Point().requires_grad_(False)))
    given = []

    def optimizer(parameters):
        given.extend(parameters)
        return sgd(0.1)(given)

    minimise(network, lambda batch: network[0].weight.sum(), 4, **settings(optimizer=optimizer))
    assert len(given) == 1
    assert given[0] is network[0].weight


def test_the_last_epoch_is_never_paused(tmp_path):
    network = Point()
    paused = settings(epochs=1, checkpoint=tmp_path / "c.pt", seconds=0.0)
    minimise(network, distance(network, torch.zeros(4, 2)), 4, **paused)
    assert (tmp_path / "c.pt").exists()
    with pytest.raises(PausedError):
        minimise(
            network,
            distance(network, torch.zeros(4, 2)),
            4,
            **paused | {"epochs": 3, "run": "", "checkpoint": tmp_path / "d.pt"},
        )
