"""What looks at labels cost. Numbers only: numpy and scipy. `BudgetStore` keeps them on disk and needs SQLAlchemy."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labeldp.accounting.store import BudgetStore

__all__ = ["BudgetStore"]


def __getattr__(name: str) -> Any:
    # Fetched when first used: a vault without a store needs no database.
    if name == "BudgetStore":
        from labeldp.accounting.store import BudgetStore

        return BudgetStore
    raise AttributeError(f"module 'labeldp.accounting' has no attribute {name!r}")
