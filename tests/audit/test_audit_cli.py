"""`labeldp audit`: one sentence, an exit code, and no label in sight."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labeldp.audit.responses import audit_table
from labeldp.core.random import SecureRandom
from labeldp.data.door import seal_column
from labeldp.data.request import TableError
from labeldp.data.tables import privatize
from labeldp.mechanisms.responses import RandomizedResponse, SetResponse
from labeldp.releases import NoisyLabels
from tests.commands import labeldp

CLASSES = ["none", "mild", "severe"]


def written(folder, n=6000, seed=0):
    rng = np.random.default_rng(seed)
    names = rng.choice(CLASSES, p=[0.5, 0.3, 0.2], size=n)
    (folder / "in.csv").write_text("age,diagnosis\n" + "".join(f"{i},{name}\n" for i, name in enumerate(names)))
    pq.write_table(pa.table({"age": np.arange(n), "diagnosis": names}), folder / "in.parquet")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("audit"))


def private(folder, kind, epsilon=1.0, seed=5000, name="out", **more):
    target = folder / f"{name}-{seed}-{epsilon}.{kind}"
    if not target.exists():
        settings = {"label": "diagnosis", "classes": CLASSES, "epsilon": epsilon, "rng": SecureRandom(seed), **more}
        privatize(folder / f"in.{kind}", target, **settings)
    return target


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_an_honest_file_is_not_accused(folder, kind):
    run = labeldp("audit", private(folder, kind), "--labels", folder / f"in.{kind}", check=0)
    assert run.stdout.startswith("No contradiction")
    assert "and 1 is claimed" in run.stdout
    found = json.loads(
        labeldp("audit", private(folder, kind), "--labels", folder / f"in.{kind}", "--json", check=0).stdout
    )
    assert 0.5 < found["bound"] < 1.0
    assert found["contradicts"] is False


@pytest.mark.parametrize("mechanism", ["bit-flip", "laplace-one-hot"])
def test_vectors_are_audited_too(folder, mechanism):
    target = private(folder, "parquet", name=mechanism, mechanism=mechanism)
    assert 0.3 < audit_table(target, folder / "in.parquet", seed=0).bound < 1.0


def test_a_file_may_be_audited_against_the_other_format(folder):
    assert 0.5 < audit_table(private(folder, "csv"), folder / "in.parquet", seed=0).bound < 1.0


def test_half_the_noise_is_caught_and_is_exit_code_1(folder, monkeypatch):
    """The bug is planted in the sampler: answers at ε = 2, a certificate that says 1."""
    honest = SetResponse.sample

    def planted(self, labels, rng):
        return NoisyLabels(self, honest(RandomizedResponse(2 * self.epsilon, self.num_classes), labels, rng).responses)

    monkeypatch.setattr(RandomizedResponse, "sample", planted)
    target = private(folder, "csv", name="halved")
    run = labeldp("audit", target, "--labels", folder / "in.csv", check=1)
    assert run.stdout.startswith("THE CLAIM IS BROKEN")
    assert "but only 1 is claimed" in run.stdout


def test_a_guessable_seed_is_caught(folder):
    target = private(folder, "csv", seed=7, name="seeded")
    run = labeldp("audit", target, "--labels", folder / "in.csv", check=1)
    assert "small seed" in run.stdout


def test_all_classes_at_once(folder):
    run = labeldp("audit", private(folder, "csv"), "--labels", folder / "in.csv", "--candidates", 3, "--json", check=0)
    assert json.loads(run.stdout)["bound"] < 1.0


def test_a_recipe_is_audited_on_made_up_labels():
    pytest.importorskip("torch")
    found = json.loads(labeldp("audit", "--recipe", "rr", "--epsilon", 2, "--rows", 1000, "--json", check=0).stdout)
    assert 1.0 < found["bound"] < 2.0
    assert found["canaries"] == 1000
    listed = labeldp("audit", "--list", check=0).stdout.split()
    assert {"rr", "dp_sgd", "one_shot"} <= set(listed)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "--recipe"),
        (["out.csv", "--recipe", "rr"], "--recipe"),
        (["missing.csv", "--labels", "in.csv"], "missing.csv"),
        (["--recipe", "rr"], "--epsilon is missing"),
        (["--recipe", "nothing", "--epsilon", "1"], "'nothing' is not one of"),
        (["--recipe", "rr", "--epsilon", "1", "--labels", "in.csv"], "--labels"),
        (["--recipe", "rr", "--epsilon", "1", "--confidence", "1"], "confidence"),
        (["in.csv", "--labels", "in.csv"], "does not say how its labels were made"),
        (["PRIVATE"], "--labels is missing"),
        (["PRIVATE", "--labels", "in.csv", "--epsilon", "1"], "--epsilon"),
        (["PRIVATE", "--labels", "other.csv"], "10 rows"),
        (["PRIVATE", "--labels", "in.csv", "--candidates", "4"], "candidates=4"),
    ],
)
def test_mistakes_get_one_sentence(folder, arguments, what):
    (folder / "other.csv").write_text("age,diagnosis\n" + "1,mild\n" * 10)
    given = [private(folder, "csv").name if text == "PRIVATE" else text for text in arguments]
    run = labeldp("audit", *given, cwd=folder, check=2)
    assert what in run.stderr
    assert run.stdout == ""


def test_labels_are_read_like_privatize_reads_them(folder):
    of_text, of_parquet = (seal_column(folder / f"in.{kind}", "diagnosis", CLASSES) for kind in ("csv", "parquet"))
    assert of_text.fingerprint(b"key") == of_parquet.fingerprint(b"key")
    by_age = seal_column(folder / "in.parquet", "diagnosis", CLASSES, users="age")
    assert list(by_age.users.ids[:3]) == ["0", "1", "2"]
    for kind in ("csv", "parquet"):
        with pytest.raises(TableError, match="column 'nobody'"):
            seal_column(folder / f"in.{kind}", "diagnosis", CLASSES, users="nobody")
        with pytest.raises(TableError, match="not among the declared classes"):
            seal_column(folder / f"in.{kind}", "diagnosis", ["none", "mild"])
    with pytest.raises(TableError, match="no meaning for Parquet"):
        seal_column(folder / "in.parquet", "diagnosis", CLASSES, delimiter=";")
