"""`labeldp budget`: budgets of data sets, kept in a file or a database."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labeldp.cli.options import OptionError, check_range, declared, delimiter_of

if TYPE_CHECKING:
    from labeldp.budgets.store import Account, BudgetStore
    from labeldp.budgets.tables import DataSet, Entry


def with_store(command: Any) -> Any:
    """The options that say which store is meant."""
    where = click.option(
        "--store", "where", envvar="LABELDP_STORE", default="budgets.db", show_default=True, show_envvar=True,
        help="A file, or postgresql://user@host/database.",
    )  # fmt: skip
    key = click.option(
        "--key", envvar="LABELDP_STORE_KEY", show_envvar=True, type=click.Path(path_type=Path),
        help="File that holds the store's key.  [default: the store's name and .key]",
    )  # fmt: skip
    return where(key(command))


@click.group()
def budget() -> None:
    """Budgets that outlive a process: what may be spent on a data set's labels, and what was.

    A data set is known by a keyed hash of its labels, never by the labels. A query is written down before it is run,
    by however many processes and people: together they cannot overspend.
    """


@budget.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--name", required=True, help="What the data set is called from now on.")
@click.option("--label", required=True, help="The secret column.")
@click.option("--classes", help="All classes the label can take, comma-separated.")
@click.option("--range", "bounds", type=float, nargs=2, metavar="LOW HIGH", help="For labels that are numbers: between "
              "which they lie, as labeldp train --task regression has it.")  # fmt: skip
@click.option("--epsilon", type=float, required=True, help="The most that all queries together may cost one label.")
@click.option("--delta", type=float, default=0.0, show_default=True, help="Needed for queries with Gaussian noise.")
@click.option("--users", help="Column that says whose each row is: protect all labels of a user together.")
@click.option("--delimiter", help="Of a CSV file.  [default: a comma; a tab for .tsv]")
@with_store
def create(
    table: Path,
    name: str,
    label: str,
    classes: str | None,
    bounds: tuple[float, float] | None,
    epsilon: float,
    delta: float,
    users: str | None,
    delimiter: str | None,
    where: str,
    key: Path | None,
) -> None:
    """Give the labels of a table a budget, once and for all.

    \b
    labeldp budget create patients.parquet --name patients --label diagnosis \\
        --classes none,mild,severe --epsilon 2
    """
    from labeldp.core.ledger import Budget
    from labeldp.data.door import seal_column
    from labeldp.mechanisms.users import UserVault

    store_of = store_class()
    allowed, delimiter = Budget(epsilon, delta), delimiter_of(delimiter)
    if bounds is None:
        vault = seal_column(table, label, declared(classes), users=users, delimiter=delimiter)
    else:
        if classes or users:
            raise OptionError("--range is for numbers: leave out --classes and --users, or leave out --range")
        check_range(bounds)
        vault = seal_column(table, label, bounds=bounds, delimiter=delimiter)
    grouping = vault.users if isinstance(vault, UserVault) else None
    kept = store_of.open(where, key=key).create(name, vault, vault.num_classes, allowed, users=grouping)
    click.echo(f"{name}: {_described(kept)}. It cannot be changed; keep the store and its key.")


@budget.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
@with_store
def show(name: str | None, as_json: bool, where: str, key: Path | None) -> None:
    """What may be spent on each data set, and what was (on NAME alone, if given)."""
    store = store_class().open(where, key=key, create=False)
    kept = store.datasets() if name is None else (store.dataset(name),)
    if as_json:
        click.echo(json.dumps([_dataset_values(store, dataset) for dataset in kept]))
        return
    click.echo("\n".join(_dataset_words(store, dataset) for dataset in kept) or "no data set has a budget yet")


@budget.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
@with_store
def history(name: str, as_json: bool, where: str, key: Path | None) -> None:
    """Show who queried a data set, when, with what, and what came of it."""
    entries = store_class().open(where, key=key, create=False).history(name)
    if as_json:
        click.echo(json.dumps([_entry_values(entry) for entry in entries]))
        return
    click.echo("\n".join(map(_entry_words, entries)) or f"{name!r} has not been queried yet")


@budget.command("key")
@click.argument("file", type=click.Path(path_type=Path))
def make_key(file: Path) -> None:
    """Make the key of a store that a team shares (a store in a file makes its own)."""
    from labeldp.budgets.keys import StoreKeyError
    from labeldp.budgets.keys import make_key as made

    if file.exists():
        raise StoreKeyError(f"{str(file)!r} is there already and was left alone; a second key would open nothing")
    made(file)
    click.echo(f"{file}: a new key. Give it to those who may spend, and keep a copy: without it the store is useless.")


def account_of(
    source: Path, label: str, classes: list[str], delimiter: str | None, where: str, key: Path | None, note: str
) -> Account:
    """The account of a table's labels in a store, in which they must have a budget."""
    from labeldp.data.door import seal_column

    store = store_class().open(where, key=key, create=False)
    return store.account(seal_column(source, label, classes, delimiter=delimiter), len(classes), note=note)


def store_class() -> type[BudgetStore]:
    """`BudgetStore`, or what to install for it."""
    try:
        from labeldp.budgets.store import BudgetStore
    except ImportError as error:
        raise ValueError(str(error)) from None
    return BudgetStore


def _described(kept: DataSet) -> str:
    whose = f" of {kept.units:,} users" if kept.grouping else ""
    budget = f"epsilon {kept.budget.epsilon:g}, delta {kept.budget.delta:g} for {kept.unit.protects}"
    return f"{kept.num_rows:,} labels{whose} in {kept.num_classes} classes, with a budget of {budget}"


def _dataset_words(store: BudgetStore, kept: DataSet) -> str:
    from labeldp.results.words import at_most

    spent, charges = at_most(store.epsilon(kept.name)), f"{kept.charges} charge{'' if kept.charges == 1 else 's'}"
    return (
        f"{kept.name}: {_described(kept)}\n"
        f"  spent    epsilon {spent} of {kept.budget.epsilon:g}, in {charges}\n"
        f"  created  {kept.created} by {kept.created_by}; known as {kept.fingerprint[:16]}"
    )


def _dataset_values(store: BudgetStore, kept: DataSet) -> dict[str, Any]:
    return {
        "name": kept.name, "fingerprint": kept.fingerprint, "rows": kept.num_rows, "classes": kept.num_classes,
        "protects": kept.unit.protects, kept.unit.counted: kept.units, "epsilon": _plain(kept.budget.epsilon),
        "delta": kept.budget.delta, "spent": _plain(store.epsilon(kept.name)), "charges": kept.charges,
        "created": kept.created, "created_by": kept.created_by,
    }  # fmt: skip


def _entry_words(entry: Entry) -> str:
    from labeldp.results.words import at_most

    who = f"{entry.who}@{entry.host}" if entry.host else entry.who
    query = f"{entry.times} × {entry.event} at {entry.rows:,} rows"
    return f"{entry.number:>4}  {entry.time}  {who}  {query}  epsilon so far {at_most(entry.epsilon)}  {entry.note}"


def _entry_values(entry: Entry) -> dict[str, Any]:
    from labeldp.core.events import event_to_json

    return {
        "number": entry.number, "time": entry.time, "who": entry.who, "host": entry.host, "note": entry.note,
        "event": event_to_json(entry.event), "times": entry.times, "rows": entry.rows,
        "epsilon": _plain(entry.epsilon), "receipt": entry.query_id,
    }  # fmt: skip


def _plain(value: float) -> float | str:
    return "infinity" if math.isinf(value) else value
