"""Fifteen kinds of change of images, each image its own kind and amount, the whole batch at once, on the device.

Images are floats (n, C, H, W) in [0, 1]; kinds and amounts are tensors (n,). Nothing here is random, and
nothing is read back from a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, avg_pool2d, grid_sample

from labeldp.learning.views import adjust_brightness, adjust_contrast, adjust_saturation

KINDS = (
    "nothing", "brightness", "contrast", "colour", "sharpness", "posterise", "solarise", "autocontrast", "equalise",
    "invert", "rotate", "shear_x", "shear_y", "translate_x", "translate_y",
)  # fmt: skip
NUMBER = {kind: number for number, kind in enumerate(KINDS)}


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
    made = images.clone()
    for first, last, change in _changes(fill):
        chosen = (kinds >= first) & (kinds <= last)
        if _on_host(images):
            rows = chosen.nonzero().squeeze(1)
            if len(rows):
                made[rows] = change(images[rows], kinds[rows], amounts[rows])
        else:
            # To ask a GPU which rows there are is to wait for it: change all, and keep what was wanted.
            made = torch.where(chosen[:, None, None, None], change(images, kinds, amounts), made)
    return made


# Images, kinds and amounts → images.
_Change = Callable[[Tensor, Tensor, Tensor], Tensor]


def _changes(fill: float) -> list[tuple[int, int, _Change]]:
    """First and last kind, and what makes them."""

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


def solarise(images: Tensor, threshold: Tensor) -> Tensor:
    """Pixels of at least the threshold turned into their negative."""
    return torch.where(images >= threshold[:, None, None, None], 1 - images, images)


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


def _on_host(images: Tensor) -> bool:
    return images.device.type == "cpu"
