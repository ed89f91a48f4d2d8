"""Kill −9 at random points, 106 times: no query is drawn twice, none is forgotten, nothing is paid for twice."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


def killed_runs(folder, *args):
    command = [sys.executable, "-W", "error", str(Path(__file__).with_name("killing.py")), str(folder), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("denoiser", "kills", "queries", "times"),
    [
        pytest.param("no_op", 6, 60, 60, id="secret batches"),
        pytest.param("no_op", 60, 600, 600, id="secret batches, often", marks=pytest.mark.slow),
        pytest.param("self_span", 40, 420, 140, id="named batches, often", marks=pytest.mark.slow),
    ],
)
def test_killed_again_and_again(tmp_path, denoiser, kills, queries, times):
    found = killed_runs(tmp_path, denoiser, kills, queries)
    whole, killed = found["whole"], found["killed"]
    assert found["kills"] == kills
    assert found["drawn in killed processes"] >= kills  # the kills fell into the run, not before it

    # Draws: what the count on disk says was begun is all that was paid for, in both runs alike.
    assert whole["counted"] == killed["counted"] == queries
    assert whole["begun"] == whole["ended"] == list(range(1, queries + 1))
    # Counted before it began, never under a number that was used before; at most one query lost to each kill.
    assert len(set(killed["begun"])) == len(killed["begun"])
    assert set(killed["ended"]) <= set(killed["begun"]) <= set(range(1, queries + 1))
    assert queries - kills <= len(killed["ended"]) <= queries
    # Of many kills, some did hit a query.
    assert kills < 40 or len(killed["ended"]) < queries

    # Ledger and certificate of the last process are those of a run that nobody killed.
    for run in (whole, killed):
        assert run["ledger"] == [[90, [times]]]
        assert 3.0 * (1 - 1e-4) <= run["epsilon"] <= 3.0
        # The journal was charged once, however many processes there were.
        assert (run["journal"], run["charges"]) == ([times], 1)
        assert run["journal epsilon"] == run["epsilon"]
        assert run["finite"]
    assert whole["epsilon"] == killed["epsilon"]
