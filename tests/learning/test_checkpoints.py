"""Checkpoints: what goes in comes out, another run's and damaged ones are refused, older runs go on."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from labeldp.learning.descend import Kept, descend
from labeldp.learning.optimisers import adam, lars, sgd
from labeldp.learning.train import load_checkpoint, load_optimizer, save_checkpoint

LEAVES = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=4)
TREES = st.recursive(
    LEAVES | st.lists(st.integers(0, 9), min_size=1, max_size=3).map(torch.tensor),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("a.", max_size=3) | st.integers(0, 3), inner, max_size=3)
    ),
    max_leaves=8,
)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, dict):
        return [*a] == [*b] and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(*pair) for pair in zip(a, b, strict=True))
    return type(a) is type(b) and a == b


@given(state=st.dictionaries(st.text("xyz", min_size=1), TREES, max_size=3))
def test_what_is_saved_is_loaded(state, tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "c"
    save_checkpoint(path, "run", 3, state)
    found = load_checkpoint(path, "run")
    assert found.done == 3
    assert same(state, found.state)
    assert list(path.parent.iterdir()) == [path]


def test_shared_tensors_and_no_file(tmp_path):
    assert load_checkpoint(tmp_path / "none", "run") is None
    weight = torch.ones(3)
    save_checkpoint(tmp_path / "c", "run", 0, {"a": {"b": weight}, "a.b": 2 * weight})
    assert load_checkpoint(tmp_path / "c", "run").state["a"]["b"].sum() == 3
    save_checkpoint(tmp_path / "c", "run", 0, {"one": weight, "tied": weight, "odd": [-math.inf, 0.1]})
    assert load_checkpoint(tmp_path / "c", "run").state["odd"] == [-math.inf, 0.1]


def test_another_runs_and_damaged_files_are_refused(tmp_path):
    path = tmp_path / "c"
    save_checkpoint(path, "run", 3, {"weight": torch.ones(100)})
    with pytest.raises(ValueError, match="c belongs to another run"):
        load_checkpoint(path, "other")
    whole = path.read_bytes()
    for cut in (0, 4, 50, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="c is damaged"):
            load_checkpoint(path, "run")
    with pytest.raises(TypeError):
        save_checkpoint(path, "run", 3, {"function": print})
    assert path.read_bytes() == whole[:-1]


@pytest.mark.parametrize("make", [sgd(0.1), adam(0.01), lars(0.1)])
def test_an_optimiser_goes_on_as_if_it_had_not_stopped(make, tmp_path):
    """The layout of what it keeps is the parameter's, though a file knows none."""

    def steps(model, optimizer, count):
        for step in range(count):
            model(torch.full((2, 3, 5, 5), float(step + 1))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    models = [nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    first, second = (make(model.parameters()) for model in models)
    steps(models[0], first, 2)
    save_checkpoint(tmp_path / "c", "", 2, {"optimizer": first.state_dict(), "model": models[0].state_dict()})
    state = load_checkpoint(tmp_path / "c", "").state
    models[1].load_state_dict(state["model"])
    load_optimizer(second, state["optimizer"])
    kept = [value for each in second.state.values() for value in each.values() if value.ndim == 4]
    assert kept
    assert all(value.is_contiguous(memory_format=torch.channels_last) for value in kept)
    for model, optimizer in zip(models, (first, second), strict=True):
        steps(model, optimizer, 2)
    assert torch.equal(models[0].weight, models[1].weight)


def test_a_descent_begun_by_an_earlier_version_goes_on(tmp_path):
    """Its checkpoint was written by torch.save; its gradients were paid for."""

    def gradient(kept, step):
        found = kept.gradient(step)
        if found is None:
            found = torch.tensor([1.0 + step, 2.0])
            kept.add(step, found)
        return found

    def model():
        line = nn.Linear(2, 1, bias=False)
        nn.init.ones_(line.weight)
        return line

    whole = descend(model(), lambda step: torch.tensor([1.0 + step, 2.0]), steps=4, average=0.5, radius=1.0)
    begun = model()
    state = {
        "model": begun.state_dict(),
        "optimizer": sgd(0.1, momentum=0.0, weight_decay=0.0)(begun.parameters()).state_dict(),
        "average": [begun.weight.detach().clone()], "centre": [begun.weight.detach().clone()],
    }  # fmt: skip
    with Kept(tmp_path, "run") as kept:
        kept.add(0, torch.tensor([1.0, 2.0]))
    torch.save({"run": "run", "step": 0, "state": state}, tmp_path / "checkpoint.pt")
    with Kept(tmp_path, "run") as kept:
        rest = descend(model(), lambda step: gradient(kept, step), steps=4, average=0.5, radius=1.0, kept=kept)
    assert torch.equal(whole.weight, rest.weight)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.safetensors", "gradients.log"]
    torch.save({"run": "another", "step": 0, "state": state}, tmp_path / "checkpoint.pt")
    (tmp_path / "checkpoint.safetensors").unlink()
    with Kept(tmp_path, "run") as kept, pytest.raises(ValueError, match="another run"):
        kept.load()
