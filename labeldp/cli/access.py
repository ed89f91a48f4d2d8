"""Run `labeldp access` and `labeldp log`: who may ask a service, and what it has answered."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labeldp.cli.budget import store_class, with_store
from labeldp.cli.options import DELTA, EPSILON, OptionError
from labeldp.cli.serve import log_key, with_log_key

if TYPE_CHECKING:
    from labeldp.budgets.tables import Database
    from labeldp.service.access import Access

_ROLES = ("owner", "analyst", "auditor")


@click.group()
def access() -> None:
    """Say who may query a service, and how much.

    A service knows people, their tokens, and what each analyst may spend on each data set. These commands work on the
    store itself, so they are for whoever has its key: the data owner. Each of them leaves an entry in the log.
    """


@access.command()
@click.argument("name")
@click.option("--role", type=click.Choice(_ROLES), required=True, help="Analysts spend, auditors read the log, owners "
              "read log and metrics.")  # fmt: skip
@with_log_key
@with_store
def add(name: str, role: str, log_key_file: Path | None, where: str, key: Path | None) -> None:
    """Add a person."""
    database, people = _opened(where, key)
    people.add(name, role)
    _note(database, where, log_key_file, kind="person", who=name, role=role)
    click.echo(f"{name}: {role}")


@access.command()
@click.argument("name")
@click.option("--days", type=click.FloatRange(0, 3660, min_open=True), default=90.0, show_default=True,
              help="How long it is valid.")  # fmt: skip
@with_log_key
@with_store
def token(name: str, days: float, log_key_file: Path | None, where: str, key: Path | None) -> None:
    """Print a new token of NAME. It is shown this once; the store keeps a keyed hash of it."""
    database, people = _opened(where, key)
    made = people.issue(name, days)
    _note(database, where, log_key_file, kind="token", who=name, token=made.split(".")[1], days=days)
    click.echo(made)


@access.command()
@click.argument("token_id")
@with_log_key
@with_store
def revoke(token_id: str, log_key_file: Path | None, where: str, key: Path | None) -> None:
    """Make a token invalid, by its id.

    The id is the part of the token between its two dots; labeldp access list shows it.
    """
    database, people = _opened(where, key)
    people.revoke(token_id)
    _note(database, where, log_key_file, kind="revoked", token=token_id)
    click.echo(f"{token_id}: revoked; a running service knows within a second or two")


@access.command()
@click.argument("name")
@click.argument("dataset")
@click.option("--epsilon", type=EPSILON, required=True, help="The most that all queries of NAME may cost one label.")
@click.option("--delta", type=DELTA, help="[default: that of the data set's budget]")
@with_log_key
@with_store
def grant(
    name: str,
    dataset: str,
    epsilon: float,
    delta: float | None,
    log_key_file: Path | None,
    where: str,
    key: Path | None,
) -> None:
    """Allow the analyst NAME to spend on DATASET.

    A grant cannot be changed later, and it holds within the budget of all analysts together.
    """
    from labeldp.core.ledger import Budget

    database, people = _opened(where, key)
    total = store_class().open(where, key=key, create=False).dataset(dataset).budget
    settled = total.delta if delta is None else delta
    people.grant(dataset, name, Budget(epsilon, settled))
    _note(database, where, log_key_file, kind="grant", who=name, dataset=dataset, epsilon=epsilon, delta=settled)
    click.echo(f"{name} may spend epsilon {epsilon:g}, delta {settled:g} on {dataset!r}; it cannot be changed")


@access.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_store
def listing(as_json: bool, where: str, key: Path | None) -> None:
    """Show people, tokens and grants; no token can be shown again."""
    _, people = _opened(where, key)
    found = {
        "people": [vars(each) for each in people.people()],
        "tokens": [vars(each) for each in people.tokens()],
        "grants": [
            {"dataset": dataset, "person": name, "epsilon": budget.epsilon, "delta": budget.delta}
            for dataset, name, budget in people.grants()
        ],
    }
    if as_json:
        click.echo(json.dumps(found))
        return
    for each in found["people"]:
        click.echo(f"{each['name']}: {each['role']}")
    for each in found["grants"]:
        budget = f"epsilon {each['epsilon']:g}, delta {each['delta']:g}"
        click.echo(f"  {each['person']} may spend {budget} on {each['dataset']!r}")
    for each in found["tokens"]:
        state = f"revoked {each['revoked']}" if each["revoked"] else f"expires {each['expires']}"
        click.echo(f"  token {each['id']} of {each['person']}, {state}")


@access.command()
@click.argument("file", type=click.Path(path_type=Path))
@with_store
def backup(file: Path, where: str, key: Path | None) -> None:
    """Copy a store in a file while a service uses it. Keep the store's key and the log's key apart from it.

    To restore, stop the service and put the copy in the store's place. The service then finds, by its witness, that
    releases made since are missing, and refuses to start until it is told why with --accept-rollback.
    """
    if "://" in where:
        raise OptionError("a store in PostgreSQL is backed up with its own tools: pg_dump, or a standby")
    _opened(where, key)
    if file.exists():
        raise OptionError(f"{str(file)!r} exists already and is never overwritten; choose another name")
    source = sqlite3.connect(f"file:{Path(where).expanduser().absolute()}?mode=ro", uri=True)
    target = sqlite3.connect(file)
    try:
        file.chmod(0o600)
        source.backup(target)
    finally:
        target.close()
        source.close()
    click.echo(f"{file}: a copy of {where}")


@access.command()
@click.argument("file", type=click.Path(path_type=Path))
@with_store
def page(file: Path, where: str, key: Path | None) -> None:
    """Write a page for the owner to FILE.

    It shows what each analyst has spent over time, the tokens, the certificates and the log.

    It is one HTML file that needs no network and runs nothing. You can write it again at any time, also while the
    service runs.
    """
    database, _ = _opened(where, key)
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise OptionError(f"{str(file)!r} is no file in a folder that is there; name one, such as owner.html")
    try:
        from labeldp.service.owner import write_page
    except ImportError as error:
        raise OptionError(str(error)) from None
    write_page(database, file)
    click.echo(f"{file}: as of now; open it in a browser")


@click.group("log")
def logs() -> None:
    """Read and check the log of a service.

    It lists every release, grant and token. Its entries are chained by hashes and signed.
    """


_SOURCE = click.argument("file", required=False, type=click.Path(path_type=Path))


@logs.command()
@_SOURCE
@click.option("--signer", multiple=True, metavar="KEY", help="Public key, or its file, that must have signed.")
@with_store
def verify(file: Path | None, signer: tuple[str, ...], where: str, key: Path | None) -> None:
    """Check a whole log.

    Give an exported FILE; without one, the log of the store is checked together with its releases and charges. If
    something is wrong, the exit code is 1.
    """
    from labeldp.results.signing import public_key
    from labeldp.service import log, logbook
    from labeldp.service.logbook import problems_of_store

    signers = [public_key(each) for each in signer]
    lines = log.load(file) if file is not None else logbook.read(_opened(where, key)[0])
    problems = log.verify(lines, signers)
    if file is None and not problems:
        problems = problems_of_store(_opened(where, key)[0], lines)
    for problem in problems:
        click.echo(f"PROBLEM: {problem}", err=True)
    if problems:
        raise click.exceptions.Exit(1)
    head = f", the last {lines[-1].hash[:16]}… by {lines[-1].signer}" if lines else ""
    click.echo(f"the log holds: {len(lines)} entries{head}")


@logs.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--vault", metavar="ADDRESS", help="Fetch it from a service, as an auditor or owner, with --token.")
@click.option("--token", envvar="LABELDP_TOKEN", show_envvar=True, help="Your token from labeldp access token.")
@click.option("--root-certs", type=click.Path(path_type=Path), help="PEM file of the authority that signed the "
              "service's certificate.")  # fmt: skip
@click.option("--client-cert", type=click.Path(path_type=Path), help="PEM file with your own certificate and its "
              "private key, if the service wants one.")  # fmt: skip
@with_store
def export(
    file: Path,
    vault: str | None,
    token: str | None,
    root_certs: Path | None,
    client_cert: Path | None,
    where: str,
    key: Path | None,
) -> None:
    """Write the log to FILE.

    This is for those who have no access to the store; labeldp log verify FILE checks it.
    """
    from labeldp.service import log

    if file.exists():
        raise OptionError(f"{str(file)!r} exists already and is never overwritten; choose another name")
    if vault is not None:
        from labeldp.service.client import Connection, read_log

        certs, own = (None if each is None else each.read_bytes() for each in (root_certs, client_cert))
        lines = read_log(Connection(vault, token or "", certs, client_cert=own))
    else:
        from labeldp.service import logbook

        lines = logbook.read(_opened(where, key)[0])
    log.write(file, lines)
    click.echo(f"{file}: {len(lines)} entries")


@logs.command()
@with_store
def show(where: str, key: Path | None) -> None:
    """Print the entries, one JSON object to a line."""
    from labeldp.service import logbook

    for line in logbook.read(_opened(where, key)[0]):
        click.echo(line.entry)


def _opened(where: str, key: Path | None) -> tuple[Database, Access]:
    store_class()
    from labeldp.service.access import Access
    from labeldp.service.tables import open_service

    database = open_service(where, key)
    return database, Access(database)


def _note(database: Database, where: str, given: Path | None, **entry: Any) -> None:
    """Leave an entry in the log, and let the witness beside the store see it, where there is one."""
    from labeldp.service import logbook

    place = logbook.note(database, log_key(where, given), **entry)
    witness = logbook.Witness(Path(f"{Path(where).expanduser()}.witness"))
    if "://" not in where and witness.path.exists():
        witness.note(place)
