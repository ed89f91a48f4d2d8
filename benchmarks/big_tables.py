"""Time and memory of `labeldp train` on big tables, beside LightGBM without privacy, in one run.

    python benchmarks/big_tables.py [--rows 1e6,1e7] [--formats parquet,csv,folder] [--repeats 1] [--threads 2]

The table is made up: 20 numbers, 3 categories of 5, 30 and 400 values, two classes. Every contestant is a process of
its own that reads the file and ends with a model; in each round they run one after the other. "CPU s" are processor
seconds, which other work on the machine changes less than wall time; "peak" is the largest resident memory. AUC is on
100,000 other rows. LightGBM has its defaults (100 trees of 31 leaves), categories as categories.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

SIZES, AT_ONCE = (5, 30, 400), 250_000

LIGHTGBM = """
import sys, numpy as np, pyarrow.parquet as pq, lightgbm as lgb
def frame(path):
    table = pq.read_table(path)
    x = table.drop(["y"]).to_pandas(categories=["c0", "c1", "c2"])
    return x, np.asarray(table["y"].to_pandas() == "yes")
source, test, threads = sys.argv[1:]
x, y = frame(source)
model = lgb.LGBMClassifier(n_jobs=int(threads), verbose=-1).fit(x, y)
other, truth = frame(test)
for name in ("c0", "c1", "c2"):
    other[name] = other[name].cat.set_categories(x[name].cat.categories)
from labeldp.results.measure import auc
print("AUC", auc(model.predict_proba(other)[:, 1], truth.astype(int)))
"""


def part(rows: int, seed: int) -> pa.Table:
    """Return rows of the made-up table."""
    chance = np.random.default_rng([7, seed])
    x = chance.normal(size=(rows, 20)).astype(np.float32)
    kinds = [chance.integers(size, size=rows) for size in SIZES]
    fixed = np.random.default_rng(99)
    score = x @ fixed.normal(scale=0.5, size=20) + np.sin(2 * x[:, 0])
    for size, kind in zip(SIZES, kinds, strict=True):
        score = score + fixed.normal(scale=0.7, size=size)[kind]
    label = chance.random(rows) < 1 / (1 + np.exp(-score))
    columns = {f"x{i}": x[:, i] for i in range(20)}
    for number, (size, kind) in enumerate(zip(SIZES, kinds, strict=True)):
        columns[f"c{number}"] = pa.array([f"v{value}" for value in range(size)]).take(pa.array(kind))
    return pa.table({**columns, "y": pa.array(["no", "yes"]).take(pa.array(label.astype(np.int64)))})


def write(path: Path, rows: int) -> None:
    """Write the table as a Parquet or CSV file, or as a folder of Parquet files."""
    parts = (part(min(AT_ONCE, rows - start), start) for start in range(0, rows, AT_ONCE))
    if not path.suffix:
        path.mkdir()
        for number, table in enumerate(parts):
            pq.write_table(table, path / f"part-{number:04d}.parquet")
        return
    kind = pq.ParquetWriter if path.suffix == ".parquet" else pacsv.CSVWriter
    with kind(str(path), part(1, 0).schema) as sink:
        for table in parts:
            sink.write_table(table)


def measured(command: list[str], threads: int) -> tuple[float, float, float, str]:
    """Return wall and processor seconds, GiB at the peak and what it printed, of one process."""
    settings = {"OMP_NUM_THREADS": str(threads), "ARROW_NUM_THREADS": str(threads)}
    begun = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **settings})
    printed = child.stdout.read() if child.stdout else ""
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{command[:3]} failed: {printed[-500:]}")
    return time.perf_counter() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20, printed


def main() -> None:
    """Run all contestants on all sizes."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", default="1e6")
    options.add_argument("--formats", default="parquet,csv,folder")
    options.add_argument("--repeats", type=int, default=1)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--methods", default="auto", help="of labeldp train, comma-separated")
    given = options.parse_args()
    python = sys.executable
    print(f"{'rows':>11}  {'contestant':<28} {'wall s':>8} {'CPU s':>8} {'peak GiB':>9} {'AUC':>7}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        test = folder / "test.parquet"
        pq.write_table(part(100_000, 1 << 40), test)
        for rows in (int(float(text)) for text in given.rows.split(",")):
            files = {kind: folder / (f"t.{kind}" if kind != "folder" else "t") for kind in given.formats.split(",")}
            files.setdefault("parquet", folder / "t.parquet")
            for path in files.values():
                write(path, rows)
            found: dict[str, list[tuple[float, float, float, str]]] = {}
            for _ in range(given.repeats):
                for kind in given.formats.split(","):
                    for method in given.methods.split(","):
                        model = folder / "model"
                        command = [
                            python, "-m", "labeldp", "train", str(files[kind]), "--label", "y", "--classes", "no,yes",
                            "--epsilon", "1", "--method", method, "--out", str(model), "--quiet",
                        ]  # fmt: skip
                        one = measured(command, given.threads)
                        name = f"labeldp, {kind}" + ("" if method == "auto" else f", {method}")
                        found.setdefault(name, []).append((*one[:3], _auc(model, test)))
                        for path in sorted(model.rglob("*"), reverse=True):
                            path.unlink()
                        model.rmdir()
                command = [python, "-c", LIGHTGBM, str(files["parquet"]), str(test), str(given.threads)]
                one = measured(command, given.threads)
                found.setdefault("LightGBM, parquet, ε = ∞", []).append((*one[:3], one[3].split()[-1]))
            for name, runs in found.items():
                wall, cpu, peak = (statistics.median(run[i] for run in runs) for i in range(3))
                area = statistics.median(float(run[3]) for run in runs)
                print(f"{rows:>11,}  {name:<28} {wall:8.1f} {cpu:8.1f} {peak:9.2f} {area:7.4f}", flush=True)
            for path in files.values():
                for one_file in path.glob("*") if path.is_dir() else ():
                    one_file.unlink()
                path.rmdir() if path.is_dir() else path.unlink()


def _auc(model: Path, test: Path) -> str:
    """Return the AUC of a folder's model on the rows of a test table."""
    from labeldp.results.measure import auc
    from labeldp.results.model import load

    table = pq.read_table(test)
    likely = load(model).probabilities(table.drop(["y"]))[:, 1]
    return str(auc(likely, (np.asarray(table["y"].to_pylist()) == "yes").astype(int)))


if __name__ == "__main__":
    main()
