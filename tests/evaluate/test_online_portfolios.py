"""The table of Li and Hoi: wealth of online portfolio selection on three panels, simulated by this package.

B. Li and S. C. H. Hoi, Online portfolio selection: a survey, ACM Computing Surveys 46(3), 2014; and B. Li, P. Zhao,
S. C. H. Hoi and V. Gopalkrishnan, PAMR: passive aggressive mean reversion strategy for portfolio selection, Machine
Learning 87(2), 2012. The panels come with the package universal-portfolios (MIT), and serve this test only.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize

import finrl_pod as fp
from finrl_pod.data.tensor import build_market
from finrl_pod.evaluate.backtest import MarketPeriod, backtest
from finrl_pod.evaluate.variations import Job, simulate_recorded
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.types import Floats, Panel, Positions, Window

pytestmark = pytest.mark.slow

CASH = 1000.0
# Wealth of 1 after all days, by file and strategy, with the digits of the table.
WEALTH = {
    "nyse_o": {"market": "14.50", "best stock": "54.14", "BCRP": "250.60", "EG": "27.09", "PAMR": "5.14E+15"},
    "nyse_n": {"market": "18.06", "best stock": "83.51", "BCRP": "120.32", "EG": "31.00", "PAMR": "1.25E+06"},
    "tse": {"market": "1.61", "best stock": "6.28", "BCRP": "6.78", "EG": "1.59", "PAMR": "264.86"},
}


class Rebalanced:
    """Constant weights [N], restored every day."""

    name, lookback, feature_names = "rebalanced", 1, ()

    def __init__(self, weights: Floats) -> None:
        self.weights = weights
        self.close: Floats | None = None

    def target_weights(self, window: Window, positions: Positions | None) -> Floats | None:
        if self.close is not None:
            self.weights = self.next_weights(window.close[-1] / self.close)
        self.close = window.close[-1].copy()
        return self.weights

    def next_weights(self, relatives: Floats) -> Floats:
        return self.weights


class Held(Rebalanced):
    """Constant numbers of shares."""

    def target_weights(self, window: Window, positions: Positions | None) -> Floats | None:
        is_first = self.close is None
        weights = super().target_weights(window, positions)
        return weights if is_first else None


class ExponentiatedGradient(Rebalanced):
    """Helmbold et al. (1998), with the learning rate 0.05 of the table."""

    def next_weights(self, relatives: Floats) -> Floats:
        weights = self.weights * np.exp(0.05 * relatives / (self.weights @ relatives))
        return weights / weights.sum()


class PassiveAggressive(Rebalanced):
    """PAMR with the sensitivity 0.5 of the table."""

    def next_weights(self, relatives: Floats) -> Floats:
        deviation = relatives - relatives.mean()
        size = deviation @ deviation
        step = max(self.weights @ relatives - 0.5, 0.0) / size if size > 0 else 0.0
        return on_simplex(self.weights - step * deviation)


def on_simplex(point: Floats) -> Floats:
    """The nearest point with nonnegative coordinates that sum to 1 (Duchi et al. 2008)."""
    descending = np.sort(point)[::-1]
    thresholds = (descending.cumsum() - 1) / np.arange(1, len(point) + 1)
    return np.maximum(point - thresholds[np.flatnonzero(descending > thresholds)[-1]], 0)


def best_constant_weights(close: Floats) -> Floats:
    """The constant weights [N] of the largest wealth in hindsight."""
    relatives = close[1:] / close[:-1]
    assets = close.shape[1]
    solution = minimize(
        lambda w: -np.log(relatives @ w).mean(),
        np.full(assets, 1 / assets),
        jac=lambda w: -(relatives / (relatives @ w)[:, None]).mean(0),
        method="SLSQP",
        bounds=[(0, 1)] * assets,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-13, "maxiter": 300},
    )
    weights = solution.x.clip(min=0)
    return weights / weights.sum()


def panel_of(file: str) -> Panel:
    """Prices of the package, with a first day on which all are 1."""
    package = find_spec("universal")
    if package is None or package.origin is None:
        pytest.fail("universal-portfolios is not installed; run `make setup` (which installs it without dependencies)")
    prices = pd.read_csv(Path(package.origin).parent / "data" / f"{file}.csv").to_numpy()
    close = np.vstack([np.ones(prices.shape[1]), prices])
    days = pd.bdate_range("1962-07-02", periods=len(close))
    return fp.load_prices(pd.DataFrame(close, days, [f"S{i}" for i in range(close.shape[1])]))


def strategies_of(panel: Panel) -> dict[str, Rebalanced]:
    assets = len(panel.symbols)
    equal = np.full(assets, 1 / assets)
    return {
        "market": Held(equal),
        "best stock": Held(np.eye(assets)[panel.close[-1].argmax()]),
        "BCRP": Rebalanced(best_constant_weights(panel.close)),
        "EG": ExponentiatedGradient(equal),
        "PAMR": PassiveAggressive(equal),
    }


def decisions_of(strategy: Rebalanced, panel: Panel) -> Floats:
    """Target weights [T, N] that a backtest would ask for, NaN where the strategy leaves the positions unchanged."""
    rows = []
    for t in range(len(panel.times)):
        day = Window(panel.times[t : t + 1], panel.symbols, panel.close[t : t + 1], panel.tradable[t : t + 1])
        weights = strategy.target_weights(day, None)
        rows.append(np.full(len(panel.symbols), np.nan) if weights is None else weights)
    return np.array(rows)


@pytest.mark.parametrize("file", WEALTH)
def test_wealth_equals_the_table_to_every_published_digit(file: str) -> None:
    panel = panel_of(file)
    last = len(panel.times) - 1
    # A day of the table trades at the prices that it decides on, without costs.
    market = build_market(panel, (), (0, 1), "same_close")
    rules = ExecutionRules(cost_rate=0.0)
    tables = np.array([decisions_of(strategy, panel) for strategy in strategies_of(panel).values()])
    jobs = [Job(i, 0, last, rules) for i in range(len(tables))]
    replayed = simulate_recorded(market, torch.from_numpy(tables), jobs, CASH).equity[:, -1] / CASH
    shown = {
        name: f"{value:.2E}" if "E" in text else f"{value:.2f}"
        for (name, text), value in zip(WEALTH[file].items(), replayed.tolist(), strict=True)
    }
    assert shown == WEALTH[file]
    if file == "tse":  # bar by bar, as a strategy of one's own; the others have five times as many bars
        period = MarketPeriod(market, 0, last, rules, CASH)
        wealth = [backtest(strategy, panel, period).equity[-1] / CASH for strategy in strategies_of(panel).values()]
        np.testing.assert_allclose(wealth, replayed)
