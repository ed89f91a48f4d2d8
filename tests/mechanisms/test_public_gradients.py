import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy as torch_cross_entropy

from labeldp.mechanisms.gradients import public
from labeldp.mechanisms.gradients.layers import cross_entropy
from labeldp.mechanisms.gradients.per_example import parameter_vector
from labeldp.mechanisms.gradients.public import (
    LogitJacobian,
    PublicGradients,
    candidate_gradients,
    fits_memory,
    logit_gradients,
)
from labeldp.models.zoo import cifar_cnn, collaborative_filter, mnist_cnn


def networks():
    torch.manual_seed(0)
    users, items = torch.tensor([0, 3, 3, 1]), torch.tensor([2, 2, 0, 4])
    return {
        "mnist_cnn": (mnist_cnn(), torch.randn(3, 1, 28, 28)),
        "cifar_cnn": (cifar_cnn().eval(), torch.randn(2, 3, 32, 32)),
        "linear": (nn.Linear(4, 3), torch.randn(5, 4)),
        "two inputs": (collaborative_filter(5, 6, 3), (users, items)),
        "norm": (nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.Tanh(), nn.Linear(6, 3)), torch.randn(5, 4)),
        "double": (nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double(), torch.randn(5, 4).double()),
    }


def one_logit(logits, labels):
    return logits.gather(1, labels[:, None])[:, 0]


def by_hand(model, inputs):
    """The Jacobian (n, K, P), one backward pass per row and logit."""
    columns = inputs if isinstance(inputs, tuple) else (inputs,)
    values = [value for value in model.parameters() if value.requires_grad]
    rows = []
    for i in range(len(columns[0])):
        logits = model(*(column[i : i + 1] for column in columns))[0]
        for logit in logits:
            parts = torch.autograd.grad(logit, values, retain_graph=True, allow_unused=True)
            pairs = zip(parts, values, strict=True)
            rows.append(torch.cat([(torch.zeros_like(v) if p is None else p).flatten() for p, v in pairs]))
    return torch.stack(rows).view(len(columns[0]), -1, len(rows[0]))


@pytest.mark.parametrize("name", networks())
def test_products_and_matrix_are_those_of_the_jacobian(name):
    model, inputs = networks()[name]
    expected, jacobian = by_hand(model, inputs), LogitJacobian(model, inputs)
    generator = torch.Generator().manual_seed(1)
    v = torch.randn(expected.shape[2], generator=generator, dtype=expected.dtype)
    u = torch.randn(expected.shape[:2], generator=generator, dtype=expected.dtype)
    scale = expected.norm()
    assert jacobian.num_parameters == expected.shape[2]
    assert (jacobian.jvp(v) - expected @ v).norm() <= 1e-5 * scale * v.norm()
    assert (jacobian.vjp(u) - torch.einsum("ik,ikp->p", u, expected)).norm() <= 1e-5 * scale * u.norm()
    blocks = candidate_gradients(model, one_logit, inputs, expected.shape[1])
    assert (torch.cat([block for _, block in blocks]) - expected).norm() <= 1e-5 * scale


@given(st.integers(0, 10**6), st.integers(1, 7))
@settings(max_examples=20)
def test_the_products_are_adjoint(seed, rows):
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4)).double()
    jacobian = LogitJacobian(model, torch.randn(rows, 3, generator=generator).double())
    v = torch.randn(jacobian.num_parameters, generator=generator).double()
    u = torch.randn(rows, 4, generator=generator).double()
    assert (jacobian.jvp(v) * u).sum().item() == pytest.approx((jacobian.vjp(u) @ v).item(), rel=1e-9, abs=1e-12)


def test_rows_go_through_in_parts(monkeypatch):
    model, inputs = networks()["linear"]
    whole = LogitJacobian(model, inputs)
    v, u = torch.randn(15), torch.randn(5, 3)
    expected = whole.logits, whole.jvp(v), whole.vjp(u)
    monkeypatch.setattr(public, "_ROWS", 2)
    parts = LogitJacobian(model, inputs)
    for one, other in zip((parts.logits, parts.jvp(v), parts.vjp(u)), expected, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_frozen_parameters_are_no_part_of_it():
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    model[0].requires_grad_(False)
    jacobian = LogitJacobian(model, torch.randn(2, 4))
    assert jacobian.num_parameters == len(parameter_vector(model)) == 21
    assert PublicGradients(model, torch.randn(2, 4)).matrix.shape == (6, 21)


def test_the_matrix_is_given_only_where_it_fits():
    model, inputs, most = nn.Linear(4, 3), torch.randn(5, 4), 5 * 3 * 15 * 4
    assert PublicGradients(model, inputs, memory=most).matrix.shape == (15, 15)
    assert PublicGradients(model, inputs, memory=most - 1).matrix is None
    assert not fits_memory(torch.empty(10**6, 1000, device="meta"), 10**7, None)


def margin(logits, labels):
    return (logits - logits.gather(1, labels[:, None]) + 1).clamp_min(0).square().sum(1)


@pytest.mark.parametrize("loss", [cross_entropy, margin])
def test_gradients_by_the_logits(loss):
    logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    found = logit_gradients(loss, logits.detach())
    for k in range(3):
        (expected,) = torch.autograd.grad(loss(logits, torch.full((4,), k)).sum(), logits)
        assert torch.allclose(found[:, k], expected)


@pytest.mark.parametrize("name", networks())
def test_candidates_are_the_gradients_under_each_class(name):
    model, inputs = networks()[name]
    columns = inputs if isinstance(inputs, tuple) else (inputs,)
    classes = model(*columns).shape[1]
    found = torch.cat([block for _, block in candidate_gradients(model, cross_entropy, inputs, classes)])
    values = list(model.parameters())
    for i in range(len(columns[0])):
        for k in range(classes):
            loss = torch_cross_entropy(model(*(column[i : i + 1] for column in columns)), torch.tensor([k]))
            parts = torch.autograd.grad(loss, values, allow_unused=True)
            pairs = zip(parts, values, strict=True)
            expected = torch.cat([(torch.zeros_like(v) if p is None else p).flatten() for p, v in pairs])
            assert (found[i, k] - expected).norm() <= 1e-5 * expected.norm() + 1e-7


def test_what_has_no_jacobian_is_refused():
    with pytest.raises(ValueError, match="no rows"):
        LogitJacobian(nn.Linear(2, 2), torch.zeros(0, 2))
    with pytest.raises(ValueError, match="no trainable parameter"):
        LogitJacobian(nn.Linear(2, 2).requires_grad_(False), torch.zeros(1, 2))
    with pytest.raises(ValueError, match="BatchNorm1d in training mode"):
        LogitJacobian(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"shape \(5,\); the model has 6"):
        LogitJacobian(nn.Linear(2, 2), torch.zeros(1, 2)).jvp(torch.zeros(5))
    dropping = LogitJacobian(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), torch.zeros(1, 2))
    for product, argument in ((dropping.jvp, torch.zeros(6)), (dropping.vjp, torch.zeros(1, 2))):
        with pytest.raises(ValueError, match=r"1 drops units at random.*model.eval\(\)"):
            product(argument)
