"""What a certificate protects: one label, or all labels of one user."""

import json

import pytest

from labeldp.core import certificate as c
from labeldp.core.events import PureDP
from labeldp.core.ledger import ONE_LABEL, ONE_USER, UNITS, Ledger, unit_of_words
from tests.core.test_certificate import SECURE, changed, leaves, problems, put, with_checksum

# Written by the version before certificates could speak of users.
OLD = (
    '{"format": "labeldp-certificate/1", "created": "2026-11-15T11:47:13+00:00", "claim": {"epsilon": 1.5, "delta'
    '": 0.0, "protects": "one label", "neighbours": "Two data sets are neighbours when one label is replaced by a'
    'ny other. Features, the number of rows, their order and the set of classes are public."}, "ledger": [{"rows"'
    ': 3, "looks": [{"event": {"kind": "PureDP", "epsilon": 1.0}, "times": 1}]}, {"rows": 1, "looks": [{"event": '
    '{"kind": "PureDP", "epsilon": 0.5}, "times": 1}, {"event": {"kind": "PureDP", "epsilon": 1.0}, "times": 1}]}'
    '], "accountant": "sum of pure epsilons", "noise": {"source": "operating-system entropy, AES-256-CTR", "seede'
    'd": false}, "library": "labeldp 0.1.0", "artifact": null, "release": null, "checksum": "352f3e63626a14b79d6c'
    'ee4e796f07938a2bc0633b83cb72541d4e157998f88a"}'
)


def of_users():
    ledger = Ledger(5).charge(PureDP(0.4), 3).charge(PureDP(0.25), 4, rows=[1])
    return c.certify(ledger.groups(), 0.0, noise=SECURE, seeded=False, unit=ONE_USER)


def test_old_certificates_still_hold():
    old = c.parse(OLD)
    assert old.unit == ONE_LABEL
    assert c.verify(old) == ()
    assert old.to_json() == json.loads(OLD)


def test_a_certificate_of_users_says_so_and_counts_them():
    certificate = of_users()
    fields = certificate.to_json()
    assert fields["claim"]["protects"] == "all labels of one user"
    assert [entry["users"] for entry in fields["ledger"]] == [4, 1]
    assert c.parse(certificate.dumps()) == certificate
    assert c.verify(certificate) == ()


def test_one_label_is_the_default():
    certificate = c.certify(Ledger(2).groups(), 0.0, noise=SECURE, seeded=False)
    assert certificate.unit == ONE_LABEL
    assert certificate.to_json()["ledger"] == [{"rows": 2, "looks": []}]


def test_changing_any_field_of_a_users_certificate_is_caught():
    fields = of_users().to_json()
    for path in leaves(fields):
        value = fields
        for key in path:
            value = value[key]
        wrong = put(fields, path, changed(value))
        assert problems(wrong), path
        harmless = path in {("created",), ("library",)} or path[-1] == "users"
        assert harmless or path == ("checksum",) or problems(with_checksum(wrong)), path


@pytest.mark.parametrize("name", ["protects", "neighbours"])
def test_half_a_unit_is_none(name):
    fields = of_users().to_json()
    fields["claim"][name] = getattr(ONE_LABEL, name)
    assert "worded" in problems(with_checksum(fields))[0]


def test_words_of_one_unit_and_counts_of_another_do_not_mix():
    fields = of_users().to_json()
    fields["claim"] |= {"protects": ONE_LABEL.protects, "neighbours": ONE_LABEL.neighbours}
    assert "the field 'rows' is missing" in problems(with_checksum(fields))[0]


def test_units_are_told_apart_by_their_words():
    assert [unit_of_words(unit.protects, unit.neighbours) for unit in UNITS] == list(UNITS)
    assert unit_of_words("everything", ONE_USER.neighbours) is None
    assert len({unit.counted for unit in UNITS}) == len(UNITS)
