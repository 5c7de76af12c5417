"""Trades of a backtest: by hand, and their profits, costs and what is still held add up to the change of equity."""

from __future__ import annotations

import numpy as np
import pytest

from finrl_pod.data.panel import make_panel
from finrl_pod.data.tensor import build_market
from finrl_pod.evaluate.attribution import trades_table
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.intrabar_orders import OrderRules
from finrl_pod.market.costs import Frictions, PerShare, SquareRootImpact
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.types import BacktestResult, Floats, MarketTensor, Panel, Positions, Window

CASH = 1e6
FRICTIONS = Frictions((PerShare(0.01, 2.0), SquareRootImpact(1.0)), participation=0.5)


def walk(seed: int = 0, bars: int = 200) -> Panel:
    rng = np.random.default_rng(seed)
    close = 50 * np.exp(np.cumsum(rng.normal(0, 0.02, (bars, 3)), 0))
    opened = close * np.exp(rng.normal(0, 0.005, close.shape))
    columns = {
        "close": close,
        "open": opened,
        "high": np.maximum(close, opened) * 1.01,
        "low": np.minimum(close, opened) * 0.99,
        "volume": rng.uniform(1e5, 1e6, close.shape),
    }
    times = np.datetime64("2020-01-01", "ns") + np.arange(bars) * np.timedelta64(1, "D")
    return make_panel(times, ("A", "B", "C"), columns, name="walk")


class Table:
    name, feature_names, lookback = "table", (), 1

    def __init__(self, table: Floats, orders: OrderRules | None = None) -> None:
        self._table, self.orders, self._bar = table, orders, -1

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        self._bar += 1
        row = self._table[self._bar]
        return None if np.isnan(row).any() else row


def run_table(
    table: Floats, panel: Panel, rules: ExecutionRules, fill: str = "next", orders: OrderRules | None = None
) -> tuple[BacktestResult, MarketTensor]:
    last = len(panel.times) - 1
    market = build_market(panel, (), (0, last), fill)  # type: ignore[arg-type]
    return backtest(Table(table, orders), panel, MarketPeriod(market, 0, last, rules, CASH)), market


def test_by_hand() -> None:
    """100 shares at 10, 100 more at 20, then 150 sold at 30 and 50 at 5: gains of 150 x 15 and 50 x -10."""
    close = np.array([10.0, 10, 20, 30, 5, 5]).reshape(-1, 1)
    times = np.datetime64("2020-01-01", "ns") + np.arange(6) * np.timedelta64(1, "D")
    panel = make_panel(times, ("A",), {"close": close}, name="hand")
    market = build_market(panel, (), (0, 5), "same_close")
    shares = np.array([0.0, 100, 200, 50, 0, 0])
    equity = 1000 + np.concatenate([[0], np.cumsum(shares[:-1] * np.diff(close[:, 0]))])
    weights = (shares * close[:, 0] / equity)[:, None]
    nothing = np.zeros(6)
    result = BacktestResult("hand", times, ("A",), equity, weights, nothing, nothing, {})
    found = trades_table(result, market, ExecutionRules(cost_rate=0.0))
    assert found["side"].tolist() == ["buy", "buy", "sell", "sell"]
    np.testing.assert_allclose(found["shares"], [100, 100, 150, 50])
    np.testing.assert_allclose(found["price"], [10, 20, 30, 5])
    np.testing.assert_allclose(found["profit"], [np.nan, np.nan, 2250, -500])


@pytest.mark.parametrize("fill", ["next", "same_close"])
@pytest.mark.parametrize(
    "rules",
    [
        ExecutionRules(cost_rate=0.001),
        ExecutionRules(cost_rate=0.001, short=True),
        ExecutionRules(cost_rate=0.0005, frictions=FRICTIONS),
    ],
)
def test_profits_costs_and_open_positions_are_the_change_of_equity(fill: str, rules: ExecutionRules) -> None:
    panel = walk()
    rng = np.random.default_rng(1)
    table = rng.dirichlet(np.ones(4), 200)[:, :3] * (rng.choice([-1.0, 1.0], (200, 3)) if rules.short else 1.0)
    table[rng.random(200) < 0.5] = np.nan
    result, market = run_table(table, panel, rules, fill)
    found = trades_table(result, market, rules)
    assert found["cost"].sum() == pytest.approx(result.costs.sum(), rel=1e-6)
    opening = found.loc[found["profit"].isna(), "cost"].sum()
    closes = panel.close[-1]
    held = result.weights[-1] * result.equity[-1] / closes
    unrealised = sum(held[n] * (closes[n] - average_entry(found, panel.symbols[n])) for n in range(3))
    gained = found["profit"].sum() - opening + unrealised
    assert gained == pytest.approx(result.equity[-1] - CASH, rel=1e-6)


def average_entry(trades: object, symbol: str) -> float:
    """Average entry price of what is held of a symbol, by a loop over its trades."""
    position = entry = 0.0
    for row in trades.to_dict("records"):  # type: ignore[attr-defined]
        if row["symbol"] != symbol:
            continue
        amount = row["shares"] * (1 if row["side"] == "buy" else -1)
        after = position + amount
        if abs(after) < 1e-9 * abs(amount):
            after = 0.0
        if position * after <= 0:
            entry = row["price"]
        elif abs(after) > abs(position):
            entry = (entry * position + row["price"] * amount) / after
        position = after
    return entry


def test_whole_shares_are_whole_numbers() -> None:
    panel = walk(seed=4)
    table = np.random.default_rng(4).dirichlet(np.ones(4), 200)[:, :3]
    result, market = run_table(table, panel, ExecutionRules(whole_shares=True))
    trades = trades_table(result, market, ExecutionRules(whole_shares=True))
    assert len(trades) > 100
    assert (trades["shares"] == trades["shares"].round()).all()
    np.testing.assert_allclose(trades["shares"] * trades["price"], trades["value"], rtol=1e-12)


def test_whole_trades_lose_no_share_to_rounding() -> None:
    panel = walk(seed=5)
    market = build_market(panel, (), (0, 199), "same_close")
    wanted = np.random.default_rng(5).integers(0, 4_000, (200, 3)).astype(float)

    class Counts:
        name, feature_names, lookback = "counts", (), 1

        def target_weights(self, window: Window, positions: Positions) -> Floats:
            return wanted[np.searchsorted(panel.times, window.times[-1])] * window.close[-1] / positions.equity

    rules = ExecutionRules(cost_rate=0.0, whole_shares=True)
    result = backtest(Counts(), panel, MarketPeriod(market, 0, 199, rules, CASH))
    held = result.weights * result.equity[:, None] / panel.close
    np.testing.assert_allclose(held[:-1], wanted[:-1], atol=1e-6)


def test_stops_trade_at_their_own_prices() -> None:
    panel = walk(3)
    table = np.full((200, 3), np.nan)
    table[::20] = 0.3
    rules = ExecutionRules(cost_rate=0.001)
    orders = OrderRules(stop_loss=0.02, take_profit=0.03)
    result, market = run_table(table, panel, rules, orders=orders)
    found = trades_table(result, market, rules)
    assert found["cost"].sum() == pytest.approx(result.costs.sum(), rel=1e-9)
    closed = found[found["side"] != "buy"]
    assert len(closed) > 5
    assert {"sell", "round trip"} >= set(closed["side"])
    assert closed["profit"].notna().all()
    assert result.weights[-1].sum() == 0  # everything was sold
    opening = found.loc[found["profit"].isna(), "cost"].sum()
    assert closed["profit"].sum() - opening == pytest.approx(result.equity[-1] - CASH, rel=1e-9)
