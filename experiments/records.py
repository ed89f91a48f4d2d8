"""Result lines: one JSON object per training, in files that are only ever appended to.

`epsilon` is a number, or the string "inf" where JSON has no number. `FIELDS` are in every line; others may follow.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from experiments.settings import Run
from labeldp.core import certificate
from labeldp.core.ledger import ONE_USER

FIELDS = (
    "dataset", "method", "epsilon", "delta", "accounting", "seed", "metric", "value", "seconds", "device", "commit",
    "settings", "certificate",
)  # fmt: skip
# By what may be replaced: one label, or all labels of one user.
ACCOUNTING, OF_USERS = "label-substitution", "user-substitution"
# Noise is calibrated from above, so a claim may stay a little below what was asked for.
_SLACK = 0.01

Record = dict[str, Any]


def read(path: Path) -> list[Record]:
    """All lines of the file; none when it does not exist."""
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            found.append(json.loads(line))
        except ValueError:
            raise ValueError(
                f"{path}: line {number} is no JSON, perhaps cut short when a run was killed; delete that line"
            ) from None
    return found


def append(path: Path, record: Record) -> None:
    """Add one line, after checking it: a line that contradicts its certificate is never written."""
    problems = check(record)
    if problems:
        raise ValueError(f"the run's line is wrong and was not written: {'; '.join(problems)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    # An editor may have left the last line without its end.
    gap = b"" if not path.exists() or path.read_bytes()[-1:] in (b"", b"\n") else b"\n"
    with path.open("ab") as file:
        file.write(gap + line)


def check(record: Record) -> list[str]:
    """Everything that is wrong with a line, as sentences; empty when it is fine."""
    absent = [name for name in FIELDS if name not in record]
    if absent:
        return [f"fields missing: {', '.join(absent)}"]
    try:
        claim = certificate.parse(json.dumps(record["certificate"]))
    except certificate.CertificateError as error:
        return [str(error)]
    if record["accounting"] != accounting(claim):
        return [f"accounting={record['accounting']!r} is not {accounting(claim)!r}, which the certificate is about"]
    problems = certificate.verify(claim)
    if math.isinf(epsilon_of(record)):
        # Runs without privacy are here to compare with, and say so.
        problems = tuple(problem for problem in problems if not problem.startswith("epsilon is infinite"))
    return [*problems, *_contradictions(record, claim)]


def accounting(claim: certificate.Certificate) -> str:
    """Say what may be replaced under this certificate."""
    return OF_USERS if claim.unit == ONE_USER else ACCOUNTING


def _contradictions(record: Record, claim: certificate.Certificate) -> list[str]:
    problems = []
    epsilon = epsilon_of(record)
    # Infinity is equal to itself, which a tolerance would not see.
    if claim.epsilon != epsilon and not epsilon * (1 - _SLACK) <= claim.epsilon <= epsilon:
        problems.append(f"epsilon={epsilon:g} is not the certificate's {claim.epsilon:g}")
    if claim.delta != record["delta"]:
        problems.append(f"delta={record['delta']:g} is not the certificate's {claim.delta:g}")
    return problems


def epsilon_of(record: Record) -> float:
    """The line's epsilon as a number."""
    return float(record["epsilon"])


def plain(epsilon: float) -> float | str:
    """An epsilon as JSON can say it."""
    return "inf" if math.isinf(epsilon) else epsilon


def asked(record: Record) -> float:
    """The epsilon under which the settings file lists the run (see `experiments.run.record_of`)."""
    return float(record.get("listed_epsilon", record["epsilon"]))


def of_setting(records: list[Record], run: Run) -> list[Record]:
    """The lines of this run's very settings, of any seed. Lines of other settings are other experiments."""
    return [
        record
        for record in records
        if (record["dataset"], record["method"], record["metric"]) == (run.dataset, run.method, run.metric)
        and asked(record) == run.epsilon
        and record["settings"] == run.settings
    ]


def missing(runs: list[Run], records: list[Record]) -> list[Run]:
    """The runs that have no line yet."""
    return [run for run in runs if run.seed not in {record["seed"] for record in of_setting(records, run)}]
