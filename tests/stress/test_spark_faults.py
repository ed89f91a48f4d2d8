"""Faults in a hundred jobs of Spark: no row with two answers, no query without its charge; the control is noticed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from labeldp.budgets.journal import Journal
from labeldp.core.ledger import Budget
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


@pytest.mark.stress
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")
def test_ten_thousand_partitions(tmp_path):
    """A third of them are empty, and one has two thirds of the rows."""
    session = sessions.session(tmp_path)
    from labeldp.engines import spark as engine

    ask = {"label": "y", "classes": ["no", "yes"], "epsilon": 1.0, "id": "row_id"}
    parts = session.range(0, 10_000, 1, 10_000).where("id % 3 > 0")
    rows = parts.selectExpr("id", "explode(sequence(1, if(id = 7777, 13334, 1))) as place")
    frame = rows.selectExpr(
        "100000 * id + place as row_id", "double(hash(id, place) % 1000) / 1000 as x", "if(x > 0, 'yes', 'no') as y"
    )
    try:
        journal = Journal.open(tmp_path / "journal", Budget(1.0))
        private = engine.privatize(frame, **ask, journal=journal, out=tmp_path / "out")
        assert private.frame.count() == private.frame.select("row_id").distinct().count() == 19_999
        assert [group.rows for group in private.certificate.groups] == [19_999]
        assert len(journal.queries()) == 1
        model = engine.train(frame, **ask, delta=1e-6, out=tmp_path / "model")
        assert sum(group.rows for group in model.estimator.certificate_.groups) == 19_999
    finally:
        session.stop()
