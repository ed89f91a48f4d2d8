"""Estimators with scikit-learn's interface: fit on private labels, predict, and hold a certificate."""

try:
    from labeldp.estimators.classifier import LabelDPClassifier
    from labeldp.estimators.progress import Progress
    from labeldp.estimators.regressor import LabelDPRegressor
    from labeldp.estimators.selection import Selection, select
    from labeldp.estimators.spending import PublicClassesWarning, RepeatedFitWarning, UnpaidScoreWarning
except ModuleNotFoundError as missing:
    if missing.name not in {"sklearn", "torch"}:
        raise
    raise ImportError(f"labeldp.estimators needs {missing.name}; install it: pip install 'labeldp[sklearn]'") from None

__all__ = [
    "LabelDPClassifier",
    "LabelDPRegressor",
    "Progress",
    "PublicClassesWarning",
    "RepeatedFitWarning",
    "Selection",
    "UnpaidScoreWarning",
    "select",
]
