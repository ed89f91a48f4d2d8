"""The page on audits: its Python is run as it stands, and what it names exists."""

import re
from pathlib import Path

import numpy as np
import pytest

from labeldp import audit
from labeldp.audit.result import Claim, Guesses, judged
from labeldp.audit.separate import separate
from labeldp.audit.training import guesses_of
from labeldp.core import accountant, gaussian
from labeldp.core.events import Gaussian, Query
from tests.cli.test_cli import labeldp

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "audit.md"
if not PAGE.exists():
    pytest.skip("the docs are not beside the tests", allow_module_level=True)
TEXT = PAGE.read_text()


def test_the_example_runs(capsys):
    pytest.importorskip("torch")
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    names = {}
    exec(compile(example, "docs/audit.md", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith(("No contradiction", "THE CLAIM IS BROKEN"))
    assert 0.5 < names["result"].bound < 2.3


def test_the_functions_and_commands_exist():
    for name in re.findall(r"\| `(\w+)\(", TEXT):
        assert name in audit.__all__
    help_text = labeldp("audit", "--help", check=0).stdout
    for option in set(re.findall(r"labeldp audit[^\n]*?(--\w+)", TEXT)):
        assert option in help_text


def test_the_figures_about_gaussian_noise_are_right():
    """5,000 canaries at ε = 1, median outcomes: known to be separate, and not."""
    std = gaussian.analytic_gaussian_std(1.0, 1e-5, 2.0)
    queries = (Query(Gaussian(std, 2.0)),)
    claim, rng = Claim(accountant.epsilon(queries, 1e-5), 1e-5, queries), np.random.default_rng(0)
    for noise, apart, together in ((std, 0.4, 0.05), (std / 2, 1.5, 0.3)):
        found = []
        for _ in range(15):
            coins = rng.integers(2, size=5000)
            shown = 2 * coins - 1 + noise * rng.normal(size=5000)
            each = separate("shift", 2 * coins - 1, shown).bound(claim, 0.999)
            found.append((each, judged(claim, guesses_of("shift", coins, shown), 0.999).bound))
        assert np.median(found, axis=0) == pytest.approx([apart, together], abs=0.15)


def test_the_limit_of_one_run_with_delta_is_right():
    """Every guess right, and yet nothing proved: δ = 1e-5 and ε = 4 at 99.9%, with as many attacks as there are."""
    level = 1 - 1e-3 / 6
    for many in (500, 5000):
        assert Guesses("all", many, many, many).bound(Claim(4.0, 1e-5), level) < 4.0
        assert Guesses("all", many, many, many).bound(Claim(4.0, 1e-7), level) > 4.0
