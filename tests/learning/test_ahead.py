"""Views of several batches at once: every batch gets its own, and training is what it was."""

import pytest
import torch
from torch import Generator, nn

from labeldp.learning import train as ahead
from labeldp.learning.evidence import on_classes
from labeldp.learning.fixmatch import fixmatch
from labeldp.learning.mean_teacher import mean_teacher
from labeldp.learning.optimisers import constant, sgd
from labeldp.learning.train import Ahead, Batch, PausedError, fit
from tests.learning.semihelp import STRONG, WEAK, network, pictures
from tests.trained import weights

PLAIN = {"optimizer": sgd(0.01), "seed": 3}
SEMI = {**PLAIN, "schedule": constant(), "average": 0.9, "rows": torch.arange(40)}


@pytest.fixture
def three(monkeypatch):
    monkeypatch.setitem(ahead._BATCHES, "cpu", 3)


def by(train, weak=WEAK, strong=STRONG, **more):
    def run(model, **settings):
        images, classes = pictures(100)
        given = {**SEMI, "epochs": 3, "batch_size": 8, "weak": weak, "strong": strong, **more, **settings}
        return train(model, images, on_classes(classes), **given)

    return run


def plainly(model, augment=WEAK, **settings):
    images, classes = pictures(100)
    return fit(model, images, on_classes(classes), epochs=3, batch_size=8, augment=augment, **PLAIN, **settings)


TRAININGS = {"fit": plainly, "fixmatch": by(fixmatch, ratio=2), "mean teacher": by(mean_teacher)}


def numbered(number, order):
    """One of the batches of two of an epoch."""
    return Batch(order[2 * number : 2 * number + 2], order, number, number, len(order) // 2, Generator())


def unchanged(images, generator):
    return images


def test_seven_batches_are_made_in_three_goes(three):
    asked, order = [], torch.randperm(14)

    def make(rows, generator):
        asked.append(len(rows))
        return (10 * rows).split(2)

    made = Ahead(make, 2, torch.zeros(14, 5))
    for epoch in range(2):
        for batch in range(7):
            assert torch.equal(made(numbered(batch, order + epoch)), 10 * (order + epoch)[2 * batch : 2 * batch + 2])
    assert asked == 2 * [6, 6, 2]


def test_one_batch_at_a_time_on_a_cpu():
    made = Ahead(lambda rows, generator: rows.split(2), 2, torch.zeros(14, 5))
    assert made(numbered(3, torch.arange(8))).tolist() == [6, 7]


@pytest.mark.parametrize(("values", "asked"), [(59, [2, 2, 2]), (60, [4, 2]), (89, [4, 2]), (90, [6])])
def test_fewer_batches_where_rows_are_large(three, monkeypatch, values, asked):
    """Three batches of two rows of fifteen values are ninety."""
    monkeypatch.setattr(ahead, "_VALUES", values)
    found = []
    made = Ahead(lambda rows, generator: found.append(len(rows)) or rows.split(2), 2, torch.zeros(6, 3, 5))
    for batch in range(3):
        assert made(numbered(batch, torch.arange(6))).tolist() == [2 * batch, 2 * batch + 1]
    assert found == asked


def test_no_gradients_are_kept(three):
    made = Ahead(lambda rows, generator: [torch.ones(1, requires_grad=True) * 2], 4, torch.zeros(14, 5))
    assert not made(numbered(0, torch.arange(4))).requires_grad


def test_without_changes_the_model_is_the_same(monkeypatch):
    alone = plainly(network(), augment=None)
    monkeypatch.setitem(ahead._BATCHES, "cpu", 3)
    assert torch.equal(weights(alone), weights(plainly(network(), augment=None)))


@pytest.mark.parametrize("name", TRAININGS)
def test_a_seed_decides_it(name, three):
    first, second = (weights(TRAININGS[name](network())) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", ["fixmatch", "mean teacher"])
def test_a_paused_run_goes_on_as_if_it_had_not(name, three, tmp_path):
    train, kept = TRAININGS[name], tmp_path / "c.pt"
    for _ in range(2):
        with pytest.raises(PausedError):
            train(network(), checkpoint=kept, seconds=0.0)
    assert torch.equal(weights(train(network())), weights(train(network(9), checkpoint=kept)))


class Watched(nn.Module):
    """Remembers what it is shown while it is trained."""

    def __init__(self, seen):
        super().__init__()
        self.inner, self.seen = network(norm=False), seen

    def forward(self, images):
        if self.training:
            self.seen.append(images.detach())
        return self.inner(images)


def remembering(asked):
    """The usual objective, which notes the rows it is asked about."""

    def objective(logits, rows):
        asked.append(rows)
        return on_classes(pictures(100)[1])(logits, rows)

    return objective


def test_every_row_is_seen_once_an_epoch_and_a_labelled_row_with_its_own_label(three):
    """Six batches of 16 of the 100 rows are two goes of three."""
    seen, asked, images = [], [], pictures(100)[0]
    fixmatch(
        Watched(seen),
        images,
        remembering(asked),
        epochs=1,
        batch_size=8,
        ratio=2,
        weak=unchanged,
        strong=unchanged,
        **SEMI,
    )
    assert [len(batch) for batch in seen] == 6 * [8 + 16 + 16]
    for batch, rows in zip(seen, asked, strict=True):
        assert torch.equal(batch[:8], images[rows])
        assert torch.equal(batch[8:24], batch[24:])
    shown = torch.cat([batch[8:24] for batch in seen]).flatten(1)
    assert len(shown.unique(dim=0)) == 96


def test_the_mean_teacher_is_asked_about_the_rows_it_is_shown(three):
    seen, asked, images = [], [], pictures(100)[0]
    given = {**SEMI, "rows": None}
    mean_teacher(
        Watched(seen), images, remembering(asked), epochs=1, batch_size=16, weak=unchanged, strong=unchanged, **given
    )
    # The objective is asked twice for a step: for what it makes of the teacher's belief, and for the loss.
    for batch, rows in zip(seen, asked[::2], strict=True):
        assert torch.equal(batch, images[rows])
