"""Deposits and withdrawals: conserved money, time-weighted and money-weighted returns, accounts that cannot pay."""

from __future__ import annotations

import numpy as np
import pytest

from finrl_pod.data.tensor import build_market
from finrl_pod.errors import InputError
from finrl_pod.evaluate.attribution import attribution, trades_table
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.metrics import flow_returns, summary, time_weighted_equity
from finrl_pod.evaluate.tearsheet import cost_summary
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.types import BacktestResult, Floats, Positions, Window
from tests.evaluate.conftest import MarketOf


class Buying:
    """Half in the first asset and 0.3 in the second, set every fifth bar."""

    name, feature_names, lookback = "buying", (), 1

    def __init__(self) -> None:
        self.cash: list[float] = []

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        self.cash.append(positions.cash * positions.equity)
        return np.array([0.5, 0.3]) if len(self.cash) % 5 == 1 else None


def with_flows(market_of: MarketOf, amounts: dict[int, float], rules: ExecutionRules) -> tuple[BacktestResult, Buying]:
    close = 50 * np.exp(np.random.default_rng(0).normal(0, 0.03, (60, 2)).cumsum(0))
    panel, market = market_of(close, open_=close * 1.01)
    flows = np.zeros(60)
    flows[list(amounts)] = list(amounts.values())
    strategy = Buying()
    return backtest(strategy, panel, MarketPeriod(market, 0, 59, rules, 1000.0, flows)), strategy


@pytest.mark.parametrize("whole_shares", [False, True])
def test_profits_less_costs_and_flows_are_the_change_of_the_balance(market_of: MarketOf, whole_shares: bool) -> None:
    rules = ExecutionRules(cost_rate=0.002, whole_shares=whole_shares)
    result, strategy = with_flows(market_of, {7: 400.0, 23: -700.0, 24: -50.0, 40: 90.0, 59: -100.0}, rules)
    close = 50 * np.exp(np.random.default_rng(0).normal(0, 0.03, (60, 2)).cumsum(0))
    _, market = market_of(close, open_=close * 1.01)
    found = attribution(result, market, rules)
    assert result.flows is not None
    np.testing.assert_allclose(
        (found.profits.sum(1) - found.costs + result.flows)[1:], np.diff(result.balance), rtol=0, atol=1e-9
    )
    assert min(strategy.cash) > -1e-9
    trades = trades_table(result, market, rules)
    spent = np.where(trades["side"] == "buy", 1.0, -1.0) * trades["value"] + trades["cost"]
    held = float((result.weights[-1] * result.balance[-1]).sum())
    assert 1000 - spent.sum() + result.flows.sum() + held == pytest.approx(result.balance[-1])
    assert cost_summary(result)["drag"] == pytest.approx(
        (result.costs / result.balance).sum() / (59 / 365.25), rel=0.01
    )


def test_a_flow_is_neither_a_gain_nor_a_loss(market_of: MarketOf) -> None:
    # Prices that do not move: the account earns nothing, whatever is paid in or taken out.
    panel, market = market_of(np.full((30, 2), 10.0))
    flows = np.zeros(30)
    flows[[5, 12]] = 5000.0, -3000.0
    result = backtest(Buying(), panel, MarketPeriod(market, 0, 29, ExecutionRules(0.0), 1000.0, flows))
    assert result.balance[[4, 5, 12, 29]] == pytest.approx([1000.0, 6000.0, 3000.0, 3000.0])
    assert result.equity == pytest.approx(np.full(30, 1000.0))
    assert [result.metrics[name] for name in ("max_drawdown", "annual_volatility")] == pytest.approx([0, 0], abs=1e-9)
    assert result.metrics["money_weighted_return"] == pytest.approx(0.0, abs=1e-9)


def test_without_flows_nothing_changes(market_of: MarketOf) -> None:
    result, _ = with_flows(market_of, {}, ExecutionRules(0.001))
    panel, market = market_of(50 * np.exp(np.random.default_rng(0).normal(0, 0.03, (60, 2)).cumsum(0)))
    plain = backtest(Buying(), panel, MarketPeriod(market, 0, 59, ExecutionRules(0.001), 1000.0))
    assert (plain.flows, plain.balance is plain.equity) == (None, True)
    assert "time_weighted_return" not in plain.metrics
    assert result.metrics["time_weighted_return"] == pytest.approx(result.metrics["money_weighted_return"])
    assert summary(result.equity)["sharpe"] == pytest.approx(summary(result.balance)["sharpe"])


def test_returns_of_an_account_at_a_constant_rate_are_that_rate() -> None:
    times = np.datetime64("2020-01-01", "ns") + np.arange(1000) * np.timedelta64(1, "D")
    flows = np.zeros(1000)
    flows[[100, 400, 700]] = 900.0, -300.0, 50.0
    balance = [500.0]
    for flow in flows[1:]:
        balance.append(balance[-1] * 1.08 ** (1 / 365.25) + flow)
    assert flow_returns(times, balance, flows) == pytest.approx(
        {"time_weighted_return": 0.08, "money_weighted_return": 0.08}
    )
    # A gain before the deposit: money-weighted returns follow the larger account.
    late = flow_returns(times[[0, 365, 730]], [100.0, 1000 + 150.0, 1150.0], [0.0, 1000.0, 0.0])
    assert late["time_weighted_return"] == pytest.approx(1.5 ** (365.25 / 730) - 1)
    assert 100 * (1 + late["money_weighted_return"]) ** (730 / 365.25) + 1000 * (1 + late["money_weighted_return"]) ** (
        365 / 365.25
    ) == pytest.approx(1150.0)
    assert time_weighted_equity([100.0, 1150.0, 1150.0], [0.0, 1000.0, 0.0]) == pytest.approx([100.0, 150.0, 150.0])


def test_accounts_that_cannot_have_flows_are_refused(market_of: MarketOf) -> None:
    with pytest.raises(InputError, match=r"withdrawal of 5,000\.00 at 2020-01-11 is more than the account has"):
        with_flows(market_of, {10: -5000.0}, ExecutionRules(0.001))
    for rules in (ExecutionRules(short=True), ExecutionRules(leverage=2.0)):
        with pytest.raises(InputError, match="need long accounts"):
            with_flows(market_of, {10: 1.0}, rules)
    panel, _ = market_of(np.full((9, 2), 10.0))
    market = build_market(panel, (), (0, 8), "same_close")
    with pytest.raises(InputError, match="need long accounts"):
        backtest(Buying(), panel, MarketPeriod(market, 0, 8, ExecutionRules(), 1000.0, np.zeros(9)))
