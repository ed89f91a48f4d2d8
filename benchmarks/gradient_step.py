"""One step of DP-SGD, forward to updated weights: ours against Opacus with per-sample hooks and with ghost clipping.

The same model, batch, clipping norm and optimiser, taking turns in one run. Ours is the whole mechanism: a lease of a
`LabelVault` (all rows of the batch, so that every contestant has the same ones), noise from the cryptographic stream.
Opacus draws its noise from torch's generator. Peak memory is what one step allocates beyond what was there before; on
a GPU, where ours replays recorded steps that hold their memory, what torch has reserved for the contestant in all.

Targets: at least 1.5 times as fast as either, and no more memory.

Opacus is only needed here: pip install 'labeldp[bench]' (or: pip install --no-deps opacus==1.6.0 opt-einsum, where it
must not touch the installed torch). Run: python benchmarks/gradient_step.py [--device cuda] [--threads 1] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

from benchmarks.timing import rates
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.gradients.per_example import load_parameter_vector, parameter_vector
from labeldp.mechanisms.gradients.sums import GradientSum, NormBound
from labeldp.models.zoo import cifar_cnn, mnist_cnn

CLIP, NOISE_MULTIPLIER, LEARNING_RATE = 1.0, 1.0, 0.01
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mnist_cnn": (mnist_cnn, (1, 28, 28)),
    "cifar_cnn": (cifar_cnn, (3, 32, 32)),
}
BATCHES = (256, 1024)
SPEED_TARGET, MEMORY_TARGET = 1.5, 1.0

Step = Callable[[], object]


def ours(model: nn.Module, images: Tensor, labels: Tensor) -> Step:
    """A prepaid look of the vault, then plain gradient descent."""
    ask = GradientSum(model, images, NormBound(CLIP), NOISE_MULTIPLIER * CLIP)
    draw = LabelVault(labels.cpu().numpy().astype(np.uint8), 10).lease(ask, 1_000_000)

    def step() -> None:
        load_parameter_vector(model, parameter_vector(model) - LEARNING_RATE * draw().value)

    return step


def hooks(model: nn.Module, images: Tensor, labels: Tensor) -> Step:
    """Opacus with per-sample gradients by hooks, its default."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(model)
    optimizer = DPOptimizer(torch.optim.SGD(wrapped.parameters(), LEARNING_RATE), **_settings(len(labels)))

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(wrapped(images), labels).backward()
        optimizer.step()

    return step


def ghost(model: nn.Module, images: Tensor, labels: Tensor) -> Step:
    """Opacus with ghost clipping: norms without per-sample gradients, and a second backward pass."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(model, max_grad_norm=CLIP, use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(wrapped.parameters(), LEARNING_RATE), **_settings(len(labels))
    )
    criterion = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss(reduction="mean"))

    def step() -> None:
        optimizer.zero_grad()
        criterion(wrapped(images), labels).backward()
        optimizer.step()

    return step


def plain(model: nn.Module, images: Tensor, labels: Tensor) -> Step:
    """Without privacy, for scale."""
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def _settings(batch: int) -> dict[str, Any]:
    return {"noise_multiplier": NOISE_MULTIPLIER, "max_grad_norm": CLIP, "expected_batch_size": batch}


CONTESTANTS = {"ours": ours, "hooks": hooks, "ghost": ghost, "plain": plain}


def waited(step: Step, device: torch.device) -> None:
    """A step and the wait for its end."""
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def warmed_up(start: Callable[[], Step], device: torch.device) -> tuple[Step, int]:
    """A contestant after three steps, and the bytes it needs.

    On a GPU all that torch has reserved for it, model and recorded graphs included; else the most that a step has
    allocated at once beyond what was there before it.
    """
    before = 0
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(device)
    step = start()
    for _ in range(3):
        waited(step, device)
    return step, torch.cuda.memory_reserved(device) - before if device.type == "cuda" else peak_memory(step)


def peak_memory(step: Step) -> int:
    """The most bytes a step has allocated at once beyond those before it, on a processor."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        step()
    moves = [event for event in trace.profiler.kineto_results.events() if event.name() == "[memory]"]  # pyright: ignore
    held = np.cumsum([event.nbytes() for event in sorted(moves, key=lambda event: event.start_ns())])
    return int(held.max(initial=0))


def measure(model: str, batch: int, device: torch.device, repeats: int) -> dict[str, Any]:
    """Rates, ratios and memory of all contestants on one model and batch size."""
    make, shape = MODELS[model]
    torch.manual_seed(0)
    images, labels = torch.randn(batch, *shape, device=device), torch.randint(10, (batch,), device=device)
    steps: dict[str, Step] = {}
    memory: dict[str, int] = {}
    for name, start in CONTESTANTS.items():
        made = partial(lambda start: start(make().to(device).train(), images, labels), start)
        steps[name], memory[name] = warmed_up(made, device)
    found = rates({name: partial(waited, step, device) for name, step in steps.items()}, batch, repeats)
    ratio = {
        name: statistics.median(a / b for a, b in zip(found["ours"], found[name], strict=True))
        for name in ("hooks", "ghost", "plain")
    }
    return {
        "model": model,
        "batch": batch,
        "device": str(device),
        "threads": torch.get_num_threads(),
        "median": {name: statistics.median(values) for name, values in found.items()},
        "spread": {name: [min(values), max(values)] for name, values in found.items()},
        "ratio": ratio,
        "memory": memory,
    }


def show(found: dict[str, Any]) -> None:
    """One block per model and batch size."""
    print(f"{found['model']}, batch {found['batch']}, {found['device']}, {found['threads']} threads")
    for name, median in found["median"].items():
        low, high = found["spread"][name]
        mebibytes = found["memory"][name] / 2**20
        print(f"{name:>10}: {median:11,.0f} rows/s  ({low:,.0f} – {high:,.0f})  {mebibytes:8.1f} MiB at most")
    for name in ("hooks", "ghost"):
        faster, fatter = found["ratio"][name], found["memory"]["ours"] / max(1, found["memory"][name])
        print(
            f"  ours / {name}: {faster:.2f} times as fast (target ≥ {SPEED_TARGET}), {fatter:.2f} of its memory (≤ 1)"
        )
    print(f"  ours / plain SGD: {found['ratio']['plain']:.2f}\n")


def main() -> None:
    """Measure every model and batch size on one device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="processor threads of torch")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        import opacus
    except ImportError:
        print("Opacus is not installed, so there is nothing to compare with; see the top of this file for how to.")
        return
    warnings.filterwarnings("ignore")  # Opacus warns about its own use of torch
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    results = [measure(model, batch, device, options.repeats) for model in MODELS for batch in BATCHES]
    for found in results:
        show(found)
    if options.json:
        print(json.dumps({"benchmark": "gradient_step", "opacus": opacus.__version__, "results": results}))


if __name__ == "__main__":
    main()
