"""A network's outputs averaged over crops and mirrors of an image: better features and predictions, and no training.

    f̄(x) = mean over boxes b and mirrors m of  f(stretch(m(x)[b]))

Networks trained on random crops, as those of self-supervision are, know an image by its parts; the mean of what they
say of the parts is steadier than what they say of the whole. The boxes are the same for all images and come from no
label, so f̄ is as public as f.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from labeldp.models.shared import checked_count


class OverCrops(nn.Module):
    """The mean of a model's outputs over grid² crops and, with `flip`, their mirrors: 2·grid² passes.

    Args:
        model: images (n, C, H, W) → (n, d): an encoder's body, for its features, or a classifier, for its scores.
        side: of a crop as a share of the image's; 1 is the whole image.
        grid: crops in a row and in a column, evenly spread from border to border; 1 is the centre.
        flip: mirror each as well; whether that keeps the class is public knowledge of the data.

    >>> mirrored = OverCrops(nn.Flatten(), side=1.0, grid=1)
    >>> mirrored(torch.tensor([[[[1.0, 3.0]]]]))
    tensor([[2., 2.]])
    """

    def __init__(self, model: nn.Module, side: float = 0.75, grid: int = 3, flip: bool = True) -> None:
        super().__init__()
        if not 0 < side <= 1:
            raise ValueError(f"side={side} is not a share of the image's side; give a number above 0 and at most 1")
        self.model, self.side, self.grid, self.flip = model, side, checked_count("grid", grid), flip

    def forward(self, images: Tensor) -> Tensor:
        """The mean output, (n, d)."""
        if images.ndim != 4:
            raise ValueError(f"inputs have shape {tuple(images.shape)}; crops are of images, (n, C, H, W)")
        size = images.shape[2:]
        parts = [self._part(images, top, left) for top in self._starts(size[0]) for left in self._starts(size[1])]
        every = [part for cut in parts for part in ((cut, cut.flip(-1)) if self.flip else (cut,))]
        outputs = [self.model(part).float() for part in every]
        return torch.stack(outputs).mean(dim=0)

    def _part(self, images: Tensor, top: int, left: int) -> Tensor:
        height, width = (self._length(size) for size in images.shape[2:])
        cut = images[:, :, top : top + height, left : left + width]
        if cut.shape == images.shape:
            return cut
        stretched = interpolate(cut, images.shape[2:], mode="bilinear", align_corners=False)
        return stretched.contiguous(memory_format=torch.channels_last)

    def _length(self, size: int) -> int:
        return max(1, round(self.side * size))

    def _starts(self, size: int) -> list[int]:
        room = size - self._length(size)
        if self.grid == 1 or room == 0:
            return [room // 2]
        return sorted({round(room * step / (self.grid - 1)) for step in range(self.grid)})

    def extra_repr(self) -> str:
        """What tells two of them apart."""
        return f"side={self.side}, grid={self.grid}, flip={self.flip}"
