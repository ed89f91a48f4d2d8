"""Hand X as it is to a network of the user's, and try the network before anything is spent."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import issparse
from torch import Tensor, nn

# Cells of a sparse matrix that are written out for a network: 512 MiB of float32.
_MOST_CELLS = 1 << 27
_TRIED_ROWS = 2


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
