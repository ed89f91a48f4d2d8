"""A small table with secret labels, and the command line without a new process for every line."""

import csv

import numpy as np
import pytest

from labeldp.cli.app import run

SECRET = "very-secret-class"
CLASSES = f"no,{SECRET}"
HEADER = ("id", "age", "town", "smokes", "y")


@pytest.fixture(autouse=True)
def fresh_memory():
    """Every test of a module that imports this stands for a process of its own, which fits once."""
    from labeldp.estimator import spending

    spending.MEMORY.forget()


def rows(count=300, seed=0, first=0):
    rng = np.random.default_rng(seed)
    age, town, noise = rng.integers(18, 90, count), rng.choice(["Ulm", "Bonn", "Köln"], count), rng.normal(size=count)
    labels = np.where(age + 10 * (town == "Ulm") + 3 * noise > 57, SECRET, "no")
    smokes = rng.choice(["true", "false"], count)
    # A missing cell now and then is no mistake.
    ages = ["" if i % 50 == 7 else str(value) for i, value in enumerate(age)]
    return [list(row) for row in zip(map(str, range(first, first + count)), ages, town, smokes, labels, strict=True)]


def write_csv(path, lines, header=HEADER, encoding="utf-8"):
    with path.open("w", newline="", encoding=encoding) as file:
        csv.writer(file, lineterminator="\n").writerows([header, *lines])
    return path


def labeldp(*arguments):
    """Run a command here and now: its exit code."""
    return run([str(argument) for argument in arguments])


def train(table, out, *more, label="y", classes=CLASSES, epsilon="4", method="one_shot"):
    options = {"--label": label, "--classes": classes, "--epsilon": epsilon, "--out": out, "--method": method}
    given = [part for name, value in options.items() if value is not None for part in (name, value)]
    return labeldp("train", table, *given, *more)
