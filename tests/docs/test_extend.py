"""The extension guide: its examples run as they stand, and do what they promise."""

import re
import sys
import types

import numpy as np
import pytest

from labeldp.core.certificate import verify
from labeldp.data import benchmarks
from labeldp.recipes import catalogue
from labeldp.testing import ContractError, check_randomizer
from tests.docs.pages import ROOT, blocks, text

PAGE = text("extend")


def section(title):
    """The Python of one section."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.S | re.M)
    assert found, title
    return blocks(found[1], "python")


def run(titles, names=None):
    names = {"__name__": "extension"} if names is None else names
    for title in titles:
        for number, block in enumerate(section(title)):
            exec(compile(block, f"extend.md, {title}, block {number + 1}", "exec"), names)
    return names


def test_a_randomizer_is_checked_charged_and_its_bug_is_found(capsys):
    names = run(["A new randomizer"])
    printed = capsys.readouterr().out
    assert "1.3863 (9000, 3)" in printed
    stars = names["stars"]
    check_randomizer(stars)
    with pytest.raises(ContractError):
        check_randomizer(names["Careless"](stars.weights))


def test_a_denoiser_trains_within_its_budget():
    pytest.importorskip("torch")
    names = run(["A new randomizer", "A new denoiser"])
    assert 0.9 < names["vault"].certificate(delta=1e-5).epsilon <= 1.0


def test_the_files_it_names_exist():
    named = set(re.findall(r"`((?:labeldp|tests)/[\w/.]+)`", PAGE)) - {"labeldp/recipes/bit_flip.py"}
    assert len(named) >= 5
    assert [name for name in named if not (ROOT / name).exists()] == []


def with_recipe(monkeypatch):
    """Put the page's file and line where they belong, for one test."""
    file, line, use = section("A new recipe")
    module = types.ModuleType("labeldp.recipes.bit_flip")
    exec(compile(file, "bit_flip.py", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    entry = eval(line, vars(catalogue))
    # As if the line had been there when everybody imported the list.
    new = {"RECIPES": (*catalogue.RECIPES, entry), "BY_KEY": {**catalogue.BY_KEY, entry.key: entry}}
    for name, value in new.items():
        old = getattr(catalogue, name)
        for each in [each for each in sys.modules.values() if getattr(each, name, None) is old]:
            monkeypatch.setattr(each, name, value)
    return entry, use


def test_a_recipe_is_one_file_and_one_line(monkeypatch, capsys):
    pytest.importorskip("sklearn")
    entry, use = with_recipe(monkeypatch)
    names = {"np": np}
    exec(compile(use, "extend.md", "exec"), names)
    assert capsys.readouterr().out == "bit_flip 2.0\n"
    model, x, y = names["model"], names["x"], names["y"]
    assert (model.predict(x) == y).mean() > 0.9
    assert verify(model.certificate_) == ()
    assert catalogue.find("bit-flip") is entry


def test_a_data_set_is_sealed_and_its_errors_hold_no_label(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = run(["A new data set"], {"np": np})
    assert "800 training rows, labels sealed" in capsys.readouterr().out
    monkeypatch.setitem(benchmarks._LOADERS, "rings", names["rings"])
    found = benchmarks.load("rings", root=tmp_path)
    assert (len(found.vault), found.vault.num_classes, len(found.test_labels)) == (800, 2, 200)
    with pytest.raises(FileNotFoundError, match=r"example\.org"):
        benchmarks.load("rings", root=tmp_path / "nowhere")
