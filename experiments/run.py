"""Run the experiments of a settings file and append one JSON line per training.

    python -m experiments.run experiments/noisy_labels.toml --group fashion-mnist --out experiments/results/x.jsonl

Data sets are found through LABELDP_DATA. A run already in the output file is skipped, so an interrupted sweep goes on
where it stopped. `--jobs` trains several models at once on one GPU. `labeldp reproduce` runs a paper's table.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments import adapters, networks, records, synthetic
from experiments.settings import Run, runs
from experiments.sweep import News, Tell, sweep
from labeldp.core.certificate import Certificate
from labeldp.core.vault import LabelVault
from labeldp.data import benchmarks
from labeldp.data.benchmarks import Columns, OpenLabels, Pairs, attribution_by_user
from labeldp.learning.progress import Progress
from labeldp.learning.train import Inputs
from labeldp.mechanisms.users import UserVault
from labeldp.recipes import attribution, ratings

# As PyTorch found them; trainings side by side share them.
_THREADS = torch.get_num_threads()


# Data sets that are not loaded by their names: made-up ones, and labels that are sealed by user.
_LOADERS: dict[str, Callable[[], benchmarks.Benchmark[Any]]] = {
    synthetic.NAME: lambda: synthetic.synthetic_stand_in(200, 50, 10),
    synthetic.ATTRIBUTION_NAME: lambda: synthetic.synthetic_attribution_stand_in(8_000, 2_000),
    "criteo_attribution_by_user": attribution_by_user,
}


@functools.cache
def benchmark_of(name: str) -> benchmarks.Benchmark[Any]:
    """Return the data set of this name."""
    return _LOADERS[name]() if name in _LOADERS else benchmarks.load(name)


def shape_of(features: Any) -> Any:
    """Return what a network must know of its inputs: channels; users and items; or numbers and cardinalities."""
    if isinstance(features, Pairs):
        return features.num_users, features.num_items
    if isinstance(features, Columns):
        return features.numeric.shape[1], features.cardinalities
    return features.shape[1]


@functools.cache
def data(name: str, device: str) -> tuple[Inputs, Inputs, LabelVault, OpenLabels]:
    """Return training and test inputs on the device, the loader's vault (never queried here) and open test labels."""
    benchmark = benchmark_of(name)
    if isinstance(benchmark.train, Pairs):
        parts = [ratings.pairs(part, device) for part in (benchmark.train, benchmark.test)]
    elif isinstance(benchmark.train, Columns):
        parts = [attribution.features(part, device) for part in (benchmark.train, benchmark.test)]
    else:
        parts = _images(benchmark, device)
    return parts[0], parts[1], benchmark.vault, benchmark.test_labels


def _images(benchmark: benchmarks.Benchmark[Any], device: str) -> list[Tensor]:
    """Return both parts scaled by the training images, in bfloat16 on a GPU."""
    mean = torch.from_numpy(benchmark.train).float().mean(dim=(0, 2, 3), keepdim=True)
    spread = torch.from_numpy(benchmark.train).float().std(dim=(0, 2, 3), keepdim=True)
    dtype = torch.bfloat16 if torch.device(device).type == "cuda" else torch.float32

    def scaled(images: Any) -> Tensor:
        parts = [((torch.from_numpy(part).float() - mean) / spread).to(dtype) for part in _pieces(images)]
        return torch.cat(parts).to(device).contiguous(memory_format=torch.channels_last)

    return [scaled(benchmark.train), scaled(benchmark.test)]


def _pieces(images: Any) -> list[Any]:
    return [images[i : i + 10_000] for i in range(0, len(images), 10_000)]


def run_one(run: Run, device: str, tell: Tell = lambda news: None, kept: Path | None = None) -> records.Record:
    """Train, measure on the test set, and say everything about it; `kept` as in `experiments.kept_distillations`."""
    inputs, test_inputs, sealed, test_labels = data(run.settings["dataset"], device)
    shape = shape_of(benchmark_of(run.settings["dataset"]).train)
    # A vault of its own for every run: each is one complete, separately certified release.
    vault = fresh_vault(sealed)
    begun, notes = time.perf_counter(), {}
    # What is kept is kept by commit, or a line would claim one that made only a part of it.
    place = None if kept is None else kept / commit()

    def keep(name: str, network: nn.Module) -> None:
        shown = adapters.as_measured(run, network)
        value = adapters.METRICS[run.metric](shown, test_inputs, test_labels.values)
        notes.setdefault("networks", {})[name] = round(value, 3)
        if place is not None:
            file = f"{run.method}-epsilon-{run.epsilon:g}-seed-{run.seed}-{name}"
            networks.keep(place / "networks", file, shown, {"train": inputs, "test": test_inputs})

    trained = adapters.train(run, inputs, vault, _reporter(run, tell), place, notes, shape, keep)
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    value = adapters.METRICS[run.metric](trained, test_inputs, test_labels.values)
    if isinstance(trained, networks.OverShifts):
        plain = adapters.METRICS[run.metric](trained.model, test_inputs, test_labels.values)
        notes["without_shifts"] = round(plain, 3)
    claim = vault.certificate(run.settings.get("delta", 0.0))
    return {**record_of(run, value, seconds, claim, _device_name(device)), **notes}


def _reporter(run: Run, tell: Tell) -> Callable[[Progress], None]:
    """Counts epochs over all stages: a recipe of several stages starts each at one."""
    done = 0

    def report(progress: Progress) -> None:
        nonlocal done
        done += 1
        tell(News(run, epoch=done, loss=math.nan if progress.loss is None else progress.loss))

    return report


def record_of(run: Run, value: float, seconds: float, claim: Certificate, device: str) -> records.Record:
    """The run's line.

    Where the listed epsilon is only what a paper claimed for its noise (`claimed_epsilon`), the line's is the
    certificate's, and `listed_epsilon` keeps the other.
    """
    claimed = run.settings.get("claimed_epsilon", False)
    listed = {"listed_epsilon": records.plain(run.epsilon)} if claimed else {}
    return {
        "dataset": run.dataset, "method": run.method,
        "epsilon": records.plain(claim.epsilon if claimed else run.epsilon), "delta": claim.delta,
        "accounting": records.accounting(claim), "seed": run.seed, "metric": run.metric, "value": round(value, 3),
        "seconds": round(seconds, 2), "device": device, "commit": commit(), "settings": run.settings,
        "certificate": claim.to_json(), "group": run.group, "torch": torch.__version__, **listed,
    }  # fmt: skip


def fresh_vault(sealed: LabelVault) -> LabelVault:
    """The same labels in a new vault with an empty ledger and fresh noise.

    Only a benchmark harness may do this: every run is its own imaginary release of a public data set.
    """
    labels = sealed.reveal("a public benchmark data set, repeated with fresh noise")
    if isinstance(sealed, UserVault):
        return UserVault(labels, sealed.users, sealed.num_classes)
    return LabelVault(labels, sealed.num_classes)


def checked_device(name: str | None) -> str:
    """The device by this name, if this machine has it; the best one when None."""
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError):
        raise ValueError(f"device={name!r} cannot be used by PyTorch {torch.__version__} here; try cpu") from None
    return name


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else "CPU"


@functools.cache
def commit() -> str:
    """The checkout's commit, "+changes" where files differ from it; LABELDP_COMMIT where there is no history."""
    if "LABELDP_COMMIT" in os.environ:
        return os.environ["LABELDP_COMMIT"]
    try:
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)experiments/results")
        return _git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown (not run from a checkout)"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def train_missing(
    wanted: list[Run],
    out: Path,
    device: str,
    *,
    jobs: int = 1,
    tell: Tell,
    until: float = float("inf"),
    kept: Path | None = None,
) -> None:
    """Train every wanted run that has no line in `out` yet, and append its line as soon as it is done.

    `kept` is a folder of distillations that runs share (`experiments.kept_distillations`).
    """
    left = records.missing(wanted, records.read(out))
    for run in left:
        adapters.check_settings(run)

    def keep(news: News) -> None:
        if news.record is not None:
            records.append(out, news.record)
        tell(news)

    sweep(left, functools.partial(_run_beside, jobs=jobs, device=device, kept=kept), jobs=jobs, tell=keep, until=until)


def _run_beside(run: Run, tell: Tell, jobs: int, device: str, kept: Path | None = None) -> records.Record:
    """One of several trainings at once, each with its share of the processor's cores."""
    if jobs > 1:
        torch.set_num_threads(max(1, _THREADS // jobs))
    return run_one(run, device, tell, kept)


def main() -> None:
    """Parse, leave out what is done, train the rest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", type=Path)
    parser.add_argument("--group", action="append", default=[], help="run only this group (may be repeated)")
    parser.add_argument("--seed", action="append", type=int, help="run only this seed (may be repeated)")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    parser.add_argument("--device", help="default: cuda where there is one")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once")
    parser.add_argument("--minutes", type=float, default=1e6, help="start no new training after this long")
    parser.add_argument("--kept", type=Path, help="a folder of moments and their networks that runs share")
    parser.add_argument("--every", type=int, default=0, help="print the loss every so many epochs")
    arguments = parser.parse_args()
    if arguments.kept is not None and arguments.kept.exists() and not arguments.kept.is_dir():
        parser.error(f"--kept {arguments.kept} is a file; name a folder, or one to be made")
    wanted = runs(arguments.settings, arguments.group, arguments.seed)
    left = len(records.missing(wanted, records.read(arguments.out)))
    print(f"{left} runs to do, {len(wanted) - left} done before", flush=True)
    until, device = time.time() + 60 * arguments.minutes, checked_device(arguments.device)
    settings: dict[str, Any] = {"jobs": arguments.jobs, "until": until, "kept": arguments.kept}
    train_missing(wanted, arguments.out, device, tell=functools.partial(_print, every=arguments.every), **settings)


def _print(news: News, every: int) -> None:
    """Every run that is over, and some of its epochs where that is wanted."""
    if news.record is not None:
        print(f"{news.run.name}: {news.record['value']:.2f} in {news.record['seconds']:.1f} s", flush=True)
    elif every and news.epoch and news.epoch % every == 0:
        print(f"{time.strftime('%H:%M:%S')} {news.run.name}: epoch {news.epoch}, loss {news.loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
