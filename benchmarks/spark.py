"""How fast Spark privatizes, adds up a moment and trains, beside the same jobs without privacy.

    python benchmarks/spark.py [--rows 1000000] [--rounds 3] [--what privatize moment train] [--json]

Rows are generated on the fly, on two cores. Within a round ours and the reference take turns:

    privatize   beside the same job with an identity `mapInArrow` and the same check for repeated ids
    moment      beside the same features added up by class in floats, without a grid and without noise
    train       alone: the whole way to a folder

The first job of a session starts its workers, and is not counted. Memory is the most that the process and all of its
children (the Java machine and Python workers) held together.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa

from labeldp.data import partitions
from labeldp.data.labels import column_codes
from labeldp.data.partitions import MomentTask
from labeldp.engines import frames
from labeldp.engines import spark as engine
from labeldp.mechanisms.counts import GaussianNoise

CLASSES = ("no", "yes")
WIDTH = 64
ASK = {"label": "y", "classes": CLASSES, "id": "row_id", "epsilon": 1.0}


def identity(_, batches):
    """Change nothing."""
    yield from batches


def phi(table):
    """Features that cost about what those of a table cost: WIDTH numbers of a row, bounded."""
    x, z = (table.column(name).to_numpy().astype(np.float32)[:, None] for name in ("x", "z"))
    found = np.cos(x * np.arange(1, WIDTH + 1, dtype=np.float32) + z)
    found /= np.float32(np.sqrt(WIDTH))
    return found


def nobody(ids):
    """Set no row aside."""
    return np.zeros(len(ids), dtype=bool)


def plain_sum(_, batches):
    """The sum without privacy: floats, a product of matrices."""
    whole = np.zeros((len(CLASSES), WIDTH))
    for batch in batches:
        table = pa.Table.from_batches([batch])
        codes, _ = column_codes(table.column("y"), CLASSES)
        whole += np.eye(len(CLASSES), dtype=np.float32)[codes].T @ phi(table)
    yield pa.RecordBatch.from_arrays([pa.array([whole.tobytes()], pa.binary())], ["sums"])


class Peak(threading.Thread):
    """The most memory of this process and its children, in MiB, looked at ten times a second."""

    def __init__(self):
        super().__init__(daemon=True)
        self.peak, self.going = 0.0, True
        self.start()

    def run(self):
        """Look, until told otherwise."""
        while self.going:
            self.peak = max(self.peak, sum(_memory(one) for one in _family(os.getpid())))
            time.sleep(0.1)


def _family(process):
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        children = []
    for thread in Path(f"/proc/{process}/task").iterdir() if Path(f"/proc/{process}/task").exists() else []:
        try:
            children += (thread / "children").read_text().split()
        except OSError:
            continue
    yield process
    for child in set(children):
        yield from _family(int(child))


def _memory(process):
    try:
        # Proportional: pages that forked workers share count once.
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    except (OSError, StopIteration):
        return 0.0


def contestants(what, df, folder):
    """Ours and, where there is one, the reference."""
    if what == "privatize":

        def ours():
            engine.privatize(df, **ASK, out=folder / "private")

        def reference():
            df.write.parquet((folder / "snapshot").as_uri())
            seen = df.sparkSession.read.parquet((folder / "snapshot").as_uri())
            seen.select("row_id").distinct().count()
            frames.mapped(seen, identity, None, seen.schema).write.parquet((folder / "private").as_uri())

        return {"ours": ours, "identity": reference}
    if what == "moment":
        task = MomentTask("y", CLASSES, "row_id", GaussianNoise(5.0), 1.0, WIDTH, phi, nobody)
        length = len(task.empty().to_numbers())

        def added():
            parts = frames.mapped(df, partitions.add_moment, task, "sums binary")
            few = frames.mapped(parts.repartition(8), partitions.join, length, "sums binary")
            partitions.added_up(length, [few.toArrow()])

        def plain():
            parts = frames.mapped(df, plain_sum, None, "sums binary")
            sum(np.frombuffer(one) for one in parts.repartition(8).toArrow().column("sums").to_pylist())

        return {"ours": added, "floats": plain}
    return {"ours": functools.partial(engine.train, df, **ASK, delta=1e-9, out=folder / "model")}


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--what", nargs="+", default=["privatize", "moment", "train"])
    parser.add_argument("--heap", default="1g")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    from pyspark.sql import SparkSession

    home = Path(tempfile.mkdtemp())
    made = SparkSession.builder.master("local[2]").config("spark.driver.memory", given.heap)
    for name, value in {
        "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "8", "spark.local.dir": str(home / "local"), "spark.driver.host": "127.0.0.1",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    }.items():  # fmt: skip
        made = made.config(name, value)
    spark = made.getOrCreate()

    def rows(count):
        return spark.range(0, count, 1, max(2, count // 500_000)).selectExpr(
            "id as row_id", "if(hash(id) % 3 = 0, 'yes', 'no') as y", "double(hash(id, 1) % 1000) / 1000 as x",
            "double(hash(id, 2) % 1000) / 1000 as z", "concat('city', abs(hash(id, 3)) % 50) as city",
        )  # fmt: skip

    found = {}
    for what in given.what:
        for count, rounds in ((20_000, 1), (given.rows, given.rounds)):
            seconds: dict[str, list[float]] = {}
            peak = Peak()
            for _ in range(rounds):
                folder = Path(tempfile.mkdtemp(dir=home))
                for name, run in contestants(what, rows(count), folder).items():
                    begun = time.perf_counter()
                    run()
                    seconds.setdefault(name, []).append(time.perf_counter() - begun)
                    shutil.rmtree(folder)
                    folder.mkdir()
            peak.going = False
        median = {name: statistics.median(one) for name, one in seconds.items()}
        for name, one in seconds.items():
            spread = f"{given.rows / max(one):,.0f} – {given.rows / min(one):,.0f}"
            print(f"{what} {name:>9}: {given.rows / median[name]:12,.0f} rows/s  ({spread}, {len(one)} rounds)")
        others = [name for name in seconds if name != "ours"]
        ratios = {n: statistics.median(a / b for a, b in zip(seconds["ours"], seconds[n], strict=True)) for n in others}
        for name, ratio in ratios.items():
            print(f"{what}: {ratio:.2f} × the time of {name} (median of the rounds)")
        print(f"{what}: {peak.peak:,.0f} MiB at most")
        found[what] = {"seconds": seconds, "ratio": ratios, "MiB": peak.peak}
    spark.stop()
    shutil.rmtree(home)
    if given.json:
        print(json.dumps({"rows": given.rows, **found}))


if __name__ == "__main__":
    main()
