"""Decide what queries may cost and keep what they have cost: calibrated noise, budgets that outlive a process.

`BudgetStore` keeps budgets in a database and needs SQLAlchemy.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labeldp.budgets.store import BudgetStore

__all__ = ["BudgetStore"]


def __getattr__(name: str) -> Any:
    # Fetched when first used: a vault without a store needs no database.
    if name == "BudgetStore":
        from labeldp.budgets.store import BudgetStore

        return BudgetStore
    raise AttributeError(f"module 'labeldp.budgets' has no attribute {name!r}")
