"""Machine learning on private labels: label differential privacy, exactly.

Labels go into a vault. Mechanisms are the only questions it answers. Answers are releases. A ledger turns the
questions asked into a certificate.
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labeldp.accounting.certificate import Certificate
    from labeldp.accounting.ledger import Budget, BudgetExceededError
    from labeldp.accounting.store import BudgetStore
    from labeldp.choosing.choice import Choice, choose
    from labeldp.data.tables import PrivateTable, privatize, read_private
    from labeldp.estimators.classifier import LabelDPClassifier
    from labeldp.estimators.regressor import LabelDPRegressor
    from labeldp.private.counts import GaussianNoise, GroupCounts, LaplaceNoise
    from labeldp.private.gradients import DiameterBound, GradientSum, NormBound
    from labeldp.private.moments import Moments
    from labeldp.private.randomizers import BitFlip, LaplaceOneHot, PriorResponse, RandomizedResponse, TopKResponse
    from labeldp.private.randomness import SecureRandom
    from labeldp.private.teacher_votes import TeacherVotes
    from labeldp.private.user_gradients import UserGradientSum
    from labeldp.private.user_responses import UserResponse
    from labeldp.private.users import UserVault, cap_rows
    from labeldp.private.vault import LabelVault
    from labeldp.private.votes import GroupVotes
    from labeldp.releases import NoisyCounts, NoisyGradient, NoisyLabels, NoisyMoments

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
    "privatize",
    "read_private",
]

_HOMES = {
    "accounting.certificate": ("Certificate",),
    "accounting.ledger": ("Budget", "BudgetExceededError"),
    "accounting.store": ("BudgetStore",),
    "choosing.choice": ("Choice", "choose"),
    "data.tables": ("PrivateTable", "privatize", "read_private"),
    "estimators": ("LabelDPClassifier", "LabelDPRegressor"),
    "private.counts": ("GaussianNoise", "GroupCounts", "LaplaceNoise"),
    "private.gradients": ("DiameterBound", "GradientSum", "NormBound"),
    "private.moments": ("Moments",),
    "private.randomizers": ("BitFlip", "LaplaceOneHot", "PriorResponse", "RandomizedResponse", "TopKResponse"),
    "private.randomness": ("SecureRandom",),
    "private.user_gradients": ("UserGradientSum",),
    "private.user_responses": ("UserResponse",),
    "private.users": ("UserVault", "cap_rows"),
    "private.vault": ("LabelVault",),
    "private.teacher_votes": ("TeacherVotes",),
    "private.votes": ("GroupVotes",),
    "releases": ("NoisyCounts", "NoisyGradient", "NoisyLabels", "NoisyMoments"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    # Fetched when first used: the command line answers --help without loading numpy, scipy and pyarrow.
    if name in _HOME_OF:
        return getattr(import_module(f"labeldp.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module 'labeldp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
