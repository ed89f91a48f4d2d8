import pytest
import torch
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from labeldp.models.zoo import attribution_network


def rows(count, cardinalities, seed=0):
    chance = torch.Generator().manual_seed(seed)
    codes = [torch.randint(size, (count,), generator=chance) for size in cardinalities]
    return torch.randn(count, 1, generator=chance), torch.stack(codes, dim=1)


def test_columns_share_no_row_and_large_ones_are_hashed():
    model = attribution_network(1, (3, 5, 9), buckets=4, dim=2, hidden=())
    assert model.table.weight.shape == (3 + 4 + 4, 2)
    codes = torch.tensor([[2, 4, 8], [2, 0, 0], [2, 0, 1]])
    logits = model(torch.zeros(3, 1), codes)
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[1], logits[2])


def test_the_number_of_parameters_follows_the_buckets():
    model = attribution_network(1, (675, 57_196), buckets=1000, dim=8, hidden=(64, 32))
    assert sum(p.numel() for p in model.parameters()) == 1675 * 8 + (17 * 64 + 64) + (64 * 32 + 32) + (32 * 2 + 2)


def test_one_row_alone_gives_the_same_logits_and_gradient():
    sizes = (6, 20, 3)
    model = attribution_network(1, sizes, buckets=7, dim=3, hidden=(5,))
    numeric, codes = rows(8, sizes)
    labels = torch.arange(8) % 2
    together = model(numeric, codes)
    assert torch.allclose(together, torch.cat([model(numeric[i : i + 1], codes[i : i + 1]) for i in range(8)]))

    parameters = dict(model.named_parameters())

    def loss(parameters, x, c, y):
        return cross_entropy(functional_call(model, parameters, (x, c)), y)

    each = vmap(grad(loss), in_dims=(None, 0, 0, 0))(parameters, numeric, codes, labels)
    for row in range(8):
        model.zero_grad()
        cross_entropy(model(numeric[row : row + 1], codes[row : row + 1]), labels[row : row + 1]).backward()
        for name, parameter in model.named_parameters():
            assert torch.allclose(each[name][row], parameter.grad, atol=1e-6)


@pytest.mark.parametrize(
    ("what", "make"),
    [
        ("buckets", lambda: attribution_network(1, (3,), buckets=0)),
        ("cardinalities", lambda: attribution_network(1, ())),
        (r"cardinalities\[0\]", lambda: attribution_network(1, (0,))),
        ("num_numeric", lambda: attribution_network(-1, (3,))),
        ("num_classes", lambda: attribution_network(1, (3,), num_classes=0)),
        ("dim", lambda: attribution_network(1, (3,), dim=0)),
    ],
)
def test_senseless_settings_are_refused(what, make):
    with pytest.raises(ValueError, match=what):
        make()
