"""The versions the project is tested with are all written down."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_direct_dependency_has_a_tested_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    # `bench` compares with older libraries, which need an older scikit-learn.
    extras = [wanted for name, wanted in project["optional-dependencies"].items() if name != "bench"]
    needed = {re.match(r"[\w.-]+", one)[0] for wanted in (project["dependencies"], *extras) for one in wanted}
    pinned = re.findall(r"^([\w.-]+)==[\w.]+$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
    assert sorted(needed - {project["name"]}) == sorted(pinned)
