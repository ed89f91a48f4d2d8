"""Recipes on responses that were released before: the model is the one of a vault that had drawn these."""

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from torch import nn

from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.data.released import ReleasedLabels
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.mechanisms.vectors import LaplaceOneHot
from labeldp.recipes.catalogue import BY_KEY, RECIPES
from labeldp.recipes.job import Job, public_seed, run

ABLE = [recipe for recipe in RECIPES if recipe.released]
OTHERS = [recipe for recipe in RECIPES if recipe.classes and not recipe.released]
ROWS = 96


def job(vault, recipe, **settings):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(ROWS, 6, generator=generator)
    images = torch.rand(ROWS, 1, 8, 8, generator=generator)
    settings = {"epochs": 2, "batch_size": 16, **settings} if recipe.network == "any" else settings
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 2)) if recipe.needs_images else None
    return Job(features, images if recipe.needs_images else features, vault, 3.0, 0.0, net, settings, 0)


def weights(recipe, vault, **settings):
    with public_seed(0):
        asked = job(vault, recipe, **settings)
        model = run(recipe, asked)
    if not isinstance(model, nn.Module):
        return model.logits(asked.features)
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def sealed():
    return LabelVault(np.arange(ROWS) % 2, num_classes=2, rng=SecureRandom(7))


@pytest.mark.parametrize("recipe", ABLE, ids=lambda recipe: recipe.key)
def test_the_model_is_that_of_the_vault_which_drew_the_responses(recipe, tmp_path):
    asked = LaplaceOneHot(3.0, 2) if recipe is BY_KEY["alibi"] else RandomizedResponse(3.0, 2)
    released = ReleasedLabels(sealed().release(asked))
    expected = weights(recipe, sealed())
    assert torch.equal(weights(recipe, released), expected)
    # With a folder, too, in which nothing is kept but a checkpoint: nothing was paid for.
    assert torch.equal(weights(recipe, released, folder=tmp_path), expected)
    assert not [*tmp_path.glob("*.counter"), *tmp_path.glob("*.npz")]


def test_learners_take_plain_responses_only():
    released = ReleasedLabels(sealed().release(LaplaceOneHot(3.0, 2)))
    recipe = next(one for one in ABLE if not one.network)
    with pytest.raises(ValueError, match="of the kind LaplaceOneHot"):
        run(recipe, job(released, recipe))


@pytest.mark.parametrize("recipe", OTHERS, ids=lambda recipe: recipe.key)
def test_what_queries_otherwise_is_refused(recipe):
    released = ReleasedLabels(sealed().release(RandomizedResponse(3.0, 2)))
    with pytest.raises(ValueError, match=r"queries labels|learns from changed copies"):
        run(recipe, job(released, recipe))


@pytest.mark.parametrize("setting", [{"prior": [0.5, 0.5]}, {"randomizer": LaplaceOneHot}, {"cap": 2}])
def test_how_labels_respond_is_settled(setting):
    released = ReleasedLabels(sealed().release(RandomizedResponse(3.0, 2)))
    with pytest.raises(ValueError, match="the responses were drawn before"):
        run(BY_KEY["forward"], job(released, BY_KEY["forward"], **setting))
