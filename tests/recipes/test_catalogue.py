"""One catalogue: every recipe has one entry, and nobody else in the package spells its key."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import labeldp
from labeldp.recipes.catalogue import BY_KEY, RANKED, RECIPES, Lazy, canonical, find, keys, loaded
from labeldp.recipes.worth import Case

PACKAGE = Path(labeldp.__file__).parent
HOME = PACKAGE / "recipes" / "catalogue.py"
CASE = Case(5000, 3, 20, "table")


def spelt(source):
    """The recipes' keys among a file's string constants, docstrings left out."""
    tree = ast.parse(source)
    described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = {id(node.body[0].value) for node in ast.walk(tree)
            if isinstance(node, described) and node.body and isinstance(node.body[0], ast.Expr)}  # fmt: skip
    # What a module exports is a name in Python, not a recipe's key.
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            docs |= {id(part) for part in ast.walk(node.value)}
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return [(node.lineno, node.value) for node in texts if id(node) not in docs and canonical(node.value) in BY_KEY]


def sources():
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != HOME]


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_other_file_spells_a_key(path):
    assert spelt(path.read_text("utf-8")) == []


@pytest.mark.parametrize("planted", ['x = "lp_mst"', 'def f(m):\n    return m in ("auto", "one-shot")', 'f("alibi")'])
def test_a_planted_key_is_found(planted):
    assert len(spelt(f'"""A file about "lp_mst"."""\n{planted}\n')) == 1


def test_keys_are_unique_and_spelt_with_underscores():
    assert len(BY_KEY) == len(RECIPES)
    assert all(canonical(key) == key for key in BY_KEY)
    assert {recipe.key for recipe in RANKED} < set(BY_KEY)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.key)
def test_every_function_and_setting_of_an_entry_exists(recipe):
    pytest.importorskip("torch")
    functions = [name for name in (recipe.classes, recipe.numbers, recipe.benchmark) if name]
    assert functions
    settings = {**recipe.settings(CASE, 1.0)}
    for test in recipe.self_tests.values():
        functions += [test.function] * bool(test.function)
        settings |= {name: value(100, 1.0) if callable(value) else value for name, value in test.settings.items()}
    assert all(callable(loaded(name)) for name in functions)
    for value in settings.values():
        assert not isinstance(value, Lazy) or value.load() is not None
    known = set(inspect.signature(loaded(functions[0])).parameters)
    assert set(recipe.settings(CASE, 1.0)) <= known


def test_a_recipe_is_found_by_either_spelling_and_others_are_named():
    assert find("lp-mst") is find("lp_mst")
    with pytest.raises(ValueError, match=r"method='lp_msd' is not known \(did you mean 'lp_mst'\?\); give 'auto' or"):
        find("lp_msd")
    with pytest.raises(ValueError, match="binned_regression"):
        find("lp_mst", "numbers")
    assert "binned_regression" not in keys("classes")


def test_the_catalogue_loads_without_numpy():
    code = "import sys, labeldp.recipes.catalogue; print(sorted({'torch', 'numpy', 'scipy'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"
