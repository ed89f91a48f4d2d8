"""How long it takes to find the noise for a privacy target: labeldp against dp_accounting.

    python benchmarks/calibrate.py            a table
    python benchmarks/calibrate.py --json     one JSON object as the last line

Both search for the noise multiplier s / C of DP-SGD under the replacement of one label (60,000 rows, Poisson batches
of 1,024 expected). dp_accounting gets a bracket around the answer and the tolerance of its documentation's example,
which favours it in time; labeldp gets nothing. Times are medians over the repeats, with the range. "Its extra noise"
is how much more noise dp_accounting's default grid asks for.
"""

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

from labeldp.budgets.calibrate import noise_multiplier
from labeldp.core.accountant import _epsilon

RATE = 1024 / 60000
DELTA = 1e-5
SETTINGS = [(293, 0.1), (293, 1.0), (293, 5.0), (10_000, 0.1), (10_000, 1.0), (10_000, 5.0)]
PEER_SECONDS = 15.0


def measure(call: Callable[[], float], repeats: int) -> dict[str, Any]:
    """Answer, median and range of the wall-clock times."""
    times: list[float] = []
    response = 0.0
    for _ in range(repeats):
        start = time.perf_counter()
        response = call()
        times.append(time.perf_counter() - start)
    return {"sigma": response, "median_s": statistics.median(times), "min_s": min(times), "max_s": max(times)}


def ours(steps: int, epsilon: float) -> float:
    """labeldp, without the help of its cache."""
    _epsilon.cache_clear()
    return noise_multiplier(epsilon, DELTA, steps, RATE)


def peer_calibration() -> Callable[[int, float, float], float] | None:
    """dp_accounting's calibration, or None where it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import dp_accounting as dp
            from dp_accounting.pld import PLDAccountant
    except ImportError:
        return None

    def calibrate(steps: int, epsilon: float, near: float) -> float:
        return dp.calibrate_dp_mechanism(
            lambda: PLDAccountant(dp.NeighboringRelation.REPLACE_ONE),
            lambda s: dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(RATE, dp.GaussianDpEvent(s)), steps),
            epsilon,
            DELTA,
            dp.ExplicitBracketInterval(0.8 * near, 1.25 * near),
            tol=1e-5,
        )

    return calibrate


def main() -> None:
    """Run every setting and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--repeats", type=int, default=5, help="repeats of labeldp; dp_accounting gets up to 3")
    arguments = parser.parse_args()
    peer = peer_calibration()
    if peer is None:
        print("dp_accounting is not installed, so only labeldp is timed; pip install dp-accounting==0.6.0 to compare.")
    ours(10, 1.0)  # warm up the transform's plans
    rows: list[dict[str, Any]] = []
    heads = ("steps", "eps", "sigma", "labeldp, s (range)", "dp_accounting, s (range)", "ratio", "its extra noise")
    print("{:>6} {:>5} {:>10} {:>24} {:>28} {:>7} {:>16}".format(*heads))
    for steps, epsilon in SETTINGS:
        mine = measure(lambda: ours(steps, epsilon), arguments.repeats)  # noqa: B023
        row: dict[str, Any] = {"steps": steps, "epsilon": epsilon, "delta": DELTA, "rate": RATE, "labeldp": mine}
        theirs = "-"
        if peer is not None:
            first = measure(lambda: peer(steps, epsilon, mine["sigma"]), 1)  # noqa: B023
            more = min(2, int(PEER_SECONDS / first["median_s"]) - 1)
            row["dp_accounting"] = measure(lambda: peer(steps, epsilon, mine["sigma"]), more) if more > 0 else first  # noqa: B023
            row["ratio"] = row["dp_accounting"]["median_s"] / mine["median_s"]
            theirs = _cell(row["dp_accounting"])
        rows.append(row)
        ratio = f"{row['ratio']:.1f}x" if "ratio" in row else "-"
        extra = f"{row['dp_accounting']['sigma'] / mine['sigma'] - 1:.1e}" if "ratio" in row else "-"
        print(f"{steps:>6} {epsilon:>5g} {mine['sigma']:>10.5f} {_cell(mine):>24} {theirs:>28} {ratio:>7} {extra:>16}")
    if arguments.json:
        print(json.dumps({"benchmark": "calibrate", "rows": rows}))


def _cell(timing: dict[str, Any]) -> str:
    return f"{timing['median_s']:.3f} ({timing['min_s']:.3f}-{timing['max_s']:.3f})"


if __name__ == "__main__":
    main()
