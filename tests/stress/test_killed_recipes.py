"""Kill −9 at 1,000 random points over every recipe: none drawn twice, none lost but one in flight, no half file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recipes.stopping import CASES, MORE_CASES

KILLS = -(-1000 // len(CASES))


@pytest.mark.stress
def test_a_thousand_kills(tmp_path):
    script = Path(__file__).with_name("killing_recipes.py")
    command = [sys.executable, "-W", "error", str(script), str(tmp_path), str(KILLS), "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == len(CASES) + len(MORE_CASES)
    assert sum(case["kills"] for case in found.values()) >= 1000
    # Some did hit a query.
    assert sum(case["in flight"] for case in found.values()) > 20
