"""Spark for tests: on this machine, small, and skipped with a word where Java or PySpark is missing."""

import os
import shutil
import sys
import warnings

import pytest


def spark_or_skip():
    """Skip where there is no Spark to be had; else return the class of its sessions."""
    pyspark = pytest.importorskip("pyspark", reason="PySpark is not installed: pip install labeldp[spark]")
    if int(pyspark.__version__.split(".")[0]) < 4:
        pytest.skip(f"PySpark {pyspark.__version__} is too old; the engine needs version 4")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("there is no Java: install openjdk-17-jre-headless")
    from pyspark.sql import SparkSession

    return SparkSession


def session(folder, master="local[2,4]", **more):
    """Return a session that keeps all its files in a folder, event log included."""
    sessions = spark_or_skip()
    events = folder / "events"
    events.mkdir(exist_ok=True)
    # Executors take the interpreter of the tests, whatever is first on the path.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.driver.host": "127.0.0.1",
        "spark.executorEnv.OMP_NUM_THREADS": "1",
        "spark.log.level": "OFF",
        **more,
    }
    builder = sessions.builder.master(master).appName("labeldp tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return builder.getOrCreate()
