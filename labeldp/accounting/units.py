"""Whose labels may change at once: what a claim protects, in the certificate's words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """What one neighbour may replace.

    Args:
        protects: what the claim is about, in a few words.
        neighbours: when two data sets are neighbours, in full.
        counted: what the ledger counts one of per unit.
    """

    protects: str
    neighbours: str
    counted: str


ONE_LABEL = Unit(
    protects="one label",
    neighbours=(
        "Two data sets are neighbours when one label is replaced by any other. Features, the number of rows, "
        "their order and the set of classes are public."
    ),
    counted="rows",
)
ONE_USER = Unit(
    protects="all labels of one user",
    neighbours=(
        "Two data sets are neighbours when any or all labels of one user are replaced by any others. Features, which "
        "row belongs to which user, the number of rows, their order and the set of classes are public."
    ),
    counted="users",
)
UNITS = (ONE_LABEL, ONE_USER)


def unit_of_words(protects: object, neighbours: object) -> Unit | None:
    """The unit worded exactly like this, or None.

    >>> unit_of_words(ONE_USER.protects, ONE_USER.neighbours).counted
    'users'
    """
    return next((unit for unit in UNITS if (unit.protects, unit.neighbours) == (protects, neighbours)), None)
