"""Who may import whom. `core`, `mechanisms` and `learning` never meet: that one line is the privacy argument."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import labeldp

PACKAGE = Path(labeldp.__file__).parent

# What each room may import of ours, besides itself. `core` and `mechanisms` never meet `learning`.
ALLOWED = {
    "atomic": set(),
    "core": set(),
    "releases": set(),
    "models": set(),
    # Processes that work in step: what they send each other, of which no label knows.
    "ranks": set(),
    "mechanisms": {"core", "releases", "models", "ranks"},
    "budgets": {"core"},
    "features": {"learning", "releases", "models", "ranks"},
    "learning": {"features", "releases", "models", "ranks"},
    "data": {"core", "mechanisms", "budgets", "releases"},
    "service": {"core", "mechanisms", "budgets", "releases", "data", "models", "learning", "recipes", "results"},
    "engines": {
        "core",
        "mechanisms",
        "budgets",
        "releases",
        "data",
        "features",
        "learning",
        "models",
        "ranks",
        "recipes",
        "estimator",
        "results",
    },
}
HEAVY = {"torch", "pyarrow", "pandas", "dp_accounting"}
WHO_MAY_BE_HEAVY = {"core": set(), "releases": set(), "mechanisms": set(), "budgets": set(), "data": {"pyarrow"}}
# Gradients need torch; every other mechanism works without it.
HEAVY_FILES = {
    f"mechanisms/gradients/{name}.py": {"torch"}
    for name in ("sums", "noise", "users", "terms", "layers", "plans", "per_example", "replay", "public", "ranks")
}


def room(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def without_type_hints(tree):
    """The same, less what only a type checker reads."""
    tree.body = [
        node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    ]
    return tree


def imported(path, read=lambda tree: tree):
    for node in ast.walk(read(ast.parse(path.read_text()))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            yield node.module
            if node.module == "labeldp":
                yield from (f"labeldp.{alias.name}" for alias in node.names)


def modules():
    return [path for path in sorted(PACKAGE.rglob("*.py")) if room(path) in ALLOWED]


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_rooms_import_only_what_they_may(path):
    ours = {name.split(".")[1] for name in imported(path) if name.startswith("labeldp.")}
    assert ours <= ALLOWED[room(path)] | {room(path), "atomic"}


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_audit_perimeter_stays_light(path):
    if room(path) in WHO_MAY_BE_HEAVY:
        heavy = {name.split(".")[0] for name in imported(path, without_type_hints)} & HEAVY
        excused = HEAVY_FILES.get(path.relative_to(PACKAGE).as_posix(), set())
        assert heavy <= WHO_MAY_BE_HEAVY[room(path)] | excused


def test_importing_the_library_loads_nothing_heavy():
    code = f"import sys, labeldp, labeldp.cli.app; print(sorted({HEAVY!r} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"


def test_the_exported_names_are_these():
    assert sorted(labeldp.__all__) == labeldp.__all__
    assert set(labeldp.__all__) == {
        "BitFlip", "Budget", "BudgetExceededError", "BudgetStore", "Certificate", "Choice", "DiameterBound",
        "GaussianNoise", "GradientSum", "GroupCounts", "GroupVotes", "LabelDPClassifier", "LabelDPRegressor",
        "LabelVault", "LaplaceNoise", "LaplaceOneHot", "Moments", "NoisyCounts", "NoisyGradient", "NoisyLabels",
        "NoisyMoments", "NormBound", "PriorResponse", "PrivateTable", "RandomizedResponse", "SecureRandom",
        "TeacherVotes", "TopKResponse", "UserGradientSum", "UserResponse", "UserVault", "__version__", "cap_rows",
        "choose", "load", "privatize", "read_private",
    }  # fmt: skip
    for name in labeldp.__all__:
        assert getattr(labeldp, name) is not None
    with pytest.raises(AttributeError, match="nothing_like_this"):
        _ = labeldp.nothing_like_this


def test_the_store_is_one_of_the_rooms_own_names():
    from labeldp import budgets
    from labeldp.budgets.store import BudgetStore

    assert budgets.BudgetStore is labeldp.BudgetStore is BudgetStore
    with pytest.raises(AttributeError, match="nothing_like_this"):
        _ = budgets.nothing_like_this
