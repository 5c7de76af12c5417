"""The backtest engine against a plain Python loop and closed forms; invalid decisions are refused."""

from __future__ import annotations

import dataclasses
import math
import time

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finrl_pod.errors import InputError
from finrl_pod.evaluate.backtest import simulate
from finrl_pod.market.costs import Frictions, HalfSpread, PerShare
from finrl_pod.market.execution import ExecutionRules
from tests.markets import random_market

NO_COSTS = ExecutionRules(cost_rate=0.0)


def prices(seed: int, bars: int, assets: int, gaps: float = 0.0) -> np.ndarray:
    """Positive prices; with gaps, missing bars, a late start of asset 0 and an early end of the last asset."""
    rng = np.random.default_rng(seed)
    close = rng.uniform(5, 200, assets) * np.exp(np.cumsum(rng.normal(0, 0.04, (bars, assets)), 0))
    if gaps and bars > 4:
        close[rng.random(close.shape) < gaps] = np.nan
        close[: int(rng.integers(0, 3)), 0] = np.nan
        close[-int(rng.integers(1, 4)) :, -1] = np.nan
    return close


def decisions(seed: int, bars: int, assets: int) -> list[list[float] | None]:
    """Random target weights that leave some cash; None at some bars."""
    rng = np.random.default_rng(seed + 1)
    drawn = rng.dirichlet(np.ones(assets + 1), bars)[:, 1:]
    return [None if rng.random() < 0.3 else row.tolist() for row in drawn]


def simulate_in_python(close, opens, fill, plan, cash, rate, whole_shares):
    """Independent implementation of the market's rules on lists of floats, one asset at a time.

    close: [T][N], NaN where untradable. Returns (equity, weights, turnover, cost) of each bar, marked at closes.
    """
    bars, assets = len(close), len(close[0])
    marks, last_price = [], [1.0] * assets
    for row in close:
        last_price = [p if not math.isnan(p) else q for p, q in zip(row, last_price, strict=True)]
        marks.append(last_price)
    shares, history = [0.0] * assets, []

    def trade(t, bar):
        """Fill the decision of t at `bar`; returns turnover and cost."""
        nonlocal cash
        price, fillable, delisted = [], [], []
        for i in range(assets):
            ok = not math.isnan(close[t][i]) and not math.isnan(close[bar][i])
            fillable.append(ok)
            delisted.append(all(math.isnan(close[s][i]) for s in range(t + 1, bars)))
            at_open = bar > t and opens is not None
            price.append((opens[bar][i] if at_open else close[bar][i]) if ok else marks[t][i])
        total = cash + sum(s * p for s, p in zip(shares, marks[t], strict=True))
        order = [0.0] * assets
        for i in range(assets):
            if fillable[i] and plan[t] is not None:
                order[i] = plan[t][i] * total / marks[t][i] - shares[i]
            elif not fillable[i] and delisted[i]:
                order[i] = -shares[i]
            if whole_shares:
                order[i] = math.trunc(order[i])
        before = cash + sum(s * p for s, p in zip(shares, price, strict=True))
        notional = 0.0
        for i in range(assets):
            if order[i] < 0:
                amount = min(-order[i], shares[i])
                shares[i] -= amount
                cash += amount * price[i] * (1 - rate)
                notional += amount * price[i]
        purchase = sum(w * p for w, p in zip(order, price, strict=True) if w > 0) * (1 + rate)
        scale = min(1.0, cash / purchase) if purchase > 0 else 1.0
        for i in range(assets):
            if order[i] > 0:
                amount = math.floor(order[i] * scale) if whole_shares else order[i] * scale
                shares[i] += amount
                cash -= amount * price[i] * (1 + rate)
                notional += amount * price[i]
        return notional / before, notional * rate

    for bar in range(bars):
        flow = (0.0, 0.0)
        if fill == "same_close" and bar < bars - 1:
            flow = trade(bar, bar)
        if fill == "next" and bar > 0:
            flow = trade(bar - 1, bar)
        equity = cash + sum(s * p for s, p in zip(shares, marks[bar], strict=True))
        history.append((equity, [s * p / equity for s, p in zip(shares, marks[bar], strict=True)], *flow))
    return history


def follow_plans(plans, first=0):
    """A decision function with one plan per account; None where all plans are None."""

    def decide(t, cash, shares):
        rows = [plan[t - first] for plan in plans]
        return None if rows[0] is None else torch.tensor(rows, dtype=torch.float64)

    return decide


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    bars=st.integers(3, 14),
    assets=st.integers(1, 5),
    fill=st.sampled_from(["next", "same_close"]),
    gaps=st.sampled_from([0.0, 0.25]),
    rate=st.sampled_from([0.0, 0.001, 0.02]),
    with_open=st.booleans(),
)
def test_engine_equals_a_plain_loop(market_of, seed, bars, assets, fill, gaps, rate, with_open):
    close = prices(seed, bars, assets, gaps)
    close[0, 0] = 100.0  # a market needs one bar that trades
    opens = close * np.random.default_rng(seed + 2).uniform(0.97, 1.03, close.shape) if with_open else None
    _, market = market_of(close, fill=fill, open_=opens)
    plan = decisions(seed, bars, assets)
    ledger = simulate(market, follow_plans([plan]), 0, bars - 1, ExecutionRules(rate), 10_000.0)
    rows = simulate_in_python(
        close.tolist(), None if opens is None else opens.tolist(), fill, plan, 10_000.0, rate, False
    )
    for column, values in enumerate([ledger.equity, ledger.weights, ledger.turnover, ledger.costs]):
        expected = torch.tensor([row[column] for row in rows], dtype=torch.float64)
        torch.testing.assert_close(values[:, 0], expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), fill=st.sampled_from(["next", "same_close"]))
def test_whole_shares_equal_the_plain_loop_and_stay_whole(market_of, seed, fill):
    close = prices(seed, 10, 3, 0.2)
    _, market = market_of(close, fill=fill)
    plan = decisions(seed, 10, 3)
    ledger = simulate(market, follow_plans([plan]), 0, 9, ExecutionRules(0.001, whole_shares=True), 10_000.0)
    rows = simulate_in_python(close.tolist(), None, fill, plan, 10_000.0, 0.001, True)
    expected = torch.tensor([row[0] for row in rows], dtype=torch.float64)
    torch.testing.assert_close(ledger.equity[:, 0], expected, rtol=1e-9, atol=0)
    assert torch.equal(ledger.shares, ledger.shares.round())


def test_batched_accounts_equal_single_accounts(market_of):
    close = prices(4, 30, 4, 0.1)
    _, market = market_of(close)
    plans = [[row or [0.0] * 4 for row in decisions(seed, 30, 4)] for seed in range(5)]
    batched = simulate(market, follow_plans(plans), 0, 29, ExecutionRules(), 1e5, batch=5)
    for i, plan in enumerate(plans):
        single = simulate(market, follow_plans([plan]), 0, 29, ExecutionRules(), 1e5)
        torch.testing.assert_close(batched.equity[:, i], single.equity[:, 0], rtol=1e-12, atol=0)
        torch.testing.assert_close(batched.weights[:, i], single.weights[:, 0], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("fill", ["next", "same_close"])
def test_buy_and_hold_without_costs_is_the_mean_of_relative_prices(market_of, fill):
    close = prices(8, 50, 6)
    _, market = market_of(close, fill=fill)
    ledger = simulate(
        market,
        lambda t, c, s: torch.full((1, 6), 1 / 6, dtype=torch.float64) if t == 5 else None,
        5,
        49,
        NO_COSTS,
        1000.0,
    )
    bought = close[6] if fill == "next" else close[5]
    # With next-bar fills the order is sized at the decision's close, and scaled down to the available cash.
    shares = 1000.0 / 6 / close[5]
    shares *= min(1.0, 1000.0 / (shares @ bought))
    cash_left = 1000.0 - shares @ bought
    start = 6 if fill == "next" else 5
    np.testing.assert_allclose(ledger.equity[start - 5 :, 0], cash_left + close[start:] @ shares, rtol=1e-12)
    assert ledger.equity[0, 0] == 1000.0


def test_daily_equal_weight_without_costs_grows_by_the_mean_return(market_of):
    close = prices(9, 40, 5)
    _, market = market_of(close, fill="same_close")
    ledger = simulate(market, lambda t, c, s: torch.full((1, 5), 0.2, dtype=torch.float64), 0, 39, NO_COSTS, 1.0)
    expected = np.log((close[1:] / close[:-1]).mean(1))
    np.testing.assert_allclose(ledger.log_returns[:, 0], expected, rtol=1e-9, atol=1e-13)


def test_account_without_trades_keeps_its_cash_and_delisted_holdings_are_sold_at_the_last_close(market_of):
    close = np.full((6, 2), 10.0)
    close[3:, 1] = np.nan
    close[2, 1] = 15.0
    _, market = market_of(close)
    untraded = simulate(market, lambda t, c, s: None, 0, 5, ExecutionRules(), 500.0)
    assert untraded.equity.unique().tolist() == [500.0]
    plan = lambda t, c, s: torch.tensor([[0.0, 1.0]]) if t == 0 else None  # noqa: E731
    ledger = simulate(market, plan, 0, 5, ExecutionRules(0.01), 1010.0)
    assert ledger.shares.tolist() == [[0.0, 0.0]]
    assert ledger.cash.item() == pytest.approx(100 * 15.0 * 0.99)
    assert ledger.costs[:, 0].tolist() == pytest.approx([0, 10.0, 0, 15.0, 0, 0])


def test_decide_is_called_with_copies_at_every_bar_but_the_last(market_of):
    _, market = market_of(prices(1, 12, 3))
    decision_bars = []

    def decide_and_overwrite(t, cash, shares):
        decision_bars.append(t)
        cash.fill_(1e9)
        shares.fill_(1e9)
        return torch.full((1, 3), 0.3)

    ledger = simulate(market, decide_and_overwrite, 2, 9, ExecutionRules(), 100.0)
    expected = simulate(market, lambda t, c, s: torch.full((1, 3), 0.3), 2, 9, ExecutionRules(), 100.0)
    assert decision_bars == list(range(2, 9))
    assert torch.equal(ledger.equity, expected.equity)
    assert ledger.equity.shape == (8, 1)
    assert ledger.weights.shape == (8, 1, 3)


def test_account_ruined_by_shorts_is_closed_out_with_finite_results(market_of):
    close = np.array([[10.0], [10.0], [40.0], [40.0], [5.0]])
    _, market = market_of(close)
    rules = ExecutionRules(0.0, short=True, leverage=2.0)
    ledger = simulate(market, lambda t, c, s: torch.tensor([[-1.0]]) if t == 0 else None, 0, 4, rules, 100.0)
    assert ledger.equity[2, 0] < 0
    assert not ledger.shares.any()
    assert ledger.equity[3, 0] == ledger.equity[4, 0]  # a closed-out account stays at its loss
    assert torch.isfinite(ledger.log_returns).all()
    assert torch.isfinite(ledger.weights).all()


def once(weights: list[float], at: int = 0):
    return lambda t, c, s: torch.tensor([weights], dtype=torch.float64) if t == at else None


def test_account_ruined_by_borrowing_is_closed_out_without_a_decision(market_of):
    _, market = market_of(np.array([[100.0], [100], [40], [40], [60], [120], [200]]))
    ledger = simulate(market, once([2.0]), 0, 6, ExecutionRules(0.0, leverage=2.0), 100.0)
    np.testing.assert_allclose(ledger.equity[:, 0], [100, 100, -20, -20, -20, -20, -20])


@pytest.mark.parametrize("costs", [(), (PerShare(0.0, 1.0),), (PerShare(0.01, 1.0), HalfSpread(0.001))])
@pytest.mark.parametrize("delisting_return", [0.0, -0.3, -1.0])
@pytest.mark.parametrize("weight", [0.5, 0.01, -0.5])
def test_delisted_holdings_are_sold_under_any_costs(market_of, costs, delisting_return, weight):
    close = np.full((10, 2), 100.0)
    close[4:, 0] = np.nan
    _, market = market_of(close)
    rules = ExecutionRules(0.0, short=weight < 0, frictions=Frictions(costs, delisting_return=delisting_return))
    ledger = simulate(market, once([weight, 0.5]), 0, 9, rules, 100_000.0)
    assert not ledger.shares[0, 0]
    loss = -weight * delisting_return * 100_000
    assert ledger.equity[-1, 0] == pytest.approx(100_000 - loss, abs=250)


def test_unsold_holdings_count_against_the_gross_limit(market_of):
    close = np.full((12, 2), 100.0)
    _, market = market_of(close)
    volume = torch.full((12, 2), 1e9, dtype=torch.float64)
    volume[4:, 0] = 100.0
    market = dataclasses.replace(market, fill_volume=volume, volatility=torch.full((12, 2), 0.01))
    rules = ExecutionRules(0.0, short=True, frictions=Frictions(participation=0.01))

    def reverse_position(t, c, s):
        return torch.tensor([[1.0, 0.0]] if t < 5 else [[0.0, -1.0]], dtype=torch.float64)

    gross = simulate(market, reverse_position, 0, 11, rules, 100_000.0).weights.abs().sum(-1)
    assert float(gross.max()) <= 1 + 1e-9


def test_leverage_below_one_caps_target_weights(market_of):
    close = np.full((8, 2), 100.0)
    close[3:6, 0] = np.nan
    _, market = market_of(close)
    weights = [[1.0, 0.0]] * 3 + [[0.0, 1.0]] * 5
    ledger = simulate(
        market, lambda t, c, s: torch.tensor([weights[t]]), 0, 7, ExecutionRules(0.0, leverage=0.5), 1000.0
    )
    np.testing.assert_allclose(ledger.weights[1:, 0].sum(-1), 0.5)
    np.testing.assert_allclose(ledger.weights[4, 0], [0.5, 0.0])  # the suspended holding uses up the leverage


@pytest.mark.parametrize(
    ("weights", "rules", "message"),
    [
        (torch.tensor([[0.5, torch.nan]]), NO_COSTS, "2020-01-04 must be finite, got nan for S1"),
        (torch.tensor([[0.9, 0.2]]), NO_COSTS, "2020-01-04 may add up to 1 at most .* got 1.1"),
        (torch.tensor([[1.4, 0.2]]), ExecutionRules(leverage=1.5), "2020-01-04 may add up to 1.5 at most"),
        (torch.tensor([[0.9, -0.2]]), ExecutionRules(short=True), "2020-01-04 may add up to 1 at most"),
        (torch.tensor([[0.5, -0.2]]), NO_COSTS, "2020-01-04 must not be negative .* got -0.2 for S1"),
        (torch.tensor([0.5, 0.2]), NO_COSTS, "2020-01-04 must have the shape"),
        (torch.tensor([[0.5, 0.2, 0.1]]), NO_COSTS, "2020-01-04 must have the shape"),
    ],
)
def test_invalid_weights_are_refused_with_the_date(market_of, weights, rules, message):
    _, market = market_of(prices(0, 8, 2))
    with pytest.raises(InputError, match=message):
        simulate(market, lambda t, c, s: weights if t == 3 else None, 0, 7, rules, 100.0)


def test_error_of_a_nan_weight_names_untraded_assets_as_a_cause(market_of):
    close = prices(3, 8, 7)
    close[:5, 1] = np.nan
    market = market_of(close)[1]
    with pytest.raises(InputError, match="must be finite, got nan for S0") as raised:
        simulate(market, lambda *_: torch.full((1, 7), torch.nan), 2, 7, NO_COSTS, 1.0)
    assert "give weight 0 where window.tradable[-1] is False" in str(raised.value)


@pytest.mark.parametrize(
    ("first", "last", "cash"), [(3, 3, 1.0), (-1, 3, 1.0), (0, 8, 1.0), (0, 7, 0.0), (0, 7, math.nan)]
)
def test_invalid_ranges_are_refused(market_of, first, last, cash):
    _, market = market_of(prices(0, 8, 2))
    with pytest.raises(InputError):
        simulate(market, lambda t, c, s: None, first, last, NO_COSTS, cash)


@pytest.mark.parametrize("batch", [1, 64])
def test_four_years_take_less_than_a_second(market_of, batch):
    _, market = market_of(prices(0, 1001, 20))
    weights = torch.softmax(torch.randn(1001, batch, 20, generator=torch.Generator().manual_seed(0)), -1)
    started = time.process_time()
    simulate(market, lambda t, c, s: weights[t], 0, 1000, ExecutionRules(), 1e6, batch=batch)
    assert time.process_time() - started < 5.0  # 0.2 s on an idle core: minutes would mean a loop over accounts


def test_a_backtest_uses_one_thread_and_restores_those_of_the_session() -> None:
    before, seen = torch.get_num_threads(), set()

    def decide(t: int, cash: torch.Tensor, shares: torch.Tensor) -> None:
        seen.add(torch.get_num_threads())

    try:
        torch.set_num_threads(2)
        simulate(random_market(bars=5), decide, 0, 4, ExecutionRules(), 1e6)
        assert seen == {1}
        assert torch.get_num_threads() == 2
        with pytest.raises(ZeroDivisionError):
            simulate(random_market(bars=5), lambda *_: 1 / 0, 0, 4, ExecutionRules(), 1e6)  # type: ignore[arg-type]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
