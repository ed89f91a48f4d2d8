"""Run `labeldp serve` and `labeldp health`: a vault in a process of its own, and whether it is well."""

from __future__ import annotations

import json
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labeldp.cli.budget import store_class, with_store
from labeldp.cli.keys import signing_key
from labeldp.cli.options import DELTA, EPSILON, Names, OptionError, check_range, with_delimiter

if TYPE_CHECKING:
    from labeldp.results.signing import SigningKey
    from labeldp.service.served import Served
    from labeldp.service.server import Server


def with_log_key(command: Any) -> Any:
    """Add the option that says which key signs the log."""
    return click.option(
        "--log-key", "log_key_file", type=click.Path(path_type=Path), metavar="KEY",
        help="Private key that signs the log; see labeldp keys new.  [default: the store's name and .log.key, made "
        "when it is missing]",
    )(command)  # fmt: skip


def log_key(where: str, given: Path | None) -> SigningKey:
    """Return the key that signs the log: the one that is given, or the one beside a store in a file."""
    from labeldp.results.signing import SigningKey

    if given is not None:
        found = signing_key(given)
        assert found is not None
        return found
    if "://" in where:
        raise OptionError("--log-key is missing: a store in a database has no key beside it; see: labeldp keys new")
    beside = Path(f"{Path(where).expanduser()}.log.key")
    if not beside.exists():
        SigningKey.new().write(beside)
    return SigningKey.read(beside)


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--id", "id_column", required=True, metavar="COLUMN", help="The public column that tells rows "
              "apart; analysts name rows by it.")  # fmt: skip
@click.option("--label", required=True, help="The secret column.")
@click.option("--user", metavar="COLUMN", help="Public column that says whose each row is: all labels of a user are "
              "then protected together.")  # fmt: skip
@click.option("--classes", type=Names(), help="All classes the label can take, comma-separated.")
@click.option("--range", "bounds", type=float, nargs=2, metavar="LOW HIGH", help="For labels that are numbers: the "
              "smallest and the largest a label can be.")  # fmt: skip
@click.option("--name", help="What analysts call the data set.  [default: the table's name without its ending]")
@click.option("--epsilon", type=EPSILON, help="Give the labels a budget for all analysts together, where they have "
              "none yet; see labeldp budget create.")  # fmt: skip
@click.option("--delta", type=DELTA, help="With --epsilon.  [default: a tenth of one over the rows, at most 1e-5]")
@click.option("--listen", required=True, metavar="ADDRESS", help="grpc+unix:///path/to/socket, or grpc+tls://host:port "
              "with --tls-cert and --tls-key.")  # fmt: skip
@click.option("--tls-cert", type=click.Path(path_type=Path), help="The certificate chain, as a PEM file.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="The private key of the certificate, as a PEM file.")
@click.option("--tls-clients", type=click.Path(path_type=Path), help="PEM file of an authority: clients must show a "
              "certificate that it signed, beside their token.")  # fmt: skip
@click.option("--metrics", metavar="HOST:PORT", help="Answer /metrics (Prometheus) and /health over plain HTTP here, "
              "for a collector on the same machine.")  # fmt: skip
@click.option("--per-second", type=click.FloatRange(min=0, min_open=True), default=1000.0, show_default=True,
              help="Calls that one analyst may make per second.")  # fmt: skip
@click.option("--witness", type=click.Path(path_type=Path), help="File that remembers how far the log has come; keep "
              "it out of backups.  [default: the store's name and .witness]")  # fmt: skip
@click.option("--accept-rollback", metavar="REASON", help="Serve although an older copy of the store was put back; "
              "the log will say so. Releases made since that copy are not counted.")  # fmt: skip
@with_delimiter
@with_log_key
@with_store
@click.option("--quiet", is_flag=True, help="Do not print a line of JSON for every call.")
@click.option("--jobs", type=click.IntRange(min=0), default=0, show_default=True, help="How many recipes "
              "with gradients or teachers may run here, beside the labels, at the same time.")  # fmt: skip
@click.option("--job-seconds", type=click.FloatRange(min=1), default=3600.0, show_default=True, help="How long "
              "a job may take. If it is stopped then, its analyst may have the weights so far.")  # fmt: skip
@click.option("--job-memory", type=click.FloatRange(min=0.5), default=8.0, show_default=True, help="How much "
              "memory the process of a job may use, in GiB.")  # fmt: skip
@click.option("--job-folder", type=click.Path(path_type=Path), help="The folder for jobs while they run.  [default: "
              "the store's name and .jobs]")  # fmt: skip
def serve(
    table: Path,
    id_column: str,
    label: str,
    user: str | None,
    classes: tuple[str, ...] | None,
    bounds: tuple[float, float] | None,
    name: str | None,
    epsilon: float | None,
    delta: float | None,
    listen: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_clients: Path | None,
    metrics: str | None,
    per_second: float,
    witness: Path | None,
    accept_rollback: str | None,
    delimiter: str | None,
    log_key_file: Path | None,
    where: str,
    key: Path | None,
    quiet: bool,
    jobs: int,
    job_seconds: float,
    job_memory: float,
    job_folder: Path | None,
) -> None:
    """Serve the labels of a table to analysts.

    The process owns the labels of TABLE and their budget, and releases only what mechanisms draw. Analysts query it
    with `labeldp train --vault` or `labeldp.service.RemoteVault`; you say who may with labeldp access.

    \b
    labeldp serve patients.parquet --id patient_id --label diagnosis --classes none,mild,severe \\
        --epsilon 3 --store budgets.db --listen grpc+unix:///run/labeldp/socket
    labeldp access add ann --role analyst
    labeldp access grant ann patients --epsilon 1
    labeldp access token ann --days 90
    """
    from labeldp.budgets.calibrate import usual_delta
    from labeldp.core.ledger import Budget
    from labeldp.service.served import Served
    from labeldp.service.server import check_address
    from labeldp.service.source import Source

    if bool(classes) == bool(bounds):
        raise OptionError("declare --classes, or --range where the label is a number; they are not read off the data")
    if bounds:
        check_range(bounds)
    tls = _tls(tls_cert, tls_key)
    check_address(listen, tls is not None)
    if tls_clients is not None and not listen.startswith("grpc+tls://"):
        raise OptionError(f"--tls-clients means nothing at {listen}, where nobody shows a certificate; leave it out")
    called = name or table.name.partition(".")[0]
    source = Source(str(table), label, id_column, tuple(classes or ()), bounds or None, delimiter, user)
    served = Served.of_source(called, source)
    if epsilon is not None:
        store = store_class().open(where, key=key)
        known = next((each.budget.delta for each in store.datasets() if each.name == called), None)
        settled = delta if delta is not None else usual_delta(len(served.vault)) if known is None else known
        store.create(called, served.vault, Budget(epsilon, settled))
    server = _made(
        served, where, key, listen, tls, _content(tls_clients), log_key(where, log_key_file), witness,
        accept_rollback, per_second, quiet,
        _limits(jobs, job_seconds, job_memory), _job_folder(where, job_folder),
    )  # fmt: skip
    pages = _pages(server, metrics)
    click.echo(
        f"serving {called!r}, {len(served.vault):,} labels, at {listen}; log signed by {server.engine.key.public}"
    )
    _until_stopped()
    if pages is not None:
        pages.shutdown()
    server.stop()
    click.echo("stopped; all that was charged is kept")


def _made(
    served: Served,
    where: str,
    key: Path | None,
    listen: str,
    tls: tuple[bytes, bytes] | None,
    clients: bytes | None,
    signer: SigningKey,
    witness: Path | None,
    accept_rollback: str | None,
    per_second: float,
    quiet: bool,
    limits: Any,
    job_folder: Path | None,
) -> Server:
    """Return the server, after the store was found to be as it was left."""
    from labeldp.service import logbook
    from labeldp.service.access import Access, RateLimit
    from labeldp.service.engine import Engine
    from labeldp.service.metrics import Metrics, to_stderr
    from labeldp.service.server import Server
    from labeldp.service.tables import open_service

    database = open_service(where, key)
    seen = _witness(where, witness)
    problem = "" if seen is None else seen.problem(database)
    if problem and not accept_rollback:
        raise OptionError(f"{problem}; or say why it must be so with --accept-rollback REASON")
    entry: dict[str, Any] = {"kind": "opened", "dataset": served.name}
    if problem:
        entry = {"kind": "restored", "dataset": served.name, "reason": accept_rollback, "found": problem}
    engine = Engine(database, [served], signer, seen)
    place = logbook.note(database, signer, **entry)
    if seen is not None:
        seen.note(place)
    limit = RateLimit(per_second, max(10, int(2 * per_second)))
    jobs = None
    if limits is not None and job_folder is not None:
        from labeldp.service.jobs import Jobs

        jobs = Jobs(engine, job_folder, limits)
    return Server(
        engine, Access(database), listen, tls=tls, clients=clients, limit=limit,
        metrics=Metrics() if quiet else to_stderr(), jobs=jobs,
    )  # fmt: skip


def _limits(at_once: int, seconds: float, memory: float) -> Any:
    """Return what jobs may ask for; None where none are taken."""
    from labeldp.service.limits import Limits

    return None if at_once == 0 else Limits(at_once, seconds=seconds, memory=int(memory * 2**30))


def _job_folder(where: str, given: Path | None) -> Path | None:
    if given is not None or "://" in where:
        return given or Path("labeldp-jobs")
    return Path(f"{Path(where).expanduser()}.jobs")


def _witness(where: str, given: Path | None) -> Any:
    from labeldp.service.logbook import Witness

    if given is not None:
        return Witness(given)
    # Several servers of one database would each have seen another end.
    return None if "://" in where else Witness(Path(f"{Path(where).expanduser()}.witness"))


def _content(file: Path | None) -> bytes | None:
    return None if file is None else file.read_bytes()


def _tls(cert: Path | None, key: Path | None) -> tuple[bytes, bytes] | None:
    if (cert is None) != (key is None):
        raise OptionError("--tls-cert and --tls-key belong together; give both, or neither")
    return None if cert is None or key is None else (cert.read_bytes(), key.read_bytes())


def _until_stopped() -> None:
    """Wait for an interruption or a termination."""
    stopped = threading.Event()
    if threading.current_thread() is threading.main_thread():
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, lambda *_: stopped.set())
    stopped.wait()


def _pages(server: Server, where: str | None) -> ThreadingHTTPServer | None:
    """Answer /metrics and /health; nothing else."""
    if where is None:
        return None
    host, _, port = where.rpartition(":")
    if not host or not port.isdigit():
        raise OptionError(f"--metrics {where!r} is not HOST:PORT; give, say, 127.0.0.1:9464")

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            pages = {"/metrics": server.metrics.text, "/health": lambda: '{"healthy": true}\n'}
            page = pages.get(self.path)
            body = b"" if page is None else page().encode()
            self.send_response(404 if page is None else 200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Write nothing: calls are logged elsewhere."""

    found = ThreadingHTTPServer((host, int(port)), Pages)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    return found


@click.command()
@click.argument("address")
@click.option("--root-certs", type=click.Path(path_type=Path), help="PEM file of the authority that signed the "
              "service's certificate.")  # fmt: skip
@click.option("--client-cert", type=click.Path(path_type=Path), help="PEM file with your own certificate and its "
              "private key, if the service wants one.")  # fmt: skip
def health(address: str, root_certs: Path | None, client_cert: Path | None) -> None:
    """Check that a service is running.

    The exit code is 0 if it is, and 2 with a sentence if not.
    """
    from labeldp.service.client import Connection, ServiceError

    try:
        known = _content(root_certs), 1, _content(client_cert)
        found = Connection(address, "", *known).act("health")
    except ServiceError as error:
        raise OptionError(str(error)) from None
    click.echo(json.dumps(found))
