"""How fast a file is privatized, and in how much memory, beside a plain read-and-rewrite of the same file.

    python benchmarks/privatize.py [--rows 10000000] [--repeats 3] [--json]

Every measurement is a process of its own, so that its peak memory is its own. Times are of the call alone,
without starting Python and importing; CPU seconds are of the whole process, and steadier when the machine is
shared. With --json the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

CLASSES = ["no", "yes", "maybe"]
CHUNK = 1 << 20

# VmHWM is the peak of the process since its own start; ru_maxrss would begin with the memory of its parent.
SETUP = """
import sys, time
from pathlib import Path
source, target = map(Path, sys.argv[1:3])
def done(started):
    seconds, cpu = time.perf_counter() - started, time.process_time()
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(seconds, cpu, int(peak.split()[1]) / 1024)
"""
PRIVATIZE = (
    SETUP
    + """
from labeldp.data.tables import privatize
started = time.perf_counter()
privatize(source, target, label="label", classes=["no", "yes", "maybe"], epsilon=1.0)
done(started)
"""
)
REWRITE = (
    SETUP
    + """
import pyarrow.parquet as pq
started = time.perf_counter()
with pq.ParquetFile(source, pre_buffer=False, buffer_size=1 << 20) as file:
    with pq.ParquetWriter(target, file.schema_arrow) as writer:
        for batch in file.iter_batches(batch_size=1 << 18):
            writer.write_batch(batch)
done(started)
"""
)
COPY = (
    SETUP
    + """
started = time.perf_counter()
with source.open("rb") as old, target.open("wb") as new:
    while block := old.read(8 << 20):
        new.write(block)
done(started)
"""
)


def chunk(rows: int, seed: int) -> pa.Table:
    """Five features and a label, drawn fresh for every chunk."""
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "age": rng.integers(17, 90, rows, dtype=np.int16),
            "income": rng.normal(size=rows),
            "hours": rng.normal(size=rows).astype(np.float32),
            "label": pa.array(rng.integers(0, 3, rows, dtype=np.int8)).cast(pa.int32()),
            "city": pa.array([f"city-{i}" for i in range(50)]).take(pa.array(rng.integers(0, 50, rows))),
            "score": rng.random(rows),
        }
    )


def with_text_labels(table: pa.Table) -> pa.Table:
    """The labels as text, which is what most files hold."""
    place = table.schema.get_field_index("label")
    return table.set_column(place, "label", pa.array(CLASSES).take(table["label"].combine_chunks()))


def write_source(path: Path, rows: int) -> None:
    """A Parquet file of this many rows, written in chunks of one row group each."""
    writer: pq.ParquetWriter | None = None
    for number, start in enumerate(range(0, rows, CHUNK)):
        table = with_text_labels(chunk(min(CHUNK, rows - start), number))
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer:
        writer.close()


def run_once(script: str, source: Path) -> list[float]:
    """Seconds, CPU seconds and peak MiB of one fresh process."""
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        command = [sys.executable, "-c", script, str(source), str(Path(folder) / f"out{source.suffix}")]
        found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [float(number) for number in found.split()]


def measure(jobs: dict[str, tuple[str, Path, int]], repeats: int) -> dict[str, dict[str, float]]:
    """Median and spread of the seconds, median CPU seconds, largest peak memory, for every job.

    The jobs take turns, so that a busy spell of the machine falls on all of them.
    """
    runs: dict[str, list[list[float]]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, (script, source, _rows) in jobs.items():
            runs[name].append(run_once(script, source))
    return {name: {"rows": jobs[name][2], **statistics_of(found)} for name, found in runs.items()}


def statistics_of(runs: list[list[float]]) -> dict[str, float]:
    """What is kept of several runs."""
    seconds, cpu, peaks = zip(*runs, strict=True)
    return {
        "seconds": statistics.median(seconds),
        "spread": max(seconds) - min(seconds),
        "cpu_seconds": statistics.median(cpu),
        "peak_mib": max(peaks),
    }


def parquet_jobs(folder: Path, rows: int) -> dict[str, tuple[str, Path, int]]:
    """Privatizing at `rows` and twice as many, and the plain rewrite at `rows`."""
    once, twice = folder / "1.parquet", folder / "2.parquet"
    write_source(once, rows)
    write_source(twice, 2 * rows)
    return {
        "privatize": (PRIVATIZE, once, rows),
        "rewrite": (REWRITE, once, rows),
        "privatize_twice_the_rows": (PRIVATIZE, twice, 2 * rows),
    }


def csv_jobs(folder: Path, rows: int) -> dict[str, tuple[str, Path, int]]:
    """Privatizing a CSV file with quotes where needed and everywhere, and copying its bytes."""
    table = with_text_labels(chunk(rows, 0))
    needed, quoted = folder / "needed.csv", folder / "quoted.csv"
    pacsv.write_csv(table, needed, pacsv.WriteOptions(quoting_style="needed"))
    pacsv.write_csv(table, quoted, pacsv.WriteOptions(quoting_style="all_valid"))
    return {
        "csv": (PRIVATIZE, needed, rows),
        "csv_all_quoted": (PRIVATIZE, quoted, rows),
        "csv_copy": (COPY, needed, rows),
    }


def summary(results: dict[str, dict[str, float]]) -> dict[str, float]:
    """The ratios the targets speak about."""
    once, twice, plain = results["privatize"], results["privatize_twice_the_rows"], results["rewrite"]
    return {
        "rows_per_second": once["rows"] / once["seconds"],
        "peak_mib": max(once["peak_mib"], twice["peak_mib"]),
        "time_ratio_of_twice_the_rows": twice["seconds"] / once["seconds"],
        "cpu_ratio_of_twice_the_rows": twice["cpu_seconds"] / once["cpu_seconds"],
        "memory_ratio_of_twice_the_rows": twice["peak_mib"] / once["peak_mib"],
        "time_ratio_to_plain_rewrite": once["seconds"] / plain["seconds"],
        "csv_rows_per_second": results["csv"]["rows"] / results["csv"]["seconds"],
    }


def main() -> None:
    """Run all of it and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--csv-rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        results = measure(parquet_jobs(Path(name), options.rows), options.repeats)
        results |= measure(csv_jobs(Path(name), min(options.csv_rows, options.rows)), options.repeats)
    print(f"{'what':26} {'rows':>10} {'seconds':>9} {'spread':>8} {'CPU s':>8} {'rows/s':>12} {'peak MiB':>9}")
    for what, found in results.items():
        speed = found["rows"] / found["seconds"]
        numbers = f"{found['seconds']:9.2f} {found['spread']:8.2f} {found['cpu_seconds']:8.2f}"
        print(f"{what:26} {found['rows']:10,.0f} {numbers} {speed:12,.0f} {found['peak_mib']:9.0f}")
    ratios = summary(results)
    for what, value in ratios.items():
        print(f"{what:32} {value:14,.2f}")
    if options.json:
        print(json.dumps({"benchmark": "privatize", "results": results, "summary": ratios}))


if __name__ == "__main__":
    main()
