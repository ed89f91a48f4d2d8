import dataclasses
import json
import math
import time

import numpy as np
import pytest

from labeldp.core import certificate as certificates
from labeldp.core.events import NonPrivate, PureDP
from labeldp.core.ledger import Ledger
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.results import folder as folders
from labeldp.results.card import Story
from labeldp.results.folder import drafting
from labeldp.results.verify import check, verify_folder
from tests.commands import labeldp
from tests.results.resulthelp import result


@pytest.fixture
def folder(tmp_path):
    with drafting(tmp_path / "model") as draft:
        draft.write(result())
    return tmp_path / "model"


def rewrite(folder, **changes):
    """A certificate with other fields and a right checksum, as a careful forger would write it."""
    old = certificates.read(folder / "certificate.json")
    dataclasses.replace(old, **changes).write(folder / "certificate.json")


def rehash(folder):
    old = certificates.read(folder / "certificate.json")
    files = {name: certificates.describe_artifact(folder / name).sha256 for name in folders.HASHED}
    rewrite(folder, release={**(old.release or {}), "files": files})


def retell(folder, **changes):
    old = certificates.read(folder / "certificate.json")
    release = dict(old.release or {})
    rewrite(folder, release={**release, "story": {**release["story"], **changes}})


def edit(folder, name, old, new):
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))


def test_a_result_as_it_was_written_holds(folder):
    assert verify_folder(folder) == ()


@pytest.mark.parametrize("name", folders.FILES)
def test_every_file_must_be_there(folder, name):
    (folder / name).unlink()
    (problem,) = verify_folder(folder)
    assert name in problem


@pytest.mark.parametrize("name", folders.FILES)
def test_a_changed_byte_is_found_in_every_file(folder, name):
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    problems = verify_folder(folder)
    assert problems
    assert name == "certificate.json" or any(name in problem for problem in problems)


def test_a_seeded_result_does_not_hold(tmp_path):
    with drafting(tmp_path / "model") as draft:
        draft.write(result(rng=SecureRandom(7)))
    assert any("seed" in problem for problem in verify_folder(tmp_path / "model"))
    assert "This is not private" in (tmp_path / "model" / "model_card.md").read_text()


def test_a_smaller_claim_than_the_ledger_is_found(folder):
    rewrite(folder, epsilon=0.5)
    assert any("the ledger gives" in problem for problem in verify_folder(folder))


def test_spending_more_than_was_asked_for_is_found(folder):
    retell(folder, epsilon=0.9)
    assert any("more was spent" in problem for problem in verify_folder(folder))


@pytest.mark.parametrize(
    ("name", "old", "new", "what"),
    [
        ("config.toml", 'label = "y"', 'label = "z"', "differ in label"),
        ("config.toml", "epsilon = 1.0", "epsilon = 0.5", "differ in epsilon"),
        ("config.toml", '"yes"', '"maybe"', "differ in classes"),
        ("model_card.md", "2.72×", "1.72×", "promise"),
        ("metrics.json", '"epsilon": 1.0', '"epsilon": 0.1', "different epsilons"),
        ("metrics.json", "{", "", "metrics"),
    ],
)
def test_a_careful_edit_with_new_hashes_contradicts_the_rest(folder, name, old, new, what):
    edit(folder, name, old, new)
    rehash(folder)
    problems = verify_folder(folder)
    assert any(what in problem for problem in problems), problems


def test_another_number_of_rows_is_found(folder):
    retell(folder, rows=100)
    assert any("200 rows" in problem for problem in verify_folder(folder))


def test_numbers_that_are_none_are_found(tmp_path):
    made = dataclasses.replace(result(), tensors={"shares": np.array([math.nan, 1.0])})
    with drafting(tmp_path / "model") as draft:
        draft.write(made)
    assert any("not finite" in problem for problem in verify_folder(tmp_path / "model"))


def test_a_story_of_other_fields_is_refused(folder):
    retell(folder, extra=1)
    (problem,) = verify_folder(folder)
    assert "cannot be verified" in problem


def test_a_story_goes_through_json():
    story = result().story
    assert Story.from_json(json.loads(json.dumps(story.to_json()))) == story


def protecting_nothing(kind, rows=200):
    """Certificates that are right in every number and promise nothing."""
    ledger = Ledger(rows).charge(NonPrivate("for comparison") if kind == "infinite" else PureDP(1.0))
    delta = {"infinite": 0.0, "one over the rows": 1 / rows, "nearly one": 0.9}[kind]
    return certificates.certify(ledger.groups(), delta, noise=certificates.SECURE_NOISE, seeded=False)


@pytest.mark.parametrize("kind", ["infinite", "one over the rows", "nearly one"])
def test_a_claim_that_protects_nothing_does_not_hold(tmp_path, kind):
    """Every one of them held before."""
    certificate = protecting_nothing(kind)
    certificate.write(tmp_path / "vault.json")
    assert check(tmp_path / "vault.json").problems
    assert labeldp("verify", tmp_path / "vault.json", check=1).stdout == ""
    made = result()
    claimed = {"epsilon": "infinity" if math.isinf(certificate.epsilon) else 1.0, "delta": certificate.delta}
    story = dataclasses.replace(made.story, epsilon=1e9, delta=certificate.delta)
    with drafting(tmp_path / "model") as draft:
        draft.write(dataclasses.replace(
            made, certificate=certificate, story=story, metrics={**made.metrics, **claimed}, run={"train": {}}, model={}
        ))  # fmt: skip
    assert verify_folder(tmp_path / "model")


def test_a_delta_below_one_over_the_rows_holds(tmp_path):
    groups = protecting_nothing("one over the rows").groups
    certificate = certificates.certify(groups, 0.9 / 200, noise=certificates.SECURE_NOISE, seeded=False)
    certificate.write(tmp_path / "vault.json")
    assert check(tmp_path / "vault.json").problems == ()


def test_a_result_of_kept_seeded_responses_does_not_hold(tmp_path):
    """A vault with the operating system's noise goes on from responses that a seeded one drew and a folder kept."""
    mechanism, labels = RandomizedResponse(1.0, 2), np.arange(200) % 2
    seeded = LabelVault(labels, 2, rng=SecureRandom(7))
    seeded.release(mechanism)
    vault = LabelVault(labels, 2)
    vault.record(mechanism, None, seeded=seeded.seeded)
    with drafting(tmp_path / "model") as draft:
        draft.write(dataclasses.replace(result(), certificate=vault.certificate(0.0)))
    assert any("seed" in problem for problem in verify_folder(tmp_path / "model"))
    assert "This is not private" in (tmp_path / "model" / "model_card.md").read_text()


@pytest.mark.parametrize(("name", "content"), [
    ("metrics.json", b"[" * 100_000), ("metrics.json", b" " * (17 << 20)), ("config.toml", b"a = " + b"[" * 100_000),
    ("config.toml", b"#" * (17 << 20)), ("model_card.md", b"x" * (17 << 20)), ("metrics.json", b"9" * 1_000_000),
    ("config.toml", b".".join([b"a"] * 20_000) + b" = 1"), ("model.safetensors", b"\xff" * 100),
    ("certificate.json", b"[" * 1_000_000), ("certificate.json", b'{"a":' * 100_000), ("certificate.json", b"\xff\xfe"),
])  # fmt: skip
def test_a_hostile_file_is_a_sentence_within_seconds(folder, name, content):
    (folder / name).write_bytes(content)
    if name != "certificate.json":
        rewrite(folder, artifact=certificates.describe_artifact(folder / "model.safetensors"))
        rehash(folder)
    begun = time.process_time()
    assert verify_folder(folder)
    run = labeldp("verify", folder, check=1)
    assert len(run.stderr) < 5000
    assert time.process_time() - begun < 5
