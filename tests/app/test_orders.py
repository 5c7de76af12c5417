"""Orders of one day: those of a backtest on the same holdings, whole shares, state, refusals, command and Python."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finrl_pod_app.cli.console_evaluation import show_orders
from finrl_pod_app.cli.main import run
from finrl_pod_app.evaluation.orders import AccountOrders, OrderOptions, account_orders
from finrl_pod_strategies.mandate_account import BasePortfolio

import finrl_pod as fp
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import DataError, FinrlPodError, InputError
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.intrabar_orders import OrderRules
from finrl_pod.files import record_values
from finrl_pod.market.execution import MarketPeriod
from finrl_pod.market.rules import rules_of
from finrl_pod.protocols import Strategy
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig, RunConfig
from finrl_pod.types import Floats, Panel, Positions, Window
from tests.app.small_run import fill_store, small_panel
from tests.data.panels import END, random_panel

CASH = 1e6
RULES = EnvironmentConfig(fill="same_close", per_share=0.01, participation=0.05, impact=1.0)
MANDATE = MandateConfig(tilt=10, trade_speed=0.5, max_turnover=0.12)


class Random:
    """Random weights of the tradable symbols, a function of the bar; none at every third bar."""

    name, feature_names, lookback = "random", ("return_5",), 3

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        day = int(window.times[-1].astype("datetime64[D]").astype(int))
        drawn = np.random.default_rng(day).dirichlet(np.ones(len(window.symbols) + 1))[:-1]
        return None if day % 3 == 0 else np.where(window.tradable[-1], drawn, 0.0)


class Tilted(BasePortfolio):
    """A mandate that follows a feature."""

    def recreate(self) -> Tilted:
        return Tilted(self.mandate, feature_names=self.feature_names)


def tilted() -> Tilted:
    return Tilted(MANDATE, feature_names=("return_5",))


def ordered(
    strategy: Strategy,
    panel: Panel,
    holdings: Mapping[str, float] | Path,
    environment: EnvironmentConfig = RULES,
    **options: Any,
) -> AccountOrders:
    config = RunConfig(environment=environment)
    return account_orders(strategy, config, panel, holdings, OrderOptions(**options))


def days_of_backtest(
    strategy: Strategy, panel: Panel, environment: EnvironmentConfig, first: int, last: int
) -> tuple[Floats, Floats, Floats]:
    """Cash [L] and holdings [L, N] after the fills of each bar of a backtest with fills at the close, and costs [L]."""
    market = build_market(panel, strategy.feature_names, (0, len(panel.times) - 1), "same_close")
    result = backtest(strategy, panel, MarketPeriod(market, first, last, rules_of(environment), CASH))
    close = market.close[first : last + 1].double().numpy()
    shares = result.weights * result.equity[:, None] / close
    return result.equity - (shares * close).sum(1), shares, result.costs


@pytest.mark.parametrize("environment", [RULES, dataclasses.replace(RULES, whole_shares=True), EnvironmentConfig()])
def test_orders_are_the_trades_of_a_backtest_with_fills_at_the_close(environment: EnvironmentConfig) -> None:
    """Also with gaps, and of a symbol that ends within the bars: it is sold after its last bar."""
    panel = random_panel()
    first, last = END - 4, END + 2
    cash, shares, costs = days_of_backtest(Random(), panel, environment, first, last)
    for i in range(1, last - first):
        holdings = dict(zip(panel.symbols, shares[i - 1].tolist(), strict=True))
        date = str(panel.times[first + i])[:10]
        found = ordered(Random(), panel, holdings, environment, cash=float(cash[i - 1]), date=date)
        np.testing.assert_allclose(
            [row.shares for row in found.orders], shares[i] - shares[i - 1], rtol=1e-9, atol=1e-4
        )
        assert found.cash_left == pytest.approx(cash[i], abs=0.01)
        assert sum(row.cost for row in found.orders) == pytest.approx(costs[i], rel=1e-6, abs=1e-3)
        assert [row.held for row in found.orders] == shares[i - 1].tolist()


def test_a_symbol_without_the_last_bar_is_kept_and_one_without_any_has_no_price() -> None:
    panel = random_panel()
    close = panel.close.copy()
    close[-1, 0] = np.nan
    close[:, 1] = np.nan
    today = np.datetime64(datetime.now(UTC).date(), "ns")
    times = today - np.arange(len(close))[::-1].astype("timedelta64[D]")
    panel = Panel(times=times, symbols=panel.symbols, close=close, tradable=np.isfinite(close), name="late")
    rows = {row.symbol: row for row in ordered(Random(), panel, {"S0": 5.0}, EnvironmentConfig(), cash=100.0).orders}
    assert (rows["S0"].shares, rows["S0"].price_date) == (0.0, str(times[-2])[:10])
    assert (rows["S1"].price, rows["S1"].price_date, rows["S1"].shares) == (None, None, 0.0)
    assert rows["S3"].price_date == str(today)[:10]
    with pytest.raises(DataError, match="S1 is held, and 'late' has no price of it"):
        ordered(Random(), panel, {"S1": 5.0}, EnvironmentConfig(), cash=100.0)
    with pytest.raises(DataError, match=f"the prices of the holding S2 end on {str(times[END])[:10]}, more than 5"):
        ordered(Random(), panel, {"S2": 5.0}, EnvironmentConfig(), cash=100.0)


def test_virtual_holdings_are_kept_beside_the_holdings(tmp_path: Path) -> None:
    """The days of a backtest in turn, each asked for twice; without the file, a slow mandate trades differently."""
    panel = random_panel()
    environment = EnvironmentConfig(fill="same_close")
    first = 200
    cash, shares, _ = days_of_backtest(tilted(), panel, environment, first, first + 5)
    file = tmp_path / "my.csv"
    for i in range(5):
        before = np.zeros(len(panel.symbols)) if i == 0 else shares[i - 1]
        lines = [f"{symbol},{count!r}" for symbol, count in zip(panel.symbols, before.tolist(), strict=True)]
        file.write_text("\n".join(["symbol,shares", *lines]) + "\n")
        options: dict[str, Any] = {
            "cash": CASH if i == 0 else float(cash[i - 1]),
            "date": str(panel.times[first + i])[:10],
        }
        for _ in range(2):
            found = ordered(tilted(), panel, file, environment, **options)
            change = [row.shares for row in found.orders]
            np.testing.assert_allclose(change, shares[i] - before, rtol=1e-6, atol=1e-3)
    entries = json.loads((tmp_path / "my.state.json").read_text())
    assert [entry["bar"][:10] for entry in entries] == [str(panel.times[first + i])[:10] for i in range(5)]
    # An earlier day, asked for once more, leaves the later ones alone.
    ordered(tilted(), panel, file, environment, **{**options, "date": str(panel.times[first + 1])[:10]})
    assert [json.loads((tmp_path / "my.state.json").read_text())[i] for i in (0, 2, 3, 4)] == [
        entries[i] for i in (0, 2, 3, 4)
    ]
    holdings = dict(zip(panel.symbols, before.tolist(), strict=True))
    without = ordered(tilted(), panel, holdings, environment, **options)
    assert np.abs(np.array(change) - [row.shares for row in without.orders]).max() > 1
    (tmp_path / "my.state.json").write_text('[{"bar": "2020-01-01", "state": {"weights": "none"}}]')
    with pytest.raises(InputError, match=r"my\.state\.json holds no virtual holdings"):
        ordered(tilted(), panel, file, environment, **options)


def test_whole_shares_are_cut_towards_zero_and_leave_cash() -> None:
    panel = random_panel()
    holdings = dict.fromkeys(panel.symbols, 1234.1) | {"S1": 0.0}  # x + 1 - x is not 1
    options: dict[str, Any] = {"cash": 100.0, "date": str(panel.times[301])[:10]}
    parts, whole = (
        ordered(Random(), panel, holdings, EnvironmentConfig(), whole_shares=whole, **options)
        for whole in (False, True)
    )
    assert {row.shares > 0 for row in parts.orders if row.shares} == {True, False}
    assert all(row.shares.is_integer() for row in whole.orders)
    assert all(
        math.trunc(a.shares) == b.shares for a, b in zip(parts.orders, whole.orders, strict=True) if b.shares <= 0
    )
    spent = sum(row.shares * (row.price or 0.0) + row.cost for row in whole.orders)
    assert whole.cash_left == pytest.approx(100.0 - spent)
    assert whole.cash_left >= 0


@pytest.mark.parametrize(
    ("holdings", "options", "message"),
    [
        ({"s0": 1.0}, {}, "holdings: 's0' is no symbol of 'main'; did you mean S0"),
        ({"S0": -57.0}, {}, "shares of S0 must be a number of at least 0, got '-57.0'"),
        ({"S0": "some"}, {}, "shares of S0 must be a number of at least 0, got 'some'"),
        ({"S0": math.inf}, {}, "got 'inf'"),
        ({}, {}, r"holdings and cash are worth 0\.00"),
        ({"S0": 1.0}, {"cash": -5.0}, "cash must be a number of at least 0, got -5"),
        ({"S0": 1.0}, {"cash": math.nan}, "got nan"),
        ({"S0": 1.0}, {"date": None}, "the prices of 'main' end on 2021-11-30, more than 5 trading days ago"),
        ({"S0": 1.0}, {"date": "2031-01-02"}, "'main' has no bar on 2031-01-02.*the bar before is 2021-11-30"),
        ({"S0": 1.0}, {"date": "2019"}, "the date must be a date such as 2020-01-31"),
    ],
)
def test_bad_input_is_refused(holdings: Mapping[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(FinrlPodError, match=message):
        ordered(Random(), small_panel(), holdings, EnvironmentConfig(), **{"date": "2021-06-01", **options})


def test_strategy_with_stops_is_refused_and_shorts_may_be_held() -> None:
    strategy: Any = Random()
    strategy.orders = OrderRules(stop_loss=0.1)
    with pytest.raises(InputError, match="random has stops or limits"):
        ordered(strategy, small_panel(), {}, cash=1.0)
    short = EnvironmentConfig(short=True)
    found = ordered(Random(), small_panel(), {"S0": -2.0}, short, cash=1e4, date="2021-06-01")
    assert found.orders[0].held == -2.0


def test_prices_of_days_to_come_are_refused() -> None:
    panel = random_panel()
    ahead = np.datetime64(datetime.now(UTC).date(), "ns") - panel.times[-1] + np.timedelta64(30, "D")
    with pytest.raises(DataError, match="has not come yet"):
        ordered(Random(), dataclasses.replace(panel, times=panel.times + ahead), {}, cash=1e4)


def test_reasons_of_a_strategy_without_scores_are_refused() -> None:
    for strategy in (Random(), BasePortfolio(MANDATE)):
        with pytest.raises(InputError, match="has no scores that could be explained: leave out why"):
            ordered(strategy, small_panel(), {}, cash=1e4, date="2021-06-01", why=True)


# ---------------------------------------------------------------------- the command, and Python


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    fill_store(tmp_path / "store")
    (tmp_path / "my.csv").write_text("symbol,shares\nS1,7\n")
    return tmp_path


def test_command_prints_json_a_table_and_csv_and_python_returns_the_rows(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["orders", "--strategy", "equal_weight", "--data", "main", "--holdings", "my.csv", "--cash", "1000"]
    assert run([*call, "--date", "2021-06-01", "--csv", "orders.csv", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["symbol"] for row in document["orders"]] == ["S0", "S1", "S2", "S3"]
    assert {row["target_weight"] for row in document["orders"]} == {0.25}
    lines = (folder / "orders.csv").read_text().splitlines()
    assert lines[0] == "symbol,held,target_weight,shares,price,price_date,cost"
    assert len(lines) == 5
    frame = fp.orders("equal_weight", "main", {"S1": 7}, cash=1000, date="2021-06-01")
    assert frame["shares"].tolist() == [row["shares"] for row in document["orders"]]
    assert frame.attrs["cash_left"] == document["cash_left"]
    assert run([*call, "--date", "2021-06-01"]) == 0
    assert "Cash left at these prices" in capsys.readouterr().out
    assert run(call) == 2
    assert "2021-11-30" in capsys.readouterr().err
    age = (datetime.now(UTC).date() - datetime(2021, 11, 30, tzinfo=UTC).date()) / timedelta(days=1)
    assert run([*call, "--max-age", str(int(age))]) == 0
    (folder / "my.csv").write_text("symbol,shares\nS1,7\nS0,1\nS1,8\n")
    assert run([*call, "--date", "2021-06-01"]) == 2
    assert "my.csv: S1 stands there twice" in capsys.readouterr().err


def scored_by_return(panel: Panel) -> Floats:
    """Minus the last return."""
    close = panel.close
    return np.vstack([np.zeros(close.shape[1]), -np.diff(np.log(close), axis=0)])


def test_reasons_add_up_to_the_scores(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    panel = small_panel()
    frame = fp.orders(scored_by_return, "main", cash=1e4, date="2021-06-01", why=True)
    t = int(np.flatnonzero(panel.times == np.datetime64("2021-06-01"))[0])
    expected = -np.log(panel.close[t] / panel.close[t - 1])
    assert frame["score"].tolist() == pytest.approx(expected.tolist())
    assert [sum(why.values()) for why in frame["why"]] == pytest.approx(expected.tolist())
    assert list(frame["why"][0]) == ["scores_scored_by_return"]
    result = ordered(tilted(), panel, {}, EnvironmentConfig(), cash=1e4, date="2021-06-01", why=True)
    rows = record_values(result)["orders"]
    assert [row["why"] for row in rows] == [{"return_5": row["score"]} for row in rows]
    header, first, *_ = result.to_csv().splitlines()
    assert header == "symbol,held,target_weight,shares,price,price_date,cost,score,why"
    assert json.loads(next(csv.reader([first]))[-1]) == rows[0]["why"]
    show_orders(result)
    assert f"return_5 {rows[0]['score']:+.3f}" in capsys.readouterr().out
