"""From a CSV file to a certified model and its predictions, by the commands alone."""

import csv
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from rich import progress as rich_progress

from labeldp.core.certificate import read as read_certificate
from labeldp.estimator import spending
from labeldp.recipes.catalogue import keys
from labeldp.results.card import promise
from labeldp.results.model import load
from labeldp.results.verify import verify_folder
from tests.cli.clihelp import SECRET, labeldp, rows, train, write_csv

pytest.importorskip("torch")
pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A table, open labels like it, and a model of it."""
    folder = tmp_path_factory.mktemp("place")
    write_csv(folder / "t.csv", rows())
    write_csv(folder / "open.csv", rows(200, seed=1, first=1000))
    spending.MEMORY.forget()
    assert train(folder / "t.csv", folder / "model", "--id", "id", "--test", folder / "open.csv", "--quiet") == 0
    return folder


def read_rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_folder_holds_and_says_what_was_done(place):
    folder = place / "model"
    assert verify_folder(folder) == ()
    run = tomllib.loads((folder / "config.toml").read_text())["train"]
    assert (run["label"], run["epsilon"], run["method"], run["id"]) == ("y", 4.0, "one_shot", "id")
    assert run["delta"] > 0
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["test"]["rows"] == 200
    assert metrics["test"]["accuracy"] > 0.75
    assert metrics["epsilon"] == read_certificate(folder / "certificate.json").epsilon <= 4.0
    card = (folder / "model_card.md").read_text()
    assert promise(read_certificate(folder / "certificate.json")) in card
    assert "300 rows of t.csv" in card


def test_predictions_come_by_name_of_class(place, tmp_path, capsys):
    out = tmp_path / "p.csv"
    shuffled = [[line[2], line[0], line[4], line[1], line[3], "extra"] for line in rows(200, seed=1)]
    write_csv(tmp_path / "new.csv", shuffled, header=("town", "id", "y", "age", "smokes", "other"))
    assert (
        labeldp("predict", place / "model", tmp_path / "new.csv", "--out", out, "--keep", "id", "--probabilities") == 0
    )
    assert "200 rows" in capsys.readouterr().out
    found = read_rows(out)
    assert list(found[0]) == ["id", "prediction", "probability", "probability of no", f"probability of {SECRET}"]
    assert [row["id"] for row in found] == [str(i) for i in range(200)]
    truth = [line[4] for line in rows(200, seed=1)]
    assert sum(row["prediction"] == label for row, label in zip(found, truth, strict=True)) > 150
    for row in found[:5]:
        assert float(row["probability of no"]) + float(row[f"probability of {SECRET}"]) == pytest.approx(1)
    assert tomllib.loads((tmp_path / "p.csv.config.toml").read_text())["predict"]["keep"] == ["id"]


def test_predicting_reads_no_label(place, tmp_path):
    write_csv(tmp_path / "new.csv", [line[:4] for line in rows(20)], header=("id", "age", "town", "smokes"))
    assert labeldp("predict", place / "model", tmp_path / "new.csv", "--out", tmp_path / "p.parquet", "--quiet") == 0
    assert pq.read_table(tmp_path / "p.parquet").num_rows == 20


def test_predictions_go_to_standard_output(place, capfdbinary):
    assert labeldp("predict", place / "model", place / "open.csv") == 0
    assert capfdbinary.readouterr().out.startswith(b'"prediction","probability"\n')


def test_a_model_is_the_same_from_python(place, tmp_path):
    model = load(place / "model")
    table = pacsv.read_csv(place / "open.csv")
    assert labeldp("predict", place / "model", place / "open.csv", "--out", tmp_path / "p.csv", "--quiet") == 0
    assert list(model.predict(table)) == [row["prediction"] for row in read_rows(tmp_path / "p.csv")]
    assert model.estimator.certificate_ == read_certificate(place / "model" / "certificate.json")


def test_a_run_is_repeated_from_its_config(place, tmp_path, capsys):
    assert labeldp("train", "--config", place / "model" / "config.toml", "--out", tmp_path / "again", "--json") == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert captured.err == ""
    assert told["method"] == "one_shot"
    first, second = (tomllib.loads((f / "config.toml").read_text()) for f in (place / "model", tmp_path / "again"))
    assert first == second
    assert told["certificate"]["claim"] == json.loads((place / "model/certificate.json").read_text())["claim"]


def test_the_command_line_goes_before_the_config(place, tmp_path):
    options = ("--config", place / "model" / "config.toml", "--epsilon", "2", "--out", tmp_path / "again", "--quiet")
    assert labeldp("train", *options) == 0
    assert 1.9 < read_certificate(tmp_path / "again" / "certificate.json").epsilon <= 2.0


def test_parquet_is_as_good_as_csv(place, tmp_path, capsys):
    table = pacsv.read_csv(place / "t.csv").append_column("same", pa.array([1] * 300))
    pq.write_table(table, tmp_path / "t.parquet")
    assert train(tmp_path / "t.parquet", tmp_path / "model", "--drop", "id") == 0
    said = capsys.readouterr().out
    assert "left out: same (one value), id (as requested)." in said
    assert promise(read_certificate(tmp_path / "model" / "certificate.json")) in said
    assert labeldp("predict", tmp_path / "model", place / "open.csv", "--out", tmp_path / "p.csv", "--quiet") == 0


def test_quiet_is_quiet(place, tmp_path, capsys):
    assert train(place / "t.csv", tmp_path / "model", "--quiet") == 0
    assert capsys.readouterr() == ("", "")


def test_a_store_is_charged(place, tmp_path):
    store = tmp_path / "budgets.db"
    options = ("--label", "y", "--classes", f"no,{SECRET}", "--store", store)
    assert labeldp("budget", "create", place / "t.csv", "--name", "t", *options, "--epsilon", 5, "--delta", 1e-4) == 0
    assert train(place / "t.csv", tmp_path / "model", "--store", store, "--quiet") == 0
    from labeldp.budgets.store import BudgetStore

    kept = BudgetStore.open(store, create=False)
    assert [entry.note for entry in kept.history("t")] == ["train model"]
    assert kept.epsilon("t", 1e-5) == read_certificate(tmp_path / "model" / "certificate.json").epsilon


def test_verify_takes_a_folder(place, tmp_path, capsys):
    assert labeldp("verify", place / "model") == 0
    assert promise(read_certificate(place / "model" / "certificate.json")) in capsys.readouterr().out
    assert labeldp("verify", place / "model", "--json") == 0
    assert json.loads(capsys.readouterr().out)["holds"] is True
    copy = tmp_path / "model"
    copy.mkdir()
    for file in (place / "model").iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / "metrics.json").write_text("{}")
    assert labeldp("verify", copy) == 1
    assert "metrics.json" in capsys.readouterr().err


def test_no_label_is_in_the_folder_but_in_the_list_of_classes(place):
    """The secret class is declared, so it is named; what is per row is not there: nothing is as long as the table."""
    from labeldp.results.folder import read

    result = read(place / "model")
    assert all(300 not in tensor.shape for tensor in result.tensors.values())
    assert json.dumps(result.model).count(SECRET) == 1


def test_a_learner_is_kept_and_predicts(place, tmp_path):
    out = tmp_path / "learner"
    assert train(place / "t.csv", out, "--id", "id", "--quiet", epsilon="6", method="rr+learner") == 0
    assert verify_folder(out) == ()
    assert labeldp("predict", out, place / "open.csv", "--out", tmp_path / "p.csv", "--keep", "y") == 0
    found = read_rows(tmp_path / "p.csv")
    assert sum(line["y"] == line["prediction"] for line in found) > 150


def test_methods_are_those_of_the_estimators():
    from labeldp.cli.options import Method

    assert set(Method().choices) == {"auto", *keys("classes"), *keys("numbers")}
    assert Method().convert("lp-mst", None, None) == "lp_mst"


def test_a_terminal_shows_epsilon(place, tmp_path, capsys, monkeypatch):
    from labeldp.results.card import at_most

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("rich.console.Console.is_terminal", property(lambda _: True))
    monkeypatch.setattr("rich.progress.Progress.update", _at_once(rich_progress.Progress.update))
    assert train(place / "t.csv", tmp_path / "model") == 0
    told = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    shown = re.findall(r"ε ([\d.]+) of 4", told)
    # Nothing, then the whole: there is one query.
    whole = read_certificate(tmp_path / "model/certificate.json")
    assert list(dict.fromkeys(shown)) == ["0", at_most(whole.epsilon, 3)]


def _at_once(update):
    return lambda self, task, **fields: (update(self, task, **fields), self.refresh())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_a_script(shell, capsys):
    assert labeldp("completion", shell) == 0
    assert "_LABELDP_COMPLETE" in capsys.readouterr().out


def test_commands_and_options_are_completed():
    def completed(words, place):
        told = {"_LABELDP_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(place)}
        code = "import sys; sys.argv[0] = 'labeldp'; from labeldp.cli.app import main; main()"
        run = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **told}, capture_output=True, text=True, check=False
        )
        return run.stdout

    assert "plain,train" in completed("labeldp tr", 1)
    assert "plain,--epsilon" in completed("labeldp train --ep", 2)


def test_every_command_takes_a_config(tmp_path, capsys):
    (tmp_path / "run.toml").write_text("[epsilon]\nresponse-epsilon = 0.5\ntimes = 3\njson = true\n")
    assert labeldp("epsilon", "--config", tmp_path / "run.toml") == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] == 1.5


def test_commands_of_a_group_too(place, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setenv("LABELDP_STORE", str(tmp_path / "b.db"))
    text = f'[budget.create]\ntable = "t.csv"\nname = "t"\nlabel = "y"\nclasses = "no,{SECRET}"\nepsilon = 2\n'
    (tmp_path / "run.toml").write_text(text)
    assert labeldp("budget", "create", "--config", tmp_path / "run.toml") == 0
    assert "a budget of epsilon 2" in capsys.readouterr().out


@pytest.mark.slow
def test_the_page_says_what_works(tmp_path, monkeypatch):
    """Every command of docs/command_line.md, in order, on a table of patients."""
    text = (Path(__file__).parents[2] / "docs" / "command_line.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    ages = [(number * 37) % 72 + 18 for number in range(1500)]
    lines = [[str(number), str(age), ("none", "mild", "severe")[(age - 18) // 24]] for number, age in enumerate(ages)]
    for name in ("patients.csv", "new.csv"):
        write_csv(tmp_path / name, lines, header=("id", "age", "diagnosis"))
    Path("run.toml").write_text(re.findall(r"^```toml\n(.*?)^```", text, re.S | re.M)[0])
    write_csv(tmp_path / "flats.csv", [[age, 20 * age] for age in ages], header=("area", "rent"))
    commands = [line.strip()[2:] for line in text.splitlines() if line.strip().startswith("$ labeldp")]
    assert len(commands) == 7
    for command in commands:
        spending.MEMORY.forget()
        # The other trainings would write over the first.
        apart = command.replace("run.toml --out model", "run.toml --out again")
        apart = apart.replace("private.csv --out model", "private.csv --out learnt")
        assert labeldp(*shlex.split(apart)[1:]) == 0
    assert verify_folder(tmp_path / "again") == ()
    assert verify_folder(tmp_path / "learnt") == ()
    assert verify_folder(tmp_path / "model") == ()


def test_weights_of_classes_are_declared_and_kept(place, tmp_path, capsys):
    table, out = place / "t.csv", tmp_path / "model"
    assert train(table, out, "--id", "id", "--class-weight", f"{SECRET}=1e6", "--quiet") == 0
    assert verify_folder(out) == ()
    assert f"Probabilities are weighted by what was declared ({SECRET} 1e+06)" in (out / "model_card.md").read_text()
    assert labeldp("predict", out, place / "open.csv", "--out", tmp_path / "p.csv") == 0
    assert sum(row["prediction"] == SECRET for row in read_rows(tmp_path / "p.csv")) > 180
    assert labeldp("train", "--config", out / "config.toml", "--out", tmp_path / "again", "--dry-run") == 0
    capsys.readouterr()
    for wrong in ("balanced", f"{SECRET}=0", "other=2", f"{SECRET}=many"):
        assert train(table, tmp_path / "none", "--id", "id", "--class-weight", wrong) == 2
        assert "is a query that nobody paid for" in capsys.readouterr().err
