"""Views of images per second, ours and kornia's: is our own code worth keeping?

Rule: kornia is taken if it is at most 1.2 times slower on a GPU. The same changes with the same chances, drawn for each
image: a crop and a mirror, and BYOL's first view. AutoAugment is listed too, though it is not the same: kornia draws
one pair of changes for a whole batch, ours one for each image.

    python benchmarks/kornia_views.py [--images 16384] [--json]        # pip install kornia; only this file needs it
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Generator, Tensor

from benchmarks.timing import rates, show_rates
from labeldp.features.augment import Augment, byol_views, learned_changes, weak_view

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def theirs() -> dict[str, Callable[[Tensor], Tensor]]:
    """The same views by kornia."""
    from kornia import augmentation as k
    from kornia.augmentation.auto import AutoAugment

    # By slices, one image after the other, it is quicker on a CPU; all at once on a GPU.
    mode = "resample" if DEVICE.type == "cuda" else "slice"
    crop = k.RandomCrop((32, 32), padding=4, padding_mode="reflect", resample="nearest", cropping_mode=mode)
    jitter = k.ColorJiggle(0.4, 0.4, 0.2, 0.1, p=0.8)
    box = k.RandomResizedCrop((32, 32), scale=(0.08, 1.0), cropping_mode="resample")
    weak = torch.nn.Sequential(k.RandomHorizontalFlip(p=0.5), crop)
    byol = torch.nn.Sequential(box, k.RandomHorizontalFlip(p=0.5), jitter, k.RandomGrayscale(p=0.2))
    return {"weak": weak, "byol": byol, "autoaugment": AutoAugment("cifar10")}


def ours() -> dict[str, Augment]:
    """By the library."""
    return {"weak": weak_view(), "byol": byol_views()[0], "autoaugment": learned_changes()}


def main() -> None:
    """In turns, the host waiting for the device after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=16_384 if DEVICE.type == "cuda" else 512)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if find_spec("kornia") is None:
        print("kornia is not installed; nothing to compare with")
        return
    images, generator = torch.rand(given.images, 3, 32, 32, device=DEVICE), Generator(DEVICE).manual_seed(0)
    others = theirs()
    for name, view in ours().items():

        def timed(change: Callable[[], Tensor]) -> None:
            change()
            if DEVICE.type == "cuda":
                torch.cuda.synchronize()

        pair = {
            "ours": lambda view=view: timed(lambda: view(images, generator)),
            "kornia": lambda view=others[name]: timed(lambda: view(images)),
        }
        for each in pair.values():  # first touch of memory and kernels
            each()
        print(f"{name}, {DEVICE.type}, {given.images} images at once")
        found = rates(pair, amount=given.images, repeats=7)
        show_rates(found, "images/s", given.json, benchmark=f"kornia {name}", device=DEVICE.type)


if __name__ == "__main__":
    main()
