"""AugDescent on private labels: two networks judge which responses to believe (Tang et al. 2022, Algorithm 6).

    ỹ = randomized response at ε;   then `labeldp.learning.dividemix.co_refine` (Li et al. 2020; Nishi et al. 2021)

Which labels are used is decided anew in every epoch, so it is not bound to first guesses as `denoise_ssl` is. It needs
enough right responses to start from: for ten classes and 50,000 rows, ε of about 1 and more.

The published judge fits two Gaussians to the losses. For randomized response the noise is known, and `known_noise` uses
Bayes' rule instead. The private labels may be any others: `learn` takes them as `per_row.learn` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from labeldp.core.vault import LabelVault
from labeldp.learning.dividemix import by_response
from labeldp.learning.evidence import Labels, as_labels, from_classes
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.recipes.arguments import checked, device_of
from labeldp.recipes.kept import checkpoint_of, in_folder, release_labels
from labeldp.recipes.one_shot import OneShot
from labeldp.releases import NoisyLabels


class Refine(Protocol):
    """`labeldp.learning.dividemix.co_refine` with its settings bound."""

    def __call__(self, model: nn.Module, inputs: Tensor, labels: Labels, /, **settings: Any) -> nn.Module:
        """Train and return both networks as one model."""
        ...


@checked
def train(
    model: nn.Module,
    inputs: Tensor,
    vault: LabelVault,
    *,
    epsilon: float,
    refine: Refine,
    known_noise: bool = False,
    folder: Path | None = None,
) -> nn.Module:
    """Release one response per label at `epsilon`; two networks learn from them. With a folder, a killed run goes on.

    Args:
        model: the first network.
        inputs: public, one tensor, on the model's device.
        refine: `co_refine`, its settings bound.
        known_noise: judge responses by Bayes' rule, not by a mixture.
    """
    private = release_labels(
        vault, RandomizedResponse(epsilon, vault.num_classes), kept=in_folder(folder, "responses.npz")
    )
    settings = {"judge": by_response(epsilon)} if known_noise else {}
    return learn(model, inputs, private, refine=refine, folder=folder, **settings)


def learn(
    model: nn.Module,
    inputs: Tensor,
    private: NoisyLabels | Labels,
    *,
    refine: Refine,
    folder: Path | None = None,
    **settings: Any,
) -> nn.Module:
    """Train on private labels that were paid for before: post-processing, at no cost.

    Args:
        private: responses, or `Labels` made of other releases. Of a PATE student: `from_classes(pate.relabel(…), K)`.
        settings: others of `refine`.
    """
    labels = as_labels(private, len(inputs), device_of(model))
    in_folder(folder, "")
    kept = checkpoint_of(folder, labels.targets.cpu().numpy(), labels.weights.cpu().numpy())
    return refine(model, inputs, labels, **settings, **kept)


def train_after(
    shot: OneShot,
    features: Tensor,
    model: nn.Module,
    inputs: Tensor,
    *,
    refine: Refine,
    folder: Path | None = None,
) -> nn.Module:
    """Train two networks on the head's labels of all rows, of which they find the errors; the head was paid for.

    Args:
        shot: what `one_shot.train` returned.
        features: the features it was trained on, (n, p).
    """
    guesses = shot.predict(features)
    return learn(model, inputs, from_classes(guesses, shot.noisy.num_classes), refine=refine, folder=folder)
