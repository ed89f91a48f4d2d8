"""What people get wrong on the way from a table to a model. Each is answered by one sentence that says what to do.

Nothing is written, nothing is charged, no label is quoted, and what was there before stays as it was.
"""

import os
import signal
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labeldp.budgets.store import BudgetStore
from labeldp.cli.app import main
from labeldp.estimator import spending
from tests.cli.clihelp import CLASSES, HEADER, SECRET, labeldp, rows, train, write_csv

pytest.importorskip("torch")
pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model to copy, trained once."""
    folder = tmp_path_factory.mktemp("made")
    spending.MEMORY.forget()
    assert train(write_csv(folder / "t.csv", rows()), folder / "model", "--drop", "id", "--quiet") == 0
    return folder / "model"


@pytest.fixture
def place(tmp_path, made, monkeypatch):
    """A folder with a table and a model, which is also the working folder."""
    spending.MEMORY.forget()
    write_csv(tmp_path / "t.csv", rows())
    (tmp_path / "model").mkdir()
    for file in made.iterdir():
        (tmp_path / "model" / file.name).write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABELDP_DATA", str(tmp_path / "no-data-here"))
    return tmp_path


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def changed(place, column, value, row=3):
    lines = rows()
    lines[row][HEADER.index(column)] = value
    return write_csv(place / "t.csv", lines)


# --- the mistakes: each prepares what is wrong, and returns the command ---------------------------------------------


def a_missing_file(place):
    return train, (place / "nothing.csv", "out")


def a_name_that_is_neither_file_nor_data_set(place):
    return train, ("patients", "out")


def a_data_set_that_is_not_there(place):
    return labeldp, ("train", "mnist", "--epsilon", 1, "--out", "out")


def a_wrong_kind_of_file(place):
    (place / "t.xlsx").write_bytes(b"PK")
    return train, (place / "t.xlsx", "out")


def a_damaged_parquet_file(place):
    (place / "t.parquet").write_bytes(b"PAR1" + b"x" * 100)
    return train, (place / "t.parquet", "out")


def an_empty_table(place):
    return train, (write_csv(place / "t.csv", []), "out")


def no_public_column(place):
    return train, (write_csv(place / "t.csv", [["no"], [SECRET]], header=("y",)), "out")


def a_misspelt_label(place):
    return train, (place / "t.csv", "out", "--label", "agee")


def no_label(place):
    return labeldp, ("train", "t.csv", "--classes", CLASSES, "--epsilon", 1, "--out", "out")


def no_classes(place):
    return labeldp, ("train", "t.csv", "--label", "y", "--epsilon", 1, "--out", "out")


def one_class(place):
    return train, (place / "t.csv", "out", "--classes", "no")


def a_class_named_twice(place):
    return train, (place / "t.csv", "out", "--classes", "no,no")


def a_label_outside_the_classes(place):
    return train, (place / "t.csv", "out", "--classes", "no,maybe")


def a_missing_label(place):
    return train, (changed(place, "y", ""), "out")


def no_epsilon(place):
    return labeldp, ("train", "t.csv", "--label", "y", "--classes", CLASSES, "--out", "out")


def an_epsilon_that_is_no_number(place):
    return train, (place / "t.csv", "out", "--epsilon", "small")


def an_epsilon_of_zero(place):
    return train, (place / "t.csv", "out", "--epsilon", "0")


def an_infinite_epsilon(place):
    return train, (place / "t.csv", "out", "--epsilon", "inf")


def no_delta_where_one_is_needed(place):
    return train, (place / "t.csv", "out", "--method", "rounds", "--delta", "0")


def a_delta_of_one(place):
    return train, (place / "t.csv", "out", "--delta", "1")


def no_place_to_write(place):
    return labeldp, ("train", "t.csv", "--label", "y", "--classes", CLASSES, "--epsilon", 1)


def a_folder_that_cannot_be_written(place):
    return train, (place / "t.csv", "/proc/model")


def a_folder_in_no_folder(place):
    return train, (place / "t.csv", "no/such/model")


def a_folder_that_exists(place):
    return train, (place / "t.csv", "model")


def an_infinite_feature(place):
    return train, (changed(place, "age", "inf"), "out")


def constant_features(place):
    lines = [["5", "Ulm", line[4]] for line in rows()]
    return train, (write_csv(place / "t.csv", lines, header=("age", "town", "y")), "out")


def text_that_is_not_utf8(place):
    return train, (write_csv(place / "t.csv", rows(), encoding="latin-1"), "out")


def a_broken_line(place):
    with (place / "t.csv").open("a") as file:
        file.write(f"301,40,Ulm,true,{SECRET},surplus\n")
    return train, (place / "t.csv", "out")


def a_column_of_lists(place):
    table = pa.table({"x": [[1], [2, 3]], "y": ["no", SECRET]})
    pq.write_table(table, place / "t.parquet")
    return train, (place / "t.parquet", "out")


def a_misspelt_column_to_drop(place):
    return train, (place / "t.csv", "out", "--drop", "idd")


def a_device_that_is_not_there(place):
    return train, (place / "t.csv", "out", "--device", "cuda:99")


def an_unknown_method(place):
    return train, (place / "t.csv", "out", "--method", "magic")


def a_misspelt_option(place):
    return train, (place / "t.csv", "out", "--espilon", "1")


def open_labels_without_a_column(place):
    write_csv(place / "open.csv", [line[2:] for line in rows()], header=HEADER[2:])
    return train, (place / "t.csv", "out", "--test", "open.csv")


def a_config_with_an_unknown_key(place):
    (place / "run.toml").write_text('[train]\ntable = "t.csv"\nepsilonn = 1\n')
    return labeldp, ("train", "--config", "run.toml", "--out", "out")


def a_config_for_another_command(place):
    (place / "run.toml").write_text("epsilon = 1\n")
    return labeldp, ("train", "--config", "run.toml", "--out", "out")


def a_config_that_is_no_toml(place):
    (place / "run.toml").write_text("epsilon: 1\n")
    return labeldp, ("train", "--config", "run.toml", "--out", "out")


def a_store_that_is_not_there(place):
    return train, (place / "t.csv", "out", "--store", "budgets.db")


def labels_without_a_budget(place):
    BudgetStore.open(place / "budgets.db")
    return train, (place / "t.csv", "out", "--store", "budgets.db")


def an_exhausted_budget(place):
    told = ("--name", "t", "--label", "y", "--classes", CLASSES, "--store", "budgets.db")
    assert labeldp("budget", "create", "t.csv", *told, "--epsilon", 1, "--delta", 1e-4) == 0
    return train, (place / "t.csv", "out", "--store", "budgets.db")


def predicting_with_other_columns(place):
    write_csv(place / "new.csv", [line[:2] for line in rows()], header=("id", "years"))
    return labeldp, ("predict", "model", "new.csv", "--out", "p.csv")


def predicting_with_text_for_numbers(place):
    changed(place, "age", "old")
    return labeldp, ("predict", "model", "t.csv", "--out", "p.csv")


def predicting_from_no_model(place):
    (place / "empty").mkdir()
    return labeldp, ("predict", "empty", "t.csv", "--out", "p.csv")


def predicting_from_a_damaged_model(place):
    content = bytearray((place / "model" / "model.safetensors").read_bytes())
    content[-9] ^= 1
    (place / "model" / "model.safetensors").write_bytes(content)
    return labeldp, ("predict", "model", "t.csv", "--out", "p.csv")


def predicting_onto_a_file_that_exists(place):
    (place / "p.csv").write_text("precious")
    return labeldp, ("predict", "model", "t.csv", "--out", "p.csv")


def predicting_into_a_wrong_kind_of_file(place):
    return labeldp, ("predict", "model", "t.csv", "--out", "p.xlsx")


# Who makes the mistake reads these words, which say what to do.
MISTAKES = {
    a_missing_file: "give the path",
    a_name_that_is_neither_file_nor_data_set: "the data sets are adult, mnist",
    a_data_set_that_is_not_there: "set LABELDP_DATA",
    a_wrong_kind_of_file: "is a spreadsheet; save it as CSV",
    a_damaged_parquet_file: "it is damaged, encrypted or not Parquet; restore it",
    an_empty_table: "give a table with some",
    no_public_column: "public features",
    a_misspelt_label: "did you mean 'age'?",
    no_label: "name the secret column",
    no_classes: "declare every class",
    one_class: "list every class, separated by commas",
    a_class_named_twice: "declare each class once",
    a_label_outside_the_classes: "declare every class exactly as the table has it",
    a_missing_label: "leave out rows without a label",
    no_epsilon: "for example --epsilon 1",
    an_epsilon_that_is_no_number: "epsilon='small' is not a number; give one above 0",
    an_epsilon_of_zero: "give one above 0",
    an_infinite_epsilon: "give one above 0",
    no_delta_where_one_is_needed: "needs a --delta above 0, say 1e-5",
    a_delta_of_one: "from 0 to below 1",
    no_place_to_write: "for example --out model",
    a_folder_that_cannot_be_written: "choose an --out where you may write",
    a_folder_in_no_folder: "create it",
    a_folder_that_exists: "choose another --out",
    an_infinite_feature: "leave cells empty",
    constant_features: "give at least one feature that varies",
    text_that_is_not_utf8: "save the file as UTF-8",
    a_broken_line: "data row 301 has 6 fields where the header has 5",
    a_column_of_lists: "leave it out with --drop",
    a_misspelt_column_to_drop: "did you mean 'id'?",
    a_device_that_is_not_there: "leave out --device",
    an_unknown_method: "is not one of 'auto'",
    a_misspelt_option: "--epsilon",
    open_labels_without_a_column: "Give a table with the same columns",
    a_config_with_an_unknown_key: "did you mean 'epsilon'?",
    a_config_for_another_command: "under a line [train]",
    a_config_that_is_no_toml: "is not TOML",
    a_store_that_is_not_there: "budget create",
    labels_without_a_budget: "labeldp budget create",
    an_exhausted_budget: "Ask for less than is left",
    predicting_with_other_columns: "Give a table with the same columns",
    predicting_with_text_for_numbers: "the model reads numbers there",
    predicting_from_no_model: "a whole folder that labeldp train wrote",
    predicting_from_a_damaged_model: "Restore the folder",
    predicting_onto_a_file_that_exists: "choose another --out",
    predicting_into_a_wrong_kind_of_file: "must end in .csv",
}


def test_there_are_twenty_and_more():
    assert len(MISTAKES) >= 20


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_one_sentence_says_what_to_do_and_nothing_is_lost(place, mistake, capsys):
    run, arguments = mistake(place)
    capsys.readouterr()
    before = contents(place)
    assert run(*arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1, said.err
    assert MISTAKES[mistake] in said.err
    # Declared classes may be named; a label that was not declared may not.
    assert SECRET not in said.err or mistake is a_missing_label
    assert contents(place) == before
    assert not (place / "out").exists()


def test_missing_numbers_are_no_mistake(place):
    lines = rows()
    for line in lines[::3]:
        line[1] = ""
    assert train(write_csv(place / "t.csv", lines), "out", "--quiet") == 0


# A shell that runs the tests in the background lets them ignore Ctrl-C, and what they start as well.
_PAUSED = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
import labeldp.recipes.one_shot as recipe
def wait(*_):
    print("asked", flush=True)
    time.sleep(60)
recipe.fitted = wait
import torch
torch.set_num_threads(1)
from labeldp.cli.app import main
main()
"""
_PAID_BY_A_STORE = (
    "train", "t.csv", "--label", "y", "--classes", CLASSES, "--epsilon", "4", "--out", "out", "--method", "one_shot",
    "--store", "budgets.db",
)  # fmt: skip


@pytest.fixture
def paying(place):
    """The table with a budget; what lies beside it."""
    known = ("--name", "t", "--label", "y", "--classes", CLASSES, "--store", "budgets.db")
    assert labeldp("budget", "create", "t.csv", *known, "--epsilon", 5, "--delta", 1e-4) == 0
    return contents(place)


def check_interrupted(place, before, code, said):
    assert code == 2
    kept, interrupted = said.split("\n", 1)
    assert kept == "What was paid for is kept in '.out.run': give the same command again to go on from there."
    assert interrupted.strip().startswith("labeldp: interrupted; nothing was written")
    assert "\n" not in interrupted.strip()
    now = contents(place).items()
    unchanged = {name: content for name, content in now if "budgets" not in name and ".out.run" not in name}
    assert unchanged == {name: content for name, content in before.items() if "budgets" not in name}
    assert not [name for name in os.listdir(place) if name.endswith(".part")]
    assert not (place / "out").exists()
    assert len(BudgetStore.open("budgets.db", create=False).history("t")) == 1


def test_a_terminated_run_leaves_no_folder_and_its_charge(place, paying, monkeypatch, capsys):
    """In this process: the signal comes after the draw."""
    monkeypatch.setattr("labeldp.recipes.one_shot.fitted", lambda *_: signal.raise_signal(signal.SIGTERM))
    capsys.readouterr()
    earlier = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            main(_PAID_BY_A_STORE)
    finally:
        signal.signal(signal.SIGTERM, earlier)
    check_interrupted(place, paying, ended.value.code, capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_process_leaves_no_folder_and_its_charge(place, paying, how):
    command = [sys.executable, "-c", _PAUSED, *_PAID_BY_A_STORE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        process.send_signal(how)
        _, said = process.communicate()
    if how != signal.SIGKILL:
        check_interrupted(place, paying, process.returncode, said)
    assert not (place / "out").exists()
    assert len(BudgetStore.open("budgets.db", create=False).history("t")) == 1


def test_an_unexpected_failure_quotes_nothing(place, monkeypatch, capsys):
    def burst(*_, **__):
        raise RuntimeError(f"row 3 has {SECRET}")

    monkeypatch.setattr("labeldp.estimator.LabelDPClassifier.fit", burst)
    assert train(place / "t.csv", "out") == 2
    said = capsys.readouterr().err
    assert SECRET not in said
    assert "LABELDP_DEBUG" in said
    assert not (place / "out").exists()


def test_numbers_that_are_classes_are_fine(place):
    lines = [[*line[:4], str(int(line[4] == SECRET))] for line in rows()]
    assert train(write_csv(place / "t.csv", lines), "out", "--quiet", classes="0,1") == 0
    assert labeldp("predict", "out", "t.csv", "--out", "p.parquet", "--quiet") == 0
    assert set(pq.read_table("p.parquet")["prediction"].to_pylist()) == {"0", "1"}
