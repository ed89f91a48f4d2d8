"""Networks that begin as a head on their own features, and encoders whose outputs are brought to size."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from labeldp.features.encoders import begin_as, probe, probed, unit_outputs
from labeldp.learning.evidence import on_classes
from labeldp.learning.train import predict

N, SIDE, WIDTH, K = 400, 8, 16, 4


def images():
    return torch.rand(N, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


def body(last=None):
    torch.manual_seed(1)
    layers = [nn.Conv2d(1, WIDTH, 3), nn.BatchNorm2d(WIDTH), last or nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    made = nn.Sequential(*layers)
    made[1].weight.data *= 0.02
    made[1].bias.data += 0.01
    for _ in range(50):  # running means
        made(images())
    return made.eval()


def scores_of(network):
    features = network.eval()(images()).detach()
    weight = torch.randn(WIDTH, K, generator=torch.Generator().manual_seed(2))
    return ((features - features.mean(dim=0)) / features.std(dim=0).clamp_min(1e-9)) @ weight + torch.arange(K)


def whole(network):
    return nn.Sequential(OrderedDict(body=network, head=nn.Linear(WIDTH, K)))


def test_it_begins_as_the_head():
    model = whole(body())
    scores = scores_of(model.get_submodule("body"))
    assert not torch.allclose(predict(model, images()), scores, atol=0.5)
    begin_as(model, images(), scores)
    assert torch.allclose(predict(model, images()), scores, atol=0.05)


def test_a_coordinate_that_hardly_varies_gets_no_huge_weight():
    """One output in a million times smaller units, which the scores hang on: it is left out, not blown up."""
    network = body()
    model = whole(network)
    network[1].weight.data[0] *= 1e-6
    network[1].bias.data[0] = 0.5
    begin_as(model, images(), scores_of(network))
    largest = model.get_submodule("head").weight.abs().amax(dim=0)
    assert largest[0] < 10 * largest[1:].max()


def test_outputs_are_brought_to_size_and_say_the_same():
    network = body()
    before = network(images()).detach()
    assert before.std(dim=0).median() < 0.05
    unit_outputs(network, images())
    after = network(images()).detach()
    assert after.std(dim=0).median() == pytest.approx(1.0, rel=1e-3)
    assert torch.allclose(after / after.norm(), before / before.norm(), atol=1e-5)


@pytest.mark.parametrize("network", [nn.Sequential(nn.Flatten(), nn.Linear(64, 8)), body(last=nn.Tanh())])
def test_bodies_that_cannot_be_scaled_are_refused(network):
    network[1 if isinstance(network[1], nn.BatchNorm2d) else 0].requires_grad_()
    if isinstance(network[1], nn.BatchNorm2d):
        network[1].weight.data *= 50
    with pytest.raises(ValueError, match="body"):
        unit_outputs(network, images())


@pytest.mark.parametrize("model", [nn.Linear(64, K), nn.Sequential(nn.Flatten(), nn.Linear(64, K))])
def test_models_without_a_body_are_refused(model):
    with pytest.raises(ValueError, match="put all but the last in body"):
        begin_as(model, images(), torch.zeros(N, K))


def separable(n=N):
    """Pictures whose mean brightness is their class, as the body's outputs can tell."""
    labels = torch.arange(n) % K
    noise = 0.3 * torch.rand(n, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(3))
    return noise + labels[:, None, None, None] / K, labels


def test_a_probe_trains_the_last_layer_alone():
    pictures, labels = separable()
    model = whole(body())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    probe(model, pictures, on_classes(labels), epochs=200, batch_size=50, learning_rate=0.02)
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"head.weight", "head.bias"}
    assert (predict(model, pictures).argmax(dim=1) == labels).float().mean() > 0.9


def test_a_probe_sees_the_labelled_rows_only():
    """The others have labels that would teach the opposite."""
    pictures, labels = separable()
    rows, wrong = torch.arange(N // 2), (labels + 1) % K
    mixed = wrong.clone()
    mixed[rows] = labels[rows]
    model = probe(whole(body()), pictures, on_classes(mixed), rows=rows, epochs=200, batch_size=50, learning_rate=0.02)
    right = predict(model, pictures).argmax(dim=1) == labels
    assert right.float().mean() > 0.9


def test_training_begins_with_a_probe_unless_it_goes_on(tmp_path):
    pictures, labels = separable()
    given = []

    def train(model, inputs, objective, **settings):
        given.append((model.get_submodule("head").weight.abs().sum().item(), settings))
        return model

    model = whole(body())
    nn.init.zeros_(model.get_submodule("head").weight)
    begun = probed(train, epochs=2)
    begun(model, pictures, on_classes(labels), checkpoint=tmp_path / "c.pt", rows=torch.arange(10))
    assert given[0][0] > 0
    assert set(given[0][1]) == {"checkpoint", "rows"}
    (tmp_path / "c.pt").touch()
    nn.init.zeros_(model.get_submodule("head").weight)
    begun(model, pictures, on_classes(labels), checkpoint=tmp_path / "c.pt")
    assert given[1][0] == 0
