import copy
import json
import time

import pytest

from labeldp.core import certificate as c
from labeldp.core.events import Gaussian, NonPrivate, PoissonGaussian, PureDP, event_to_json
from labeldp.core.ledger import Ledger

SECURE = "operating-system entropy, AES-256-CTR"


def make(ledger=None, delta=0.0, **more):
    ledger = ledger or Ledger(10).charge(PureDP(1.0)).charge(PureDP(0.5), rows=[1])
    return c.certify(ledger.groups(), delta, noise=SECURE, seeded=False, **more)


def test_round_trip_and_verification():
    certificate = make(release={"mechanism": "randomized-response", "epsilon": 1.0})
    assert c.parse(certificate.dumps()) == certificate
    assert c.verify(certificate) == ()
    assert certificate.epsilon == 1.5


def test_central_looks_are_recomputed():
    ledger = Ledger(10).charge_plan(
        [(PoissonGaussian(2.0, 1.0, 2.0, 0.0171), 293, None), (Gaussian(20.0, 1.0), 1, None)]
    )
    certificate = make(ledger, 1e-5)
    assert 1.0 < certificate.epsilon < 1.3
    assert c.verify(c.parse(certificate.dumps())) == ()


def test_a_reveal_says_infinity_and_why():
    certificate = make(Ledger(3).charge(NonPrivate("debugging")))
    assert certificate.to_json()["claim"]["epsilon"] == "infinity"
    assert "debugging" in certificate.dumps()
    assert any("infinite" in problem for problem in c.verify(c.parse(certificate.dumps())))


@pytest.mark.parametrize(("rows", "good"), [(99_999, True), (100_000, False)])
def test_a_delta_that_allows_to_publish_a_row_is_a_problem(rows, good):
    certificate = make(Ledger(rows).charge(Gaussian(9.0, 1.0)), 1e-5)
    assert [("one over" in problem) for problem in c.verify(certificate)] == ([] if good else [True])


def hostile(**changes):
    """A certificate with other fields and a right checksum."""
    body = {key: value for key, value in make().to_json().items() if key != "checksum"} | changes
    return json.dumps({**body, "checksum": c._checksum(body)})


def nested(levels):
    return json.loads("[" * levels + "]" * levels)


def group(*events, times=1):
    return {"rows": 1, "looks": [{"event": event_to_json(event), "times": times} for event in events]}


@pytest.mark.parametrize(
    "text",
    [
        lambda: "[" * 10**6,
        lambda: '{"a":' * 10**6,
        lambda: hostile(release={"epsilon": 1.0, "more": nested(60)}),
        lambda: " " * (1 << 24) + hostile(),
        lambda: hostile(ledger=[group(PureDP(1.0), times=2**53 + 1)]),
        lambda: hostile(ledger=[group(PureDP(1.0), times=10**4000)]),
        lambda: hostile(claim={**make().to_json()["claim"], "epsilon": 10**400}),
        lambda: hostile(ledger=[{"rows": 10**400, "looks": []}]),
        lambda: hostile(ledger=nested(50)),
        lambda: hostile(ledger=5),
        lambda: hostile(format="labeldp-certificate/2", assumptions=[], ledger=[{"rows": 1, "plans": [[]]}]),
    ],
    ids=range(11),
)
def test_hostile_text_is_refused_at_once(text):
    """Fault 13: RecursionError, OverflowError and half a minute on the code of 34fca78."""
    made, begun = text(), time.process_time()
    with pytest.raises(c.CertificateError):
        c.parse(made)
    assert time.process_time() - begun < 2


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "c.json").write_bytes(b"\xff\xfe" * 100)
    with pytest.raises(c.CertificateError, match="UTF-8"):
        c.read(tmp_path / "c.json")


@pytest.mark.parametrize("spread", ["groups", "events", "plans"])
def test_more_work_than_is_worth_is_refused_before_it_is_begun(spread):
    events = [PoissonGaussian(2.0 + i / 1000, 1.0, 2.0, 0.01) for i in range(200)]
    looks = [[{"event": event_to_json(event), "times": 1000}] for event in events]
    ledger = {
        "groups": [{"rows": 1, "plans": [plan]} for plan in looks],
        "events": [{"rows": 1, "plans": [[query for plan in looks for query in plan]]}],
        "plans": [{"rows": 1, "plans": looks}],
    }
    claim = {**make().to_json()["claim"], "delta": 1e-5}
    found = c.parse(hostile(format="labeldp-certificate/2", assumptions=[], claim=claim, ledger=ledger[spread]))
    begun = time.process_time()
    assert any("compositions" in problem for problem in c.verify(found))
    assert time.process_time() - begun < 1


def test_what_cannot_be_accounted_for_is_a_problem_and_no_traceback():
    far = [{"rows": 1, "looks": [{"event": event_to_json(PoissonGaussian(1e-9, 1.0, 2.0, 0.5)), "times": 2**53}]}]
    found = c.parse(hostile(claim={**make().to_json()["claim"], "delta": 1e-5}, ledger=far))
    assert c.verify(found)


def leaves(value, path=()):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from leaves(item, (*path, i))
    else:
        yield path


def changed(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value / 2 + 1
    return "x" if value is None else str(value) + "x"


def put(fields, path, value):
    fields = copy.deepcopy(fields)
    place = fields
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return fields


def with_checksum(fields):
    fields = {k: v for k, v in fields.items() if k != "checksum"}
    return {**fields, "checksum": c._checksum(fields)}


def problems(fields, artifact=None):
    try:
        return c.verify(c.parse(json.dumps(fields)), artifact)
    except c.CertificateError as error:
        return (str(error),)


def certified(tmp_path):
    artifact = tmp_path / "private.csv"
    artifact.write_text("a,b\n")
    ledger = Ledger(10).charge(PureDP(1.0))
    return make(ledger, release={"epsilon": 1.0}).about(artifact).to_json(), artifact


def test_changing_any_field_is_caught(tmp_path):
    fields, artifact = certified(tmp_path)
    assert problems(fields, artifact) == ()
    for path in leaves(fields):
        value = fields
        for key in path:
            value = value[key]
        assert problems(put(fields, path, changed(value)), artifact), path


def test_removing_or_adding_any_field_is_caught(tmp_path):
    fields, artifact = certified(tmp_path)
    for name in fields:
        assert problems({k: v for k, v in fields.items() if k != name}, artifact), name
    assert problems({**fields, "more": 1}, artifact)


def objects(value, path=()):
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        yield from ([path] if isinstance(value, dict) else [])
        for key, item in items:
            yield from objects(item, (*path, key))


@pytest.mark.parametrize("second", [False, True])
def test_removing_or_adding_a_field_anywhere_is_caught_with_a_fitting_checksum(tmp_path, second):
    fields, artifact = certified(tmp_path)
    if second:
        ledger = Ledger(9).charge(Gaussian(9.0, 1.0)).charge(PureDP(0.5), rows=[1])
        fields = make(ledger, 1e-5, release={"epsilon": 0.5}, assumptions=("one",)).about(artifact).to_json()
    assert problems(with_checksum(fields), artifact) == ()
    found = list(objects(fields))
    assert len(found) > 6
    for path in found:
        place = fields
        for key in path:
            place = place[key]
        # What a release says of itself is free, but for its epsilon.
        if path != ("release",):
            assert problems(with_checksum(put(fields, (*path, "more"), 1)), artifact), path
        for name in place.keys() - {"checksum"}:
            less = {key: value for key, value in place.items() if key != name}
            wrong = put(fields, path, less) if path else less
            assert path == ("release",) or problems(with_checksum(wrong), artifact), (path, name)


# Fields whose change is harmless even when the checksum is made to fit: they carry no claim.
HARMLESS = {("created",), ("library",), ("artifact", "name")}


def test_changing_a_field_and_the_checksum_is_caught_or_harmless(tmp_path):
    """What is promised, counted or hashed is recomputed, so a fitting checksum does not help."""
    fields, artifact = certified(tmp_path)
    for path in leaves(fields):
        if path == ("checksum",):
            continue
        value = fields
        for key in path:
            value = value[key]
        found = problems(with_checksum(put(fields, path, changed(value))), artifact)
        rows_only = path[0] == "ledger" and path[-1] == "rows"
        assert found or path in HARMLESS or rows_only, path


def test_a_lower_claim_with_a_fitting_checksum_is_caught():
    fields = make().to_json()
    fields["claim"]["epsilon"] = 0.75
    assert "ledger gives 1.5" in problems(with_checksum(fields))[0]


def test_a_claim_a_hair_too_low_is_caught():
    fields = make().to_json()
    fields["claim"]["epsilon"] = 1.5 * (1 - 1e-9)
    assert problems(with_checksum(fields))


def test_a_look_listed_twice_is_refused():
    fields = make(Ledger(10).charge(PureDP(1.0))).to_json()
    fields["ledger"][0]["looks"] *= 3
    assert "twice" in problems(with_checksum(fields))[0]


def test_a_claim_weaker_than_its_release_is_caught():
    fields = make(Ledger(2).charge(PureDP(0.5)), release={"epsilon": 2.0}).to_json()
    assert "more than the claim" in problems(fields)[0]


def test_seeded_noise_never_verifies():
    certificate = c.certify(Ledger(1).groups(), 0.0, noise="seeded", seeded=True)
    assert "seed" in c.verify(certificate)[0]


def test_missing_and_changed_artifacts_are_told_apart(tmp_path):
    fields, artifact = certified(tmp_path)
    assert "not found" in problems(fields, None)[0]
    artifact.write_text("a,c\n")
    assert "SHA-256" in problems(fields, artifact)[0]


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", "not json", '{"format": NaN}', '{"format": 1, "format": 2}', '{"claim": Infinity}'],
)
def test_what_is_no_certificate_is_refused_with_a_sentence(text):
    with pytest.raises(c.CertificateError):
        c.parse(text)


@pytest.mark.parametrize("bad", [-1.0, "1.0", None, True, [1.0], 1e400])
def test_senseless_epsilons_are_refused(bad):
    fields = make().to_json()
    fields["claim"]["epsilon"] = bad
    try:
        fields = with_checksum(fields)
    except ValueError:
        return  # not even JSON
    assert problems(fields)


@pytest.mark.parametrize("event", [{}, None, {"kind": "unknown"}, {"kind": "pure", "epsilon": -1}, "pure", 3])
def test_senseless_events_are_refused(event):
    fields = make().to_json()
    fields["ledger"][0]["looks"][0]["event"] = event
    assert problems(with_checksum(fields))
