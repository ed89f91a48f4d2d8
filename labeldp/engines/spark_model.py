"""Train the one-shot moment on a frame of Spark, write the folder that `labeldp train` writes, and predict with it.

    1. some rows, chosen by their ids and a public seed, come to the driver without their labels: how columns are read
    2. features by a pass over all rows, without labels (`labeldp.engines.passes`), and label-free tuning on some of
       them; so φ(row) is fixed and kept before anything is paid
    3. every partition adds up onehot(y) ⊗ round(φ/step): integers, the same for any order, split or repetition of tasks
    4. the driver adds the parts and the noise, once, from a stream under the release's key: drawn again, it is the same
    5. the head, on the driver; then rows set aside are counted in the same way

φ is computed row by row, so that a row's integers do not depend on the batch it came in.
"""

# PySpark is half a gigabyte and may not be installed where types are checked.
# pyright: reportMissingImports=false
from __future__ import annotations

import functools
import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch.nn.functional import embedding_bag

from labeldp.atomic import replacing
from labeldp.budgets.journal import Journal
from labeldp.core import keyed
from labeldp.core.certificate import certify
from labeldp.core.events import PureDP
from labeldp.core.keyed import Ids, KeyedRandom
from labeldp.core.ledger import Budget
from labeldp.data import partitions
from labeldp.data.columns import Layout, conformed, read_frame
from labeldp.data.door import PublicColumns, columns_of
from labeldp.data.kinds import Column
from labeldp.data.partitions import CountTask, MomentTask, ids_of
from labeldp.data.request import TableError, checked, refusing
from labeldp.engines import frames, passes
from labeldp.engines.passes import Look
from labeldp.engines.runs import Run, running
from labeldp.estimator import serialise
from labeldp.estimator.classifier import LabelDPClassifier
from labeldp.estimator.reading import TABLE
from labeldp.estimator.serialise import predictor_of
from labeldp.estimator.spending import checked_delta
from labeldp.estimator.spending import checked_epsilon as positive_epsilon
from labeldp.features.coded import Coder
from labeldp.features.tables import Table, TableMap
from labeldp.learning.tuning import Basis, Plan, tune
from labeldp.mechanisms.moments import Moments, RowChunks
from labeldp.recipes.catalogue import RECIPES
from labeldp.recipes.holdout import FEWEST_ROWS, MOST_ROWS, SHARE, score_query
from labeldp.recipes.kept import load, save
from labeldp.recipes.one_shot import HEADS, Clock, Noise, OneShot, event_of, fitted, moment_of, noise_for, tuned
from labeldp.recipes.worth import Case, directions, moment_distance
from labeldp.releases import NoisyMoments, NoisyScores
from labeldp.results.card import Story, belief_after
from labeldp.results.evaluation import Evaluation, evaluate_classes
from labeldp.results.folder import Draft, Result, read
from labeldp.results.model import KIND, Model, rebuilt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Rows that come to the driver, without labels: for features, tuning and head; and the most that measure.
SOME_ROWS, MOST_ASIDE = 200_000, 1_000_000
# Bytes of partial sums that the driver adds up itself; more of them are joined in so many parts first.
_ADDED_HERE, _PARTS = 1 << 26, 8
# Partitions whose public sums and values the driver unites itself.
_LOOKED_AT_HERE = 1000
_METHOD = next(recipe for recipe in RECIPES if recipe.coded).key
_WHY = "It is the one that needs a single sum over the rows, wherever they are."
STREAM = (
    "The noise comes from a stream under a key that was kept until the result was written, so that a job that was "
    "stopped draws the same noise again, and then destroyed: the guarantee is computational; see labeldp.core.keyed."
)


# -- public functions of rows: pickled by name, with nothing in them that is secret ------------------------------------


@dataclass(frozen=True)
class Chosen:
    """Choose rows by their ids and a public seed: a row is chosen, or not, wherever it is."""

    seed: int
    purpose: str
    share: float

    def __call__(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Return which rows are chosen."""
        public = hashlib.sha256(f"labeldp.engines/{self.seed}".encode()).digest()
        if self.share >= 1:
            return np.ones(len(ids), dtype=bool)
        return KeyedRandom(public, self.purpose, ids).words(len(ids)) < np.uint64(int(self.share * 2.0**64))


@dataclass(frozen=True, eq=False)
class Phi:
    """x ↦ φ of a table's rows, by its cells: what `Basis` makes of the features, computed row by row."""

    columns: tuple[Column, ...]
    layout: Layout
    map: TableMap
    table: npt.NDArray[np.float32] = field(repr=False)
    direct: npt.NDArray[np.float32] = field(repr=False)
    centre: npt.NDArray[np.float32] = field(repr=False)
    constant: float
    bound: float

    @classmethod
    def of(cls, columns: tuple[Column, ...], layout: Layout, found: TableMap, basis: Basis) -> Phi:
        """Return the map of these features onto this basis."""
        cells, matrix = torch.from_numpy(Coder(found).features_of_cells()), basis.matrix
        parts = (cells @ matrix, matrix[: len(found.mean)], basis.mean @ matrix)
        table, direct, centre = (part.contiguous().numpy() for part in parts)
        return cls(columns, layout, found, table, direct, centre, basis.constant, basis.bound)

    @property
    def width(self) -> int:
        """How many numbers a row becomes."""
        return self.table.shape[1] + (self.constant > 0)

    @functools.cached_property
    def _coder(self) -> Coder:
        return Coder(self.map)

    def __call__(self, rows: pa.Table) -> npt.NDArray[np.float32]:
        """Return φ, (n, width). Every operation is one of single rows: no matrix product, whose order may differ."""
        numeric, categorical = self.layout.split(read_frame(conformed(rows, self.columns, strays=True)))
        numbers, cells = self._coder.cells(numeric, categorical)
        found = np.empty((len(numbers), self.width), dtype=np.float32)
        turned = found[:, : self.table.shape[1]]
        if len(found):
            turned[:] = embedding_bag(torch.from_numpy(cells), torch.from_numpy(self.table), mode="sum").numpy()
        for number, direction in zip(numbers.T, self.direct, strict=True):
            turned += number[:, None] * direction
        turned -= self.centre
        if self.constant > 0:
            found[:, -1] = self.constant
        length = np.sqrt(np.add.reduce(found * found, axis=1))
        found /= np.maximum(length, self.bound if self.bound > 0 else np.finfo(np.float32).tiny)[:, None]
        return found

    def digest(self) -> str:
        """Return a name of all that decides what a row becomes."""
        config, arrays = serialise.map_parts(self.map)
        content = hashlib.sha256(repr((config, self.columns, self.layout, self.constant, self.bound)).encode())
        for array in (*arrays.values(), self.table, self.direct, self.centre):
            content.update(np.ascontiguousarray(array).tobytes())
        return content.hexdigest()


def choose_rows(task: tuple[str, Sequence[Chosen]], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition that are chosen for anything; the frame has no labels."""
    id, every = task
    for batch in batches:
        ids = ids_of(batch.column(id))
        yield batch.filter(pa.array(np.logical_or.reduce([chosen(ids) for chosen in every])))


# -- training ----------------------------------------------------------------------------------------------------------


@refusing
def train(
    df: DataFrame,
    *,
    label: str,
    classes: Iterable[object],
    epsilon: float,
    id: str,
    out: Path | str,
    delta: float | None = None,
    holdout: float | None = None,
    drop: Sequence[str] = (),
    number: Sequence[str] = (),
    category: Sequence[str] = (),
    date: Sequence[str] = (),
    seed: int = 0,
    journal: Journal | None = None,
    store: Any = None,
    dataset: str | None = None,
    note: str | None = None,
    report: Callable[[Any], None] | None = None,
) -> Model:
    """Train a classifier by one noisy moment over all rows, and write the folder that `labeldp train` writes.

    Args:
        df: rows with a label; every other column but `id` and `drop` is a public feature. Snapshotted first.
        label, classes, epsilon, delta: as for `labeldp train`.
        id, journal, store, dataset, note: as for `privatize`.
        out: the folder to write, which all executors see.
        holdout: rows set aside to measure with, as a share or a number; they pay for that only. None for a tenth, at
            most 20,000, and none below 1,000 rows, or where a journal or a store charges all rows together.
        drop, number, category, date: columns that are no features, or that are to be read as these.
        seed: of everything public.
        report: gets progress.
    """
    budget, request = positive_epsilon(epsilon), checked(label, classes, epsilon)
    kinds = {"number": number, "category": category, "date": date}
    frames.check_columns(df, {"label": label, "id": id}, {"drop": drop, **kinds})
    payer = frames.account(journal, store, dataset, note)
    if payer is not None and holdout:
        raise TableError(
            f"holdout={holdout!r} sets rows aside that pay for themselves, and the budget charges all rows together, "
            "so that each would pay twice; leave it out"
        )
    target, place = frames.target_of(out), {"label": label, "classes": list(request.classes), "id": id, "seed": seed}
    features = [name for name in df.columns if name not in (label, id, *drop)]
    settings = {"what": "train", **place, "epsilon": budget, "delta": delta, "holdout": holdout, "columns": features}
    clock = Clock(report)
    with running(target, {**settings, **{name: list(names) for name, names in kinds.items()}}) as run, frames.quiet():
        if not run.done:
            rows, parts = frames.snapshotted(df, run, request, id)
            allowed = payer.budget.delta if payer is not None and payer.budget is not None else None
            settled = checked_delta(delta, rows, allowed)
            aside = Chosen(seed, "aside", 0.0 if payer is not None else _share(holdout, rows))
            work = _Work(
                frames.read(df.sparkSession, run.snapshot), run, label, request.classes, id, features, kinds,
                rows, parts, budget, settled, aside, seed, clock,
            )  # fmt: skip
            result = work.result(payer, note or f"train {target.name}", {**place, "epsilon": budget, "delta": settled})
            run.output.mkdir(exist_ok=True)
            Draft(target, run.output).write(result)
        run.finish()
    return rebuilt(read(target))


def _share(holdout: float | None, rows: int) -> float:
    """Return which share of the rows measures."""
    if holdout is None:
        return 0.0 if rows < FEWEST_ROWS else min(SHARE, MOST_ROWS / rows)
    share = float(holdout) if holdout < 1 else holdout / rows
    if not 0 <= share < 1 or share * rows > MOST_ASIDE:
        raise TableError(
            f"holdout={holdout!r} of {rows} rows; give a share or a number that leaves some, at most {MOST_ASIDE:,}"
        )
    return share


@dataclass(frozen=True, eq=False)
class _Work:
    """One training: a snapshot, and all that was settled about it."""

    seen: DataFrame
    run: Run
    label: str
    classes: tuple[str, ...]
    id: str
    features: list[str]
    kinds: Mapping[str, Sequence[str]]
    rows: int
    partitions: int
    epsilon: float
    delta: float
    aside: Chosen
    seed: int
    clock: Clock

    def result(self, payer: Any, note: str, settings: Mapping[str, Any]) -> Result:
        """Return all that goes into the folder."""
        noise = noise_for(self.epsilon, self.delta)
        some, measuring = self._public(Chosen(self.seed, "some", min(1.0, SOME_ROWS / self.rows)), self.aside)
        measuring = measuring if self.aside.share > 0 else None
        held = 0 if measuring is None else len(measuring)
        public = columns_of(some.select(self.features), self.kinds, self.rows)
        prose = [column.name for column in public.columns if column.kind == "text"]
        if prose:
            raise TableError(
                f"the columns {prose} are sentences, which Spark does not train on; leave them out with drop=, or read "
                "them as categories with category="
            )
        read_columns = read_frame(public.features)
        layout = Layout.of(read_columns)
        numeric, categorical = layout.split(read_columns)
        found = self._features(public.columns, layout, (numeric, categorical))
        self.clock("features", f"{self.rows:,} rows, {found.dim} public features")
        tensor = found.features((numeric, categorical))
        tuning = tuned(tensor, len(self.classes), noise, self._tune(found.dim), HEADS, self.run.folder, self.clock)
        phi = Phi.of(public.columns, layout, found, tuning.basis)
        chosen = torch.from_numpy(phi(some))
        order = 1 if self.delta == 0 else 2
        radius = float(torch.linalg.vector_norm(chosen, ord=order, dim=1).amax()) * (1 + 1e-6)
        mechanism = Moments(RowChunks(self.rows - held, phi.width, _elsewhere), len(self.classes), noise, radius)
        mechanism.fits(self.rows - held, len(self.classes))
        # Under one key there is one query: what is asked is fixed before it is paid for.
        query = {"phi": phi.digest(), "radius": radius, "rows": self.rows - held, "noise": repr(noise)}
        if self.run.kept("query", lambda: query) != query:
            raise TableError(
                f"out={str(self.run.target)!r}: features come out otherwise than when the run was paid for; go on with "
                "the same version on the same machine, or delete its folder and what was spent"
            )
        charges = [(event_of(noise), self.rows - held), *([(PureDP(self.epsilon), held)] if held else [])]
        groups = self.run.pay(payer, charges, Budget(self.epsilon, self.delta), note)
        noisy = self._kept("moment", lambda: self._moment(mechanism, phi, noise, radius))
        self.clock("query", f"{noisy.num_classes} × {phi.width} numbers, noise {noisy.noise_std:.3g}")
        shot = fitted(tuning, HEADS, moment_of(chosen, noisy), chosen, self.clock)
        estimator = self._estimator(shot, public, layout, found)
        evaluation = None if measuring is None else self._evaluated(estimator, measuring, public.columns)
        certificate = certify(
            groups, self.delta, noise=keyed.stream(bytes(32), "").source, seeded=False,
            assumptions=(STREAM, frames.unique_ids(self.id, self.rows), frames.TRUSTED),
        )  # fmt: skip
        model = Model(estimator, self.classes, public.columns, self.label, why=_WHY)
        story = Story(
            "a frame of Spark", self.label, self.classes, self.rows, tuple(one.name for one in public.columns), _METHOD,
            _WHY, self.epsilon, self.delta, None, "", tuple(one.to_json() for one in public.readings),
        )  # fmt: skip
        metrics: dict[str, Any] = {
            "epsilon": certificate.epsilon, "delta": self.delta, "rows": self.rows, "classes": len(self.classes),
            "expected": {
                "mean_confidence_on_training_rows": round(shot.confidence, 4),
                "share_right_of_plain_randomized_response": round(
                    belief_after(1 / len(self.classes), certificate.epsilon), 4
                ),
            },
        }  # fmt: skip
        if evaluation is not None:
            metrics["evaluation"] = evaluation.to_json()
        described, tensors = model.parts()
        return Result(KIND, described, tensors, certificate, {"train": {**settings, "method": _METHOD}}, story, metrics)

    def _public(self, *every: Chosen) -> list[pa.Table]:
        """Bring chosen rows to the driver, without their labels, in the order of their ids: a table for each choice."""
        wanted = self.seen.select(*map(frames.quoted, [self.id, *self.features]))
        found = frames.collected(frames.mapped(wanted, choose_rows, (self.id, every), wanted.schema)).sort_by(self.id)
        ids = ids_of(found.column(self.id).combine_chunks())
        return [found.filter(pa.array(chosen(ids))) for chosen in every]

    def _features(self, columns: tuple[Column, ...], layout: Layout, some: Any) -> TableMap:
        """Fit features on some rows, and complete them by all rows where these are more."""
        table = Table(**TABLE, seed=self.seed)
        found = table.fit(some)
        if len(some[0]) == self.rows:
            return found
        task = Look.like(columns, layout, table, found)

        def sums() -> dict[str, Any]:
            wanted = self.seen.select(*(frames.quoted(column.name) for column in columns))
            lines = frames.mapped(wanted, passes.look, task, "found string")
            if self.partitions > _LOOKED_AT_HERE:
                lines = frames.mapped(lines.repartition(_PARTS), passes.unite, task, "found string")
            return passes.united(task, [frames.collected(lines)])

        return task.fitted(found, self.run.kept("features", sums), table)

    def _tune(self, width: int) -> Any:
        """Bind what suits a table of many rows; where noise spares all directions there is nothing to choose."""
        bound = functools.partial(tune, rows=10_000, clusterings=4, draws=2, seed=self.seed, num_rows=self.rows)
        classes, case = len(self.classes), Case(self.rows, len(self.classes), width, "table", self.delta)
        if directions(self.rows, classes, moment_distance(case, self.epsilon), float("inf")) > 2 * width:
            return functools.partial(bound, plans=[Plan(width)])
        return bound

    def _moment(self, mechanism: Moments, phi: Phi, noise: Noise, radius: float) -> NoisyMoments:
        task = MomentTask(self.label, self.classes, self.id, noise, radius, phi.width, phi, self.aside)
        stream = keyed.stream(self.run.key(), f"{self.run.release} moment")
        return partitions.noisy_moment(task, mechanism, self._summed(partitions.add_moment, task), stream)

    def _evaluated(self, estimator: Any, rows: pa.Table, columns: tuple[Column, ...]) -> Evaluation:
        probabilities = estimator.predict_proba(conformed(rows, columns, strays=True))
        query = score_query(probabilities, self.epsilon)
        # One query here, too: what is kept is of these predictions, or the run is refused.
        asked = {"groups": hashlib.sha256(query.cells.groups.tobytes() + query.predicted.tobytes()).hexdigest()}
        if self.run.kept("evaluation", lambda: asked) != asked:
            raise TableError(
                f"out={str(self.run.target)!r}: predictions come out otherwise than when rows set aside were counted; "
                "go on with the same version on the same machine, or delete its folder and what was spent"
            )

        def release() -> NoisyScores:
            ids = rows.column(self.id).combine_chunks()
            cells = (query.predicted, query.cells.groups, query.cells.num_groups)
            task = CountTask(self.label, self.classes, self.id, ids, *cells)
            stream = keyed.stream(self.run.key(), f"{self.run.release} evaluation")
            return partitions.noisy_scores(task, query, self._summed(partitions.count_labels, task), stream)

        return evaluate_classes(probabilities, query, self._kept("scores", release), list(self.classes))

    def _summed(self, work: Callable[..., Iterator[Any]], task: MomentTask | CountTask) -> pa.Table:
        wanted = [self.id, self.label, *(self.features if work is partitions.add_moment else ())]
        return summed(self.seen.select(*map(frames.quoted, wanted)), work, task, self.partitions)

    def _kept(self, name: str, release: Callable[[], Any]) -> Any:
        """Return what was released, and keep it: a release is drawn once, whatever happens after it."""
        file = self.run.folder / f"{name}.npz"
        if not file.exists():
            content = io.BytesIO()
            save(content, release(), {})
            with replacing(file) as draft:
                draft.write_bytes(content.getbuffer())
        return load(file)

    def _estimator(self, shot: OneShot, public: PublicColumns, layout: Layout, found: TableMap) -> Any:
        """Return the classifier, made of its parts."""
        map_config, map_arrays = serialise.map_parts(found)
        config, arrays = predictor_of(shot, False).parts()
        names = public.features.column_names
        return LabelDPClassifier.from_parts(
            {
                "format": serialise.FORMAT, "kind": "classifier", "epsilon": self.epsilon, "method": _METHOD,
                "features_in": len(names), "names": names, "numeric": list(layout.numeric),
                "classes": list(range(len(self.classes))), "map": map_config, "predictor": config,
            },
            {**map_arrays, **arrays},
        )  # fmt: skip


def summed(
    frame: DataFrame, work: Callable[..., Iterator[Any]], task: MomentTask | CountTask, partitions_there: int
) -> pa.Table:
    """Add up what the work makes of each partition, to some lines; they are for `labeldp.data.partitions`."""
    lines = frames.mapped(frame, work, task, "sums binary")
    if 8 * task.length * partitions_there > _ADDED_HERE:
        lines = frames.mapped(lines.repartition(_PARTS), partitions.join, task.length, "sums binary")
    return frames.collected(lines)


def _elsewhere() -> Iterable[Any]:
    raise RuntimeError("these features are with the executors")


# -- predicting --------------------------------------------------------------------------------------------------------


def predict(folder: Path | str, df: DataFrame, *, probabilities: bool = False) -> DataFrame:
    """Return the frame with what the model of a folder predicts: a class and its probability, or a number.

    Args:
        folder: as `train` or `labeldp train` writes it, of a table. Read here, and checked against its certificate.
        df: rows with the columns that the model was trained on.
        probabilities: add one column for each class, "probability of CLASS".
    """
    from pyspark.sql.types import DoubleType, StringType, StructField, StructType

    result = read(Path(folder))
    model = rebuilt(result)
    if model.columns is None:
        raise TableError(f"{str(folder)!r} holds a model of images; predict with labeldp predict")
    if probabilities and not model.classes:
        raise TableError("the model predicts a number, which has no probabilities; leave out probabilities")
    missing = [column.name for column in model.columns if df.columns.count(column.name) != 1]
    if missing:
        raise TableError(f"df lacks {missing}, which the model was trained on; name columns alike (case matters)")
    added = ["prediction", *(["probability"] if model.classes else [])]
    added += [f"probability of {name}" for name in model.classes] if probabilities else []
    taken = [name for name in added if name in df.columns]
    if taken:
        raise TableError(f"df has a column {taken[0]!r} already; rename it")
    kinds = {"prediction": StringType()} if model.classes else {}
    fields = [StructField(name, kinds.get(name, DoubleType()), True) for name in added]
    with frames.quiet():
        return frames.mapped(df, _predicted, (result, probabilities), StructType([*df.schema.fields, *fields]))


def _predicted(task: tuple[Result, bool], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    result, probabilities = task
    torch.set_num_threads(1)
    model = rebuilt(result)
    for batch in batches:
        rows = conformed(pa.Table.from_batches([batch]), model.columns or ())
        if model.classes:
            likely = model.estimator.predict_proba(rows) if len(batch) else np.empty((0, len(model.classes)))
            best = likely.argmax(axis=1)
            made: dict[str, Any] = {
                "prediction": pa.array(np.asarray(model.classes, dtype=object)[best], pa.string()),
                "probability": pa.array(likely[np.arange(len(best)), best]),
            }
            if probabilities:
                made |= {f"probability of {name}": pa.array(likely[:, i]) for i, name in enumerate(model.classes)}
        else:
            made = {"prediction": pa.array(np.asarray(model.estimator.predict(rows), dtype=np.float64))}
        names = [*batch.schema.names, *made]
        yield pa.RecordBatch.from_arrays([*batch.columns, *made.values()], names)
