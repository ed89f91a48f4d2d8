"""The per-row mechanisms, and reading one back from its description."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from labeldp.private.responses import PriorResponse, RandomizedResponse, TopKResponse
from labeldp.private.vectors import BitFlip, LaplaceOneHot
from labeldp.releases import Law

__all__ = [
    "BitFlip",
    "LaplaceOneHot",
    "PriorResponse",
    "RandomizedResponse",
    "TopKResponse",
    "law_from_description",
]


def law_from_description(description: Mapping[str, Any], prior: npt.ArrayLike | None = None) -> Law:
    """The law that `describe` described. A file keeps parameters, not arrays of a number per row and class.

    `prior` is what the per-row sets were made from: needed for prior-response, and for top-k-response with a
    set per row, where it may also be the boolean sets themselves.

    >>> law = law_from_description({"mechanism": "bit-flip", "epsilon": 1.0, "num_classes": 3})
    >>> law.describe()
    {'mechanism': 'bit-flip', 'epsilon': 1.0, 'num_classes': 3}
    """
    name = description.get("mechanism")
    if name not in _READERS:
        raise ValueError(f"mechanism is {name!r}; known are {', '.join(_READERS)}")
    try:
        law = _READERS[name](description, float(description["epsilon"]), prior)
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"the description of {name} is incomplete or of the wrong type: {error}") from error
    _same(law, description)
    return law


def _same(law: Law, description: Mapping[str, Any]) -> None:
    # Another prior than the one used would give another law, and wrong evidence without a word.
    for key, value in law.describe().items():
        if description.get(key) != value:
            raise ValueError(f"{key} is {value!r}, but the description says {description.get(key)!r}")


def _randomized(description: Mapping[str, Any], epsilon: float, prior: object) -> Law:
    return RandomizedResponse(epsilon, description["num_classes"])


def _top_k(description: Mapping[str, Any], epsilon: float, prior: npt.ArrayLike | None) -> Law:
    if "members" in description:
        members = np.zeros(int(description["num_classes"]), dtype=np.bool_)
        members[description["members"]] = True
        return TopKResponse(epsilon, members)
    given = _needed(prior, "top-k-response")
    if given.dtype == np.bool_:
        return TopKResponse(epsilon, given)
    return TopKResponse.of_prior(epsilon, given, description["k"])


def _prior(description: Mapping[str, Any], epsilon: float, prior: npt.ArrayLike | None) -> Law:
    return PriorResponse(epsilon, _needed(prior, "prior-response"))


def _laplace(description: Mapping[str, Any], epsilon: float, prior: object) -> Law:
    return LaplaceOneHot(epsilon, description["num_classes"], description["levels"])


def _bit_flip(description: Mapping[str, Any], epsilon: float, prior: object) -> Law:
    return BitFlip(epsilon, description["num_classes"])


def _needed(prior: npt.ArrayLike | None, mechanism: str) -> npt.NDArray[Any]:
    if prior is None:
        raise ValueError(f"prior is missing; {mechanism} needs the public prior it was drawn with")
    return np.asarray(prior)


_READERS: dict[str, Callable[[Mapping[str, Any], float, npt.ArrayLike | None], Law]] = {
    "randomized-response": _randomized,
    "top-k-response": _top_k,
    "prior-response": _prior,
    "laplace-one-hot": _laplace,
    "bit-flip": _bit_flip,
}
