"""AUC on census tables at ε = 0.1, 0.5, 1, 2: `LabelDPClassifier(method="auto")` beside what else one could do.

    auto            labeldp.LabelDPClassifier(epsilon), nothing else set
    auto + student  its method "one_shot+linear", which images are given and tables are not: here is why
    RR + logistic   randomized response (ours), then scikit-learn's LogisticRegression on the answers
    diffprivlib     its LogisticRegression: full privacy of features too, a stronger promise; for reference
    non-private     scikit-learn's LogisticRegression and HistGradientBoostingClassifier on true labels

The two logistic regressions see standardised numbers and one-hot categories, the usual way; "same features" is a
logistic regression on true labels and on the very features that auto uses. diffprivlib has to know how long a row can
be: numbers are cut at 4 deviations and rows at their median length, taken as public, which did best of what was tried
on Adult. It was written for an older scikit-learn: `pip install diffprivlib 'scikit-learn<1.8'`, or it is left out.

Adult is bundled; census income (KDD) is read from LABELDP_DATA and left out where it is missing. Test labels are open
and only measured with. Seeds change the noise and random_state, never the rows.

Run: python benchmarks/tabular_auc.py [--seeds 3] [--data adult,kdd] [--epsilons 0.1,0.5,1,2] [--only-private] [--json]
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import os
import time
import warnings
from collections.abc import Callable
from functools import partial
from inspect import signature
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from labeldp.core.vault import LabelVault
from labeldp.data.columns import Layout, read_frame
from labeldp.data.files import ADULT_CLASSES, adult_path
from labeldp.estimator.classifier import LabelDPClassifier
from labeldp.features.tables import Table
from labeldp.mechanisms.responses import RandomizedResponse

CLASSES = (0, 1)
# Of the 42 columns of the census: the instance weight is no feature, by its authors' word.
KDD_WEIGHT = "f24"


class Data:
    """Public features as Arrow tables, labels 0 or 1."""

    def __init__(self, name: str, train: pa.Table, test: pa.Table, label: str, positive: str) -> None:
        self.name = name
        self.y, self.test_y = (_is(table[label], positive) for table in (train, test))
        self.x, self.test_x = train.drop([label]), test.drop([label])
        parts = [read_frame(table) for table in (self.x, self.test_x)]
        layout = Layout.of(parts[0])
        both = [layout.split(part) for part in parts]
        plain = Table(one_hot=1000).fit(both[0])
        self.plain, self.test_plain = (plain.features(part).numpy() for part in both)


def _is(column: pa.ChunkedArray, positive: str) -> np.ndarray:
    return np.array([str(value).strip().rstrip(".") == positive for value in column.to_pylist()], dtype=np.int64)


def adult() -> Data:
    """The bundled copy."""
    train, test = (pq.read_table(adult_path(split)) for split in ("train", "test"))
    return Data("adult", train, test, "income", ADULT_CLASSES[1])


def kdd_tables() -> tuple[pa.Table, pa.Table, str] | None:
    """Census income of 1994 and 1995 (UCI): two parts and the label's column, or None where it is not at hand."""
    folder = Path(os.environ.get("LABELDP_DATA", "")) / "census_income_kdd"
    files = [folder / f"census-income.{split}.csv.xz" for split in ("train", "test")]
    if not all(file.exists() for file in files):
        return None
    # The files have no header; categories may look like numbers in one of them, so every column is read as text or
    # as numbers by its kind in the training part.
    options = pacsv.ReadOptions(autogenerate_column_names=True)
    train = pacsv.read_csv(io.BytesIO(lzma.decompress(files[0].read_bytes())), read_options=options)
    kinds = pacsv.ConvertOptions(column_types=train.schema)
    test = pacsv.read_csv(
        io.BytesIO(lzma.decompress(files[1].read_bytes())), read_options=options, convert_options=kinds
    )
    return train.drop([KDD_WEIGHT]), test.drop([KDD_WEIGHT]), train.column_names[-1]


def kdd() -> Data | None:
    """Census income, or None where it is not at hand."""
    found = kdd_tables()
    if found is None:
        return None
    train, test, label = found
    positive = sorted({str(v).strip().rstrip(".") for v in test[label].unique().to_pylist()}, key=lambda v: "+" in v)[
        -1
    ]
    return Data("kdd", train, test, label, positive)


# -- methods: (data, epsilon, seed) → scores of the test rows ----------------------------------------------------------


def auto(data: Data, epsilon: float, seed: int, method: str = "auto") -> np.ndarray:
    """The estimator, nothing set but ε."""
    model = LabelDPClassifier(epsilon, method=method, classes=CLASSES, holdout=0, random_state=seed)
    model.fit(data.x, data.y)
    assert model.certificate_.epsilon <= epsilon
    return model.predict_proba(data.test_x)[:, 1]


def rr_logistic(data: Data, epsilon: float, seed: int) -> np.ndarray:
    """Noisy labels taken at their word."""
    responses = LabelVault(data.y, 2).release(RandomizedResponse(epsilon, 2)).hard()
    return _logistic(data.plain, responses, data.test_plain)


def full_dp(data: Data, epsilon: float, seed: int) -> np.ndarray:
    """Features private too."""
    return full_dp_scores(data.plain, data.y, data.test_plain, epsilon)


def full_dp_scores(x: np.ndarray, y: np.ndarray, test: np.ndarray, epsilon: float) -> np.ndarray:
    """Scores of the test rows by diffprivlib; ImportError where it cannot be used."""
    from diffprivlib.models import LogisticRegression as Private

    if "multi_class" not in signature(LogisticRegression).parameters:
        # It passes this on, and scikit-learn 1.8 no longer takes it.
        raise ImportError("diffprivlib does not know this scikit-learn")
    bound = float(np.median(np.linalg.norm(x.clip(-4, 4), axis=1)))
    short, test = (_at_most_one(part.clip(-4, 4) / bound) for part in (x, test))
    return Private(epsilon=epsilon, data_norm=1.0, max_iter=1000).fit(short, y).decision_function(test)


def _at_most_one(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)


def plain_logistic(data: Data, epsilon: float, seed: int) -> np.ndarray:
    """No privacy."""
    return _logistic(data.plain, data.y, data.test_plain)


def same_features(data: Data, epsilon: float, seed: int) -> np.ndarray:
    """No privacy, on what auto sees."""
    encoder = LabelDPClassifier(1.0, classes=CLASSES, random_state=seed)
    seen, _ = encoder._fit_features(encoder._read(data.x, reset=True), seed)
    test, _ = encoder._encode(encoder._read(data.test_x, reset=False))
    return _logistic(seen.numpy(), data.y, test.numpy())


def boosting(data: Data, epsilon: float, seed: int) -> np.ndarray:
    """No privacy, no linear model."""
    return (
        HistGradientBoostingClassifier(random_state=seed).fit(data.plain, data.y).predict_proba(data.test_plain)[:, 1]
    )


def _logistic(x: np.ndarray, y: np.ndarray, test: np.ndarray) -> np.ndarray:
    return LogisticRegression(max_iter=300).fit(x, y).decision_function(test)


Method = Callable[[Data, float, int], np.ndarray]
PRIVATE: dict[str, Method] = {
    "auto": auto, "auto + student": partial(auto, method="one_shot+linear"), "RR + logistic": rr_logistic,
    "diffprivlib": full_dp,
}  # fmt: skip
OPEN: dict[str, Method] = {"logistic": plain_logistic, "logistic, same features": same_features, "boosting": boosting}


def measured(data: Data, method: Method, epsilon: float, seeds: int) -> tuple[list[float], float]:
    """AUC per seed in per cent, and seconds of one run."""
    found, begun = [], time.process_time()
    for seed in range(seeds):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(100 * float(roc_auc_score(data.test_y, method(data, epsilon, seed))))
    return found, (time.process_time() - begun) / seeds


def table(data: Data, epsilons: list[float], seeds: int, as_json: bool, only_private: bool) -> None:
    """All methods on one data set."""
    open_best = {}
    for name, method in () if only_private else OPEN.items():
        found, seconds = measured(data, method, float("inf"), 1)
        open_best[name] = found[0]
        _say(as_json, dataset=data.name, method=f"non-private {name}", epsilon=None, auc=found, seconds=seconds)
    for epsilon in epsilons:
        results = {}
        for name, method in PRIVATE.items():
            try:
                found, seconds = measured(data, method, epsilon, seeds)
            except ImportError:
                print(f"{name}: not here; it needs an older scikit-learn: pip install diffprivlib 'scikit-learn<1.8'")
                continue
            results[name] = mean(found)
            _say(as_json, dataset=data.name, method=name, epsilon=epsilon, auc=found, seconds=seconds)
        if not as_json:
            rivals = [value for name, value in results.items() if not name.startswith("auto")]
            gaps = [f"{results['auto'] - value:+.2f} to {name}" for name, value in open_best.items()]
            lead = f"  auto is {results['auto'] - max(rivals):+.2f} to the best private rival"
            print(", ".join([lead, *gaps]), flush=True)


def _say(as_json: bool, **line: object) -> None:
    if as_json:
        print(json.dumps(line), flush=True)
        return
    auc: list[float] = line["auc"]  # type: ignore[assignment]
    spread = f" ± {stdev(auc):.2f}" if len(auc) > 1 else ""
    epsilon = "" if line["epsilon"] is None else f"ε = {line['epsilon']:<4g} "
    print(
        f"{line['dataset']:6} {epsilon}{line['method']:36} AUC {mean(auc):6.2f}{spread:7} {line['seconds']:6.1f} s",
        flush=True,
    )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", default="adult,kdd")
    parser.add_argument("--epsilons", default="0.1,0.5,1,2")
    parser.add_argument("--only-private", action="store_true", help="leave out what has no privacy")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.data.split(","):
        data = {"adult": adult, "kdd": kdd}[name]()
        if data is None:
            print("census income (KDD) is not here; set LABELDP_DATA to the folder that has census_income_kdd/")
            continue
        table(data, [float(e) for e in options.epsilons.split(",")], options.seeds, options.json, options.only_private)


if __name__ == "__main__":
    main()
