"""Signatures: nothing that was signed can be changed, swapped, added or taken away without the private key."""

import dataclasses
import json
import os
import shutil
import stat

import pytest

from labeldp.data import tables
from labeldp.results import signing
from labeldp.results.folder import FILES, drafting
from labeldp.results.signing import LockedKeyError, SigningError, SigningKey, public_key, sign
from labeldp.results.verify import check, verify_folder
from tests.commands import labeldp
from tests.results.resulthelp import result

KEY, OTHER = SigningKey.new(), SigningKey.new()


@pytest.fixture
def folder(tmp_path):
    with drafting(tmp_path / "model") as draft:
        draft.write(result(), KEY)
    return tmp_path / "model"


def problems(path, *signers):
    return check(path, signers=signers).problems


def forged(folder, tmp_path):
    """The same model, claimed to have cost 0.01: card, config, measures, certificate and hashes, all of them right."""
    honest, cheap = result(1.0), result(0.01)
    with drafting(tmp_path / "forged") as draft:
        draft.write(dataclasses.replace(cheap, tensors=honest.tensors))
    for name in FILES:
        shutil.copy(tmp_path / "forged" / name, folder / name)
    return folder


def test_a_signed_folder_holds_and_says_by_whom(folder):
    found = check(folder, signers=[OTHER.public, KEY.public])
    assert found.problems == ()
    assert found.trusted
    assert KEY.public in found.proved
    assert "signer's word" in found.not_proved


def test_without_a_signature_it_is_said(tmp_path):
    with drafting(tmp_path / "model") as draft:
        draft.write(result())
    found = check(tmp_path / "model")
    assert found.problems == ()
    assert "not signed" in found.not_proved
    assert problems(tmp_path / "model", KEY.public) == ("it is not signed, and you want a signer",)


def test_a_folder_rewritten_to_a_hundredth_of_epsilon_is_caught_where_a_signer_is_required(folder, tmp_path):
    """Seen to hold in every version before this one, whose `verify` could not be told whom to trust."""
    forged(folder, tmp_path)
    assert verify_folder(folder) == ()
    assert any("changed after it was signed" in one for one in problems(folder, KEY.public))
    # The old signature is a contradiction even for those who ask for none.
    assert problems(folder)
    # Taking it away, or signing with another key, helps against those only.
    (folder / "signature.json").unlink()
    assert problems(folder, KEY.public)
    sign(folder, OTHER)
    assert any("not by the signer" in one for one in problems(folder, KEY.public))


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_covered(folder, name):
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    assert any(f"'{name}' was changed" in one for one in problems(folder, KEY.public))
    (folder / name).unlink()
    assert any(f"'{name}' was signed and is not there" in one for one in problems(folder, KEY.public))


def test_nothing_is_added_unnoticed_but_an_audit(folder):
    (folder / "audit.json").write_text("{}")
    assert problems(folder, KEY.public) == ()
    (folder / "more").mkdir()
    (folder / "more" / "weights.bin").write_text("x")
    assert problems(folder, KEY.public) == ("'more/weights.bin' is not covered by the signature: it came later",)
    shutil.rmtree(folder / "more")
    (folder / "elsewhere").symlink_to(folder.parent)
    assert any("elsewhere" in one for one in problems(folder, KEY.public))


@pytest.mark.parametrize("field", ["signer", "signed", "files", "signature", "format"])
def test_no_field_of_a_signature_can_be_changed(folder, field):
    path = folder / "signature.json"
    fields = json.loads(path.read_text())
    changed = {
        "signer": OTHER.public, "signed": "1999-01-01T00:00:00+00:00", "signature": "00" * 64, "format": "other/1",
        "files": {**fields["files"], "config.toml": "0" * 64},
    }  # fmt: skip
    path.write_text(json.dumps({**fields, field: changed[field]}))
    assert problems(folder, KEY.public)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "[" * 100_000, '{"files": 1}', '{"files": [1]}', "\x00"])
def test_whatever_is_in_a_signature_the_outcome_is_a_sentence(folder, text):
    (folder / "signature.json").write_text(text)
    (problem,) = problems(folder)
    assert "no signature of this library" in problem


def test_a_signed_file_that_became_something_else(folder):
    (folder / "config.toml").unlink()
    os.mkfifo(folder / "config.toml")
    assert any("config.toml" in one for one in problems(folder, KEY.public))


def test_a_private_table_is_signed_with_its_certificate(tmp_path):
    (tmp_path / "in.csv").write_text("age,y\n" + "31,no\n57,yes\n" * 20)
    target = tmp_path / "out.csv"
    tables.privatize(tmp_path / "in.csv", target, label="y", classes=["no", "yes"], epsilon=1.0)
    assert sign(target, KEY).name == "out.csv.signature.json"
    for path in (target, tables.certificate_path(target)):
        assert check(path, signers=[KEY.public]).trusted
    tables.certificate_path(target).write_text(tables.certificate_path(target).read_text() + " ")
    assert any("out.csv.certificate.json" in one for one in problems(target, KEY.public))


def test_a_certificate_by_itself_is_signed(tmp_path):
    path = tmp_path / "vault.json"
    result().certificate.write(path)
    assert sign(path, KEY).name == "vault.json.signature.json"
    assert check(path, signers=[KEY.public]).trusted
    assert problems(path, OTHER.public)


def test_a_signature_is_never_overwritten_and_nothing_is_not_signed(folder, tmp_path):
    with pytest.raises(SigningError, match="there already"):
        sign(folder, OTHER)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SigningError, match="nothing"):
        sign(tmp_path / "empty", KEY)
    (tmp_path / "empty" / "pipe").parent.joinpath("link").symlink_to(tmp_path)
    with pytest.raises(SigningError, match="not a plain file"):
        sign(tmp_path / "empty", KEY)


def test_a_signature_is_that_of_rfc_8032(folder):
    """By the library's own primitives, from what the docstring says: nothing else is needed to check one."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    fields = json.loads((folder / "signature.json").read_text())
    stated = {name: fields[name] for name in ("signer", "signed", "files")}
    message = "labeldp-signature/1\n" + json.dumps(stated, sort_keys=True, separators=(",", ":"))
    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(fields["signer"].removeprefix("ed25519:")))
    public.verify(bytes.fromhex(fields["signature"]), message.encode())


# -- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("passphrase", [None, "correct horse"])
def test_a_key_comes_back_from_its_file(tmp_path, passphrase):
    path = tmp_path / "ann.key"
    KEY.write(path, passphrase)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SigningKey.read(path, passphrase).public == KEY.public == public_key(tmp_path / "ann.key.pub")
    assert (b"ENCRYPTED" in path.read_bytes()) == (passphrase is not None)
    with pytest.raises(SigningError, match="never overwritten"):
        OTHER.write(path)


def test_a_locked_key_stays_locked(tmp_path):
    KEY.write(tmp_path / "ann.key", "correct horse")
    with pytest.raises(LockedKeyError, match="give it"):
        SigningKey.read(tmp_path / "ann.key")
    with pytest.raises(LockedKeyError, match="does not open"):
        SigningKey.read(tmp_path / "ann.key", "battery staple")


def test_a_key_that_others_may_read_is_refused(tmp_path):
    KEY.write(tmp_path / "ann.key")
    (tmp_path / "ann.key").chmod(0o644)
    with pytest.raises(SigningError, match="chmod 600"):
        SigningKey.read(tmp_path / "ann.key")


@pytest.mark.parametrize("content", ["", "no key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_what_is_no_key_is_refused(tmp_path, content):
    path = tmp_path / "ann.key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(SigningError):
        SigningKey.read(path)
    with pytest.raises(SigningError, match="neither a public key"):
        public_key(path)
    with pytest.raises(SigningError, match="cannot be read"):
        SigningKey.read(tmp_path / "nothing")


def test_no_secret_is_in_a_key_that_is_printed():
    assert repr(KEY) == "SigningKey()"


# -- commands --------------------------------------------------------------------------------------------------------


@pytest.fixture
def ann(tmp_path):
    labeldp("keys", "new", tmp_path / "ann.key", check=0)
    return tmp_path / "ann.key"


def test_keys_are_made_shown_and_used(folder, ann, tmp_path):
    shown = labeldp("keys", "show", ann, check=0).stdout.strip()
    assert shown == labeldp("keys", "show", f"{ann}.pub", check=0).stdout.strip()
    (folder / "signature.json").unlink()
    assert shown in labeldp("keys", "sign", folder, "--key", ann, check=0).stdout
    for signer in (shown, f"{ann}.pub"):
        said = labeldp("verify", folder, "--signer", signer, check=0).stdout.splitlines()[-1]
        assert said.startswith(f"Proved: epsilon 1 at delta 0 follows from the ledger, and every file is the certified "
                               f"one; {shown} signed all of it. Not proved: ")  # fmt: skip
    assert "not signed by" not in labeldp("verify", folder, "--signer", OTHER.public, check=1).stderr
    assert "neither a public key" in labeldp("verify", folder, "--signer", "ann", check=2).stderr


def test_verify_says_in_one_line_what_was_proved_and_what_was_not(folder):
    (folder / "signature.json").unlink()
    said = labeldp("verify", folder, check=0).stdout.splitlines()[-1]
    assert said == (
        "Proved: epsilon 1 at delta 0 follows from the ledger, and every file is the certified one. Not proved: that "
        "the ledger lists every query of these labels. It is not signed: whoever had the files could have rewritten "
        "all of them."
    )
    found = json.loads(labeldp("verify", folder, "--json", check=0).stdout)
    assert (found["holds"], found["epsilon"], found["delta"], found["signer"]) == (True, 1.0, 0.0, None)


@pytest.mark.parametrize(("options", "code"), [
    (("--max-epsilon", 1), 0), (("--max-epsilon", 0.99), 1), (("--max-delta", 0), 0), (("--max-delta", 1e-9), 0),
])  # fmt: skip
def test_a_claim_may_not_be_more_than_you_accept(folder, options, code):
    run = labeldp("verify", folder, *options, check=code)
    assert code == 0 or "more than the 0.99 that you accept" in run.stderr


def test_privatize_signs_and_checks_the_key_before_it_spends(tmp_path, ann, monkeypatch):
    (tmp_path / "in.csv").write_text("age,y\n" + "31,no\n57,yes\n" * 20)
    arguments = ("privatize", tmp_path / "in.csv", "--label", "y", "--classes", "no,yes", "--epsilon", 1, "--out")
    labeldp(*arguments, tmp_path / "out.csv", "--sign", ann, "--quiet", check=0)
    labeldp("verify", tmp_path / "out.csv", "--signer", f"{ann}.pub", check=0)
    KEY.write(tmp_path / "locked.key", "correct horse")
    journal = ("--journal", tmp_path / "y.journal", "--budget", 1)
    refused = labeldp(*arguments, tmp_path / "two.csv", "--sign", tmp_path / "locked.key", *journal, check=2)
    assert "LABELDP_PASSPHRASE" in refused.stderr
    monkeypatch.setenv("LABELDP_PASSPHRASE", "battery staple")
    labeldp(*arguments, tmp_path / "two.csv", "--sign", tmp_path / "locked.key", *journal, check=2)
    assert not (tmp_path / "y.journal").exists()
    monkeypatch.setenv("LABELDP_PASSPHRASE", "correct horse")
    labeldp(*arguments, tmp_path / "two.csv", "--sign", tmp_path / "locked.key", "--quiet", check=0)
    labeldp("verify", tmp_path / "two.csv", "--signer", KEY.public, check=0)
    assert signing.check(tmp_path / "two.csv", [KEY.public]).problems == ()


def test_the_history_of_a_store_is_exported_and_signed(tmp_path, ann):
    pytest.importorskip("sqlalchemy")
    (tmp_path / "in.csv").write_text("age,y\n" + "31,no\n57,yes\n" * 20)
    columns, store = ("--label", "y", "--classes", "no,yes"), ("--store", tmp_path / "budgets.db")
    labeldp("budget", "create", tmp_path / "in.csv", "--name", "t", *columns, "--epsilon", 3, *store, check=0)
    for name in ("a.csv", "b.csv"):
        labeldp("privatize", tmp_path / "in.csv", *columns, "--epsilon", 1, "--out", tmp_path / name, *store, check=0)
    path = tmp_path / "history.json"
    labeldp("budget", "history", "t", "--out", path, "--sign", ann, *store, check=0)
    said = labeldp("verify", path, "--signer", f"{ann}.pub", "--max-epsilon", 2, check=0).stdout
    assert said.startswith("Proved: the history is whole and ends at epsilon 2 at delta ")
    assert "--out" in labeldp("budget", "history", "t", "--sign", ann, *store, check=2).stderr
    labeldp("verify", path, "--max-epsilon", 1.5, check=1)
    # A charge that is taken out shows by itself; one that is made cheaper, by the signature.
    history = json.loads(path.read_text())
    path.write_text(json.dumps({**history, "charges": history["charges"][1:]}))
    assert "charges are missing" in labeldp("verify", path, check=1).stderr
    for charge in (*history["charges"], {**history["dataset"]}):
        charge["epsilon"] = 0.01
    path.write_text(json.dumps({**history, "dataset": {**history["dataset"], "spent": 0.01}}))
    assert "changed after it was signed" in labeldp("verify", path, "--signer", f"{ann}.pub", check=1).stderr


def test_the_history_of_a_store_that_a_service_charged_holds(tmp_path):
    """A service writes the plain sum beside a charge, which is more than what all charges come to together."""
    pytest.importorskip("sqlalchemy")
    from labeldp import Budget, LabelVault
    from labeldp.budgets.batch import Batch
    from labeldp.budgets.ids import Charge
    from labeldp.budgets.store import BudgetStore
    from labeldp.core.events import GridGaussian, PureDP

    place, path = tmp_path / "budgets.db", tmp_path / "history.json"
    store = BudgetStore.open(place)
    store.create("t", LabelVault([0, 1] * 100, num_classes=2), Budget(8.0, 1e-5))

    def served(*events):
        for event in events:
            with store._database.writing() as connection:
                batch = Batch(store._database, connection, "t")
                number = batch.dataset.charges + 1
                batch.charge([Charge(event)], who="analyst ann", query_id=f"{number}", note="", own=Budget(8.0, 1e-5))
                batch.write()

    def exported():
        path.unlink(missing_ok=True)
        labeldp("budget", "history", "t", "--out", path, "--store", place, check=0)
        return json.loads(path.read_text())

    served(*[PureDP(0.1)] * 60)
    history = exported()
    assert history["charges"][-1]["epsilon"] == 6.0 > history["dataset"]["spent"]
    assert "Proved" in labeldp("verify", path, check=0).stdout
    # Once something has no ε of its own all is composed, and the column falls to what was spent.
    served(GridGaussian(50.0, 2**0.5))
    history = exported()
    assert history["charges"][-1]["epsilon"] < 6.0
    assert "Proved" in labeldp("verify", path, check=0).stdout
    for who, spent in (("analyst ann", 7.9), ("ann", 0.01)):
        charges = [{**history["charges"][0], "who": who}, *history["charges"][1:]]
        told = {**history, "charges": charges, "dataset": {**history["dataset"], "spent": spent}}
        path.write_text(json.dumps(told))
        assert "does not end at what was spent" in labeldp("verify", path, check=1).stderr


def test_a_locked_key_is_made_by_command(tmp_path, monkeypatch):
    monkeypatch.setenv("LABELDP_PASSPHRASE", "correct horse")
    made = labeldp("keys", "new", tmp_path / "ann.key", "--passphrase", check=0)
    assert "correct horse" not in made.stdout
    assert b"ENCRYPTED" in (tmp_path / "ann.key").read_bytes()
    assert labeldp("keys", "show", tmp_path / "ann.key", check=0).stdout.startswith("ed25519:")
