"""Read a channel back from its description: a file keeps parameters, not arrays of a number per row and class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from labeldp.mechanisms.responses import PriorResponse, RandomizedResponse, TopKResponse
from labeldp.mechanisms.vectors import BitFlip, LaplaceOneHot
from labeldp.releases import Channel

_KNOWN = ("randomized-response", "top-k-response", "prior-response", "laplace-one-hot", "bit-flip")


def channel_from_description(description: Mapping[str, Any], prior: npt.ArrayLike | None = None) -> Channel:
    """Return the channel that `describe` described.

    `prior` is what the per-row sets were made from: needed for prior-response, and for top-k-response with a
    set per row, where it may also be the boolean sets themselves.

    >>> channel = channel_from_description({"mechanism": "bit-flip", "epsilon": 1.0, "num_classes": 3})
    >>> channel.describe()
    {'mechanism': 'bit-flip', 'epsilon': 1.0, 'num_classes': 3}
    """
    name = description.get("mechanism")
    if name not in _KNOWN:
        raise ValueError(f"mechanism is {name!r}; known are {', '.join(_KNOWN)}")
    try:
        channel = _made(name, description, float(description["epsilon"]), prior)
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"the description of {name} is incomplete or of the wrong type: {error}") from error
    # Another prior than the one used would give another channel, and wrong evidence without a word.
    for key, value in channel.describe().items():
        if description.get(key) != value:
            raise ValueError(f"{key} is {value!r}, but the description says {description.get(key)!r}")
    return channel


def _made(name: str, description: Mapping[str, Any], epsilon: float, prior: npt.ArrayLike | None) -> Channel:
    if name == "randomized-response":
        return RandomizedResponse(epsilon, description["num_classes"])
    if name == "laplace-one-hot":
        return LaplaceOneHot(epsilon, description["num_classes"], description["levels"])
    if name == "bit-flip":
        return BitFlip(epsilon, description["num_classes"])
    if "members" in description:
        members = np.zeros(int(description["num_classes"]), dtype=np.bool_)
        members[description["members"]] = True
        return TopKResponse(epsilon, members)
    if prior is None:
        raise ValueError(f"prior is missing; {name} needs the public prior it was drawn with")
    given = np.asarray(prior)
    if name == "prior-response":
        return PriorResponse(epsilon, given)
    return (
        TopKResponse(epsilon, given)
        if given.dtype == np.bool_
        else TopKResponse.of_prior(epsilon, given, description["k"])
    )
