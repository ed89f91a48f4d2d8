"""Machine learning on private labels: label differential privacy, exactly.

Labels go into a vault. Mechanisms are the only queries it answers, and what it answers are releases. A ledger turns the
queries into a certificate.
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labeldp.budgets.store import BudgetStore
    from labeldp.choosing.choice import Choice, choose
    from labeldp.core.certificate import Certificate
    from labeldp.core.ledger import Budget, BudgetExceededError
    from labeldp.core.random import SecureRandom
    from labeldp.core.vault import LabelVault
    from labeldp.data.tables import PrivateTable, privatize, read_private
    from labeldp.estimator.classifier import LabelDPClassifier
    from labeldp.estimator.regressor import LabelDPRegressor
    from labeldp.mechanisms.counts import GaussianNoise, GroupCounts, LaplaceNoise
    from labeldp.mechanisms.gradients.sums import DiameterBound, GradientSum, NormBound
    from labeldp.mechanisms.gradients.users import UserGradientSum
    from labeldp.mechanisms.moments import Moments
    from labeldp.mechanisms.responses import PriorResponse, RandomizedResponse, TopKResponse
    from labeldp.mechanisms.selection import GroupVotes
    from labeldp.mechanisms.teachers import TeacherVotes
    from labeldp.mechanisms.user_responses import UserResponse
    from labeldp.mechanisms.users import UserVault, cap_rows
    from labeldp.mechanisms.vectors import BitFlip, LaplaceOneHot
    from labeldp.releases import NoisyCounts, NoisyGradient, NoisyLabels, NoisyMoments
    from labeldp.results.saved import load


__version__ = metadata.version("labeldp")

__all__ = [
    "BitFlip",
    "Budget",
    "BudgetExceededError",
    "BudgetStore",
    "Certificate",
    "Choice",
    "DiameterBound",
    "GaussianNoise",
    "GradientSum",
    "GroupCounts",
    "GroupVotes",
    "LabelDPClassifier",
    "LabelDPRegressor",
    "LabelVault",
    "LaplaceNoise",
    "LaplaceOneHot",
    "Moments",
    "NoisyCounts",
    "NoisyGradient",
    "NoisyLabels",
    "NoisyMoments",
    "NormBound",
    "PriorResponse",
    "PrivateTable",
    "RandomizedResponse",
    "SecureRandom",
    "TeacherVotes",
    "TopKResponse",
    "UserGradientSum",
    "UserResponse",
    "UserVault",
    "__version__",
    "cap_rows",
    "choose",
    "load",
    "privatize",
    "read_private",
]

_HOMES = {
    "budgets.store": ("BudgetStore",),
    "choosing.choice": ("Choice", "choose"),
    "core.certificate": ("Certificate",),
    "core.ledger": ("Budget", "BudgetExceededError"),
    "core.random": ("SecureRandom",),
    "core.vault": ("LabelVault",),
    "data.tables": ("PrivateTable", "privatize", "read_private"),
    "estimator": ("LabelDPClassifier", "LabelDPRegressor"),
    "mechanisms.counts": ("GaussianNoise", "GroupCounts", "LaplaceNoise"),
    "mechanisms.gradients.sums": ("DiameterBound", "GradientSum", "NormBound"),
    "mechanisms.gradients.users": ("UserGradientSum",),
    "mechanisms.moments": ("Moments",),
    "mechanisms.responses": ("PriorResponse", "RandomizedResponse", "TopKResponse"),
    "mechanisms.selection": ("GroupVotes",),
    "mechanisms.teachers": ("TeacherVotes",),
    "mechanisms.user_responses": ("UserResponse",),
    "mechanisms.users": ("UserVault", "cap_rows"),
    "mechanisms.vectors": ("BitFlip", "LaplaceOneHot"),
    "releases": ("NoisyCounts", "NoisyGradient", "NoisyLabels", "NoisyMoments"),
    "results.saved": ("load",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    # Fetched when first used: the command line answers --help without loading numpy, scipy and pyarrow.
    if name in _HOME_OF:
        return getattr(import_module(f"labeldp.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module 'labeldp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
