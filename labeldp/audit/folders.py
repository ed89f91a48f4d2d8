"""Audit a folder that `labeldp train` wrote: run its recipe again, on its own features, with made-up labels.

The folder says which recipe, at which ε and δ; the table it was trained on is read *without its labels*. Canaries get
one of two labels by a coin, all other rows what the folder's model predicts for them. So nothing here is computed from
a true label: the result may be shown to anyone, and costs no privacy. What is audited is the recipe as it was run (its
settings, its features, this version, this machine) and not the numbers in the folder, which had other labels: of those
only an observational audit can speak, which needs true labels and a proxy (`labeldp.audit.training`).

The promise covers all that leaves a vault, so guesses are made from all of it, which shows more than a trained model
does: a `WitnessVault` records what it releases, and `by_responses` and `by_moments` turn that into scores.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from labeldp.atomic import replacing
from labeldp.audit.bounds import AuditResult, Claim, coins_of
from labeldp.audit.training import audit_training
from labeldp.core.events import PureDP
from labeldp.core.ledger import Budget, Ledger, worst_epsilon
from labeldp.core.random import SecureRandom
from labeldp.core.vault import LabelVault
from labeldp.mechanisms.values import Rounded, ValueVault
from labeldp.releases import FloatArray, NoisyLabels, NoisyMoments
from labeldp.results.card import at_most
from labeldp.results.signing import AUDIT

if TYPE_CHECKING:
    from labeldp.results.folder import Result
    from labeldp.results.model import Model


# One run proves little at a larger δ (see docs/audit.md); the ledger's queries hold at every δ.
_DELTA = 1e-7
_SLACK = 1e-6
# More would take long and hardly tell more.
MOST_CANARIES = 100_000
# The largest log-likelihood that a response needs; keeps differences finite.
_CERTAIN = 1e3


@dataclass(frozen=True)
class FolderAudit:
    """Hold an audit, and what it was an audit of.

    Args:
        result: the bound, beside what the folder's ledger claims at the audit's δ.
        epsilon, delta: what the folder claims.
        model: the SHA-256 of its model, so that a report knows whether an audit is of this folder.
        method: the recipe.
    """

    result: AuditResult
    epsilon: float
    delta: float
    model: str
    method: str

    @property
    def verdict(self) -> str:
        """Say what follows, in words, and what it rests on."""
        claim = f"epsilon {at_most(self.epsilon)}" + (f" at delta {at_most(self.delta, 3)}" if self.delta else "")
        same = (
            f" The folder claims {claim}; the same queries cost {at_most(self.result.epsilon)} at delta "
            f"{at_most(self.result.delta, 3)}, which is what one run can be held against."
            if self.result.delta != self.delta
            else ""
        )
        return (
            f"{self.result.verdict}{same} {self.method} was run again on the folder's features, with made-up labels: "
            "nothing here comes from a true label, so it costs none of them anything and may be shown."
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values: those of the result, and of what it was about."""
        about = {"model": self.model, "epsilon": self.epsilon, "delta": self.delta, "method": self.method}
        return {**self.result.to_json(), "verdict": self.verdict, "of": about}


def audit_folder(
    folder: Path,
    table: Path | str | None = None,
    *,
    canaries: int | None = None,
    delimiter: str | None = None,
    encoder: Any = None,
    device: str = "cpu",
    confidence: float = 0.999,
    seed: int | None = None,
    noise: Callable[[], SecureRandom] = SecureRandom,
    report: Callable[[str], None] = lambda _: None,
) -> FolderAudit:
    """Return a lower bound on ε of the recipe behind a folder, from three runs of it on made-up labels.

    Args:
        folder: as `labeldp train` writes it.
        table: what it was trained on, a file or the name of a data set; as its config.toml has it when None. The label
            column is not read, and need not be there.
        canaries: how many rows a coin decides; all when None, 100,000 at most. The others get the labels that the model
            predicts.
        delimiter: of a CSV file.
        encoder: the one that the model reads images by, if it does.
        confidence: an honest recipe is accused with probability at most one minus this.
        seed: of the coins; never of noise.
        noise: makes the noise of each run: for tests of the audit, which plant bugs in it.
        report: gets a sentence before every step that takes long.
    """
    from labeldp.data.request import TableError
    from labeldp.results.folder import MODEL, read
    from labeldp.results.model import rebuilt
    from labeldp.results.verify import verify_folder

    result = read(folder)
    problems = verify_folder(folder)
    if problems:
        raise TableError(f"{str(folder)!r} does not verify ({problems[0]}); audit a folder that holds")
    if result.story.released:
        raise TableError(
            f"{str(folder)!r} was learnt from responses that were released before, and queried no label; audit those, "
            f"where the labels are: labeldp audit {result.story.data} --labels TABLE"
        )
    model = rebuilt(result, device, encoder=encoder)
    report(f"Reading the features of {result.story.rows:,} rows.")
    features = _features(result, model, table, delimiter)
    certificate, story = result.certificate, result.story
    again = _Again(result, model, features, Claim.of(certificate, min(certificate.delta, _DELTA)), noise)
    rows = again.canaries(canaries, coins_of(seed))
    again.report, whole = report, len(again.usual)
    report(f"{story.method} is run 3 times on {whole:,} rows with made-up labels; coins decide those of {len(rows):,}.")
    classes = len(story.classes) if story.classes is not None else 2
    found = audit_training(again, again.usual, classes, canaries=rows, confidence=confidence, seed=seed)
    artifact = certificate.artifact
    assert artifact is not None, MODEL
    return FolderAudit(found, certificate.epsilon, certificate.delta, artifact.sha256, story.method)


def keep_audit(found: FolderAudit, folder: Path) -> Path:
    """Write the result into the folder, whole or not at all, where `labeldp report` finds it; an older one goes."""
    with replacing(folder / AUDIT) as draft:
        draft.write_text(json.dumps(found.to_json(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return folder / AUDIT


class _Again:
    """Run the folder's recipe as a function from made-up labels to scores; see `labeldp.audit.training.Training`.

    Labels are classes 0 … K − 1 or, for numbers, 0 and 1: the two ends of the range, the values furthest apart.
    """

    def __init__(
        self, result: Result, model: Model, features: Any, claim: Claim, noise: Callable[[], SecureRandom]
    ) -> None:
        from sklearn.utils import check_random_state

        from labeldp.data.stored import whole_of
        from labeldp.estimator.reading import rows_of
        from labeldp.recipes.catalogue import BY_KEY
        from labeldp.recipes.holdout import rows_set_aside
        from labeldp.results.evaluation import evaluation_of

        self._result, self._model, self._claim, self._noise = result, model, claim, noise
        self._seed = int(next(iter(result.run.values())).get("seed", 0))
        self._public_seed = int(check_random_state(self._seed).randint(2**31 - 1))
        estimator, own = model.estimator, evaluation_of(result.metrics)
        # The folder's own map from inputs to features: it was fitted without labels.
        coded = estimator._coded_again(features) if BY_KEY[result.story.method].coded else None
        if coded is None:
            features = whole_of(features)
            self._seen, self._shown = estimator._encode(estimator._read(features, reset=False))
        else:
            features = self._seen = self._shown = coded
        # Classes by number, whatever an estimator of the user's calls them.
        predicted = estimator.predict_proba(features).argmax(axis=1) if model.classes else estimator.predict(features)
        self._groups = result.certificate.groups
        if own is not None:
            # Rows that were set aside were not trained on, and what they paid was not paid by training.
            held = rows_set_aside(len(predicted), own.rows, self._public_seed)
            others = np.setdiff1d(np.arange(len(predicted)), [] if held is None else held)
            self._seen, self._shown = rows_of(self._seen, others), rows_of(self._shown, others)
            predicted = predicted[others]
            (aside,) = Ledger(own.rows).charge(PureDP(own.epsilon)).groups()
            alike = [group.rows - own.rows if group.plans == aside.plans else group.rows for group in self._groups]
            self._groups = tuple(group for group, rows in zip(self._groups, alike, strict=True) if rows > 0)
        self._numbers = None if model.classes else predicted
        self.usual = (predicted if model.classes else np.zeros(len(predicted))).astype(np.int64)
        self._canary = np.zeros(len(predicted), dtype=bool)
        self.report: Callable[[str], None] = lambda _: None
        self._runs = 0

    def canaries(self, count: int | None, chance: np.random.Generator) -> npt.NDArray[np.intp]:
        """Choose which rows are decided by coins."""
        whole = len(self.usual)
        if count is not None and not 1 <= count <= whole:
            raise ValueError(f"canaries={count} of {whole} rows; give a number from 1 to that")
        count = min(whole, MOST_CANARIES) if count is None else count
        rows = np.arange(whole) if count == whole else np.sort(chance.choice(whole, size=count, replace=False))
        self._canary[rows] = True
        return rows

    def __call__(self, labels: npt.NDArray[np.int64]) -> tuple[Mapping[str, FloatArray], Claim]:
        """Run the recipe; return all that it gave away, and what the folder claims for it."""
        self._runs += 1
        self.report(f"Run {self._runs} of 3.")
        vault = self._sealed(labels)
        predictor = self._trained(vault)
        delta = self._result.certificate.delta
        claimed, spent = worst_epsilon(self._groups, delta), vault.certificate(delta).epsilon
        # The rerun must be what the folder claims to be, or the bound is about something else.
        if not abs(spent - claimed) <= _SLACK * max(claimed, 1):
            raise ValueError(
                f"{self._result.story.method} spends epsilon={spent:.9g} here, and the folder claims "
                f"{claimed:.9g}: it was made by another version. Train it again with this one to audit it"
            )
        ends = [0, -1] if self._numbers is not None else list(range(len(self._model.classes)))
        scores = {
            "the model's preference": self._scores(predictor),
            "the responses' likelihood": by_responses(vault.seen, len(labels), ends),
            "the moment, unmixed": by_moments(vault.seen, ends, self._known(labels), self._canary),
        }
        return {name: table for name, table in scores.items() if table is not None}, self._claim

    def _known(self, labels: npt.NDArray[np.int64]) -> FloatArray:
        """Return what made-up labels add to each class of a moment: one, or a number's shares of the two ends."""
        if self._numbers is None:
            return np.eye(len(self._model.classes))[labels]
        from labeldp.data.door import scaled

        place = np.clip(scaled(self._numbers, self._model.estimator.bounds), -1, 1)
        return np.stack([np.maximum(-place, 0), np.maximum(place, 0)], axis=1)

    def _sealed(self, labels: npt.NDArray[np.int64]) -> WitnessVault | WitnessValues:
        story = self._result.story
        settings: dict[str, Any] = {"budget": Budget(story.epsilon, story.delta), "rng": self._noise()}
        if self._numbers is None:
            return WitnessVault(labels, len(self._model.classes), **settings)
        from labeldp.data.door import grid_of, scaled

        low, high = bounds = self._model.estimator.bounds
        numbers = np.where(self._canary, np.where(labels == 1, high, low), self._numbers)
        return WitnessValues(scaled(numbers, bounds), grid_of(bounds), **settings)

    def _trained(self, vault: Any) -> Any:
        import torch

        from labeldp.estimator.serialise import predictor_of
        from labeldp.recipes.catalogue import BY_KEY
        from labeldp.recipes.job import Job, public_seed, run
        from labeldp.results.model import Network

        story, net = self._result.story, None
        if self._model.network is not None:
            with torch.random.fork_rng():
                torch.manual_seed(self._seed)
                net = Network(self._model.network).made(len(self._model.classes))
        job = Job(self._seen, self._shown, vault, story.epsilon, story.delta, net, {}, self._public_seed)
        with public_seed(self._public_seed):
            task = "classes" if self._numbers is None else "numbers"
            return predictor_of(run(BY_KEY[story.method], job, task), net is not None)

    def _scores(self, predictor: Any) -> FloatArray:
        from labeldp.estimator.reading import logits_of_coded
        from labeldp.features.coded import Coded
        from labeldp.recipes.catalogue import BY_KEY

        head, rows = not BY_KEY[self._result.story.method].network, self._seen
        if isinstance(rows, Coded):
            logits = logits_of_coded(predictor, rows).double().cpu().numpy()
        else:
            logits = predictor.logits(rows if head else self._shown).double().cpu().numpy()
        if self._numbers is None or head:
            return logits
        return np.concatenate([-logits, logits], axis=1)


def _features(result: Result, model: Model, table: Path | str | None, delimiter: str | None) -> Any:
    """Return the rows that the folder was trained on, without their labels."""
    from labeldp.data.door import NAMES, read
    from labeldp.data.files import adult_path
    from labeldp.data.own_images import images_like
    from labeldp.data.request import TableError
    from labeldp.data.stored import read_like

    run = next(iter(result.run.values()))
    given = str(Path(str(run.get("table", ""))).expanduser()) if table is None else str(table)
    name = given if given in NAMES and not Path(given).exists() else None
    if model.images is not None:
        folders = None if model.images.column else result.story.classes
        found: Any = images_like(given, model.images, delimiter=run.get("delimiter"), classes=folders)[0]
    elif model.columns is None:
        if name is None or name == "adult":
            raise TableError(f"the folder was trained on images, and {given!r} has none; name a data set by --table")
        found = read(name).features
    else:
        path = adult_path() if name == "adult" else Path(given)
        if not path.exists():
            raise TableError(f"the table that the folder was trained on, {given!r}, is not here; give it with --table")
        delimiter = delimiter or (run.get("delimiter") if table is None else None)
        found, _ = read_like(path, model.columns, "\t" if delimiter == r"\t" else delimiter)
    if len(found) != result.story.rows:
        raise TableError(
            f"{given} has {len(found)} rows and the folder was trained on {result.story.rows}; give the table it was "
            "trained on with --table"
        )
    return found


# -- all that left a vault, as scores -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Released:
    """Record one release of a vault: by which mechanism, of which rows (all when None), and what came out."""

    question: Any = field(repr=False)
    rows: Any = field(repr=False)
    response: Any = field(repr=False)


class _Remembers:
    """Record every release before it is returned."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.seen: list[Released] = []

    def release(self, mechanism: Any, rows: Any = None) -> Any:
        """Release as the vault does, and keep a record."""
        response = super().release(mechanism, rows)  # type: ignore[misc]
        self.seen.append(Released(mechanism, rows, response))
        return response


class WitnessVault(_Remembers, LabelVault):
    """Keep classes in a vault that remembers what it released; for made-up labels only.

    >>> from labeldp import RandomizedResponse
    >>> vault = WitnessVault([0, 1, 1], 2)
    >>> _ = vault.release(RandomizedResponse(1.0, 2))
    >>> len(vault.seen), vault.certificate().epsilon
    (1, 1.0)
    """


class WitnessValues(_Remembers, ValueVault):
    """Keep numbers in a vault that remembers what it released."""


def by_responses(seen: Sequence[Released], num_rows: int, classes: Sequence[int]) -> FloatArray | None:
    """Return log P(responses | class) of every row and each of these classes, (n, c); None without responses per row.

    A row may have several responses; their log-likelihoods add up. No attack on responses per row is better.
    """
    per_row = [one for one in seen if isinstance(one.response, NoisyLabels)]
    total = np.zeros((num_rows, len(classes)))
    for one in per_row:
        index = np.arange(num_rows) if one.rows is None else np.arange(num_rows)[np.asarray(one.rows)]
        total[index] += np.clip(one.response.log_likelihood()[:, list(classes)], -_CERTAIN, _CERTAIN)
    return total if per_row else None


def by_moments(
    seen: Sequence[Released], classes: Sequence[int], known: FloatArray, canary: npt.NDArray[np.bool_]
) -> FloatArray | None:
    """Return how much noisy moments speak for each of these classes in every row, (n, c); None where there are none.

    Of a noisy moment S = Σ_i v_i φ_i + noise of deviation s, whose v_i are fair coins, the best linear guess of each
    coin is

        v̂_i = φ_iᵀ (Σ_j φ_j φ_jᵀ + s² I)⁻¹ S,

    with the sum over canaries, the known part of the others taken off.

    Args:
        classes: rows of the moments.
        known: what the other rows, whose labels are made up, added to each of these classes in the mean, (n, c).
        canary: which rows' labels are to be guessed.
    """
    found = [one for one in seen if isinstance(one.response, NoisyMoments) and one.rows is None]
    if not found:
        return None
    return np.sum([_unmixed(one, classes, known, canary) for one in found], axis=0)


def _unmixed(one: Released, classes: Sequence[int], known: FloatArray, canary: npt.NDArray[np.bool_]) -> FloatArray:
    question: Any = one.question.inner if isinstance(one.question, Rounded) else one.question
    left = one.response.value[list(classes)].astype(np.float64)
    gram, done = np.zeros((left.shape[1],) * 2), 0
    for block in question.chunks.read():
        rows = np.asarray(block, dtype=np.float64)
        here = slice(done, done := done + len(rows))
        left -= np.where(canary[here, None], 0.0, known[here]).T @ rows
        gram += rows[canary[here]].T @ rows[canary[here]]
    gram[np.diag_indices_from(gram)] += max(one.response.noise_std, 1e-6) ** 2
    weight = np.linalg.solve(gram, left.T)
    return np.concatenate([np.asarray(block, dtype=np.float64) @ weight for block in question.chunks.read()])
