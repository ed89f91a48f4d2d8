"""Spark: the same responses and the same model as on one machine, whatever the partitions; and what is refused."""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labeldp.budgets.journal import Journal
from labeldp.core import keyed, random
from labeldp.core.certificate import verify
from labeldp.core.keyed import KeyedRandom
from labeldp.core.ledger import Budget, BudgetExceededError
from labeldp.data.request import TableError, checked
from tests.engines import sessions

sessions.spark_or_skip()
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")]

ROWS, CLASSES = 4000, ["no", "perhaps", "yes"]
KEY, NAME = bytes(range(32)), "release of the test"
ASK = {"label": "y", "classes": CLASSES, "epsilon": 1.0, "id": "row_id"}


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    made = sessions.session(tmp_path_factory.mktemp("spark"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def table():
    chance = np.random.default_rng(0)
    codes, prior = chance.integers(0, 3, ROWS), chance.random((ROWS, 3))
    return pa.table({
        "row_id": chance.permutation(10 * ROWS)[:ROWS], "name": [f"row {i}" for i in range(ROWS)],
        "y": np.array(CLASSES, dtype=object)[codes], "x": chance.normal(size=ROWS) + codes,
        "z": chance.normal(size=ROWS), "kind": np.array(["k", "l", "m"], dtype=object)[chance.integers(0, 3, ROWS)],
        **{f"p{k}": prior[:, k] for k in range(3)},
    })  # fmt: skip


@pytest.fixture(scope="module")
def frame(spark, table, tmp_path_factory):
    """Read from files: of rows that a plan itself holds Spark makes constants, ids that are random included."""
    folder = tmp_path_factory.mktemp("table") / "rows"
    spark.createDataFrame(table).write.parquet(folder.as_uri())
    return spark.read.parquet(folder.as_uri())


@pytest.fixture
def known(monkeypatch):
    """The key and the name of a release, so that a second run, and one machine, draw the same."""
    monkeypatch.setattr(random, "system_key", lambda: KEY)
    monkeypatch.setattr(secrets, "token_hex", lambda *_: NAME)


def by_id(frame, column="y", id="row_id"):
    found = frame.select(id, column).toArrow()
    return dict(zip(found.column(id).to_pylist(), found.column(column).to_pylist(), strict=True))


MECHANISMS = {
    "rr": {},
    "prior": {"prior_columns": ["p0", "p1", "p2"]},
    "top-k": {"mechanism": "top-k-response", "prior_columns": ["p0", "p1", "p2"], "k": 2},
    "laplace": {"mechanism": "laplace-one-hot"},
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_responses_are_those_of_one_machine_under_the_same_key(name, frame, table, known, tmp_path):
    from labeldp.engines import spark as engine

    private = engine.privatize(frame, **ASK, **MECHANISMS[name], out=tmp_path / "out")
    request = checked("y", CLASSES, 1.0, **MECHANISMS[name])
    codes = np.array([CLASSES.index(one) for one in table.column("y").to_pylist()], dtype=np.uint8)
    prior = np.stack([table.column(f"p{k}").to_numpy() for k in range(3)], axis=1)
    source = KeyedRandom(KEY, NAME, table.column("row_id").to_numpy())
    expected = request.randomizer(prior).sample(codes, source).responses
    said = expected.tolist() if request.is_vector else [CLASSES[code] for code in expected]
    assert by_id(private.frame) == dict(zip(table.column("row_id").to_pylist(), said, strict=True))
    others = [column for column in table.column_names if column != "y"]
    assert private.frame.columns == frame.columns
    assert private.frame.select(others).toArrow().sort_by("row_id").equals(table.select(others).sort_by("row_id"))
    assert verify(private.certificate) == ()
    assert private.certificate.epsilon == 1.0
    assert [group.rows for group in private.certificate.groups] == [ROWS]
    assert "computational" in private.certificate.assumptions[0]
    assert "names each of the 4000 rows once" in private.certificate.assumptions[1]
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("split", ["one", "many and empty", "skewed", "shuffled"])
def test_partitions_do_not_matter(split, frame, table, known, tmp_path):
    from labeldp.engines import spark as engine

    frames = {
        "one": lambda: frame.coalesce(1),
        # Only so many of them have a row.
        "many and empty": lambda: frame.limit(ROWS).repartition(500, "kind"),
        "skewed": lambda: frame.repartition(20, (frame.row_id > 100).cast("int")),
        "shuffled": lambda: frame.repartition(7).sortWithinPartitions("x"),
    }
    private = engine.privatize(frames[split](), **{**ASK, "id": "name"}, out=tmp_path / "out")
    codes = np.array([CLASSES.index(one) for one in table.column("y").to_pylist()], dtype=np.uint8)
    source = KeyedRandom(KEY, NAME, table.column("name").to_pylist())
    expected = checked("y", CLASSES, 1.0).randomizer(np.ones((1, 3))).sample(codes, source).responses
    assert by_id(private.frame, id="name") == {f"row {i}": CLASSES[code] for i, code in enumerate(expected)}


def by_label(frame, F, folder, how):
    """The frame with labels of another column, in such a way that rows lie by their labels."""
    marked = frame.withColumn("y", F.expr(f"if(hash(row_id, '{how}') % 3 > 0, 'yes', 'no')"))
    if how == "folders":
        marked.write.partitionBy("y").parquet(folder.as_uri())
        return frame.sparkSession.read.parquet(folder.as_uri())
    return {
        "sorted": lambda: marked.sort("y"),
        "partitions": lambda: marked.repartition(3, "y"),
        "union": lambda: marked.where("y = 'yes'").union(marked.where("y = 'no'")),
        "join": lambda: marked.join(frame.sparkSession.sql("values ('yes', 1), ('no', 2) as t(y, code)"), "y"),
    }[how]()


def layouts(frame, folder, monkeypatch):
    """Which ids are in which file of the output, and in which order, for frames of other labels that lie otherwise."""
    import pyspark.sql.functions as F

    from labeldp.engines import frames
    from labeldp.engines import spark as engine

    monkeypatch.setattr(frames, "_ROWS_OF_A_FILE", 1000)
    found = set()
    for how in ("folders", "sorted", "partitions", "union", "join"):
        engine.privatize(by_label(frame, F, folder / f"{how} by label", how), **ASK, out=folder / how)
        files = sorted((folder / how).glob("part-*"))
        found.add(tuple(tuple(pq.read_table(file).column("row_id").to_pylist()) for file in files))
    return found


def test_where_a_row_lies_in_the_output_is_decided_by_ids_alone(frame, tmp_path, monkeypatch):
    (layout,) = layouts(frame, tmp_path, monkeypatch)
    assert len(layout) == 4
    assert all(list(ids) == sorted(ids) for ids in layout)
    assert sum(map(len, layout)) == ROWS


def test_rows_that_lie_as_their_labels_made_them_are_noticed(frame, tmp_path, monkeypatch):
    """Planted: the output as the snapshot lies."""
    from labeldp.engines import frames

    monkeypatch.setattr(frames, "laid_out", lambda frame, id, rows: frame)
    assert len(layouts(frame, tmp_path, monkeypatch)) > 1


def test_two_releases_differ(frame, tmp_path):
    from labeldp.engines import spark as engine

    first, second = (by_id(engine.privatize(frame, **ASK, out=tmp_path / name).frame) for name in ("a", "b"))
    assert first != second


REFUSED = {
    "repeats": (lambda f, F: f.withColumn("row_id", F.expr("row_id % 100")), "rows have an id that another row has"),
    "missing ids": (lambda f, F: f.withColumn("row_id", F.expr("if(row_id < 100, null, row_id)")), "is missing in"),
    "monotonic": (lambda f, F: f.withColumn("row_id", F.monotonically_increasing_id()), "monotonically_increasing_id"),
    "random": (lambda f, F: f.withColumn("row_id", (F.rand() * 1e15).cast("long")), "comes from rand"),
    "uuid": (lambda f, F: f.withColumn("row_id", F.expr("uuid()")), "comes from uuid"),
    "floats": (lambda f, F: f.withColumn("row_id", F.col("row_id").cast("double")), "ids are whole numbers or text"),
    "undeclared": (lambda f, F: f.withColumn("y", F.expr("if(x > 3.5, 'SECRET', y)")), "not among the 3 declared"),
    "missing labels": (lambda f, F: f.withColumn("y", F.expr("if(z > 3, null, y)")), "are missing"),
    "bad priors": (lambda f, F: f.withColumn("p1", F.expr("if(z > 3, -1.0, p1)")), "prior_columns: \\d+ of 4000"),
    "no rows": (lambda f, F: f.limit(0), "no rows"),
    "no column": (lambda f, F: f.drop("y"), "label='y' is no single column"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_costs_nothing_and_leaves_nothing(what, frame, tmp_path):
    import pyspark.sql.functions as F

    from labeldp.engines import spark as engine

    change, words = REFUSED[what]
    journal = Journal.open(tmp_path / "journal", Budget(5.0))
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(TableError, match=words) as refused:
        engine.privatize(
            change(frame, F), **ASK, prior_columns=["p0", "p1", "p2"], journal=journal, out=tmp_path / "out"
        )
    assert "SECRET" not in str(refused.value)
    assert sorted(os.listdir(tmp_path)) == before
    assert journal.epsilon(0) == 0


def test_one_odd_label_in_one_of_a_thousand_partitions(spark, tmp_path):
    from labeldp.engines import spark as engine

    frame = spark.range(0, 20_000, 1, 1000).selectExpr("id as row_id", "if(id = 7777, 'SECRET', 'no') as y")
    with pytest.raises(TableError, match=r"^1 of 20000 labels are not among the 3 declared classes") as refused:
        engine.privatize(frame, **ASK, out=tmp_path / "out")
    assert "SECRET" not in str(refused.value)
    assert os.listdir(tmp_path) == []


def test_a_stable_id_passes_although_other_columns_are_random(frame, tmp_path):
    import pyspark.sql.functions as F

    from labeldp.engines import spark as engine

    noisy = frame.withColumn("x", F.rand())
    assert engine.privatize(noisy, **ASK, out=tmp_path / "out").frame.count() == ROWS


def test_labels_and_priors_that_are_computed_anew_each_time_are_written_down_first(frame, known, tmp_path, monkeypatch):
    """Stopped when it was paid for, and called again: what was there at first is answered, for one charge."""
    import pyspark.sql.functions as F

    from labeldp.engines import spark as engine
    from labeldp.engines.runs import Run

    at_random = F.expr("element_at(array('no', 'perhaps', 'yes'), cast(1 + floor(rand() * 3) as int))")
    restless = frame.withColumn("y", at_random).withColumn("p1", F.rand())
    ask = {**ASK, "prior_columns": ["p0", "p1", "p2"], "out": tmp_path / "out"}
    journal, pay = Journal.open(tmp_path / "journal", Budget(5.0)), Run.pay

    def stop_after(self, *args):
        pay(self, *args)
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "pay", stop_after)
    with pytest.raises(KeyboardInterrupt):
        engine.privatize(restless, **ask, journal=journal)
    monkeypatch.setattr(Run, "pay", pay)
    written = pq.read_table(tmp_path / ".out.run" / "snapshot")
    private = engine.privatize(restless, **ask, journal=journal)
    codes = np.array([CLASSES.index(one) for one in written.column("y").to_pylist()], dtype=np.uint8)
    prior = np.stack([written.column(f"p{k}").to_numpy() for k in range(3)], axis=1)
    source = KeyedRandom(KEY, NAME, written.column("row_id").to_numpy())
    expected = checked("y", CLASSES, 1.0, prior_columns=["p0", "p1", "p2"]).randomizer(prior).sample(codes, source)
    said = [CLASSES[code] for code in expected.responses]
    assert by_id(private.frame) == dict(zip(written.column("row_id").to_pylist(), said, strict=True))
    assert len(journal.queries()) == 1


def test_columns_may_have_any_name(frame, table, known, tmp_path):
    """Dots and backticks, which Spark reads as fields and as quotes."""
    from labeldp.engines import spark as engine

    names = {"row_id": "row.id", "y": "the `y`", "x": "x.1", "kind": "kind, or *"}
    odd = frame.toDF(*(names.get(name, name) for name in frame.columns))
    ask = {**ASK, "id": "row.id", "label": "the `y`"}
    private = engine.privatize(odd, **ask, out=tmp_path / "out").frame
    assert private.columns == odd.columns
    found = private.toArrow()
    plain = by_id(engine.privatize(frame, **ASK, out=tmp_path / "plain").frame)
    assert dict(zip(*(found.column(name).to_pylist() for name in ("row.id", "the `y`")), strict=True)) == plain
    engine.train(odd, **{**TRAIN, **ask}, out=tmp_path / "model")
    assert engine.predict(tmp_path / "model", odd).select("prediction").count() == ROWS


def test_a_folder_may_have_any_name_that_is_one(frame, tmp_path):
    """Spaces, accents and signs that a URL would escape; the snapshot goes, too."""
    from labeldp.engines import spark as engine

    odd = tmp_path / "für Åsa, 5%20 #1"
    odd.mkdir()
    private = engine.privatize(frame, **ASK, out=odd / "my responses")
    assert private.frame.count() == ROWS
    engine.train(frame, **TRAIN, out=odd / "my model")
    assert sorted(os.listdir(odd)) == ["my model", "my responses"]
    assert os.listdir(tmp_path) == [odd.name]
    with pytest.raises(TableError, match="Spark reads \\[ \\] as a pattern"):
        engine.privatize(frame, **ASK, out=tmp_path / "a[1]")


def test_a_budget_is_charged_once_and_holds(frame, tmp_path):
    from labeldp.engines import spark as engine

    journal = Journal.open(tmp_path / "journal", Budget(1.5))
    engine.privatize(frame, **ASK, journal=journal, out=tmp_path / "a")
    assert journal.epsilon(0) == 1.0
    with pytest.raises(BudgetExceededError):
        engine.privatize(frame, **ASK, journal=journal, out=tmp_path / "b")
    assert journal.epsilon(0) == 1.0
    assert not (tmp_path / "b").exists()
    assert not (tmp_path / ".b.run").exists()


def test_the_key_is_in_no_plan_and_no_log(spark, frame, known, tmp_path, monkeypatch):
    """Nor is a label; the plan is looked at while the key exists."""
    import pyspark.sql.functions as F

    from labeldp.engines import frames
    from labeldp.engines import spark as engine

    seen, write = [], frames.write

    def looking(made, folder):
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            made.explain(mode="extended")
        seen.append(shown.getvalue())
        seen.append(made._jdf.queryExecution().toString())
        from pyspark import cloudpickle

        seen.append(cloudpickle.dumps(made._jdf.queryExecution().analyzed().toJSON()).decode("latin-1"))
        write(made, folder)

    monkeypatch.setattr(frames, "write", looking)
    marked = frame.withColumn("y", F.concat(F.lit("Zq"), "y"))
    engine.privatize(marked, **{**ASK, "classes": [f"Zq{name}" for name in CLASSES]}, out=tmp_path / "out")
    events = spark.sparkContext.getConf().get("spark.eventLog.dir").removeprefix("file://")
    content = b"".join(path.read_bytes() for path in Path(events).rglob("*") if path.is_file())
    assert b"SparkListenerSQLExecutionStart" in content
    for place in (*(text.encode("latin-1", "replace") for text in seen), content):
        for secret in (KEY, KEY.hex().encode(), KEY[:8], KEY[:8].hex().encode()):
            assert secret not in place


# -- training ----------------------------------------------------------------------------------------------------------

TRAIN = {**ASK, "delta": 1e-6, "drop": ["name", "p0", "p1", "p2"]}


@pytest.fixture(scope="module")
def trained(frame, tmp_path_factory):
    from labeldp.engines import spark as engine

    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random, "system_key", lambda: KEY)
        patch.setattr(secrets, "token_hex", lambda *_: NAME)
        engine.train(frame, **TRAIN, out=folder / "model")
    return folder / "model"


def test_a_model_is_the_same_whatever_the_partitions(frame, trained, known, tmp_path):
    from labeldp.engines import spark as engine
    from labeldp.results.folder import read_model

    shuffled = frame.repartition(60, "kind").sortWithinPartitions("z")
    engine.train(shuffled, **TRAIN, out=tmp_path / "model")
    (_, config, arrays), (_, other, others) = (read_model(one) for one in (tmp_path / "model", trained))
    assert config == other
    assert {name: array.tobytes() for name, array in arrays.items()} == {n: a.tobytes() for n, a in others.items()}
    assert (tmp_path / "model" / "metrics.json").read_text() == (trained / "metrics.json").read_text()
    assert os.listdir(tmp_path) == ["model"]


def test_the_moment_is_that_of_one_machine_bit_for_bit(frame, table, known, tmp_path, monkeypatch):
    from labeldp.engines import spark as engine
    from labeldp.engines import spark_model
    from labeldp.mechanisms.moments import Moments

    kept = {}
    noised = Moments.noised

    def watched(self, sums, rng):
        kept["release"] = noised(self, sums, rng)
        return kept["release"]

    of = spark_model.Phi.of.__func__
    monkeypatch.setattr(spark_model.Phi, "of", classmethod(lambda cls, *args: kept.setdefault("phi", of(cls, *args))))
    monkeypatch.setattr(Moments, "noised", watched)
    engine.train(frame, **TRAIN, out=tmp_path / "model")
    noisy, phi = kept["release"], kept["phi"]
    features = phi(table)
    aside = spark_model.Chosen(0, "aside", min(0.1, 20_000 / ROWS))(table.column("row_id").to_numpy())
    codes = np.array([CLASSES.index(one) for one in table.column("y").to_pylist()], dtype=np.uint8)
    # All rows are on the driver here, so that the radius is that of the longest of them.
    query = Moments(features[~aside], 3, spark_model.noise_for(1.0, 1e-6), _radius(features))
    alone = query.sample(codes[~aside], keyed.stream(KEY, f"{NAME} moment"))
    assert (alone.value == noisy.value).all()
    assert (alone.total == noisy.total).all()


def _radius(features):
    import torch

    return float(torch.linalg.vector_norm(torch.from_numpy(features), dim=1).amax()) * (1 + 1e-6)


def test_a_folder_of_spark_is_one_like_any_other(trained, table):
    from labeldp.results.model import load
    from labeldp.results.verify import verify_folder

    assert verify_folder(trained) == ()
    model = load(trained)
    assert model.classes == tuple(CLASSES)
    found = model.predict(table)
    assert (found == np.array(table.column("y").to_pylist())).mean() > 0.45
    metrics = json.loads((trained / "metrics.json").read_text())
    own = metrics["evaluation"]["measures"]["accuracy"]
    assert abs(own["value"] - (found == np.array(table.column("y").to_pylist())).mean()) < 2 * own["margin"] + 0.05
    certificate = model.estimator.certificate_
    assert certificate.epsilon <= 1.0
    assert sum(group.rows for group in certificate.groups) == ROWS
    assert len(certificate.groups) == 2


def test_predictions_are_those_of_one_machine(frame, table, trained):
    from labeldp.engines import spark as engine
    from labeldp.results.model import load

    scored = engine.predict(trained, frame, probabilities=True)
    expected = load(trained).probabilities(table)
    found = scored.toArrow().sort_by("row_id")
    order = np.argsort(table.column("row_id").to_numpy())
    for place, name in enumerate(CLASSES):
        assert np.allclose(found.column(f"probability of {name}").to_numpy(), expected[order, place], atol=1e-6)
    assert found.column("prediction").to_pylist() == [CLASSES[i] for i in expected[order].argmax(axis=1)]
    with pytest.raises(TableError, match="lacks \\['x'\\]"):
        engine.predict(trained, frame.drop("x"))
    with pytest.raises(TableError, match="'prediction' already"):
        engine.predict(trained, frame.withColumnRenamed("p0", "prediction"))


def test_a_training_that_was_stopped_goes_on_with_the_same_release(frame, trained, known, tmp_path, monkeypatch):
    from labeldp.engines import spark as engine
    from labeldp.engines import spark_model

    journal = Journal.open(tmp_path / "journal", Budget(1.0, 1e-6))
    fitted = spark_model.fitted

    def stopped(*args, **how):
        raise KeyboardInterrupt

    monkeypatch.setattr(spark_model, "fitted", stopped)
    with pytest.raises(KeyboardInterrupt):
        engine.train(frame, **TRAIN, journal=journal, out=tmp_path / "model")
    assert (tmp_path / ".model.run" / "key").exists()
    monkeypatch.setattr(spark_model, "fitted", fitted)
    engine.train(frame, **TRAIN, journal=journal, out=tmp_path / "model")
    assert len(journal.queries()) == 1
    assert sorted(os.listdir(tmp_path)) == sorted(["journal", "journal.key", "model", *_heads(tmp_path)])


def _heads(folder):
    return [name for name in os.listdir(folder) if name.startswith("journal.") and name != "journal.key"]


def test_sentences_and_rows_that_would_pay_twice_are_refused(frame, tmp_path):
    import pyspark.sql.functions as F

    from labeldp.engines import spark as engine

    journal = Journal.open(tmp_path / "journal", Budget(5.0))
    with pytest.raises(TableError, match="each would pay twice"):
        engine.train(frame, **TRAIN, holdout=0.1, journal=journal, out=tmp_path / "model")
    prose = frame.withColumn("said", F.concat(F.lit("the words of "), "name", F.lit(" are these")))
    with pytest.raises(TableError, match="are sentences"):
        engine.train(prose, **TRAIN, journal=journal, out=tmp_path / "model")
    assert journal.epsilon(0) == 0
    assert not (tmp_path / ".model.run").exists()


REFUSED_MODELS = {
    **{name: REFUSED[name] for name in ("repeats", "missing ids", "floats", "undeclared", "missing labels", "no rows")},
    "labels of another type": (lambda f, F: f.withColumn("y", F.col("x").cast("float")), "class"),
    "a list": (lambda f, F: f.withColumn("z", F.array("x", "z")), "column 'z' holds list"),
    "bytes": (lambda f, F: f.withColumn("kind", F.col("kind").cast("binary")), "column 'kind' is not UTF-8 text"),
    "infinity": (lambda f, F: f.withColumn("x", F.expr("if(row_id % 7 = 0, double('inf'), x)")), "infinite values"),
    "nothing to learn from": (
        lambda f, F: f.select("row_id", "y", "name", "p0", "p1", "p2"),
        "no public column|column",
    ),
}


@pytest.mark.parametrize("what", REFUSED_MODELS)
def test_what_a_training_refuses_costs_nothing_and_leaves_nothing(what, frame, tmp_path):
    import pyspark.sql.functions as F

    from labeldp.engines import spark as engine

    change, words = REFUSED_MODELS[what]
    journal = Journal.open(tmp_path / "journal", Budget(5.0, 1e-6))
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(TableError, match=words) as refused:
        engine.train(change(frame, F), **TRAIN, journal=journal, out=tmp_path / "model")
    assert "SECRET" not in str(refused.value)
    assert sorted(os.listdir(tmp_path)) == before
    assert journal.epsilon(0) == 0


def test_features_come_from_all_rows_where_some_come_to_the_driver(frame, known, tmp_path, monkeypatch):
    """A value that none of the rows on the driver has is a feature; partitions do not matter, empty ones included."""
    import pyspark.sql.functions as F

    from labeldp.engines import spark as engine
    from labeldp.engines import spark_model
    from labeldp.results.folder import read_model
    from labeldp.results.model import load

    monkeypatch.setattr(spark_model, "SOME_ROWS", 400)
    monkeypatch.setattr(spark_model, "_LOOKED_AT_HERE", 10)
    chosen = spark_model.Chosen(0, "some", 400 / ROWS)
    ids = frame.select("row_id").toArrow().column("row_id").to_numpy()
    far = int(ids[~chosen(ids)][0])
    marked = frame.withColumn("kind", F.when(F.col("row_id") == far, "rare").otherwise(F.col("kind")))
    engine.train(marked, **TRAIN, out=tmp_path / "one")
    engine.train(marked.repartition(40, "kind"), **TRAIN, out=tmp_path / "many")
    values = load(tmp_path / "one").estimator._map.values
    assert [kept.tolist() for kept in values] == [["k", "l", "m", "rare"]]
    (_, config, arrays), (_, other, others) = (read_model(tmp_path / name) for name in ("one", "many"))
    assert config == other
    assert {name: array.tobytes() for name, array in arrays.items()} == {n: a.tobytes() for n, a in others.items()}
