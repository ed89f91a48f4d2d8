"""Time to the first certified model, and what training takes at 10⁶ and 10⁷ rows: seconds and memory.

    first model   `labeldp train adult --epsilon 1` and `labeldp verify`, from the installed package to a checked folder
    --install     the same from a fresh clone and a new virtual environment: clone, install and train, each by itself.
                  Installing is mostly the network, so it is left out unless asked for
    rows          `labeldp train` on a Parquet file of 20 numbers and 3 categories per row, with open labels of 50,000
                  further rows to measure with

Everything runs through the command line in a process of its own. Wall and CPU seconds (user and system, all threads)
and the peak of resident memory are those the kernel has counted for that process; "imports" is a process that loads
the same libraries and does nothing, the floor under the others. "data" is rows × 23 columns × 8 bytes.

Run: python benchmarks/first_model.py [--rows 1000000] [--repeats 3] [--install] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
NUMBERS, CATEGORIES, OPEN_ROWS = 20, 3, 50_000
_GROUP = 1 << 18
_LIBRARIES = "import labeldp.results.model"


@dataclass(frozen=True)
class Cost:
    """What a process took, as the kernel counted it."""

    wall: float
    cpu: float
    peak_mib: float


def cost(command: Sequence[str | Path]) -> tuple[Cost, str]:
    """Run a command; its cost and what it printed. Stops at the first that fails."""
    begun = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen([str(part) for part in command], stdout=output, stderr=subprocess.STDOUT)
        # Not getrusage of all children: its peak is that of the largest, whichever it was. A child starts with its
        # parent's peak, so this process imports nothing large.
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - begun
        output.seek(0)
        printed = output.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed with {process.returncode}:\n{printed}")
    return Cost(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024), printed


# -- the first model ---------------------------------------------------------------------------------------------------


def first_model(repeats: int, as_json: bool) -> None:
    """From the installed package to a model folder that was checked."""
    floor = [cost([sys.executable, "-c", _LIBRARIES])[0] for _ in range(repeats)]
    trained, checked = zip(*(_certified(_here()) for _ in range(repeats)), strict=True)
    for name, found in (("imports", floor), ("train adult", trained), ("verify", checked)):
        _say(name, found, as_json)


def _certified(labeldp: Sequence[str | Path]) -> tuple[Cost, Cost]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "model"
        trained, _ = cost([*labeldp, "train", "adult", "--epsilon", "1", "--out", out, "--quiet"])
        checked, _ = cost([*labeldp, "verify", out])
    return trained, checked


def _here() -> list[str]:
    return [sys.executable, "-m", "labeldp"]


def from_checkout(as_json: bool) -> None:
    """From nothing: clone, install, train, verify."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "labeldp"
        python = tree / ".venv" / "bin" / "python"
        cloned, _ = cost(["git", "clone", "--quiet", ROOT, tree])
        made, _ = cost([sys.executable, "-m", "venv", tree / ".venv"])
        settings = ["--quiet", "--disable-pip-version-check", "-c", tree / "constraints.txt"]
        installed, _ = cost([python, "-m", "pip", "install", *settings, "-e", f"{tree}[sklearn]"])
        trained, checked = _certified([tree / ".venv" / "bin" / "labeldp"])
    steps = {"clone": cloned, "environment": made, "install": installed, "first train": trained, "verify": checked}
    for name, found in steps.items():
        _say(name, [found], as_json)
    _say_line(f"from a fresh checkout to a certified model: {sum(one.wall for one in steps.values()):.0f} s", as_json)


# -- many rows ---------------------------------------------------------------------------------------------------------


def many_rows(rows: int, as_json: bool) -> None:
    """Train on a table of so many rows; cost beside the size of its data."""
    with tempfile.TemporaryDirectory() as folder:
        table, test, out = (Path(folder) / name for name in ("table.parquet", "test.parquet", "model"))
        for path, count, seed in ((table, rows, 0), (test, OPEN_ROWS, 1)):
            cost([sys.executable, __file__, "--write", path, "--rows", str(count), "--seed", str(seed)])
        asked = ["--label", "label", "--classes", "no,yes", "--epsilon", "1", "--test", test, "--out", out, "--json"]
        found, printed = cost([*_here(), "train", table, *asked])
        cost([*_here(), "verify", out])
        size = table.stat().st_size
    told = json.loads(printed.splitlines()[-1])
    data = rows * (NUMBERS + CATEGORIES) * 8 / 2**20
    facts = {
        "rows": rows, "method": told["method"], "auc": told["metrics"]["test"]["auc"], "data_mib": data,
        "file_mib": size / 2**20, "times_data": found.peak_mib / data, "bytes_per_row": found.peak_mib * 2**20 / rows,
    }  # fmt: skip
    if as_json:
        _say(f"train {rows:,} rows", [found], as_json, **facts)
        return
    _say(f"train {rows:,} rows", [found], as_json)
    print(
        f"  {facts['method']}, AUC {facts['auc']:.4f} on open labels; data {data:,.0f} MiB, file {size / 2**20:,.0f} "
        f"MiB; peak is {facts['times_data']:.1f} × data, {facts['bytes_per_row']:,.0f} bytes per row",
        flush=True,
    )


def write_table(path: Path, rows: int, seed: int) -> None:
    """Numbers of several shapes, one in 20 of one column missing, and categories of 4, 40 and 4,000 values."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng, schema = np.random.default_rng(seed), None
    sizes = (4, 40, 4000)
    effects = [np.random.default_rng(7).normal(size=size) for size in sizes]
    writer = None
    for start in range(0, rows, _GROUP):
        n = min(_GROUP, rows - start)
        x = rng.normal(size=(n, NUMBERS))
        x[:, 5:10] = np.exp(x[:, 5:10])
        x[:, 10:15] = np.floor(10 * np.abs(x[:, 10:15]))
        codes = [rng.integers(size, size=n) for size in sizes]
        score = x[:, 0] - x[:, 1] ** 2 / 2 + np.log(x[:, 5]) + 0.05 * x[:, 10]
        score += sum(effect[code] for effect, code in zip(effects, codes, strict=True)) / 2
        label = np.where(score + rng.logistic(size=n) > 0.3, "yes", "no")
        x[rng.random(n) < 0.05, 2] = np.nan
        columns = {f"x{j}": pa.array(x[:, j], from_pandas=True) for j in range(NUMBERS)}
        names = [np.array([f"value {value}" for value in range(size)]) for size in sizes]
        columns |= {f"c{j}": pa.array(names[j][codes[j]]) for j in range(CATEGORIES)}
        part = pa.table({**columns, "label": label})
        schema = schema or part.schema
        writer = writer or pq.ParquetWriter(path, schema)
        writer.write_table(part)
    if writer is not None:
        writer.close()


# -- words -------------------------------------------------------------------------------------------------------------


def _say(name: str, found: Sequence[Cost], as_json: bool, **facts: object) -> None:
    if as_json:
        print(json.dumps({"benchmark": "first_model", "what": name, "runs": [asdict(one) for one in found], **facts}))
        return
    parts = [f"{_spread([one.wall for one in found])} s", f"CPU {_spread([one.cpu for one in found])} s"]
    print(f"{name:22} {', '.join(parts)}, peak {median(one.peak_mib for one in found):,.0f} MiB", flush=True)


def _say_line(text: str, as_json: bool) -> None:
    if not as_json:
        print(text, flush=True)


def _spread(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{median(values):.1f} ({min(values):.1f} – {max(values):.1f})"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the large table; 0 leaves it out")
    parser.add_argument("--repeats", type=int, default=3, help="of the first model; 0 leaves it out")
    parser.add_argument("--install", action="store_true", help="also from a fresh clone and a new environment")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write_table(options.write, options.rows, options.seed)
        return
    if options.install:
        from_checkout(options.json)
    if options.repeats:
        first_model(options.repeats, options.json)
    if options.rows:
        many_rows(options.rows, options.json)


if __name__ == "__main__":
    main()
