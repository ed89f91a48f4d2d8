"""Images per second of FixMatch and of co-refinement, against loops that change one image after the other.

The reference is what released code does: images changed one by one by an image library, sent to the device batch by
batch, the same network, batches and number of steps. Views alone are compared too, without a network. Images counted
are those that go through the network with a gradient, and for views those that come out. On a GPU alone, `layout` is
FixMatch with the weights channels last, as it lays them out there, against channels first, and `compiled` the same
training compiled against step by step.

    python benchmarks/semisupervised.py            # a small network on the CPU, ResNet-18 on a GPU
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from unittest import mock

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, one_hot

from benchmarks.timing import rates, show_rates
from labeldp.features.augment import strong_view, weak_view
from labeldp.learning import train as averaged
from labeldp.learning.dividemix import co_refine, two_gaussians
from labeldp.learning.evidence import Labels, from_classes, on_classes
from labeldp.learning.fixmatch import fixmatch
from labeldp.learning.optimisers import sgd, weights_sgd
from labeldp.models.zoo import cifar_cnn, resnet18_v2

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
ROWS, BATCH, RATIO, STEPS = (10_000, 64, 7, 20) if CUDA else (2_000, 16, 7, 2)
CONTESTS = ("views", "fixmatch", "co-refinement", "layout", "compiled")
OTHERS = {"layout": "channels first", "compiled": "step by step"}
DRAWS = np.random.default_rng(0)


def network(seed: int = 0) -> nn.Module:
    """A fresh one."""
    torch.manual_seed(seed)
    return (resnet18_v2(10) if CUDA else cifar_cnn(10)).to(DEVICE, memory_format=torch.channels_last)


# -- the reference: one image after the other --------------------------------------------------------------------


def _enhanced(kind: type) -> Callable[[Image.Image, float], Image.Image]:
    return lambda image, level: kind(image).enhance(0.05 + 0.9 * level)


def _moved(*coefficients: float, share: bool = False) -> Callable[[Image.Image, float], Image.Image]:
    def change(image: Image.Image, level: float) -> Image.Image:
        signed = random.choice((-1, 1)) * 0.3 * level * (image.width if share else 1)
        a, b, c, d, e, f = (base + slope * signed for base, slope in zip((1, 0, 0, 0, 1, 0), coefficients, strict=True))
        return image.transform(image.size, Image.Transform.AFFINE, (a, b, c, d, e, f))

    return change


CHANGES: list[Callable[[Image.Image, float], Image.Image]] = [
    lambda image, level: image,
    lambda image, level: ImageOps.autocontrast(image),
    lambda image, level: ImageOps.equalize(image),
    *(_enhanced(kind) for kind in (ImageEnhance.Brightness, ImageEnhance.Color, ImageEnhance.Contrast)),
    _enhanced(ImageEnhance.Sharpness),
    lambda image, level: ImageOps.posterize(image, 4 + int(4 * level)),
    lambda image, level: ImageOps.solarize(image, 256 - int(256 * level)),
    lambda image, level: image.rotate(random.choice((-1, 1)) * 30 * level),
    _moved(0, 1, 0, 0, 0, 0), _moved(0, 0, 0, 1, 0, 0), _moved(0, 0, 1, 0, 0, 0, share=True),
    _moved(0, 0, 0, 0, 0, 1, share=True),
]  # fmt: skip


def one_weak(pixels: np.ndarray) -> np.ndarray:
    """Mirror and crop of (H, W, C) bytes."""
    padded = np.pad(pixels, ((4, 4), (4, 4), (0, 0)), mode="reflect")
    top, left = random.randrange(9), random.randrange(9)
    cut = padded[top : top + 32, left : left + 32]
    return cut[:, ::-1] if random.random() < 0.5 else cut


def one_strong(pixels: np.ndarray) -> np.ndarray:
    """The weak view, two changes, a grey square."""
    image = Image.fromarray(np.ascontiguousarray(one_weak(pixels)))
    for change in random.choices(CHANGES, k=2):
        if random.random() < 0.5:
            image = change(image, random.randrange(1, 10) / 10)
    made = np.array(image)
    top, left = random.randrange(-8, 24), random.randrange(-8, 24)
    made[max(top, 0) : top + 16, max(left, 0) : left + 16] = 127
    return made


def one_by_one(change: Callable[[np.ndarray], np.ndarray], pixels: np.ndarray, rows: np.ndarray) -> Tensor:
    """A batch as a loader makes it."""
    made = np.stack([change(pixels[row]) for row in rows])
    return (torch.from_numpy(made).permute(0, 3, 1, 2).float() / 255).to(DEVICE, memory_format=torch.channels_last)


def mixed_precision() -> torch.autocast:
    """As ours."""
    return torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA)


def plain_fixmatch(pixels: np.ndarray, labels: Tensor) -> None:
    """The loop of the released code."""
    model, slow = network().train(), network()
    optimizer = weights_sgd(0.03)(model.parameters())
    for _ in range(STEPS):
        known, other = (DRAWS.integers(ROWS, size=size) for size in (BATCH, BATCH * RATIO))
        parts = (one_by_one(one_weak, pixels, known), one_by_one(one_weak, pixels, other))
        images = torch.cat((*parts, one_by_one(one_strong, pixels, other)))
        with mixed_precision():
            logits = model(images).float()
        seen, guess, aim = logits.split((BATCH, len(other), len(other)))
        confidence, target = torch.softmax(guess.detach(), dim=1).max(dim=1)
        unlabelled = ((confidence >= 0.95) * cross_entropy(aim, target, reduction="none")).mean()
        optimizer.zero_grad()
        (cross_entropy(seen, labels[torch.from_numpy(known).to(DEVICE)]) + unlabelled).backward()
        optimizer.step()
        with torch.no_grad():
            for mean, value in zip(slow.parameters(), model.parameters(), strict=True):
                mean.lerp_(value, 0.001)
    _wait()


def plain_two_networks(pixels: np.ndarray, labels: Labels) -> None:
    """An epoch of the released code: judge all rows, then so many steps of either network."""
    nets = [network(0), network(1)]
    makers = [sgd(0.02, nesterov=False)(net.parameters()) for net in nets]
    believed = [_judge(net, pixels, labels) for net in nets]
    for number, net in enumerate(nets):
        net.train()
        nets[1 - number].eval()
        for _ in range(STEPS):
            rows, other = (DRAWS.integers(ROWS, size=2 * BATCH) for _ in range(2))
            four = np.concatenate((rows, rows, other, other))
            with torch.no_grad(), mixed_precision():
                weak = one_by_one(one_weak, pixels, four)
                own, helper = (torch.softmax(each(weak).float(), dim=1) for each in (net, nets[1 - number]))
            sure = believed[1 - number][torch.from_numpy(rows).to(DEVICE)][:, None]
            guess = own[: len(rows)]
            aims = torch.cat((sure * labels.targets[torch.from_numpy(rows).to(DEVICE)] + (1 - sure) * guess,) * 2)
            aims = torch.cat((aims, (own + helper)[len(aims) :] / 2))
            order, share = torch.randperm(len(four), device=DEVICE), float(DRAWS.beta(4, 4))
            images = one_by_one(one_strong, pixels, four)
            images, aims = (share * part + (1 - share) * part[order] for part in (images, aims))
            with mixed_precision():
                logs = log_softmax(net(images).float(), dim=1)
            makers[number].zero_grad()
            (-(aims * logs).sum(dim=1).mean()).backward()
            makers[number].step()
    _wait()


def _judge(net: nn.Module, pixels: np.ndarray, labels: Labels) -> Tensor:
    net.eval()
    parts = []
    for rows in np.array_split(np.arange(ROWS), max(1, ROWS // 1000)):
        with torch.no_grad(), mixed_precision():
            logs = log_softmax(net(one_by_one(one_weak, pixels, rows)).float(), dim=1)
        parts.append(-(labels.targets[torch.from_numpy(rows).to(DEVICE)] * logs).sum(dim=1))
    losses = torch.cat(parts)
    return two_gaussians(losses).lower(losses)


def _wait() -> None:
    if CUDA:
        torch.cuda.synchronize()


# -- ours ------------------------------------------------------------------------------------------------------------


def our_fixmatch(images: Tensor, labels: Tensor) -> None:
    """As many steps: an epoch over so many rows."""
    some = images[: STEPS * BATCH * RATIO]
    fixmatch(network(), some, on_classes(labels), epochs=1, batch_size=BATCH, ratio=RATIO)
    _wait()


def laid_out(images: Tensor, labels: Tensor) -> None:
    """FixMatch as in our longest runs: 64 labelled and 512 other rows in a step, which are guessed apart."""
    model = network().to(memory_format=torch.contiguous_format)  # pyright: ignore[reportCallIssue]
    fixmatch(model, images, on_classes(labels), epochs=1, batch_size=BATCH, ratio=8, apart=True)
    _wait()


def channels_first(images: Tensor, labels: Tensor) -> None:
    """The same without laying anything out."""
    with mock.patch.object(averaged, "channels_last"):
        laid_out(images, labels)


def compiled(images: Tensor, labels: Tensor) -> None:
    """The same compiled, which the first call pays for."""
    fixmatch(network(), images, on_classes(labels), epochs=1, batch_size=BATCH, ratio=8, apart=True, compiled=True)
    _wait()


def our_two_networks(images: Tensor, labels: Labels) -> None:
    """One epoch without warming up: judge all rows, then as many steps."""
    settings = {"batch_size": 2 * BATCH, "steps": STEPS, "strong": strong_view()}
    co_refine(network(), images, labels, epochs=1, warmup=0, **settings)
    _wait()


def our_views(images: Tensor) -> None:
    """A weak and a strong view of BATCH · RATIO images, STEPS times."""
    generator, weak, strong = Generator(DEVICE).manual_seed(0), weak_view(), strong_view()
    for _ in range(STEPS):
        weak(images[: BATCH * RATIO], generator)
        strong(images[: BATCH * RATIO], generator)
    _wait()


def plain_views(pixels: np.ndarray) -> None:
    """The same, one by one."""
    for _ in range(STEPS):
        one_by_one(one_weak, pixels, np.arange(BATCH * RATIO))
        one_by_one(one_strong, pixels, np.arange(BATCH * RATIO))
    _wait()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contests", nargs="*", metavar="CONTEST", help=f"of {', '.join(CONTESTS)}; all when none")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    strange = set(given.contests) - set(CONTESTS)
    if strange:
        parser.error(f"{', '.join(sorted(strange))}: give some of {', '.join(CONTESTS)}")
    if not CUDA and (odd := OTHERS.keys() & set(given.contests)):
        parser.error(f"{', '.join(sorted(odd))}: for a GPU, and there is none here")
    return given


def main() -> None:
    """Alternate ours and the reference."""
    if not CUDA:
        torch.set_num_threads(1)
    given = _arguments()
    images = torch.rand(ROWS, 3, 32, 32).to(DEVICE, memory_format=torch.channels_last)
    pixels = (images.permute(0, 2, 3, 1) * 255).byte().cpu().numpy()
    classes = torch.randint(10, (ROWS,), device=DEVICE)
    labels = Labels(one_hot(classes, 10).float(), from_classes(classes, 10, DEVICE).weights)
    contests: dict[str, tuple[Callable[[], None], Callable[[], None], int]] = {
        "views": (lambda: our_views(images), lambda: plain_views(pixels), 2 * STEPS * BATCH * RATIO),
        "fixmatch": (
            lambda: our_fixmatch(images, classes), lambda: plain_fixmatch(pixels, classes),
            STEPS * BATCH * (1 + 2 * RATIO),
        ),
        "co-refinement": (
            lambda: our_two_networks(images, labels), lambda: plain_two_networks(pixels, labels), 16 * STEPS * BATCH,
        ),
        "layout": (
            lambda: laid_out(images, classes), lambda: channels_first(images, classes), ROWS // (8 * BATCH) * 9 * BATCH,
        ),
        "compiled": (
            lambda: compiled(images, classes), lambda: laid_out(images, classes), ROWS // (8 * BATCH) * 9 * BATCH,
        ),
    }  # fmt: skip
    for name, (ours, plain, amount) in contests.items():
        if (given.contests and name not in given.contests) or (name in OTHERS and not CUDA):
            continue
        ours()  # first touch of memory and kernels
        other = OTHERS.get(name, "one by one")
        found = rates({"ours": ours, other: plain}, amount=amount, repeats=3)
        print(f"{name}, {DEVICE.type}")
        show_rates(found, "images/s", given.json, benchmark=f"semisupervised {name}", device=DEVICE.type)


if __name__ == "__main__":
    main()
