"""Run `labeldp train`: a table or a named data set in, a folder with a certified model out."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labeldp.atomic import Room
from labeldp.cli.budget import store_of
from labeldp.cli.keys import signing_key, with_signature
from labeldp.cli.options import (
    DELTA,
    EPSILON,
    HOLDOUT,
    Method,
    Names,
    OptionError,
    check_device,
    check_range,
    declared,
    listing,
    loaded_encoder,
    needed_training,
    option_values,
    refuse_idle,
    summary,
    table_file,
    with_columns,
    with_delimiter,
    with_encoder,
    with_images,
    with_rows,
)
from labeldp.cli.progress import of_training
from labeldp.recipes.catalogue import AUTO, BY_KEY, keys
from labeldp.results.card import counted

if TYPE_CHECKING:
    from labeldp.data.door import PrivateData
    from labeldp.ranks import Ranks


TASKS = ("classification", "regression")
# Bytes that a model, its card and its measures may take: heads and the small networks have a few million numbers.
_ROOM = 64 << 20
Report = Callable[[Any], None]
# Shares of rows set aside from which a summary doubts the labels: of one class, and cut off at the declared range.
_ONE_CLASS, _CUT_OFF = 0.99, 0.01


def with_vault(command: Any) -> Any:
    """Add the options that say which service has the labels."""
    certs = click.option("--root-certs", type=click.Path(path_type=Path), help="PEM file of the authority that "
                         "signed the service's certificate.  [default: the system's own]")  # fmt: skip
    own = click.option("--client-cert", type=click.Path(path_type=Path), help="PEM file with your own certificate and "
                       "its private key, if the service wants one.")  # fmt: skip
    name = click.option("--dataset", help="The name of the labels at the service.  [default: the table's name without "
                        "its ending]")  # fmt: skip
    token = click.option("--token", envvar="LABELDP_TOKEN", show_envvar=True, help="Your token from labeldp access "
                         "token. Others on this machine can see the command line, so use the environment.")  # fmt: skip
    vault = click.option("--vault", metavar="ADDRESS", help="Query labels that labeldp serve keeps at this address. "
                         "TABLE then has no label, and --id identifies its rows.")  # fmt: skip
    return vault(token(name(certs(own(command)))))


@click.command()
@click.argument("table", required=False)
@click.option("--label", help="The secret column, which the model learns to predict.")
@click.option("--task", type=click.Choice(TASKS), default=TASKS[0], show_default=True, help="Whether the label is a "
              "class (classification) or a number (regression).")  # fmt: skip
@click.option("--classes", type=Names(), help="All classes the label can take, comma-separated.")
@click.option("--range", "bounds", type=float, nargs=2, metavar="LOW HIGH", help="With --task regression: the "
              "smallest and the largest value of a label, from what you know and never from the labels.")  # fmt: skip
@click.option("--epsilon", type=EPSILON, help="Privacy of one label; smaller is more private.")
@click.option("--delta", type=DELTA, help="Probability with which the bound may fail; 0 rules out methods with "
              "Gaussian noise.  [default: a tenth of one over the rows, at most 1e-5]")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="The folder to write. It must not exist.")
@click.option("--method", type=Method(), default=AUTO, show_default=True, help="How to train; see labeldp plan. For "
              f"numbers: {' or '.join(keys('numbers'))}.")  # fmt: skip
@click.option("--test", type=click.Path(path_type=Path), help="Measure the model on this table, which is like TABLE "
              "but has public labels.")  # fmt: skip
@click.option("--holdout", type=HOLDOUT, help="How many rows to set aside to measure the model, as a share or a "
              "number. Their labels are used for nothing else, so this costs no further privacy. 0 sets none aside.  "
              "[default: a tenth, at most 20,000; "
              "none below 1,000 rows, with --user, and where a store charges rows together]")  # fmt: skip
@with_vault
@click.option("--certificate", type=click.Path(path_type=Path), help="The certificate of a TABLE that labeldp "
              "privatize wrote.  [default: the one beside it]")  # fmt: skip
@click.option("--class-weight", type=Names(), metavar="CLASS=WEIGHT,...", help="How much each class counts. "
              "Declare this from what you know.  [default: 1]")  # fmt: skip
@with_columns
@with_images
@with_encoder
@with_rows
@with_delimiter
@click.option("--device", default="cpu", show_default=True, help="Where to compute: cpu or cuda.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Fixes everything except the noise.")
@click.option("--store", help="The store whose budget for these labels is charged; see labeldp budget.  [default: "
              "LABELDP_STORE, else budgets.db beside TABLE]")  # fmt: skip
@click.option("--key", type=click.Path(path_type=Path), help="The file with the store's key.")
@with_signature
@click.option("--dry-run", is_flag=True, help="Read and check everything, but spend and write nothing.")
@click.option("--quiet", is_flag=True, help="Print neither progress nor a summary.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end, and nothing else.")
@click.pass_context
def train(  # noqa: PLR0915 - one statement for each thing that can be said
    ctx: click.Context,
    table: str | None,
    label: str | None,
    task: str,
    classes: tuple[str, ...] | None,
    bounds: tuple[float, float] | None,
    epsilon: float | None,
    delta: float | None,
    out: Path | None,
    method: str,
    test: Path | None,
    holdout: float | None,
    vault: str | None,
    token: str | None,
    dataset: str | None,
    root_certs: Path | None,
    client_cert: Path | None,
    certificate: Path | None,
    class_weight: tuple[str, ...] | None,
    columns: dict[str, Any],
    image: str | None,
    side: int | None,
    encoder: Path | None,
    user: str | None,
    id_column: str | None,
    delimiter: str | None,
    device: str,
    seed: int,
    store: str | None,
    key: Path | None,
    sign: Path | None,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Train a model on secret labels.

    The model is written to a folder with its certificate. You can give the folder to anyone: the guarantee holds
    whatever they do with it.

    TABLE is a Parquet or CSV file with one row per label (also .csv.gz, .csv.zst, or - for standard input), a folder of
    Parquet files, or the name of a data set: adult, or images found through LABELDP_DATA (mnist, fashion_mnist, kmnist,
    cifar10, cifar100, cinic10). Every column except the label is a public feature. Missing cells are allowed.

    Your own images: TABLE is a folder that has a folder of images for each class, whose names are --classes; or a table
    with an --image column, which holds the images or the names of their files.

    TABLE can also be a file that labeldp privatize wrote, with its certificate beside it. The model then learns from
    the private responses, no option but --out is needed, and no further privacy is spent.

    \b
    labeldp train patients.csv --label diagnosis --classes none,mild,severe --epsilon 1 --out model
    labeldp train flats.csv --label rent --task regression --range 0 3000 --epsilon 1 --out model
    labeldp train private.parquet --out model
    labeldp train photos --classes cat,dog --side 64 --epsilon 1 --out model
    labeldp train photos.csv --image file --label kind --classes cat,dog --epsilon 1 --out model
    labeldp train features.parquet --vault grpc+tls://labels.example.org:8815 --id patient_id --epsilon 1 --out model
    labeldp predict model new.csv --out predictions.csv
    labeldp verify model
    """
    from labeldp.core.vault import LabelVault
    from labeldp.data.door import read_ids
    from labeldp.data.tables import find_certificate
    from labeldp.results.folder import RunFolder, drafting, features_digest

    if table is None:
        raise OptionError("TABLE is missing: name the Parquet or CSV file to train on, as in: labeldp train my.csv")
    note = None if vault is not None else find_certificate(table, certificate)
    if epsilon is None and note is None:
        raise OptionError(
            "--epsilon is missing: say how private one label must be, for example --epsilon 1. (If TABLE is what "
            "labeldp privatize wrote, put its certificate beside it, or name it with --certificate.)"
        )
    if out is None:
        raise OptionError("--out is missing: name the folder to write, for example --out model")
    how: dict[str, Any] = {"users": user, "ids": id_column, "test": test, "delimiter": delimiter, **columns}
    how |= {"image": image, "side": side}
    for_images = {"image": image, "side": side, "encoder": encoder}
    data: PrivateData | None = None
    if note is not None:
        refuse_idle("responses that were released before", range=bounds, delta=delta, delimiter=delimiter, store=store,
                    key=key, **for_images)  # fmt: skip
        data = _released(table, note, task, {"label": label, "classes": classes, "epsilon": epsilon}, how)
        epsilon = data.vault.certificate().epsilon
    assert epsilon is not None
    idle = {"label": label, "classes": classes, "range": bounds, "user": user, "store": store, "key": key}
    if vault is not None:
        refuse_idle("labels behind a service (--vault)", certificate=certificate, **idle, **for_images)
        data, delta = _behind(vault, table, token, dataset, (root_certs, client_cert), how, delta)
        task, bounds = TASKS[data.bounds is not None], data.bounds
    else:
        only_there = {"dataset": dataset, "root-certs": root_certs, "client-cert": client_cert}
        refuse_idle("labels that lie in TABLE", **only_there)
    _check_task(task, method, None if note else classes, bounds, delta)
    signer = None if sign is None else signing_key(sign)
    team, device = ctx.with_resource(_in_step(device, table))
    begun, stopped = time.perf_counter(), partial(click.echo, err=True)
    read = partial(_data, label=label, classes=classes, bounds=bounds, how=how, known=data)
    given: dict[str, Any] = {"delta": delta, "method": method, "device": device, "seed": seed, "holdout": holdout}
    given["encoder"] = loaded_encoder(encoder)
    if team is not None and not team.first:
        # This rank does its share of what the first one trains: it charges no store, writes nothing and prints nothing.
        data = _shared(team, partial(read, table))
        if not dry_run:
            from labeldp.engines.distributed import helped

            weights = _weights(class_weight, data.classes)
            helped(partial(needed_training().trained, data, epsilon, weights=weights, **given))
        return
    with (
        table_file(table) as path,
        RunFolder(out, stopped) as kept,
        drafting(out) as draft,
        nullcontext() if quiet or as_json else of_training(table, epsilon) as report,
    ):
        data = _shared(team, partial(read, path, report=_rows_read(report, begun)))
        paid_by = None
        if isinstance(data.vault, LabelVault) and vault is None:
            # A store knows users by the ids of users, and rows by those of rows.
            ids = data.ids if user is None or id_column is None else read_ids(Path(path), user, delimiter)
            paid_by = store_of(table, store, key, data.vault, ids)
        weights = _weights(class_weight, data.classes)
        training = needed_training()
        if dry_run:
            click.echo(_could(table, data, released=note is not None, briefly=quiet or as_json))
            return
        # Certificates are renewed, and a run that was stopped goes on with others.
        access = ("token", "root-certs", "client-cert")
        settings = option_values(
            ctx, without=("out", "quiet", "json", "dry-run", "store", "key", "sign", "test", *access)
        )
        folder = kept.of({**settings, "features": features_digest(data.features)})
        # Held until the model is written: a disk that is full then would cost the whole epsilon for nothing.
        with Room(draft.path / "model", _ROOM):
            model = training.trained(
                data, epsilon, store=paid_by, note=f"train {out.name}", report=report, folder=folder, weights=weights,
                **given,
            )  # fmt: skip
        # What kind of label it is, the service says.
        elsewhere = ("out", "quiet", "json", "dry-run", "token", *(("task",) if vault is not None else ()))
        run = {**option_values(ctx, without=elsewhere), "epsilon": epsilon}
        result = training.result_of(data, model, epsilon, delta, run)
        written = draft.write(result, signer)
    if as_json:
        found = {"folder": str(out), "method": result.story.method, "metrics": dict(result.metrics)}
        click.echo(json.dumps({**found, "certificate": written.to_json()}))
    elif not quiet:
        click.echo(_summary(result, out, data, time.perf_counter() - begun, (paid_by or vault) is not None, team))


def launched() -> bool:
    """Return whether torchrun started this process as one of several ranks, of which the first speaks and writes."""
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


@contextmanager
def _in_step(device: str, table: str) -> Iterator[tuple[Ranks | None, str]]:
    """Work in step with the other ranks inside the block, if there are any; yield them and this one's device."""
    check_device(device)
    if not launched():
        yield None, device
        return
    if table == "-":
        raise OptionError("TABLE is -, and standard input reaches one rank only; name a file that all of them can read")
    from labeldp.engines.distributed import device_of_rank, ranks

    with ranks(device) as team:
        yield team, device_of_rank(device)


def _shared(team: Ranks | None, read: Callable[[], PrivateData]) -> PrivateData:
    """Read a table; where there are ranks, on all of them, who must find the same."""
    if team is None:
        return read()
    from labeldp.engines.distributed import same_table

    return same_table(team, read)


def _could(table: str, data: PrivateData, released: bool, briefly: bool) -> str:
    """Return what a dry run says."""
    what, use = ("response", "learnt from") if released else ("label", "trained on")
    said = f"{table}: {counted(len(data), what)} can be {use}; nothing was spent and nothing was written."
    if data.images is not None and not briefly:
        return f"{said}\nFeatures: images of {data.images}. {data.note}".rstrip()
    return f"{said}\n{listing(data.readings, data.note)}" if data.readings and not briefly else said


def _check_task(
    task: str,
    method: str,
    classes: tuple[str, ...] | None,
    bounds: tuple[float, float] | None,
    delta: float | None,
) -> None:
    """Refuse a method or options of the other task, a range that is none, and a method without the δ it needs."""
    known = (AUTO, *keys("classes" if task == "classification" else "numbers"))
    if method not in known:
        raise OptionError(f"--method {method} is not for --task {task}; choose one of {', '.join(known)}")
    if delta == 0 and method != AUTO and BY_KEY[method].needs_delta:
        raise OptionError(
            f"--method {method} needs a --delta above 0, say 1e-5 (less than one over the number of rows); leave out "
            "--delta 0, or choose --method auto"
        )
    if task == "classification":
        if bounds is not None:
            raise OptionError("--range means nothing for a class; add --task regression if the label is a number")
        return
    if classes:
        raise OptionError("--classes mean nothing with --task regression; leave them out, or leave out --task")
    if bounds is None:
        raise OptionError(
            "--range is missing: say between which numbers the label lies, for example --range 0 100. It is not read "
            "off the data because smallest and largest label are the labels of two rows"
        )
    check_range(bounds)


def _data(
    table: str,
    label: str | None,
    classes: tuple[str, ...] | None,
    bounds: tuple[float, float] | None,
    how: Mapping[str, Any],
    report: Callable[[int], None] | None = None,
    known: PrivateData | None = None,
) -> PrivateData:
    """Read the table or data set; `how` are the arguments of `labeldp.data.read` that only tables take.

    What is `known` was read before.
    """
    from labeldp.data.door import NAMES, read
    from labeldp.data.own_images import is_folder_of_classes

    if known is not None:
        return known
    if table in NAMES and not Path(table).exists():
        idle = {"label": label, "classes": classes, **how}
        given = [{"users": "--user", "ids": "--id"}.get(name, f"--{name}") for name, value in idle.items() if value]
        if given and not (
            table == "adult" and (label, classes) != (None, None) and set(given) <= {"--label", "--classes"}
        ):
            raise OptionError(f"{' and '.join(given)} mean nothing with the data set {table!r}; leave them out")
        if bounds is not None:
            raise OptionError(f"the labels of the data set {table!r} are classes; leave out --task and --range")
        return read(table)
    if is_folder_of_classes(table, label):
        if bounds is not None:
            raise OptionError("--range is for labels that are numbers; the folders of images in TABLE are classes")
        return read(table, None, _two(classes), report=report, **how)
    if not Path(table).exists() and not Path(table).suffix:
        raise OptionError(
            f"there is no file {table!r}, and no data set of that name; the data sets are {', '.join(NAMES)}"
        )
    if label is None:
        raise OptionError("--label is missing: name the secret column, for example --label diagnosis")
    if bounds is not None:
        return read(table, label, bounds=bounds, report=report, **how)
    return read(table, label, _two(classes), report=report, **how)


def _two(classes: Sequence[str] | None) -> tuple[str, ...]:
    """Return the declared classes, of which there have to be two."""
    found = tuple(declared(classes))
    if len(found) < 2:
        raise OptionError(
            f"--classes names only {', '.join(found)!r}; list every class, separated by commas, for example "
            "--classes no,yes"
        )
    return found


def _rows_read(report: Report | None, begun: float) -> Callable[[int], None] | None:
    """Return what reports how many rows of a big table were read; None where nobody wants to know."""
    if report is None:
        return None
    from labeldp.learning.progress import Progress

    return lambda rows: report(Progress("reading", f"{rows:,} rows", time.perf_counter() - begun))


def _behind(
    address: str,
    table: str,
    token: str | None,
    dataset: str | None,
    known_by: tuple[Path | None, Path | None],
    how: Mapping[str, Any],
    delta: float | None,
) -> tuple[PrivateData, float | None]:
    """Read a table without a label, whose labels lie behind a service; return δ as well, as the service allows it."""
    from labeldp.budgets.calibrate import SMALLEST_DELTA, usual_delta
    from labeldp.data.door import beside, read_ids
    from labeldp.service.client import Connection, RemoteVault

    if how["ids"] is None:
        raise OptionError("--id is missing: rows are known to the service by the ids in a column of the table")
    if not token:
        raise OptionError("--token is missing: ask the data owner for one, and put it into LABELDP_TOKEN")
    if not Path(table).is_file():
        raise OptionError(f"there is no file {table!r}; name the Parquet or CSV file that has the features")
    called = dataset or Path(table).name.partition(".")[0]
    certs, own = (None if each is None else each.read_bytes() for each in known_by)
    facts = Connection(address, token, certs, client_cert=own).act("describe", dataset=called)
    bounds = None if facts["bounds"] is None else (float(facts["bounds"][0]), float(facts["bounds"][1]))

    def labels() -> RemoteVault:
        ids = read_ids(Path(table), how["ids"], how["delimiter"])
        return RemoteVault(address, token=token, dataset=called, ids=ids, root_certs=certs, client_cert=own)

    kinds = {name: how[name] for name in ("number", "category", "text", "date")}
    rest = {name: how[name] for name in ("users", "ids", "drop", "test", "delimiter")}
    data = beside(
        Path(table), facts["label"], facts["classes"], labels, bounds,
        kinds=kinds, apart=True, **rest,
    )  # fmt: skip
    most = float(facts["budget"]["delta"])
    if delta is None:
        delta = min(usual_delta(len(data)), most) if most >= SMALLEST_DELTA else 0.0
    return data, delta


def _released(table: str, note: Path, task: str, given: Mapping[str, Any], how: Mapping[str, Any]) -> PrivateData:
    """Read responses that were released before; refuse options that say otherwise than their certificate."""
    from labeldp.data.tables import certificate_path, read_released
    from labeldp.results import signing

    if task != TASKS[0]:
        raise OptionError("--task regression means nothing for responses that were released before: they are classes")
    _, unsigned = signing.check(Path(table), ())
    if unsigned:
        raise OptionError(f"{table}: {unsigned[0]}")
    named = None if note == certificate_path(table) else note
    data = read_released(
        table,
        certificate=named,
        **{name: how[name] for name in how if name not in ("users", "delimiter", "image", "side")},
    )
    claim: Any = data.vault.certificate()
    users = (claim.release or {}).get("users", {}).get("column")
    stated = {"label": data.label, "classes": data.classes, "user": users}
    for name, value in {**given, "user": how["users"]}.items():
        if name in stated and value is not None and value != stated[name]:
            raise OptionError(f"--{name} differs from what {note.name} says, {stated[name]!r}; leave it out")
    if given["epsilon"] is not None and given["epsilon"] < claim.epsilon:
        raise OptionError(
            f"--epsilon {given['epsilon']:g} is less than the {claim.epsilon:g} at which {Path(table).name} was "
            "released; leave it out to accept that, or ask for responses that are more private"
        )
    return data


def _weights(given: Sequence[str] | None, classes: Sequence[str]) -> dict[str, float] | None:
    """Return the weights of classes that were declared as CLASS=WEIGHT; None for none."""
    found: dict[str, float] = {}
    for text in given or ():
        name, _, weight = text.rpartition("=")
        try:
            found[name] = float(weight)
        except ValueError:
            found[name] = 0.0
        if name not in classes or not 0 < found[name] < math.inf:
            raise OptionError(
                f"--class-weight {text} is no class and a weight above 0, as in yes=100. Weights are declared, from "
                "what is public: reading them off the labels, as 'balanced' would, is a query that nobody paid for"
            )
    return found or None


def _doubts(own: Any, data: PrivateData) -> Iterator[str]:
    """Yield what was measured and may be a mistake: a model no better than one class, labels that are cut off."""
    from labeldp.results.evaluation import shown

    common, cut = own.measures.get("majority_baseline"), own.measures.get("at_bounds")
    if common is not None and own.majority:
        yield f"Always predicting {own.majority!r} would be right on {shown('majority_baseline', common)} of them." + (
            " Nearly all labels are of this class: check the label column, or give rare classes a --class-weight."
            if common.value > _ONE_CLASS else ""
        )  # fmt: skip
    if cut is not None and cut.value - cut.margin > _CUT_OFF and data.bounds is not None:
        low, high = data.bounds
        yield (
            f"About {cut.value:.1%} ± {100 * cut.margin:.1f} of the labels lie at a bound of --range {low:g} "
            f"{high:g}, and those beyond it are cut off; choose a wider range, from what you know about the quantity."
        )


def _summary(result: Any, out: Path, data: PrivateData, seconds: float, charged: bool, team: Ranks | None) -> str:
    from labeldp.results.card import at_most, promise, unmeasured
    from labeldp.results.evaluation import evaluation_of

    certificate, test, own = result.certificate, result.metrics.get("test"), evaluation_of(result.metrics)
    spent = f"at epsilon {at_most(certificate.epsilon)}, delta {at_most(certificate.delta)}"
    done = f"{out}: {result.story.method} trained on {result.story.rows - (own.rows if own else 0):,}"
    if result.story.released:
        lines = [
            f"{done} responses in {seconds:.0f} s. They were released before, {spent}, so no further privacy was spent."
        ]
    else:
        lines = [f"{done} secret labels in {seconds:.0f} s, {spent}."]
    lines.append(promise(certificate))
    lines += summary(data.readings, data.note) if data.readings else []
    if data.images is not None:
        lines.append(f"Features: images of {data.images}. {data.note}".rstrip())
    if own:
        found = own.words("accuracy", "auc", "r2", "mean_absolute_error")
        lines.append(f"Measured on {counted(own.rows, 'row')} that were set aside, at no further cost: {found}.")
        lines += _doubts(own, data)
    elif not test:
        lines.append(f"The model was not measured: {unmeasured(result.story, certificate)}.")
    if test:
        if "accuracy" in test:
            found = f"accuracy {test['accuracy']:.1%}" + (f", AUC {test['auc']:.3f}" if "auc" in test else "")
        else:
            share = f"R² {test['r2']:.3f}, " if "r2" in test else ""
            found = f"{share}mean absolute error {test['mean_absolute_error']:.4g}"
        lines.append(f"Measured on {counted(test['rows'], 'row')} with public labels: {found}.")
        if "training_rows_left_out" in test:
            left = test["training_rows_left_out"]
            which = (
                "that is a training row, or looks like one" if left == 1 else "that are training rows, or look like one"
            )
            lines.append(f"This leaves out {counted(left, 'row')} {which}.")
    if not charged and not result.story.released:
        lines.append(
            "No budget was charged. Other releases of these labels add to the cost; labeldp budget keeps count."
        )
    lines.append(f"See it with: labeldp report {out}   Check it with: labeldp verify {out}")
    if team is not None and BY_KEY[result.story.method].shards:
        lines.append(f"{team.size} ranks trained it together.")
    elif team is not None:
        lines.append(f"Rank 0 trained it alone: {result.story.method} can share nothing but the features of images.")
    return "\n".join(lines)
