"""Show claims and budgets in notebooks: small HTML tables, every text escaped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, Context, Decimal
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labeldp.core.certificate import Certificate
    from labeldp.core.ledger import Budget

# Histories that a notebook shows.
_SHOWN_GROUPS = 8


def table(caption: str, lines: Iterable[Sequence[object]], head: Sequence[str] = ()) -> str:
    """Return a table whose lines begin with what they are about.

    >>> table("a < b", [("ε", 1)])
    '<table><caption>a &lt; b</caption><tr><th>ε</th><td>1</td></tr></table>'
    """
    named = "".join(f"<th>{escape(name)}</th>" for name in head)
    made = "".join(
        f"<tr><th>{escape(str(first))}</th>{''.join(f'<td>{escape(str(cell))}</td>' for cell in rest)}</tr>"
        for first, *rest in lines
    )
    return f"<table><caption>{escape(caption)}</caption>{f'<tr>{named}</tr>' if named else ''}{made}</table>"


def at_most(value: float) -> str:
    """Return a number to six digits, rounded up.

    >>> at_most(0.1), at_most(1.0000001), at_most(math.inf)
    ('0.1', '1.00001', 'infinity')
    """
    if not math.isfinite(value):
        return "infinity"
    return f"{float(Context(prec=6, rounding=ROUND_CEILING).create_decimal(Decimal(repr(float(value))))):.6g}"


def odds(epsilon: float) -> str:
    """Return by which factor the odds between two values can move at ε."""
    return f"{at_most(math.exp(epsilon))}×" if epsilon < 50 else "no bound to speak of"


def certificate_html(claim: Certificate) -> str:
    """Return a certificate for notebooks: the claim, the ledger, where the noise comes from, what it rests on."""
    counted = claim.unit.counted
    lines = [("ε", at_most(claim.epsilon)), ("δ", at_most(claim.delta)), ("odds move by at most", odds(claim.epsilon))]
    for group in claim.groups[:_SHOWN_GROUPS]:
        asked = "; ".join(f"{query.times:,} × {query.event}" for query in group.queries)
        lines.append((f"{group.rows:,} {counted}", asked or "not queried"))
    lines.append(("noise", f"from a seed, so not private: {claim.noise}" if claim.seeded else claim.noise))
    lines += [("rests on", sentence) for sentence in claim.assumptions]
    return table(f"Certificate: label differential privacy of {claim.unit.protects}", lines)


def budget_html(budget: Budget) -> str:
    """Return a budget for notebooks."""
    lines = [
        ("ε", at_most(budget.epsilon)),
        ("δ", at_most(budget.delta)),
        ("odds move by at most", odds(budget.epsilon)),
    ]
    return table("Budget: the most that all queries of a label may cost", lines)
