"""`execute` in float32 and float64 against a reference implementation, and invariants of every execution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from finrl_pod.market.execution import ExecutionRules, Fills, account_equity, execute, trades_to_weights
from tests.market.reference_execution import reference_execute

ALL_RULES = [
    ExecutionRules(cost, whole, short, order, leverage)
    for cost in (0.0, 0.001, 0.02)
    for whole in (False, True)
    for short in (False, True)
    for order in ("proportional", "sequential")
    for leverage in (1.0, 1.5)
]
execution_rules = st.sampled_from(ALL_RULES)
seeds = st.integers(0, 2**32 - 1)


def random_case(seed: int, rules: ExecutionRules, batch: int = 16, assets: int = 4) -> dict[str, np.ndarray]:
    """Accounts from all cash to fully invested, trades from small to far more than the cash can pay for."""
    rng = np.random.default_rng(seed)
    prices = np.exp(rng.uniform(np.log(0.5), np.log(2000), (batch, assets)))
    shares = rng.uniform(0, 2e5, (batch, assets)) / prices * (rng.random((batch, assets)) < 0.7)
    if rules.short:
        shares *= rng.choice([1.0, -0.2], shares.shape)
    if rules.whole_shares:
        shares = np.trunc(shares)
    cash = rng.uniform(0, 1e6, batch) * (rng.random(batch) < 0.8)
    trades = rng.normal(0, 1, shares.shape) * rng.choice([1e3, 1e5, 1e6], (batch, 1)) / prices
    trades *= rng.random(shares.shape) < 0.8
    case = {"cash": cash, "shares": shares, "trades": trades, "prices": prices}
    return {k: v.astype(np.float32).astype(np.float64) for k, v in case.items()}  # exact in float32


def run(case: dict[str, np.ndarray], rules: ExecutionRules, dtype: torch.dtype, **kwargs: Any) -> Fills:
    fills = execute(**{k: torch.from_numpy(v).to(dtype) for k, v in case.items()}, rules=rules, **kwargs)
    assert all(x.dtype == dtype for x in fills)
    return Fills(*(x.double() for x in fills))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(seed=seeds, rules=execution_rules)
def test_both_dtypes_match_the_reference(seed: int, rules: ExecutionRules) -> None:
    case = random_case(seed, rules)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        fills = run(case, rules, dtype)
        for b in range(len(case["cash"])):
            expected = reference_execute(
                case["cash"][b], *(case[k][b].tolist() for k in ("shares", "trades", "prices")), rules
            )
            difference = np.abs(fills.shares[b].numpy() - expected.shares)
            scale = abs(case["cash"][b]) + (np.abs(case["shares"][b]) * case["prices"][b]).sum() + expected.traded
            if rules.whole_shares and expected.margin < 1e-5:
                # A share count close to a whole number may differ by one, and its value may buy several cheaper shares.
                assert difference.max() <= 1 or rules.buy_allocation == "sequential"
                slack = case["prices"][b].max() * (1 + rules.cost_rate) * len(difference)
            else:
                assert (difference * case["prices"][b]).max() <= tolerance * scale
                slack = 0.0
            assert abs(fills.cash[b] - expected.cash) <= tolerance * scale + slack
            assert abs(fills.traded[b] - expected.traded) <= tolerance * scale + slack
            assert abs(fills.cost[b] - expected.cost) <= rules.cost_rate * (tolerance * scale + slack) + 1e-12


@settings(max_examples=60, deadline=None)
@given(seed=seeds, rules=execution_rules, double=st.booleans())
def test_invariants_hold_for_every_execution(seed: int, rules: ExecutionRules, double: bool) -> None:
    dtype, eps = (torch.float64, 1e-12) if double else (torch.float32, 2e-6)
    case = random_case(seed, rules)
    fills = run(case, rules, dtype)
    cash, shares, trades, prices = (torch.from_numpy(case[k]) for k in ("cash", "shares", "trades", "prices"))
    scale = cash.abs() + (shares.abs() * prices).sum(-1) + fills.traded
    before, after = account_equity(cash, shares, prices), account_equity(fills.cash, fills.shares, prices)
    assert torch.all((before - after - fills.cost).abs() <= eps * scale)  # value is conserved up to costs
    assert torch.allclose(fills.cost, rules.cost_rate * fills.traded, rtol=1e-6)
    traded_value = ((fills.shares - shares).abs() * prices).sum(-1)
    assert torch.all((traded_value - fills.traded).abs() <= eps * scale)
    # Only covering shorts may take the cash below the borrowing limit.
    floor = -rules.borrow * before.clamp(min=0) - ((eps * scale) if rules.borrow or rules.short else 0.0)
    opened = (fills.shares.clamp(min=0) > shares.clamp(min=0)).any(-1)
    assert torch.all((fills.cash >= floor) | ~opened if rules.short else fills.cash >= floor)
    if not rules.short:
        assert torch.all(fills.shares >= 0)
    change = fills.shares - shares
    assert torch.all(change * trades >= 0)  # no trade opposes its order
    assert torch.all(change.abs() * prices <= trades.abs() * prices + eps * scale.unsqueeze(-1))
    if rules.whole_shares:
        assert torch.equal(fills.shares, fills.shares.round())


@pytest.mark.parametrize("order", ["proportional", "sequential"])
def test_buys_use_the_proceeds_of_sells_after_fees(order: Any) -> None:
    rules = ExecutionRules(cost_rate=0.01, buy_allocation=order)
    fills = execute(
        torch.tensor(0.0, dtype=torch.float64),
        torch.tensor([10.0, 0.0], dtype=torch.float64),
        torch.tensor([-10.0, 1e9], dtype=torch.float64),
        torch.tensor([100.0, 50.0], dtype=torch.float64),
        rules,
    )
    assert fills.cash.item() == pytest.approx(0, abs=1e-9)
    assert fills.shares.tolist() == pytest.approx([0, 1000 * 0.99 / (50 * 1.01)])
    assert fills.cost.item() == pytest.approx(10 + 0.01 * 1000 * 0.99 / 1.01)


def test_proportional_allocation_scales_all_buys_by_one_factor() -> None:
    fills = execute(
        torch.tensor(300.0), torch.zeros(2), torch.tensor([4.0, 2.0]), torch.tensor([100.0, 100.0]), ExecutionRules(0.0)
    )
    assert fills.shares.tolist() == pytest.approx([2.0, 1.0])


def test_sequential_allocation_buys_by_priority_then_asset_index() -> None:
    rules = ExecutionRules(0.0, whole_shares=True, buy_allocation="sequential")
    cash, prices, trades = torch.tensor(350.0), torch.full((3,), 100.0), torch.tensor([2.0, 2.0, 2.0])
    without_priority = execute(cash, torch.zeros(3), trades, prices, rules)
    assert without_priority.shares.tolist() == [2, 1, 0]
    with_priority = execute(cash, torch.zeros(3), trades, prices, rules, torch.tensor([0.1, 0.2, 0.3]))
    assert with_priority.shares.tolist() == [0, 1, 2]


def test_trades_to_weights_reach_the_weights_without_costs() -> None:
    cash, shares = torch.tensor(500.0), torch.tensor([1.0, 4.0])
    prices, weights = torch.tensor([100.0, 100.0]), torch.tensor([0.25, 0.5])
    fills = execute(cash, shares, trades_to_weights(weights, cash, shares, prices), prices, ExecutionRules(0.0))
    assert (fills.shares * prices / 1000).tolist() == pytest.approx([0.25, 0.5])
    assert fills.cash.item() == pytest.approx(250)


@pytest.mark.slow
@pytest.mark.parametrize("leverage", [1.0, 1.5])
def test_gradients_match_finite_differences(leverage: float) -> None:
    rules = ExecutionRules(0.003, leverage=leverage)
    for seed in range(6):  # with and without enough cash; random points are not at kinks
        rng = np.random.default_rng(seed)
        inputs = [
            torch.tensor(x, requires_grad=True)
            for x in (rng.uniform(10, 1000, 3), rng.uniform(1, 9, (3, 4)), rng.normal(0, 6, (3, 4)))
        ]
        prices = torch.tensor(rng.uniform(20, 80, (3, 4)), requires_grad=True)
        assert torch.autograd.gradcheck(
            lambda c, s, t, p: tuple(execute(c, s, t, p, rules)), (*inputs, prices), eps=1e-6, atol=1e-5
        )


@pytest.mark.parametrize("quantity", [0.0, 1e-36, 1e-30, 1e-20, 1.0, 1e9])
@pytest.mark.parametrize("cash", [0.0, 1.0, 1e6])
def test_gradients_are_finite_at_extreme_quantities(quantity: float, cash: float) -> None:
    cash_tensor, trades = (
        torch.tensor(cash, requires_grad=True),
        torch.tensor([quantity, 0.0, -quantity], requires_grad=True),
    )
    shares = torch.tensor([0.0, 0.0, 1.0], requires_grad=True)
    fills = execute(cash_tensor, shares, trades, torch.tensor([1.0, 2.0, 3.0]), ExecutionRules())
    for output in (fills.cash, fills.shares.sum(), fills.cost):
        for gradient in torch.autograd.grad(output, (cash_tensor, shares, trades), retain_graph=True):
            assert torch.isfinite(gradient).all()
