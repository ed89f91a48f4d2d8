"""How fast Spark privatizes, adds up a moment and trains, beside the same jobs without privacy.

    python benchmarks/spark.py [--rows 1e6,1e7] [--rounds 3] [--what privatize moment train] [--json]

Rows are generated on the fly, on two cores. Within a round ours and the reference take turns, which of them is first
as well:

    privatize   beside the same job with an identity `mapInArrow` and the same check for repeated ids
    moment      beside the same features added up by class in floats, without a grid and without noise
    train       alone: the whole way to a folder

The first job of a session starts its workers, and is not counted. Beside wall time stands processor time, of the
process and all of its children (the Java machine and Python workers), which other work on the machine changes less.
Memory is the most that they held together.
"""

from __future__ import annotations

import argparse
import contextlib
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

from labeldp.core.keyed import stream
from labeldp.core.random import system_key
from labeldp.data import partitions
from labeldp.data.labels import column_codes
from labeldp.data.partitions import MomentTask
from labeldp.engines import frames
from labeldp.engines import spark as engine
from labeldp.engines.spark_model import summed
from labeldp.mechanisms.counts import GaussianNoise
from labeldp.mechanisms.moments import Moments, RowChunks

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


class Watch(threading.Thread):
    """The most memory of this process and its children, in MiB, and their processor seconds."""

    def __init__(self):
        super().__init__(daemon=True)
        self.peak, self.going, self._before = 0.0, True, _seconds()
        self.start()

    def run(self):
        """Look five times a second, until told otherwise."""
        while self.going:
            self.peak = max(self.peak, sum(_memory(one) for one in _family(os.getpid())))
            time.sleep(0.2)

    def stop(self):
        """Return processor seconds since the beginning."""
        self.going = False
        self.join()
        return _seconds() - self._before


def _family(process):
    children = set()
    # Each thread has its own.
    for thread in Path(f"/proc/{process}/task").glob("*"):
        with contextlib.suppress(OSError):
            children.update((thread / "children").read_text().split())
    yield process
    for child in children:
        yield from _family(int(child))


def _memory(process):
    try:
        # Proportional: pages that forked workers share count once.
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    except (OSError, StopIteration):
        return 0.0


def _seconds():
    ticks = 0
    for process in _family(os.getpid()):
        with contextlib.suppress(OSError):
            # User and system time, of the process and of children that have ended.
            ticks += sum(map(int, Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def contestants(what, df, count, folder):
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

        def added():
            whole = Moments(RowChunks(count, WIDTH, lambda: ()), len(CLASSES), task.noise, task.radius)
            lines = summed(df, partitions.add_moment, task, parts(count))
            partitions.noisy_moment(task, whole, lines, stream(system_key(), "release"))

        def plain():
            lines = frames.mapped(df, plain_sum, None, "sums binary").toArrow()
            sum(np.frombuffer(one) for one in lines.column("sums").to_pylist())

        return {"ours": added, "floats": plain}
    return {"ours": functools.partial(engine.train, df, **ASK, delta=1e-9, out=folder / "model")}


def parts(count):
    """How many partitions so many rows come in."""
    return max(2, count // 500_000)


def measure(spark, what, count, rounds, home):
    """Wall and processor seconds of each contestant in each round, and the most memory."""
    spark.conf.set("spark.sql.shuffle.partitions", str(max(8, count // 2_000_000)))
    df = spark.range(0, count, 1, parts(count)).selectExpr(
        "id as row_id", "if(hash(id) % 3 = 0, 'yes', 'no') as y", "double(hash(id, 1) % 1000) / 1000 as x",
        "double(hash(id, 2) % 1000) / 1000 as z", "concat('city', abs(hash(id, 3)) % 50) as city",
    )  # fmt: skip
    found: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds):
        folder = Path(tempfile.mkdtemp(dir=home))
        for name, run in list(contestants(what, df, count, folder).items())[:: -1 if number % 2 else 1]:
            begun, watch = time.perf_counter(), Watch()
            run()
            one = {"wall": time.perf_counter() - begun, "processor": watch.stop(), "MiB": watch.peak}
            for key, value in one.items():
                found.setdefault(name, {}).setdefault(key, []).append(value)
            shutil.rmtree(folder)
            folder.mkdir()
    return found


def show(what, count, found):
    """Print rates and ratios."""
    for name, times in found.items():
        rates = sorted(count / seconds for seconds in times["wall"])
        spent = statistics.median(times["processor"]) / count * 1e6
        print(
            f"{what} {count:.0e} {name:>9}: {statistics.median(rates):10,.0f} rows/s ({rates[0]:,.0f} – "
            f"{rates[-1]:,.0f}, {len(rates)} rounds), {spent:.2f} processor s per million rows, "
            f"{max(times['MiB']):,.0f} MiB at most"
        )
    for name in [name for name in found if name != "ours"]:
        for kind in ("wall", "processor"):
            ratios = sorted(a / b for a, b in zip(found["ours"][kind], found[name][kind], strict=True))
            print(
                f"{what} {count:.0e}: {statistics.median(ratios):.2f} × the {kind} time of {name} "
                f"({ratios[0]:.2f} – {ratios[-1]:.2f})"
            )
    print(f"load {os.getloadavg()[0]:.1f} at the end", flush=True)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", default="1e6")
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
        "spark.local.dir": str(home / "local"), "spark.driver.host": "127.0.0.1",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    }.items():  # fmt: skip
        made = made.config(name, value)
    spark = made.getOrCreate()
    found = []
    try:
        for what in given.what:
            measure(spark, what, 20_000, 1, home)
            for count in (int(float(text)) for text in given.rows.split(",")):
                one = measure(spark, what, count, given.rounds, home)
                show(what, count, one)
                found.append({"what": what, "rows": count, **one})
    finally:
        spark.stop()
        shutil.rmtree(home)
    if given.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
