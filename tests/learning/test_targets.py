import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.learning.evidence import debiased_loss, evidence, forward_loss, posterior, unbiased_labels
from labeldp.mechanisms.responses import PriorResponse, RandomizedResponse, TopKResponse
from labeldp.mechanisms.vectors import BitFlip, LaplaceOneHot
from labeldp.releases import NoisyLabels

K = 4
SETS = np.array([[1, 1, 1, 1], [1, 0, 1, 0], [0, 1, 0, 0], [0, 1, 1, 1]], dtype=bool)


def noisy(randomizer, responses):
    return NoisyLabels(randomizer, np.asarray(responses))


def test_forward_loss_is_the_likelihood_of_the_answer():
    """A vector worked out by hand: epsilon 1, K = 4, model (.1, .2, .3, .4), answer 2."""
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64))
    seen = evidence(noisy(RandomizedResponse(1.0, 4), [2]), dtype=torch.float64)
    assert forward_loss(logits, seen).item() == pytest.approx(1.3279331587850505, rel=1e-12)


@pytest.mark.parametrize(
    ("epsilon", "k", "scale", "sub_each"),
    [(1.0, 10, 6.819767068693264, 0.08533674259065845), (2.0, 2, 1.3130352854993312, 0.11920292202211756)],
)
def test_debiased_coefficients(epsilon, k, scale, sub_each):
    z = unbiased_labels(noisy(RandomizedResponse(epsilon, k), [1]), dtype=torch.float64)[0]
    assert z[1].item() == pytest.approx(scale * (1 - sub_each), rel=1e-9)
    assert z[0].item() == pytest.approx(-scale * sub_each, rel=1e-9)
    assert z.sum().item() == pytest.approx(1.0)


@given(st.floats(0.1, 8), st.integers(0, K - 1), st.integers(0, 10**6))
def test_debiased_loss_has_the_true_loss_as_its_mean(epsilon, label, seed):
    """Exact expectation over all K answers, not a simulation."""
    logits = torch.from_numpy(np.random.default_rng(seed).normal(size=(1, K)))
    channel = RandomizedResponse(epsilon, K)
    losses = debiased_loss(logits.expand(K, K), unbiased_labels(noisy(channel, np.arange(K)), dtype=torch.float64))
    mean = (losses.numpy() * channel.probabilities(label)[0]).sum()
    assert mean == pytest.approx(cross_entropy(logits, torch.tensor([label])).item(), rel=1e-6, abs=1e-8)


def test_debiased_top_k_inside_and_outside_the_set():
    """Inside the set the loss is right; outside it is the mean over the set (no better is possible)."""
    logits = torch.tensor([[0.3, -1.0, 2.0, 0.1]], dtype=torch.float64)
    channel = TopKResponse(1.0, np.array([True, False, True, True]))
    responses = np.array([0, 2, 3])
    losses = debiased_loss(logits.expand(3, K), unbiased_labels(noisy(channel, responses), dtype=torch.float64)).numpy()
    losses_true = -torch.log_softmax(logits, -1)[0].numpy()
    for label in range(K):
        expected = losses_true[label] if label != 1 else losses_true[responses].mean()
        assert (losses * channel.probabilities(label)[0, responses]).sum() == pytest.approx(expected)


def test_rows_that_say_nothing_have_no_weight_and_no_gradient():
    channel = TopKResponse(2.0, SETS)
    private = noisy(channel, [0, 2, 1, 3])
    assert private.informative().tolist() == [True, True, False, True]
    logits = torch.randn(4, K, requires_grad=True)
    (grad_debiased,) = torch.autograd.grad(debiased_loss(logits, unbiased_labels(private)).sum(), logits)
    (grad_forward,) = torch.autograd.grad(forward_loss(logits, evidence(private)).sum(), logits)
    for grad in (grad_debiased, grad_forward):
        assert grad[2].abs().max() < 1e-6
        assert (grad[[0, 1, 3]].abs().amax(dim=1) > 1e-3).all()


def test_posterior_of_a_silent_row_is_its_prior():
    prior = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    silent = evidence(noisy(RandomizedResponse(0.0, K), [3]))
    assert torch.allclose(posterior(silent, prior.log()), prior)
    assert torch.allclose(posterior(silent), torch.full((1, K), 0.25))


@pytest.mark.parametrize(
    "channel", [RandomizedResponse(2.0, K), BitFlip(2.0, K), LaplaceOneHot(2.0, K), PriorResponse(2.0, [5, 3, 1, 1])]
)
def test_posterior_odds_move_by_at_most_epsilon(channel):
    vault = LabelVault([0, 1, 2, 3] * 50, K, rng=SecureRandom(seed=0))
    private = vault.release(channel)
    spread = private.log_likelihood()
    assert (spread.max(axis=1) - spread.min(axis=1)).max() <= 2.0 + 1e-9
    assert np.allclose(posterior(evidence(private, dtype=torch.float64)).numpy(), private.posterior())


def test_impossible_answers_give_finite_losses_and_gradients():
    exact = evidence(noisy(RandomizedResponse(float("inf"), K), [1, 2]))
    logits = torch.zeros(2, K, requires_grad=True)
    loss = forward_loss(logits, exact)
    (grad,) = torch.autograd.grad(loss.sum(), logits)
    assert torch.allclose(loss, torch.full((2,), np.log(4.0), dtype=torch.float32))
    assert torch.isfinite(grad).all()


@pytest.mark.parametrize("rows", [0, 1])
def test_no_rows_and_one_row(rows):
    private = noisy(RandomizedResponse(1.0, 3), np.zeros(rows, dtype=int))
    assert forward_loss(torch.zeros(rows, 3), evidence(private)).shape == (rows,)
    assert debiased_loss(torch.zeros(rows, 3), unbiased_labels(private)).shape == (rows,)


def test_learning_from_private_labels_recovers_the_class_frequencies():
    """Both losses, minimised over one constant model, find the true frequencies within sampling error."""
    truth = np.repeat(np.arange(3), [5000, 3000, 12000])
    private = LabelVault(truth, 3, rng=SecureRandom(seed=5)).release(RandomizedResponse(1.0, 3))
    for loss, seen in ((forward_loss, evidence(private)), (debiased_loss, unbiased_labels(private))):
        logits = torch.zeros(3, requires_grad=True)
        optimizer = torch.optim.LBFGS([logits], max_iter=50)

        def closure(loss=loss, seen=seen, logits=logits, optimizer=optimizer):
            optimizer.zero_grad()
            value = loss(logits.expand(len(seen), 3), seen).mean()
            value.backward()
            return value

        optimizer.step(closure)
        assert np.allclose(torch.softmax(logits, 0).detach().numpy(), [0.25, 0.15, 0.6], atol=0.03)
