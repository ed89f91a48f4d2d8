import pytest
import torch
from torch import nn

from labeldp.models.weights import load_matching


def network(outputs):
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, outputs))


def test_everything_but_a_new_head_is_taken_over(tmp_path):
    """Pre-trained on 100 classes, used for 10: the body is copied, the head stays as it was."""
    torch.save(network(100).state_dict(), tmp_path / "public.pt")
    model = network(10)
    head = model[2].weight.detach().clone()
    assert load_matching(model, tmp_path / "public.pt") == ["2.bias", "2.weight"]
    assert torch.equal(model[0].weight, torch.load(tmp_path / "public.pt", weights_only=True)["0.weight"])
    assert torch.equal(model[2].weight, head)


def test_weights_of_another_network_are_refused(tmp_path):
    torch.save(nn.Conv2d(1, 1, 3).state_dict(), tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"other\.pt"):
        load_matching(network(2), tmp_path / "other.pt")
