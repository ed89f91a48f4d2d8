"""Runs of every recipe that are stopped at some point, and what is left of them: for test_kept.py and the campaign.

A run has a folder, a budget store and, apart from both, a file in which every draw leaves a line. `attempt` is one
process' part of it: a new vault of the same labels, and the same call. What `left` returns says what was charged, what
was drawn, and what the certificate of the last process states.
"""

import inspect
import json
import os
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch import nn

from labeldp.budgets.store import BudgetStore
from labeldp.core import vault as vaults
from labeldp.core.ledger import Budget
from labeldp.core.vault import LabelVault
from labeldp.estimator.classifier import LabelDPClassifier
from labeldp.features.cache import read_tensors
from labeldp.learning.tuning import Plan, tune
from labeldp.mechanisms.values import seal_values
from labeldp.recipes import job, pilot
from labeldp.recipes.budget import split_budget
from labeldp.recipes.catalogue import BY_KEY, RECIPES
from labeldp.recipes.one_shot_prior import Split

ROWS, CLASSES = 48, 3
CASES = [(recipe.key, task) for recipe in RECIPES for task in ("classes", "numbers") if getattr(recipe, task)]
# Besides: an estimator that measures on rows set aside, and the other decision of a pilot.
EVALUATION, RESPONSES = "evaluation", "responses"
MORE_CASES = [(EVALUATION, "classes"), ("pilot", RESPONSES)]
EPSILON, DELTA = 1.0, 1e-3
# The store pays for what was begun and lost, again and again.
PLENTY = Budget(1e6, DELTA)
_NETWORK = {"epochs": 2}
_TUNED = {"tune": lambda *args, **kwargs: tune(*args, **{**kwargs, "plans": [Plan(3)], "clusterings": 2, "draws": 1})}


def settings_of(key, task):
    """Return settings that make the recipe quick, and that a second process gives again."""
    recipe = BY_KEY[key]
    parameters = inspect.signature(recipe.function(task)).parameters
    given = dict(_NETWORK) if {"fit", "refine", "epochs"} & parameters.keys() and recipe.loop != "student" else {}
    if "tune" in parameters and "split" not in parameters:
        given = {**given, **_TUNED}
    if "split" in parameters:
        # Half for the responses, whatever tuning says of so few rows.
        given["split"] = Split(*split_budget(EPSILON, DELTA, (0.5, 0.5), last_pure=True), expected=0.0)
    return given


def sealed(task, where):
    """Return a new vault of the labels, as a new process makes it, that charges the store."""
    bare = LabelVault(np.arange(ROWS) % CLASSES, CLASSES)
    if task == "numbers":
        bare = seal_values(np.linspace(0, 1, ROWS), 0.0, 1.0, levels=16)
    store = BudgetStore.open(where)
    store.create("labels", bare, PLENTY)
    return bare.part(budget=Budget(EPSILON, DELTA), store=store.account(bare))


def attempt(key, task, place):
    """Run the recipe in `place`, which may hold what an earlier attempt left; return what the certificate says."""
    if key == EVALUATION:
        return measured(place)
    respond, task = (True, "classes") if task == RESPONSES else (False, task)
    recipe, generator = BY_KEY[key], torch.Generator().manual_seed(0)
    labels = torch.arange(ROWS) % CLASSES
    features = torch.eye(CLASSES, 6)[labels] * 4 + torch.randn(ROWS, 6, generator=generator)
    images = torch.rand(ROWS, 1, 8, 8, generator=generator)
    model, vault = None, sealed(task, place / "budgets.db")
    # Whatever was drawn, a pilot decides for the same, so that attempts can be compared.
    with job.public_seed(0), mock.patch.object(pilot, "_respond", return_value=respond):
        if recipe.needs_images:
            model = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES))
        settings = {**settings_of(key, task), "folder": place / "run"}
        given = job.Job(
            features, images if recipe.needs_images else features, vault, EPSILON, DELTA, model, settings, 0
        )
        job.run(recipe, given, task)
    stated = vault.certificate(DELTA)
    return {"epsilon": stated.epsilon, "seeded": stated.seeded, "groups": repr(vault.ledger.groups())}


def measured(place):
    """Fit an estimator that sets a quarter of the rows aside and measures with them; return as `attempt` does."""
    vault = sealed("classes", place / "budgets.db")
    features = np.eye(CLASSES, 4)[np.arange(ROWS) % CLASSES] + np.arange(4 * ROWS).reshape(ROWS, 4) / ROWS
    estimator = LabelDPClassifier(
        EPSILON, DELTA, "rr", classes=range(CLASSES), holdout=0.25, settings={**_NETWORK, "folder": place / "run"},
        random_state=0,
    )  # fmt: skip
    estimator.fit(features, vault)
    assert estimator.evaluation_ is not None
    stated = estimator.certificate_
    return {"epsilon": stated.epsilon, "seeded": stated.seeded, "groups": repr(vault.ledger.groups())}


def note_draws(place, patch=setattr):
    """Let every draw leave a line when it begins, and when it ends."""
    notes, real = os.open(place / "draws", os.O_WRONLY | os.O_APPEND | os.O_CREAT), vaults.draw

    def noted(mechanism, *args):
        os.write(notes, b"begun\n")
        drawn = real(mechanism, *args)
        os.write(notes, b"ended\n")
        return drawn

    patch(vaults, "draw", noted)


def left(place):
    """Return what charges, counts and draws there are, after reading every file of the folder."""
    notes = (place / "draws").read_text().split() if (place / "draws").exists() else []
    counted, lost = 0, 0
    for path in sorted((place / "run").rglob("*")):
        name = path.name
        if path.is_dir() or name.startswith("."):
            continue
        if name.endswith(".counter") or ".lost-" in name:
            begun = sum(line.isdigit() for line in path.read_bytes().split(b"\n"))
            counted, lost = counted + begun, lost + (".lost-" in name)
        elif name.endswith(".npz"):
            with np.load(path, allow_pickle=False) as arrays:
                assert all(arrays[member] is not None for member in arrays)
        elif name.endswith(".safetensors"):
            assert read_tensors(path)
        elif name.endswith(".json"):
            assert json.loads(path.read_text())
        else:
            assert name == "gradients.log" or (name.startswith("plan-") and name.endswith(".id")), name
    history = BudgetStore.open(place / "budgets.db", create=False).history("labels")
    return {
        "counted": counted,
        "lost": lost,
        "begun": notes.count("begun"),
        "ended": notes.count("ended"),
        "charges": len(history),
        "ids": sorted({entry.query_id for entry in history}),
    }


def write_result(place, found):
    """Keep what an attempt returned for the process that started it."""
    (place / "result.json").write_text(json.dumps(found))


def read_result(place):
    """Return what the last attempt that ended wrote."""
    return json.loads(Path(place / "result.json").read_text())
