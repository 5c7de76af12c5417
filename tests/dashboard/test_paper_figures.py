"""Figures of the paper page: curves and axes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from finrl_pod_app.dashboard.figures import paper
from finrl_pod_app.dashboard.queries.paper_performance import BacktestDifference, Slippage


def difference(equity: list[float], backtest: list[float]) -> BacktestDifference:
    sessions = [f"2024-01-{2 + n:02d}" for n in range(len(equity))]
    curve = pd.DataFrame({"session": sessions, "equity": equity, "backtest": backtest})
    curve["benchmark"] = np.linspace(equity[0], 1.03 * equity[0], len(equity))
    curve["drawdown"] = curve.equity / curve.equity.cummax() - 1
    curve["difference"] = (curve.equity / curve.equity[0] - curve.backtest / curve.backtest[0]) * 1e4
    has_replay = bool(np.isfinite(curve.backtest).any())
    return BacktestDifference(curve, 0.0, 0.0, 0, "2024-02-01" if has_replay else "", "made", ())


def test_equity_of_account_and_replay_with_their_difference() -> None:
    figure = paper.equity(difference([100.0, 101.0, 99.0], [100.0, 100.5, 99.5]), 100.0)
    names = [trace.name for trace in figure.data]
    assert names == [
        "paper account", "equal weight of the symbols", "replayed backtest", "drawdown", "difference to the backtest"
    ]  # fmt: skip
    assert list(figure.data[0].y) == [100.0, 101.0, 99.0]
    assert figure.data[3].y == pytest.approx([0.0, 0.0, -2 / 101])
    assert figure.data[4].y == pytest.approx([0.0, 50.0, -50.0])
    low, high = figure.layout.yaxis.range
    assert low < 99.0
    assert high > 103.0  # the benchmark is inside


def test_equity_without_a_replay() -> None:
    figure = paper.equity(difference([100.0, 101.0], [np.nan, np.nan]), 100.0)
    assert [trace.name for trace in figure.data] == ["paper account", "equal weight of the symbols", "drawdown"]


def test_axes_have_a_minimum_range() -> None:
    flat = difference([90_000.0, 90_000.0], [90_000.0, 90_000.0])
    flat.curve["benchmark"] = np.nan
    figure = paper.equity(flat, 90_000.0)
    assert len(figure.data) == 4  # without the benchmark
    low, high = figure.layout.yaxis.range
    assert high - low == pytest.approx(900.0)
    assert min(figure.layout.yaxis2.range) == -0.01
    assert max(figure.layout.yaxis3.range) > 1.0


def test_slippage_beside_the_modelled_cost() -> None:
    sessions = pd.DataFrame({"bar": ["2024-01-02", "2024-01-03"], "bp": [5.0, -1.0], "cumulative_bp": [5.0, 2.0]})
    figure = paper.slippage(sessions, Slippage(2.0, 1.0, 7.0, 0.0, 2))
    assert [trace.name for trace in figure.data] == ["session", "cumulative, value-weighted", "modelled"]
    assert list(figure.data[2].y) == [7.0, 7.0]
    assert len(paper.slippage(sessions, Slippage(2.0, 1.0, None, 0.0, 2)).data) == 2
