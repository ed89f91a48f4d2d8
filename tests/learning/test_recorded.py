"""Recorded steps: the same losses and weights as plain ones, from memory that stays; a refusal is said and survived."""

import warnings

import pytest
import torch

from labeldp.features.contrastive import byol, simclr
from labeldp.learning import recorded, train
from labeldp.learning.evidence import on_classes
from labeldp.learning.fixmatch import SoftThreshold, fixmatch
from labeldp.learning.mean_teacher import mean_teacher
from labeldp.learning.optimisers import constant, sgd
from labeldp.learning.recorded import Recorded, Repeated
from labeldp.learning.train import fit, minimise
from labeldp.models.zoo import resnet18_v2
from tests.learning.semihelp import STRONG, WEAK, network, pictures
from tests.trained import weights

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SEMI = {"weak": WEAK, "strong": STRONG, "schedule": constant(), "average": 0.9, "rows": torch.arange(40)}


def plainly(report, **more):
    images, classes = pictures(100)
    given = {"epochs": 3, "batch_size": 16, "optimizer": sgd(0.05), "augment": WEAK, "average": 0.9, "seed": 3}
    return fit(network(), images, on_classes(classes), report=report, **given, **more)


def by(method, **settings):
    def run(report, **more):
        images, classes = pictures(100)
        given = {**SEMI, "epochs": 3, "batch_size": 8, "optimizer": sgd(0.05), "seed": 3, **settings}
        return method(network(), images, on_classes(classes), report=report, **given, **more)

    return run


def unsupervised(method):
    def run(report, **more):
        body, images = network()[:-1], pictures(40)[0]
        given = {"view": WEAK, "epochs": 3, "batch_size": 8, "seed": 3}
        return method(body, images, report=report, **given, **more).model

    return run


TRAININGS = {
    "fit": plainly, "fit with mixup": lambda report, **more: plainly(report, mixup=0.4, **more),
    "fixmatch": by(fixmatch, ratio=2, threshold=0.3, apart=True, prior=torch.full((3,), 1 / 3)),
    "softmatch": by(fixmatch, ratio=2, threshold=SoftThreshold()), "mean teacher": by(mean_teacher, ramp=0.5),
    "simclr": unsupervised(simclr), "byol": unsupervised(byol),
}  # fmt: skip


class Replayed(Recorded):
    """Records as a GPU does, but for the GPU: a replay runs the step on the recorded arguments."""

    def __init__(self, step, device):
        Repeated.__init__(self, step)
        self._calls, self._replay = 0, None

    def _plain(self):
        return self._step(*self._given)

    def _recording(self):
        assert self._calls == 4
        return lambda: self._step(*self._given)


@pytest.mark.parametrize("name", TRAININGS)
def test_recorded_and_plain_steps_give_the_same_losses(name, monkeypatch):
    monkeypatch.setattr(train, "repeated", Replayed)
    losses, made = {False: [], True: []}, {}
    for way, told in losses.items():
        made[way] = TRAININGS[name](lambda progress, told=told: told.append(progress.loss), recorded=way)
    assert losses[True] == losses[False]
    assert torch.equal(weights(made[True]), weights(made[False]))
    assert all(parameter.grad is None for parameter in made[True].parameters())


def test_a_step_reads_the_same_memory_each_time():
    places, step = set(), Repeated(lambda *given: places.add(tuple(x.data_ptr() for x in given)) or sum(given).sum())
    assert [step(torch.full((2,), float(x)), torch.ones(2)).item() for x in range(5)] == [2, 4, 6, 8, 10]
    assert len(places) == 1


def test_the_layout_of_arguments_stays():
    images = torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    seen = []
    Repeated(lambda given: seen.append(given.is_contiguous(memory_format=torch.channels_last)) or given.sum())(images)
    assert seen == [True]


def test_another_shape_is_refused():
    """A smaller one would be spread over the recorded memory without a word."""
    step = Repeated(lambda given: given.sum())
    step(torch.ones(4, 2))
    with pytest.raises(ValueError, match=r"shapes \[\(4, 2\)\] was given \[\(1, 2\)\]"):
        step(torch.ones(1, 2))


def test_what_cannot_be_recorded_is_taken_plainly_and_said():
    class Refused(Replayed):
        def _recording(self):
            raise RuntimeError("operation not permitted when stream is capturing\nand much more")

    step = Refused(lambda given: given.sum(), torch.device("cpu"))
    for _ in range(3):
        step(torch.ones(2))
    with pytest.warns(UserWarning, match="not recorded but launched one by one, slower: operation not permitted"):
        assert step(torch.full((2,), 3.0)).item() == 6
    assert step(torch.ones(2)).item() == 2


def test_a_loss_of_a_batch_cannot_be_recorded():
    model = network()
    with pytest.raises(ValueError, match="recorded"):
        minimise(
            model, lambda batch: 0, 4, epochs=1, batch_size=2, optimizer=sgd(0.1), schedule=constant(), recorded=True
        )


# -- on a GPU ---------------------------------------------------------------------------------------------------------


def on_gpu(method, way, compiled, told):
    """Twelve steps of ResNet-18 on a quarter of its channels, in full precision."""
    torch.manual_seed(0)
    images = torch.rand(512, 3, 32, 32).cuda().contiguous(memory_format=torch.channels_last)
    classes, model = torch.randint(10, (512,)).cuda(), resnet18_v2(10, width=16).cuda()
    given = {"epochs": 3, "optimizer": sgd(0.02), "seed": 1, "bf16": False, "average": 0.9, "compiled": compiled}
    given |= {"recorded": way, "report": lambda progress: told.append(progress.loss)}
    if method is fit:
        return fit(model, images, on_classes(classes), batch_size=128, mixup=0.4, **given)
    more = {"batch_size": 16, "ratio": 8, "apart": True, "threshold": 0.2, "prior": torch.full((10,), 0.1)}
    return fixmatch(model, images, on_classes(classes), schedule=constant(), **more, **given)


# Compilers warn of much that is no concern of ours; that steps are not recorded stays an error.
@needs_gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("method", [fit, fixmatch])
def test_recorded_steps_on_a_gpu(method, compiled, monkeypatch):
    """Recording is not refused, and gives the losses and weights of plain steps up to rounding."""
    made, recordings, record = [], [], recorded.Recorded._recording
    monkeypatch.setattr(recorded.Recorded, "_recording", lambda self: recordings.append(1) or record(self))
    losses = {False: [], True: []}
    for way, told in losses.items():
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="steps are not recorded")
            made.append(weights(on_gpu(method, way, compiled, told)))
    assert recordings == [1]
    assert losses[True] == pytest.approx(losses[False], rel=1e-4)
    assert torch.allclose(made[0], made[1], rtol=1e-2, atol=1e-3)
