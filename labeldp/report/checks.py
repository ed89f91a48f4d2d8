"""Sections on trust: the audit, and how anyone can check the result."""

from __future__ import annotations

import math
import shlex

from labeldp.accounting.words import at_most
from labeldp.artifacts.folder import MODEL
from labeldp.report import markup as m
from labeldp.report.charts import bars
from labeldp.report.facts import Facts


def audit_section(facts: Facts) -> str:
    """The lower bound beside the claim; or that there was no audit."""
    found = facts.audit
    if found is None:
        said = "Nobody has tried to catch this promise broken, or the result was not given to this page."
        name = shlex.quote(facts.name)
        advice = [f"labeldp audit {name} --table TABLE", f"labeldp report {name}"]
        return m.section("audit", "Audit", m.paragraph(said), m.code(advice))
    parts = [m.paragraph(found.verdict, "lead" if found.contradicts else "")]
    if math.isfinite(found.epsilon):
        told = f"An attack proves ε of at least {found.bound:.3g}; {found.epsilon:.3g} is claimed."
        values = [
            ("what an attack proves, at least", found.bound, f"{found.bound:.3g}", found.contradicts),
            ("what is claimed, at most", found.epsilon, f"{found.epsilon:.3g}", not found.contradicts),
        ]  # fmt: skip
        parts.append(m.side_by_side(m.figure(bars("Audit: lower bound beside the claim", told, values), told)))
    if not _same_claim(facts):
        parts.append(m.paragraph("The audit was of another claim than this result's; make one that fits.", "soft"))
    parts.append(m.paragraph(_rests_on(facts), "soft"))
    return m.section("audit", "Audit", *parts)


def _rests_on(facts: Facts) -> str:
    found, certificate = facts.audit, facts.certificate
    if facts.audited is None or found is None:
        return "An audit that used true labels is not private itself: then keep this page to yourself."
    same = (
        f" The claim is that of the ledger's looks at δ = {at_most(found.delta, 3)}, where one run can be held against "
        f"it; at δ = {at_most(certificate.delta, 3)} the same looks cost ε = {at_most(certificate.epsilon)}."
        if found.delta != certificate.delta
        else ""
    )
    return (
        f"The method was run again on the same features, with labels made up by coins.{same} No true label was used, "
        "so the audit cost no privacy; and it speaks of the method as it was run here, not of this model's numbers."
    )


def _same_claim(facts: Facts) -> bool:
    found = facts.audit
    if found is not None and facts.audited is not None:
        return facts.audited == facts.files.get(MODEL)
    return found is not None and math.isclose(found.epsilon, facts.story.epsilon, rel_tol=1e-3)


def check_section(facts: Facts) -> str:
    """Hashes, and the commands that recompute everything."""
    certificate, name = facts.certificate, shlex.quote(facts.name)
    rows = list(facts.files.items())
    return m.section(
        "check", "Check it yourself",
        m.paragraph("Whoever has the folder can recompute ε from the ledger and compare every file with its hash; no "
                    "secret is needed. The second command trains again, with noise drawn and paid for anew."),
        m.code([f"labeldp verify {name}", f"labeldp train --config {name}/config.toml --out ANOTHER"]),
        m.table("SHA-256 of the files, as the certificate has them", ["file", "SHA-256"], rows),
        m.paragraph(f"Certificate made {certificate.created} by {certificate.made_by}. δ = "
                    f"{at_most(certificate.delta)}, ε = {at_most(certificate.epsilon, 9)}.", "soft"),
    )  # fmt: skip


def status(facts: Facts) -> str:
    """Whether the folder verifies, first of all."""
    if not facts.problems:
        said = "<b>Verified.</b> Files, ledger and claim of the folder fit together."
        return f'<div class="status" role="status">{said}</div>'
    items = "".join(f"<li>{m.escape(problem)}</li>" for problem in facts.problems)
    said = f"<b>This result does not verify.</b> Do not rely on it:<ul>{items}</ul>"
    return f'<div class="status bad" role="alert">{said}</div>'
