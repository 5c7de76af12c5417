"""Half spreads by asset and day: `execute` and the backtest engine against plain loops."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from finrl_pod.errors import InputError
from finrl_pod.evaluate.backtest import simulate
from finrl_pod.evaluate.variations import Job, simulate_recorded
from finrl_pod.market.costs import BarLiquidity, Frictions, QuotedHalfSpread
from finrl_pod.market.execution import ExecutionRules, execute
from finrl_pod.market.venue import execute_with_frictions
from finrl_pod.types import Floats, MarketTensor
from tests.market.test_execution import random_case
from tests.markets import random_market

RATE, CASH, BARS = 0.0005, 1e6, 30
QUOTED = ExecutionRules(RATE, frictions=Frictions((QuotedHalfSpread(),)))
seeds = st.integers(0, 2**31 - 1)


def account_by_hand(market: MarketTensor, table: Floats, last: int) -> tuple[Floats, float, Floats]:
    """Equity at each close, all costs, and cost of the spreads, of an account that trades to the weights of each bar.

    Written as a loop over bars and assets: sales pay their costs out of their proceeds, then all buys are scaled down
    by one factor if the cash does not suffice for them and their costs.
    """
    close, fill = market.close.numpy(), market.fill.numpy()
    assert market.half_spread is not None
    half, fillable, delisted = market.half_spread.numpy(), market.fillable.numpy(), market.delisted.numpy()
    assets = close.shape[1]
    cash, shares, equity, paid, spreads = CASH, [0.0] * assets, [CASH], 0.0, [0.0]
    for t in range(last):
        account_value = cash + sum(shares[n] * close[t, n] for n in range(assets))
        desired = []
        for n in range(assets):
            target = table[t, n] * account_value / close[t, n]
            desired.append(target if fillable[t, n] else (0.0 if delisted[t, n] else shares[n]))
        charged = 0.0
        buys = [0.0] * assets
        for n in range(assets):
            sold = max(shares[n] - desired[n], 0.0)
            value, spread = sold * fill[t, n], sold * fill[t, n] * half[t, n]
            cash += value - value * RATE - spread
            paid, charged = paid + value * RATE + spread, charged + spread
            buys[n] = max(desired[n] - shares[n], 0.0)
            shares[n] -= sold
        needed = sum(buys[n] * fill[t, n] * (1 + RATE + half[t, n]) for n in range(assets))
        factor = min(1.0, cash / needed) if needed > 0 else 1.0
        for n in range(assets):
            value = buys[n] * factor * fill[t, n]
            cash -= value * (1 + RATE + half[t, n])
            paid, charged = paid + value * (RATE + half[t, n]), charged + value * half[t, n]
            shares[n] += buys[n] * factor
        equity.append(cash + sum(shares[n] * close[t + 1, n] for n in range(assets)))
        spreads.append(charged)
    return np.array(equity), paid, np.array(spreads)


@settings(max_examples=25, deadline=None)
@given(seed=seeds, gaps=st.booleans())
def test_a_backtest_equals_the_account_by_hand(seed: int, gaps: bool) -> None:
    rough = {"gaps": 0.1, "ends": {0: 20}, "starts": {1: 6}} if gaps else {}
    market = random_market(seed, bars=BARS, assets=4, opens=True, spreads=True, **rough)  # type: ignore[arg-type]
    table = np.random.default_rng(seed).dirichlet(np.ones(4) * 0.5, BARS)
    expected, paid, spreads = account_by_hand(market, table, BARS - 1)
    targets = torch.from_numpy(table)
    ledger = simulate(market, lambda t, cash, shares: targets[t : t + 1], 0, BARS - 1, QUOTED, CASH)
    np.testing.assert_allclose(ledger.equity[:, 0], expected, rtol=1e-12)
    assert ledger.costs.sum().item() == pytest.approx(paid, rel=1e-10)
    np.testing.assert_allclose(ledger.cost_parts["spread"][:, 0], spreads, rtol=1e-9, atol=1e-9)
    simulated = simulate_recorded(market, targets.unsqueeze(0), [Job(0, 0, BARS - 1, QUOTED)], CASH)  # in the kernel
    np.testing.assert_allclose(simulated.equity[0], expected, rtol=1e-12)
    assert simulated.costs[0] == pytest.approx(paid, rel=1e-10)


@settings(max_examples=30, deadline=None)
@given(seed=seeds, whole=st.booleans(), short=st.booleans(), leverage=st.sampled_from([1.0, 1.5]))
def test_rates_by_asset_equal_the_general_execution(seed: int, whole: bool, short: bool, leverage: float) -> None:
    rules = ExecutionRules(RATE, whole, short, "proportional", leverage)
    case = {name: torch.from_numpy(x) for name, x in random_case(seed, rules).items()}
    half = torch.from_numpy(np.random.default_rng(seed).uniform(0, 0.02, case["shares"].shape))
    got = execute(**case, rules=rules, cost_rates=half + RATE)
    expected = execute_with_frictions(
        **case, rules=rules, frictions=Frictions((QuotedHalfSpread(),)), liquidity=BarLiquidity(half_spread=half)
    )
    scale = case["cash"] + (case["shares"].abs() * case["prices"]).sum(-1) + expected.traded
    slack = case["prices"].max(-1).values * 1.1 if whole else 0.0  # a share may flip by rounding
    assert ((got.cash - expected.cash).abs() <= 1e-9 * scale + slack).all()
    assert ((got.cost - expected.cost).abs() <= 1e-9 * scale + slack).all()
    difference = (got.shares - expected.shares).abs() * case["prices"]
    assert (difference <= 1e-9 * scale[:, None] + whole * case["prices"]).all()


@pytest.mark.parametrize("order", ["proportional", "sequential"])
def test_equal_rates_are_the_scalar_rate(order: str) -> None:
    rules = ExecutionRules(0.003, buy_allocation=order)  # type: ignore[arg-type]
    case = {name: torch.from_numpy(x) for name, x in random_case(5, rules).items()}
    rates = torch.full_like(case["shares"], 0.003)
    for one, other in zip(execute(**case, rules=rules), execute(**case, rules=rules, cost_rates=rates), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-6)


def test_sequential_buys_pay_the_spread_of_their_own_asset() -> None:
    rules = ExecutionRules(0.0, buy_allocation="sequential")
    cash, none, prices = torch.tensor([100.0]), torch.zeros(1, 2), torch.tensor([[10.0, 10.0]])
    trades, rates = torch.tensor([[8.0, 5.0]]), torch.tensor([[0.0, 0.25]])
    fills = execute(cash, none, trades, prices, rules, cost_rates=rates)
    assert fills.shares.tolist() == [[8.0, pytest.approx(20 / 12.5)]]
    assert fills.cost.tolist() == [pytest.approx(1.6 * 2.5)]
    assert fills.cash.tolist() == [pytest.approx(0.0)]


def test_replay_refuses_a_market_without_spreads() -> None:
    market = random_market(0, bars=12)
    table = torch.full((1, 12, 3), 0.3, dtype=torch.float64)
    with pytest.raises(InputError, match="needs prices with spreads"):
        simulate_recorded(market, table, [Job(0, 0, 11, QUOTED)], CASH)
    zero = dataclasses.replace(market, half_spread=torch.zeros_like(market.close))
    charged, plain = (
        simulate_recorded(zero, table, [Job(0, 0, 11, rules)], CASH).equity for rules in (QUOTED, ExecutionRules(RATE))
    )
    np.testing.assert_allclose(charged, plain, rtol=1e-14)
