"""Read X: columns of tables and prose, wide sparse rows, images, tables too big for memory, and what networks see.

An estimator sets at its fit what X looks like and how it becomes features; whatever comes later is read alike. Heads
see features; a network of the user's sees X as it is, and is tried before anything is spent.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array, issparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_n_features, validate_data
from torch import Tensor, nn

from labeldp.data.columns import (
    Layout,
    arrow_table,
    columns_of_frame,
    comes_in_parts,
    conformed,
    is_frame,
    is_read,
    names_of,
    parts_of,
    read_array,
    read_frame,
    take_rows,
)
from labeldp.data.kinds import Column, Reading
from labeldp.data.stored import some_of
from labeldp.estimator.serialise import HeadPredictor, LiftedPredictor, Predictor
from labeldp.features.coded import Coded, Coder
from labeldp.features.extract import Extractor, FeatureMap, features_of, sample_rows
from labeldp.features.patches import Patches
from labeldp.features.sparse import Projected
from labeldp.features.tables import Table, TableMap
from labeldp.features.text import Encode, Encoded, TableAndText, Text
from labeldp.learning.progress import Progress
from labeldp.recipes.catalogue import AUTO, BY_KEY
from labeldp.recipes.one_shot import MOST_CELLS

# Rows of which features are found where there are many more, and rows that are read at a time.
_FEW_ROWS, ROWS_AT_ONCE = 200_000, 65_536
# Rows whose features are spelt out at a time, where nothing else is possible.
_SPELT_OUT = 8192
# Sparse rows of more columns, or of more cells in all, are projected; others are numbers like any.
_WIDE, _MANY_CELLS, _PROJECTED = 512, 1 << 27, Layout(())
# Fine bins for large ε, coarse steps for small: a head on them learns curves; their widths are tuned without labels.
TABLE: dict[str, Any] = {"bins": 32, "steps": 8, "scale": 0.5, "clip": 4.0}
# Cells of a sparse matrix that are written out for a network: 512 MiB of float32.
_MOST_CELLS = 1 << 27
_TRIED_ROWS = 2
# What is said of a column, by how it is read, and the frames between that and a user's call of `fit`.
_SEEN, _LEVELS = {"id": "set aside", "number": "a number", "date": "a date"}, 5


class FeatureReader(BaseEstimator):
    """Turn X into features, at a fit and after it; the parameters are those of `LabelDPClassifier`."""

    model: nn.Module | None
    features: Extractor | None
    encoder: Encode | None
    device: Any
    report: Any
    method_: str
    n_features_in_: int
    _layout: Layout | None
    _map: FeatureMap
    _predictor: Predictor
    # How the columns of a frame that was fitted to are read, those that were set aside included; none of arrays.
    columns_: tuple[Reading, ...] = ()
    # How a file's columns are read into the features, and those of a frame; None where they are taken as they come.
    _columns: tuple[Column, ...] | None = None
    _of_frame: tuple[Column, ...] | None = None
    # Whether a network of the user's sees X as it is.
    _as_given = False
    # Of one image.
    _shape: tuple[int, ...] = ()

    def _read(self, inputs: Any, reset: bool, of: int | None = None) -> Any:
        """Return features as the extractor takes them: a tensor of images, wide sparse rows, or (numeric, categorical).

        Columns of prose, where there are some, come third. Where X is a random part of a table, `of` is its rows.
        """
        if self._columns is not None and is_frame(inputs):
            inputs = conformed(arrow_table(inputs), self._columns)
        if issparse(inputs) or (not reset and self._layout == _PROJECTED):
            rows = cast("Any", validate_data)(self, inputs, accept_sparse="csr", dtype="numeric", reset=reset)
            if (rows.shape[1] > _WIDE or math.prod(rows.shape) > _MANY_CELLS) if reset else self._layout == _PROJECTED:
                self._layout = _PROJECTED
                return csr_array(rows)
            inputs = rows.toarray()
        if isinstance(inputs, Tensor):
            inputs = inputs.detach().cpu().numpy()
        if is_frame(inputs):
            if reset:
                self.columns_, self._of_frame = (), None
            read = read_frame(self._as_read(inputs, reset, of))
            if not read or not len(read[0]):
                raise ValueError(f"X has 0 sample(s) or no column ({len(read)} columns); a minimum of 1 is required.")
        elif isinstance(inputs, np.ndarray) and inputs.ndim > 2:
            return self._images(inputs, reset)
        else:
            read = read_array(
                cast("Any", validate_data)(self, inputs, dtype=None, ensure_all_finite=False, reset=reset)
            )
        if reset or self._layout is None:
            self._layout = Layout.of(read, prose=self.features is None)
        return self._layout.split(read)

    def _as_read(self, frame: Any, reset: bool, of: int | None = None, strays: bool = False) -> Any:
        """Return a frame with its columns as they were and, but for a network, which sees X as it is, as files' are.

        At a fit, find out how they are read, and warn of what a user may not expect.
        """
        if is_read(frame) and not reset:
            return frame
        named = self._named(frame, reset)
        if reset and self.model is None and not is_read(frame) and len(named):
            self.columns_, self._of_frame = columns_of_frame(named, of)
            odd = [one for one in self.columns_ if one.read_as == "id" or "read as missing" in one.note]
            if odd:
                shown = "; ".join(f"{one.name!r} is {_SEEN[one.read_as]} ({one.note})" for one in odd)
                warnings.warn(
                    f"X: column {shown}; give it as floats or as a categorical type where that is wrong. All columns "
                    "are listed in columns_",
                    stacklevel=_LEVELS,
                )
        if self._of_frame is None:
            return named
        return conformed(arrow_table(named), self._of_frame, strays=reset or strays)

    def _named(self, frame: Any, reset: bool) -> Any:
        """Return the frame with its columns as they were; at a fit, set `feature_names_in_` and `n_features_in_`."""
        names = names_of(frame)
        if len(set(names)) < len(names):
            twice = sorted({str(name) for name in names if names.count(name) > 1})
            raise ValueError(f"X has several columns named {twice}; name each once (does the file have a header?)")
        if reset:
            _check_n_features(self, np.empty((1, len(names))), reset=True)
            vars(self).pop("feature_names_in_", None)
            if all(isinstance(name, str) for name in names):
                self.feature_names_in_ = np.asarray(names, dtype=object)
            return frame
        known = list(getattr(self, "feature_names_in_", names))
        missing, odd = sorted(set(known) - set(names)), sorted(set(map(str, names)) - set(map(str, known)))
        if missing or odd or len(names) != self.n_features_in_:
            raise ValueError(
                f"X has {len(names)} features, but {type(self).__name__} is expecting {self.n_features_in_} features "
                f"as input; missing: {missing}, not known: {odd}"
            )
        return frame if names == known else frame[known] if not hasattr(frame, "select") else frame.select(known)

    def _images(self, images: npt.NDArray[Any], reset: bool) -> Tensor:
        """Return images as (n, C, H, W); grey ones may come as (n, H, W)."""
        shaped = images[:, None] if images.ndim == 3 else images
        if shaped.ndim != 4 or images.dtype.kind not in "buif":
            raise ValueError(f"X has shape {images.shape} and type {images.dtype}; images are (n, C, H, W), numbers")
        size = int(np.prod(shaped.shape[1:]))
        if not reset and size != self.n_features_in_:
            raise ValueError(f"X has {size} features, but {type(self).__name__} is expecting {self.n_features_in_}")
        if reset:
            self.n_features_in_, self._layout, self._shape = size, None, tuple(map(int, shaped.shape[1:]))
        tensor = torch.as_tensor(shaped)
        return tensor / 255 if tensor.dtype == torch.uint8 else tensor.float()

    def _encode(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """Return what heads see, and what networks see."""
        seen = features_of(self._map, inputs)
        if self._as_given:
            return seen, as_given(inputs, list(getattr(self, "feature_names_in_", ()))).to(seen.device)
        return seen, inputs.to(seen.device) if isinstance(inputs, Tensor) else seen

    def _fit_features(self, inputs: Any, seed: int) -> tuple[Tensor, Tensor]:
        """Fit the extractor to public features; return what heads and networks see."""
        usual: Extractor = Patches(seed=seed) if self._layout is None else Table(**TABLE, seed=seed)
        if issparse(inputs):
            usual = Projected(seed=seed)
        elif self._layout is not None and self._layout.prose:
            text = Text(seed=seed) if self.encoder is None else Encoded(self.encoder)
            usual = TableAndText(Table(**TABLE, seed=seed), text)
        if self.encoder is not None and not isinstance(usual, TableAndText):
            raise ValueError(
                "encoder is for columns of prose, and X has none: more than 64 values of three words or more on "
                "average; leave encoder out, or give its outputs as columns of numbers"
            )
        self._as_given = self.model is not None and self.features is None and self._layout is not None
        extractor = usual if self.features is None else self.features
        self._map = extractor.fit(inputs, None if self.device is None else torch.device(self.device))
        return self._encode(inputs)

    def _coded(self, inputs: Any, method: str, seed: int) -> Coded | None:
        """Return a table whose features would take more than a gibibyte as numbers and cells; None for any other.

        What features there are is then found on some of the rows, and all are read in parts. The method has to be able
        to do with that.
        """
        able = (method == AUTO or BY_KEY[method].coded) and self.model is None
        if not able or self.features is not None or not comes_in_parts(inputs) or len(inputs) <= _FEW_ROWS:
            return None
        few = some_of(inputs)
        if few is inputs:
            few = take_rows(inputs, sample_rows(len(inputs), _FEW_ROWS, seed).numpy())
        some: Any = self._read(few, reset=True, of=len(inputs))
        if len(some) > 2:
            return None
        place = None if self.device is None else torch.device(self.device)
        self._map = Table(**TABLE, seed=seed).fit(some, place)
        return self._coded_again(inputs, strays=True)

    def _coded_again(self, inputs: Any, strays: bool = False) -> Coded | None:
        """Return a table as numbers and cells by the map that was fitted; None where its features fit in memory.

        `strays` as for `conformed`.
        """
        found = self._map
        if not isinstance(found, TableMap) or found.scaling is not None or not comes_in_parts(inputs):
            return None
        if len(inputs) <= _FEW_ROWS or len(inputs) * found.dim <= MOST_CELLS:
            return None
        return Coder(found).coded(self._parts(inputs, strays), len(inputs))

    def _parts(self, inputs: Any, strays: bool = False) -> Iterator[Any]:
        """Yield rows in parts, numbers and categories as `Coder` takes them, and report how far it is."""
        done, begun = 0, time.perf_counter()
        for given in parts_of(inputs, ROWS_AT_ONCE):
            part, found = given, None
            if is_frame(part):
                part = conformed(arrow_table(part), self._columns) if self._columns is not None else part
                part = self._as_read(part, reset=False, strays=strays)
            if is_frame(part) and self._layout is not None:
                found = self._layout.factors(read_frame(part, factors=True))
            yield self._read(part, reset=False) if found is None else found
            done += len(part)
            if self.report is not None:
                detail = f"{done:,} of {len(inputs):,} rows read"
                self.report(Progress("features", detail, time.perf_counter() - begun, done / len(inputs)))

    def _logits(self, inputs: Any) -> Tensor:
        """Return the scores of rows, (n, K); of many rows, or of those whose features are made as needed, in parts."""
        head, found, network = self._predictor, self._map, BY_KEY[self.method_].network
        if isinstance(inputs, Coded):
            return logits_of_coded(head, inputs)
        many = comes_in_parts(inputs) and len(inputs) > ROWS_AT_ONCE
        if many and not network and isinstance(found, TableMap) and found.scaling is None:
            coder = Coder(found)
            return torch.cat([logits_of_coded(head, coder.coded([part])) for part in self._parts(inputs)])
        logits = []
        for part in parts_of(inputs, ROWS_AT_ONCE) if many else [inputs]:
            seen, shown = self._encode(self._read(part, reset=False))
            logits.append(head.logits(shown if network else seen))
        return torch.cat(logits)


# -- features, spelt out or not ---------------------------------------------------------------------------------------


def rows_of(rows: Tensor | Coded, index: npt.NDArray[np.intp]) -> Any:
    """Return some rows of features, spelt out or not."""
    chosen = torch.from_numpy(index).to(rows.device)
    return rows.take(chosen) if isinstance(rows, Coded) else rows[chosen]


def logits_of_coded(head: Predictor, rows: Coded) -> Tensor:
    """Return the scores of rows whose features are made as they are needed."""
    if isinstance(head, HeadPredictor | LiftedPredictor):
        return head.logits_of_coded(rows)
    parts = torch.arange(len(rows)).split(_SPELT_OUT)
    return torch.cat([head.logits(rows.take(part).features()) for part in parts])


# -- networks of the user's -------------------------------------------------------------------------------------------


def as_given(read: Any, names: Sequence[str] = ()) -> Tensor:
    """Return X as float32 with its columns as they came, neither scaled nor encoded; refuse what is no number.

    Args:
        read: wide sparse rows, or numbers and categories (and prose) of a table, as estimators read it.
        names: of all columns, for messages.
    """
    if issparse(read):
        if math.prod(read.shape) > _MOST_CELLS:
            raise ValueError(
                f"model takes X as it is, and {read.shape[0]} × {read.shape[1]} numbers are too many to be written out;"
                " project them on fewer columns first"
            )
        return torch.from_numpy(read.toarray().astype(np.float32))
    numbers, *texts = read
    written = sum(part.shape[1] for part in texts)
    if written:
        raise ValueError(
            f"model takes X as it is, and {written} of its {numbers.shape[1] + written} columns are text; encode them "
            "as numbers first, say with sklearn.preprocessing.OneHotEncoder, or leave model out"
        )
    missing = np.isnan(numbers).any(axis=0)
    if missing.any():
        place = int(missing.argmax())
        named = repr(names[place]) if len(names) == len(missing) else f"number {place}"
        raise ValueError(
            f"model takes X as it is, and column {named} has missing numbers; fill them in first, say with "
            "sklearn.impute.SimpleImputer, or leave model out"
        )
    return torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.float32))


def tried(model: nn.Module, rows: Tensor, outputs: int) -> nn.Module:
    """Return a copy of the network that has seen two public rows, or raise ValueError where it does not fit.

    So lazy layers learn their width, and a network that is too narrow or has another number of outputs costs nothing.
    """
    network = copy.deepcopy(model).to(rows.device)
    shape, training = tuple(rows.shape[1:]), network.training
    width = f"{shape[0]} numbers" if len(shape) == 1 else f"shape {shape}"
    try:
        with torch.no_grad():
            found = network.eval()(rows[:_TRIED_ROWS])
    except Exception as error:
        # A network may raise anything. It has seen public rows only, so that its message may be shown.
        raise ValueError(
            f"model does not take rows of {width}, which is how X comes ({type(error).__name__}: {error}); let its "
            f"first layer take {width}"
        ) from None
    wanted = (len(rows[:_TRIED_ROWS]), outputs)
    if not isinstance(found, Tensor) or tuple(found.shape) != wanted:
        shown = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(
            f"model makes {shown} of {wanted[0]} rows of {width}; its last layer must give {outputs} numbers per row, "
            f"{wanted}"
        )
    return network.train(training)
