"""Made-up tables whose label two columns tell, and a clean memory of warnings for every test."""

import numpy as np

CLASSES = ["no", "yes"]


def columns(rows=600, seed=0):
    """Two numbers, one category, one flag; the label follows the first number and the category."""
    rng = np.random.default_rng(seed)
    size, other = rng.normal(size=rows), rng.normal(size=rows)
    kind = rng.choice(["a", "b", "c"], size=rows)
    y = np.where(size + (kind == "a") * 1.5 - 0.5 + 0.3 * rng.normal(size=rows) > 0, "yes", "no")
    return {"size": size, "other": other, "kind": kind, "flag": rng.integers(0, 2, rows).astype(bool)}, y


def numbers(rows=600, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4))
    return x, np.where(x[:, 0] + x[:, 1] > 0, "yes", "no")
