"""Stops, take-profits and limit orders against a plain loop over one account, and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finrl_pod.data.panel import make_panel
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import InputError
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.intrabar_orders import OrderRules
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.types import Floats, Panel, Positions, Window


def bars(rows: list[tuple[float, float, float, float]], assets: int = 1) -> Panel:
    """A panel of one asset from rows of open, high, low, close."""
    table = np.array(rows, dtype=float).reshape(len(rows), 4, 1).repeat(assets, 2)
    names = ("open", "high", "low", "close")
    times = np.datetime64("2020-01-01", "ns") + np.arange(len(rows)) * np.timedelta64(1, "D")
    columns = {name: table[:, i] for i, name in enumerate(names)}
    return make_panel(times, [f"S{i}" for i in range(assets)], columns, name="bars")


class Table:
    """Target weights by bar; None where NaN."""

    name, feature_names, lookback = "table", (), 1

    def __init__(self, table: Floats, orders: OrderRules | None = None) -> None:
        self._table, self.orders, self._bar = table, orders, -1

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        self._bar += 1
        row = self._table[self._bar]
        return None if np.isnan(row).any() else row


def equity(panel: Panel, table: Any, orders: OrderRules | None, cost: float = 0.0) -> Floats:
    market = build_market(panel, (), (0, len(panel.times) - 1))
    weights = np.array(table, dtype=float).reshape(-1, len(panel.symbols))
    rules = ExecutionRules(cost_rate=cost)
    return backtest(Table(weights, orders), panel, MarketPeriod(market, 0, len(panel.times) - 1, rules, 100.0)).equity


IN = [[1.0]] + [[np.nan]] * 9


@pytest.mark.parametrize(
    ("orders", "second", "expected"),
    [
        (OrderRules(stop_loss=0.1), (100, 101, 89, 100), 90),  # touched: sold at 90, whatever the close
        (OrderRules(stop_loss=0.1), (100, 101, 91, 100), 100),  # not touched
        (OrderRules(take_profit=0.1), (100, 111, 99, 100), 110),
        (OrderRules(stop_loss=0.1, take_profit=0.1), (100, 111, 89, 100), 90),  # both: the stop
        (OrderRules(trailing_stop=0.1), (100, 150, 91, 100), 100),  # the high of the same bar does not raise the stop
    ],
)
def test_first_bar_after_the_purchase(orders: OrderRules, second: tuple[float, ...], expected: float) -> None:
    """Bought at the second bar's open of 100."""
    panel = bars([(100, 100, 100, 100), second, (50, 50, 50, 50)])  # type: ignore[list-item]
    assert equity(panel, IN[:3], orders)[1] == pytest.approx(expected)


def test_a_gap_below_the_stop_fills_at_the_open_and_one_above_the_target_at_the_target() -> None:
    flat = (100.0, 100.0, 100.0, 100.0)
    assert equity(bars([flat, flat, (80, 85, 70, 84)]), IN[:3], OrderRules(stop_loss=0.1))[2] == pytest.approx(80)
    assert equity(bars([flat, flat, (130, 135, 120, 121)]), IN[:3], OrderRules(take_profit=0.1))[2] == pytest.approx(
        110
    )


def test_a_trailing_stop_follows_the_highs_of_earlier_bars() -> None:
    panel = bars([(100, 100, 100, 100), (100, 120, 100, 118), (118, 119, 107, 110), (110, 110, 110, 110)])
    np.testing.assert_allclose(equity(panel, IN[:4], OrderRules(trailing_stop=0.1)), [100, 118, 108, 108])


def test_a_limit_order_buys_at_its_limit_or_lapses() -> None:
    """One share, sized at the close of 100, bought at 95."""
    orders = OrderRules(entry_limit=0.05)
    reached = bars([(100, 100, 100, 100), (100, 100, 94, 97), (97, 97, 97, 97)])
    np.testing.assert_allclose(equity(reached, IN[:3], orders), [100, 102, 102])
    touched = bars([(100, 100, 100, 100), (100, 100, 95, 97), (97, 97, 90, 97)])
    np.testing.assert_allclose(equity(touched, IN[:3], orders), [100, 100, 100])  # at the limit is not below it
    opened_below = bars([(100, 100, 100, 100), (90, 97, 90, 97), (97, 97, 97, 97)])
    np.testing.assert_allclose(equity(opened_below, IN[:3], orders), [100, 102, 102])


def in_python(panel: Panel, table: Floats, orders: OrderRules, cost: float) -> list[float]:
    """One account in plain numbers: bar by bar, asset by asset."""
    assert panel.open is not None
    assert panel.high is not None
    assert panel.low is not None
    n = len(panel.symbols)
    cash, shares, entry, peak = 100.0, [0.0] * n, [0.0] * n, [0.0] * n
    marks = [cash]
    for t in range(len(panel.times) - 1):
        close = panel.close[t]
        worth = cash + sum(q * p for q, p in zip(shares, close, strict=True))
        wanted = table[t]
        if not np.isnan(wanted).any():
            orders_now = [wanted[i] * worth / close[i] - shares[i] for i in range(n)]
            for i in range(n):
                if orders_now[i] < 0:
                    cash -= orders_now[i] * panel.open[t + 1][i] * (1 - cost)
                    shares[i] += orders_now[i]
            buys = {}
            for i in range(n):
                if orders_now[i] > 0:
                    price = panel.open[t + 1][i]
                    if orders.entry_limit:
                        limit = close[i] * (1 - orders.entry_limit)
                        if not panel.low[t + 1][i] < limit:
                            continue
                        price = limit
                    buys[i] = (orders_now[i], price)
            need = sum(q * p for q, p in buys.values()) * (1 + cost)
            scale = min(1.0, cash / need) if need else 1.0
            for i, (q, p) in buys.items():
                q *= scale
                cash -= q * p * (1 + cost)
                if shares[i] <= 0:
                    entry[i], peak[i] = p, p
                else:
                    entry[i] = (entry[i] * shares[i] + p * q) / (shares[i] + q)
                shares[i] += q
        for i in range(n):
            if shares[i] <= 1e-12:
                continue
            stop = -np.inf
            if orders.stop_loss:
                stop = entry[i] * (1 - orders.stop_loss)
            if orders.trailing_stop:
                stop = max(stop, peak[i] * (1 - orders.trailing_stop))
            sold = None
            if panel.low[t + 1][i] <= stop:
                sold = min(panel.open[t + 1][i], stop)
            elif orders.take_profit and panel.high[t + 1][i] >= entry[i] * (1 + orders.take_profit):
                sold = entry[i] * (1 + orders.take_profit)
            if sold is not None:
                cash += shares[i] * sold * (1 - cost)
                shares[i] = 0.0
            peak[i] = max(peak[i], panel.high[t + 1][i])
        marks.append(cash + sum(q * p for q, p in zip(shares, panel.close[t + 1], strict=True)))
    return marks


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    stop=st.sampled_from([0.0, 0.02, 0.1]),
    take=st.sampled_from([0.0, 0.03, 0.2]),
    trail=st.sampled_from([0.0, 0.04]),
    limit=st.sampled_from([0.0, 0.005]),
    cost=st.sampled_from([0.0, 0.002]),
)
def test_accounts_equal_a_plain_loop(
    seed: int, stop: float, take: float, trail: float, limit: float, cost: float
) -> None:
    rng = np.random.default_rng(seed)
    length, n = 40, 3
    close = 50 * np.exp(np.cumsum(rng.normal(0, 0.02, (length, n)), 0))
    opening = np.vstack([close[:1], close[:-1]]) * np.exp(rng.normal(0, 0.01, (length, n)))
    high = np.maximum(opening, close) * np.exp(np.abs(rng.normal(0, 0.01, (length, n))))
    low = np.minimum(opening, close) * np.exp(-np.abs(rng.normal(0, 0.01, (length, n))))
    times = np.datetime64("2020-01-01", "ns") + np.arange(length) * np.timedelta64(1, "D")
    columns = {"open": opening, "high": high, "low": low, "close": close}
    panel = make_panel(times, ["A", "B", "C"], columns, name="random")
    table = rng.dirichlet(np.ones(n + 1), length)[:, :n]
    table[rng.random(length) < 0.6] = np.nan
    orders = OrderRules(stop_loss=stop, take_profit=take, trailing_stop=trail, entry_limit=limit)
    np.testing.assert_allclose(equity(panel, table, orders, cost), in_python(panel, table, orders, cost), rtol=1e-10)


def test_what_orders_cannot_have_is_refused() -> None:
    panel = bars([(100, 100, 100, 100)] * 4)
    closes = make_panel(panel.times, panel.symbols, {"close": panel.close}, name="closes")
    orders = OrderRules(stop_loss=0.1)
    with pytest.raises(InputError, match="'closes' lacks one"):
        equity(closes, IN[:4], orders)
    market = build_market(panel, (), (0, 3), "same_close")
    with pytest.raises(InputError, match="next bar's open"):
        backtest(Table(np.ones((4, 1)), orders), panel, MarketPeriod(market, 0, 3, ExecutionRules(), 100.0))
    with pytest.raises(InputError, match="long holdings"):
        backtest(Table(np.ones((4, 1)), orders), panel, MarketPeriod(build_market(panel, (), (0, 3)), 0, 3,
                 ExecutionRules(short=True), 100.0))  # fmt: skip
    for wrong in ({"stop_loss": 1.0}, {"trailing_stop": -0.1}, {"take_profit": float("nan")}):
        with pytest.raises(InputError, match="orders: "):
            OrderRules(**wrong)
