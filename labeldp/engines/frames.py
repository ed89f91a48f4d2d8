"""Work on frames of Spark: snapshot them, check them before anything is spent, map and write them.

Nothing here needs more than a `DataFrame`, so that Spark Connect works, too. What a task fails with is said in our own
words: those of Spark could quote rows.
"""

# PySpark is half a gigabyte and may not be installed where types are checked.
# pyright: reportMissingImports=false
from __future__ import annotations

import contextlib
import functools
import io
import operator
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from labeldp.atomic import rename
from labeldp.budgets.journal import Journal
from labeldp.data import partitions
from labeldp.data.labels import class_values
from labeldp.data.partitions import withheld
from labeldp.data.request import LARGEST_WEIGHT, Request, TableError, column_advice
from labeldp.engines.runs import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from labeldp.budgets.store import Account

# Functions whose value depends on where and when a row is computed: such an id names another row the next time.
_UNSTABLE = re.compile(
    r"\b(monotonically_increasing_id|rand|randn|uuid|random|randstr|uniform|shuffle|spark_partition_id|"
    r"input_file_block_start|input_file_block_length|current_timestamp|now)\("
)
# A file takes some 20 ms of a processor to write, and each pass over the rows opens it again.
_MOST_FILES = 1000
_ROWS_OF_A_FILE = 1 << 17
COMPUTATIONAL = (
    "The guarantee is computational: each row's noise is AES-256 of its id, under a key that was made for this release "
    "and destroyed when the output had been written. With advantage a against the cipher the claim is "
    "(epsilon, delta + (1 + exp(epsilon)) a); see labeldp.core.keyed."
)
TRUSTED = (
    "Spark's driver and executors, their disks, the links between them and the run's folder were trusted with labels, "
    "and with sums of labels without noise, while the job ran."
)


# -- before anything is spent ------------------------------------------------------------------------------------------


def snapshotted(df: DataFrame, run: Run, request: Request, id: str) -> tuple[int, int]:
    """Write all rows down, once, and check them; return how many there are, and in how many partitions they come.

    Raises TableError with counts only.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as sql

    written: int | None = None
    if not run.snapshot.exists():
        refuse_unstable(df, id)
        partitions.check_kinds(request, id, arrow_schema(df))
        counted = Observation()
        # Neighbouring partitions go into one file where there are more of them; no row crosses the network.
        write(df.coalesce(_MOST_FILES).observe(counted, sql.count(sql.lit(1)).alias("rows")), run.snapshot)
        written = counted.get["rows"]

    def counts() -> dict[str, int]:
        seen = read(df.sparkSession, run.snapshot)
        found = _checked(seen, request, id)
        _refuse(found, written, seen.select(quoted(id)).distinct().count(), request, id, run)
        return {"rows": found["rows"], "partitions": found["partitions"]}

    checked = run.kept("checked", counts)
    rows = int(checked["rows"])
    # About what was read is written again; what can be spent only once must not go for a disk that is full.
    run.check_room(2 * len(request.classes) * rows if request.is_vector else 0)
    return rows, int(checked["partitions"])


def _checked(seen: DataFrame, request: Request, id: str) -> dict[str, int]:
    """Count rows, partitions, and what is wrong with rows, without leaving Spark."""
    from pyspark.sql import functions as sql

    # As tasks will compare them: texts by their bytes, whatever their collation, and floats without a negative zero.
    label = sql.col(quoted(request.label))
    values = class_values(request.classes, arrow_schema(seen).field(request.label).type).to_pylist()
    missing = label.isNull()
    if isinstance(values[0], str):
        label, values = label.cast("binary"), [value.encode() for value in values]
    elif isinstance(values[0], float):
        missing, label, values = missing | sql.isnan(label), label.cast("double") + 0.0, [one + 0.0 for one in values]
    # NaN is above all numbers here, and what is missing makes nothing of a comparison.
    good = [sql.col(quoted(name)).cast("double").between(0.0, LARGEST_WEIGHT) for name in request.prior_columns]
    wrong = {
        "without an id": sql.col(quoted(id)).isNull(),
        "missing": missing,
        "declared": label.isin(values),
        "priors": ~sql.coalesce(functools.reduce(operator.and_, good, sql.lit(True)), sql.lit(False)),
    }
    seen = seen.select(sql.spark_partition_id().alias("part"), *(value.alias(name) for name, value in wrong.items()))
    counts = [sql.count_if(sql.col(f"`{name}`")).alias(name) for name in wrong]
    every = [sql.count(sql.lit(1)).alias("rows"), (sql.max("part") + 1).alias("partitions"), *counts]
    found = collected(seen.agg(*every))
    return {name: found.column(name)[0].as_py() or 0 for name in found.column_names}


def _refuse(found: Mapping[str, int], written: int | None, different: int, request: Request, id: str, run: Run) -> None:
    rows = found["rows"]
    if written is not None and written != rows:
        raise TableError(
            f"out={str(run.target)!r}: {written} rows were written beside it, and {rows} are found there; give a "
            "folder that the driver and all executors share"
        )
    if not rows:
        raise TableError("df has no rows; give a frame with some")
    if found["without an id"]:
        raise TableError(f"id={id!r} is missing in {found['without an id']} of {rows} rows; give every row one")
    if different < rows:
        raise TableError(
            f"id={id!r} repeats: {rows - different} of {rows} rows have an id that another row has, and would share "
            "its noise; give every row one of its own"
        )
    undeclared = rows - found["declared"] - found["missing"]
    if undeclared or found["missing"]:
        raise TableError(
            f"{undeclared} of {rows} labels are not among the {len(request.classes)} declared classes and "
            f"{found['missing']} are missing; declare every class exactly as it is written, and settle missing labels "
            "beforehand"
        )
    if found["priors"]:
        raise TableError(
            f"prior_columns: {found['priors']} of {rows} rows hold something missing, infinite or negative; give one "
            "weight ≥ 0 per class"
        )


def check_columns(df: DataFrame, single: Mapping[str, str], several: Mapping[str, Sequence[str]]) -> None:
    """Raise TableError unless every column that an argument names is there once, and label and id are two columns."""
    given = [*single.items(), *((argument, name) for argument, names in several.items() for name in names)]
    for argument, name in given:
        if df.columns.count(name) != 1:
            raise TableError(f"{argument}={name!r} is no single column of df; {column_advice(name, df.columns)}")
    if single["label"] == single["id"]:
        raise TableError(f"id={single['id']!r} is the label itself; name a public column")


def refuse_unstable(df: DataFrame, id: str) -> None:
    """Raise TableError where an id is computed from something that differs from one computation to the next."""
    text = io.StringIO()
    # The one way to see a plan that Spark Connect has, too.
    with contextlib.redirect_stdout(text):
        df.select(quoted(id)).explain(mode="extended")
    # The optimised plan has left what the id does not need; after it come the physical one and generated names.
    plan = text.getvalue().split("== Optimized Logical Plan ==")[-1].split("== Physical Plan ==")[0]
    found = _UNSTABLE.search(plan)
    if found:
        raise TableError(
            f"id={id!r} comes from {found[1]}(), which gives a row another id whenever it is computed; use an id that "
            "the data have, or write the frame with its ids first and read it back"
        )


def account(journal: Journal | None, store: Any, dataset: str | None, note: str | None) -> Journal | Account | None:
    """Return what pays, or raise TableError where it is not clear what does."""
    if journal is not None and store is not None:
        raise TableError("journal and store are both given; charge one of them")
    if store is None:
        if dataset is not None:
            raise TableError(f"dataset={dataset!r} names a data set of a store, and none is given; give store=")
        return journal
    from labeldp.budgets.store import BudgetStore

    if dataset is None:
        raise TableError(
            "dataset is missing: labels that Spark holds are known to a store by name; name their data set"
        )
    opened = store if isinstance(store, BudgetStore) else BudgetStore.open(store, create=False)
    return opened.part_of(dataset, note=note)


def unique_ids(id: str, rows: int) -> str:
    """Return what was assumed of ids, as a sentence for a certificate."""
    return (
        f"The column {id!r} names each of the {rows} rows once (checked), is public, and was chosen without a look at "
        "the labels."
    )


# -- plumbing ----------------------------------------------------------------------------------------------------------


def mapped(frame: DataFrame, work: Callable[..., Iterator[Any]], task: Any, schema: Any) -> DataFrame:
    """Return the frame that the work makes of every partition; the task travels along, so it must be public.

    PySpark looks columns up by their names, and takes dots and backticks in them for something else.
    """
    plain = frame.toDF(*(f"column{place}" for place in range(len(frame.columns))))
    return plain.mapInArrow(functools.partial(_worked, work, task, frame.columns), schema)


def _worked(
    work: Callable[..., Iterator[Any]], task: Any, names: list[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[Any]:
    return withheld(work)(task, (batch.rename_columns(names) for batch in batches))


def write(frame: DataFrame, folder: Path) -> None:
    """Write a frame as Parquet, over what a job left that was stopped; a folder is whole when it has its name."""
    draft = folder.with_name(f"{folder.name}.part")
    try:
        frame.write.mode("overwrite").parquet(_address(draft))
    except Exception as error:
        said = _first_refusal(str(error))
        reason = "a disk is full" if "No space left" in str(error) else type(error).__name__
        raise TableError(said or f"Spark could not write {str(folder)!r}: {reason}") from None
    rename(draft, folder)


def read(session: SparkSession, folder: Path) -> DataFrame:
    """Return the frame that a folder of Parquet files holds."""
    return session.read.parquet(_address(folder))


def _address(folder: Path) -> str:
    """Return a path as Hadoop takes it: like a URL, but with spaces and accents as they are."""
    return f"file://{folder}"


def laid_out(frame: DataFrame, id: str, rows: int) -> DataFrame:
    """Return the frame in partitions, and in an order, that the ids and the number of rows decide, and nothing else.

    Where a row lay may tell its label: after a union of one table for each class, a join on the label, in folders that
    are named by it. Even the sizes of files, by which Spark deals out partitions, are those of labels, too.
    """
    # By number, which adaptive execution leaves as it is.
    parts = min(_MOST_FILES, -(-rows // _ROWS_OF_A_FILE))
    return frame.repartition(parts, quoted(id)).sortWithinPartitions(quoted(id))


def collected(frame: DataFrame) -> pa.Table:
    """Bring a small frame to the driver, or raise TableError in our own words."""
    try:
        return frame.toArrow()
    except Exception as error:
        said = _first_refusal(str(error))
        raise TableError(said or f"a job of Spark failed ({type(error).__name__})") from None


def _first_refusal(text: str) -> str | None:
    """Return the sentence by which a task refused, if that is why a job failed; other words may quote anything."""
    found = re.search(r"TableError: (.+)", text)
    return found[1] if found else None


def response_schema(frame: DataFrame, request: Request) -> Any:
    """Return the schema of the frame with responses."""
    from pyspark.sql.types import ArrayType, ShortType, StructField, StructType

    def changed(one: Any) -> Any:
        return StructField(one.name, ArrayType(ShortType()), True) if one.name == request.label else one

    return StructType([changed(one) for one in frame.schema.fields]) if request.is_vector else frame.schema


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """Return the types of the columns as tasks will see them."""
    return frame.limit(0).toArrow().schema


def target_of(out: Path | str | None) -> Path:
    """Return the folder to write, a temporary one when None."""
    if out is not None and re.match(r"[A-Za-z][\w+.-]+:/", str(out)):
        raise TableError(f"out={str(out)!r} is no path; give a folder that the driver and all executors see")
    target = Path(tempfile.mkdtemp(prefix="labeldp-"), "responses") if out is None else Path(out).resolve()
    odd = sorted(set(str(target)) & set("*?[]{}\\"))
    if odd:
        raise TableError(
            f"out={str(target)!r}: Spark reads {' '.join(odd)} as a pattern of many names; choose a folder without them"
        )
    return target


def quoted(name: str) -> str:
    """Return a column's name as an expression of Spark."""
    return "`" + name.replace("`", "``") + "`"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep to ourselves what PySpark says about a version of pandas, which is not used here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, message="PySpark does not yet fully support pandas")
        yield
