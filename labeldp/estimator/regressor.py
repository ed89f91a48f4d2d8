"""`LabelDPRegressor`: private numbers behind scikit-learn's interface."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import RegressorMixin
from torch import Tensor, nn

from labeldp.choosing.choice import Choice
from labeldp.choosing.predict import Ranked
from labeldp.choosing.recipes import Case, moment_distance
from labeldp.choosing.worth import moment_labels, response_labels
from labeldp.core.ledger import Budget, Ledger
from labeldp.estimator import inputs as lab
from labeldp.estimator import spending
from labeldp.estimator.base import LabelDPEstimator
from labeldp.estimator.methods import (
    METHODS,
    FeatureNet,
    HeadPredictor,
    Job,
    NetPredictor,
    Predictor,
    public_seed,
    split_settings,
    usual_fit,
)
from labeldp.estimator.progress import Report, Teller
from labeldp.features.extract import Extractor
from labeldp.mechanisms.moments import Moments
from labeldp.mechanisms.responses import Rounded
from labeldp.mechanisms.values import Grid, ValueVault
from labeldp.recipes import binned_regression
from labeldp.releases import NoisyMoments
from labeldp.results.words import at_most, odds_in_words

# --- values --------------------
#
# One look for numbers: the moment Σ v(y_i)·φ_i, v from −1 to 1, as the moment of two sides.
#
# A number between two bounds is rounded at random, without bias, to −1, 0 or 1 (`labeldp.mechanisms.responses`), and the
# moment of these three classes is released. Its noise on Σ v·φ is the same as two classes would have, at a quarter of
# their rounding error. Everything after the look is then that of two classes, low and high: P(high | x) is the mean of
# the number, brought to [0, 1].


_SIDES = 3


class TwoSided:
    """A vault of numbers that answers moments as if its labels were two classes, low and high."""

    num_classes = 2

    def __init__(self, vault: ValueVault) -> None:
        self._vault = vault

    def __len__(self) -> int:
        return len(self._vault)

    @property
    def id(self) -> str:
        """The vault's."""
        return self._vault.id

    @property
    def ledger(self) -> Ledger:
        """The vault's."""
        return self._vault.ledger

    @property
    def budget(self) -> Budget | None:
        """The vault's."""
        return self._vault.budget

    def release(self, question: Any, rows: Any = None) -> NoisyMoments:
        """Ask for the moment of three rounded classes; fold it into two."""
        if not isinstance(question, Moments):
            raise ValueError(f"{question!r} is not a moment; numbers answer moments only")
        asked = Moments(question.chunks, _SIDES, question.noise, question.radius)
        return folded(self._vault.release(Rounded(asked, self._vault.num_classes, _SIDES), rows))


def folded(noisy: NoisyMoments) -> NoisyMoments:
    """(3, d) → (2, d): with S = Σ v·φ = S₂ − S₀ and the public total T, the rows (T − S)/2 and (T + S)/2.

    S has noise of deviation √2·s, as the difference of two classes has: the deviation per entry stays s.

    >>> three = NoisyMoments(np.array([[1.0], [2.0], [4.0]]), np.array([7.0]), 7, "none", 0.0, 1.0)
    >>> folded(three).value.ravel()
    array([2., 5.])
    """
    difference = noisy.value[2] - noisy.value[0]
    return replace(noisy, value=np.stack([noisy.total - difference, noisy.total + difference]) / 2)


LEVELS = 256
_NAMES = ("auto", "one_shot", "binned_regression")


class LabelDPRegressor(RegressorMixin, LabelDPEstimator):
    """A regressor whose labels are (ε, δ)-private numbers; features are public.

    Args:
        epsilon, delta: as for `LabelDPClassifier`.
        bounds: the range of the labels, (low, high), from what is known of the quantity: numbers beyond it are cut off.
            Never minimum and maximum of the labels: those are the labels of two rows.
        method: "one_shot" (one noisy moment of all rows, a head), "binned_regression" (one private answer per row, a
            network), or "auto" for the one whose look is worth more clean labels.
        model: a network of yours, from features to one number, in units where the range is −1 to 1.

    The other arguments and what there is after `fit` are those of `LabelDPClassifier`.

    >>> x = np.random.default_rng(0).normal(size=(4000, 3))
    >>> y = np.clip(x[:, 0], -2, 2)
    >>> model = LabelDPRegressor(epsilon=1.0, bounds=(-2, 2)).fit(x, y)
    >>> bool(np.corrcoef(model.predict(x), y)[0, 1] > 0.8), model.certificate_.epsilon <= 1.0
    (True, True)
    """

    def __init__(
        self,
        epsilon: float,
        bounds: tuple[float, float],
        delta: float | None = None,
        method: str = "auto",
        *,
        model: nn.Module | None = None,
        settings: dict[str, Any] | None = None,
        features: Extractor | None = None,
        store: Any = None,
        dataset: str | None = None,
        note: str | None = None,
        device: Any = None,
        random_state: Any = None,
        report: Report | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.bounds = bounds
        self.delta = delta
        self.method = method
        self.model = model
        self.settings = settings
        self.features = features
        self.store = store
        self.dataset = dataset
        self.note = note
        self.device = device
        self.random_state = random_state
        self.report = report

    def fit(self, X: Any, y: Any) -> LabelDPRegressor:  # noqa: N803
        """Spend at most (ε, δ) on these numbers; X as for `LabelDPClassifier.fit`."""
        # A fit that is refused leaves nothing that predicts.
        vars(self).pop("_predictor", None)
        epsilon, method = self._checked_epsilon(), self._checked_method()
        grid = self._grid()
        tell, seed = Teller(self.report), self._seed()
        read = self._read(X, reset=True)
        rows = len(read) if isinstance(read, Tensor) else len(read[0])
        places = self._places(y, rows)
        codes = grid.nearest(places)
        account = self._account(codes)
        if account is None:
            spending.note_fit(codes, self._family)
        delta = self._checked_delta(rows, None if account is None else account.budget.delta)
        seen, shown = self._fit_features(read, seed, tell)
        self.choice_ = _choice(rows, self._width(seen), epsilon, delta) if method == "auto" else None
        self.method_ = self._settled(method)
        tell.say("choice", self.method_)
        vault = ValueVault(places, grid, Budget(epsilon, delta), store=account)
        tell.watch(vault, delta)
        job = Job(seen, shown, vault, epsilon, delta, copy.deepcopy(self.model), self.settings or {}, seed, tell)
        with public_seed(seed):
            self._predictor = _METHODS[self.method_](job)
        self._certify(vault, self.method_ == "binned_regression", delta, tell)
        return self

    def predict(self, X: Any) -> npt.NDArray[np.float64]:  # noqa: N803
        """The expected number of each row, (n,), within the bounds."""
        self._check_fitted()
        seen, shown = self._encode(self._read(X, reset=False))
        head = self.method_ == "one_shot"
        scores = self._predictor.logits(seen if head else shown).double()
        share = torch.softmax(scores, dim=1)[:, 1] if head else (scores[:, 0] + 1) / 2
        low, high = map(float, self.bounds)
        return (low + (high - low) * share.clamp(0, 1)).cpu().numpy()

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """R² against these numbers. Not private: for labels that are open."""
        self._check_fitted()
        known = lab.as_array(y, type(self).__name__).astype(np.float64)
        spending.note_score(self._grid().nearest(scaled(known, self.bounds)))
        return float(super().score(X, known, sample_weight))

    def _account(self, codes: npt.NDArray[np.int64]) -> Any:
        """Who pays."""
        if self.store is None:
            return None
        from labeldp.budgets.store import UnknownDataSetError

        try:
            return spending.account(self.store, self.dataset, codes, LEVELS, self.note)
        except UnknownDataSetError:
            if self.dataset is not None:
                raise
        raise UnknownDataSetError(
            f"these numbers have no budget in {self.store!r}; give them one with: labeldp budget create --range (or "
            "BudgetStore.create, for their levels_of these bounds). Where they are a part of a data set, name it: "
            "dataset="
        )

    # -- labels -----------------------------------------------------------------------------------------------------

    def _grid(self) -> Grid:
        return grid_of(self.bounds)

    def _places(self, y: Any, rows: int) -> npt.NDArray[np.float64]:
        given = lab.as_array(y, type(self).__name__)
        if len(given) != rows:
            raise ValueError(f"X has {rows} rows and y {len(given)}; give one label per row")
        if rows < 3:
            raise ValueError(f"X has {rows} sample(s); n_samples = {rows} is too few to learn from")
        return scaled(lab.as_numbers(given), self.bounds)

    def _checked_method(self) -> str:
        if self.method not in _NAMES:
            raise ValueError(f"method={self.method!r} is not known; give one of {', '.join(_NAMES)}")
        if self.model is not None and not isinstance(self.model, nn.Module):
            raise ValueError(f"model is a {type(self.model).__name__}; give a torch.nn.Module, or None")
        if self.model is not None and self.method == "one_shot":
            raise ValueError("method='one_shot' trains no network, but model is given; try 'binned_regression'")
        return self.method

    def _settled(self, method: str) -> str:
        if self.choice_ is None:
            return method
        return self.choice_.recipe if self.model is None else "binned_regression"

    # -- parts ------------------------------------------------------------------------------------------------------

    _kind = "regressor"

    def _own_parts(self) -> dict[str, Any]:
        return {"bounds": [float(end) for end in self.bounds]}

    @classmethod
    def _parameters_from(cls, config: dict[str, Any]) -> dict[str, Any]:
        return {"epsilon": config["epsilon"], "method": config["method"], "bounds": tuple(config["bounds"])}


def _one_query(job: Job) -> Predictor:
    two = Job(**{**job.__dict__, "vault": cast("Any", TwoSided(cast("ValueVault", job.vault)))})
    found = METHODS["one_shot"](two)
    assert isinstance(found, HeadPredictor)
    return found


def _on_bins(job: Job) -> Predictor:
    known, for_fit = split_settings(binned_regression.train, job, "fit")
    net = job.model if job.model is not None else FeatureNet(job.inputs.shape[1], 1)
    fit = usual_fit(len(job.inputs), for_fit, job.seed, job.report)
    vault = cast("ValueVault", job.vault)
    settings = {"fit": fit, **known}
    trained = binned_regression.train(net.to(job.inputs.device), job.inputs, vault, epsilon=job.epsilon, **settings)
    return NetPredictor(trained, job.model is not None)


_METHODS = {"one_shot": _one_query, "binned_regression": _on_bins}


def grid_of(bounds: Any) -> Grid:
    """The levels that numbers between these bounds are told apart by, when the bounds lie at −1 and 1."""
    try:
        low, high = bounds
        Grid(low, high, LEVELS)
    except TypeError:
        raise ValueError(f"bounds={bounds!r} is not a range; give (low, high), two numbers") from None
    return Grid(-1.0, 1.0, LEVELS)


def scaled(numbers: npt.NDArray[np.float64], bounds: tuple[float, float]) -> npt.NDArray[np.float64]:
    """The range as −1 to 1."""
    low, high = map(float, bounds)
    return 2 * (numbers - low) / (high - low) - 1


def levels_of(numbers: npt.NDArray[np.float64], bounds: tuple[float, float]) -> npt.NDArray[np.int64]:
    """The level of each number, as budget stores know them: what `BudgetStore.create` takes, with LEVELS classes.

    >>> levels_of(np.array([0.0, 50.0, 100.0, 1e9]), (0, 100)).tolist()
    [0, 128, 255, 255]
    """
    return np.asarray(grid_of(bounds).nearest(scaled(numbers, bounds)), dtype=np.int64)


def _choice(rows: int, width: int, epsilon: float, delta: float) -> Choice:
    """The look that is worth more, as if the numbers were two classes: low and high."""
    case = Case(rows, 2, width, "table", delta)
    moment = moment_labels(rows, 2, moment_distance(case, epsilon), case.width)
    responses = response_labels(rows, 2, epsilon)
    ranking = [Ranked("one_shot", moment), Ranked("binned_regression", responses)]
    ranking.sort(key=lambda one: -one.clean_labels)
    best = ranking[0].recipe
    paid = delta if best == "one_shot" else 0.0
    reason = (
        f"One noisy sum over all {rows:,} numbers is worth about {moment:,.0f} clean labels and one private answer per "
        f"row about {responses:,.0f}, so {best} is taken; this rests on formulas alone."
    )
    price = f"ε = {at_most(epsilon)}, δ = {at_most(paid, 3)}, for the replacement of one number. "
    call = f"labeldp.recipes.{best}.train" if best != "one_shot" else "labeldp.estimator.LabelDPRegressor"
    return Choice(
        best, call, reason, tuple(ranking), {"epsilon": epsilon, "delta": paid}, price + odds_in_words(epsilon, paid)
    )
