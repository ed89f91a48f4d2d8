"""Run `labeldp budget`: budgets of data sets, kept in a file or a database."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labeldp.budgets.keys import shown_address
from labeldp.cli.keys import put_signature, signing_key, with_signature
from labeldp.cli.options import EPSILON, Names, OptionError, check_range, declared, refuse_idle, with_delimiter

if TYPE_CHECKING:
    from labeldp.budgets.store import Account, BudgetStore
    from labeldp.budgets.tables import DataSet, Entry
    from labeldp.core.vault import LabelVault

# The name of a store where none is given.
BESIDE = "budgets.db"


def with_store(command: Any) -> Any:
    """Add the options that say which store is meant."""
    where = click.option(
        "--store", "where", envvar="LABELDP_STORE", default=BESIDE, show_default=True, show_envvar=True,
        help="A file, or postgresql://user@host/database.",
    )  # fmt: skip
    key = click.option(
        "--key", envvar="LABELDP_STORE_KEY", show_envvar=True, type=click.Path(path_type=Path),
        help="The file with the store's key.  [default: the store's name and .key]",
    )  # fmt: skip
    return where(key(command))


@click.group()
def budget() -> None:
    """Keep budgets that outlive a process.

    A store says what may be spent on the labels of each data set, and what was spent. It identifies a data set by a
    keyed hash of its labels and never contains labels. Every query is written down before it is run, so any number of
    processes and people together cannot exceed the budget.
    """


@budget.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--name", required=True, help="A name for the data set.")
@click.option("--label", help="The secret column. A folder that has a folder of images for each class needs none.")
@click.option("--classes", type=Names(), help="All classes the label can take, comma-separated.")
@click.option("--range", "bounds", type=float, nargs=2, metavar="LOW HIGH", help="For labels that are numbers: the "
              "smallest and the largest value, as in labeldp train --task regression.")  # fmt: skip
@click.option("--epsilon", type=EPSILON, required=True, help="The most that all queries together may cost one label.")
@click.option("--delta", type=float, help="Probability with which the bound may fail; 0 rules out Gaussian noise.  "
              "[default: as for labeldp train, a tenth of one over the rows, at most 1e-5]")  # fmt: skip
@click.option("--user", "--users", "users", metavar="COLUMN", help="The column that says to whom each row belongs. All "
              "labels of a user are protected together.")  # fmt: skip
@click.option("--id", "id_column", metavar="COLUMN", help="The column that tells rows or users apart, so that the "
              "store recognises them in another order, selection or export.")  # fmt: skip
@with_delimiter
@with_store
def create(
    table: Path,
    name: str,
    label: str | None,
    classes: tuple[str, ...] | None,
    bounds: tuple[float, float] | None,
    epsilon: float,
    delta: float | None,
    users: str | None,
    id_column: str | None,
    delimiter: str | None,
    where: str,
    key: Path | None,
) -> None:
    """Set the budget for the labels of a table.

    Without --id the store recognises the labels only in the same order and number: a table that was sorted, filtered
    or exported again then counts as another data set.

    \b
    labeldp budget create patients.parquet --name patients --label diagnosis \\
        --classes none,mild,severe --epsilon 2 --id patient_number
    """
    from labeldp.budgets.calibrate import check_delta, usual_delta
    from labeldp.core.ledger import Budget
    from labeldp.data.door import read_ids, seal_column
    from labeldp.data.own_images import is_folder_of_classes, seal_folders

    store_of = store_class()
    # Before anything is read: what is no budget is refused at once.
    Budget(epsilon, delta or 0.0)
    if is_folder_of_classes(table, label):
        idle = {"range": bounds, "users": users, "id": id_column, "delimiter": delimiter}
        refuse_idle("a folder that has a folder of images for each class", **idle)
        vault = seal_folders(table, declared(classes))
    elif label is None:
        raise OptionError("--label is missing: name the secret column, for example --label diagnosis")
    elif bounds is None:
        vault = seal_column(table, label, declared(classes), users=users, delimiter=delimiter)
    else:
        if classes or users:
            raise OptionError("--range is for numbers: leave out --classes and --users, or leave out --range")
        check_range(bounds)
        vault = seal_column(table, label, bounds=bounds, delimiter=delimiter)
    _check_id(id_column, label)
    ids = None if id_column is None else read_ids(table, id_column, delimiter)
    store = store_of.open(where, key=key)
    check_delta(delta or 0.0, vault.ledger.num_rows, vault.unit.counted)
    if delta is None:
        # The same command again changes nothing, also for a budget that an earlier version made with another default.
        made = next((each.budget.delta for each in store.datasets() if each.name == name), None)
        delta = usual_delta(len(vault)) if made is None else made
    kept = store.create(name, vault, Budget(epsilon, delta), ids=ids)
    click.echo(f"{name}: {_described(kept)}. It cannot be changed; keep the store and its key.")
    if not delta:
        click.echo(
            "With delta 0 nothing that adds Gaussian noise can be paid for: labeldp train is left with responses per "
            "row and with methods that have a version without delta. labeldp plan --delta 0 compares them."
        )


@budget.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
@with_store
def show(name: str | None, as_json: bool, where: str, key: Path | None) -> None:
    """Show each budget, and what is left of it.

    With NAME, show that data set alone.
    """
    store = store_class().open(where, key=key, create=False)
    kept = store.datasets() if name is None else (store.dataset(name),)
    if as_json:
        click.echo(json.dumps([_dataset_values(store, dataset) for dataset in kept]))
        return
    click.echo("\n".join(_dataset_words(store, dataset) for dataset in kept) or "no data set has a budget yet")


@budget.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the history to this file, for those who have no "
              "access to the store; labeldp verify reads it.")  # fmt: skip
@with_signature
@with_store
def history(name: str, as_json: bool, out: Path | None, sign: Path | None, where: str, key: Path | None) -> None:
    """Show who spent what on a data set, and when."""
    if sign is not None and out is None:
        raise OptionError("--sign needs --out: there is no file to sign")
    signer = None if sign is None else signing_key(sign, out)
    store = store_class().open(where, key=key, create=False)
    entries = store.history(name)
    if out is not None:
        from labeldp.results.card import counted
        from labeldp.results.verify import write_history

        kept, charges = _dataset_values(store, store.dataset(name)), [_entry_values(entry) for entry in entries]
        write_history(out, {"store": shown_address(where), "dataset": kept, "charges": charges})
        put_signature(out, signer)
        click.echo(
            f"{out}: {counted(len(charges), 'charge')}{'' if signer is None else f', signed by {signer.public}'}."
        )
        return
    if as_json:
        click.echo(json.dumps([_entry_values(entry) for entry in entries]))
        return
    click.echo("\n".join(map(_entry_words, entries)) or f"{name!r} has not been queried yet")


@budget.command("key")
@click.argument("file", type=click.Path(path_type=Path))
def make_key(file: Path) -> None:
    """Make the key of a store that a team shares.

    A store in a file makes its own.
    """
    from labeldp.budgets.keys import StoreKeyError
    from labeldp.budgets.keys import make_key as made

    if file.exists():
        raise StoreKeyError(f"{str(file)!r} is there already and was left alone; a second key would open nothing")
    made(file)
    click.echo(f"{file}: a new key. Give it to those who may spend, and keep a copy: without it the store is useless.")


def store_of(
    table: Path | str, where: str | None, key: Path | None, vault: LabelVault, ids: Sequence[str] | None = None
) -> BudgetStore | None:
    """Return the store that a command charges for these labels: --store, LABELDP_STORE, or budgets.db beside the table.

    None where there is none. One that lies beside the table and does not know the labels is left out, with a message.
    """
    named = where or os.environ.get("LABELDP_STORE")
    beside = Path(table).with_name(BESIDE)
    if named is None and not (Path(table).is_file() and beside.is_file()):
        if key is not None:
            raise OptionError("--key means nothing without --store; leave it out")
        return None
    why = "" if named else f"{BESIDE} lies beside the table, and "
    opened = store_class(why).open(named or beside, key=key, create=False)
    store = opened if ids is None else opened.with_ids(ids)
    if named is not None:
        return store
    from labeldp.budgets.store import UnknownDataSetError

    try:
        found = store.account(vault).dataset.name
    except UnknownDataSetError:
        click.echo(
            f"{BESIDE} lies beside the table and has no budget for these labels: nothing is charged to it. Give them "
            "one with: labeldp budget create",
            err=True,
        )
        return None
    click.echo(f"the budget {found!r} in {BESIDE} beside the table pays for this run", err=True)
    return store


def account_of(
    source: Path,
    label: str,
    classes: Sequence[str],
    delimiter: str | None,
    where: str | None,
    key: Path | None,
    note: str,
    id_column: str | None = None,
    user_column: str | None = None,
) -> Account | None:
    """Return the account of a table's labels in the store that `store_of` finds; None without one."""
    from labeldp.data.door import read_ids, seal_column

    _check_id(id_column, label)
    if where is None and key is None and "LABELDP_STORE" not in os.environ and not source.with_name(BESIDE).is_file():
        return None
    vault = seal_column(source, label, classes, users=user_column, delimiter=delimiter)
    ids = None if id_column is None else read_ids(source, id_column, delimiter)
    store = store_of(source, where, key, vault, ids)
    return None if store is None else store.account(vault, note=note)


def _check_id(id_column: str | None, label: str | None) -> None:
    if id_column is not None and id_column == label:
        raise OptionError(f"--id names {label!r}, which is the label and secret; name a column that is public")


def store_class(why: str = "") -> type[BudgetStore]:
    """Return `BudgetStore`, or say why it is wanted and what to install for it."""
    try:
        from labeldp.budgets.store import BudgetStore
    except ImportError as error:
        raise ValueError(f"{why}{error}") from None
    return BudgetStore


def _described(kept: DataSet) -> str:
    from labeldp.results.card import counted

    whose = f" of {counted(kept.units, 'user')}" if kept.grouping else ""
    budget = f"epsilon {kept.budget.epsilon:g}, delta {kept.budget.delta:g} for {kept.unit.protects}"
    known = ", known by their ids" if kept.bound else ""
    return f"{counted(kept.num_rows, 'label')}{whose} in {kept.num_classes} classes{known}, with a budget of {budget}"


def _dataset_words(store: BudgetStore, kept: DataSet) -> str:
    from labeldp.results.card import at_most, counted

    spent, charges = at_most(store.epsilon(kept.name)), counted(kept.charges, "charge")
    return (
        f"{kept.name}: {_described(kept)}\n"
        f"  spent    epsilon {spent} of {kept.budget.epsilon:g}, in {charges}\n"
        f"  created  {kept.created} by {kept.created_by}; known as {kept.fingerprint[:16]}"
    )


def _dataset_values(store: BudgetStore, kept: DataSet) -> dict[str, Any]:
    return {
        "name": kept.name, "fingerprint": kept.fingerprint, "rows": kept.num_rows, "classes": kept.num_classes,
        "protects": kept.unit.protects, kept.unit.counted: kept.units, "epsilon": _plain(kept.budget.epsilon),
        "delta": kept.budget.delta, "known_by_ids": kept.bound, "spent": _plain(store.epsilon(kept.name)),
        "charges": kept.charges, "created": kept.created, "created_by": kept.created_by,
    }  # fmt: skip


def _entry_words(entry: Entry) -> str:
    from labeldp.results.card import at_most, counted

    who = f"{entry.who}@{entry.host}" if entry.host else entry.who
    query = f"{entry.times} × {entry.event} at {counted(entry.rows, 'row')}"
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
