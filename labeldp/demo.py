"""The first minute with the library: a real table, a private column, a certificate that verifies."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from labeldp.accounting.words import odds_in_words
from labeldp.data import tables
from labeldp.data.samples import ADULT_CLASSES, adult_path


def run_demo(folder: Path, epsilon: float, say: Callable[[str], None]) -> None:
    """Privatize Adult's income column at this epsilon into `folder`, tell the price, verify the certificate."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "adult-private.parquet"
    say(f"Adult census income, label 'income' ∈ {{{', '.join(ADULT_CLASSES)}}}, epsilon = {epsilon:g}")
    certificate = tables.privatize(adult_path(), target, label="income", classes=ADULT_CLASSES, epsilon=epsilon)
    say("\nWhat is promised\n  " + odds_in_words(certificate.epsilon, certificate.delta))
    say("  It holds for every person in the table, whatever anyone else knows or does with the file.")
    say("\nWhat it cost\n" + _price(target, epsilon))
    problems = tables.verify_file(tables.certificate_path(target))
    if problems:
        raise ValueError("; ".join(problems))
    say(f"\nWritten\n  {target}\n  {tables.certificate_path(target)}\nThe certificate was verified: it holds.")


def _price(target: Path, epsilon: float) -> str:
    """Label accuracy: expected, and seen. Adult is public, so here, and only here, we may compare with the truth."""
    import pyarrow.parquet as pq

    true = pq.read_table(adult_path(), columns=["income"])["income"].to_pylist()
    private = pq.read_table(target, columns=["income"])["income"].to_pylist()
    agree = sum(a == b for a, b in zip(true, private, strict=True)) / len(true)
    kept = 1 / (1 + math.exp(-epsilon))
    share, noisy = (sum(value == ADULT_CLASSES[1] for value in column) / len(true) for column in (true, private))
    corrected = (noisy - (1 - kept)) / (2 * kept - 1) if kept > 0.5 else float("nan")
    return (
        f"  Label accuracy: {kept:.1%} expected, {agree:.1%} seen (Adult is public, so we may look).\n"
        f"  Share of incomes above 50K: {share:.2%} true, {noisy:.2%} among private labels,\n"
        f"  {corrected:.2%} after correcting for the known noise."
    )
