"""Run `labeldp epsilon` and `labeldp calibrate`: from queries to their price, and back."""

from __future__ import annotations

import json
import math
from typing import Any

import click

from labeldp.cli.options import EPSILON, OptionError, refuse_idle

BATCHES = ("poisson", "fixed-size", "public", "partition")

_noise_options = [
    click.option("--steps", type=click.IntRange(1), help="Number of noisy sums T.  [default: 1]"),
    click.option("--rate", type=click.FloatRange(0, 1, min_open=True),
                 help="Probability q that a row is in a batch.  [default: 1]"),
    click.option("--batches", type=click.Choice(BATCHES),
                 help="[default: poisson] "
                      "How batches are drawn: secretly row by row, secretly of fixed size, in public, or as a "
                      "partition named in advance and passed ⌈steps·rate⌉ times."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
]  # fmt: skip


def _with_noise_options(command: Any) -> Any:
    for option in reversed(_noise_options):
        command = option(command)
    return command


@click.command()
@click.option("--noise-multiplier", type=float, help="Noise std ÷ clipping norm C of the summed gradients.")
@click.option("--response-epsilon", type=float, help="Epsilon of one private response per row, instead of a noise.")
@click.option("--times", type=click.IntRange(1), help="Responses drawn of the same row.  [default: 1]")
@click.option("--delta", type=float, help="Needed with a noise multiplier; optional for responses (default 0).")
@_with_noise_options
def epsilon(
    noise_multiplier: float | None,
    response_epsilon: float | None,
    times: int | None,
    delta: float | None,
    steps: int | None,
    rate: float | None,
    batches: str | None,
    as_json: bool,
) -> None:
    """Compute the exact epsilon of a planned release.

    Neighbours differ in one label. Replacing a label moves a sum of vectors clipped at norm C by up to 2C; the noise
    multiplier is still noise std ÷ C.

    \b
    labeldp epsilon --noise-multiplier 2 --steps 293 --rate 0.0171 --delta 1e-5
    labeldp epsilon --response-epsilon 0.5 --times 3
    """
    from labeldp.budgets import calibrate
    from labeldp.core import accountant
    from labeldp.core.events import PureDP, Query

    if (noise_multiplier is None) == (response_epsilon is None):
        raise OptionError("give either --noise-multiplier or --response-epsilon")
    if noise_multiplier is None:
        refuse_idle("--response-epsilon", steps=steps, rate=rate, batches=batches)
        queries = (Query(PureDP(response_epsilon or 0.0), times or 1),)
    else:
        refuse_idle("--noise-multiplier", times=times)
        if not delta or delta >= 1:
            raise OptionError("--noise-multiplier needs a --delta between 0 and 1 (say 1e-5, below one over the rows)")
        queries = calibrate.gradient_queries(noise_multiplier, steps or 1, rate or 1.0, batches or "poisson")
    spent = accountant.epsilon(queries, delta or 0.0)
    _print_cost(spent, delta or 0.0, noise_multiplier, accountant.accountant_name((queries,), delta or 0.0), as_json)


@click.command()
@click.option("--epsilon", "target", type=EPSILON, required=True, help="The epsilon to stay within.")
@click.option("--delta", type=float, required=True, help="The delta to stay within.")
@_with_noise_options
def calibrate(
    target: float, delta: float, steps: int | None, rate: float | None, batches: str | None, as_json: bool
) -> None:
    """Find the least noise for a given epsilon and delta.

    It is found for T noisy sums, and checked again by the accountant.

    \b
    labeldp calibrate --epsilon 1 --delta 1e-5 --steps 293 --rate 0.0171
    """
    from labeldp.budgets import calibrate
    from labeldp.core import accountant

    how = (steps or 1, rate or 1.0, batches or "poisson")
    multiplier = calibrate.noise_multiplier(target, delta, *how)
    queries = calibrate.gradient_queries(multiplier, *how)
    spent = accountant.epsilon(queries, delta)
    _print_cost(spent, delta, multiplier, accountant.accountant_name((queries,), delta), as_json)


def _print_cost(spent: float, delta: float, multiplier: float | None, accountant: str, as_json: bool) -> None:
    if as_json:
        stated = "infinity" if math.isinf(spent) else spent
        cost = {"epsilon": stated, "delta": delta, "noise_multiplier": multiplier, "accountant": accountant}
        click.echo(json.dumps(cost))
        return
    from labeldp.results.card import at_most, odds_in_words

    click.echo(f"epsilon           {at_most(spent)}\ndelta             {at_most(delta)}")
    if multiplier is not None:
        click.echo(f"noise multiplier  {at_most(multiplier)}   (noise std ÷ clipping norm)")
    click.echo(f"accountant        {accountant}\n{odds_in_words(spent, delta)}")
