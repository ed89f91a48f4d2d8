"""Change batches of images at random, on the device and for the whole batch at once.

An augmentation maps images (n, C, H, W) and a generator to images of the same shape. All randomness comes from
the generator, so training is repeatable; nothing is copied to the host but, in strong views, how many images there are
of each kind of change: make views of many images at once. Crops and flips take any numbers; all that changes colours is
for floats in [0, 1]: scale them to zero mean after the last change (`normalise`), or wrap a view for networks that want
scaled images (`scaled`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Generator, Tensor
from torch.nn.functional import affine_grid, avg_pool2d, grid_sample, pad

from labeldp.models.zoo import checked_count

Augment = Callable[[Tensor, Generator], Tensor]
Range = tuple[float, float]


def compose(*augments: Augment) -> Augment:
    """Make the changes one after the other."""

    def augment(images: Tensor, generator: Generator) -> Tensor:
        for each in augments:
            images = each(images, generator)
        return images

    return augment


def random_crop(padding: int = 4, mode: str = "constant") -> Augment:
    """Pad every side, then cut out the old size at a random place, another one for each image."""

    def augment(images: Tensor, generator: Generator) -> Tensor:
        n, _, height, width = images.shape
        padded = pad(images, [padding] * 4, mode=mode).permute(0, 2, 3, 1)
        top, left = (_integers(2 * padding + 1, n, generator) for _ in range(2))
        rows = top[:, None] + torch.arange(height, device=images.device)
        columns = left[:, None] + torch.arange(width, device=images.device)
        every = torch.arange(n, device=images.device)
        # One gather in NHWC order: the result seen as NCHW is channels-last already.
        return padded[every[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)

    return augment


def random_flip(chance: float = 0.5) -> Augment:
    """Mirror left and right, each image with this chance."""

    def augment(images: Tensor, generator: Generator) -> Tensor:
        mirrored = torch.rand(len(images), device=images.device, generator=generator) < chance
        return torch.where(mirrored[:, None, None, None], images.flip(-1), images)

    return augment


def cutout(size: int = 8, fill: float = 0.0) -> Augment:
    """Blank a square at a random place of each image; it may lie partly outside (DeVries and Taylor 2017)."""

    def augment(images: Tensor, generator: Generator) -> Tensor:
        n, _, height, width = images.shape
        rows, columns = _band(height, size, n, generator), _band(width, size, n, generator)
        # Not masked_fill, which would lay channels first again.
        return torch.where(rows[:, None, :, None] & columns[:, None, None, :], fill, images)

    return augment


def _band(length: int, size: int, n: int, generator: Generator) -> Tensor:
    """Return a run of `size` places around a random centre, (n, length)."""
    start = _integers(length, n, generator) - size // 2
    places = torch.arange(length, device=generator.device)
    return (places >= start[:, None]) & (places < start[:, None] + size)


def _integers(bound: int, n: int, generator: Generator) -> Tensor:
    return torch.randint(bound, (n,), device=generator.device, generator=generator)


# -- views for self-supervision: each image its own, all at once -------------------------------------------------------


def simclr_view(strength: float = 0.5, scale: Range = (0.08, 1.0), blur: float = 0.0) -> Augment:
    """Return a random view as in SimCLR (Chen et al. 2020, appendix A; strength 0.5 and no blur for small images).

    Resized crop, flip, colour jitter with chance 0.8, greyscale with chance 0.2, blur with chance `blur`.
    """
    jitter = colour_jitter(0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength)
    views = [random_resized_crop(scale), random_flip(), sometimes(jitter, 0.8), random_greyscale(0.2)]
    return compose(*views, *([sometimes(random_blur(), blur)] if blur > 0 else []))


def byol_views(scale: Range = (0.08, 1.0), solarise: float = 0.2, *, flip: bool = True) -> tuple[Augment, Augment]:
    """Return the two sides of a pair as in BYOL (Grill et al. 2020, appendix B), without its blur, for small images.

    Both are a resized crop, flip, colour jitter with chance 0.8 and greyscale with chance 0.2; the second is also
    solarised, with chance `solarise`. Without `flip` none is mirrored, as suits digits and letters.
    """
    jitter = sometimes(colour_jitter(0.4, 0.4, 0.2, 0.1), 0.8)
    mirrored = [random_flip()] if flip else []
    first = compose(random_resized_crop(scale), *mirrored, jitter, random_greyscale(0.2))
    return first, compose(first, random_solarise(solarise))


def sometimes(augment: Augment, chance: float) -> Augment:
    """Make the change with this chance, decided for each image."""

    def either(images: Tensor, generator: Generator) -> Tensor:
        chosen = _uniform(0, 1, len(images), generator) < chance
        return torch.where(chosen[:, None, None, None], augment(images, generator), images)

    return either


def random_resized_crop(scale: Range = (0.08, 1.0), ratio: Range = (3 / 4, 4 / 3)) -> Augment:
    """Cut out a random box and stretch it to the old size (Szegedy et al. 2015).

    The box has a share of the area uniform in `scale` and a ratio of width to height log-uniform in `ratio`. Ten boxes
    are drawn for each image and the first that fits inside is taken; if none does, the first, cut down.
    """
    if not 0 < scale[0] <= scale[1] <= 1 or not 0 < ratio[0] <= ratio[1]:
        raise ValueError(f"scale={scale}, ratio={ratio} are not ranges; give 0 < low ≤ high, and scale at most 1")

    def augment(images: Tensor, generator: Generator) -> Tensor:
        box = _random_boxes(len(images), images.shape[2], images.shape[3], scale, ratio, generator)
        return resized_crop(images, *box)

    return augment


def _random_boxes(
    n: int, height: int, width: int, scale: Range, ratio: Range, generator: Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Top, left, height and width of one box per image, in pixels, not rounded."""
    area = height * width * _uniform(*scale, 10 * n, generator).view(n, 10)
    shape = _uniform(math.log(ratio[0]), math.log(ratio[1]), 10 * n, generator).view(n, 10).exp()
    tall, wide = (area / shape).sqrt(), (area * shape).sqrt()
    # argmax gives the first True, and 0 when there is none.
    first = ((tall <= height) & (wide <= width)).int().argmax(dim=1, keepdim=True)
    tall = tall.gather(1, first).squeeze(1).clamp(max=height)
    wide = wide.gather(1, first).squeeze(1).clamp(max=width)
    top, left = (height - tall) * _uniform(0, 1, n, generator), (width - wide) * _uniform(0, 1, n, generator)
    return top, left, tall, wide


def colour_jitter(brightness: float, contrast: float, saturation: float, hue: float) -> Augment:
    """Change brightness, contrast, saturation and hue at random, in this order (Howard 2013; strengths as in SimCLR).

    The first three are multiplied by factors uniform in [max(0, 1 − strength), 1 + strength], hue is turned by a share
    of the circle uniform in ±`hue`. Images of one channel have no saturation and no hue.
    """
    if not 0 <= hue <= 0.5 or min(brightness, contrast, saturation) < 0:
        raise ValueError(
            f"brightness={brightness}, contrast={contrast}, saturation={saturation}, hue={hue}: "
            "give strengths of at least 0, and hue at most 0.5"
        )

    def augment(images: Tensor, generator: Generator) -> Tensor:
        changes = ((adjust_brightness, brightness), (adjust_contrast, contrast), (adjust_saturation, saturation))
        for change, strength in changes:
            images = change(images, _uniform(max(0.0, 1 - strength), 1 + strength, len(images), generator))
        return adjust_hue(images, _uniform(-hue, hue, len(images), generator))

    return augment


def random_greyscale(chance: float = 0.2) -> Augment:
    """Take the colour away, with this chance for each image."""
    return sometimes(lambda images, generator: greyscale(images).expand_as(images), chance)


def random_blur(sigma: Range = (0.1, 2.0), size: int = 3) -> Augment:
    """Blur by a Gaussian of a width uniform in `sigma`, by a kernel of `size` × `size` pixels."""
    if size < 1 or size % 2 == 0 or not 0 < sigma[0] <= sigma[1]:
        raise ValueError(f"size={size}, sigma={sigma}: give an odd number of pixels and 0 < low ≤ high")
    return lambda images, generator: blur(images, _uniform(*sigma, len(images), generator), size)


def random_solarise(chance: float = 0.2, threshold: float = 0.5) -> Augment:
    """Turn pixels of at least the threshold into their negative, with this chance for each image (BYOL)."""
    return sometimes(lambda images, generator: torch.where(images >= threshold, 1 - images, images), chance)


def normalise(mean: tuple[float, ...], spread: tuple[float, ...]) -> Augment:
    """Return (x − mean) / spread per channel; nothing random, to stand last."""

    sent: dict[torch.device, Tensor] = {}  # once to each device, not once a batch

    def augment(images: Tensor, generator: Generator) -> Tensor:
        if images.device not in sent:
            sent[images.device] = torch.tensor((mean, spread), device=images.device)[..., None, None]
        return (images - sent[images.device][0]) / sent[images.device][1]

    return augment


def resized_crop(images: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor) -> Tensor:
    """Stretch the box of each image to the whole: out(i, j) = image(top + (i + ½)·height/H − ½, …), bilinear.

    Pixels have their centres at whole numbers; beyond the border of the image its last row or column goes on.
    """
    n, _, rows, columns = images.shape
    # affine_grid speaks of the square [−1, 1]²: x' = (width / W) x + shift.
    scales, shifts = (width / columns, height / rows), ((2 * left + width) / columns - 1, (2 * top + height) / rows - 1)
    zero = torch.zeros_like(top)
    across = torch.stack((scales[0], zero, shifts[0]), dim=1)
    down = torch.stack((zero, scales[1], shifts[1]), dim=1)
    # Half precision has too few digits for places.
    dtype = torch.promote_types(images.dtype, torch.float32)
    grid = affine_grid(torch.stack((across, down), dim=1).to(dtype), [n, 1, rows, columns], align_corners=False)
    found = grid_sample(images.to(dtype), grid, mode="bilinear", padding_mode="border", align_corners=False)
    return found.to(images.dtype)


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Return factor · x, within [0, 1]."""
    return (images * _per_image(factor, images)).clamp_(0, 1)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Return m + factor · (x − m) with m the mean grey of the image, within [0, 1]."""
    return _blend(images, greyscale(images).mean(dim=(1, 2, 3), keepdim=True), factor)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Return g + factor · (x − g) with g the grey of the pixel, within [0, 1]."""
    return images if images.shape[1] == 1 else _blend(images, greyscale(images), factor)


def adjust_hue(images: Tensor, turn: Tensor) -> Tensor:
    """Turn every pixel's hue by a share of the circle; its value and saturation in HSV stay.

    With v the largest of R, G, B and c the largest less the smallest, channel n of (R, G, B), counted 5, 3, 1, is
    v − c · min(1, max(0, min(k, 4 − k))) for k = (n + 6 · hue) mod 6.
    """
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(dim=1)
    value, least = images.amax(dim=1), images.amin(dim=1)
    chroma = value - least
    safe = torch.where(chroma > 0, chroma, 1)
    sector = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sector = sector + 6 * turn.to(images.dtype)[:, None, None]
    # Made on the device: a tensor of Python numbers would have to be sent, and waited for.
    counts = torch.arange(5, 0, -2, device=images.device)[:, None, None]
    k = (counts + sector[:, None]).remainder(6)
    return value[:, None] - chroma[:, None] * torch.minimum(k, 4 - k).clamp_(0, 1)


def greyscale(images: Tensor) -> Tensor:
    """Return 0.299 R + 0.587 G + 0.114 B (luma of ITU-R BT.601), (n, 1, H, W); images of one channel as they are."""
    if images.shape[1] == 1:
        return images
    if images.shape[1] != 3:
        raise ValueError(f"images have {images.shape[1]} channels; colour changes need 1 or 3")
    red, green, blue = images.split(1, dim=1)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def blur(images: Tensor, sigma: Tensor, size: int = 3) -> Tensor:
    """Blur each image by its own Gaussian of width sigma, cut to size × size pixels; reflected at the border."""
    reach = size // 2
    places = torch.arange(-reach, reach + 1, device=images.device)
    weights = torch.exp(-0.5 * (places / sigma[:, None]).square())
    weights = weights / weights.sum(dim=1, keepdim=True)
    for axis in (2, 3):
        padded = pad(images, [0, 0, reach, reach] if axis == 2 else [reach, reach, 0, 0], mode="reflect")
        parts = (padded.narrow(axis, j, images.shape[axis]) * _per_image(weights[:, j], images) for j in range(size))
        images = torch.stack(tuple(parts)).sum(dim=0)
    return images


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(other.expand_as(images), images, _per_image(factor, images)).clamp_(0, 1)


def _per_image(values: Tensor, images: Tensor) -> Tensor:
    return values.to(images.dtype)[:, None, None, None]


def _uniform(low: float, high: float, n: int, generator: Generator) -> Tensor:
    return low + (high - low) * torch.rand(n, device=generator.device, generator=generator)


# -- fifteen kinds of change, each image its own kind and amount; nothing random ---------------------------------------

KINDS = (
    "nothing", "brightness", "contrast", "colour", "sharpness", "posterise", "solarise", "autocontrast", "equalise",
    "invert", "rotate", "shear_x", "shear_y", "translate_x", "translate_y",
)  # fmt: skip
NUMBER = {kind: number for number, kind in enumerate(KINDS)}


def changed(images: Tensor, kinds: Tensor, amounts: Tensor, fill: float = 0.5) -> Tensor:
    """Change each image by the change of its kind (a place in `KINDS`), by its amount.

    Amounts: a factor for brightness, contrast, colour and sharpness (1 changes nothing); the bits that stay for
    posterise; the threshold for solarise; degrees for rotate; pixels per pixel for shear; a share of the side for
    translate. What comes in from outside has the value `fill`.

    >>> grey = torch.full((2, 1, 4, 4), 0.5)
    >>> kinds = torch.tensor([NUMBER["brightness"], NUMBER["nothing"]])
    >>> changed(grey, kinds, torch.tensor([0.5, 0.0])).amax(dim=(1, 2, 3))
    tensor([0.2500, 0.5000])
    """
    made = images.clone()
    ranked, order = kinds.sort()
    # How many there are of each kind is read back: one wait, and then every change is made of its own images alone.
    ends = torch.searchsorted(ranked, torch.arange(len(KINDS), device=kinds.device, dtype=kinds.dtype), right=True)
    starts = [0, *ends.tolist()]
    for first, last, change in _changes(fill):
        rows = order[starts[first] : starts[last + 1]]
        if len(rows):
            made[rows] = change(images[rows], kinds[rows], amounts[rows])
    return made


# Images, kinds and amounts → images.
_Change = Callable[[Tensor, Tensor, Tensor], Tensor]


def _changes(fill: float) -> list[tuple[int, int, _Change]]:
    """Return first and last kind, and what makes them."""

    def move(images: Tensor, kinds: Tensor, amounts: Tensor) -> Tensor:
        return affine(images, moves(kinds, amounts, images.shape[2], images.shape[3]), fill)

    by_kind: dict[str, _Change] = {
        "brightness": lambda images, _, amounts: adjust_brightness(images, amounts),
        "contrast": lambda images, _, amounts: adjust_contrast(images, amounts),
        "colour": lambda images, _, amounts: adjust_saturation(images, amounts),
        "sharpness": lambda images, _, amounts: adjust_sharpness(images, amounts),
        "posterise": lambda images, _, amounts: posterise(images, amounts),
        "solarise": lambda images, _, amounts: solarise(images, amounts),
        "autocontrast": lambda images, _, amounts: autocontrast(images),
        "equalise": lambda images, _, amounts: equalise(images),
        "invert": lambda images, _, amounts: 1 - images,
    }
    alone = [(NUMBER[kind], NUMBER[kind], change) for kind, change in by_kind.items()]
    return [*alone, (NUMBER["rotate"], NUMBER["translate_y"], move)]


def moves(kinds: Tensor, amounts: Tensor, height: int, width: int) -> Tensor:
    """Return for each image the matrix (2, 3) that takes a place of the result to one of the image; see `affine`."""

    def amount(kind: str) -> Tensor:
        return torch.where(kinds == NUMBER[kind], amounts, 0.0)

    turn = torch.deg2rad(amount("rotate"))
    across = (turn.cos(), amount("shear_x") - turn.sin(), amount("translate_x") * width)
    down = (amount("shear_y") + turn.sin(), turn.cos(), amount("translate_y") * height)
    return torch.stack((torch.stack(across, dim=1), torch.stack(down, dim=1)), dim=1)


def affine(images: Tensor, matrices: Tensor, fill: float = 0.5) -> Tensor:
    """Return out(x, y) = image(M · (x, y, 1)), bilinear, in pixels from the middle; `fill` where that is outside."""
    height, width = images.shape[2:]
    # affine_grid counts in half sides: x from −1 to 1 over the width, y over the height.
    units = matrices.new_ones(2, 3)
    units[0, 1], units[0, 2] = height / width, 2 / width
    units[1, 0], units[1, 2] = width / height, 2 / height
    grid = affine_grid((matrices * units).to(images.dtype), [len(images), 1, height, width], align_corners=False)
    return grid_sample(images - fill, grid, mode="bilinear", padding_mode="zeros", align_corners=False) + fill


def adjust_sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Return s + factor · (x − s), s the mean of a pixel, counted five times, and its neighbours, within [0, 1].

    The pixels of the border have no eight neighbours and stay.
    """
    smooth = images.clone()
    smooth[:, :, 1:-1, 1:-1] = (9 * avg_pool2d(images, 3, stride=1) + 4 * images[:, :, 1:-1, 1:-1]) / 13
    return torch.lerp(smooth, images, factor.to(images.dtype)[:, None, None, None]).clamp_(0, 1)


def posterise(images: Tensor, bits: Tensor) -> Tensor:
    """Keep only the highest `bits` of each byte (rounded down)."""
    step = torch.exp2(8 - bits.floor())[:, None, None, None]
    return ((images * 255).round() / step).floor() * step / 255


def solarise(images: Tensor, threshold: Tensor) -> Tensor:
    """Turn pixels of at least the threshold into their negative."""
    return torch.where(images >= threshold[:, None, None, None], 1 - images, images)


def autocontrast(images: Tensor) -> Tensor:
    """Stretch every channel to reach from 0 to 1; one of a single value stays."""
    low, high = images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True)
    return torch.where(high > low, (images - low) / (high - low).clamp_min(1e-12), images)


def equalise(images: Tensor) -> Tensor:
    """Give every channel as even a histogram of bytes as a map of values allows.

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


# -- strong views: every image its own kinds and amounts of change -----------------------------------------------------

_FACTORS = ("brightness", "contrast", "colour", "sharpness")

# The amount of a kind at level l in [0, 1] is base + slope · l; `signed` is whether the slope has a random sign.
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
    """Mirror, and move by up to `padding` pixels, reflected at the border."""
    crop = random_crop(padding, mode="reflect")
    return compose(random_flip(), crop) if flip else crop


def strong_view(padding: int = 4, flip: bool = True, changes: int = 2, cut: int = 16) -> Augment:
    """Change strongly as FixMatch (Sohn et al. 2020): weak view, `random_changes`, and a grey square of side `cut`."""
    return compose(weak_view(padding, flip), random_changes(changes), cutout(cut, fill=0.5))


def learned_view(padding: int = 4, flip: bool = True) -> Augment:
    """Change strongly as AugDescent (Nishi et al. 2021): the weak view and `learned_changes`."""
    return compose(weak_view(padding, flip), learned_changes())


def scaled(view: Augment, mean: tuple[float, ...], spread: tuple[float, ...]) -> Augment:
    """Return the view for images that are kept scaled, (x − mean)/spread per channel: unscaled, changed, scaled again.

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
    """Apply RandAugment with random levels (Cubuk et al. 2020), in the form it has in FixMatch (Sohn et al. 2020).

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
            kinds = known[_whole_numbers(0, len(known), n, generator)]
            kinds = torch.where(_between(n, generator) < chance, kinds, 0)
            images = changed(
                images, kinds, _drawn(table, kinds, _whole_numbers(1, levels, n, generator) / 10, generator), fill
            )
        return images

    return augment


def learned_changes(fill: float = 0.5) -> Augment:
    """Apply AutoAugment's policy for CIFAR-10 (Cubuk et al. 2019): one of 25 pairs of changes, each by chance."""
    policy, amounts = _sent(_policy_table()), _sent(_amount_table(LEARNED))

    def augment(images: Tensor, generator: Generator) -> Tensor:
        pairs, table, n = policy(images.device), amounts(images.device), len(images)
        drawn = pairs[_whole_numbers(0, len(pairs), n, generator)]
        for half in (0, 1):
            kinds, chance, level = drawn[:, half].unbind(dim=1)
            kinds = torch.where(_between(n, generator) < chance, kinds, 0).long()
            images = changed(images, kinds, _drawn(table, kinds, level / 9, generator), fill)
        return images

    return augment


# -- drawing -----------------------------------------------------------------------------------------------------------


def _drawn(table: Tensor, kinds: Tensor, level: Tensor, generator: Generator) -> Tensor:
    base, slope, signed = table[kinds].unbind(dim=1)
    sign = torch.where((signed > 0) & (_between(len(kinds), generator) < 0.5), -1.0, 1.0)
    return base + sign * slope * level


def _amount_table(amounts: Amounts) -> Tensor:
    return torch.tensor([tuple(map(float, amounts.get(kind, (0, 0, 0)))) for kind in KINDS])


def _policy_table() -> Tensor:
    """Return (25, 2, 3): of each pair the kinds, chances and levels."""
    words = [line.split() for line in POLICY.strip().splitlines()]
    return torch.tensor([[_entry(line[:3]), _entry(line[3:])] for line in words])


def _entry(words: Sequence[str]) -> tuple[float, float, float]:
    return float(NUMBER[words[0]]), float(words[1]), float(words[2])


def _sent(constant: Tensor) -> Callable[[torch.device], Tensor]:
    """Send once to each device, not once a batch: sending waits."""
    kept: dict[torch.device, Tensor] = {}

    def on(device: torch.device) -> Tensor:
        if device not in kept:
            kept[device] = constant.to(device)
        return kept[device]

    return on


def _between(n: int, generator: Generator) -> Tensor:
    return torch.rand(n, device=generator.device, generator=generator)


def _whole_numbers(low: int, high: int, n: int, generator: Generator) -> Tensor:
    return torch.randint(low, high, (n,), device=generator.device, generator=generator)
