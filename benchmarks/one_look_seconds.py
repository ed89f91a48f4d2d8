"""Accuracy against seconds: one look, gradients with noise and LP-2ST, all of this library, on Fashion-MNIST.

From pixels and sealed labels to predictions on the test set, one run each, at the same exact ε, δ = 1e-5. Gradients
and LP-2ST train the CNN of 9,066 parameters; rates and passes of the gradients are those of
experiments/central_gradients.toml, AltConv has 24 steps per projection on 256 rows. Nothing is tuned here.

Targets on 2 cores: one look in under 90 s, and at least 80% at ε = 0.1.

Run: LABELDP_DATA=... python benchmarks/one_look_seconds.py [--epsilons 0.1,1] [--skip altconv] [--device cuda] [--json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labeldp.core.vault import LabelVault
from labeldp.data import benchmarks as data
from labeldp.features.patches import Patches
from labeldp.learning import optimisers as schedules
from labeldp.learning.optimisers import adam, sgd
from labeldp.learning.train import fit, predict
from labeldp.models.zoo import mnist_cnn
from labeldp.recipes import labeldp_pro, lp_mst, one_shot

DELTA = 1e-5
# ε up to which a setting of DP-SGD holds: rate, passes.
GRADIENTS = ((0.05, 0.3, 2), (0.15, 3.0, 2), (0.3, 3.0, 5), (0.7, 5.0, 5), (float("inf"), 5.0, 10))

Classes = Callable[[Tensor, LabelVault, float, Tensor], Tensor]


def one_look(train: Tensor, vault: LabelVault, epsilon: float, test: Tensor) -> Tensor:
    """Features, rehearsal, moment, head."""
    found = one_shot.train_on_inputs(Patches(), train, vault, epsilon=epsilon, delta=DELTA)
    return found.probabilities(test).argmax(dim=1)


def gradients(denoiser: labeldp_pro.Denoiser, train: Tensor, vault: LabelVault, epsilon: float, test: Tensor) -> Tensor:
    """DP-SGD or LabelDP-Pro; methods that project pass twice over the data."""
    rate, passes = next(setting[1:] for setting in GRADIENTS if epsilon <= setting[0])
    projects = denoiser != labeldp_pro.no_op()
    model = labeldp_pro.train(
        mnist_cnn().to(train.device), scaled(train, train), vault, epsilon=epsilon, delta=DELTA,
        epochs=2 if projects else passes, denoiser=denoiser, schedule=schedules.linear(),
        optimizer=sgd(rate, momentum=0.0, weight_decay=0.0),
    )  # fmt: skip
    return predict(model, scaled(test, train)).argmax(dim=1)


def two_stages(train: Tensor, vault: LabelVault, epsilon: float, test: Tensor) -> Tensor:
    """LP-2ST with the likelihood, four epochs per stage."""
    bound: Any = partial(fit, epochs=4, batch_size=512, optimizer=adam(2e-3), schedule=schedules.one_cycle())
    model = lp_mst.train(
        mnist_cnn().to(train.device), scaled(train, train), vault, epsilon=epsilon, fit=bound, learn=lp_mst.likelihood
    )
    return predict(model, scaled(test, train)).argmax(dim=1)


def scaled(images: Tensor, train: Tensor) -> Tensor:
    """By mean and deviation of the training pixels."""
    sample = train[:10_000].float()
    return (images.float() - sample.mean()) / sample.std()


CONTESTANTS: dict[str, Classes] = {
    "one look": one_look,
    "dp-sgd": partial(gradients, labeldp_pro.no_op()),
    "lp-2st": two_stages,
    "altconv": partial(gradients, labeldp_pro.alt_conv(rows=256, steps=24, rounds=0)),
}


def measure(name: str, epsilon: float, device: str) -> dict[str, float | str]:
    """One run: accuracy in percent, wall and processor seconds."""
    found = data.fashion_mnist()
    train, test = (torch.from_numpy(images).to(device) for images in (found.train, found.test))
    torch.manual_seed(0)
    begun, busy = time.perf_counter(), time.process_time()
    classes = CONTESTANTS[name](train, found.vault, epsilon, test).cpu()
    seconds, worked = time.perf_counter() - begun, time.process_time() - busy
    right = (classes == torch.as_tensor(found.test_labels.values)).double().mean().item()
    spent = found.vault.certificate(DELTA).epsilon
    return {"method": name, "epsilon": spent, "accuracy": 100 * right, "seconds": seconds, "processor": worked}


def main() -> None:
    """Every method at every ε, in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilons", default="0.1,1")
    parser.add_argument("--skip", action="append", default=[], choices=CONTESTANTS, help="leave this one out")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    try:
        data.fashion_mnist()
    except data.MissingDataError as missing:
        print(f"{missing}\nNothing was measured.")
        return
    print(f"Fashion-MNIST, {chosen.device}, {torch.get_num_threads()} threads, δ = {DELTA:g}")
    results = []
    for epsilon in map(float, chosen.epsilons.split(",")):
        for name in [name for name in CONTESTANTS if name not in chosen.skip]:
            results.append(measure(name, epsilon, chosen.device))
            print("{method:>9} at ε = {epsilon:.3g}: {accuracy:5.2f}% in {seconds:6.1f} s "
                  "({processor:.1f} s of processor time)".format(**results[-1]), flush=True)  # fmt: skip
    if chosen.json:
        print(json.dumps({"benchmark": "one_look_seconds", "device": chosen.device, "results": results}))


if __name__ == "__main__":
    main()
