"""LARS against the formula, one parameter after the other; layer-wise scales do nothing to biases and norms."""

import pytest
import torch
from torch import nn

from labeldp.learning.evidence import on_classes
from labeldp.learning.optimisers import Lars, lars
from labeldp.learning.train import fit
from tests.learning.semihelp import network, pictures


def naive(weights, gradients, speeds, rate, momentum, decay, trust):
    """One step in plain arithmetic, in place."""
    for w, g, v in zip(weights, gradients, speeds, strict=True):
        d = g
        if w.ndim > 1:
            length, steepness = w.norm().item(), g.norm().item()
            scale = 1.0
            if length > 0 and steepness > 0 and rate > 0:
                scale = min(1.0, trust * length / (steepness + decay * length) / rate)
            d = scale * (g + decay * w)
        v.mul_(momentum).add_(d)
        w.sub_(rate * v)


@pytest.mark.parametrize("rate", [0.001, 0.3, 5.0])
def test_lars_is_the_formula(rate):
    """At a small rate the scale is 1, at a large one every weight has its own."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 3, 2, 2), (4,), (5, 4), (5,), (3, 3)]
    drawn = [torch.randn(shape, generator=generator).double() for shape in shapes]
    drawn[4].zero_()  # a weight of length 0 must be able to move
    parameters = [nn.Parameter(each.clone()) for each in drawn]
    unused = nn.Parameter(torch.ones(2, 2))
    optimizer = Lars([*parameters, unused], rate, momentum=0.8, weight_decay=0.1, trust=0.02)
    speeds = [torch.zeros_like(each) for each in drawn]
    for factor in (0.0, 1.0, 0.5):
        gradients = [torch.randn(shape, generator=generator).double() for shape in shapes]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.param_groups[0]["lr"] = rate * factor
        optimizer.step()
        naive(drawn, gradients, speeds, rate * factor, 0.8, 0.1, 0.02)
        for parameter, expected, gradient in zip(parameters, drawn, gradients, strict=True):
            assert torch.allclose(parameter, expected, rtol=1e-7, atol=1e-9)
            assert torch.equal(parameter.grad, gradient)
    assert torch.equal(unused, torch.ones(2, 2))


def test_a_step_is_at_most_a_share_of_the_weight():
    weight = nn.Parameter(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)))
    before, weight.grad = weight.detach().clone(), 1e4 * torch.ones(6, 6)
    Lars([weight], 10.0, trust=0.02).step()
    assert (weight - before).norm().item() == pytest.approx(0.02 * before.norm().item(), rel=1e-4)


def test_the_loop_trains_by_it():
    images, labels = pictures(120)
    losses = []
    fit(network(), images, on_classes(labels), epochs=12, batch_size=24, optimizer=lars(1.0),
        report=lambda progress: losses.append(progress.loss))  # fmt: skip
    assert losses[-1] < 0.8 * losses[0]


def test_no_trust_is_refused():
    with pytest.raises(ValueError, match="trust=0"):
        lars(0.1, trust=0.0)([nn.Parameter(torch.zeros(1))])
