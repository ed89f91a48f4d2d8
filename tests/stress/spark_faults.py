"""Jobs of Spark in which tasks fail, workers and executors are killed, copies run at once, and drivers stop half-way.

    python -m tests.stress.spark_faults FOLDER JOBS SEED [local | cluster] [entropy]
    python -m tests.stress.spark_faults FOLDER drivers

A job is a `privatize` (two of three) or a sum over partitions. Every attempt of every task writes down what it
answered, whether it lived or not. Prints counts as JSON: rows that were answered more than once, and of these with two
different answers; charges beside jobs; sums that are not those of one machine. With `entropy` noise comes from the
operating system in place of the key: that must be noticed.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from labeldp.budgets.journal import Journal
from labeldp.core.ledger import Budget
from labeldp.core.random import SecureRandom
from labeldp.data import partitions
from labeldp.data.partitions import MomentTask, withheld
from labeldp.engines import frames
from labeldp.engines.runs import Run
from labeldp.mechanisms.counts import GaussianNoise
from tests.stress import spark_faults

ROOT = Path(__file__).parents[2]
ROWS, PARTS, CLASSES = 2400, 6, ("no", "yes")
ASK = {"label": "y", "classes": CLASSES, "epsilon": 1.0, "id": "row_id"}
KINDS = {"local": ["task fails", "worker killed"], "cluster": ["executor killed", "copy at once", "worker killed"]}
STOPS = ["driver interrupted after the charge", "driver interrupted in the write"]


@dataclass(frozen=True)
class Plan:
    """What goes wrong in a job, and where attempts write down what they did."""

    folder: str
    seed: str
    kind: str
    entropy: bool


def faulty(plan, work, task, batches):
    """The work, and then in some partitions, at the first attempt, something goes wrong in the middle."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    part, attempt = context.partitionId(), context.attemptNumber()
    chance = random.Random(f"{plan.seed}/{work.__name__}/{part}")
    after = chance.randrange(1, 4) if attempt == 0 and chance.random() < 0.5 else None
    if plan.entropy:
        partitions.KeyedRandom = lambda key, release, ids: SecureRandom()
    for number, batch in enumerate(withheld(work)(task, batches), start=1):
        if work is partitions.answer:
            lines = dict(zip(*(batch.column(name).to_pylist() for name in ("row_id", "y")), strict=True))
            with Path(plan.folder, f"{part}-{context.taskAttemptId()}").open("a") as file:
                file.write(json.dumps(lines) + "\n")
        yield batch
        if number == after or (after and work is not partitions.answer):
            wrong(plan, part)


def wrong(plan, part):
    match plan.kind:
        case "task fails":
            raise RuntimeError("planted")
        case "worker killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "copy at once":
            if part == 0:
                time.sleep(6)
        case "executor killed":
            # One is enough: a job may lose four attempts of a task.
            try:
                os.close(os.open(Path(plan.folder, "killed"), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            daemon = os.getppid()
            os.kill(int(Path(f"/proc/{daemon}/stat").read_text().rsplit(")", 1)[1].split()[1]), signal.SIGKILL)


def phi(table):
    x = table.column("x").to_numpy().astype(np.float32)
    return np.stack([x, np.ones_like(x)], axis=1)


def nobody(ids):
    return np.zeros(len(ids), dtype=bool)


class Stopped(BaseException):
    """A driver that goes no further."""


def campaign(folder, jobs, seed, where="local", entropy=False):
    from tests.engines.sessions import session

    os.environ["PYTHONPATH"] = str(ROOT)
    more = {"spark.sql.execution.arrow.maxRecordsPerBatch": "100", "spark.executorEnv.PYTHONPATH": str(ROOT)}
    if where == "cluster":
        more |= {
            "spark.executor.memory": "512m", "spark.task.maxFailures": "8", "spark.speculation": "true",
            "spark.speculation.interval": "200ms", "spark.speculation.quantile": "0.5",
            "spark.speculation.multiplier": "1.1", "spark.speculation.minTaskRuntime": "500ms",
            "spark.deploy.maxExecutorRetries": "-1",
        }  # fmt: skip
    spark = session(folder, "local[2,4]" if where == "local" else "local-cluster[2,1,512]", **more)
    chance, found = random.Random(seed), Counter()
    journal = Journal.open(folder / "journal", Budget(10.0 * jobs))
    rows = spark.range(0, ROWS, 1, PARTS).selectExpr(
        "id as row_id", "if(hash(id) % 2 = 0, 'no', 'yes') as y", "double(hash(id, 1) % 1000) / 1000 as x"
    )
    lake = folder / "lake"
    rows.write.parquet(lake.as_uri())
    rows = spark.read.parquet(lake.as_uri()).repartition(PARTS, "row_id")
    whole = rows.toArrow()
    plain, charged = frames.mapped, 0
    for number in range(jobs):
        kind = chance.choice(KINDS[where] + (STOPS if number % 3 else []))
        seen = folder / f"seen-{number}"
        seen.mkdir()
        plan = Plan(str(seen), f"{seed}/{number}", kind, entropy)

        def mapped(frame, work, task, schema, plan=plan):
            return frame.mapInArrow(functools.partial(spark_faults.faulty, plan, work, task), schema)

        frames.mapped = mapped
        found[kind] += 1
        begun = time.time()
        if number % 3 == 0:
            summed(found, rows, whole)
        else:
            charged += 1
            answered(found, rows, folder / f"out-{number}", journal, seen, kind)
        frames.mapped = plain
        found["jobs"] += 1
        print(f"{number} {kind} {time.time() - begun:.1f} s {dict(found)}", file=sys.stderr, flush=True)
    found["jobs without a charge"] += max(0, charged - len(journal.queries()))
    found["charges without a job"] += max(0, len(journal.queries()) - charged)
    spark.stop()
    return dict(found)


def summed(found, rows, whole):
    task = MomentTask("y", CLASSES, "row_id", GaussianNoise(5.0), 2.0, 2, phi, nobody)
    length = len(task.empty().to_numbers())
    parts = frames.mapped(rows, partitions.add_moment, task, "sums binary")
    few = frames.mapped(parts.repartition(2), partitions.join, length, "sums binary")
    made = partitions.added_up(length, [frames.collected(few)])
    expected = partitions.added_up(length, partitions.add_moment(task, whole.combine_chunks().to_batches()))
    found["sums that differ"] += int((made != expected).any())


def answered(found, rows, out, journal, seen, kind):
    from labeldp.engines import spark as engine

    pay, write = Run.pay, frames.write

    def stop_after(self, *args):
        pay(self, *args)
        raise Stopped

    def stop_in(frame, folder):
        write(frame, folder)
        if folder.name == "output":
            # All of it was answered, and none of it named.
            folder.rename(folder.with_name("output.part"))
            raise Stopped

    if kind == STOPS[0]:
        Run.pay = stop_after
    if kind == STOPS[1]:
        frames.write = stop_in
    try:
        private = engine.privatize(rows, **ASK, journal=journal, out=out)
    except Stopped:
        Run.pay, frames.write = pay, write
        private = engine.privatize(rows, **ASK, journal=journal, out=out)
    compare(found, private.frame.select("row_id", "y").toArrow(), seen)


def compare(found, table, seen):
    answers, times = defaultdict(set), Counter()
    for file in seen.iterdir():
        for line in file.read_text().splitlines() if file.name != "killed" else []:
            try:
                said = json.loads(line)
            except ValueError:
                continue
            for row, answer in said.items():
                answers[int(row)].add(answer)
                times[int(row)] += 1
    for row, answer in zip(*(table.column(name).to_pylist() for name in ("row_id", "y")), strict=True):
        answers[row].add(answer)
    found["rows"] += table.num_rows
    found["rows lost or doubled"] += abs(ROWS - len(set(table.column("row_id").to_pylist()))) + abs(
        ROWS - table.num_rows
    )
    found["rows answered more than once"] += sum(count > 1 for count in times.values())
    found["rows with two answers"] += sum(len(said) > 1 for said in answers.values())


def drive(folder, moment, kill):
    """One job with a driver of its own, which is killed with -9 at this moment; or not, and goes on."""
    from labeldp.engines import spark as engine
    from tests.engines.sessions import session

    os.environ["PYTHONPATH"] = str(ROOT)
    seen = folder / f"seen-{moment}-{kill}"
    seen.mkdir()
    (folder / f"spark-{moment}-{kill}").mkdir()
    spark = session(folder / f"spark-{moment}-{kill}", "local[1]")
    rows = spark.range(0, ROWS, 1, PARTS).selectExpr("id as row_id", "if(hash(id) % 2 = 0, 'no', 'yes') as y")
    pay, write, plan = Run.pay, frames.write, Plan(str(seen), moment, "none", False)
    frames.mapped = lambda frame, work, task, schema: frame.mapInArrow(
        functools.partial(spark_faults.faulty, plan, work, task), schema
    )

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    if kill and moment == "charged":
        Run.pay = lambda *args: die(pay(*args))
    if kill and moment == "written":
        frames.write = lambda frame, where: (
            write(frame, where) if where.name == "snapshot" else die(write(frame, where))
        )
    engine.privatize(rows, **ASK, journal=Journal.open(folder / "journal"), out=folder / f"out-{moment}")


def drivers(folder):
    """Kill drivers with -9 after the charge and after the write, and give the same call again."""
    found, journal = Counter(), Journal.open(folder / "journal", Budget(10.0))
    for place, moment in enumerate(("charged", "written"), start=1):
        command = [sys.executable, "-m", "tests.stress.spark_faults", str(folder), moment]
        first = subprocess.run([*command, "kill"], check=False, capture_output=True, cwd=ROOT)
        assert first.returncode == -signal.SIGKILL, first.stderr.decode()[-2000:]
        assert len(journal.queries()) == place
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
        found["drivers killed"] += 1
        found["charges without a job"] += len(journal.queries()) - place
        both = folder / f"both-{moment}"
        both.mkdir()
        for kill in (True, False):
            for file in (folder / f"seen-{moment}-{kill}").iterdir():
                file.rename(both / f"{kill}-{file.name}")
        compare(found, pq.read_table(folder / f"out-{moment}"), both)
    return dict(found)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    match sys.argv[2:]:
        case ["drivers"]:
            print(json.dumps(drivers(place)))
        case ["charged" | "written" as moment, *kill]:
            drive(place, moment, bool(kill))
        case [jobs, seed, *more]:
            where = "cluster" if "cluster" in more else "local"
            print(json.dumps(campaign(place, int(jobs), int(seed), where, "entropy" in more)))
