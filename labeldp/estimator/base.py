"""Share between classifier and regressor what is the same: fitting, paying, measuring, clones, and parts."""

from __future__ import annotations

import secrets
import time
import warnings
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, _clone_parametrized
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from labeldp.budgets.keys import shown_address
from labeldp.choosing.choice import Choice, choose
from labeldp.core.certificate import Certificate
from labeldp.core.ledger import BudgetExceededError
from labeldp.core.vault import LabelVault
from labeldp.data.columns import Layout, take_rows
from labeldp.data.kinds import Column
from labeldp.data.released import ReleasedLabels
from labeldp.data.stored import whole_of
from labeldp.estimator import serialise, spending
from labeldp.estimator.progress import Reporter
from labeldp.estimator.reading import FeatureReader, rows_of, tried
from labeldp.estimator.serialise import Arrays, Config, predictor_of
from labeldp.estimator.weights import PUBLIC, rows_kept
from labeldp.features.coded import Coded
from labeldp.features.encoders import EncoderMap
from labeldp.features.tables import TableMap
from labeldp.features.text import TableAndTextMap
from labeldp.learning.progress import listening
from labeldp.mechanisms.responses import RandomizedResponse
from labeldp.mechanisms.users import UserVault
from labeldp.ranks import agreed
from labeldp.recipes import holdout
from labeldp.recipes.catalogue import AUTO, BY_KEY, RECIPES, Task, find
from labeldp.recipes.job import Job, public_seed, run
from labeldp.recipes.kept import bind_fit, first_seed
from labeldp.recipes.pilot import Decided
from labeldp.results.evaluation import Evaluation

if TYPE_CHECKING:
    from labeldp.results.signing import SigningKey


class LabelDPEstimator(FeatureReader, ABC):
    """Fit to labels through a vault; the parameters are those of `LabelDPClassifier`."""

    epsilon: float
    delta: float | None
    method: str
    learner: Any = None
    settings: dict[str, Any] | None
    holdout: Any
    store: Any
    dataset: str | None
    note: str | None
    random_state: Any
    verbose: Any
    choice_: Choice | None
    evidence_: str
    certificate_: Certificate
    evaluation_: Evaluation | None
    _task: Task
    _kind = ""
    _fewest_rows = 2
    _rows = 0
    _reason = ""
    _chosen_for: dict[str, Any] | None = None
    _network_name: str | None = None
    _curves: tuple[dict[str, Any], ...] = ()

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.sparse = True
        # Noise never comes from random_state, so two fits differ.
        tags.non_deterministic = True
        tags.target_tags.required = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_predictor")

    def __sklearn_clone__(self) -> Any:
        """Return a copy as scikit-learn makes it; the store stays the same one, and the copy knows its family."""
        # Not copy.copy: that is a pickle in disguise, and an open store refuses to be pickled.
        bare = object.__new__(type(self))
        vars(bare).update(vars(self), store=None)
        twin: Any = _clone_parametrized(bare)
        twin.store, twin._family_name = self.store, self._family
        return twin

    @property
    def _family(self) -> str:
        """Return a random name that an estimator and its clones share: their fits to parts are counted by it."""
        if not hasattr(self, "_family_name"):
            self._family_name = secrets.token_hex(8)
        return self._family_name

    def __getstate__(self) -> dict[str, Any]:
        # A budget store is a connection; a path to one travels.
        state: dict[str, Any] = dict(cast("Any", super().__getstate__()))
        if self.store is not None and not isinstance(self.store, (str, Path)):
            raise TypeError("store is an open BudgetStore, which cannot be sent to another process; give its path")
        return {**state, "report": None}

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:  # noqa: N803 - scikit-learn's own name
        return BaseEstimator.__repr__(self._without_password(), N_CHAR_MAX)

    def _repr_html_inner(self) -> str:
        return cast("Any", BaseEstimator)._repr_html_inner(self._without_password())

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return cast("Any", BaseEstimator)._repr_mimebundle_(self._without_password(), **kwargs)

    def _without_password(self) -> Any:
        """Return what may be printed, logged and shown: the address of a store names no user and no password."""
        shown = object.__new__(type(self))
        vars(shown).update(vars(self))
        if isinstance(self.store, str):
            shown.store = shown_address(self.store)
        return shown

    # -- fitting ----------------------------------------------------------------------------------------------------

    def _fit(
        self, inputs: Any, vault: LabelVault | ReleasedLabels, paid: bool = False, sample_weight: Any = None
    ) -> Any:
        """Fit to labels that are sealed; where the vault's own store is `paid`, no other is charged.

        To responses that were released before a fit costs nothing, and their certificate is its certificate. Until
        `run` all of it is public, and `run` checks what a recipe is given before it pays.
        """
        counted = None if isinstance(vault, ReleasedLabels) else spending.begin_fit(vault, self._family)
        epsilon, method, self._columns = spending.checked_epsilon(self.epsilon), self._checked_method(), None
        # Public: of features, clusters, first weights and the order of rows; never of the noise.
        begun, seed = time.perf_counter(), int(check_random_state(self.random_state).randint(2**31 - 1))
        # A fit that was stopped goes on with the rows that it had set aside.
        seed = agreed(first_seed(self._folder, seed) if self.random_state is None else seed)
        # What learns from responses takes features that fit in memory.
        coded = None if isinstance(vault, ReleasedLabels) else self._coded(inputs, method, seed)
        read = self._read(inputs := whole_of(inputs), reset=True) if coded is None else coded
        rows = len(read[0]) if isinstance(read, tuple) else int(read.shape[0])
        kept = self._kept(sample_weight, vault, rows, seed)
        if isinstance(vault, ReleasedLabels):
            if self.holdout:
                raise ValueError(
                    f"holdout={self.holdout!r} sets labels aside, and y are responses that were released before; leave "
                    "it out"
                )
            epsilon, delta, held = spending.released(vault, epsilon), 0.0, None
        else:
            payer = None if paid else spending.account(self.store, self.dataset, vault, self.note, counted)
            vault, delta = spending.limited(vault, epsilon, self.delta, payer)
            held = self._held_out(vault, seed, kept)
            if sample_weight is not None:
                vault.assume(PUBLIC)
        reporter = Reporter(self.report, self.verbose, vault, delta, begun)
        with listening(reporter):
            seen, shown = self._fit_features(read, seed) if coded is None else (coded, coded)
        reporter.features(seen.shape, coded is not None)
        training = vault
        if (kept is not None or held is not None) and isinstance(vault, LabelVault):
            others = np.setdiff1d(
                np.arange(rows) if kept is None else kept, () if held is None else held, assume_unique=True
            )
            # Which rows are kept follows from their weights.
            tensors = (seen.numbers, seen.cells) if isinstance(seen, Coded) else (seen,)
            public = [tensor.cpu().numpy() for tensor in tensors] + ([] if kept is None else [kept])
            bind_fit(self._folder, seed, *public)
            training, same = vault.part(others, vault.budget), shown is seen
            seen = rows_of(seen, others)
            shown = seen if same else rows_of(shown, others)
        self.choice_, self.method_ = self._choose(training, seen, epsilon, delta) if method == AUTO else (None, method)
        reporter.phase("choice", self.method_)
        recipe, columns = BY_KEY[self.method_], getattr(self._map, "plain", None)
        job = Job(
            seen, shown, training, epsilon, delta, self._network(shown, seed), self.settings or {}, seed, reporter,
            self.learner, columns, getattr(self, "class_weight", None) is not None,
        )  # fmt: skip
        if recipe.apart and isinstance(training, LabelVault):
            spending.refuse_together(training, recipe.key)
        with public_seed(seed), listening(reporter):
            found = run(recipe, job, self._task)
        self._predictor = predictor_of(found, self.model is not None)
        self.evidence_ = found.reason if isinstance(found, Decided) else ""
        self._rows, self._reason, self._network_name, self._chosen_for, self.evaluation_ = rows, "", None, None, None
        if held is not None and isinstance(vault, LabelVault):
            reporter.phase("evaluation", f"{len(held):,} rows set aside")
            self._evaluate(
                take_rows(inputs, held) if coded is None else rows_of(coded, held),
                vault.part(held, vault.budget),
                epsilon,
            )
        self.certificate_ = vault.certificate(0.0 if recipe.pure else delta)
        self._curves = reporter.done(self.certificate_.epsilon)
        return self

    @property
    def _folder(self) -> Path | None:
        """Return where the fit keeps what it pays for; None for nowhere, and for what its recipe will refuse."""
        given = (self.settings or {}).get("folder")
        return given if isinstance(given, Path) else None

    def _kept(
        self, sample_weight: Any, vault: LabelVault | ReleasedLabels, rows: int, seed: int
    ) -> npt.NDArray[np.intp] | None:
        """Return which of the rows are fitted to, by their weights; None for all. Refuse too few of them."""
        if len(vault) != rows:
            raise ValueError(f"X has {rows} rows and y {len(vault)}; give one label per row")
        if rows < self._fewest_rows:
            raise ValueError(f"X has {rows} sample(s); n_samples = {rows} is too few to learn from")
        kept = rows_kept(sample_weight, rows, seed)
        if kept is None:
            return None
        if isinstance(vault, (ReleasedLabels, UserVault)):
            users = isinstance(vault, UserVault)
            why = "users pay for all of their rows together" if users else "y are responses that were released before"
            raise ValueError(f"sample_weight decides which rows are asked, and {why}; leave it out")
        if len(kept) < self._fewest_rows:
            raise ValueError(f"sample_weight leaves {len(kept)} rows to learn from; give weights that differ less")
        return kept

    def _network(self, shown: Any, seed: int) -> nn.Module | None:
        """Return a copy of the user's network that takes these rows, if one was given."""
        if self.model is None:
            return None
        with public_seed(seed):
            return tried(self.model, shown, self._outputs)

    def _held_out(self, vault: LabelVault, seed: int, kept: npt.NDArray[np.intp] | None) -> npt.NDArray[np.intp] | None:
        """Return the rows that are set aside to measure with; None for none, and where they would pay twice.

        Of rows that are weighed they are among those kept, so that measures are weighted, too.
        """
        rows = len(vault) if kept is None else len(kept)
        together = "users" if isinstance(vault, UserVault) else "" if spending.pay_apart(vault) else "store"
        wanted = agreed(0 if self.holdout is None and together else self.holdout)
        held = holdout.rows_set_aside(rows, wanted, seed)
        if held is not None and together:
            raise ValueError(
                f"holdout={self.holdout!r} sets rows aside that pay for themselves, which these labels cannot: "
                + ("users pay for all of their rows together" if together == "users" else "the store charges several "
                   "rows together (a part of a data set, or ids that repeat), so that each would pay twice")
                + "; leave it out, or give 0"
            )  # fmt: skip
        if held is not None and len(held) < holdout.FEWEST_MEASURED:
            raise ValueError(
                f"holdout={self.holdout!r} sets {len(held)} of {rows} rows aside, too few to measure a model "
                f"with; give at least {holdout.FEWEST_MEASURED} rows, or 0 for none"
            )
        if held is not None and rows - len(held) < self._fewest_rows:
            raise ValueError(f"holdout={self.holdout!r} leaves {rows - len(held)} rows to learn from; give less")
        return held if held is None or kept is None else kept[held]

    def _evaluate(self, inputs: Any, vault: LabelVault, epsilon: float) -> None:
        """Measure on rows that were set aside: once, whatever comes out; what cannot be paid for is not measured."""
        try:
            self.evaluation_ = self._measured(inputs, vault, epsilon, (self.settings or {}).get("folder"))
        except BudgetExceededError as error:
            # The model is paid for, and stays.
            warnings.warn(f"the model was trained, but not measured on rows set aside: {error}", stacklevel=4)

    def _checked_method(self) -> str:
        """Return the method as the catalogue spells it, or raise ValueError where it is unknown or does not fit."""
        if self.settings is not None and not isinstance(self.settings, dict):
            raise ValueError(f"settings={self.settings!r} is not a dictionary; give one, say {{'epochs': 20}}")
        if self.model is not None and not isinstance(self.model, nn.Module):
            raise ValueError(f"model is a {type(self.model).__name__}; give a torch.nn.Module, or None")
        if self.learner is not None:
            taught = next(recipe for recipe in RECIPES if recipe.learner == "any")
            if self.method not in (AUTO, taught.key):
                raise ValueError(
                    f"method={self.method!r} cannot teach a learner, but learner is given; leave one of them out, or "
                    f"choose {taught.key!r}"
                )
            recipe = taught
        elif self.method == AUTO:
            return AUTO
        else:
            recipe = find(self.method, self._task)
        if self.model is not None and not recipe.network:
            raise ValueError(
                f"method={recipe.key!r} trains no network, but model is given; leave it out, or choose {AUTO!r}, "
                "which takes the best method that trains one"
            )
        return recipe.key

    def _choose(
        self, vault: LabelVault | ReleasedLabels, seen: Tensor | Coded, epsilon: float, delta: float
    ) -> tuple[Choice, str]:
        """Choose a recipe by public numbers: the best that trains the user's network, if any, and protects users.

        Where responses were released before, the best that learns from them.
        """
        width = seen.shape[1]
        table = self._map.table if isinstance(self._map, TableAndTextMap) else self._map
        if isinstance(table, TableMap):
            # Directions that the features offer: bins and steps of a number say the same as it does, and count as one.
            again = sum(len(edges) + 1 for edges in table.edges) + sum(map(len, table.steps))
            width = max(1, width - again)
        by_user = isinstance(vault, UserVault)
        images = self._layout is None
        on_images = images and self._task == "classes"
        encoded = on_images and isinstance(self._map, EncoderMap)
        choice = choose(
            len(vault), vault.num_classes if self._task == "classes" else None, epsilon, delta,
            # Images are compared by their pixels, whatever is made of them, and bring no network of their own.
            feature_dim=self.n_features_in_ if on_images and not encoded else width,
            modality="embeddings" if encoded else "images" if on_images else "table",
            device=seen.device.type, rows_per_user=int(vault.users.sizes.max()) if by_user else None,
            network=self.model is not None or not on_images,
        )  # fmt: skip
        released, coded = isinstance(vault, ReleasedLabels), isinstance(seen, Coded)
        # Rows that pay together cannot be asked different things; responses are no way to a rare class.
        together = isinstance(vault, LabelVault) and not by_user and not spending.pay_apart(vault)
        weighted = getattr(self, "class_weight", None) is not None and not (released or by_user)
        ranking = choice.ranking
        if isinstance(vault, ReleasedLabels) and self._layout is not None:
            # Once they are there, responses teach learners more than networks; only plain ones are told to them.
            plain = isinstance(vault.labels.channel, RandomizedResponse)
            ranking = [one for one in ranking if plain or BY_KEY[one.recipe].learner != "any"]
            ranking.sort(key=lambda one: BY_KEY[one.recipe].learner != "any")
        for one in ranking:
            recipe = BY_KEY[one.recipe]
            fits = (recipe.released or not released) and (recipe.users or not by_user) and (recipe.coded or not coded)
            fits = fits and not (recipe.apart and (together or weighted)) and not (weighted and recipe.per_row)
            # No network is built in for images.
            fits = fits and (bool(recipe.network) if self.model is not None else not (images and recipe.network))
            if fits and not one.obstacle:
                return choice, agreed(recipe.key)
        obstacles = "; ".join(f"{one.recipe}: {one.obstacle or 'does not fit'}" for one in choice.ranking)
        raise ValueError(f"no recipe can be used here: {obstacles}")

    # -- parts ------------------------------------------------------------------------------------------------------

    def to_parts(self) -> tuple[Config, Arrays]:
        """Return the fitted estimator as plain settings, for TOML or JSON, and arrays, for safetensors; no pickle.

        The certificate is not among them: write it beside them with `certificate_.write`.
        """
        check_is_fitted(self)
        map_config, map_arrays = serialise.map_parts(self._map, self._shape)
        config, arrays = self._predictor.parts()
        fitted = {
            "epsilon": float(self.epsilon), "method": self.method_, "features_in": int(self.n_features_in_),
            "rows": int(self._rows),
        }  # fmt: skip
        if hasattr(self, "feature_names_in_"):
            fitted["names"] = list(self.feature_names_in_)
        kinds: Config = {} if self._layout is None else {"numeric": list(self._layout.numeric)}
        if self._layout is not None and self._layout.prose:
            kinds["prose"] = list(self._layout.prose)
        if self._as_given:
            kinds["as_given"] = True
        if self._of_frame is not None:
            kinds["columns"] = [column.to_json() for column in self._of_frame]
        if self._layout is None and self._shape:
            kinds["image"] = list(self._shape)
        whole = {"format": serialise.FORMAT, "kind": self._kind, **fitted, **kinds, **self._own_parts()}
        return {**whole, "map": map_config, "predictor": config}, {**map_arrays, **arrays}

    @classmethod
    def from_parts(
        cls, config: Config, arrays: Arrays, *, model: nn.Module | None = None, certificate: Certificate | None = None,
        device: Any = None, encoder: Any = None,
    ) -> Any:  # fmt: skip
        """Return the estimator that `to_parts` took apart, ready to predict.

        Args:
            model: a network like the one that was given to the estimator, if one was; its weights are replaced.
            certificate: becomes `certificate_`.
            device: where to compute; the CPU when None.
            encoder: the encoder of sentences or images that was given to the estimator, if one was.
        """
        if config.get("format") != serialise.FORMAT or config.get("kind") != cls._kind:
            raise serialise.PartsError(
                f"these are parts of a {config.get('kind')!r} in format {config.get('format')!r}, not of a "
                f"{cls._kind!r} in {serialise.FORMAT!r}; use the class and the version that wrote them"
            )
        made = cls._from_own_parts(config, device)
        place = torch.device("cpu" if device is None else device)
        made.method_, made.n_features_in_, made.choice_ = config["method"], config["features_in"], None
        if "names" in config:
            made.feature_names_in_ = np.asarray(config["names"], dtype=object)
        prose = tuple(config.get("prose", ()))
        made._layout = Layout(tuple(config["numeric"]), prose) if "numeric" in config else None
        made._as_given, made._rows = bool(config.get("as_given", False)), int(config.get("rows", 0))
        read = config.get("columns")
        made._of_frame = None if read is None else tuple(map(Column.from_json, read))
        made._map = serialise.map_from_parts(config["map"], arrays, place, encoder)
        made._predictor = serialise.predictor_from_parts(config["predictor"], arrays, model, place)
        made._shape = tuple(config.get("image", ()))
        if isinstance(made._map, EncoderMap):
            made.features = encoder
        else:
            made.encoder = encoder
        if certificate is not None:
            made.certificate_ = certificate
        return made

    def save(self, folder: Path | str, *, data: str = "", label: str = "", key: SigningKey | None = None) -> Any:
        """Write the fitted estimator to a new folder, as `labeldp train` does, and return this estimator.

        `labeldp.load` reads it back, and so do labeldp predict, verify and report. There is no pickle in it.

        Args:
            folder: must not exist yet.
            data, label: what the table and the secret column are called, for the card and the report.
            key: signs the folder (`labeldp.results.signing.SigningKey.read`).
        """
        from labeldp.results.saved import save

        check_is_fitted(self)
        save(self, Path(folder), data=data, label=label, key=key)
        return self

    @property
    @abstractmethod
    def _outputs(self) -> int:
        """How many numbers a network has to give for a row."""

    @abstractmethod
    def _measured(self, inputs: Any, vault: LabelVault, epsilon: float, folder: Path | None) -> Evaluation:
        """Return how good the model is on these rows, whose labels pay ε for it."""

    @abstractmethod
    def _own_parts(self) -> Config:
        """Return what only this kind of estimator keeps."""

    @classmethod
    @abstractmethod
    def _from_own_parts(cls, config: Config, device: Any) -> Any:
        """Return an estimator of this kind with what `_own_parts` kept."""
