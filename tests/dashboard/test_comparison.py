"""Replayed decisions under any cost against fresh backtests; trades, intervals, exports and figures."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.figures import accounts as figures
from finrl_pod_app.dashboard.queries import comparison
from finrl_pod_app.evaluation.backtests import prepare
from finrl_pod_app.evaluation.sweeps import DecisionTable
from finrl_pod_app.report import charts
from finrl_pod_app.report.builder import bootstrap_band

from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.intervals import account_intervals
from finrl_pod.evaluate.metrics import bars_per_year, simple_returns
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.run_directory import RunDirectory

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _store(store: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FINRL_POD_DATA", str(store))
        yield


@pytest.fixture(scope="module")
def base(finished: Path) -> RunConfig:
    return RunDirectory.open(finished).config


@pytest.fixture(scope="module")
def decisions(finished: Path, base: RunConfig) -> dict[str, DecisionTable]:
    champion = {"mine": comparison.strategy_decisions(finished, None, None, None)}
    return champion | {
        name: comparison.strategy_decisions(name, None, None, base) for name in ("equal_weight", "index")
    }


@pytest.mark.parametrize("cost", [0.0, 10.0, 80.0])
def test_replay_equals_a_backtest_under_that_cost(
    cost: float, decisions: dict[str, DecisionTable], base: RunConfig
) -> None:
    """Equal weight ignores the account, so a backtest under another cost makes the same decisions."""
    curve = comparison.account_curves(decisions, cost)["equal_weight"]
    prepared = prepare("equal_weight", cost_bps=cost, base=base)
    fresh = backtest(prepared.strategy, prepared.panel, prepared.market_period)
    np.testing.assert_allclose(curve.equity, fresh.equity, rtol=1e-12)
    assert (curve.times == fresh.times).all()
    for name, value in fresh.metrics.items():
        assert curve.metrics[name] == pytest.approx(value, rel=1e-9), name


def test_replay_of_several_strategies_equals_each_alone(decisions: dict[str, DecisionTable]) -> None:
    together = comparison.account_curves(decisions, 25.0)
    assert list(together) == list(decisions)
    for name, one in decisions.items():
        alone = comparison.account_curves({name: one}, 25.0)[name]
        np.testing.assert_array_equal(alone.equity, together[name].equity)
        account = comparison.backtest_of(name, one, 25.0)
        np.testing.assert_allclose(account.equity, together[name].equity, rtol=1e-12)


def test_default_cost_is_that_of_the_config(decisions: dict[str, DecisionTable], base: RunConfig) -> None:
    own = comparison.account_curves(decisions, None)
    same = comparison.account_curves(decisions, base.environment.cost_bps)
    for name in decisions:
        np.testing.assert_array_equal(own[name].equity, same[name].equity)


def test_trades_sum_to_turnover_and_costs(decisions: dict[str, DecisionTable]) -> None:
    result = comparison.backtest_of("mine", decisions["mine"], 30.0)
    table = comparison.trades_of("mine", result, decisions["mine"], 30.0)
    assert set(table["strategy"]) == {"mine"}
    np.testing.assert_allclose(table["cost"].sum(), result.costs.sum(), rtol=1e-9)
    by_bar = table.groupby("time")["value"].sum()
    np.testing.assert_allclose(by_bar.sum() * 30e-4, result.costs.sum(), rtol=1e-9)
    traded = np.flatnonzero(result.turnover > 0)
    assert by_bar.index.to_numpy().tolist() == result.times[traded].tolist()
    # The costs of each bar are the value of its trades times the rate.
    np.testing.assert_allclose(by_bar.to_numpy() * 30e-4, result.costs[traded], rtol=1e-8)
    signed = np.where(table["side"] == "buy", table["shares"], -table["shares"])
    ends = pd.Series(signed).groupby(table["symbol"].to_numpy()).sum()
    held = (
        result.weights[-1] * result.equity[-1] / decisions["mine"].market.close.numpy()[decisions["mine"].inputs.last]
    )
    np.testing.assert_allclose(ends.reindex(list(result.symbols)).to_numpy(), held, rtol=1e-9, atol=1e-9)


def test_profit_by_asset_adds_up_to_the_growth_before_costs(decisions: dict[str, DecisionTable]) -> None:
    result = comparison.backtest_of("mine", decisions["mine"], 30.0)
    found = comparison.profit_of(result, decisions["mine"], 30.0)
    gained = result.equity[-1] - result.equity[0] + result.costs.sum()
    assert sum(found.by_asset.values()) == pytest.approx(gained)


def test_intervals_match_the_bootstrap(decisions: dict[str, DecisionTable]) -> None:
    curves = comparison.account_curves(decisions, None)
    table = comparison.intervals_table(curves, seed=4).set_index("strategy")
    index = curves["index"]
    expected = account_intervals(
        simple_returns(index.equity),
        0.90,
        seed=4,
        draws=500,
        periods_per_year=bars_per_year(index.times),
    )
    assert table.loc["index", "sharpe_low"] == expected.sharpe.low
    assert table.loc["index", "max_drawdown_high"] == expected.max_drawdown.high


def test_constant_curve_has_no_interval_and_no_band(decisions: dict[str, DecisionTable]) -> None:
    curve = comparison.account_curves(decisions, None)["index"]
    flat = dataclasses.replace(curve, equity=np.full(len(curve.times), 100.0))
    assert comparison.intervals_table({"flat": flat}, seed=0).empty
    assert bootstrap_band(flat.equity) is None
    assert bootstrap_band(np.array([1.0, -1.0] * 40)) is None
    band = bootstrap_band(curve.equity)
    assert band is not None
    assert all(low <= high for low, high in zip(band.low, band.high, strict=True))


def test_exports_are_complete_and_escaped(decisions: dict[str, DecisionTable]) -> None:
    results = [
        dataclasses.replace(comparison.backtest_of(name, one, None), name=f"={name}") for name, one in decisions.items()
    ]
    bars, weights = comparison.export_csv(results)
    assert len(bars.splitlines()) == 1 + sum(len(one.times) for one in results)
    assert "'=mine" in bars
    assert "\n=" not in bars
    assert "'=mine" in weights


def test_csv_escapes_formulas() -> None:
    table = pd.DataFrame({"symbol": ["=1+1", "AAPL"], "value": [-1.5, 2.0]})
    assert comparison.table_csv(table) == "symbol,value\r\n'=1+1,-1.5\r\nAAPL,2.0\r\n"


def test_figures(decisions: dict[str, DecisionTable]) -> None:
    curves = comparison.account_curves(decisions, 10.0)
    styles = {name: theme.style_of(name, ["mine"]) for name in decisions}
    results = [comparison.backtest_of(name, one, 10.0) for name, one in decisions.items()]
    band = bootstrap_band(curves["mine"].equity)
    drawn = charts.growth_figure(curves, band, styles)
    assert len(drawn.data) == 5
    # The first strategy lies on top of the band and of the others.
    np.testing.assert_allclose(drawn.data[-1].y[-1], curves["mine"].equity[-1] / curves["mine"].equity[0])
    assert drawn.data[-1].line.color == styles["mine"].colour
    assert min(charts.drawdown_figure(curves, styles).data[-1].y) == pytest.approx(
        curves["mine"].metrics["max_drawdown"]
    )
    assert len(charts.rolling_sharpe_figure(curves, styles).data) == 3
    months = figures.monthly_returns_heatmap(curves["mine"].times, curves["mine"].equity)
    assert list(months.data[0].x) == ["2021"]  # few years are columns
    year = months.data[0].text[-1][0]
    assert float(year) == pytest.approx(100 * curves["mine"].metrics["cumulative_return"], abs=0.06)
    days = np.arange("2010-01-01", "2020-01-01", dtype="datetime64[D]").astype("datetime64[ns]")
    many = figures.monthly_returns_heatmap(days, np.exp(np.linspace(0.0, 1.0, len(days))))
    assert list(many.data[0].y) == [str(year) for year in range(2010, 2020)]
    assert float(many.data[0].text[3][-1]) == pytest.approx(100 * np.expm1(0.1), abs=0.06)
    stacked = charts.weights_figure(results[0])
    np.testing.assert_allclose(sum(np.asarray(trace.y) for trace in stacked.data), 1.0)
    assert len(figures.turnover(results, styles).data) == 3
    paid = charts.costs_figure({result.name: result for result in results}, styles).data[-1].y[-1]
    assert paid == pytest.approx(results[0].costs.sum() / results[0].equity[0])


def test_ruined_account_is_nan_on_the_log_axis(decisions: dict[str, DecisionTable]) -> None:
    curve = comparison.account_curves(decisions, None)["index"]
    ruined = dataclasses.replace(curve, equity=np.linspace(100.0, -5.0, len(curve.times)))
    drawn = charts.growth_figure({"index": ruined}, styles={"index": theme.style_of("index")})
    assert np.isnan(np.asarray(drawn.data[0].y, dtype=float)[-1])


def test_names_are_escaped(decisions: dict[str, DecisionTable]) -> None:
    curves = {"<b>x</b>": comparison.account_curves(decisions, None)["index"]}
    drawn = charts.growth_figure(curves, styles={"<b>x</b>": theme.style_of("x")})
    assert drawn.data[0].name == "&lt;b&gt;x&lt;/b&gt;"
