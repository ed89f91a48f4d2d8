"""Every line under experiments/results says what it must, and its certificate holds for the epsilon it states."""

import json
import re
from pathlib import Path

import pytest

from experiments import records, tables
from experiments.settings import groups
from labeldp.core import certificate

FILES = sorted((Path(tables.__file__).parent / "results").glob("*.jsonl"))
KINDS = {
    "dataset": str, "method": str, "epsilon": (int, float, str), "delta": (int, float), "accounting": str, "seed": int,
    "metric": str, "value": (int, float), "seconds": (int, float), "device": str, "commit": str, "settings": dict,
    "certificate": dict,
}  # fmt: skip


def no_constant(name):
    raise ValueError(f"{name} is not JSON")


def lines(file):
    return [json.loads(line, parse_constant=no_constant) for line in file.read_text(encoding="utf-8").splitlines()]


def test_there_are_results():
    assert {"noisy_labels.jsonl", "fashion_mnist_first_try.jsonl"} <= {file.name for file in FILES}
    assert set(KINDS) == set(records.FIELDS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_line_has_its_fields_and_a_certificate_that_holds(file):
    for number, line in enumerate(lines(file), start=1):
        where = f"{file.name}:{number}"
        assert {name for name, kind in KINDS.items() if not isinstance(line.get(name), kind)} == set(), where
        assert records.check(line) == [], where
        claim = certificate.parse(json.dumps(line["certificate"]))
        assert certificate.verify(claim) == () or line["epsilon"] == "inf", where
        assert claim.epsilon <= float(line["epsilon"]), where
        assert line["epsilon"] == "inf" or isinstance(line["epsilon"], (int, float)), where
        assert re.fullmatch(r"[0-9a-f]{40}(\+changes)?|unknown .*", line["commit"]), where
        assert line["method"] == line["method"].lower(), where
        assert line["metric"] != "accuracy" or 0 <= line["value"] <= 100, where
        assert line["seconds"] > 0, where
        # What was run is in the settings, whatever the method's name suggests.
        assert {"dataset", "model", "recipe", "epochs"} <= set(line["settings"]), where


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_run_is_counted_twice_and_quick_ones_are_apart(file):
    seen = [
        json.dumps([line["dataset"], line["method"], records.asked(line), line["seed"], line["settings"]])
        for line in lines(file)
    ]
    assert len(set(seen)) == len(seen)
    quick = {bool(line["settings"].get("quick")) for line in lines(file)}
    assert quick <= {file.name == "quick.jsonl"}


def test_tables_have_settings_provenance_and_the_papers_figures():
    for table in tables.tables().values():
        assert set(table.groups) <= set(groups(table.settings))
        assert all(table.provenance().values()), table.name
        compared = [run for run in table.runs() if table.paper(run) is not None]
        # Data that the paper does not have can only be compared within itself, and the title says so.
        assert bool(compared) == bool(table.figures) == ("no figures" not in table.title), table.name


def test_figures_are_the_papers():
    found = tables.tables()
    one, four = found["ghazi2021-table1"].figures, found["ghazi2021-table4"].figures
    assert [one["cifar10", "lp-1st", float(e), "accuracy"] for e in ("1", "2", "4", "inf")] == [
        59.96, 82.38, 92.58, 94.96,
    ]  # fmt: skip
    assert [four["mnist", "lp-2st", float(e), "accuracy"] for e in (1, 2, 3, 4)] == [95.82, 98.78, 99.14, 99.24]
    assert [four["fashion_mnist", "lp-2st", float(e), "accuracy"] for e in (1, 2, 3, 4)] == [83.26, 91.24, 93.18, 94.10]


def test_no_figure_is_given_twice():
    text = (tables.FOLDER / "papers.csv").read_text(encoding="utf-8").splitlines()
    keys = [line.rsplit(",", 1)[0] for line in text]
    assert len(set(keys)) == len(keys)
