"""Offer regression on private numbers behind scikit-learn's interface: `LabelDPRegressor`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted
from torch import nn

from labeldp.core.vault import LabelVault
from labeldp.data.door import LEVELS, open_labels, seal_numbers
from labeldp.estimator import spending
from labeldp.estimator.base import LabelDPEstimator
from labeldp.features.extract import Extractor
from labeldp.features.text import Encode
from labeldp.learning.progress import Report
from labeldp.mechanisms.values import ValueVault
from labeldp.recipes.catalogue import AUTO, BY_KEY
from labeldp.recipes.holdout import error_query, released
from labeldp.results.evaluation import Evaluation, evaluate_numbers


class LabelDPRegressor(RegressorMixin, LabelDPEstimator):
    """Learn numbers from labels that are (ε, δ)-private and public features.

    Args:
        epsilon, delta: as for `LabelDPClassifier`.
        bounds: the range of the labels, (low, high), from what is known of the quantity: numbers beyond it are cut off.
            Never minimum and maximum of the labels: those are the labels of two rows.
        method: "one_shot" (one noisy moment of all rows, a head), "binned_regression" (one private response per row, a
            network), or "auto" for the one whose query is worth more clean labels.
        model: a network of yours, from X as it is to one number, in units where the range is −1 to 1.

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
        encoder: Encode | None = None,
        holdout: float | None = None,
        store: Any = None,
        dataset: str | None = None,
        note: str | None = None,
        device: Any = None,
        random_state: Any = None,
        report: Report | None = None,
        verbose: int = 0,
    ) -> None:
        self.epsilon = epsilon
        self.bounds = bounds
        self.delta = delta
        self.method = method
        self.model = model
        self.settings = settings
        self.features = features
        self.encoder = encoder
        self.holdout = holdout
        self.store = store
        self.dataset = dataset
        self.note = note
        self.device = device
        self.random_state = random_state
        self.report = report
        self.verbose = verbose

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None) -> LabelDPRegressor:  # noqa: N803
        """Spend at most (ε, δ) on these numbers, or a vault of them by `seal_numbers`.

        X and `sample_weight` are as for `LabelDPClassifier`.
        """
        vault = self._sealed(y)
        return self._fit(X, vault, sample_weight=sample_weight)

    def predict(self, X: Any) -> npt.NDArray[np.float64]:  # noqa: N803
        """Return the expected number of each row, (n,), within the bounds."""
        check_is_fitted(self)
        head = not BY_KEY[self.method_].network
        scores = self._logits(X).double()
        share = torch.softmax(scores, dim=1)[:, 1] if head else (scores[:, 0] + 1) / 2
        low, high = map(float, self.bounds)
        return (low + (high - low) * share.clamp(0, 1)).cpu().numpy()

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """Return R² against numbers that are declared public: `OpenLabels`."""
        predicted = self.predict(X)
        opened = open_labels(y, type(self).__name__)
        spending.refuse_fitted(seal_numbers(opened, self.bounds))
        return float(r2_score(opened, predicted, sample_weight=sample_weight))

    def _sealed(self, y: Any) -> ValueVault:
        # A fit that is refused leaves nothing that predicts.
        vars(self).pop("_predictor", None)
        return seal_numbers(y, self.bounds, name=type(self).__name__)

    def _measured(self, inputs: Any, vault: LabelVault, epsilon: float, folder: Path | None) -> Evaluation:
        low, high = map(float, self.bounds)
        levels = np.rint((np.nan_to_num(self.predict(inputs), nan=low) - low) / (high - low) * (LEVELS - 1)).astype(
            np.int64
        )
        query = error_query(levels, LEVELS, epsilon)
        return evaluate_numbers(query, released(vault, query, folder), (low, high))

    @property
    def _outputs(self) -> int:
        return 1

    _task = "numbers"
    _kind = "regressor"
    _fewest_rows = 3

    def _own_parts(self) -> dict[str, Any]:
        return {"bounds": [float(end) for end in self.bounds]}

    @classmethod
    def _from_own_parts(cls, config: dict[str, Any], device: Any) -> LabelDPRegressor:
        return cls(config["epsilon"], tuple(config["bounds"]), method=config["method"], device=device)
