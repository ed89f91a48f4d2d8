"""Who may do what: tokens that are wrong, expired or revoked, another's data set, roles, and how often."""

import hmac
import re
import time
from contextlib import contextmanager

import numpy as np
import pytest

pytest.importorskip("sqlalchemy", reason="a service keeps its books in a database")

from sqlalchemy import event

from labeldp.budgets.keys import Key, StoreError
from labeldp.core.ledger import Budget
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.counts import GroupCounts, LaplaceNoise
from labeldp.mechanisms.moments import Moments
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.service import access as accesses
from labeldp.service import wire
from labeldp.service.access import Access, RateLimit
from labeldp.service.client import Connection, RemoteVault, ServiceError, read_log
from labeldp.service.server import Server, check_address
from labeldp.service.wire import AccessError, BusyError, WireError
from tests.service.asking import ask, header
from tests.service.servicehelp import NAME, labels, names, service


@pytest.fixture(scope="module")
def found():
    with service(labels()[0]) as served:
        served.access.add("olga", "owner")
        served.access.add("art", "auditor")
        served.access.add("bob", "analyst")
        yield served


def bad_tokens(found):
    """Tokens that do not count, by why."""
    good, people = found.token, found.access
    revoked, expired = people.issue("ann", 1), people.issue("ann", 1e-9)
    people.revoke(revoked.split(".")[1])
    mark, identity, secret = good.split(".")
    time.sleep(0.01)
    return {
        "none": "", "random": "x" * 60, "wrong": f"{mark}.{identity}.{secret[:-1]}{'A' if secret[-1] != 'A' else 'B'}",
        "of another id": f"{mark}.{revoked.split('.')[1]}.{secret}", "unknown id": f"{mark}.{'0' * 12}.{secret}",
        "another mark": good.replace("ldp", "xyz"), "revoked": revoked, "expired": expired, "long": good * 50,
    }  # fmt: skip


@contextmanager
def statements(database):
    """What is asked of the database meanwhile."""
    seen = []

    def note(_connection, _cursor, statement, *_):
        seen.append(statement)

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(database.engine, "before_cursor_execute", note)


@pytest.fixture
def work(found, monkeypatch):
    """Return what a refusal says and all that was done for it which takes time, whatever the machine is doing.

    Statements of the database, keyed hashes, comparisons of secrets, and batches of columns that were read.
    """
    done = []

    def noted(owner, name):
        real = getattr(owner, name)

        def run(*args, **more):
            done.append(name)
            return real(*args, **more)

        monkeypatch.setattr(owner, name, run)

    for owner, name in ((Key, "seal"), (Key, "digest"), (hmac, "compare_digest"), (wire, "from_batch"),
                        (wire, "from_bytes"), (wire, "decode"), (LabelVault, "release")):  # fmt: skip
        noted(owner, name)

    def refused(call, error=AccessError):
        found.access.forget()
        done.clear()
        with statements(found.database) as seen, pytest.raises(error) as said:
            call()
        return str(said.value), (*seen, *done)

    return refused


def questions(found, token, dataset):
    """Calls with a token about a data set: without data, small, with features, and larger than is allowed."""
    connection = found.connection(token)
    small = header("rows", GroupCounts(np.arange(60) % 4, 4, 3, LaplaceNoise(0.1)), dataset=dataset)
    many = header("rows", Moments(np.ones((60, 200)), 3, LaplaceNoise(0.1), 20.0), dataset=dataset)
    return {
        "describe": lambda: connection.act("describe", dataset=dataset),
        "budget": lambda: connection.act("budget", dataset=dataset),
        "a query": lambda: ask(connection, *small),
        "too large": lambda: ask(connection, *many),
    }


def test_tokens_that_do_not_count_are_refused_in_one_sentence_by_the_same_work(found, work, monkeypatch):
    monkeypatch.setattr(found.server, "_most_bytes", 10_000)
    # None of them is read, so that the size takes no time: also where the address holds no such data set.
    for dataset in (NAME, "nowhere"):
        outcomes = {
            (why, call): work(run)
            for why, token in bad_tokens(found).items()
            for call, run in questions(found, token, dataset).items()
        }
        assert len(set(outcomes.values())) == 1, outcomes
        said, done = outcomes["wrong", "a query"]
        assert "does not count" in said
        assert done.count("compare_digest") == 1
        assert not {"from_batch", "from_bytes", "decode", "release"} & {*done}


def test_anothers_data_set_is_told_apart_from_none_by_nothing(found, work, monkeypatch):
    monkeypatch.setattr(found.server, "_most_bytes", 10_000)
    token = found.access.issue("bob", 1)
    outcomes = {
        (call, dataset): (said.replace(dataset, "…"), done)
        for dataset in (NAME, "nowhere", "x" * 200)
        for call, run in questions(found, token, dataset).items()
        for said, done in [work(run)]
    }
    assert {said for said, _ in outcomes.values()} == {
        "there is no data set '…' that you may ask; see its name, or ask its owner"
    }
    assert len(set(outcomes.values())) == 1, outcomes


def test_of_too_large_requests_no_more_is_read_the_larger_they_are_and_they_cost_nothing(found, work, monkeypatch):
    monkeypatch.setattr(found.server, "_most_bytes", 10_000)
    remote = found.remote()
    named, spent, done = remote._account.rows, remote.spent(), set()
    for rows in (60, 600, 6000):
        # Known rows of the data set, and many more than these.
        told, columns = header(named, Moments(np.ones((rows, 200)), 3, LaplaceNoise(0.1), 20.0))
        said, work_done = work(lambda asked=(told, columns): ask(found.connection(), *asked), WireError)
        assert re.search("more than 10000 bytes|could not be read as declared", said)
        done.add(work_done)
    # However large, no more of it is read.
    assert len(done) == 1
    assert remote.spent() == spent


def test_a_revoked_token_stops_within_seconds(found, monkeypatch):
    monkeypatch.setattr(accesses, "FRESH_SECONDS", 0.05)
    token = found.access.issue("ann", 1)
    connection = found.connection(token)
    connection.act("describe", dataset=NAME)
    # By another process, whose memory is not the server's.
    Access(found.database).revoke(token.split(".")[1])
    time.sleep(0.06)
    with pytest.raises(AccessError, match="does not count"):
        connection.act("describe", dataset=NAME)


def test_tokens_are_not_in_the_store(found):
    token = found.access.issue("ann", 1)
    secret = token.split(".")[2].encode()
    assert secret not in found.place.read_bytes()
    assert token.split(".")[1].encode() in found.place.read_bytes()


def test_roles(found):
    tokens = {name: found.access.issue(name, 1) for name in ("olga", "art", "ann")}
    assert read_log(found.connection(tokens["art"])) == read_log(found.connection(tokens["olga"]))
    assert "labeldp_calls_total" in found.connection(tokens["olga"]).act("metrics")["text"]
    for name, call, given in (("ann", "log", {"after": 0}), ("ann", "metrics", {}), ("art", "metrics", {})):
        with pytest.raises(AccessError, match="ask the data owner"):
            found.connection(tokens[name]).act(call, **given)
    for name in ("olga", "art"):
        with pytest.raises(AccessError, match="no data set"):
            found.remote(token=tokens[name])


def test_grants_cannot_be_changed_and_are_for_analysts(found):
    found.access.grant(NAME, "ann", Budget(100.0, 1e-3))
    with pytest.raises(AccessError, match="cannot be changed"):
        found.access.grant(NAME, "ann", Budget(101.0, 1e-3))
    with pytest.raises(AccessError, match="does not spend"):
        found.access.grant(NAME, "art", Budget(1.0))
    for wrong in (Budget(0.0), Budget(float("inf"))):
        with pytest.raises(AccessError, match="not a grant"):
            found.access.grant("other", "ann", wrong)
    with pytest.raises(AccessError, match="another role"):
        found.access.add("ann", "owner")
    with pytest.raises(AccessError, match="nobody called"):
        found.access.issue("zoe", 1)


def test_lines_that_were_changed_behind_our_back_are_found_out():
    import sqlite3

    with service(labels()[0]) as found:
        with sqlite3.connect(found.place) as raw:
            raw.execute("UPDATE labeldp_grants SET epsilon = 1e9")
        raw.close()
        found.access.forget()
        with pytest.raises(StoreError, match="changed or damaged"):
            found.access.allowance(found.access.who(found.token), NAME)


def test_too_many_calls_are_turned_away():
    with service(labels()[0], limit=RateLimit(0.001, 3)) as found:
        connection = found.connection()
        connection._tries = 1
        for _ in range(3):
            connection.act("describe", dataset=NAME)
        with pytest.raises(BusyError, match="too many calls"):
            connection.act("describe", dataset=NAME)


def test_strangers_who_guess_are_slowed_down():
    with service(labels()[0]) as found:
        found.server._strangers = RateLimit(0.001, 2)
        connection = found.connection("ldp.guess.guess")
        connection._tries = 1
        for expected in (AccessError, AccessError, BusyError):
            with pytest.raises(expected):
                connection.act("describe", dataset=NAME)
        # Those who are known go on.
        found.connection().act("describe", dataset=NAME)


def test_unknown_ids_are_counted_and_never_listed(found):
    with pytest.raises(ValueError, match="2 of 5 ids are not in the data set") as refused:
        found.remote([*names(3), "stranger-1", "stranger-2"])
    assert "stranger" not in str(refused.value)
    with pytest.raises(ValueError, match="1 of 4 ids repeat"):
        found.remote([*names(3), names(1)[0]])
    with pytest.raises(ValueError, match="1 of 2 ids are missing"):
        found.remote(["a", None])
    with pytest.raises(ValueError, match="whole numbers or texts"):
        found.remote([0.5])
    with pytest.raises(ValueError, match="no ids"):
        found.remote(np.array([], dtype=np.int64))


def test_addresses_need_a_socket_or_tls():
    check_address("grpc+unix:///run/labeldp", tls=False)
    for address in ("grpc://127.0.0.1:1", "grpc+tcp://0.0.0.0:1", "http://x", "grpc+unix://relative"):
        with pytest.raises(ValueError, match="listen="):
            check_address(address, tls=True)
    with pytest.raises(ValueError, match="needs a certificate"):
        check_address("grpc+tls://localhost:0", tls=False)


def certificates():
    """A key and a certificate for localhost that signs itself, as PEM."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    hosts = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now,
                                   now + datetime.timedelta(days=1)).add_extension(hosts, False)  # fmt: skip
    cert = made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return cert, secret


def test_tls_end_to_end():
    cert, secret = certificates()
    with service(labels()[0]) as found:
        server = Server(found.engine, found.access, "grpc+tls://localhost:0", tls=(cert, secret))
        given = {"token": found.token, "dataset": NAME, "ids": names(60)}
        remote = RemoteVault(f"grpc+tls://localhost:{server.port}", root_certs=cert, **given)
        assert len(remote.release(RandomizedResponse(0.1, 3))) == 60
        server.shutdown()


def test_certificates_are_not_wanted_where_nobody_could_show_one():
    """A socket would let in everybody with a token, whatever its owner has asked for."""
    with service(labels()[0]) as found, pytest.raises(ValueError, match="clients mean nothing at"):
        Server(found.engine, found.access, f"grpc+unix://{found.folder}/other", clients=b"PEM")


def test_who_shows_no_certificate_of_the_owners_authority_is_not_let_in():
    """A token by itself, or another's certificate, does not get as far as a refusal of the service."""
    (cert, secret), mine, others = certificates(), b"".join(certificates()), b"".join(certificates())
    with service(labels()[0]) as found:
        server = Server(found.engine, found.access, "grpc+tls://localhost:0", tls=(cert, secret), clients=mine)
        address = f"grpc+tls://localhost:{server.port}"
        for own in (None, others):
            with pytest.raises(ServiceError, match="cannot be reached"):
                Connection(address, found.token, cert, tries=1, client_cert=own).act("describe", dataset=NAME)
        given = {"dataset": NAME, "ids": names(60), "root_certs": cert, "client_cert": mine}
        with pytest.raises(AccessError, match="does not count"):
            RemoteVault(address, token="none", **given)
        assert len(RemoteVault(address, token=found.token, **given).release(RandomizedResponse(0.1, 3))) == 60
        server.shutdown()
