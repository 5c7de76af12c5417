"""Attribution of active returns to factors, on a market that plain numpy made of them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from finrl_pod.evaluate.active_attribution import FACTORS, active_attribution
from finrl_pod.evaluate.metrics import bars_per_year
from finrl_pod.types import BacktestResult, Floats, Panel

ASSETS, WARM_UP, BARS = 8, 260, 160
CASH = 1e-4
MEANS = np.array([5e-4, -3e-4, 2e-4, 4e-4])  # of the factors, per bar


def exposures_of(close: Floats) -> Floats:
    """Exposures [N, K] at the last of the closes [T, N], without the package."""
    log = np.log(close)
    returns = np.diff(log, axis=0)[-252:]
    market = np.log(np.exp(returns).mean(1))
    betas = [np.cov(asset, market)[0, 1] / market.var(ddof=1) for asset in returns.T]
    others = (log[-22] - log[-253], log[-1] - log[-6], returns.std(0, ddof=1))
    return np.stack([betas, *((x - x.mean()) / x.std() for x in others)], 1)


def factor_market(noise: float) -> tuple[Floats, Floats, Floats, Floats]:
    """Closes [T, N]; exposures [T-1, N, K], excess returns [T-1, N] and factors [T-1, K] of the last `BARS` bars."""
    rng = np.random.default_rng(4)
    close = 50 * np.exp(np.cumsum(rng.normal(0, 0.01, (WARM_UP, ASSETS)), 0))
    rows = []
    for _ in range(BARS - 1):
        exposures = exposures_of(close)
        factors = MEANS + rng.normal(0, 0.004, len(MEANS))
        excess = exposures @ factors + rng.normal(0, 1, ASSETS) * noise
        close = np.vstack([close, close[-1] * (1 + CASH + excess)])
        rows.append((exposures, excess, factors))
    exposures, excess, factors = (np.array(x) for x in zip(*rows, strict=True))
    return close, exposures, excess, factors


def account(name: str, panel: Panel, weights: Floats, excess: Floats, cost: float) -> BacktestResult:
    """An account that earns its weights [T, N] times the returns of the next bar, less a share of its equity."""
    growth = 1 + CASH + (weights[:-1] * excess).sum(1) - cost
    equity = 1e5 * np.concatenate([[1.0], np.cumprod(growth)])
    costs = np.concatenate([[7.0], cost * equity[:-1]])
    cash = np.full(len(equity) - 1, CASH)
    times = panel.times[-BARS:]
    return BacktestResult(
        name, times, panel.symbols, equity, weights, np.zeros(BARS), costs, metrics={}, risk_free=cash
    )


@pytest.mark.parametrize("noise", [0.0, 0.003])
def test_parts_are_those_of_least_squares_and_add_up(noise: float) -> None:
    close, exposures, excess, factors = factor_market(noise)
    days = np.arange("2020-01-01", "2030-01-01", dtype="datetime64[D]")
    times = days[np.is_busday(days)][: len(close)].astype("datetime64[ns]")
    panel = Panel(times, tuple("ABCDEFGH"), close, np.isfinite(close))
    rng = np.random.default_rng(1)
    weights = rng.dirichlet(np.ones(ASSETS), BARS)
    base_weights = np.full((BARS, ASSETS), 1 / ASSETS)
    champion = account("champion", panel, weights, excess, 3e-4)
    base = account("base", panel, base_weights, excess, 1e-4)
    found = active_attribution(champion, base, panel)
    assert found is not None

    slopes = np.array([np.linalg.lstsq(x, y, rcond=None)[0] for x, y in zip(exposures, excess, strict=True)])
    if not noise:
        np.testing.assert_allclose(slopes, factors, atol=1e-12)
    year = bars_per_year(champion.times)
    active = np.einsum("tn,tnk->tk", (weights - base_weights)[:-1], exposures)
    expected = year * (active * slopes).mean(0)
    assert [found.parts[name] for name in FACTORS] == pytest.approx(list(expected), abs=1e-9)
    assert found.parts["costs"] == pytest.approx(-2e-4 * year)
    total = year * np.mean(np.diff(champion.equity) / champion.equity[:-1] - np.diff(base.equity) / base.equity[:-1])
    assert found.total == pytest.approx(total, rel=1e-12)
    assert sum(found.parts.values()) == pytest.approx(found.total, abs=1e-12)
    residuals = ((weights - base_weights)[:-1] * excess).sum(1) - (active * slopes).sum(1)
    assert found.parts["residual"] == pytest.approx(year * residuals.mean(), abs=1e-9)
    margin = 1.645 * year * residuals.std() / np.sqrt(BARS - 1)
    interval = found.residual_interval
    assert (interval.low, interval.high) == pytest.approx(
        (interval.value - margin, interval.value + margin), abs=0.3 * margin + 1e-9
    )
    assert found.condition_number == pytest.approx(np.median([np.linalg.cond(x) for x in exposures]), rel=1e-6)


def test_what_cannot_be_attributed_is_none() -> None:
    close, _, excess, _ = factor_market(0.003)
    hours = np.datetime64("2024-01-01", "ns") + np.arange(len(close)) * np.timedelta64(1, "h")
    panel = Panel(hours, tuple("ABCDEFGH"), close, np.isfinite(close))
    weights = np.full((BARS, ASSETS), 1 / ASSETS)
    result = account("champion", panel, weights, excess, 0.0)
    assert active_attribution(result, result, panel) is None  # the unit is the day: seven days are too few
    days = dataclasses.replace(panel, times=panel.times[0] + np.arange(len(close)) * np.timedelta64(1, "D"))
    daily = dataclasses.replace(result, times=days.times[-BARS:])
    assert active_attribution(daily, daily, days).total == 0
    index = dataclasses.replace(daily, symbols=("INDEX",), weights=weights[:, :1])
    assert active_attribution(daily, index, days) is None  # holdings of other assets
