"""Dividends in cash: backtests and environments against plain loops, and against prices adjusted for dividends."""

from __future__ import annotations

import dataclasses
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch
from finrl_pod_envs.trading_envs import PortfolioEnv
from finrl_pod_strategies.baselines import make_baseline
from hypothesis import given, settings
from hypothesis import strategies as st

from finrl_pod.data.panel import make_panel
from finrl_pod.data.side_tables import CorporateAction, with_actions
from finrl_pod.data.tensor import build_market
from finrl_pod.evaluate.attribution import attribution
from finrl_pod.evaluate.backtest import backtest, simulate
from finrl_pod.evaluate.paper_backtest import backtest_paper
from finrl_pod.evaluate.variations import Job, RecordingStrategy, simulate_recorded
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.market.orders import SizingRules
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import Floats, MarketTensor, Panel, Positions, Window
from tests.markets import random_market

CASH, BARS = 1e6, 40
FREE = ExecutionRules(cost_rate=0.0)
seeds = st.integers(0, 2**31 - 1)


def account_by_hand(market: MarketTensor, table: Floats, rate: float) -> tuple[Floats, Floats]:
    """Equity and dividends received at each close, of an account that trades to the weights of each bar: a loop.

    Weights may be negative and add up to less than 1 in absolute value, so that cash never limits a purchase. Marks
    come after the fills at the same close.
    """
    assert market.dividends is not None
    close, fill, dividends = market.close.numpy(), market.fill.numpy(), market.dividends.numpy()
    same = market.fill_rule == "same_close"
    cash, shares, equity, received = CASH, np.zeros(close.shape[1]), [] if same else [CASH], [0.0]
    for t in range(len(close) - 1):
        desired = table[t] * (cash + shares @ close[t]) / close[t]
        paid = 0.0 if same else float(shares @ dividends[t])  # held since before the ex-date
        cash += paid
        for n, wanted in enumerate(desired):
            traded = wanted - shares[n]
            cash -= traded * fill[t, n] + abs(traded) * fill[t, n] * rate
            shares[n] = wanted
        if same:
            equity.append(cash + float(shares @ close[t]))
            paid = float(shares @ dividends[t])
            cash += paid
        if not same or t == len(close) - 2:
            equity.append(cash + float(shares @ close[t + 1]))
        received.append(paid)
    return np.array(equity), np.array(received)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(seed=seeds, fill=st.sampled_from(["next", "same_close"]), short=st.booleans())
def test_a_backtest_receives_the_dividends_of_the_account_by_hand(seed: int, fill: str, short: bool) -> None:
    market = random_market(seed, bars=BARS, fill=fill, opens=True, dividends=True)
    rng = np.random.default_rng(seed)
    table = rng.dirichlet(np.ones(4), BARS)[:, :3] * 0.8
    if short:
        table *= rng.choice([-1.0, 1.0], table.shape)
    rules = ExecutionRules(cost_rate=0.0005, short=short)
    targets = torch.from_numpy(table)
    ledger = simulate(market, lambda t, cash, shares: targets[t : t + 1], 0, BARS - 1, rules, CASH)
    expected, received = account_by_hand(market, table, 0.0005)
    np.testing.assert_allclose(ledger.equity[:, 0], expected, rtol=1e-11)
    assert ledger.dividends is not None
    assert ledger.carry is not None
    np.testing.assert_allclose(ledger.dividends[:, 0], received, rtol=1e-9, atol=1e-6)
    assert float(ledger.carry.abs().sum()) < 1e-4  # what is left is rounding
    if not short:  # recorded decisions, whose kernel knows no dividends
        replayed = simulate_recorded(market, targets.unsqueeze(0), [Job(0, 0, BARS - 1, rules)], CASH)
        np.testing.assert_allclose(replayed.equity[0], expected, rtol=1e-11)


def test_an_environment_receives_the_dividends_of_the_backtest() -> None:
    market = random_market(3, bars=BARS, opens=True, dividends=True)
    env = PortfolioEnv(market, EnvironmentConfig(window=20, envs=1, group=1, cost_bps=5.0), dtype=torch.float64)
    action = torch.tensor([[[0.2, -0.3, 0.5, 0.1]]])
    start = int(env.reset(1, stagger=False).bar)
    weights = torch.softmax(action[0, 0].double(), 0)[1:]
    last = start + 15
    ledger = simulate(market, lambda t, cash, shares: weights.unsqueeze(0), start, last, env.rules, env.config.cash)
    plain = simulate(
        dataclasses.replace(market, dividends=None),
        lambda t, cash, shares: weights.unsqueeze(0),
        *(start, last, env.rules, env.config.cash),
    )
    equity = [float(env.step(action).equity) for _ in range(15)]
    np.testing.assert_allclose(equity, ledger.equity[1:, 0], rtol=1e-9)
    assert ledger.equity[-1, 0] > 1.01 * plain.equity[-1, 0]


def dividend_payers(seed: int = 0, years: int = 4) -> tuple[Panel, Panel]:
    """Ten tickers that pay 0.6% every quarter, one of which splits: (dividends in cash, adjusted prices)."""
    rng = np.random.default_rng(seed)
    bars = 252 * years
    close = 50 * np.exp(np.cumsum(rng.normal(0.0004, 0.012, (bars, 10)), 0))
    times = np.datetime64("2015-01-05", "ns") + np.arange(bars) * np.timedelta64(1, "D")
    actions = []
    for n in range(10):
        for t in range(20 + 3 * n, bars, 63):
            paid = 0.006 * float(close[t - 1, n])
            close[t:, n] *= 1 - paid / close[t - 1, n]
            actions.append(CorporateAction(f"S{n}", pd.Timestamp(times[t]), dividend=paid))
    close[500:, 3] /= 3
    for i, action in enumerate(actions):
        if action.symbol == "S3" and action.date >= times[500]:
            actions[i] = action._replace(dividend=action.dividend / 3)
    actions.append(CorporateAction("S3", pd.Timestamp(times[500]), split=3.0))
    symbols = tuple(f"S{n}" for n in range(10))
    panel = make_panel(times, symbols, {"close": close}, name="payers", adjusted=False)
    return with_actions(panel, actions), with_actions(panel, actions, "reinvested")


@pytest.mark.slow
def test_equal_weight_earns_the_same_on_adjusted_prices_and_with_dividends_in_cash() -> None:
    """Dividends wait in cash for the next rebalancing: 2.4% a year for half a month is a hundredth of the growth."""
    ends = []
    for panel in dividend_payers():
        market = build_market(panel, (), (0, len(panel.times) - 1))
        result = backtest(
            make_baseline("equal_weight"), panel, MarketPeriod(market, 0, len(panel.times) - 1, FREE, CASH)
        )
        ends.append(np.log(result.equity[-1] / CASH))
    assert abs(ends[0] - ends[1]) < 0.0005 * 4  # log growth over four years; measured: 0.0002 a year
    cash = dividend_payers()[0]
    without = dataclasses.replace(cash, dividend=None)
    market = build_market(without, (), (0, len(cash.times) - 1))
    poorer = backtest(make_baseline("equal_weight"), without, MarketPeriod(market, 0, len(cash.times) - 1, FREE, CASH))
    assert ends[0] - np.log(poorer.equity[-1] / CASH) == pytest.approx(0.024 * 4, abs=0.01)


def test_attribution_gives_dividends_to_their_assets() -> None:
    panel = dividend_payers()[0]
    last = len(panel.times) - 1
    market = build_market(panel, (), (0, last))
    rules = ExecutionRules(cost_rate=0.001)
    result = backtest(make_baseline("equal_weight"), panel, MarketPeriod(market, 0, last, rules, CASH))
    found = attribution(result, market, rules)
    assert result.carry == pytest.approx(0, abs=1e-4)
    np.testing.assert_allclose((found.profits.sum(1) - found.costs)[1:], np.diff(result.equity), atol=1e-6)


class HoldOne:
    name, feature_names, lookback = "hold one", (), 1

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        return None if positions.weights.any() else np.array([1.0])


def test_whole_orders_of_a_daemon_receive_them_too() -> None:
    times = np.datetime64("2020-01-01", "ns") + np.arange(5) * np.timedelta64(1, "D")
    panel = make_panel(
        times,
        ("A",),
        {"close": np.full((5, 1), 10.0), "dividend": np.array([[0], [0.5], [0.5], [0.5], [0]])},
        adjusted=False,
    )
    market = build_market(panel, (), (0, 4))
    done = backtest_paper(HoldOne(), panel, market, 0, 4, SizingRules(cash_buffer=Decimal(0)), 1000.0, "close")
    # Bought at the close of bar 1, after its dividend: 100 shares are paid 0.50 on bars 2 and 3.
    assert [float(x) for x in done.equity] == pytest.approx([1000, 1000, 1050, 1100, 1100])


def test_costs_of_recorded_decisions_are_those_of_the_backtest() -> None:
    panel = dividend_payers()[0]
    last = len(panel.times) - 1
    market = build_market(panel, (), (0, last))
    rules = ExecutionRules(cost_rate=0.001)
    recorder = RecordingStrategy(make_baseline("equal_weight"))
    result = backtest(recorder, panel, MarketPeriod(market, 0, last, rules, CASH))
    tables = torch.from_numpy(recorder.table(market.times)).unsqueeze(0)
    again = simulate_recorded(market, tables, [Job(0, 0, last, rules)], CASH)
    np.testing.assert_allclose(again.equity[0], result.equity, rtol=1e-12)
