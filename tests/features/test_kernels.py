"""Random cosines: the kernel they approach, the length of both parts, and which columns are in it."""

import math

import pytest
import torch

from labeldp.features.extract import standardiser
from labeldp.features.kernels import Cosines, random_cosines

ROWS = torch.randn(3000, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 3.0, 0.5, 2.0])


def test_their_products_approach_a_gaussian_kernel_of_the_width_asked_for():
    width, some = 0.8, ROWS[:40]
    lift = random_cosines(ROWS, 40_000, width=width)
    waves = lift(some)[:, 4:] / lift.waves
    scaled = some / ROWS.std(dim=0, correction=0)
    pairs = torch.randint(len(ROWS), (2, 20_000), generator=torch.Generator().manual_seed(1))
    whole = ROWS / ROWS.std(dim=0, correction=0)
    median = float((whole[pairs[0]] - whole[pairs[1]]).norm(dim=1).median())
    expected = torch.exp(-0.5 * (torch.cdist(scaled, scaled) / (width * median)) ** 2)
    # The median is of 2,000 pairs, which moves the width by a per cent or two.
    assert float((2 * waves @ waves.T / 40_000 - expected).abs().max()) < 0.05


def test_both_parts_have_the_same_mean_square_length():
    plain, waves = random_cosines(ROWS, 300)(ROWS).var(dim=0, correction=0).split([4, 300])
    assert float(plain.sum()) == pytest.approx(1.0, rel=0.02)
    assert float(waves.sum()) == pytest.approx(1.0, rel=0.02)


def test_columns_that_are_left_out_do_not_turn_the_cosines():
    lift = random_cosines(ROWS, 50, columns=[0, 2])
    moved = ROWS.clone()
    moved[:, 1] += 5.0
    assert torch.equal(lift(ROWS)[:, 4:], lift(moved)[:, 4:])
    assert not torch.equal(lift(ROWS)[:, :4], lift(moved)[:, :4])
    moved[:, 2] += 5.0
    assert not torch.equal(lift(ROWS)[:, 4:], lift(moved)[:, 4:])


def test_a_public_seed_repeats_them_and_chunks_do_not_matter():
    first, again, other = (random_cosines(ROWS, 20, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first.turn, again.turn)
    assert not torch.equal(first.turn, other.turn)
    many = ROWS.repeat(4, 1)
    torch.testing.assert_close(first(many)[-3000:], first(ROWS))


def test_marks_and_constants_are_not_scaled():
    rows = torch.stack([torch.tensor([0.0, 1.0, 1.0, 0.0]), torch.full((4,), 7.0), torch.tensor([0.0, 2.0, 4.0, 6.0])])
    assert standardiser(rows.T).tolist() == pytest.approx([1.0, 1.0, 1 / math.sqrt(5)])
    assert Cosines(torch.zeros(3, 2), torch.zeros(2))(rows.T).shape == (4, 5)


@pytest.mark.parametrize(("change", "words"), [({"width": 0.0}, "width=0.0"), ({"count": 0}, "count")])
def test_what_makes_no_sense_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        random_cosines(ROWS, **{"count": 10, **change})
