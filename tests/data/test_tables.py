"""Reading a private table back, and catching every way in which it may no longer be what it claims."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from labeldp.core import certificate as certificates
from labeldp.core.certificate import _checksum
from labeldp.core.random import SecureRandom
from labeldp.data.request import TableError
from labeldp.data.tables import certificate_path, privatize, read_private, verify_file

CLASSES = ("no", "yes", "maybe")


@pytest.fixture(params=[".parquet", ".csv"])
def artifact(tmp_path, request):
    rng = np.random.default_rng(0)
    table = pa.table({"x": rng.normal(size=200), "y": rng.choice(CLASSES, 200), "s": ["é,"] * 200})
    source = tmp_path / f"in{request.param}"
    (pq.write_table if request.param == ".parquet" else pa.csv.write_csv)(table, source)
    privatize(source, tmp_path / f"out{request.param}", label="y", classes=CLASSES, epsilon=1.5)
    return tmp_path / f"out{request.param}"


def edited(artifact, change):
    """The certificate after an edit by somebody who also mends the checksum."""
    path = certificate_path(artifact)
    body = json.loads(path.read_text())
    change(body)
    del body["checksum"]
    path.write_text(json.dumps({**body, "checksum": _checksum(body)}))
    return verify_file(artifact)


def test_what_a_learner_gets(artifact):
    private = read_private(artifact)
    assert private.features.column_names == ["x", "s"]
    assert private.features["s"].to_pylist() == ["é,"] * 200
    assert private.label == "y"
    assert private.classes == CLASSES
    assert private.labels.num_classes == 3
    assert private.labels.channel.epsilon == 1.5
    assert private.certificate is not None
    assert private.certificate.epsilon == 1.5
    spread = np.ptp(private.labels.log_likelihood(), axis=1)
    assert np.allclose(spread, 1.5)


def test_a_good_file_verifies_from_both_ends(artifact):
    assert verify_file(artifact) == ()
    assert verify_file(str(certificate_path(artifact))) == ()


def test_files_may_be_renamed_together(artifact):
    moved = artifact.with_name("moved" + artifact.suffix)
    shutil.move(artifact, moved)
    shutil.move(certificate_path(artifact), certificate_path(moved))
    assert verify_file(moved) == ()


def test_changed_and_missing_files_are_caught(artifact):
    whole = artifact.read_bytes()
    artifact.write_bytes(whole[:-1] + b"x")
    assert any("is not the certified one" in problem for problem in verify_file(artifact))
    artifact.unlink()
    assert any("was not found" in problem for problem in verify_file(certificate_path(artifact)))
    certificate_path(artifact).unlink()
    assert "there is no certificate" in verify_file(artifact)[0]


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense", "[" * 5000, "\0", '{"format": 1, "format": 2}'])
def test_what_is_no_certificate_is_a_sentence(artifact, text):
    certificate_path(artifact).write_text(text)
    assert len(verify_file(artifact)) == 1


def test_bytes_that_are_no_text_are_a_sentence(artifact):
    certificate_path(artifact).write_bytes(b"\xff\xfe\x00")
    assert len(verify_file(artifact)) == 1


def test_an_edit_without_a_new_checksum_is_caught(artifact):
    path = certificate_path(artifact)
    path.write_text(path.read_text().replace("1.5", "0.5"))
    assert "checksum" in verify_file(artifact)[0]


def lower(body, *, also_release):
    body["claim"]["epsilon"] = 0.5
    body["ledger"][0]["looks"][0]["event"]["epsilon"] = 0.5
    if also_release:
        body["release"]["epsilon"] = 0.5
        body["release"]["mechanism"]["epsilon"] = 0.5


def test_a_lower_claim_is_caught(artifact):
    assert edited(artifact, lambda body: body["claim"].update(epsilon=0.5))


def test_a_lower_claim_with_its_ledger_is_caught(artifact):
    assert edited(artifact, lambda body: lower(body, also_release=False))


def test_a_wholly_rewritten_certificate_is_caught_by_the_parquet_file(artifact):
    problems = edited(artifact, lambda body: lower(body, also_release=True))
    if artifact.suffix == ".parquet":
        assert problems == ("the certificate and the artifact state different parameters: epsilon, mechanism",)
    else:
        # CSV has no room for a second copy: the documented limit.
        assert problems == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda body: body["ledger"][0].update(rows=7), "counts 7 rows"),
        (lambda body: body.update(release=None), "does not speak about a table"),
        (lambda body: body["release"].update(format="other/1"), "does not speak about a table"),
        (lambda body: body.update(artifact=None), "does not speak about a table"),
        (lambda body: body["release"].update(noise="dice"), "two different sources"),
        (lambda body: body["noise"].update(seeded=True), "seed"),
    ],
)
def test_other_edits_are_caught(artifact, change, words):
    assert any(words in problem for problem in edited(artifact, change))


def test_seeded_noise_is_reported(tmp_path):
    (tmp_path / "in.csv").write_text("y\na\n")
    privatize(tmp_path / "in.csv", tmp_path / "out.csv", label="y", classes=["a"], epsilon=1, rng=SecureRandom(seed=1))
    assert "seed" in verify_file(tmp_path / "out.csv")[0]


def test_a_parquet_file_needs_no_certificate_to_be_read(artifact):
    certificate_path(artifact).unlink()
    if artifact.suffix == ".parquet":
        assert read_private(artifact).certificate is None
    else:
        with pytest.raises(TableError, match="needs its certificate"):
            read_private(artifact)


def test_files_that_are_not_private_tables_are_refused(tmp_path):
    pq.write_table(pa.table({"y": ["a"]}), tmp_path / "in.parquet")
    with pytest.raises(TableError, match="does not say how"):
        read_private(tmp_path / "in.parquet")
    with pytest.raises(TableError, match="is not a file"):
        read_private(tmp_path / "nope.parquet")
    pq.write_table(pa.table({"y": ["a"]}).replace_schema_metadata({"labeldp": "[1"}), tmp_path / "bad.parquet")
    with pytest.raises(TableError, match="no JSON object"):
        read_private(tmp_path / "bad.parquet")
    (tmp_path / "in.csv").write_text("y\na\n")
    certificate_path(tmp_path / "in.csv").write_text("{}")
    with pytest.raises(TableError, match="cannot be read"):
        read_private(tmp_path / "in.csv")


def test_a_changed_column_is_refused(tmp_path):
    pq.write_table(pa.table({"y": ["a", "b"]}), tmp_path / "in.parquet")
    for mechanism in ("randomized-response", "bit-flip"):
        out = tmp_path / f"{mechanism}.parquet"
        privatize(tmp_path / "in.parquet", out, label="y", classes=["a", "b"], epsilon=1, mechanism=mechanism)
        meta = pq.ParquetFile(out).schema_arrow.metadata
        pq.write_table(pa.table({"y": ["a", "z"]}).replace_schema_metadata(meta), out)
        with pytest.raises(TableError, match="was changed"):
            read_private(out)


def test_the_release_in_the_file_and_the_certificate_agree(artifact):
    if artifact.suffix == ".parquet":
        inside = json.loads(pq.ParquetFile(artifact).schema_arrow.metadata[b"labeldp"])
        assert inside == certificates.read(certificate_path(artifact)).release
