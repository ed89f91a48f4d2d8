"""Auditing a file that `labeldp privatize` wrote, against the owner's original."""

from __future__ import annotations

from pathlib import Path

from labeldp.audit.answers import audit_answers
from labeldp.audit.labels import read_labels
from labeldp.audit.result import AuditResult, Claim
from labeldp.data.tables import TableError, read_private


def audit_table(
    private: Path,
    original: Path,
    *,
    candidates: int = 2,
    confidence: float = 0.999,
    seed: int | None = None,
    delimiter: str | None = None,
) -> AuditResult:
    """A lower bound on ε of a privatized table, from the file it was made of; exact, see `audit_answers`.

    Args:
        private: what `privatize` wrote, with its certificate beside it.
        original: the file it was made of: the same rows in the same order, its labels true.
        delimiter: of the original, if it is CSV; as in the private file when None.

    >>> import tempfile
    >>> from labeldp import privatize
    >>> folder = Path(tempfile.mkdtemp())
    >>> rows = "".join(f"{i},{'high' if i % 3 else 'low'}\\n" for i in range(3000))
    >>> _ = (folder / "in.csv").write_text("age,income\\n" + rows)
    >>> _ = privatize(folder / "in.csv", folder / "out.csv", label="income", classes=["low", "high"], epsilon=1.0)
    >>> audit_table(folder / "out.csv", folder / "in.csv").contradicts
    False
    """
    table = read_private(private)
    own = read_labels(original, table.label, table.classes, delimiter=delimiter)
    if len(own.codes) != len(table.labels):
        raise TableError(
            f"{original.name} has {len(own.codes)} rows and {private.name} has {len(table.labels)}; give the file that "
            "the private one was made of"
        )
    claim = Claim(table.labels.law.epsilon) if table.certificate is None else Claim.of(table.certificate)
    return audit_answers(table.labels, own.codes, claim, candidates=candidates, confidence=confidence, seed=seed)
