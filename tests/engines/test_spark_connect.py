"""Spark Connect: what works on a session works through a client that has no Java machine of its own."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines import sessions

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
# What pip installs with pyspark[connect].
CLIENT = {"grpc": "grpcio", "grpc_status": "grpcio-status", "google.rpc": "googleapis-common-protos"}


def _there(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def test_privatize_train_and_predict_over_connect(tmp_path):
    sessions.spark_or_skip()
    missing = [package for module, package in CLIENT.items() if not _there(module)]
    if missing:
        pytest.skip(f"the client of Spark Connect lacks {', '.join(missing)}: pip install 'pyspark[connect]'")
    own = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.engines.connecting", str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, **own}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["client"].startswith("pyspark.sql.connect")
    assert found["rows"] == 3000
    # e/(1 + e) = 0.731, give or take five deviations.
    assert abs(found["kept"] - 0.731) < 0.041
    assert found["problems"] == []
    assert found["classes"] == ["no", "yes"]
    assert found["right"] > 0.8
    assert "rows have an id that another row has" in found["refused"]
    assert found["left"] == ["model", "private"]
