"""No file runs code: nothing is written by pickle, and what a user brings is read as data alone."""

import ast
from pathlib import Path

import pytest

import labeldp

PACKAGE = Path(labeldp.__file__).parent
UNSAFE = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def misuses(source):
    """The lines of a file that unpickle, or write a pickle."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            if names == ["UnpicklingError"]:
                # What PyTorch's reader of weights alone raises: a name to catch it by reads nothing.
                continue
            names += [getattr(node, "module", None) or ""]
            found += [node.lineno for name in names if name.split(".")[0] in UNSAFE]
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner = ast.unparse(node.func.value)
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        call = f"{owner}.{node.func.attr}"
        wrong = {
            "torch.save": True,
            "torch.load": given.get("weights_only") != "True",
            "np.load": given.get("allow_pickle") != "False",
            "np.save": given.get("allow_pickle") != "False",
            "np.savez": given.get("allow_pickle") != "False",
            "np.savez_compressed": given.get("allow_pickle") != "False",
        }.get(call, False)
        found += [node.lineno] * wrong
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_is_pickled_or_unpickled(path):
    assert misuses(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "planted", ["import pickle", "torch.save(x, path)", "torch.load(path)", "np.load(path)", "from joblib import dump"]
)
def test_a_planted_pickle_is_found(planted):
    assert misuses(planted) == [1]
