"""Every recipe that needs no code in the vault gives the same through a service as in process, by the same key."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="recipes need PyTorch")
pytest.importorskip("sqlalchemy", reason="a service keeps its books in a database")

from torch import nn  # noqa: E402

from labeldp.core.ledger import Budget  # noqa: E402
from labeldp.core.random import SecureRandom  # noqa: E402
from labeldp.core.vault import LabelVault  # noqa: E402
from labeldp.mechanisms.users import UserVault  # noqa: E402
from labeldp.mechanisms.values import seal_values  # noqa: E402
from labeldp.recipes import job  # noqa: E402
from labeldp.recipes.catalogue import BY_KEY, RECIPES  # noqa: E402
from labeldp.service import tasks  # noqa: E402
from tests.recipes.stopping import CASES, CLASSES, DELTA, EPSILON, ROWS, settings_of  # noqa: E402
from tests.service.servicehelp import names, service  # noqa: E402

# They run a model, or teachers, beside the labels, as the catalogue says.
INSIDE = {recipe.key for recipe in RECIPES if recipe.beside}
ANSWERED = [case for case in CASES if case[0] not in INSIDE]
# Whether all labels of a user are protected together, for recipes that can.
OF_USERS = [(recipe.key, "users") for recipe in RECIPES if recipe.users and recipe.classes and recipe.key not in INSIDE]
ORDER = np.random.default_rng(3).permutation(ROWS)


def sealed(task, seed=11, order=None):
    rng, place = SecureRandom(seed=seed), np.arange(ROWS) if order is None else order
    if task == "numbers":
        return seal_values(np.linspace(0, 1, ROWS)[place], 0.0, 1.0, levels=16, rng=rng)
    if task == "users":
        return UserVault((np.arange(ROWS) % CLASSES)[place], (np.arange(ROWS) // 3 % 17)[place], CLASSES, rng=rng)
    return LabelVault((np.arange(ROWS) % CLASSES)[place], CLASSES, rng=rng)


def learnt(key, task, vault, folder=None):
    """Run a recipe on a vault whose rows come in ORDER; what it predicts, and what it claims."""
    recipe, generator = BY_KEY[key], torch.Generator().manual_seed(0)
    kinds = torch.arange(ROWS) % CLASSES
    features = (torch.eye(CLASSES, 6)[kinds] * 4 + torch.randn(ROWS, 6, generator=generator))[ORDER]
    images = torch.rand(ROWS, 1, 8, 8, generator=generator)[ORDER]
    part, model = vault.part(budget=Budget(EPSILON, DELTA)), None
    task = "classes" if task == "users" else task
    with job.public_seed(0):
        if recipe.needs_images:
            model = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES))
        inputs = images if recipe.needs_images else features
        settings = settings_of(key, task) | ({} if folder is None else {"folder": folder})
        found = job.run(recipe, job.Job(features, inputs, part, EPSILON, DELTA, model, settings, 0), task)
    if hasattr(found, "probabilities"):
        predicted = found.probabilities(features) if callable(found.probabilities) else found.probabilities
    else:
        net = found if isinstance(found, nn.Module) else found.model
        predicted = net.eval()(inputs)
    return predicted.detach().double().numpy(), part.certificate(DELTA)


SLOW = {recipe.key for recipe in RECIPES if recipe.apart or recipe.loop in ("student", "refine")}
SLOW |= {recipe.key for recipe in RECIPES if "several noisy moments" in recipe.idea}
WALK = [pytest.param(*case, marks=[pytest.mark.slow] * (case[0] in SLOW)) for case in ANSWERED + OF_USERS]


@pytest.mark.parametrize(("key", "task"), WALK, ids=lambda value: value)
def test_a_recipe_gives_the_same_through_a_service(key, task, tmp_path):
    here, stated = learnt(key, task, sealed(task, order=ORDER))
    with service(sealed(task)) as found:
        remote = found.remote([names(ROWS)[place] for place in ORDER])
        there, claimed = learnt(key, task, remote, tmp_path / "run")
        # A run that goes on in its folder, in a new process say, draws and pays nothing more.
        spent = remote.spent()
        again, _ = learnt(key, task, found.remote([names(ROWS)[place] for place in ORDER]), tmp_path / "run")
        assert found.remote().spent() == spent
    np.testing.assert_array_equal(there, here)
    np.testing.assert_array_equal(again, here)
    assert (claimed.epsilon, claimed.groups, claimed.unit) == (stated.epsilon, stated.groups, stated.unit)
    assert claimed.seeded
    assert spent <= EPSILON * (1 + 1e-9)
    assert "entry" in claimed.assumptions[-1]


@pytest.mark.parametrize("key", sorted(INSIDE))
def test_what_runs_beside_the_labels_is_refused_unpaid_where_no_jobs_are_taken(key):
    with service(sealed("classes")) as found:
        remote = found.remote()
        with pytest.raises(ValueError, match="no jobs are taken here"):
            learnt(key, "classes", remote)
        assert remote.spent() == 0
        assert not any(group.queries for group in remote.ledger.groups())


def test_the_walk_is_the_catalogue():
    """What is not compared here is a job, in the catalogue and for the service; the tests of jobs compare those."""
    offered = {(recipe.key, task) for recipe in RECIPES for task in ("classes", "numbers") if getattr(recipe, task)}
    assert {*ANSWERED} | {(key, "classes") for key in INSIDE} == offered
    assert set(tasks.JOBS) <= INSIDE
    assert ANSWERED
    # And once more where users are protected, for every recipe that can; those beside the labels are jobs.
    together = {recipe.key for recipe in RECIPES if recipe.users and recipe.classes}
    assert {key for key, _ in OF_USERS} | (together & set(tasks.JOBS)) == together
    assert OF_USERS
