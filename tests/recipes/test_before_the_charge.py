"""Whatever can be found wrong is found before a label is paid for, for every recipe of the catalogue."""

import functools
import os
import shutil

import numpy as np
import pytest
import torch
from torch import nn

from labeldp.core.vault import LabelVault
from labeldp.learning.fixmatch import fixmatch
from labeldp.learning.optimisers import sgd
from labeldp.learning.train import fit
from labeldp.mechanisms.values import seal_values
from labeldp.recipes import aug_descent, job, lp_mst, per_row, ratings, ssl_prior
from labeldp.recipes.catalogue import RECIPES, loaded

ROWS, CLASSES = 48, 3
TASKS = [(recipe, task) for recipe in RECIPES for task in ("classes", "numbers") if getattr(recipe, task)]
every_recipe = pytest.mark.parametrize(("recipe", "task"), TASKS, ids=lambda value: getattr(value, "key", value))


def work(recipe, task, settings, model=None):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(ROWS, 6, generator=generator)
    shape = (ROWS, 1, 8, 8) if recipe.needs_images else (ROWS, 6)
    inputs = torch.rand(shape, generator=generator)
    if recipe.needs_images and model is None:
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES))
    vault = LabelVault(np.arange(ROWS) % CLASSES, CLASSES)
    if task == "numbers":
        vault = seal_values(np.linspace(0, 1, ROWS), 0.0, 1.0, levels=16)
    return job.Job(features, inputs, vault, 1.0, 1e-3, model, settings, seed=0)


def untouched(vault):
    return not any(group.queries for group in vault.ledger.groups())


def refused(recipe, task, settings, match, model=None):
    given = work(recipe, task, settings, model)
    with pytest.raises((ValueError, TypeError, OSError), match=match):
        job.run(recipe, given, task)
    assert untouched(given.vault)


MISTAKES = [
    ({"lr": 0.1}, "lr"),
    ({"epoch": 5}, "epoch"),
    ({"epochs": "3"}, "epochs"),
    ({"epochs": 0}, "epochs"),
    ({"batch_size": -1}, "batch_size"),
    ({"optimizer": 0.1}, "optimizer"),
    ({"seed": "zero"}, "seed"),
    ({"folder": 3}, "folder"),
]


@every_recipe
@pytest.mark.parametrize(("settings", "match"), MISTAKES, ids=str)
def test_a_setting_that_is_misspelt_or_of_another_type(recipe, task, settings, match):
    refused(recipe, task, settings, match)


@every_recipe
def test_a_folder_that_cannot_be_written(recipe, task, tmp_path):
    (tmp_path / "file").write_text("in the way")
    refused(recipe, task, {"folder": tmp_path / "file" / "run"}, "folder")


@every_recipe
def test_a_disk_with_too_little_room(recipe, task, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 30, 1 << 30, 1000))
    refused(recipe, task, {"folder": tmp_path / "run"}, "room")


@every_recipe
@pytest.mark.parametrize("wrong", ["inputs", "outputs"])
def test_a_model_that_does_not_fit(recipe, task, wrong):
    if not recipe.network:
        pytest.skip("trains no network")
    many = 64 if recipe.needs_images else 6
    size = (many + 1, CLASSES) if wrong == "inputs" else (many, CLASSES + 4)
    flat = [nn.Flatten()] if recipe.needs_images else []
    refused(recipe, task, {}, "one row", nn.Sequential(*flat, nn.Linear(*size)))


def broken(images, generator):
    raise RuntimeError("this view is broken")


X, IMAGES = torch.randn(ROWS, 6), torch.rand(ROWS, 1, 8, 8)
LOOPS = [
    (functools.partial(fit, epoch=5), "epoch"),
    (functools.partial(fit, epochs="3"), "epochs"),
    (functools.partial(fit, epochs=3, optimizer=sgd), "param_groups"),
    (functools.partial(fit, epochs=3, schedule=lambda share: "half"), "can't multiply"),
    (functools.partial(fit, epochs=3, augment=broken), "broken"),
    (functools.partial(fit), "epochs"),
    (functools.partial(fixmatch, epochs=3, treshold=0.9), "treshold"),
    (functools.partial(fixmatch, epochs=3, rate=0.9), "rate"),
]
CALLS = {
    "rr": per_row.rr,
    "alibi": per_row.alibi,
    "lp_mst": lp_mst.train,
    "ratings": ratings.train,
    "ssl_prior": functools.partial(ssl_prior.train, clusters=[0, 1] * (ROWS // 2)),
}


@pytest.mark.parametrize("recipe", CALLS)
@pytest.mark.parametrize(("loop", "match"), LOOPS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_loop_bound_to_wrong_settings(recipe, loop, match):
    vault = LabelVault([0, 1, 2] * (ROWS // 3), CLASSES)
    with pytest.raises((ValueError, TypeError, RuntimeError, AttributeError), match=match):
        CALLS[recipe](nn.Linear(6, CLASSES), X, vault, epsilon=1.0, fit=loop)
    assert untouched(vault)


def test_two_networks_bound_to_wrong_settings():
    from labeldp.learning.dividemix import co_refine

    for bad in ({"warm_up": 3}, {"epochs": "3"}, {"epochs": 3, "weak": broken}):
        vault = LabelVault([0, 1, 2] * (ROWS // 3), CLASSES)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES))
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            aug_descent.train(net, IMAGES, vault, epsilon=1.0, refine=functools.partial(co_refine, **bad))
        assert untouched(vault)


def test_what_learns_from_responses_is_tried_before_they_are_drawn():
    vault = LabelVault([0, 1, 2] * (ROWS // 3), CLASSES)
    with pytest.raises(ValueError, match="learn"):
        lp_mst.train(
            nn.Linear(6, 3), X, vault, epsilon=1.0, fit=functools.partial(fit, epochs=1), learn=lambda known: None
        )
    assert untouched(vault)


def test_a_check_changes_no_figure():
    """The trial of a loop leaves torch's generator and the model as they were."""
    made = []
    for tried in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES))
        loop = functools.partial(fit, epochs=2, batch_size=8)
        if tried:
            from labeldp.recipes.arguments import try_loop

            try_loop("fit", loop, model, X, CLASSES)
        loop(model, X, lambda logits, rows: logits.square().sum(dim=1))
        made.append(model[0].weight.detach().clone())
    assert torch.equal(*made)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    vault = LabelVault([0, 1, 2] * (ROWS // 3), CLASSES)
    with pytest.raises(ValueError, match="folder"):
        per_row.rr(
            nn.Linear(6, 3), X, vault, epsilon=1.0, fit=functools.partial(fit, epochs=1), folder=tmp_path / "run"
        )
    assert untouched(vault)


def test_every_function_of_the_catalogue_checks_its_arguments():
    names = {getattr(recipe, kind) for recipe in RECIPES for kind in ("classes", "numbers")} - {""}
    for name in sorted(names | {"ratings.train", "regression.privatize_values", "pate.label"}):
        function = loaded(name)
        assert getattr(getattr(function, "func", function), "checks_its_arguments", False), name
