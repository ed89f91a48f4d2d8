"""Strong changes of images: every image its own kind and amount of change, the whole batch at once, on the device.

Images are floats (n, C, H, W) in [0, 1]. `changed` makes one of fifteen kinds of change to each image in one pass,
without asking the device which were drawn. For networks that want scaled images, wrap the view in `scaled`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Generator, Tensor
from torch.nn.functional import affine_grid, avg_pool2d, grid_sample

from labeldp.learning.augment import Augment, compose, cutout, random_crop, random_flip
from labeldp.learning.views import adjust_brightness, adjust_contrast, adjust_saturation
from labeldp.models.shared import checked_count

KINDS = (
    "nothing", "brightness", "contrast", "colour", "sharpness", "posterise", "solarise", "autocontrast", "equalise",
    "invert", "rotate", "shear_x", "shear_y", "translate_x", "translate_y",
)  # fmt: skip
NUMBER = {kind: number for number, kind in enumerate(KINDS)}
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


# -- the changes, by kinds and amounts per image (n,) -----------------------------------------------------------------


def changed(images: Tensor, kinds: Tensor, amounts: Tensor, fill: float = 0.5) -> Tensor:
    """Each image by the change of its kind (a place in `KINDS`), by its amount.

    Amounts: a factor for brightness, contrast, colour and sharpness (1 changes nothing); the bits that stay for
    posterise; the threshold for solarise; degrees for rotate; pixels per pixel for shear; a share of the side for
    translate. What comes in from outside has the value `fill`.

    >>> grey = torch.full((2, 1, 4, 4), 0.5)
    >>> kinds = torch.tensor([NUMBER["brightness"], NUMBER["nothing"]])
    >>> changed(grey, kinds, torch.tensor([0.5, 0.0])).amax(dim=(1, 2, 3))
    tensor([0.2500, 0.5000])
    """
    moved = affine(images, moves(kinds, amounts, images.shape[2], images.shape[3]), fill)
    images = _where(kinds >= NUMBER["rotate"], moved, images)

    def amount(kind: str, neutral: float) -> Tensor:
        return torch.where(kinds == NUMBER[kind], amounts, neutral)

    images = adjust_brightness(images, amount("brightness", 1))
    images = adjust_contrast(images, amount("contrast", 1))
    images = adjust_saturation(images, amount("colour", 1))
    images = adjust_sharpness(images, amount("sharpness", 1))
    images = _where(kinds == NUMBER["posterise"], posterise(images, amount("posterise", 8)), images)
    # Inverting is solarising everything; above 1 there is nothing to solarise.
    threshold = torch.where(kinds == NUMBER["invert"], 0.0, amount("solarise", 2))
    images = torch.where(images >= threshold[:, None, None, None], 1 - images, images)
    images = _where(kinds == NUMBER["autocontrast"], autocontrast(images), images)
    return _where(kinds == NUMBER["equalise"], equalise(images), images)


def moves(kinds: Tensor, amounts: Tensor, height: int, width: int) -> Tensor:
    """For each image the matrix (2, 3) that takes a place of the result to one of the image; see `affine`."""

    def amount(kind: str) -> Tensor:
        return torch.where(kinds == NUMBER[kind], amounts, 0.0)

    turn = torch.deg2rad(amount("rotate"))
    across = (turn.cos(), amount("shear_x") - turn.sin(), amount("translate_x") * width)
    down = (amount("shear_y") + turn.sin(), turn.cos(), amount("translate_y") * height)
    return torch.stack((torch.stack(across, dim=1), torch.stack(down, dim=1)), dim=1)


def affine(images: Tensor, matrices: Tensor, fill: float = 0.5) -> Tensor:
    """out(x, y) = image(M · (x, y, 1)), bilinear, in pixels from the middle; `fill` where that is outside."""
    height, width = images.shape[2:]
    # affine_grid counts in half sides: x from −1 to 1 over the width, y over the height.
    units = matrices.new_ones(2, 3)
    units[0, 1], units[0, 2] = height / width, 2 / width
    units[1, 0], units[1, 2] = width / height, 2 / height
    grid = affine_grid((matrices * units).to(images.dtype), [len(images), 1, height, width], align_corners=False)
    return grid_sample(images - fill, grid, mode="bilinear", padding_mode="zeros", align_corners=False) + fill


def adjust_sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """s + factor · (x − s) with s the mean of a pixel, counted five times, and its eight neighbours, within [0, 1].

    The pixels of the border have no eight neighbours and stay.
    """
    smooth = images.clone()
    smooth[:, :, 1:-1, 1:-1] = (9 * avg_pool2d(images, 3, stride=1) + 4 * images[:, :, 1:-1, 1:-1]) / 13
    return torch.lerp(smooth, images, factor.to(images.dtype)[:, None, None, None]).clamp_(0, 1)


def posterise(images: Tensor, bits: Tensor) -> Tensor:
    """Only the highest `bits` of each byte stay (rounded down)."""
    step = torch.exp2(8 - bits.floor())[:, None, None, None]
    return ((images * 255).round() / step).floor() * step / 255


def autocontrast(images: Tensor) -> Tensor:
    """Every channel stretched to reach from 0 to 1; one of a single value stays."""
    low, high = images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True)
    return torch.where(high > low, (images - low) / (high - low).clamp_min(1e-12), images)


def equalise(images: Tensor) -> Tensor:
    """Every channel with as even a histogram of bytes as a map of values allows.

    A value v becomes ⌊(step/2 + number of pixels below v) / step⌋ with step = ⌊(pixels below the highest value)/255⌋; a
    channel whose step is 0 stays. (Gonzalez and Woods; whole numbers as in the usual imaging library.)
    """
    n, channels, height, width = images.shape
    values = (images * 255).round().long().clamp_(0, 255).flatten(2).flatten(0, 1)
    counts = torch.zeros(n * channels, 256, dtype=torch.long, device=images.device)
    counts.scatter_add_(1, values, torch.ones_like(values))
    highest = counts.gather(1, values.amax(dim=1, keepdim=True))
    step = (height * width - highest) // 255
    below = counts.cumsum(dim=1) - counts
    table = ((step // 2 + below) // step.clamp_min(1)).clamp_(max=255)
    even = (table.gather(1, values).to(images.dtype) / 255).view(images.shape)
    return torch.where((step > 0).view(n, channels, 1, 1), even, images)


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


def _where(chosen: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(chosen[:, None, None, None], yes, no)


def _uniform(n: int, generator: Generator) -> Tensor:
    return torch.rand(n, device=generator.device, generator=generator)


def _integers(low: int, high: int, n: int, generator: Generator) -> Tensor:
    return torch.randint(low, high, (n,), device=generator.device, generator=generator)
