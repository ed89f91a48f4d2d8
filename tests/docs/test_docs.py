"""Every Python block of every page runs, in order, in an empty folder, and prints what the page says it prints.

The extension guide and the page on several machines have tests of their own, test_extend.py and test_scale.py.
"""

import contextlib
import importlib
import json
import re

import pytest

from labeldp.core.certificate import parse, verify
from tests.docs.pages import PAGES, ROOT, blocks, text


def estimators(names, printed, folder):
    assert "\n1.0\n" in printed
    assert "refused: the budget is epsilon=2, delta=1e-05" in printed
    assert "False" not in printed
    assert (folder / "certificate.json").exists()


def users(names, printed, folder):
    """The certificate on the page is the one that comes out."""
    certificate = parse(names["vault"].certificate().dumps())
    assert verify(certificate) == ()
    (block,) = blocks(text("users"), "json")
    shown, written = json.loads("{" + block.replace(" ...", "") + "}"), certificate.to_json()
    assert written["ledger"] == shown["ledger"]
    assert written["claim"] | {"neighbours": None} == shown["claim"] | {"neighbours": None}
    assert written["claim"]["neighbours"].startswith(shown["claim"]["neighbours"])
    assert set(names["private"].channel.epsilons) == {0.5, 2.0 / 3, 1.0, 2.0}


def audit(names, printed, folder):
    assert printed.startswith(("No contradiction", "THE CLAIM IS BROKEN"))
    assert 0.5 < names["result"].bound < 2.3


def budgets(names, printed, folder):
    lines = printed.splitlines()
    assert lines[0].startswith("refused: the budget is epsilon=2, delta=0")
    assert lines[1:] == ["1 first model PureDP(epsilon=1.5) 1.5"]


MORE = {check.__name__: check for check in (estimators, users, audit, budgets)}
# Comments that explain instead of quoting.
EXPLAINED = ("why", "at most 1, and paid", "False, unless", "1.0, at")


# Pages of many trainings, ten seconds and more.
LONG = ("coming_from", "estimators", "evaluation", "recipes")


# Some pages show what the library warns of.
@pytest.mark.filterwarnings("default::UserWarning")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=[pytest.mark.slow] * (page.stem in LONG))
        for page in PAGES
        if page.stem not in ("extend", "scale")
    ],
)
def test_python_blocks_run_and_print_what_they_say(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names, printed = {"__name__": "__main__"}, ""
    for number, block in enumerate(blocks(page.read_text("utf-8"), "python")):
        exec(compile(block, f"{page.name}, block {number + 1}", "exec"), names)
        out = capsys.readouterr().out
        # `print(…)  # this` prints this.
        said = re.findall(r"^ *print\(.*\)  # (.+)$", block, re.M) + re.findall(r"^# (\d.*)$", block, re.M)
        assert [words for words in said if words not in out and not words.startswith(EXPLAINED)] == []
        printed += out
    MORE.get(page.stem, lambda *_: None)(names, printed, tmp_path)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.stem)
def test_links_to_files_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    lost = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert lost == []


def test_the_estimators_page_names_every_method():
    from labeldp.recipes import catalogue

    known = {*catalogue.keys("classes"), *catalogue.keys("numbers")}
    assert [key for key in known if f"`{key}`" not in text("estimators")] == []


def test_the_recipes_page_names_every_recipe():
    from labeldp.recipes import catalogue

    assert [recipe.key for recipe in catalogue.RECIPES if f"`{recipe.key}`" not in text("recipes")] == []


def test_names_on_the_page_about_users_exist():
    import labeldp
    from labeldp.recipes import attribution, labeldp_pro, per_row

    page = text("users")
    for module, names in (
        (labeldp, ("UserResponse", "UserVault", "cap_rows", "UserGradientSum")),
        (per_row, ("rr", "forward", "debiased")),
        (labeldp_pro, ("train",)),
        (attribution, ()),
    ):
        assert module.__name__.rsplit(".", 1)[-1] in page
        assert [name for name in names if name not in page or not hasattr(module, name)] == []


def test_the_options_on_the_page_about_budgets_exist():
    from tests.commands import labeldp

    page = text("budgets")
    for command, options in {
        ("budget", "create"): ["--name", "--label", "--classes", "--epsilon", "--store", "--key", "--user"],
        ("budget", "show"): ["--json"],
        ("budget", "history"): ["--json"],
        ("privatize",): ["--store", "--key"],
    }.items():
        help_text = labeldp(*command, "--help", check=0).stdout
        assert " ".join(command) in page
        assert [option for option in options if option not in help_text or option not in page] == []
    assert [name for name in re.findall(r"`(tests/[\w/.]+)`", page) if not (ROOT / name).exists()] == []


def test_the_functions_and_options_on_the_page_about_audits_exist():
    from labeldp import audit
    from tests.commands import labeldp

    page = text("audit")
    assert [name for name in re.findall(r"\| `(\w+)\(", page) if name not in audit.__all__] == []
    help_text = labeldp("audit", "--help", check=0).stdout
    assert [name for name in set(re.findall(r"labeldp audit[^\n]*?(--\w+)", page)) if name not in help_text] == []


FOLDERS = sorted(path.parent.name for path in (ROOT / "labeldp").glob("*/__init__.py"))
RECIPES = sorted(path.stem for path in (ROOT / "labeldp" / "recipes").glob("[a-z]*.py"))


def found(dotted):
    """Whether this is a module of the package, or a name in one."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            thing = importlib.import_module(".".join(parts[:length]))
            return all(hasattr(thing, part) and (thing := getattr(thing, part)) is not None for part in parts[length:])
    return False


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.stem)
def test_names_in_the_text_exist(page):
    pytest.importorskip("torch")
    quoted = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.S | re.M))
    dotted = [re.match(r"[\w.]*", code)[0].rstrip(".") for code in quoted]
    names = {name for name in dotted if name.startswith("labeldp.")}
    names |= {f"labeldp.{name}" for name in dotted if "." in name and name.split(".")[0] in FOLDERS}
    names |= {f"labeldp.recipes.{name}" for name in dotted if "." in name and name.split(".")[0] in RECIPES}
    names -= {name for name in names if name.endswith((".py", ".csv", ".md", ".html", ".key", ".db", ".json"))}
    assert sorted(name for name in names if not found(name)) == []
    files = {
        code for code in quoted if re.fullmatch(r"(labeldp|tests|experiments|benchmarks|scripts|docs)/[\w/.]+", code)
    }
    made = {"labeldp/recipes/bit_flip.py"}
    assert sorted(name for name in files - made if not (ROOT / name).exists()) == []
