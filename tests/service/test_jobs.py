"""Recipes with gradients and teachers run inside the service: the model of in process, paid once, whatever dies."""

import contextlib
import json
import os
import random
import signal
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch", reason="jobs train networks")
pytest.importorskip("sqlalchemy", reason="a service keeps its books in a database")

from torch import nn  # noqa: E402

from labeldp.core.ledger import ONE_USER, Budget, BudgetExceededError  # noqa: E402
from labeldp.learning.teachers import ridge_teachers  # noqa: E402
from labeldp.mechanisms.responses import RandomizedResponse  # noqa: E402
from labeldp.recipes import labeldp_pro, pate  # noqa: E402
from labeldp.recipes.catalogue import RECIPES  # noqa: E402
from labeldp.service import jobs as jobs_module  # noqa: E402
from labeldp.service import logbook, networks, tasks, wire, worker  # noqa: E402
from labeldp.service.client import ServiceError  # noqa: E402
from labeldp.service.jobs import Jobs  # noqa: E402
from labeldp.service.limits import Limits  # noqa: E402
from labeldp.service.logbook import problems_of_store  # noqa: E402
from labeldp.service.source import Source  # noqa: E402
from labeldp.service.wire import BusyError, WireError  # noqa: E402
from tests.service.asking import ask, bound, header  # noqa: E402
from tests.service.servicehelp import NAME, PLENTY, names, service  # noqa: E402

ROWS, CLASSES, DELTA = 240, 3, 1e-5
FEATURES = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1))
VALUES = FEATURES[:, :CLASSES].argmax(dim=1).numpy()


@contextlib.contextmanager
def running(tmp_path, seed=11, limits=None, users=None, **more):
    """A service that takes jobs on a table of its own."""
    owners = [f"person {row // 3 % 70}" for row in range(ROWS)]
    table = pa.table({"id": names(ROWS), "y": [f"c{each}" for each in VALUES], "whose": owners})
    pq.write_table(table, tmp_path / "t.parquet")
    classes = tuple(f"c{c}" for c in range(CLASSES))
    source = Source(str(tmp_path / "t.parquet"), "y", "id", classes, users=users, seed=seed)
    made, more = [], {"grant": Budget(100.0, DELTA), **more}

    def jobs(engine):
        made.append(Jobs(engine, tmp_path / "jobs", limits or Limits(memory=16 << 30)))
        return made[0]

    with service(source.seal(), source=source, make_jobs=jobs, **more) as found:
        found.jobs, found.source = made[0], source
        yield found


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def train(vault, **more):
    given = {"epsilon": 1.0, "delta": DELTA, "steps": 6, "batch_size": 40} | more
    return labeldp_pro.train(network(), FEATURES, vault, **given)


def kinds(found):
    return [json.loads(line.entry)["kind"] for line in logbook.read(found.database)]


PROJECTED = {"denoiser": labeldp_pro.alt_conv(8), "bound": labeldp_pro.NormBound(0.3)}
CASES = {
    "dp_sgd": train,
    "labeldp_pro": lambda vault, **more: train(vault, **PROJECTED, **more),
    "lp_normal_sgd": lambda vault, **more: labeldp_pro.lp_normal_sgd(
        nn.Linear(4, CLASSES), FEATURES, vault, epsilon=1.0, delta=DELTA, diameter=10.0, batch_size=40, **more),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_descent_gives_the_same_model_as_in_process(name, tmp_path):
    with running(tmp_path) as found:
        torch.manual_seed(3)
        here_vault = found.source.seal()
        here = CASES[name](here_vault)
        torch.manual_seed(3)
        remote = found.remote()
        there = CASES[name](remote, folder=tmp_path / "run")
        for one, other in zip(here.state_dict().values(), there.state_dict().values(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        claimed, stated = remote.certificate(DELTA), here_vault.certificate(DELTA)
        assert claimed.epsilon == pytest.approx(stated.epsilon, rel=1e-9)
        assert claimed.epsilon <= 1.0
        assert claimed.seeded
        assert "entry" in claimed.assumptions[-1]
        spent = remote.spent()
        # Again in its folder: the same job, and nothing more to pay.
        torch.manual_seed(3)
        again = CASES[name](found.remote(), folder=tmp_path / "run")
        assert found.remote().spent() == spent == pytest.approx(stated.epsilon, rel=1e-6)
        assert all(map(torch.equal, again.state_dict().values(), there.state_dict().values()))
        assert kinds(found) == ["job", "release"]
        assert problems_of_store(found.database, logbook.read(found.database)) == ()
        assert sorted(path.name for path in (tmp_path / "jobs").iterdir()) == ["home"]


def test_every_job_of_the_catalogue_is_compared_here():
    assert {*CASES, "pate_fm"} == {recipe.key for recipe in RECIPES if recipe.beside}
    assert {*OF_USERS} == {recipe.key for recipe in RECIPES if recipe.beside and recipe.users}


OF_USERS = {
    "dp_sgd": {"cap": 2},
    "labeldp_pro": {"denoiser": labeldp_pro.alt_conv(8), "bound": labeldp_pro.NormBound(0.3)},
}


@pytest.mark.slow
@pytest.mark.parametrize("rows", [np.arange(ROWS), np.arange(ROWS)[::-1][:150]], ids=["all", "some, in another order"])
@pytest.mark.parametrize("name", OF_USERS)
def test_a_descent_for_users_gives_the_same_model_as_in_process(name, rows, tmp_path):
    def descend(vault, **more):
        torch.manual_seed(3)
        given = {"epsilon": 1.0, "delta": DELTA, "steps": 6, "batch_size": 20, **OF_USERS[name], **more}
        return labeldp_pro.train(network(), FEATURES[rows.copy()], vault, **given)

    with running(tmp_path, users="whose") as found:
        here_vault = found.source.seal(rows)
        here, remote = descend(here_vault), found.remote([names(ROWS)[row] for row in rows])
        there = descend(remote, folder=tmp_path / "run")
        for one, other in zip(here.state_dict().values(), there.state_dict().values(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        stated, served = here_vault.certificate(DELTA), remote.service_certificate(DELTA)
        for claimed in (remote.certificate(DELTA), served):
            assert claimed.unit == stated.unit == ONE_USER
            assert claimed.epsilon == pytest.approx(stated.epsilon, rel=1e-9)
        # Users without a row in the question have paid nothing.
        paid = sum(group.rows for group in served.groups if group.queries)
        assert paid == len(here_vault.users)
        assert kinds(found) == ["job", "release"]
        assert problems_of_store(found.database, logbook.read(found.database)) == ()


@pytest.mark.slow
@pytest.mark.parametrize("rows", [np.arange(ROWS), np.arange(ROWS)[::-1][:150]], ids=["all", "some"])
def test_a_job_is_refused_where_rows_belong_to_others_than_was_served(rows, tmp_path):
    """As many users with as many rows, and the labels as they were: only whose each is has changed."""
    with running(tmp_path, users="whose") as found:
        remote, table = found.remote([names(ROWS)[row] for row in rows]), pq.read_table(tmp_path / "t.parquet")
        whose = table.column("whose").to_pylist()
        for place in range(0, 200, 6):
            whose[place], whose[place + 3] = whose[place + 3], whose[place]
        pq.write_table(table.set_column(2, "whose", pa.array(whose)), tmp_path / "t.parquet")
        with pytest.raises(ServiceError, match="changed since it was served"):
            labeldp_pro.train(network(), FEATURES[rows.copy()], remote, epsilon=1.0, delta=DELTA, steps=2, batch_size=9)
        assert remote.spent() == 0


@pytest.mark.slow
def test_teachers_vote_beside_the_labels(tmp_path):
    few = pate.Ballot(teachers=20, queries=12, responses=6)
    with running(tmp_path) as found:
        ask = lambda vault, **more: pate.label(  # noqa: E731
            lambda rows: ridge_teachers(FEATURES, FEATURES[rows], CLASSES),
            vault,
            epsilon=4.0,
            delta=DELTA,
            ballot=few,
            **more,
        )
        here, remote = ask(found.source.seal()), found.remote()
        there = ask(remote, folder=tmp_path / "run")
        np.testing.assert_array_equal(here.rows, there.rows)
        np.testing.assert_array_equal(here.classes, there.classes)
        assert there.certificate.epsilon == here.certificate.epsilon
        assert remote.spent() == pytest.approx(here.certificate.epsilon, rel=1e-6)


def killed_at(found, vault, step, **more):
    """Train, with the job's process killed when its draw of this step has begun; which draws were begun."""
    begin, begun = found.jobs._store.begin, []

    def counted(dataset, plan, number, index, most):
        begin(dataset, plan, number, index, most)
        begun.append(index)
        if len(begun) == step + 1:
            (job,) = found.jobs._running.values()
            os.kill(job.process.pid, signal.SIGKILL)

    found.jobs._store.begin = counted
    try:
        train(vault, **more)
    finally:
        found.jobs._store.begin = begin
    return begun


def hostile_jobs(found, count, seed):
    """Send so many jobs with something wrong in each; how each of them ended."""
    from tests.service.hostile import WRONG, Fuzzer, changed, places

    remote, sent, choose = found.remote(), [], random.Random(seed)
    exchange = remote._connection.exchange

    def kept(header, schema, batches):
        if header["do"] == "job":
            sent.append((header, np.concatenate([wire.from_batch(schema, each)["byte"] for each in batches()])))
        return exchange(header, schema, batches)

    remote._connection.exchange = kept
    train(remote)
    ((header, content),) = sent
    fuzzer, ended = Fuzzer(found.connection(), header["rows"], seed), []
    for number in range(count):
        told, bytes_ = {**header, "request": f"{seed} {number}"}, content.copy()
        kind = choose.randrange(8)
        if kind < 5:
            told = changed(told, choose.choice([path for path in places(told) if path]), choose.choice(WRONG))
        elif kind == 5:
            bytes_[choose.randrange(min(len(bytes_), 400))] ^= choose.randrange(1, 256)
        elif kind == 6:
            bytes_ = bytes_[: choose.randrange(1, len(bytes_))]
        else:
            told = {
                "do": choose.choice(["job", "fetch", "bind"]), "dataset": told["dataset"],
                "request": choose.choice(WRONG), "delta": choose.choice(WRONG),
            }  # fmt: skip
        batch = wire.to_batch(wire.arrow_schema({"byte": ("uint8", None)}), {"byte": bytes_})
        ended.append(fuzzer.exchange(json.dumps(told, allow_nan=True).encode(), {}, batch))
    while found.jobs._running:
        time.sleep(0.1)
    return ended


@pytest.mark.slow
def test_a_killed_process_goes_on_and_draws_nothing_twice(tmp_path):
    with running(tmp_path) as found:
        remote = found.remote()
        begun = killed_at(found, remote, 4)
        assert len(begun) == len(set(begun)) > 4
        assert kinds(found) == ["job", "release"]
        assert remote.spent() == pytest.approx(1.0, rel=1e-3)


@pytest.mark.slow
def test_jobs_with_something_wrong_end_in_a_sentence_and_cost_what_is_logged(tmp_path):
    from tests.service.hostile import KINDS

    with running(tmp_path) as found:
        outcomes = {kind for kind, _ in hostile_jobs(found, 20, seed=3)}
        assert outcomes <= {*KINDS, "ok"}
        assert "message" in outcomes
        assert problems_of_store(found.database, logbook.read(found.database)) == ()


@pytest.mark.slow
def test_a_service_that_was_stopped_goes_on_with_its_jobs(tmp_path):
    with running(tmp_path) as found:
        remote, begin, began = found.remote(), found.jobs._store.begin, []

        def slow(*given):
            began.append(given)
            if len(began) == 3:
                found.jobs._closing = True
                (job,) = found.jobs._running.values()
                job.process.kill()
            begin(*given)

        found.jobs._store.begin = slow
        given = {"epsilon": 1.0, "delta": DELTA, "steps": 6, "batch_size": 40, "folder": tmp_path / "run"}
        ended = []
        client = threading.Thread(target=lambda: ended.append(labeldp_pro.train(network(), FEATURES, remote, **given)))
        client.start()
        for _ in range(1200):
            if len(began) >= 3 and not found.jobs._running:
                break
            time.sleep(0.05)
        assert kinds(found) == ["job"]
        # Another server in the same folder; the client, which asks on, gets the model.
        found.server._jobs = Jobs(found.engine, tmp_path / "jobs", Limits(memory=16 << 30))
        client.join(timeout=120)
        assert len(ended) == 1
        assert kinds(found) == ["job", "release"]
        assert problems_of_store(found.database, logbook.read(found.database)) == ()


@pytest.mark.slow
def test_a_job_that_fails_when_it_was_paid_for_stays_charged(tmp_path):
    with running(tmp_path) as found:
        remote = found.remote()

        def broken(*given):
            raise RuntimeError("the disk is full")

        found.jobs._store.begin = broken
        with pytest.raises(ServiceError, match="what it was charged stays charged"):
            train(remote)
        assert remote.spent() == pytest.approx(1.0, rel=1e-3)
        assert kinds(found) == ["job", "job ended"]
        assert problems_of_store(found.database, logbook.read(found.database)) == ()


@pytest.mark.slow
@pytest.mark.parametrize(("fails", "state"), [(1, "done"), (99, "failed")])
def test_a_result_that_cannot_be_stored_is_tried_again_and_then_a_failure(tmp_path, monkeypatch, fails, state):
    monkeypatch.setattr(jobs_module, "_PAUSES", (0.01, 0.01))
    with running(tmp_path) as found:
        remote, end, tried = found.remote(), found.jobs._end, []

        def full(job, state, why, said, release):
            tried.append(state)
            if release is not None and len(tried) <= fails:
                # In the middle of the transaction, which leaves nothing behind.
                end(job, state, why, {**said, "assumptions": {1}}, release)
            end(job, state, why, said, release)

        found.jobs._end = full
        if state == "done":
            train(remote)
        else:
            with pytest.raises(ServiceError, match="could not be stored; what it was charged stays charged"):
                train(remote)
        assert tried == (["done"] * 2 if state == "done" else ["done"] * 3 + ["failed"])
        assert kinds(found) == ["job", "release" if state == "done" else "job ended"]
        assert remote.spent() == pytest.approx(1.0, rel=1e-3)
        assert problems_of_store(found.database, logbook.read(found.database)) == ()
        assert sorted(path.name for path in (tmp_path / "jobs").iterdir()) == ["home"]


@pytest.mark.slow
@pytest.mark.parametrize("by", ["analyst", "time"])
def test_a_job_that_is_stopped_gives_the_weights_so_far(tmp_path, by):
    with running(tmp_path) as found:
        remote, begin = found.remote(), found.jobs._store.begin

        def stopping(dataset, plan, number, index, most):
            begin(dataset, plan, number, index, most)
            (job,) = found.jobs._running.values()
            if index == 3 and by == "analyst":
                assert found.connection().act("stop", dataset=dataset, request=job.line["id"])["state"] == "running"
            elif index == 3:
                job.begun -= found.jobs.limits.seconds + 1

        found.jobs._store.begin = stopping
        model = train(remote)
        why = "stopped by its analyst" if by == "analyst" else "ran longer than the 3600 s"
        assert why in remote.certificate(DELTA).assumptions[-1]
        assert "after 3 of 6 steps" in remote.certificate(DELTA).assumptions[-1]
        assert any(not torch.equal(*each) for each in zip(model.parameters(), network().parameters(), strict=True))
        assert kinds(found) == ["job", "release"]
        # All of it stays paid.
        assert remote.spent() == pytest.approx(1.0, rel=1e-3)


@pytest.mark.slow
def test_no_query_is_answered_under_the_id_of_a_job(tmp_path):
    """It took the place of the job's release, which was lost, and was handed out with the job's certificate."""
    with running(tmp_path) as found:
        remote, begin, refused = found.remote(), found.jobs._store.begin, []
        connection = found.connection()
        named = bound(connection, ROWS)

        def asking(dataset, plan, number, index, most):
            begin(dataset, plan, number, index, most)
            if index == 2:
                (job,) = found.jobs._running.values()
                try:
                    ask(connection, header(named, RandomizedResponse(5.0, 3), request=job.line["id"])[0])
                except WireError as refusal:
                    refused.append(str(refusal))

        found.jobs._store.begin = asking
        train(remote)
        assert len(refused) == 1
        assert "is a job; give this question an id of its own" in refused[0]
        assert kinds(found) == ["job", "release"]
        assert remote.spent() == pytest.approx(1.0, rel=1e-3)


@pytest.mark.slow
def test_what_is_too_much_is_refused_and_costs_nothing(tmp_path):
    with running(tmp_path, grant=Budget(0.5, DELTA), limits=Limits(steps=100, parameters=60, memory=16 << 30)) as found:
        remote = found.remote()
        with pytest.raises(WireError, match="at most 60 are allowed"):
            train(remote, epsilon=0.1)
        wide = found.remote()
        found.jobs.limits = Limits(steps=5, memory=16 << 30)
        with pytest.raises(WireError, match="the job has 6 steps; at most 5"):
            train(wide, epsilon=0.1)
        found.jobs.limits = Limits(memory=16 << 30)
        # The vault here would refuse it, too: asked as somebody who lies about it.
        liar = found.remote()
        liar._budget = PLENTY
        with pytest.raises(BudgetExceededError):
            train(liar, epsilon=1.0)
        assert found.remote().spent() == 0
        assert kinds(found) == []
        assert sorted(path.name for path in (tmp_path / "jobs").iterdir()) == ["home"]


def test_no_more_is_kept_of_what_is_sent_than_may_run_at_once(tmp_path):
    """Whoever sent a hundred jobs at once filled the owner's disk with a hundred times the memory of one, unpaid."""
    with running(tmp_path) as found:
        task = tasks.of_descent(
            {"model": network(), "inputs": FEATURES, "delta": DELTA, "batch_size": 40, "bound": None, "denoiser": None,
             "loss": labeldp_pro.cross_entropy, "optimizer": None, "schedule": None, "radius": None, "cap": None,
             "average": None, "seed": 0, "precision": None}, 1.0, 6)  # fmt: skip
        given = {"dataset": NAME, "rows": found.remote()._account.rows, "recipe": task.recipe,
                 "settings": task.settings, "charge": []}  # fmt: skip
        more, sent = threading.Event(), []

        def parts():
            sent.append(1)
            yield memoryview(b"1")
            more.wait(20)
            raise WireError("it ended")

        def send(number):
            with pytest.raises(WireError, match="it ended"):
                found.jobs.send(found.access.person("ann"), PLENTY, {**given, "request": f"r{number}"}, parts())

        senders = [threading.Thread(target=send, args=(number,)) for number in range(2)]
        for each in senders:
            each.start()
        while len(sent) < len(senders):
            time.sleep(0.01)
        for number in range(10):
            with pytest.raises(BusyError, match="nothing was charged"):
                found.jobs.send(found.access.person("ann"), PLENTY, {**given, "request": f"more {number}"}, parts())
        assert len(list((tmp_path / "jobs").iterdir())) == 3
        more.set()
        for each in senders:
            each.join()
        assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["home"]
        send("last")


def test_a_process_that_goes_on_knows_that_it_was_paid_for():
    """From then on errors are told without their words, which a process that began anew still gave away."""

    class Told:
        def ask(self, **_):
            return {"holds": True}

    charges = worker.Charges(Told())
    assert charges.holds("anything")
    assert charges.paid


def test_no_code_is_taken():
    class Own(nn.Module):
        pass

    with pytest.raises(ValueError, match="takes no code"):
        networks.describe(nn.Sequential(nn.Linear(2, 2), Own()))
    for odd in (
        {"layer": "lambda"},
        {"zoo": "os.system", "arguments": {}},
        [[[[[[[[[[]]]]]]]]]],
        {"layer": "linear", "inputs": -1},
    ):
        with pytest.raises(WireError):
            networks.checked_network("network", odd)
    with pytest.raises(WireError, match="not declared"):
        tasks.checked("dp_sgd", {"code": "1"}, 10, Limits())


def test_a_service_without_jobs_says_so(tmp_path):
    from tests.service.servicehelp import labels

    vault, _ = labels(rows=ROWS)
    with service(vault) as found:
        remote = found.remote()
        with pytest.raises(WireError, match="no jobs are taken here"):
            train(remote)
        assert remote.spent() == 0
