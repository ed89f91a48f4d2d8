"""`labeldp reproduce` from the command line to the printed table, on made-up data and a made-up paper."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import labeldp
from experiments import adapters, records, synthetic, tables
from labeldp.cli import app
from tests import commands

ROOT = Path(tables.__file__).parents[1]
TABLES = """
[[table]]
name = "nobody1999-table1"
title = "Nobody 1999, A paper that was never written, Table 1"
settings = "tiny.toml"
groups = ["tiny"]
note = "A note on the table."
"""
FIGURES = f"""table,paper,dataset,method,epsilon,metric,value
nobody1999-table1,Nobody 1999,{synthetic.NAME},lp-1st,2,accuracy,50
nobody1999-table1,Nobody 1999,{synthetic.NAME},lp-1st,inf,accuracy,90
nobody1999-table1,Nobody 1999,{synthetic.NAME},telepathy,2,accuracy,99
"""
SETTINGS = f"""
[[group]]
name = "tiny"
provenance = "All made up for a test."
dataset = "{synthetic.NAME}"
model = "mnist_cnn"
epochs = 3
batch_size = 64
optimizer = "adam"
learning_rate = 1e-3
weight_decay = 0.0
schedule = "linear"
augment = []
seeds = [1, 2]

  [[group.run]]
  method = "lp-1st"
  recipe = "forward"
  epsilon = [2, "inf"]

  [[group.run]]
  method = "lp-2st"
  recipe = "lp_mst"
  epsilon = [2]
  shares = [0.5, 0.5]
  temperature = 1.0

  [[group.run]]
  method = "endless"
  recipe = "forward"
  epsilon = [1, 2]
  by_epsilon = {{ 2 = {{ epochs = 1000000 }} }}
"""
TABLE = "nobody1999-table1"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of experiments in place of the checkout's."""
    for name, text in (("tables.toml", TABLES), ("papers.csv", FIGURES), ("tiny.toml", SETTINGS)):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    return tmp_path


@pytest.fixture
def labeldp_here(capsys):
    """The command in this process: (exit code, stdout, stderr)."""

    def call(*arguments):
        code = app.run([*map(str, arguments), *([] if "--list" in arguments else ["--device", "cpu"])])
        return (code, *capsys.readouterr())

    return call


def test_the_whole_way(folder, labeldp_here):
    code, said, told = labeldp_here("reproduce", TABLE, "--method", "lp-1st", "--method", "lp-2st")
    assert code == 0
    lines = records.read(folder / "results" / "tiny.jsonl")
    assert [(line["method"], line["epsilon"], line["seed"]) for line in lines] == [
        ("lp-1st", 2.0, 1), ("lp-1st", 2.0, 2), ("lp-1st", "inf", 1), ("lp-1st", "inf", 2),
        ("lp-2st", 2.0, 1), ("lp-2st", 2.0, 2),
    ]  # fmt: skip
    assert all(records.check(line) == [] for line in lines)
    assert told.count(" s\n") == 6
    first = [line["value"] for line in lines[:2]]
    mean, spread = sum(first) / 2, abs(first[0] - first[1]) / 2**0.5
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in said.splitlines() if row.startswith("|")]
    assert rows[2][:7] == [
        synthetic.NAME, "lp-1st", "forward, 3 epochs", "2",
        f"{mean:.2f} ± {spread:.2f} (2)", "50.00", f"{mean - 50:+.2f}",
    ]  # fmt: skip
    assert [row[5] for row in rows[2:]] == ["50.00", "90.00", "–"]
    for remark in ("Nobody 1999", "All made up for a test.", "A note on the table.", "telepathy at ε = 2", "δ = 0"):
        assert remark in said


def test_finished_runs_are_not_trained_again(folder, labeldp_here):
    only = ("reproduce", TABLE, "--method", "lp-1st", "--epsilon", "2")
    out = folder / "results" / "tiny.jsonl"
    labeldp_here(*only, "--seeds", "1")
    first = out.read_text()
    code, said, told = labeldp_here(*only, "--seeds", "1")
    assert (code, told, out.read_text()) == (0, "", first)
    assert "(1)" in said
    labeldp_here(*only, "--seeds", "3")
    assert out.read_text().startswith(first)
    assert [line["seed"] for line in records.read(out)] == [1, 2, 3]


def test_what_was_recorded_is_printed_and_the_rest_named(folder, labeldp_here):
    labeldp_here("reproduce", TABLE, "--method", "lp-1st", "--epsilon", "2", "--seeds", "1")
    out = folder / "results" / "tiny.jsonl"
    before = out.read_text()
    code, said, told = labeldp_here("reproduce", TABLE, "--recorded")
    assert (code, told, out.read_text()) == (0, "", before)
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in said.splitlines() if row.startswith("|")]
    assert rows[2][1:4] == ["lp-1st", "forward, 3 epochs", "2"]
    assert rows[2][4].endswith("(1)")
    assert {row[4] for row in rows[3:]} == {"not run"}
    assert f"No line yet: {synthetic.NAME} lp-1st at ε = inf; {synthetic.NAME} lp-2st at ε = 2;" in said


def test_a_finished_table_needs_no_pytorch(folder, labeldp_here):
    only = ("reproduce", TABLE, "--method", "lp-1st", "--epsilon", "2", "--seeds", "1")
    labeldp_here(*only)
    code = "import signal, sys, pathlib, experiments.tables as t; t.FOLDER = pathlib.Path(sys.argv[1]); "
    # A shell that runs the tests in the background lets them ignore Ctrl-C, and what they start as well.
    code += "signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from labeldp.cli import app; assert app.run(sys.argv[2:]) == 0; print('torch' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code, str(folder), *only], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert found.stdout.splitlines()[-1] == "False"


def test_quick_is_marked_apart_and_says_so(folder, labeldp_here):
    code, said, _ = labeldp_here("reproduce", TABLE, "--quick", "--epsilon", "2", "--method", "lp-1st")
    assert code == 0
    assert "QUICK" in said
    assert not (folder / "results" / "tiny.jsonl").exists()
    (line,) = records.read(folder / "results" / "quick.jsonl")
    assert (line["settings"]["quick"], line["settings"]["epochs"], line["seed"]) == (True, 2, 1)


def test_quick_lines_in_the_same_file_do_not_count(folder, labeldp_here, tmp_path):
    out = tmp_path / "mine.jsonl"
    only = ("reproduce", TABLE, "--epsilon", "2", "--method", "lp-1st", "--out", out)
    labeldp_here(*only, "--quick")
    _, said, _ = labeldp_here(*only)
    assert len(records.read(out)) == 3
    assert "(2)" in said
    assert "QUICK" not in said


@pytest.mark.slow
def test_several_at_once(folder, labeldp_here):
    code, said, told = labeldp_here("reproduce", TABLE, "--method", "lp-1st", "--jobs", "2")
    assert code == 0
    assert told.count(" s\n") == 4
    assert said.count("(2)") == 2
    lines = records.read(folder / "results" / "tiny.jsonl")
    assert len({(line["method"], line["epsilon"], line["seed"]) for line in lines}) == 4


@pytest.mark.slow
@pytest.mark.parametrize(("jobs", "how"), [(1, signal.SIGINT), (2, signal.SIGTERM)])
def test_interrupted_it_keeps_what_is_done_and_goes_on(folder, jobs, how):
    out = folder / "results" / "tiny.jsonl"
    code = "import signal, sys, pathlib, experiments.tables as t; t.FOLDER = pathlib.Path(sys.argv[1]); "
    # A shell that runs the tests in the background lets them ignore Ctrl-C, and what they start as well.
    code += "signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from labeldp.cli import app; app.main(sys.argv[2:])"
    command = [sys.executable, "-c", code, str(folder), "reproduce", TABLE, "--method", "endless"]
    command += ["--seeds", "1", "--device", "cpu", "--jobs", str(jobs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        while not out.exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(how)
        # The pipes close only when the trainings in other processes are gone, too.
        said, told = process.communicate(timeout=60)
    assert process.returncode == 2, told
    assert said == ""
    assert f"interrupted. Finished runs are kept in {out}" in told
    assert [(line["epsilon"], line["seed"]) for line in records.read(out)] == [(1.0, 1)]
    left = [run.epsilon for run in records.missing(tables.select(
        tables.tables()[TABLE].runs(seeds=1), (), ("endless",)), records.read(out))]  # fmt: skip
    assert left == [2.0]


def test_an_unexpected_failure_quotes_nothing_and_keeps_what_is_done(folder, labeldp_here, monkeypatch):
    def breaks(job):
        raise RuntimeError("the label of row 7 is 3")

    family = adapters.FAMILIES["lp_mst"]
    monkeypatch.setitem(adapters.FAMILIES, "lp_mst", adapters.Family(breaks, family.needs, family.may_have))
    code, said, told = labeldp_here("reproduce", TABLE, "--epsilon", "2", "--seeds", "1")
    assert (code, said) == (2, "")
    assert "unexpected RuntimeError" in told
    assert "row 7" not in told
    out = folder / "results" / "tiny.jsonl"
    assert f"Finished runs are kept in {out}" in told
    assert [line["method"] for line in records.read(out)] == ["lp-1st"]


def test_without_pytorch_it_says_what_to_install(tmp_path):
    code = "import sys; sys.modules['torch'] = None; from labeldp.cli import app; sys.exit(app.run(sys.argv[1:]))"
    arguments = ["reproduce", "ghazi2021-table1", "--quick", "--out", str(tmp_path / "out.jsonl")]
    found = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert found.returncode == 2
    assert "labeldp[torch]" in found.stderr


# --- the checkout's own tables ------------------------------------------------------------------------------------


def test_list_shows_the_tables():
    found = commands.labeldp("reproduce", "--list", cwd=ROOT)
    assert found.returncode == 0
    assert [line.split()[0] for line in found.stdout.splitlines()] == list(tables.tables())
    assert {"ghazi2021-table1", "ghazi2021-table4"} <= set(tables.tables())


def test_missing_data_is_the_loaders_sentence(tmp_path, monkeypatch):
    arguments = ("reproduce", "ghazi2021-table1", "--quick", "--device", "cpu", "--out", tmp_path / "out.jsonl")
    monkeypatch.setenv("LABELDP_DATA", str(tmp_path))
    found = commands.labeldp(*arguments, cwd=ROOT)
    assert found.returncode == 2
    assert "cifar10" in found.stderr
    assert "Download" in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1
    assert found.stdout == ""
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "--list"),
        (["ghazi2021-table4", "--list"], "--list"),
        (["ghazi2021-table99"], "ghazi2021-table4"),
        (["ghazi2021-table4", "--method", "lp-9st"], "lp-2st"),
        (["ghazi2021-table4", "--epsilon", "0.7"], "inf"),
        (["ghazi2021-table4", "--epsilon", "nan"], "epsilon=nan"),
        (["ghazi2021-table4", "--epsilon", "4", "--method", "lp-3st"], "no lp-3st at epsilon 4"),
        (["ghazi2021-table4", "--quick", "--seeds", "2"], "--seeds"),
        (["ghazi2021-table4", "--seeds", "0"], "seeds"),
        (["ghazi2021-table4", "--jobs", "0"], "jobs"),
        (["ghazi2021-table4", "--quick", "--device", "abacus"], "abacus"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(arguments, what, tmp_path):
    found = commands.labeldp("reproduce", *arguments, "--out", tmp_path / "out.jsonl", cwd=ROOT)
    assert found.returncode == 2
    assert what in found.stderr
    assert found.stdout == ""
    assert os.listdir(tmp_path) == []


def test_a_damaged_result_file_is_named(folder, labeldp_here):
    out = folder / "results" / "tiny.jsonl"
    out.parent.mkdir()
    out.write_text(json.dumps({"dataset": "x"})[:-1])
    code, _, told = labeldp_here("reproduce", TABLE)
    assert code == 2
    assert "line 1" in told


def test_without_a_checkout_it_says_so(tmp_path):
    package = tmp_path / "site" / "labeldp"
    shutil.copytree(Path(labeldp.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    found = commands.in_a_process("reproduce", "--list", cwd=package.parent)
    assert found.returncode == 2
    assert "not part of the installed package" in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1
    # Standing in a checkout is as good as being part of it.
    shutil.copytree(ROOT / "experiments", package.parent / "experiments", ignore=shutil.ignore_patterns("__pycache__"))
    assert commands.in_a_process("reproduce", "--list", cwd=package.parent).returncode == 0


def test_help_starts_without_pytorch():
    assert "--quick" in commands.labeldp("reproduce", "--help").stdout
    code = "import sys; from labeldp.cli import app; app.run(['reproduce', '--help']); print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.splitlines()[-1] == "False"
