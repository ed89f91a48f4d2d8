"""Do draws follow their stated law? One chi-square test, used for every sampler.

False alarms: a correct sampler fails `follows` with probability about 1e-9 (the chi-square limit, with rare
cells pooled to 25 expected draws). The suite calls it fewer than 200 times, so all calls together would raise
a false alarm with probability below 1e-6; and the seeds are fixed, so it could only have happened once.
Power: the tests that use it show that it rejects the same sampler with ε, rate or std 2% too large.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import chi2

FALSE_ALARM = 1e-9


def p_value(counts: np.ndarray, chances: np.ndarray) -> float:
    """Pearson's chi-square p-value of cell counts; rare cells are pooled."""
    counts, expected = np.asarray(counts, float), np.asarray(chances, float) * np.sum(counts)
    if counts[expected == 0].any():
        return 0.0
    order = np.argsort(expected)
    pool = int(np.searchsorted(np.cumsum(expected[order]), 25.0)) + 1
    seen = np.append(counts[order][pool:], counts[order][:pool].sum())
    wanted = np.append(expected[order][pool:], expected[order][:pool].sum())
    return float(chi2.sf(np.sum((seen - wanted) ** 2 / wanted), max(len(seen) - 1, 1)))


def follows(counts: np.ndarray, chances: np.ndarray) -> bool:
    """Whether the counts are compatible with the chances; see above for the error rates."""
    return p_value(counts, chances) > FALSE_ALARM
