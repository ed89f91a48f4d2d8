"""Offer every classification recipe behind scikit-learn's interface: `LabelDPClassifier`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted
from torch import nn

from labeldp.core.vault import LabelVault
from labeldp.data.door import open_labels, seal_classes, seal_or_take
from labeldp.data.released import ReleasedLabels
from labeldp.estimator import spending
from labeldp.estimator.base import LabelDPEstimator
from labeldp.estimator.serialise import plain
from labeldp.estimator.weights import log_weights
from labeldp.features.extract import Extractor
from labeldp.features.text import Encode
from labeldp.learning.progress import Report
from labeldp.recipes.catalogue import AUTO
from labeldp.recipes.holdout import released, score_query
from labeldp.results.evaluation import Evaluation, evaluate_classes


class LabelDPClassifier(ClassifierMixin, LabelDPEstimator):
    """Learn classes from labels that are (ε, δ)-private and public features, by any recipe or the one that is chosen.

    Args:
        epsilon, delta: the most that a fit spends on one label. δ = None is a tenth of one over the number of rows and
            at most 1e-5; δ = 0 leaves out what needs it. Methods with responses per row spend no δ.
        method: "auto" for the one that `labeldp.choose` recommends for so many rows, classes and features, or a
            recipe's name.
        classes: the list of classes, declared; never read off the labels, because which classes occur is private. None
            where the type of y declares it (pandas categories, a polars Enum, an Arrow dictionary, true/false).
            "observed" declares that the classes which occur are public, and the certificate states it.
        class_weight: how much a class counts, declared: a dictionary from class to weight, 1 where it names none.
            Weights multiply the probabilities that were learnt, which costs nothing; see
            `labeldp.estimator.weights`.
        model: a network of yours, from X as it is (numbers as float32, images) to one score per class; a copy is
            trained. With `features` it sees what the extractor makes of X. None for a small one on encoded columns.
        learner: a classifier of yours with `fit` and `predict_proba`, say of scikit-learn, LightGBM or XGBoost, or a
            list to choose from on held-out responses. A copy is fitted to randomized responses and its probabilities
            are corrected; of tables it sees numbers at variance 1 and categories one-hot.
        settings: for the recipe; what it does not know goes to the training loop (`labeldp.learning.train.fit`).
        features: a `labeldp.features.extract` extractor; None for one that suits tables or images.
        encoder: a sentence encoder of yours for columns of prose, from a list of texts to one row of numbers for each,
            say `SentenceTransformer(folder).encode`; None for words weighted by tf-idf. It is not saved with the model,
            and `labeldp.load` takes it again.
        holdout: rows set aside to measure the model with, whose labels pay for that only: a share, or a number of rows;
            0 for none. None for a tenth, at most 20,000 and none below 1,000 rows, or where users or a store make
            several rows pay together.
        store: a `BudgetStore`, its path or its address. Every fit is reserved there before it runs, and refused past
            the budget. Without it, repeated fits are warned of once.
        dataset: the name of the data set in the store; needed where the labels are a part of it, a fold for example.
        note: what the store's history says the fit was for.
        device: where to compute; the CPU when None.
        random_state: of everything public: features, clusters, first weights, order of rows. Never of the noise.
        report: called with `labeldp.estimator.Progress` as the fit goes on.
        verbose: 1 prints a line for every phase of a fit, 2 every message. The logger "labeldp" has them anyway.

    After `fit`: `certificate_`, `evaluation_` (how good it is; None where no rows were set aside), `method_`,
    `choice_` (why; None where the method was named), `classes_`, `n_features_in_`, and `feature_names_in_` and
    `columns_` (how each column was read) where the features have names.

    >>> x = np.random.default_rng(0).normal(size=(4000, 5))
    >>> y = np.where(x[:, 0] + x[:, 1] > 0, "yes", "no")
    >>> model = LabelDPClassifier(epsilon=1.0, classes=["no", "yes"]).fit(x, y)
    >>> bool((model.predict(x) == y).mean() > 0.8), model.certificate_.epsilon <= 1.0
    (True, True)
    """

    classes_: npt.NDArray[Any]

    def __init__(
        self,
        epsilon: float,
        delta: float | None = None,
        method: str = AUTO,
        *,
        classes: Any = None,
        class_weight: Any = None,
        model: nn.Module | None = None,
        learner: Any = None,
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
        self.delta = delta
        self.method = method
        self.classes = classes
        self.class_weight = class_weight
        self.model = model
        self.learner = learner
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

    def fit(self, X: Any, y: Any, *, users: Any = None, sample_weight: Any = None) -> LabelDPClassifier:  # noqa: N803
        """Spend at most (ε, δ) on these labels.

        Args:
            X: public features: NumPy array, list, pandas, polars or Arrow table, torch tensor; images (n, C, H, W).
            y: one class per row, sealed before anything is done with it and not kept; or a vault, whose ledger then
                counts this fit too, and whose class c is `classes[c]`. Or responses that were released before
                (`NoisyLabels` of `vault.release`, or what `labeldp.data.read_released` has as its vault), of which
                nothing is spent: ε has to allow what they were released at, no store is charged, and their certificate
                is the fit's. Methods are those that learn from one response of every row.
            users: whose each row is, public. (ε, δ) then covers all labels of a user together, for methods that can do
                so.
            sample_weight: how much each row counts, public: a row is kept with probability weight / largest weight,
                by public chance, and the others are never asked; see `labeldp.estimator.weights`. Weights that are
                computed from labels would be a query that nobody paid for.
        """
        vault = self._sealed(y, users)
        return self._fit(X, vault, sample_weight=sample_weight)

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:  # noqa: N803
        """Return P(class | row), (n, K), in the order of `classes_`; weighted, and normed again, by `class_weight`."""
        return torch.softmax(self._scores(X), dim=1).numpy()

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:  # noqa: N803
        """Return the log-odds of the second of two classes, (n,), or the logarithms of `predict_proba`, (n, K)."""
        scores = self._scores(X)
        return (scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else torch.log_softmax(scores, dim=1)).numpy()

    def _scores(self, X: Any) -> torch.Tensor:  # noqa: N803
        """Return scores whose softmax are the probabilities, (n, K)."""
        check_is_fitted(self)
        return self._logits(X).double().cpu() + torch.from_numpy(log_weights(self.class_weight, self.classes_))

    def predict(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """Return the likeliest class of each row, (n,)."""
        likeliest = self.predict_proba(X).argmax(axis=1)
        return self.classes_[likeliest]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """Return the share of labels that are predicted, of labels that are declared public: `OpenLabels`."""
        predicted = self.predict(X)
        opened = open_labels(y, type(self).__name__)
        # Labels that are not of these classes are not those of the fit.
        if np.isin(opened, self.classes_).all():
            spending.refuse_fitted(seal_classes(opened, self.classes_, "score")[1])
        return float(accuracy_score(opened, predicted, sample_weight=sample_weight))

    def _sealed(self, y: Any, users: Any = None) -> LabelVault | ReleasedLabels:
        # A fit that is refused leaves nothing that predicts.
        vars(self).pop("_predictor", None)
        self.classes_, vault = seal_or_take(y, self.classes, type(self).__name__, users)
        return vault

    def _measured(self, inputs: Any, vault: LabelVault, epsilon: float, folder: Path | None) -> Evaluation:
        # A training that diverged predicts what is no number, and is as good as guessing.
        probabilities = np.nan_to_num(self.predict_proba(inputs), nan=1 / len(self.classes_))
        query = score_query(probabilities, epsilon)
        return evaluate_classes(probabilities, query, released(vault, query, folder), list(self.classes_))

    @property
    def _outputs(self) -> int:
        return len(self.classes_)

    _task = "classes"
    _kind = "classifier"

    def _checked_method(self) -> str:
        log_weights(self.class_weight, self.classes_)
        return super()._checked_method()

    def _own_parts(self) -> dict[str, Any]:
        classes, weights = plain(self.classes_), self.class_weight
        listed = {} if weights is None else {"weights": [float(weights.get(name, 1.0)) for name in classes]}
        return {"classes": classes, **listed}

    @classmethod
    def _from_own_parts(cls, config: dict[str, Any], device: Any) -> LabelDPClassifier:
        made = cls(config["epsilon"], method=config["method"], classes=config["classes"], device=device)
        if "weights" in config:
            made.class_weight = dict(zip(config["classes"], config["weights"], strict=True))
        made.classes_ = np.asarray(config["classes"])
        return made
