"""Machine learning on private labels: label differential privacy, exactly.

Labels go into a vault. Mechanisms are the only questions it answers. Answers are releases. A ledger turns the
questions asked into a certificate.
"""

from importlib import metadata
from typing import TYPE_CHECKING, Any

from labeldp.accounting.certificate import Certificate
from labeldp.accounting.ledger import Budget, BudgetExceededError
from labeldp.private.counts import GaussianNoise, GroupCounts, LaplaceNoise
from labeldp.private.randomizers import BitFlip, LaplaceOneHot, PriorResponse, RandomizedResponse, TopKResponse
from labeldp.private.randomness import SecureRandom
from labeldp.private.vault import LabelVault
from labeldp.releases import NoisyCounts, NoisyLabels

if TYPE_CHECKING:
    from labeldp.data.tables import PrivateTable, privatize, read_private

__version__ = metadata.version("labeldp")

__all__ = [
    "BitFlip",
    "Budget",
    "BudgetExceededError",
    "Certificate",
    "GaussianNoise",
    "GroupCounts",
    "LabelVault",
    "LaplaceNoise",
    "LaplaceOneHot",
    "NoisyCounts",
    "NoisyLabels",
    "PriorResponse",
    "PrivateTable",
    "RandomizedResponse",
    "SecureRandom",
    "TopKResponse",
    "__version__",
    "privatize",
    "read_private",
]

_TABLES = {"PrivateTable", "privatize", "read_private"}


def __getattr__(name: str) -> Any:
    # Tables need pyarrow, which takes as long to import as all the rest together.
    if name in _TABLES:
        from labeldp.data import tables

        return getattr(tables, name)
    raise AttributeError(f"module 'labeldp' has no attribute {name!r}")
