"""Many at once, and killed: nothing overspent, drawn twice or lost. Campaigns are in tests/stress/test_service.py."""

import pytest

pytest.importorskip("sqlalchemy", reason="a service keeps its books in a database")

from labeldp.core.ledger import Budget
from labeldp.results.signing import SigningKey
from tests.budgets.conftest import database, place, server  # noqa: F401
from tests.processes import CONTEXT
from tests.service.crowds import campaign, left, prepared, race, started

KEY = bytes(range(32))


@pytest.mark.slow
def test_clients_of_two_servers_together_spend_no_more_than_there_is(place, tmp_path):  # noqa: F811
    overspent(place, tmp_path, clients=4, threads=5, tries=2)


def overspent(where, folder, clients, threads, tries):
    """Let clients of two servers race for a budget of 17 releases; none is overspent and none is left."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="ldp-") as short:
        (token,) = prepared(where, KEY, Budget(1.7), Budget(5.0))
        SigningKey.new().write(folder / "log.key")
        addresses = [f"grpc+unix://{short}/{number}" for number in range(2)]
        servers = [started(where, KEY, address, folder / "log.key") for address in addresses]
        pipes, crowd = [], []
        try:
            for number in range(clients):
                heard, told = CONTEXT.Pipe(duplex=False)
                given = (addresses[number % 2], token, 0.1, tries, threads, told)
                crowd.append(CONTEXT.Process(target=race, args=given))
                crowd[-1].start()
                told.close()
                pipes.append(heard)
            answered = sum(pipe.recv() for pipe in pipes)
        finally:
            for process in (*crowd, *servers):
                process.kill()
                process.join()
    kept, charges, problems = left(where, KEY)
    assert answered == len(kept) == charges == 17
    assert problems == ()


@pytest.mark.slow
def test_killed_servers_and_clients_lose_nothing_and_draw_nothing_twice(tmp_path):
    survived(tmp_path / "budgets.db", tmp_path, kills=12, seed=1)


def survived(where, folder, kills, seed):
    """Run a campaign of kills; what came back and what is kept are the same, each once. Return the counts."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="ldp-") as short:
        (token,) = prepared(where, KEY, Budget(1e4), Budget(1e4))
        SigningKey.new().write(folder / "log.key")
        found, killed = campaign(where, KEY, short, folder / "log.key", token, kills, seed)
    kept, charges, problems = left(where, KEY)
    assert problems == ()
    # Every release that somebody saw is kept, and is the only one that was ever seen for its id.
    assert all(digests == {kept[f"request-{number}"]} for number, digests in found.items())
    assert charges == len(kept)
    assert len(found) > kills // 2
    return {"killed": killed, "requests": len(kept), "seen": len(found), "charges": charges}
