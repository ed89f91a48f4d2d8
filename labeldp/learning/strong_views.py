"""Strong changes of images: every image its own kind and amount of change, the whole batch at once, on the device.

Images are floats (n, C, H, W) in [0, 1]. All randomness is from the generator, as in `labeldp.learning.augment`; the
changes themselves are in `labeldp.learning.image_changes`. For networks that want scaled images, wrap a view: `scaled`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Generator, Tensor

from labeldp.learning.augment import Augment, compose, cutout, random_crop, random_flip
from labeldp.learning.image_changes import KINDS, NUMBER, changed
from labeldp.models.shared import checked_count

_FACTORS = ("brightness", "contrast", "colour", "sharpness")

# The amount of a kind at level l in [0, 1] is base + slope · l; `signed` says whether the slope has a random sign.
Amounts = Mapping[str, tuple[float, float, bool]]
_COMMON: Amounts = {
    **dict.fromkeys(("nothing", "autocontrast", "equalise"), (0, 0, False)),
    "rotate": (0, 30, True), "shear_x": (0, 0.3, True), "shear_y": (0, 0.3, True),
}  # fmt: skip
# As in the published FixMatch: factors below 1 only, and no negatives.
RANDOM: Amounts = {
    **_COMMON, **dict.fromkeys(_FACTORS, (0.05, 0.9, False)), "posterise": (4, 4, False),
    "solarise": (256 / 255, -256 / 255, False), **dict.fromkeys(("translate_x", "translate_y"), (0, 0.3, True)),
}  # fmt: skip
# As in AutoAugment; 8.5 − 4l, rounded down, are the bits that stay.
LEARNED: Amounts = {
    **_COMMON, **dict.fromkeys(_FACTORS, (1, 0.9, True)), "posterise": (8.5, -4, False), "invert": (0, 0, False),
    "solarise": (1, -1, False), **dict.fromkeys(("translate_x", "translate_y"), (0, 150 / 331, True)),
}  # fmt: skip
# Kind, chance and level in ninths of two changes, one pair to a line: the policy learnt on CIFAR-10.
POLICY = """
invert .1 0 contrast .2 6
rotate .7 2 translate_x .3 9
sharpness .8 1 sharpness .9 3
shear_y .5 8 translate_y .7 9
autocontrast .5 0 equalise .9 0
shear_y .2 7 posterise .3 7
colour .4 3 brightness .6 7
sharpness .3 9 brightness .7 9
equalise .6 0 equalise .5 0
contrast .6 7 sharpness .6 5
colour .7 7 translate_x .5 8
equalise .3 0 autocontrast .4 0
translate_y .4 3 sharpness .2 6
brightness .9 6 colour .2 8
solarise .5 2 invert .0 0
equalise .2 0 autocontrast .6 0
equalise .2 0 equalise .6 0
colour .9 9 equalise .6 0
autocontrast .8 0 solarise .2 8
brightness .1 3 colour .7 0
solarise .4 5 autocontrast .9 0
translate_y .9 9 translate_y .7 9
autocontrast .9 0 solarise .8 3
equalise .8 0 invert .1 0
translate_y .7 9 autocontrast .9 0
"""


def weak_view(padding: int = 4, flip: bool = True) -> Augment:
    """Mirror, and a crop moved by up to `padding` pixels, reflected at the border."""
    crop = random_crop(padding, mode="reflect")
    return compose(random_flip(), crop) if flip else crop


def strong_view(padding: int = 4, flip: bool = True, changes: int = 2, cut: int = 16) -> Augment:
    """FixMatch's (Sohn et al. 2020): the weak view, `random_changes`, and a grey square of side `cut`."""
    return compose(weak_view(padding, flip), random_changes(changes), cutout(cut, fill=0.5))


def learned_view(padding: int = 4, flip: bool = True) -> Augment:
    """AugDescent's (Nishi et al. 2021): the weak view and `learned_changes`."""
    return compose(weak_view(padding, flip), learned_changes())


def scaled(view: Augment, mean: tuple[float, ...], spread: tuple[float, ...]) -> Augment:
    """The view for images that are kept scaled, (x − mean)/spread per channel: unscaled, changed, scaled again.

    Args:
        view: a view of images in [0, 1].
        mean, spread: one number per channel, of images in [0, 1].
    """
    constants = _sent(torch.tensor((mean, spread))[..., None, None])

    def augment(images: Tensor, generator: Generator) -> Tensor:
        middle, width = constants(images.device)
        pixels = (images.float() * width + middle).clamp_(0, 1)
        return ((view(pixels, generator) - middle) / width).to(images.dtype)

    return augment


def random_changes(changes: int = 2, levels: int = 10, chance: float = 0.5, fill: float = 0.5) -> Augment:
    """RandAugment with random levels (Cubuk et al. 2020), in the form it has in FixMatch (Sohn et al. 2020).

    `changes` times each image draws one of fourteen kinds and a level of 1 … levels − 1 tenths, and makes that change
    with this chance.
    """
    checked_count("changes", changes)
    if not 2 <= checked_count("levels", levels) <= 11 or not 0 <= chance <= 1:
        raise ValueError(f"levels={levels}, chance={chance}: give 2 to 11 levels and a chance from 0 to 1")
    numbers, amounts = _sent(torch.tensor([NUMBER[kind] for kind in RANDOM])), _sent(_amount_table(RANDOM))

    def augment(images: Tensor, generator: Generator) -> Tensor:
        known, table, n = numbers(images.device), amounts(images.device), len(images)
        for _ in range(changes):
            kinds = known[_integers(0, len(known), n, generator)]
            kinds = torch.where(_uniform(n, generator) < chance, kinds, 0)
            images = changed(
                images, kinds, _drawn(table, kinds, _integers(1, levels, n, generator) / 10, generator), fill
            )
        return images

    return augment


def learned_changes(fill: float = 0.5) -> Augment:
    """AutoAugment's policy for CIFAR-10 (Cubuk et al. 2019): one of 25 pairs of changes, each with its own chance."""
    policy, amounts = _sent(_policy_table()), _sent(_amount_table(LEARNED))

    def augment(images: Tensor, generator: Generator) -> Tensor:
        pairs, table, n = policy(images.device), amounts(images.device), len(images)
        drawn = pairs[_integers(0, len(pairs), n, generator)]
        for half in (0, 1):
            kinds, chance, level = drawn[:, half].unbind(dim=1)
            kinds = torch.where(_uniform(n, generator) < chance, kinds, 0).long()
            images = changed(images, kinds, _drawn(table, kinds, level / 9, generator), fill)
        return images

    return augment


# -- drawing -----------------------------------------------------------------------------------------------------------


def _drawn(table: Tensor, kinds: Tensor, level: Tensor, generator: Generator) -> Tensor:
    base, slope, signed = table[kinds].unbind(dim=1)
    sign = torch.where((signed > 0) & (_uniform(len(kinds), generator) < 0.5), -1.0, 1.0)
    return base + sign * slope * level


def _amount_table(amounts: Amounts) -> Tensor:
    return torch.tensor([tuple(map(float, amounts.get(kind, (0, 0, 0)))) for kind in KINDS])


def _policy_table() -> Tensor:
    """(25, 2, 3): of each pair the kinds, chances and levels."""
    words = [line.split() for line in POLICY.strip().splitlines()]
    return torch.tensor([[_entry(line[:3]), _entry(line[3:])] for line in words])


def _entry(words: Sequence[str]) -> tuple[float, float, float]:
    return float(NUMBER[words[0]]), float(words[1]), float(words[2])


def _sent(constant: Tensor) -> Callable[[torch.device], Tensor]:
    """Once to each device, not once a batch: sending waits."""
    kept: dict[torch.device, Tensor] = {}

    def on(device: torch.device) -> Tensor:
        if device not in kept:
            kept[device] = constant.to(device)
        return kept[device]

    return on


def _uniform(n: int, generator: Generator) -> Tensor:
    return torch.rand(n, device=generator.device, generator=generator)


def _integers(low: int, high: int, n: int, generator: Generator) -> Tensor:
    return torch.randint(low, high, (n,), device=generator.device, generator=generator)
