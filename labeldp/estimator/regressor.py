"""`LabelDPRegressor`: private numbers behind scikit-learn's interface."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import RegressorMixin
from torch import Tensor, nn

from labeldp.choosing.choice import Choice
from labeldp.choosing.predict import Ranked
from labeldp.data.door import open_labels, seal_numbers
from labeldp.estimator import spending
from labeldp.estimator.base import LabelDPEstimator
from labeldp.estimator.predictors import predictor_of
from labeldp.estimator.progress import Report, Teller
from labeldp.features.extract import Extractor
from labeldp.mechanisms.values import ValueVault
from labeldp.recipes.catalogue import AUTO, BY_KEY, RECIPES
from labeldp.recipes.job import Job, public_seed, run
from labeldp.recipes.worth import Case, moment_distance, moment_labels, response_labels
from labeldp.results.words import at_most, odds_in_words


class LabelDPRegressor(RegressorMixin, LabelDPEstimator):
    """A regressor whose labels are (ε, δ)-private numbers; features are public.

    Args:
        epsilon, delta: as for `LabelDPClassifier`.
        bounds: the range of the labels, (low, high), from what is known of the quantity: numbers beyond it are cut off.
            Never minimum and maximum of the labels: those are the labels of two rows.
        method: "one_shot" (one noisy moment of all rows, a head), "binned_regression" (one private response per row, a
            network), or "auto" for the one whose query is worth more clean labels.
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
        method: str = AUTO,
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
        """Spend at most (ε, δ) on these numbers, or a vault of them by `seal_numbers`; X as for `LabelDPClassifier`."""
        vault = self._sealed(y)
        epsilon, method = self._checked_epsilon(), self._checked_method("numbers")
        tell, seed = Teller(self.report), self._seed()
        read = self._read(X, reset=True)
        rows = len(read) if isinstance(read, Tensor) else len(read[0])
        vault, delta = self._limited(vault, rows, epsilon)
        seen, shown = self._fit_features(read, seed, tell)
        self.choice_ = _choice(rows, self._width(seen), epsilon, delta) if method == AUTO else None
        self.method_ = method if self.choice_ is None else self._best_of(self.choice_)
        tell.say("choice", self.method_)
        tell.watch(vault, delta)
        job = Job(seen, shown, vault, epsilon, delta, copy.deepcopy(self.model), self.settings or {}, seed, tell)
        with public_seed(seed):
            self._predictor = predictor_of(run(BY_KEY[self.method_], job, "numbers"), self.model is not None)
        self._certify(vault, BY_KEY[self.method_].pure, delta, tell)
        return self

    def predict(self, X: Any) -> npt.NDArray[np.float64]:  # noqa: N803
        """The expected number of each row, (n,), within the bounds."""
        self._check_fitted()
        seen, shown = self._encode(self._read(X, reset=False))
        head = not BY_KEY[self.method_].network
        scores = self._predictor.logits(seen if head else shown).double()
        share = torch.softmax(scores, dim=1)[:, 1] if head else (scores[:, 0] + 1) / 2
        low, high = map(float, self.bounds)
        return (low + (high - low) * share.clamp(0, 1)).cpu().numpy()

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """R² against these numbers. Not private: for labels that are open."""
        self._check_fitted()
        opened = open_labels(y, type(self).__name__)
        spending.note_score(seal_numbers(opened.values, self.bounds))
        return float(super().score(X, opened.values, sample_weight))

    def _sealed(self, y: Any) -> ValueVault:
        # A fit that is refused leaves nothing that predicts.
        vars(self).pop("_predictor", None)
        return seal_numbers(y, self.bounds, name=type(self).__name__)

    # -- parts ------------------------------------------------------------------------------------------------------

    _kind = "regressor"
    _fewest_rows = 3

    def _own_parts(self) -> dict[str, Any]:
        return {"bounds": [float(end) for end in self.bounds]}

    @classmethod
    def _parameters_from(cls, config: dict[str, Any]) -> dict[str, Any]:
        return {"epsilon": config["epsilon"], "method": config["method"], "bounds": tuple(config["bounds"])}


def _choice(rows: int, width: int, epsilon: float, delta: float) -> Choice:
    """Return the recipe whose query is worth more, as if the numbers were two classes: low and high."""
    case = Case(rows, 2, width, "table", delta)
    moment = moment_labels(rows, 2, moment_distance(case, epsilon), case.width)
    responses = response_labels(rows, 2, epsilon)
    known = [recipe for recipe in RECIPES if recipe.numbers]
    ranking = [Ranked(recipe.key, responses if recipe.pure else moment) for recipe in known]
    ranking.sort(key=lambda one: -one.clean_labels)
    best = BY_KEY[ranking[0].recipe]
    paid = 0.0 if best.pure else delta
    reason = (
        f"One noisy sum over all {rows:,} numbers is worth about {moment:,.0f} clean labels and one private response "
        f"per row about {responses:,.0f}, so {best.key} is taken; this rests on formulas alone."
    )
    price = f"ε = {at_most(epsilon)}, δ = {at_most(paid, 3)}, for the replacement of one number. "
    return Choice(
        best.key, best.call("numbers"), reason, tuple(ranking), {"epsilon": epsilon, "delta": paid},
        price + odds_in_words(epsilon, paid),
    )  # fmt: skip
