"""Measure how long commands take to start, beside an empty Python: medians, and what may not be exceeded.

`labeldp --help` had 0.11 s where an empty Python had 0.02 s. What counts is processor time, because a machine may be
busy with other things, and the difference in units of an empty start, because machines differ. Exit code 1 where a
command takes more than twice what it had.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

RUNS = 9
# Empty starts of Python that each may take beside its own: measured 3 to 6.
ALLOWED = {
    ("--help",): 12.0,
    ("--version",): 12.0,
    ("plan", "--help"): 12.0,
    ("train", "--help"): 12.0,
    ("budget",): 12.0,
}


def seconds(*words: str) -> float:
    """Return the median processor time of a process."""
    found = []
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(found)


def main() -> None:
    """Print a line for each command."""
    empty, slow = seconds("-c", "pass"), []
    print(f"{'python -c pass':<28}{empty:.3f} s")
    for words, allowed in ALLOWED.items():
        took = seconds("-m", "labeldp", *words)
        factor = (took - empty) / empty
        slow += [" ".join(words)] * (factor > allowed)
        print(f"{'labeldp ' + ' '.join(words):<28}{took:.3f} s, {factor:.1f} empty starts more (allowed {allowed:g})")
    if slow:
        raise SystemExit(f"too slow to start: {', '.join(slow)}")


if __name__ == "__main__":
    main()
