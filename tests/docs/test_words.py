"""The language of the docs: words of the glossary and of nobody else, spelt right; links that lead somewhere."""

import importlib
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, TUTORIALS, text

READ = [
    *PAGES, *TUTORIALS,
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md")),
]  # fmt: skip
CODE = [path for ending in ("py", "jinja") for path in sorted((ROOT / "labeldp").rglob(f"*.{ending}"))]
# Words of earlier versions, and what they are called now; where a page must name one, it is in quotes or code.
GONE = {
    r"\brehears(?:al|e|ed|als)\b": "label-free tuning",
    r"\bsuret(?:y|ies)\b": "confidence",
    r"\btall(?:y|ies)\b": "query counter",
    r"\brow hulls?\b": "per-row simplex",
    r"\bpictures\b": "images",
    r"\blooks? at the labels\b": "query",
}
# In the package itself, names and comments included; a test may speak of the law of a random number.
GONE_FROM_CODE = GONE | {r"(?<!power )\blaws?\b": "channel", r"\bstud(?:y|ies)\b": "pretraining, distillation"}
# Terms with one spelling.
SPELT = {
    r"\b[Rr]andomised [Rr]esponse": "randomized response",
    r"\blabel[- ]DP\b(?! literature)": "label differential privacy",
    r"\bpytorch\b": "PyTorch",
    r"\bOpacus'?s\b": "Opacus",
    r"\bScikit-learn\b|\bsklearn\b": "scikit-learn",
    r"\bdata-set|\bdataset\b": "data set",
    r"\bε-DP\b": "ε-private",
}


def prose(path):
    """A page without code, links' targets and quotes, which may name anything."""
    content = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.S | re.M)
    content = re.sub(r"^( {2,})```.*?^ {2,}```", "", content, flags=re.S | re.M)
    return re.sub(r"`[^`]*`|\]\([^)]*\)|“[^”]*”|\"[^\"\n]*\"|^:::.*$", " ", content, flags=re.M)


@pytest.mark.parametrize("page", READ, ids=lambda page: page.stem)
def test_words_are_those_of_the_glossary(page):
    words = prose(page)
    odd = [(found[0], wanted) for pattern, wanted in (GONE | SPELT).items() for found in re.finditer(pattern, words)]
    assert odd == []


@pytest.mark.parametrize("folder", sorted({path.parent for path in CODE}), ids=lambda folder: folder.name)
def test_code_speaks_the_same_words(folder):
    odd = [
        (path.name, found[0], wanted)
        for path in CODE
        if path.parent == folder
        for pattern, wanted in GONE_FROM_CODE.items()
        for found in re.finditer(pattern, path.read_text("utf-8").replace("_", " ").lower())
        # A format keeps the name it was given.
        if f"{found[0]}/" not in path.read_text("utf-8")[found.start() : found.end() + 1]
    ]
    assert odd == []


def test_the_check_finds_a_wrong_word(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("A rehearsal of randomised response on a dataset, and `rehearsal` in code.\n")
    found = {wanted for pattern, wanted in (GONE | SPELT).items() if re.search(pattern, prose(page))}
    assert found == {"label-free tuning", "randomized response", "data set"}


@pytest.mark.skipif(find_spec("codespell_lib") is None, reason="codespell is not installed")
def test_nothing_is_misspelt():
    ignored = "ans,nd,ot,te,som,ist"
    command = [sys.executable, "-m", "codespell_lib", "--ignore-words-list", ignored, *map(str, READ)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == ""


def anchors(path):
    """The places of a page that a link can name, as mkdocs makes them."""
    found, seen = set(), {}
    for title in re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.S | re.M), re.M):
        plain = re.sub(r"[`*]|\]\([^)]*\)|\[", "", title)
        name = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain.encode("ascii", "ignore").decode()).strip().lower())
        number = seen[name] = seen.get(name, -1) + 1
        found.add(name if number == 0 else f"{name}_{number}")
    return found


@pytest.mark.parametrize("page", READ, ids=lambda page: page.stem)
def test_links_lead_to_files_and_places_that_are_there(page):
    content = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.S | re.M)
    lost = []
    for target in re.findall(r"\]\(([^)\s]+)\)", content):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, place = target.partition("#")
        path = page if not name else Path(page.parent, name)
        if not path.exists() or (place and path.suffix == ".md" and place not in anchors(path)):
            lost.append(target)
    assert lost == []


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"[\w/]+\.md", (ROOT / "mkdocs.yml").read_text("utf-8")))
    docs = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert docs == listed


@pytest.mark.parametrize("name", ["labeldp", "labeldp.data", "labeldp.estimator", "labeldp.service"])
def test_the_reference_has_every_public_name(name):
    names = importlib.import_module(name).__all__
    page = text("reference")
    missing = [name for name in names if not re.search(rf"^::: labeldp\.[\w.]+\.{name}$", page, re.M)]
    assert [name for name in missing if name != "__version__"] == []


def test_the_reference_has_every_recipe_and_the_contract():
    from labeldp import testing
    from labeldp.recipes.catalogue import BY_KEY

    functions = {name for entry in BY_KEY.values() for name in (entry.classes, entry.numbers) if name}
    wanted = {f"labeldp.recipes.{name}" for name in functions}
    wanted |= {
        f"labeldp.testing.{name}"
        for name, value in vars(testing).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == "labeldp.testing"
    }
    assert len(wanted) > 25
    assert wanted - set(re.findall(r"^::: (\S+)$", text("reference"), re.M)) == set()
