"""Run the vault in a process of its own: labels and budget stay with their owner, mechanisms are all it answers.

`RemoteVault` is the analyst's half, `labeldp serve` the owner's. Needs SQLAlchemy on the owner's side.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labeldp.service.client import RemoteVault

__all__ = ["RemoteVault"]


def __getattr__(name: str) -> Any:
    # Fetched when first used: Arrow Flight takes a moment to load.
    if name == "RemoteVault":
        from labeldp.service.client import RemoteVault

        return RemoteVault
    raise AttributeError(f"module 'labeldp.service' has no attribute {name!r}")
