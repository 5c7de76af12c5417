"""Signals: what is held after entries, exits, stops and hours; and tables that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from finrl_pod_strategies.signals import Signals

from finrl_pod.data.panel import make_panel
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import InputError
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.intrabar_orders import OrderRules
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.types import BacktestResult, Panel

DAYS = pd.date_range("2020-01-01", periods=8, freq="D")


def panel(times: pd.DatetimeIndex = DAYS, symbols: tuple[str, ...] = ("A", "B")) -> Panel:
    close = np.full((len(times), len(symbols)), 100.0)
    columns = dict.fromkeys(("open", "high", "close"), close) | {"low": close.copy()}
    columns["low"][4, 0] = 80.0
    return make_panel(times.to_numpy(), symbols, columns, name="flat")


def table(rows: dict[int, str], times: pd.DatetimeIndex = DAYS, symbols: str = "AB") -> pd.DataFrame:
    """True for the symbols named at a bar."""
    return pd.DataFrame(
        [[symbol in rows.get(t, "") for symbol in symbols] for t in range(len(times))], times, list(symbols)
    )


def run(strategy: Signals, prices: Panel | None = None) -> BacktestResult:
    prices = prices or panel()
    last = len(prices.times) - 1
    market = build_market(prices, (), (0, last))
    return backtest(strategy, prices, MarketPeriod(market, 0, last, ExecutionRules(cost_rate=0.0), 100.0))


def held(result: BacktestResult) -> list[str]:
    return ["".join(np.array(result.symbols)[row > 0]) for row in result.weights]


def test_entries_open_and_exits_close_one_bar_later() -> None:
    found = run(Signals(table({0: "A", 2: "B"}), table({4: "A", 5: "B"})))
    assert held(found) == ["", "A", "A", "AB", "AB", "B", "", ""]
    assert found.weights.max() == pytest.approx(0.5)


def test_an_exit_counts_before_an_entry_and_symbols_may_be_missing() -> None:
    assert held(run(Signals(table({0: "A"}), table({0: "A"})))) == [""] * 8
    only = run(Signals(table({0: "B"}, symbols="B"), table({}, symbols="B")))
    assert held(only)[1] == "B"
    later = DAYS + pd.Timedelta(days=30)
    assert held(run(Signals(table({0: "A"}, later), table({}, later)))) == [""] * 8


def test_a_stopped_position_stays_closed_until_the_next_entry() -> None:
    """A's low falls to 80 on the fifth bar."""
    signals = Signals(table({0: "A", 6: "A"}), table({}), orders=OrderRules(stop_loss=0.1))
    assert held(run(signals)) == ["", "A", "A", "A", "", "", "", "A"]


def test_positions_are_limited_and_weighted() -> None:
    found = run(Signals(table({0: "AB", 3: "B"}), table({2: "A"}), max_positions=1, weight=0.6))
    assert held(found) == ["", "A", "A", "", "B", "B", "B", "B"]
    assert found.weights.max() == pytest.approx(0.6)


def test_hours_bound_entries_and_close_everything() -> None:
    times = pd.DatetimeIndex([f"2020-01-0{day} {hour}:00" for day in (2, 3) for hour in (10, 11, 15, 16)])
    entries = table({0: "A", 2: "B", 3: "A", 5: "A"}, times)
    found = run(Signals(entries, table({}, times), hours=("10:30", "15:00")), panel(times))
    assert held(found) == ["", "", "", "", "", "", "A", ""]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exits": table({}).iloc[1:]}, "the same bars and symbols"),
        ({"entries": table({}).astype(float)}, "entries must be a table of bool"),
        ({"entries": table({})[::-1], "exits": table({})[::-1]}, "must ascend"),
        ({"max_positions": 0}, "max_positions must be at least 1"),
        ({"weight": 0.7}, "must add up to"),
        ({"hours": ("9", "25:00")}, "two times of day"),
    ],
)
def test_senseless_tables_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Signals(**{"entries": table({}), "exits": table({}), **change})
