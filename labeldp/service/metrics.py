"""Count calls for Prometheus and write one line of JSON for each: who, what, how long, how it ended.

Neither has a label, a prior, a feature, an id of a row, a setting or a token in it.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from typing import IO, Any

from labeldp.budgets.tables import now
from labeldp.service.wire import VERBS

_CALLS = ("action health", "action describe", "action budget", "action certificate", "action holds", "action log",
          "action metrics", "action job", "action stop", "exchange", "bind", "choose", "users", "ask",
          "job", "fetch")  # fmt: skip


class Metrics:
    """How often each call was made, how it ended and how long it took.

    >>> metrics = Metrics()
    >>> metrics.count({"call": "ask", "verb": "responses"}, "ok", 0.25)
    >>> print(metrics.text().splitlines()[2])
    labeldp_calls_total{call="ask",verb="responses",outcome="ok"} 1
    """

    def __init__(self, logs: IO[str] | None = None) -> None:
        self._lock, self._logs = threading.Lock(), logs
        self._calls: Counter[tuple[str, str, str]] = Counter()
        self._seconds: Counter[tuple[str, str, str]] = Counter()

    def count(self, fields: Mapping[str, Any], outcome: str, seconds: float) -> None:
        """Count a call and log it; words that are not known are not repeated."""
        call = fields["call"] if fields["call"] in _CALLS else "unknown"
        verb = fields.get("verb", "") if fields.get("verb", "") in VERBS else ""
        with self._lock:
            self._calls[call, verb, outcome] += 1
            self._seconds[call, verb, outcome] += seconds  # type: ignore[assignment]
        if self._logs is not None:
            line = {"time": now(), "call": call, "verb": verb, "outcome": outcome, "seconds": round(seconds, 6)}
            line |= {name: fields[name] for name in ("who", "dataset") if name in fields}
            print(json.dumps(line), file=self._logs, flush=True)

    def text(self) -> str:
        """Return the counts as Prometheus reads them."""
        with self._lock:
            calls, seconds = dict(self._calls), dict(self._seconds)
        lines: list[str] = []
        for name, what, found in (
            ("labeldp_calls_total", "Calls by what was asked and how it ended.", calls),
            ("labeldp_call_seconds_total", "Seconds that these calls took.", seconds),
        ):
            lines += [f"# HELP {name} {what}", f"# TYPE {name} counter"]
            for (call, verb, outcome), value in sorted(found.items()):
                labels = f'call="{call}",verb="{verb}",outcome="{outcome}"'
                lines.append(f"{name}{{{labels}}} {value:.6g}" if name.endswith("seconds_total") else
                             f"{name}{{{labels}}} {value}")  # fmt: skip
        return "\n".join(lines) + "\n"


def to_stderr() -> Metrics:
    """Return metrics that log to standard error."""
    return Metrics(sys.stderr)
