"""`LabelDPClassifier`: every classification recipe behind scikit-learn's interface."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import ClassifierMixin
from torch import Tensor, nn

from labeldp.choosing.choice import Choice, choose
from labeldp.core.vault import LabelVault
from labeldp.data.door import open_labels, seal_classes
from labeldp.estimator import inputs as cols
from labeldp.estimator import spending
from labeldp.estimator.base import ROWS_AT_ONCE, LabelDPEstimator
from labeldp.estimator.predictors import HeadPredictor, predictor_of
from labeldp.estimator.progress import Report, Teller
from labeldp.estimator.serialise import plain
from labeldp.features.extract import Extractor
from labeldp.features.tables import Coded, Coder, TableMap
from labeldp.recipes.catalogue import AUTO, BY_KEY
from labeldp.recipes.job import Job, public_seed, run


class LabelDPClassifier(ClassifierMixin, LabelDPEstimator):
    """A classifier whose labels are (ε, δ)-private; features are public. Any recipe of this library, or a choice of it.

    Args:
        epsilon, delta: the most that a fit spends on one label. δ = None is a tenth of one over the number of rows and
            at most 1e-5; δ = 0 leaves out what needs it. Methods with responses per row spend no δ.
        method: "auto" for the one that `labeldp.choose` recommends for so many rows, classes and features, or a
            recipe's name.
        classes: the list of classes, declared. When None it is read off the labels, with a warning: which classes occur
            is then not protected.
        model: a network of yours, from features (tables: as encoded) or images to one score per class; a copy is
            trained. None for a small one.
        settings: for the recipe; what it does not know goes to the training loop (`labeldp.learning.train.fit`).
        features: a `labeldp.features.extract` extractor; None for one that suits tables or images.
        store: a `BudgetStore`, its path or its address. Every fit is reserved there before it runs, and refused past
            the budget. Without it, repeated fits are warned of once.
        dataset: the name of the data set in the store; needed where the labels are a part of it, a fold for example.
        note: what the store's history says the fit was for.
        device: where to compute; the CPU when None.
        random_state: of everything public: features, clusters, first weights, order of rows. Never of the noise.
        report: called with `labeldp.estimator.Progress` as the fit goes on.

    After `fit`: `certificate_`, `method_`, `choice_` (why; None where the method was named), `classes_`,
    `n_features_in_`, and `feature_names_in_` where the features have names.

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
        self.delta = delta
        self.method = method
        self.classes = classes
        self.model = model
        self.settings = settings
        self.features = features
        self.store = store
        self.dataset = dataset
        self.note = note
        self.device = device
        self.random_state = random_state
        self.report = report

    def fit(self, X: Any, y: Any) -> LabelDPClassifier:  # noqa: N803
        """Spend at most (ε, δ) on these labels.

        Args:
            X: public features: NumPy array, list, pandas, polars or Arrow table, torch tensor; images (n, C, H, W).
            y: one class per row, sealed before anything is done with it and not kept; or a vault, whose ledger then
                counts this fit too, and whose class c is `classes[c]`.
        """
        vault = self._sealed(y)
        return self._fit(X, vault)

    def _fit(self, inputs: Any, vault: LabelVault, paid: bool = False) -> LabelDPClassifier:
        """`fit`, to labels that are sealed; where the vault's own store is `paid`, no other is charged."""
        epsilon, method = self._checked_epsilon(), self._checked_method("classes")
        tell, seed = Teller(self.report), self._seed()
        many = self._many(inputs, method, seed, tell)
        read = self._read(inputs, reset=True) if many is None else many
        rows = len(read[0]) if isinstance(read, tuple) else len(read)
        vault, delta = self._limited(vault, rows, epsilon, paid)
        seen, shown = self._fit_features(read, seed, tell) if many is None else (many, many)
        self.choice_ = self._choice(rows, seen, epsilon, delta, method)
        self.method_ = method if self.choice_ is None else self._best_of(self.choice_)
        tell.say("choice", self.method_)
        tell.watch(vault, delta)
        job = Job(seen, shown, vault, epsilon, delta, copy.deepcopy(self.model), self.settings or {}, seed, tell)
        recipe = BY_KEY[self.method_]
        with public_seed(seed):
            self._predictor = predictor_of(run(recipe, job), self.model is not None)
        self._certify(vault, recipe.pure, delta, tell)
        return self

    def _many(self, inputs: Any, method: str, seed: int, tell: Teller) -> Coded | None:
        """Features that are made as they are needed, where there are very many and the method can do with that."""
        # A folder keeps a plan for features that are all there.
        able = (method == AUTO or BY_KEY[method].coded) and self.model is None and "folder" not in (self.settings or {})
        return self._coded(inputs, seed, tell) if able else None

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:  # noqa: N803
        """P(class | row), (n, K), in the order of `classes_`."""
        self._check_fitted()
        many = cols.comes_in_parts(X) and len(X) > ROWS_AT_ONCE
        parts = cols.parts_of(X, ROWS_AT_ONCE) if many else [X]
        logits = [self._logits(self._read(part, reset=False), many) for part in parts]
        return torch.softmax(torch.cat(logits).double(), dim=1).cpu().numpy()

    def _logits(self, read: Any, many: bool) -> Tensor:
        head, found = self._predictor, self._map
        if many and isinstance(head, HeadPredictor) and isinstance(found, TableMap) and found.scaling is None:
            return head.logits_of_coded(Coder(found).coded([read]))
        seen, shown = self._encode(read)
        return head.logits(shown if BY_KEY[self.method_].network else seen)

    def predict(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """The likeliest class of each row, (n,)."""
        self._check_fitted()
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """Share of labels that are predicted. Not private: for labels that are open."""
        self._check_fitted()
        opened = open_labels(y, type(self).__name__)
        # Labels that are not of these classes are not those of the fit.
        with suppress(ValueError):
            spending.note_score(seal_classes(opened.values, self.classes_, "score")[1])
        return float(super().score(X, opened.values, sample_weight))

    def _sealed(self, y: Any) -> LabelVault:
        # A fit that is refused leaves nothing that predicts.
        vars(self).pop("_predictor", None)
        if self.classes is None and not isinstance(y, LabelVault):
            spending.note_classes()
        self.classes_, vault = seal_classes(y, self.classes, type(self).__name__)
        return vault

    _kind = "classifier"

    def _own_parts(self) -> dict[str, Any]:
        return {"classes": plain(self.classes_)}

    @classmethod
    def _parameters_from(cls, config: dict[str, Any]) -> dict[str, Any]:
        return {"epsilon": config["epsilon"], "method": config["method"], "classes": config["classes"]}

    def _restore(self, config: dict[str, Any]) -> None:
        self.classes_ = np.asarray(config["classes"])

    def _choice(self, rows: int, seen: Tensor | Coded, epsilon: float, delta: float, method: str) -> Choice | None:
        if method != AUTO:
            return None
        return choose(
            rows, len(self.classes_), epsilon, delta, feature_dim=self._width(seen), modality=self._modality,
            device=seen.device.type,
        )  # fmt: skip
