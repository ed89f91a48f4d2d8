"""Every network: its size, its shapes, its gradients, and what it refuses."""

import math
import pickle
import re
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labeldp.models import zoo


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Networks this small only wait for each other's threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def images(rows, channels, size):
    return (torch.randn(rows, channels, size, size, generator=torch.Generator().manual_seed(1)),)


def ratings(rows):
    return torch.arange(rows) % 6, torch.arange(rows) % 4


def table(rows):
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(1)), torch.arange(2 * rows).view(rows, 2) % 5


# name: (build, inputs for so many rows, outputs). Narrow networks and small images where they allow it, to stay quick.
NETWORKS = {
    "resnet18_v2": (lambda: zoo.resnet18_v2(7, width=8), lambda n: images(n, 3, 16), 7),
    "wide_resnet": (lambda: zoo.wide_resnet(7, depth=16, widen=1, dropout=0.1), lambda n: images(n, 3, 16), 7),
    "vgg16": (lambda: zoo.vgg16(7, channels=1), lambda n: images(n, 1, 32), 7),
    "small_inception": (lambda: zoo.small_inception(7), lambda n: images(n, 1, 8), 7),
    "mnist_cnn": (lambda: zoo.mnist_cnn(7), lambda n: images(n, 1, 28), 7),
    "cifar_cnn": (lambda: zoo.cifar_cnn(7), lambda n: images(n, 3, 32), 7),
    "collaborative_filter": (lambda: zoo.collaborative_filter(6, 4, dim=8, hidden=(16, 8)), ratings, 5),
    "attribution_network": (lambda: zoo.attribution_network(3, (5, 5), 7, hidden=(16,)), table, 7),
    "linear_head": (lambda: zoo.linear_head(12, 7), lambda n: (torch.ones(n, 12),), 7),
}
IMAGE_NETWORKS = ["cifar_cnn", "mnist_cnn", "resnet18_v2", "small_inception", "vgg16", "wide_resnet"]
NORMALISED = ["resnet18_v2", "small_inception", "vgg16", "wide_resnet"]
every_network = pytest.mark.parametrize("name", NETWORKS)


def made(name, seed=0):
    build, inputs, outputs = NETWORKS[name]
    torch.manual_seed(seed)
    return build(), inputs, outputs


def size(model):
    return sum(parameter.numel() for parameter in model.parameters())


# Sizes by hand, from the papers' descriptions alone.


def conv(before, after, kernel=3, bias=False):
    return before * after * kernel**2 + after * bias


def conv_bn(before, after, kernel=3):
    return conv(before, after, kernel) + 2 * after


def linear(before, after):
    return before * after + after


def residual_size(stem, widths, blocks, num_classes):
    total, before = conv(3, stem), stem
    for stage, width in enumerate(widths):
        for block in range(blocks):
            total += 2 * before + conv(before, width) + 2 * width + conv(width, width)
            if before != width or (stage > 0 and block == 0):
                total += conv(before, width, 1)
            before = width
    return total + 2 * before + linear(before, num_classes)


def inception_size(num_classes):
    def block(before, a, b):
        return conv_bn(before, a, 1) + conv_bn(before, b)

    first = conv_bn(1, 96) + block(96, 32, 32) + block(64, 32, 48) + conv_bn(80, 160)
    second = block(160, 112, 48) + block(160, 96, 64) + block(160, 80, 80) + block(160, 48, 96) + conv_bn(144, 240)
    return first + second + block(240, 176, 160) + block(336, 176, 160) + linear(336, num_classes)


VGG = (3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
VGG_BODY = sum(conv_bn(before, after) for before, after in pairwise(VGG))
MNIST = conv(1, 16, bias=True) + conv(16, 16, bias=True) + linear(16 * 25, 16) + linear(16, 10)
CIFAR = sum(conv(a, b, bias=True) for a, b in ((3, 32), (32, 64), (64, 128))) + linear(512, 80) + linear(80, 10)
NEUMF = 2 * (6040 + 3706) * 64 + linear(128, 128) + linear(128, 64) + linear(64 + 64, 5)

SIZES = {
    "resnet18_v2": (zoo.resnet18_v2, (10,), residual_size(64, (64, 128, 256, 512), 2, 10), 11_172_170),
    "wrn_28_4": (zoo.wide_resnet, (10,), residual_size(16, (64, 128, 256), 4, 10), 5_849_050),
    "wrn_28_8": (zoo.wide_resnet, (100, 28, 8), residual_size(16, (128, 256, 512), 4, 100), 23_401_012),
    "vgg16": (zoo.vgg16, (10,), VGG_BODY + linear(512, 10), 14_724_042),
    "small_inception": (zoo.small_inception, (10,), inception_size(10), 1_894_058),
    "mnist_cnn": (zoo.mnist_cnn, (), MNIST, 9_066),
    "cifar_cnn": (zoo.cifar_cnn, (), CIFAR, 135_098),
    "collaborative_filter": (zoo.collaborative_filter, (6040, 3706), NEUMF, 1_272_901),
    "linear_head": (zoo.linear_head, (512, 10), 5120 + 10, 5_130),
}


@pytest.mark.parametrize("name", SIZES)
def test_the_size_is_the_one_computed_by_hand_and_the_one_in_the_docstring(name):
    build, arguments, by_hand, stated = SIZES[name]
    # On the meta device nothing is allocated or initialised: only the shapes count here.
    with torch.device("meta"):
        assert size(build(*arguments)) == by_hand == stated
    if name != "wrn_28_8":
        assert f"{stated:,}" in re.sub(r"\s+", " ", build.__doc__)


@every_network
def test_logits_have_one_column_per_class_also_for_one_row_and_in_eval(name):
    model, inputs, outputs = made(name)
    assert model(*inputs(3)).shape == (3, outputs)
    model.eval()
    assert model(*inputs(1)).shape == (1, outputs)
    together, alone = model(*inputs(2)), torch.cat([model(*(part[i : i + 1] for part in inputs(2))) for i in range(2)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@every_network
def test_first_guesses_are_near_uniform(name):
    model, inputs, outputs = made(name)
    loss = cross_entropy(model(*inputs(8)), torch.arange(8) % outputs)
    assert loss.item() == pytest.approx(math.log(outputs), abs=0.5)


@every_network
def test_the_gradient_reaches_every_parameter(name):
    model, inputs, outputs = made(name)
    rows = 12 if name == "collaborative_filter" else 5  # each user and each item needs a rating
    cross_entropy(model(*inputs(rows)), torch.arange(rows) % outputs).backward()
    idle = [
        key for key, p in model.named_parameters() if p.grad is None or not p.grad.any() or not p.grad.isfinite().all()
    ]
    assert idle == []


@every_network
def test_the_seed_decides_the_weights(name):
    first, again, other = (made(name, seed)[0].state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert name == "linear_head" or any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", ["resnet18_v2", "small_inception", "collaborative_filter", "attribution_network"])
def test_models_pickle(name):
    model, inputs, _ = made(name)
    again = pickle.loads(pickle.dumps(model.eval()))
    assert torch.equal(again(*inputs(2)), model(*inputs(2)))


@pytest.mark.parametrize("name", IMAGE_NETWORKS)
def test_channels_last_gives_the_same_logits(name):
    model, inputs, _ = made(name)
    model.eval()
    (batch,) = inputs(2)
    expected = model(batch)
    changed = model.to(memory_format=torch.channels_last)(batch.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(changed, expected, rtol=1e-4, atol=1e-5)


@every_network
def test_bfloat16_autocast_stays_close(name):
    model, inputs, _ = made(name)
    model.eval()
    # Without oneDNN: on some virtual machines it picks bfloat16 instructions the processor then refuses.
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
        logits = model(*inputs(2))
    torch.testing.assert_close(logits.float(), model(*inputs(2)), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("name", IMAGE_NETWORKS)
def test_body_gives_the_features_the_head_reads(name):
    model, inputs, _ = made(name)
    model.eval()
    torch.testing.assert_close(model.head(model.body(*inputs(2))), model(*inputs(2)))


@pytest.mark.parametrize("name", ["mnist_cnn", "cifar_cnn"])
def test_the_small_networks_have_per_example_gradients(name):
    model, inputs, outputs = made(name)
    assert not any("Norm" in type(module).__name__ for module in model.modules())
    assert_per_example_gradients(model.eval(), inputs, outputs)


def assert_per_example_gradients(model, inputs, outputs):
    parameters = dict(model.named_parameters())
    (batch,), targets = inputs(3), torch.arange(3) % outputs

    def loss(parameters, example, target):
        return cross_entropy(torch.func.functional_call(model, parameters, (example[None],)), target[None])

    rows = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, batch, targets)
    whole = torch.autograd.grad(cross_entropy(model(batch), targets), list(parameters.values()))
    for row, expected in zip(rows.values(), whole, strict=True):
        torch.testing.assert_close(row.mean(0), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", NORMALISED)
def test_group_norm_replaces_every_batch_norm_in_a_copy(name):
    model, inputs, outputs = made(name)
    kinds = [type(module) for module in model.modules()]
    changed = zoo.group_norm(model)
    assert [type(module) for module in model.modules()] == kinds
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in changed.modules())
    assert sum(isinstance(module, nn.GroupNorm) for module in changed.modules()) == kinds.count(nn.BatchNorm2d) > 0
    assert size(changed) == size(model)
    assert changed(*inputs(2)).shape == (2, outputs)
    assert {p.data_ptr() for p in changed.parameters()}.isdisjoint(p.data_ptr() for p in model.parameters())


def test_group_norm_gives_each_example_its_own_gradient():
    model, inputs, outputs = made("wide_resnet")
    assert_per_example_gradients(zoo.group_norm(model).eval(), inputs, outputs)


def test_group_norm_keeps_what_was_learned_and_what_is_shared():
    norm = nn.BatchNorm1d(12, eps=0.5)
    nn.init.constant_(norm.weight, 3.0)
    norm.weight.requires_grad_(False)
    changed = zoo.group_norm(nn.Sequential(norm, nn.ReLU(), norm, nn.BatchNorm2d(6, affine=False)).eval(), groups=4)
    assert changed[0] is changed[2]
    assert (changed[0].num_groups, changed[0].eps, changed[0].training) == (4, 0.5, False)
    assert changed[0].weight.eq(3).all()
    assert not changed[0].weight.requires_grad
    assert changed[3].weight is None
    assert changed[0](torch.randn(5, 12)).shape == (5, 12)


@pytest.mark.parametrize(
    ("channels", "groups", "expected"), [(64, 16, 16), (48, 32, 24), (16, 32, 8), (7, 4, 1), (1, 4, 1)]
)
def test_group_norm_divides_the_channels_and_leaves_two_in_a_group(channels, groups, expected):
    assert zoo.group_norm(nn.BatchNorm2d(channels), groups).num_groups == expected


def test_a_model_without_batch_norm_is_copied_as_it_is():
    model = zoo.linear_head(3, 2)
    copied = zoo.group_norm(model)
    assert copied is not model
    assert torch.equal(copied.weight, model.weight)


def test_ratings_come_as_two_columns_or_as_pairs():
    model, inputs, _ = made("collaborative_filter")
    users, items = inputs(9)
    assert torch.equal(model(users, items), model(torch.stack((users, items), dim=1)))
    with pytest.raises(ValueError, match="items is missing"):
        model(users)


def test_a_table_may_lack_numeric_columns_and_hidden_layers():
    assert zoo.attribution_network(0, (4,), 2)(torch.zeros(3, 0), torch.zeros(3, 1, dtype=torch.long)).shape == (3, 2)
    assert zoo.collaborative_filter(3, 3, hidden=())(torch.zeros(2, 2, dtype=torch.long)).shape == (2, 5)


def test_dropout_acts_in_training_only():
    for name in ("wide_resnet", "cifar_cnn"):
        model, inputs, _ = made(name)
        assert not torch.equal(model(*inputs(4)), model(*inputs(4)))
        model.eval()
        assert torch.equal(model(*inputs(4)), model(*inputs(4)))


@pytest.mark.parametrize("name", ["resnet18_v2", "mnist_cnn", "collaborative_filter", "attribution_network"])
def test_the_graph_has_no_breaks(name):
    model, inputs, _ = made(name)
    compiled = torch.compile(model.eval(), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*inputs(2)), model(*inputs(2)))


def test_linear_head_starts_at_zero():
    assert not any(parameter.any() for parameter in zoo.linear_head(4, 3).parameters())
    assert zoo.linear_head(4, 3, bias=False).bias is None


REFUSED = [
    ("num_classes", lambda: zoo.resnet18_v2(0)),
    ("num_classes", lambda: zoo.vgg16(True)),
    ("num_classes", lambda: zoo.mnist_cnn(2.0)),
    ("num_classes", lambda: zoo.attribution_network(1, (3,), -1)),
    ("channels", lambda: zoo.small_inception(10, channels=0)),
    ("channels", lambda: zoo.wide_resnet(10, depth=10, widen=1, channels="3")),
    ("width", lambda: zoo.resnet18_v2(10, width=0)),
    ("depth", lambda: zoo.wide_resnet(10, depth=27)),
    ("depth", lambda: zoo.wide_resnet(10, depth=4)),
    ("widen", lambda: zoo.wide_resnet(10, widen=0)),
    ("dropout", lambda: zoo.wide_resnet(10, depth=10, dropout=1.0)),
    ("dropout", lambda: zoo.cifar_cnn(dropout=float("nan"))),
    ("dropout", lambda: zoo.cifar_cnn(dropout=-0.1)),
    ("num_users", lambda: zoo.collaborative_filter(0, 5)),
    ("num_items", lambda: zoo.collaborative_filter(5, None)),
    ("num_outputs", lambda: zoo.collaborative_filter(5, 5, num_outputs=0)),
    ("dim", lambda: zoo.collaborative_filter(5, 5, dim=0)),
    ("hidden", lambda: zoo.collaborative_filter(5, 5, hidden=64)),
    ("hidden[1]", lambda: zoo.attribution_network(1, (3,), 2, hidden=(8, 0))),
    ("num_numeric", lambda: zoo.attribution_network(-1, (3,), 2)),
    ("cardinalities[0]", lambda: zoo.attribution_network(1, (0,), 2)),
    ("dim", lambda: zoo.linear_head(0, 2)),
    ("num_classes", lambda: zoo.linear_head(2, 0)),
    ("groups", lambda: zoo.group_norm(nn.BatchNorm2d(4), groups=0)),
]


@pytest.mark.parametrize(("argument", "call"), REFUSED)
def test_wrong_settings_are_refused_by_name(argument, call):
    with pytest.raises(ValueError, match=rf"^{re.escape(argument)} is .*; give"):
        call()


def test_the_exported_names_are_functions():
    assert sorted(zoo.__all__) == zoo.__all__
    assert set(zoo.__all__) == {*NETWORKS, "group_norm"}
