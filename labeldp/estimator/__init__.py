"""Estimators with scikit-learn's interface: fit on private labels, predict, and hold a certificate."""

try:
    from labeldp.estimator.classifier import LabelDPClassifier
    from labeldp.estimator.regressor import LabelDPRegressor
    from labeldp.estimator.select import Selection, select
    from labeldp.estimator.spending import RepeatedFitWarning, UnpaidSearchError
    from labeldp.learning.progress import Progress
except ModuleNotFoundError as missing:
    if missing.name not in {"sklearn", "torch"}:
        raise
    raise ImportError(f"labeldp.estimator needs {missing.name}; install it: pip install 'labeldp[sklearn]'") from None

__all__ = [
    "LabelDPClassifier",
    "LabelDPRegressor",
    "Progress",
    "RepeatedFitWarning",
    "Selection",
    "UnpaidSearchError",
    "select",
]
