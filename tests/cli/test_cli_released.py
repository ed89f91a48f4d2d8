"""Two parties: one privatizes a column, the other trains on what it wrote, and spends nothing more."""

import json
import shutil
import tomllib

import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from labeldp.core.certificate import read as read_certificate
from labeldp.data.tables import certificate_path
from labeldp.results.folder import read as read_folder
from labeldp.results.verify import verify_folder
from tests.cli.clihelp import CLASSES, SECRET, labeldp, rows, train, write_csv
from tests.marks import mostly_slow

pytest.importorskip("torch")
pytest.importorskip("sklearn")
SPENT = "no further privacy was spent"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A table in both formats, what was made of it at ε = 3, and open rows like it."""
    folder = tmp_path_factory.mktemp("place")
    write_csv(folder / "t.csv", rows(1000))
    pq.write_table(pacsv.read_csv(folder / "t.csv"), folder / "t.parquet")
    write_csv(folder / "open.csv", rows(1000, seed=1, first=9000))
    for kind in ("csv", "parquet"):
        assert privatize(folder / f"t.{kind}", folder / f"private.{kind}") == 0
    return folder


def privatize(source, target, *more, epsilon="3"):
    settled = ("--label", "y", "--classes", CLASSES, "--epsilon", epsilon, "--quiet")
    return labeldp("privatize", source, *settled, "--out", target, *more)


def copied(place, folder, kind="csv"):
    """Return a copy of the private table, its certificate beside it."""
    for path in (place / f"private.{kind}", certificate_path(place / f"private.{kind}")):
        shutil.copy(path, folder)
    return folder / f"private.{kind}"


def test_a_page_is_about_a_model_and_not_about_a_private_file(place, tmp_path, capsys):
    assert labeldp("report", place / "private.csv", "--out", tmp_path / "page.html") == 2
    said = capsys.readouterr().err
    assert "is a privatized table" in said
    assert "labeldp verify says what the table promises" in said
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("kind", mostly_slow(["csv", "parquet"]))
def test_from_a_private_file_to_a_certified_model(place, tmp_path, capsys, kind):
    out, source = tmp_path / "model", place / f"private.{kind}"
    assert labeldp("train", source, "--out", out, "--id", "id", "--test", place / "open.csv") == 0
    said = capsys.readouterr().out
    assert "rr+learner trained on 1,000 responses" in said
    assert f"They were released before, at epsilon 3, delta 0, so {SPENT}." in said
    assert verify_folder(out) == ()
    ours, theirs = read_certificate(out / "certificate.json"), read_certificate(certificate_path(source))
    assert (ours.epsilon, ours.delta, ours.groups, ours.noise) == (3.0, 0.0, theirs.groups, theirs.noise)
    assert read_folder(out).story.released == theirs.artifact.sha256
    assert SPENT in (out / "model_card.md").read_text()
    config = (out / "config.toml").read_text()
    assert "from the same responses, for nothing" in config
    assert tomllib.loads(config)["train"]["epsilon"] == 3.0
    assert labeldp("verify", out) == 0
    assert labeldp("predict", out, place / "open.csv", "--out", tmp_path / "p.csv") == 0


@pytest.mark.slow
def test_it_is_as_good_as_a_model_that_queries_the_labels_itself(place, tmp_path):
    """By the same method at the same ε; and the run is repeated from its own settings."""
    how = ("--id", "id", "--test", place / "open.csv", "--quiet")
    assert labeldp("train", place / "private.csv", "--out", tmp_path / "model", *how) == 0
    assert train(place / "t.csv", tmp_path / "own", *how, method="forward", epsilon="3") == 0
    assert labeldp("train", "--config", tmp_path / "model" / "config.toml", "--out", tmp_path / "again", "--quiet") == 0
    released, own, again = (
        json.loads((tmp_path / name / "metrics.json").read_text())["test"] for name in ("model", "own", "again")
    )
    assert released == again
    assert released["accuracy"] > 0.85
    assert abs(released["accuracy"] - own["accuracy"]) < 0.05
    assert verify_folder(tmp_path / "again") == ()


def test_no_store_is_charged(place, tmp_path, capsys, monkeypatch):
    pytest.importorskip("sqlalchemy")
    write_csv(tmp_path / "t.csv", rows(300))
    store = tmp_path / "budgets.db"
    assert labeldp("budget", "create", tmp_path / "t.csv", "--name", "visits", "--label", "y", "--classes", CLASSES,
                   "--epsilon", "3", "--store", store) == 0  # fmt: skip
    source = tmp_path / "private.csv"
    assert privatize(tmp_path / "t.csv", source) == 0
    monkeypatch.setenv("LABELDP_STORE", str(store))
    for name in ("a", "b"):
        assert labeldp("train", source, "--out", tmp_path / name, "--quiet") == 0
    capsys.readouterr()
    assert labeldp("budget", "show", "visits", "--json") == 0
    assert [kept["charges"] for kept in json.loads(capsys.readouterr().out)] == [1]
    assert labeldp("train", source, "--out", tmp_path / "c", "--store", store) == 2
    assert "--store mean nothing with responses that were released before" in capsys.readouterr().err


def test_rows_of_users_and_a_prior(place, tmp_path, capsys):
    source = tmp_path / "private.parquet"
    assert privatize(place / "t.parquet", source, "--user", "town", epsilon="3000") == 0
    assert labeldp("train", source, "--out", tmp_path / "model", "--drop", "id", "--user", "town", "--quiet") == 0
    assert verify_folder(tmp_path / "model") == ()
    result = read_folder(tmp_path / "model")
    assert result.certificate.unit.counted == "users"
    assert result.story.features == ("age", "smokes")
    assert labeldp("train", source, "--out", tmp_path / "other", "--user", "age") == 2
    assert "--user differs from what private.parquet.certificate.json says, 'town'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--epsilon", "2"), "--epsilon 2 is less than the 3 at which private.csv was released"),
        (("--label", "age"), "--label differs from what private.csv.certificate.json says, 'y'"),
        (("--classes", f"{SECRET},no"), "--classes differs"),
        (("--delta", "1e-6"), "--delta mean nothing with responses"),
        (("--task", "regression"), "--task regression means nothing for responses"),
        (("--method", "one_shot"), "method='one_shot' queries labels"),
        (("--drop", "y"), "drop names 'y'"),
        (("--certificate", "missing.json"), "there is no certificate 'missing.json'"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_the_certificate_settles_otherwise_is_refused(place, tmp_path, capsys, options, why):
    assert labeldp("train", place / "private.csv", "--out", tmp_path / "model", *options) == 2
    assert why in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_more_epsilon_than_was_spent_is_allowed_and_not_spent(place, tmp_path):
    options = ("--epsilon", "5", "--label", "y", "--classes", CLASSES, "--method", "rr", "--quiet")
    assert labeldp("train", place / "private.csv", "--out", tmp_path / "model", *options) == 0
    assert read_folder(tmp_path / "model").story.epsilon == 3.0
    assert verify_folder(tmp_path / "model") == ()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_changed_table_or_certificate_is_refused(place, tmp_path, capsys, kind):
    source = copied(place, tmp_path, kind)
    content = source.read_bytes()
    source.write_bytes(content[:200] + b"x" + content[201:])
    assert labeldp("train", source, "--out", tmp_path / "model") == 2
    assert "do not hold" in capsys.readouterr().err
    source.write_bytes(content)
    note = certificate_path(source)
    note.write_text(note.read_text().replace('"epsilon": 3.0', '"epsilon": 1.0'))
    assert labeldp("train", source, "--out", tmp_path / "model") == 2
    assert "checksum does not match" in capsys.readouterr().err


def test_true_labels_are_never_taken_for_responses(place, tmp_path, capsys):
    source = copied(place, tmp_path)
    shutil.copy(place / "t.csv", source)
    assert labeldp("train", source, "--out", tmp_path / "model") == 2
    assert "is not the certified one" in capsys.readouterr().err
    assert (
        labeldp("train", place / "t.csv", "--certificate", certificate_path(source), "--out", tmp_path / "model") == 2
    )
    assert "is not the certified one" in capsys.readouterr().err


def test_without_its_certificate_a_file_is_no_release(place, tmp_path, capsys):
    for kind, why in (
        ("csv", "put its certificate beside it, or name it with --certificate"),
        ("parquet", "holds private responses and not labels, and its certificate"),
    ):
        source = copied(place, tmp_path, kind)
        elsewhere = certificate_path(source).rename(tmp_path / f"{kind}.json")
        assert labeldp("train", source, "--out", tmp_path / "model") == 2
        assert why in capsys.readouterr().err
        assert labeldp("train", source, "--certificate", elsewhere, "--dry-run", "--out", tmp_path / "model") == 0
        assert "1,000 responses can be learnt from; nothing was spent" in capsys.readouterr().out


def test_a_signature_that_does_not_hold_is_refused(place, tmp_path, capsys):
    source, key = tmp_path / "private.csv", tmp_path / "ann.key"
    assert labeldp("keys", "new", key) == 0
    assert privatize(place / "t.csv", source, "--sign", key) == 0
    assert labeldp("train", source, "--out", tmp_path / "model", "--quiet") == 0
    # Somebody who makes both files anew has not the key.
    other = copied(place, tmp_path.parent / tmp_path.name)
    assert other == source
    assert labeldp("train", source, "--out", tmp_path / "again") == 2
    assert "was changed after it was signed" in capsys.readouterr().err


def test_an_audit_is_of_the_responses(place, tmp_path, capsys):
    assert labeldp("train", place / "private.csv", "--out", tmp_path / "model", "--method", "rr", "--quiet") == 0
    assert labeldp("audit", tmp_path / "model") == 2
    assert "labeldp audit private.csv --labels TABLE" in capsys.readouterr().err
