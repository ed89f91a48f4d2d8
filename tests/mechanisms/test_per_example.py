"""Per-example gradients against a loop over single examples, for every layer of the zoo, by every way of computing."""

import warnings
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy as torch_cross_entropy

from labeldp.mechanisms.gradients import layers
from labeldp.mechanisms.gradients.layers import ALONE, DIRECT, cross_entropy, full_precision, pieces, table
from labeldp.mechanisms.gradients.per_example import (
    bounded_sum,
    clip_factors,
    clipped_sum,
    gradients,
    load_parameter_vector,
    parameter_vector,
    refuse_batch_norm,
)
from labeldp.mechanisms.gradients.plans import plan_for
from labeldp.models.zoo import (
    attribution_network,
    cifar_cnn,
    collaborative_filter,
    group_norm,
    linear_head,
    mnist_cnn,
    resnet18_v2,
    small_inception,
    wide_resnet,
)


def images(rows, channels, size):
    return (torch.randn(rows, channels, size, size, dtype=torch.float64),)


def codes(rows, *sizes):
    return torch.stack([torch.randint(size, (rows,)) for size in sizes], dim=1)


def numbers(rows, columns):
    return torch.randn(rows, columns, dtype=torch.float64)


class Sequence(nn.Module):
    """Attention, depthwise and one-dimensional convolutions, layer norm: layers that are not read layer by layer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 8, padding_idx=0)
        self.across = nn.Conv1d(8, 8, 3, padding=1, groups=8)
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        values = self.norm(self.across(self.embedding(tokens).mT).mT)
        return self.head(self.attention(values, values, values)[0].mean(1))


ZOO = {
    "mnist_cnn": (mnist_cnn, lambda rows: images(rows, 1, 28)),
    "cifar_cnn": (partial(cifar_cnn, dropout=0.0), lambda rows: images(rows, 3, 32)),
    "resnet18_v2": (lambda: group_norm(resnet18_v2(10, width=4)), lambda rows: images(rows, 3, 16)),
    "wide_resnet": (lambda: group_norm(wide_resnet(10, depth=10, widen=1)), lambda rows: images(rows, 3, 12)),
    "frozen batch norm": (lambda: wide_resnet(10, depth=10, widen=1).eval(), lambda rows: images(rows, 3, 12)),
    "small_inception": (lambda: group_norm(small_inception(10)), lambda rows: images(rows, 1, 8)),
    "collaborative_filter": (partial(collaborative_filter, 9, 5), lambda rows: tuple(codes(rows, 9, 5).unbind(1))),
    "pairs": (partial(collaborative_filter, 9, 5, hidden=()), lambda rows: (codes(rows, 9, 5),)),
    "attribution": (
        partial(attribution_network, 2, (5, 9, 3), 3, buckets=4),
        lambda rows: (numbers(rows, 2), codes(rows, 5, 9, 3)),
    ),
    "linear_head": (partial(linear_head, 6, 4), lambda rows: (numbers(rows, 6),)),
    "no bias": (partial(linear_head, 6, 4, bias=False), lambda rows: (numbers(rows, 6),)),
    "sequence": (Sequence, lambda rows: (codes(rows, 7, 7, 7, 7, 7),)),
}
# The largest network takes as long as all others together.
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name == "small_inception" else name for name in ZOO]


def made(name, rows=5):
    torch.manual_seed(len(name))
    make, inputs = ZOO[name]
    model = make().double()
    labels = torch.arange(rows) % 3
    return model, inputs(rows), labels


def looped(model, loss, columns, labels):
    """Each row through plain autograd by itself, (b, P)."""
    found = []
    for row in range(len(labels)):
        own = [value for value in model.parameters() if value.requires_grad]
        value = loss(model(*(column[row : row + 1] for column in columns)), labels[row : row + 1]).sum()
        parts = torch.autograd.grad(value, own, allow_unused=True, materialize_grads=True)
        found.append(torch.cat([part.reshape(-1) for part in parts]))
    return torch.stack(found)


def clipped(gradient, clip):
    return (gradient * (clip / gradient.norm(dim=1, keepdim=True)).clamp(max=1.0)).sum(0)


def close(found, expected, rtol=1e-9):
    scale = expected.abs().max().clamp(min=1e-30)
    torch.testing.assert_close(found / scale, expected / scale, atol=rtol, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_a_loop(name):
    model, columns, labels = made(name)
    expected = looped(model, cross_entropy, columns, labels)
    close(gradients(model, cross_entropy, columns, labels), expected)
    close(gradients(model, cross_entropy, columns, labels, chunk=2), expected)


@pytest.mark.parametrize("name", NAMES)
def test_clipped_sums_are_those_of_a_loop(name):
    model, columns, labels = made(name)
    expected = looped(model, cross_entropy, columns, labels)
    clip = expected.norm(dim=1).median().item()
    found = clipped_sum(model, cross_entropy, columns, labels, clip=clip)
    close(found, clipped(expected, clip), rtol=1e-3)
    assert found.dtype == torch.float64


@pytest.mark.parametrize("name", NAMES)
def test_candidates_have_the_inner_products_of_a_loop(name):
    model, columns, labels = made(name, rows=3)
    expected = torch.stack([looped(model, cross_entropy, columns, labels * 0 + k) for k in range(3)], dim=1)

    def factors(gram, errors):
        close(gram, expected @ expected.mT)
        assert (errors >= 2.0**-20 * expected.square().sum(2) * (1 - 1e-3)).all()
        return torch.tensor([[0.5, 2.0, 3.0]], dtype=torch.float64).expand(len(gram), 3)

    found = bounded_sum(model, cross_entropy, columns, labels, factors, num_classes=3, chunk=3)
    close(found, 0.5 * expected[0, 0] + 2 * expected[1, 1] + 3 * expected[2, 2])


# -- random layers -------------------------------------------------------------------------------------------


@st.composite
def convolutions(draw):
    """A convolution with any stride, padding and dilation, and images of either memory layout."""
    small = st.integers(1, 3)
    kernel, stride, dilation = (tuple(draw(st.tuples(small, small))) for _ in range(3))
    padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    before, after, size = draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(7, 11))
    layer = nn.Conv2d(before, after, kernel, stride, padding, dilation, bias=draw(st.booleans()))
    layout = draw(st.sampled_from([torch.contiguous_format, torch.channels_last]))
    return layer, torch.randn(3, before, size, size + 1).double().contiguous(memory_format=layout)


@given(case=convolutions(), candidates=st.booleans(), seed=st.integers(0, 2**31))
@settings(max_examples=60)
def test_any_convolution(case, candidates, seed):
    torch.manual_seed(seed)
    layer, pictures = case
    model = nn.Sequential(layer, nn.Tanh(), nn.AdaptiveAvgPool2d((2, 2)), nn.Flatten(), nn.LazyLinear(3)).double()
    model(pictures)
    check_both_ways(model, (pictures,), 3 if candidates else None)


@given(
    places=st.integers(1, 6), before=st.integers(1, 12), after=st.integers(1, 12), seed=st.integers(0, 2**31),
    candidates=st.booleans(),
)  # fmt: skip
@settings(max_examples=60)
def test_a_layer_used_at_many_places(places, before, after, seed, candidates):
    """Few places and wide layers do without the table, many places and narrow ones make it."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(before, after), nn.GELU(), nn.Flatten(), nn.Linear(places * after, 3)).double()
    check_both_ways(model, (torch.randn(3, places, before).double(),), 3 if candidates else None)


@given(
    entries=st.integers(1, 5), places=st.integers(1, 6), padded=st.booleans(), seed=st.integers(0, 2**31),
    candidates=st.booleans(),
)  # fmt: skip
@settings(max_examples=40)
def test_an_embedding_that_looks_up_the_same_entry_twice(entries, places, padded, seed, candidates):
    torch.manual_seed(seed)
    table_ = nn.Embedding(entries, 4, padding_idx=0 if padded else None)
    model = nn.Sequential(table_, nn.Tanh(), nn.Flatten(), nn.Linear(4 * places, 3)).double()
    check_both_ways(model, (torch.randint(entries, (3, places)),), 3 if candidates else None)


def check_both_ways(model, columns, num_classes):
    """Layer by layer on the batch, layer by layer row by row, and directly: all equal to the loop."""
    labels = torch.tensor([0, 2, 1])
    every = labels[:, None] if num_classes is None else torch.arange(3).expand(3, 3)
    expected = torch.stack([looped(model, cross_entropy, columns, every[:, k]) for k in range(every.shape[1])], dim=1)
    trained = {name: value.detach() for name, value in model.named_parameters()}
    plan = plan_for(model, cross_entropy, columns, trained)
    assert plan.chain
    for way in (plan, layers.Plan(plan.outputs), DIRECT):
        found = pieces(way, model, cross_entropy, columns, every, trained)
        close(table(found, trained), expected)
        close(sum(piece.term.measured()[0] for piece in found), expected.double() @ expected.double().mT)
        sums = {p.name: p.arranged(p.term.pick(every.argmax(1) * 0).weighted(torch.arange(3.0))) for p in found}
        close(torch.cat([sums[name] for name in trained]), expected[1, 0] + 2 * expected[2, 0])


# -- which way is taken --------------------------------------------------------------------------------------


def plan_of(model, *columns):
    return plan_for(model, cross_entropy, columns, {n: v.detach() for n, v in model.named_parameters()})


def test_the_small_networks_of_the_papers_run_as_chains():
    assert len(plan_of(mnist_cnn(), torch.randn(2, 1, 28, 28)).outputs) == 4
    assert plan_of(mnist_cnn(), torch.randn(2, 1, 28, 28)).chain[0] == "body.0"
    assert plan_of(cifar_cnn(), torch.randn(2, 3, 32, 32)).chain


class Mixing(nn.Module):
    """Takes the mean over the batch: no chain, and each row must run alone."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, values):
        return self.layer(values - 0.5 * values.mean(0))


def test_rows_cannot_touch_each_other():
    torch.manual_seed(0)
    model, values, labels = Mixing(), torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    assert not plan_of(model, values).chain
    alone = torch.cat([gradients(model, cross_entropy, values[i : i + 1], labels[i : i + 1]) for i in range(4)])
    torch.testing.assert_close(gradients(model, cross_entropy, values, labels), alone)


@pytest.mark.parametrize("make", [lambda: nn.Linear(3, 3), Mixing], ids=["chain", "rows"])
def test_a_loss_that_looks_at_other_rows_sees_none(make):
    def mixing(logits, labels):
        return torch_cross_entropy(logits, labels, reduction="none") * labels.float().mean()

    torch.manual_seed(0)
    model, values, labels = make(), torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    alone = torch.cat([gradients(model, mixing, values[i : i + 1], labels[i : i + 1]) for i in range(4)])
    torch.testing.assert_close(gradients(model, mixing, values, labels), alone)
    assert gradients(model, mixing, values, labels)[0].abs().max() == 0


class Tied(nn.Module):
    """The embedding's weight is used a second time, outside its layer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(4, 3)

    def forward(self, index):
        return self.embedding(index) @ self.embedding.weight.mT


class Twice(nn.Module):
    """One layer is called twice."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(3, 3), nn.Linear(3, 4)

    def forward(self, values):
        return self.head(self.layer(self.layer(values).tanh()))


class Overwritten(nn.Module):
    """What went into a layer is changed in place afterwards."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(3, 3), nn.Linear(3, 4)

    def forward(self, values):
        start = values * 1.0
        found = self.layer(start)
        start.mul_(2.0)
        return self.head(found)


class Deciding(nn.Module):
    """What is computed depends on the data: no batch of rows can do that together."""

    def __init__(self):
        super().__init__()
        self.layer, self.gates = nn.Linear(3, 4), nn.GRU(4, 4, batch_first=True)

    def forward(self, values):
        found = self.layer(values)
        return self.gates(found[:, None])[0][:, 0] if values.sum() > 0 else found


@pytest.mark.parametrize("num_classes", [None, 4])
def test_models_that_decide_by_the_data_run_row_by_row(num_classes):
    torch.manual_seed(0)
    model, values, labels = Deciding().double(), torch.randn(6, 3).double(), torch.tensor([0, 1, 3, 2, 1, 0])
    assert len({bool(row.sum() > 0) for row in values}) == 2
    assert plan_of(model, values) is ALONE
    expected = looped(model, cross_entropy, (values,), labels)
    close(gradients(model, cross_entropy, values, labels), expected)
    factors = {"factors": lambda gram, errors: torch.ones_like(errors), "num_classes": num_classes}
    close(bounded_sum(model, cross_entropy, values, labels, **factors), expected.sum(0))
    values[2] = float("nan")
    good = torch.tensor([0, 1, 3, 4, 5])
    rest = clipped_sum(model, cross_entropy, values[good], labels[good], clip=0.1)
    close(clipped_sum(model, cross_entropy, values, labels, clip=0.1), rest, rtol=1e-4)


def test_a_loss_that_decides_by_the_label_is_taken_row_by_row():
    def deciding(logits, labels):
        return cross_entropy(logits, labels) * (2.0 if int(labels[0]) == 1 else 1.0)

    torch.manual_seed(0)
    model, values, labels = nn.Linear(3, 3).double(), torch.randn(4, 3).double(), torch.tensor([0, 1, 2, 1])
    close(gradients(model, deciding, values, labels), looped(model, deciding, (values,), labels))


@pytest.mark.parametrize("make", [Tied, Twice], ids=lambda make: make.__name__)
def test_weights_used_twice_count_twice(make):
    torch.manual_seed(0)
    model = make().double()
    columns = (torch.tensor([0, 3, 3]),) if make is Tied else (torch.randn(3, 3).double(),)
    labels = torch.tensor([0, 1, 3])
    close(gradients(model, cross_entropy, columns, labels), looped(model, cross_entropy, columns, labels))


def test_a_plan_that_gives_other_gradients_is_dropped():
    assert plan_of(Tied(), torch.tensor([0, 3])) is DIRECT
    assert set(plan_of(Twice(), torch.randn(2, 3)).outputs) == {"head"}
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(Overwritten(), cross_entropy, torch.randn(2, 3), torch.tensor([0, 1]))


def test_layers_with_hooks_or_in_place_functions_are_no_chain():
    hooked = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    hooked[0].register_forward_hook(lambda layer, seen, found: found * 2)
    assert not plan_of(hooked, torch.randn(2, 3)).chain
    assert "0" not in plan_of(hooked, torch.randn(2, 3)).outputs
    assert not plan_of(nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True)), torch.randn(2, 3)).chain


def test_a_plan_follows_the_model():
    model, values = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)), torch.randn(2, 3)
    assert set(plan_of(model, values).outputs) == {"0", "2"}
    model[2] = nn.Linear(4, 5)
    assert plan_of(model, values).outputs["2"] == (1, 5)
    model[0].requires_grad_(False)
    trained = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    assert set(plan_for(model, cross_entropy, (values,), trained).outputs) == {"2"}


def test_frozen_parameters_have_no_gradient():
    model, columns, labels = made("cifar_cnn", rows=3)
    model.body[0].requires_grad_(False)
    model.body[4].bias.requires_grad_(False)
    expected = looped(model, cross_entropy, columns, labels)
    assert expected.shape == (3, 135_098 - 896 - 64)
    close(gradients(model, cross_entropy, columns, labels), expected)


# -- sizes, precision, numbers that are none -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["mnist_cnn", "attribution"])
def test_no_rows(name):
    model, columns, labels = made(name)
    none = tuple(column[:0] for column in columns)
    size = len(parameter_vector(model))
    assert gradients(model, cross_entropy, none, labels[:0]).shape == (0, size)
    assert clipped_sum(model, cross_entropy, none, labels[:0], clip=1.0).tolist() == [0.0] * size


@given(chunk=st.integers(1, 9))
@settings(max_examples=9)
def test_chunks_change_nothing(chunk):
    model, columns, labels = made("mnist_cnn", rows=7)
    whole = clipped_sum(model, cross_entropy, columns, labels, clip=0.3, chunk=7)
    close(clipped_sum(model, cross_entropy, columns, labels, clip=0.3, chunk=chunk), whole)


@pytest.mark.parametrize("make", [lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3)), Mixing])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3e38])
def test_a_gradient_that_is_not_finite_counts_as_zero(make, bad):
    torch.manual_seed(0)
    model, values, labels = make(), torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    values[1, 2] = bad
    good = torch.tensor([0, 2, 3])
    rest = clipped_sum(model, cross_entropy, values[good], labels[good], clip=0.5)
    assert torch.isfinite(rest).all()
    close(clipped_sum(model, cross_entropy, values, labels, clip=0.5), rest, rtol=1e-4)


NETWORKS = {
    "chain": lambda: nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(80, 9), nn.Linear(9, 4)),
    "rows": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(True), nn.Flatten(), nn.Linear(64, 4)
    ),
    "wide": lambda: nn.Sequential(nn.Flatten(), nn.Linear(72, 300), nn.ReLU(), nn.Linear(300, 4)),
}


@given(
    network=st.sampled_from(sorted(NETWORKS)), size=st.floats(-5, 5), clip=st.floats(-5, 5),
    label=st.integers(0, 3), seed=st.integers(0, 2**31),
)  # fmt: skip
@settings(max_examples=150)
def test_no_row_exceeds_the_clip_in_floating_point(network, size, clip, label, seed):
    """The norm of what a row adds, computed in float64 from the float32 numbers, is at most the clip. No tolerance."""
    torch.manual_seed(seed)
    model = NETWORKS[network]()
    image = torch.randn(1, 2, 6, 6) * 10**size
    added = clipped_sum(model, cross_entropy, image, torch.tensor([label]), clip=10**clip).double()
    assert added.norm().item() <= 10**clip
    full = gradients(model, cross_entropy, image, torch.tensor([label])).double().norm().item()
    assert added.norm().item() >= min(10**clip, full) * (1 - 2e-3)


@given(norm=st.floats(0, 1e30), clip=st.floats(1e-10, 1e10))
def test_clip_factors(norm, clip):
    factor = clip_factors(torch.tensor([norm], dtype=torch.float64), clip).item()
    assert factor * norm <= clip
    assert factor <= 1
    assert clip_factors(torch.tensor([float("nan"), float("inf")]), clip).tolist() == [0.0, 0.0]


def test_sums_of_many_squares_keep_their_precision():
    """Twenty million equal terms, where a running sum in float32 stops growing at 2^24."""
    from labeldp.mechanisms.gradients.terms import norms

    many = torch.ones(20_000_000)
    assert norms(many[None]).item() == pytest.approx(many.numel() ** 0.5, rel=2.0**-12)


@pytest.fixture
def no_onednn():
    """Its bfloat16 kernels refuse to run on some virtual machines."""
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(True)


@pytest.mark.usefixtures("no_onednn")
def test_bfloat16_forward_keeps_the_bound():
    torch.manual_seed(0)
    model, pictures, labels = mnist_cnn(), torch.randn(8, 1, 28, 28), torch.arange(8)
    exact = clipped_sum(model, cross_entropy, pictures, labels, clip=0.5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = clipped_sum(model, cross_entropy, pictures, labels, clip=0.5)
        for row in range(8):
            one = clipped_sum(model, cross_entropy, pictures[row : row + 1], labels[row : row + 1], clip=0.5)
            assert one.double().norm() <= 0.5
    assert rough.dtype == torch.float64
    assert 1e-5 < (rough - exact).norm() / exact.norm() < 0.1


def test_the_callers_matrix_precision_is_put_back():
    try:
        torch.set_float32_matmul_precision("high")
        with full_precision():
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_dropout_has_one_mask_for_all_candidates_of_a_row():
    torch.manual_seed(0)
    model, values = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3)), torch.randn(1, 4).expand(6, 4)
    trained = {name: value.detach() for name, value in model.named_parameters()}
    plan = plan_of(model, values)
    for way in (plan, layers.Plan(plan.outputs), DIRECT):
        found = table(pieces(way, model, cross_entropy, (values,), torch.arange(3).expand(6, 3), trained), trained)
        dropped = found[:, :, 200 + 50 : 200 + 100] == 0  # the head's first row: the hidden units
        assert torch.equal(dropped[:, 0], dropped[:, 1])
        assert not torch.equal(dropped[0], dropped[1])


# -- batch norm, vectors -------------------------------------------------------------------------------------


def test_batch_norm_in_training_is_refused_with_the_remedy():
    model = wide_resnet(10, depth=10, widen=1)
    with pytest.raises(ValueError, match=r"body.1.norm1 is a BatchNorm2d in training mode.*group_norm.*eval"):
        refuse_batch_norm(model)
    with pytest.raises(ValueError, match="BatchNorm2d"):
        clipped_sum(model, cross_entropy, torch.randn(2, 3, 12, 12), torch.tensor([0, 1]), clip=1.0)
    refuse_batch_norm(model.eval())
    refuse_batch_norm(group_norm(model).train())


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(3, track_running_stats=False).eval(),
        nn.SyncBatchNorm(3),
        nn.InstanceNorm2d(3, track_running_stats=True),
    ],
)
def test_other_layers_that_look_at_the_batch_are_refused(layer):
    with pytest.raises(ValueError, match="mixes the rows"):
        refuse_batch_norm(layer)


def test_parameter_vectors_go_back_and_forth():
    model = mnist_cnn()
    model.body[0].requires_grad_(False)
    vector = parameter_vector(model)
    assert vector.shape == (9_066 - 160,)
    load_parameter_vector(model, vector * 2)
    torch.testing.assert_close(parameter_vector(model), vector * 2)
    with pytest.raises(ValueError, match="8906 trainable"):
        load_parameter_vector(model, vector[1:])


def test_a_warning_made_an_error_does_not_choose_the_slow_way() -> None:
    class Warns(nn.ReLU):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            warnings.warn("about nothing", UserWarning, stacklevel=2)
            return super().forward(input)

    model = nn.Sequential(nn.Linear(3, 4), Warns(), nn.Linear(4, 2))
    columns = (torch.randn(4, 3),)
    assert not plan_for(model, cross_entropy, columns, {n: v.detach() for n, v in model.named_parameters()}).alone
