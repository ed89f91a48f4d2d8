"""How fast one core answers rows by noise that is keyed by row, beside the stream that one machine uses.

python benchmarks/keyed_noise.py [--rows 4000000] [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse

import numpy as np
from timing import rates, show_rates

from labeldp.core.keyed import KeyedRandom
from labeldp.core.random import SecureRandom, system_key
from labeldp.mechanisms.responses import RandomizedResponse


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    key, channel, labels = system_key(), RandomizedResponse(1.0, 10), np.zeros(given.rows, dtype=np.uint8)
    ids, texts = np.arange(given.rows), [f"row-{number}" for number in range(given.rows)]
    sources = {
        "numbers": lambda: KeyedRandom(key, "release", ids),
        "texts": lambda: KeyedRandom(key, "release", texts),
        "stream": SecureRandom,
    }
    runs = {name: lambda make=make: channel.sample(labels, make()) for name, make in sources.items()}
    show_rates(rates(runs, given.rows, given.rounds), "responses/s", given.json, rows=given.rows)


if __name__ == "__main__":
    main()
