"""Attribution adds up to the change of equity, and equals a hand-made example."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from finrl_pod.data.panel import make_panel
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import InputError
from finrl_pod.evaluate.attribution import attribution
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.intrabar_orders import OrderRules
from finrl_pod.market.costs import Frictions
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.types import Floats, Panel, Positions, Window

FREE = ExecutionRules(cost_rate=0.0)
CARRY = Frictions(cash_rates=(("1990-01-01", 0.05),), delisting_return=-0.3)


def prices_with_gaps() -> Panel:
    """Four years of five tickers: gaps, a late start and an early end."""
    rng = np.random.default_rng(5)
    bars = 1000
    close = rng.uniform(5, 200, 5) * np.exp(np.cumsum(rng.normal(0, 0.03, (bars, 5)), 0))
    close[rng.random(close.shape) < 0.02] = np.nan
    close[:300, 0] = np.nan
    close[-200:, 4] = np.nan
    times = np.datetime64("2015-01-05", "ns") + np.arange(bars) * np.timedelta64(1, "D")
    return make_panel(times, tuple("ABCDE"), {"close": close}, name="gaps", allow_gaps=True)


class Rotation:
    """Weights that change every bar, from a seed."""

    name, feature_names, lookback = "rotation", (), 1

    def __init__(self) -> None:
        self._rng = np.random.default_rng(3)

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        drawn = self._rng.random(len(window.symbols)) * np.nan_to_num(window.tradable[-1].astype(float))
        return None if self._rng.random() < 0.3 else 0.9 * drawn / max(drawn.sum(), 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("fill", ["next", "same_close"])
@pytest.mark.parametrize("rules", [ExecutionRules(cost_rate=0.001), ExecutionRules(cost_rate=0.002, frictions=CARRY)])
def test_profits_costs_and_carry_are_the_change_of_equity(fill: str, rules: ExecutionRules) -> None:
    panel = prices_with_gaps()
    market = build_market(panel, (), (0, len(panel.times) - 1), fill)
    result = backtest(Rotation(), panel, MarketPeriod(market, 0, len(panel.times) - 1, rules, 1e6))
    found = attribution(result, market, rules)
    changes = found.profits.sum(1) - found.costs + found.carry
    np.testing.assert_allclose(changes[1:], np.diff(result.equity), rtol=0, atol=1e-6)
    assert found.carry.sum() == pytest.approx(result.carry, abs=1e-5)
    assert sum(found.by_asset().values()) == pytest.approx(found.profits.sum())
    total = sum(row["profit"] - row["costs"] + row["carry"] for row in found.by_year())
    assert total == pytest.approx(result.equity[-1] - result.equity[0], abs=1e-4)
    growth = np.prod([1 + row["return"] for row in found.by_year()])
    assert growth == pytest.approx(result.equity[-1] / result.equity[0])
    assert sum(found.table()["profit"]) == pytest.approx(total)  # type: ignore[arg-type]


class BuyAndHold:
    """All in the first asset at the first bar."""

    name, feature_names, lookback = "buy and hold", (), 1

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        return None if positions.weights.any() else np.array([1.0, 0.0])


def two_assets() -> Panel:
    times = np.array(["2019-12-30", "2019-12-31", "2020-01-02", "2020-01-03"], dtype="datetime64[ns]")
    return make_panel(
        times, ("A", "B"), {"close": np.array([[10.0, 5.0], [12.0, 5.0], [15.0, 5.0], [9.0, 5.0]])}, name="t"
    )


def test_a_purchase_belongs_to_the_asset_and_the_year_of_its_marks() -> None:
    """1,000 in A at 12, the close of the second bar: 83.33 shares earn 250 in 2020 at 15 and lose 500 at 9."""
    panel = two_assets()
    market = build_market(panel, (), (0, 3))
    result = backtest(BuyAndHold(), panel, MarketPeriod(market, 0, 3, FREE, 1000.0))
    found = attribution(result, market, FREE)
    np.testing.assert_allclose(found.profits[:, 0], [0, 0, 250, -500], atol=1e-9)
    assert found.by_asset() == {"A": pytest.approx(-250)}
    assert [(row["year"], row["return"]) for row in found.by_year()] == [
        (2019, pytest.approx(0)),
        (2020, pytest.approx(-0.25)),
    ]
    assert found.table()["symbol"] == ["costs", "A", "costs"]


def test_a_result_of_another_market_is_refused() -> None:
    panel = two_assets()
    market = build_market(panel, (), (0, 3))
    result = backtest(BuyAndHold(), panel, MarketPeriod(market, 0, 3, FREE, 1000.0))
    with pytest.raises(InputError, match="from another market"):
        attribution(dataclasses.replace(result, symbols=("A", "C")), market, FREE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "orders",
    [OrderRules(stop_loss=0.03, take_profit=0.05), OrderRules(trailing_stop=0.04), OrderRules(entry_limit=0.005)],
)
def test_stops_and_limits_are_attributed_at_their_own_prices(orders: OrderRules) -> None:
    rng = np.random.default_rng(2)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.02, (300, 3)), 0))
    opened = close * np.exp(rng.normal(0, 0.005, close.shape))
    columns = {
        "close": close,
        "open": opened,
        "high": np.maximum(close, opened) * 1.01,
        "low": np.minimum(close, opened) * 0.99,
    }
    times = np.datetime64("2020-01-01", "ns") + np.arange(300) * np.timedelta64(1, "D")
    panel = make_panel(times, ("A", "B", "C"), columns, name="bars")
    market = build_market(panel, (), (0, 299))
    strategy = Rotation()
    strategy.orders = orders  # type: ignore[attr-defined]
    rules = ExecutionRules(cost_rate=0.001)
    result = backtest(strategy, panel, MarketPeriod(market, 0, 299, rules, 1e6))
    found = attribution(result, market, rules)
    np.testing.assert_allclose((found.profits.sum(1) - found.costs)[1:], np.diff(result.equity), atol=1e-6)
    at_market = attribution(dataclasses.replace(result, paid=None), market, rules)
    assert abs(at_market.profits.sum() - found.profits.sum()) > 1  # the orders' prices matter
