"""Numbers computed elsewhere, to 25 digits where a closed form or a contour integral allows it.

One-sided: a privacy claim must never be below the truth, and only a little above it.
"""

import json
import math
from pathlib import Path

import pytest

from labeldp.budgets import calibrate
from labeldp.core import accountant, inverse
from labeldp.core.events import FixedSizeGaussian, Gaussian, PoissonGaussian, PublicBatchGaussian, PureDP, Query

_DATA = json.loads((Path(__file__).parent / "vectors.json").read_text())
_CASES = {case["id"]: case for case in _DATA["cases"]}
_TABLE = _DATA["sigma_table"]


def _ids(prefix: str) -> list[str]:
    found = [name for name in _CASES if name.startswith(prefix)]
    assert found
    return found


def _safe_and_close(value: float, expected: float, above: float, below: float = 1e-5) -> None:
    assert expected * (1 - below) <= value <= expected * (1 + above)


def _poisson(params: dict[str, float], noise: float | None = None) -> list[Query]:
    event = PoissonGaussian(params["sigma"] if noise is None else noise, 1, 2, params["q"])
    return [Query(event, int(params["T"]))]


@pytest.mark.parametrize("name", _ids("sub_T1"))
def test_one_poisson_step(name: str) -> None:
    p, expected = _CASES[name]["params"], _CASES[name]["expected"]
    assert PoissonGaussian(p["sigma"], 1, 2, p["q"]).profile(p["eps"])[0] == pytest.approx(expected["delta"], rel=1e-12)


@pytest.mark.parametrize("name", _ids("RD_T1"))
def test_one_step_of_any_radius_and_diameter(name: str) -> None:
    p, expected = _CASES[name]["params"], _CASES[name]["expected"]
    poisson = PoissonGaussian(p["sigma"], p["R"], p["D"], p["q"])
    fixed = FixedSizeGaussian(p["sigma"], p["R"] / 2, p["D"], p["q"])
    for event in (poisson, fixed):
        assert event.profile(p["eps"])[0] == pytest.approx(expected["delta"], rel=1e-12)


@pytest.mark.parametrize("name", _ids("poisson_gauss_delta"))
def test_delta_of_many_poisson_steps(name: str) -> None:
    case = _CASES[name]
    _safe_and_close(inverse.delta(_poisson(case["params"]), case["params"]["eps"]), case["expected"]["delta"], 1e-6, 0)


@pytest.mark.parametrize("name", _ids("poisson_gauss_eps"))
def test_epsilon_of_many_poisson_steps(name: str) -> None:
    case = _CASES[name]
    value = accountant.epsilon(_poisson(case["params"]), case["params"]["delta"])
    _safe_and_close(value, case["expected"]["eps_label_substitution"], 1e-6, 1e-9)


@pytest.mark.parametrize("name", _ids("sigma_"))
def test_noise_for_a_target(name: str) -> None:
    p, expected = _CASES[name]["params"], _CASES[name]["expected"]
    sigma = calibrate.noise_multiplier(p["eps"], p["delta"], p["T"], p["q"])
    # The reference is itself a pessimistic grid, up to 1.4e-5 too large.
    _safe_and_close(sigma, expected["sigma_label_substitution"], 1e-5, 2e-5)
    eps = accountant.epsilon(_poisson(p, expected["sigma_add_remove"]), p["delta"])
    _safe_and_close(eps, expected["true_label_eps_at_sigma_add_remove"], 1e-5, 1e-4)


@pytest.mark.parametrize("row", _TABLE["rows"], ids=lambda row: "-".join(map(str, row)))
def test_table_of_noise_multipliers(row: tuple[str, int, float, float]) -> None:
    delta = 1e-5 if row[0] == "1e-5" else _TABLE["n"] ** -1.1
    sigma = calibrate.noise_multiplier(row[2], delta, row[1], _TABLE["rate"])
    assert sigma == pytest.approx(row[3], rel=6e-5)  # the table has four or five digits


def test_public_batches() -> None:
    case = _CASES["revealed_batch_1"]
    p = case["params"]
    queries = [Query(PublicBatchGaussian(p["sigma"], p["D"], p["q"]), p["T"])]
    _safe_and_close(inverse.delta(queries, p["eps"]), case["expected"]["delta"], 1e-6, 0)


def test_fixed_size_batches() -> None:
    case = _CASES["wor_gauss_eps_1"]
    p = case["params"]
    queries = [Query(FixedSizeGaussian(p["sigma"], 1, 2, p["q"]), p["T"])]
    # Pessimistic reference: its grid of 2.5e-5 costs a few parts in 1e7.
    _safe_and_close(accountant.epsilon(queries, p["delta"]), case["expected"]["eps"], 1e-6, 1e-6)


@pytest.mark.parametrize("name", _ids("noisecluster_sigma"))
def test_analytic_gaussian(name: str) -> None:
    p, expected = _CASES[name]["params"], _CASES[name]["expected"]
    std = inverse.analytic_gaussian_std(p["eps"], p["delta"], math.sqrt(2))
    _safe_and_close(std, expected["sigma"], 2e-12, 1e-15)
    assert inverse.gaussian_mu(p["eps"], p["delta"]) == pytest.approx(expected["mu_gdp"], rel=2e-12)


def test_gaussian_delta() -> None:
    expected = _CASES["noisecluster_delta"]["expected"]["delta"]
    assert inverse.delta([Query(Gaussian(10, math.sqrt(2)))], 0.5) == pytest.approx(expected, rel=1e-12)


def test_composed_gaussian_votes() -> None:
    case = _CASES["gnmax_total_1"]
    p = case["params"]
    queries = [Query(Gaussian(p["sigma"], math.sqrt(2)), p["T"])]
    eps = accountant.epsilon(queries, p["delta"])
    assert eps == pytest.approx(case["expected"]["eps_tight_gaussian"], rel=1e-9)


def test_tight_composition_of_randomized_responses() -> None:
    case = _CASES["user_rr_tight"]
    p, expected = case["params"], case["expected"]
    item = [Query(PureDP(expected["eps_item_tight"]), p["k"])]
    assert accountant.epsilon(item, p["delta"]) == pytest.approx(p["eps"], rel=1e-9)
    worse = [Query(PureDP(0.12), p["k"])]
    assert inverse.delta(worse, p["eps"]) == pytest.approx(expected["delta_check_at_eps_item_0p12"], rel=1e-9)
