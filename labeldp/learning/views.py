"""Random views of images for self-supervision: resized crops, colour changes, blur; each image its own, all at once.

Images are floats (n, C, H, W) in [0, 1]; scale them to zero mean after the last change (`normalise`). The random
versions follow `labeldp.learning.augment`: all randomness from the generator, nothing copied to the host. Below
them, the changes they make, by factors per image (n,).
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

from labeldp.learning.augment import Augment, compose, random_flip

Range = tuple[float, float]


def simclr_view(strength: float = 0.5, scale: Range = (0.08, 1.0), blur: float = 0.0) -> Augment:
    """One random view as in SimCLR (Chen et al. 2020, appendix A; strength 0.5 and no blur for small images).

    Resized crop, flip, colour jitter with chance 0.8, greyscale with chance 0.2, blur with chance `blur`.
    """
    jitter = colour_jitter(0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength)
    views = [random_resized_crop(scale), random_flip(), sometimes(jitter, 0.8), random_greyscale(0.2)]
    return compose(*views, *([sometimes(random_blur(), blur)] if blur > 0 else []))


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
    """Random brightness, contrast, saturation and hue, in this order (Howard 2013; strengths as in SimCLR).

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
    """Gaussian blur of a width uniform in `sigma`, by a kernel of `size` × `size` pixels."""
    if size < 1 or size % 2 == 0 or not 0 < sigma[0] <= sigma[1]:
        raise ValueError(f"size={size}, sigma={sigma}: give an odd number of pixels and 0 < low ≤ high")
    return lambda images, generator: blur(images, _uniform(*sigma, len(images), generator), size)


def random_solarise(chance: float = 0.2, threshold: float = 0.5) -> Augment:
    """Turn pixels of at least the threshold into their negative, with this chance for each image (BYOL)."""
    return sometimes(lambda images, generator: torch.where(images >= threshold, 1 - images, images), chance)


def normalise(mean: tuple[float, ...], spread: tuple[float, ...]) -> Augment:
    """(x − mean) / spread per channel; nothing random, to stand last."""

    sent: dict[torch.device, Tensor] = {}  # once to each device, not once a batch

    def augment(images: Tensor, generator: Generator) -> Tensor:
        if images.device not in sent:
            sent[images.device] = torch.tensor((mean, spread), device=images.device)[..., None, None]
        return (images - sent[images.device][0]) / sent[images.device][1]

    return augment


def resized_crop(images: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor) -> Tensor:
    """The box of each image stretched to the whole: out(i, j) = image(top + (i + ½)·height/H − ½, …), bilinear.

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
    """factor · x, within [0, 1]."""
    return (images * _per_image(factor, images)).clamp_(0, 1)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """m + factor · (x − m) with m the mean grey of the image, within [0, 1]."""
    return _blend(images, greyscale(images).mean(dim=(1, 2, 3), keepdim=True), factor)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """g + factor · (x − g) with g the grey of the pixel, within [0, 1]."""
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
    """0.299 R + 0.587 G + 0.114 B (luma of ITU-R BT.601), (n, 1, H, W); images of one channel as they are."""
    if images.shape[1] == 1:
        return images
    if images.shape[1] != 3:
        raise ValueError(f"images have {images.shape[1]} channels; colour changes need 1 or 3")
    red, green, blue = images.split(1, dim=1)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def blur(images: Tensor, sigma: Tensor, size: int = 3) -> Tensor:
    """Each image by its own Gaussian of width sigma, cut to size × size pixels; reflected at the border."""
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
