"""Faults in a hundred jobs of Spark: no row with two answers, no query without its charge; the control is noticed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines import sessions

ROOT = Path(__file__).parents[2]


def counted(folder, *arguments):
    sessions.spark_or_skip()
    command = [sys.executable, "-m", "tests.stress.spark_faults", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


WRONG = (
    "rows with two answers",
    "rows lost or doubled",
    "sums that differ",
    "jobs without a charge",
    "charges without a job",
)


@pytest.mark.stress
@pytest.mark.parametrize(("where", "jobs"), [("local", 84), ("cluster", 20)])
def test_faults_change_nothing(where, jobs, tmp_path):
    found = counted(tmp_path, str(jobs), "7", where)
    assert found["rows answered more than once"] > 1000
    assert {name: found.get(name, 0) for name in WRONG} == dict.fromkeys(WRONG, 0)


@pytest.mark.stress
def test_drivers_that_are_killed(tmp_path):
    found = counted(tmp_path, "drivers")
    assert found["drivers killed"] == 2
    assert {name: found.get(name, 0) for name in WRONG} == dict.fromkeys(WRONG, 0)


@pytest.mark.stress
def test_noise_of_the_operating_system_is_noticed(tmp_path):
    assert counted(tmp_path, "6", "7", "entropy")["rows with two answers"] > 100
