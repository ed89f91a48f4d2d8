"""Find out whether a promise is broken: lower bounds on ε from what was released, or from what a training gives away.

An audit can catch a broken promise; it cannot prove that one is kept. The proof is in the mechanisms and the ledger.
"""

from labeldp.audit.bounds import AuditResult, Claim
from labeldp.audit.folders import FolderAudit, audit_folder
from labeldp.audit.responses import audit_mechanism, audit_responses
from labeldp.audit.selftest import self_test
from labeldp.audit.training import audit_observed, audit_runs, audit_training

__all__ = [
    "AuditResult",
    "Claim",
    "FolderAudit",
    "audit_folder",
    "audit_mechanism",
    "audit_observed",
    "audit_responses",
    "audit_runs",
    "audit_training",
    "self_test",
]
