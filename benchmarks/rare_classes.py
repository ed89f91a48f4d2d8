"""How well a rare class is found at a small ε, with and without declared weights of classes.

    python benchmarks/rare_classes.py                          by the one-shot moment
    python benchmarks/rare_classes.py --methods forward --draws 5

A made-up table of 50,000 rows, of which one in two hundred is of the rare class; every draw is another table and other
noise. Weighted, the rare class counts 199 times, which balances the two. The reference is logistic regression on the
true labels with the same weight. Figures are means over the draws, on 50,000 other rows.
"""

import argparse
import warnings

import numpy as np
from sklearn.linear_model import LogisticRegression

from labeldp.estimator import LabelDPClassifier
from labeldp.estimator.spending import RepeatedFitWarning

ROWS, SHARE, WEIGHT = 50_000, 0.005, 199.0


def table(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Eight columns, of which four tell the rare class from the other."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(ROWS) < SHARE).astype(int)
    rows = rng.normal(size=(ROWS, 8))
    rows[labels == 1, :3] += (1.5, 1.0, 1.0)
    rows[:, 3] = np.where(labels == 1, 1.5 * np.abs(rows[:, 3]), rows[:, 3])
    return rows, labels


def measured(found: np.ndarray, labels: np.ndarray) -> tuple[float, float, float]:
    """Recall and precision of the rare class, and the mean recall of both."""
    right, rare = np.count_nonzero(found & (labels == 1)), np.count_nonzero(labels == 1)
    recall, spared = right / rare, np.count_nonzero(~found & (labels == 0)) / (len(labels) - rare)
    return recall, right / max(np.count_nonzero(found), 1), (recall + spared) / 2


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="one_shot")
    parser.add_argument("--epsilons", default="0.5,1,2")
    parser.add_argument("--draws", type=int, default=3)
    given = parser.parse_args()
    warnings.simplefilter("ignore", RepeatedFitWarning)
    others, truth = table(1000)
    print(f"{'method':<12}{'epsilon':>8}{'weight':>8}{'recall':>8}{'precision':>11}{'balanced':>10}")

    def show(method: str, epsilon: str, weight: float, found: list[tuple[float, float, float]]) -> None:
        recall, precision, balanced = np.mean(found, axis=0)
        print(f"{method:<12}{epsilon:>8}{weight:>8g}{recall:>8.3f}{precision:>11.3f}{balanced:>10.3f}", flush=True)

    for weight in (1.0, WEIGHT):
        plain = LogisticRegression(class_weight={1: weight}, max_iter=1000).fit(*table(0))
        show("true labels", "-", weight, [measured(plain.predict(others) == 1, truth)])
    for method in given.methods.split(","):
        for epsilon in given.epsilons.split(","):
            for weight in (1.0, WEIGHT):
                found = []
                for draw in range(given.draws):
                    weights = None if weight == 1 else {1: weight}
                    model = LabelDPClassifier(float(epsilon), method=method, classes=[0, 1], class_weight=weights)
                    found.append(measured(model.fit(*table(draw)).predict(others) == 1, truth))
                show(method, epsilon, weight, found)


if __name__ == "__main__":
    main()
