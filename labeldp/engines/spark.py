"""Run on Spark: private responses, a one-shot model and its predictions, over data frames of any size.

    privatize   a frame in, the same frame with private labels out, and a certificate
    train       a frame in, the folder that `labeldp train` writes out
    predict     such a folder and a frame in, predictions out

All work is done by `mapInArrow` on plain frames, so that Spark Connect works too. A query is charged once, on the
driver, before any task sees the key. Tasks may fail, be killed, run twice at once or on other partitions: rows are
snapshotted first and noise is keyed by row, so that whoever answers a row again gives the same answer.

Who is trusted. Labels are in a frame, so Spark has them: driver, executors, their disks (spilled and shuffled data) and
the links between them hold labels, or sums of them without noise, while the job runs. Nobody else gets anything but
what the certificate counts. The key of a release travels by a file of mode 600 in the run's folder, beside the snapshot
of the labels that it protects (`labeldp.engines.runs`): not in a plan, a closure, a broadcast, a configuration or an
event log, all of which are kept and shown. So the output's folder must be one that the driver and all executors see
under the same name: a local disk for one machine, a network share for a cluster.
"""

# PySpark is half a gigabyte and may not be installed where types are checked.
# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labeldp.budgets.journal import Journal
from labeldp.core.certificate import Certificate, certify
from labeldp.core.certificate import read as read_certificate
from labeldp.core.keyed import KeyedRandom
from labeldp.core.ledger import Budget
from labeldp.data import partitions
from labeldp.data.partitions import Keyed
from labeldp.data.request import checked, refusing
from labeldp.engines import frames
from labeldp.engines.runs import running
from labeldp.engines.spark_model import predict, train

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PrivateFrame", "predict", "privatize", "train"]

CERTIFICATE = "_certificate.json"


@dataclass(frozen=True)
class PrivateFrame:
    """What `privatize` made: the frame with private responses in place of labels, its certificate and its folder."""

    frame: DataFrame = field(repr=False)
    certificate: Certificate
    folder: Path


@refusing
def privatize(
    df: DataFrame,
    *,
    label: str,
    classes: Iterable[object],
    epsilon: float,
    id: str,
    out: Path | str | None = None,
    mechanism: str | None = None,
    prior_columns: Sequence[str] = (),
    k: int | None = None,
    journal: Journal | None = None,
    store: Any = None,
    dataset: str | None = None,
    note: str | None = None,
) -> PrivateFrame:
    """Write a frame with its label column replaced by ε-private responses, as Parquet, with a certificate.

    Rows come back in partitions and in an order that their ids decide: how a frame lay could tell its labels.

    Args:
        df: rows with a label. Snapshotted first; what it is made of may change afterwards.
        label, classes, epsilon, mechanism, prior_columns, k: as for `labeldp.privatize`. Vectors are lists of integers.
        id: a column of whole numbers or text, unique and public, by which a row is the same whenever it is computed.
        out: the folder to write, which must not exist, and which all executors see. A temporary one when None, in which
            case a killed job cannot be gone on with.
        journal: charged with ε before the first response is drawn.
        store, dataset: instead of a journal, a `BudgetStore` (or where one is) and the name of the data set there: all
            of its rows are charged.
        note: what the history says it was for.

    Raises:
        TableError: with one sentence; counts, never labels. What was charged stays charged, and the same call with the
            same `out` goes on from there without another charge.
    """
    request = checked(label, classes, epsilon, mechanism=mechanism, prior_columns=prior_columns, k=k)
    target = frames.target_of(out)
    payer = frames.account(journal, store, dataset, note)
    frames.check_columns(df, {"label": label, "id": id}, {"prior_columns": prior_columns})
    settings = {
        "what": "privatize", "label": label, "classes": list(request.classes), "epsilon": request.epsilon, "id": id,
        "mechanism": request.mechanism, "prior_columns": list(request.prior_columns), "k": k, "columns": df.columns,
    }  # fmt: skip
    spark = df.sparkSession
    with running(target, settings) as run, frames.quiet():
        if not run.done:
            rows, _ = frames.snapshotted(df, run, request, id)
            groups = run.pay(payer, [(request.event, rows)], Budget(request.epsilon), note or f"privatize {label!r}")
            if not run.output.exists():
                seen = frames.read(spark, run.snapshot)
                task = Keyed(request, id, run.release, str(run.folder))
                answered = frames.mapped(seen, partitions.answer, task, frames.response_schema(seen, request))
                frames.write(frames.laid_out(answered, id, rows), run.output)
            noise = KeyedRandom(run.key(), run.release, np.empty(0, np.int64))
            release = {**request.public(noise), "rows": rows, "id": id, "release": run.release}
            certify(
                groups, 0.0, noise=noise.source, seeded=False, release=release,
                assumptions=(frames.COMPUTATIONAL, frames.unique_ids(id, rows), frames.TRUSTED),
            ).write(run.output / CERTIFICATE)  # fmt: skip
        run.finish()
    return PrivateFrame(frames.read(spark, target), read_certificate(target / CERTIFICATE), target)
